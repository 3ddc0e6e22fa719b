#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/counted.h"
#include "base/cpus.h"
#include "base/describe_bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/plan.h"
#include "base/unix_time.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/state/state_keeper.h"
#include "model/layer_reader.h"
#include "runtime/devices.h"
#include "runtime/kv_choice.h"
#include "runtime/model_drafter.h"
#include "worker/catch_exhausted.h"
#include "worker/device_room.h"
#include "worker/layer.h"

namespace gyre {
namespace {

// With shifted contexts a request without a limit generates at most this many contexts of tokens.
constexpr uint32_t kUnaskedContexts = 4;

StatusOr<uint64_t> WeightBytes(const Model& model, bool mtp) {
  GYRE_ASSIGN_OR_RETURN(uint64_t bytes, EndBytes(model, true, true));
  if (mtp) {
    GYRE_ASSIGN_OR_RETURN(const size_t drafts, MtpBytes(model));
    bytes += drafts;
  }
  for (int i = 0; i < static_cast<int>(model.spec().layers.size()); ++i) {
    GYRE_ASSIGN_OR_RETURN(const size_t layer, LayerBytes(model, i));
    bytes += layer;
  }
  return bytes;
}

// Whether the model's layer for drafts is used. A layer that is damaged is an error only where it is asked for.
StatusOr<bool> UsesMtp(const RuntimeOptions& o, const Model& model, KvType kv) {
  const Speculation speculation = ParseSpeculation(o.speculation).value_or(Speculation::kOff);
  if (!Uses(speculation, Speculation::kMtp)) return false;
  const ModelSpec& spec = model.spec();
  Status usable = ReadMtp(model.tensors(), spec).status();
  if (usable.ok()) usable = CheckKvType(kv, *spec.mtp);
  if (usable.ok()) return true;
  if (speculation == Speculation::kMtp) return Annotate(usable, "--speculation mtp");
  if (spec.draft_layers > 0 && !o.quiet) Log(LogLevel::kWarn, "no drafts of the model's own: {}", Message(usable));
  return false;
}

// What a draft model leaves of so many bytes; 0: unknown.
uint64_t Without(uint64_t draft, uint64_t bytes) { return bytes == 0 ? 0 : bytes - std::min(bytes - 1, draft); }

// The bytes of which the KV cache may take half, beside a draft model's. A device's own memory holds no other programs:
// all that weights leave there is the cache's, as layers that do not fit are computed far more slowly.
StatusOr<uint64_t> MemoryForCache(const Device* device, const Model& model, bool mtp, uint64_t draft) {
  if (device == nullptr) return Without(draft, AvailableMemory());
  GYRE_ASSIGN_OR_RETURN(const uint64_t weights, WeightBytes(model, mtp));
  const uint64_t room = Without(draft, RoomForLayers(*device->room()));
  return weights < room ? std::min(room, 2 * (room - weights)) : room;
}

KvPreference PreferenceOf(const RuntimeOptions& o, const ModelSpec& spec, bool mtp, uint64_t hash, KvType type,
                          uint64_t memory) {
  KvPreference preference{.ctx = o.ctx,
                          .model_context = static_cast<uint32_t>(spec.context),
                          .tokens = o.kv_tokens,
                          .parallel = o.parallel,
                          .max_sequences = o.max_sequences,
                          .block_size = o.block_size,
                          .reserve = o.kv_reserve,
                          .unit_bytes = spec.UnitBytes(type, o.block_size, mtp),
                          .window = static_cast<uint32_t>(spec.window),
                          .chunk = o.no_chunked_prefill || spec.encoder ? 0 : o.chunk,
                          .memory = memory};
  // The cache is the same as before a restart, so that workers keep their pages; free memory may differ now.
  const std::optional<ServingRecord> before = o.state != nullptr ? o.state->serving() : std::nullopt;
  if (!before || before->model_hash != hash || before->block_size != o.block_size) return preference;
  if (preference.ctx == 0) preference.ctx = before->context;
  if (preference.tokens == 0 && preference.ctx == before->context)
    preference.tokens = uint64_t{before->num_blocks} * o.block_size;
  return preference;
}

// Whether a coordinator's memory holds all weights and the KV cache of one sequence, so that it can serve without
// workers. Otherwise this is logged, and the coordinator gets layers only beside workers.
bool HoldsModel(const RuntimeOptions& o, const Model& model, bool mtp, KvType type, const KvUnits& least,
                uint64_t memory) {
  const auto sizes = SizesOf(model, {.units = least}, static_cast<int>(o.block_size), type, mtp);
  if (memory == 0 || !sizes.ok()) return true;
  uint64_t needed = sizes->both + sizes->MemoryOf(LayerRange{0, sizes->num_layers()});
  for (uint64_t bytes : sizes->layers) needed += bytes;
  if (needed <= memory) return true;
  constexpr double kGib = 1 << 30;
  Log(LogLevel::kWarn,
      "the model needs {:.2f} GiB and this machine has {:.2f} GiB: it runs no layers alone, and requests wait for "
      "workers",
      static_cast<double>(needed) / kGib, static_cast<double>(memory) / kGib);
  return false;
}

// The first layer of those that a device with so much memory holds: from there to the last one, with the output matrix,
// as the embedding is read row by row. The number of layers: it holds none.
int FirstThatFits(const ModelSizes& sizes, uint64_t memory) {
  const int all = sizes.num_layers();
  int first = all;
  for (int begin = all; begin-- > 0;) {
    const LayerRange range{begin, all};
    if (RangeBytes(sizes, range) + sizes.MemoryOf(range) > memory) break;
    if (begin == 0 || sizes.CanBegin(begin)) first = begin;
  }
  return first;
}

// Bytes that one activation takes on the wire; q8 includes its share of a block's scale.
double BytesPerValue(WireType wire) { return wire == WireType::kF16 ? 2 : wire == WireType::kQ8 ? 1.0625 : 4; }

// The draft model computes while the stages wait for it, so it has as many threads as they.
// `device`: the stages' one, if it has memory of its own, as that is taken when it is opened; else null.
StatusOr<std::shared_ptr<Drafter>> OpenDrafter(const RuntimeOptions& o, std::shared_ptr<const Model> model,
                                               const Model& target, uint32_t context, std::shared_ptr<Device> device) {
  if (device == nullptr) {
    GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(o.threads, o.cpus));
    GYRE_ASSIGN_OR_RETURN(
        device, OpenDevice({.name = o.device, .isa = o.isa, .threads = std::max(1, team.threads), .cpus = team.cpus}));
  }
  GYRE_ASSIGN_OR_RETURN(const std::shared_ptr<Drafter> drafter, ModelDrafter::Open({.model = model,
                                                                                    .target = TokensOf(target),
                                                                                    .target_name = target.path(),
                                                                                    .device = device,
                                                                                    .context = context,
                                                                                    .texts = std::max(1u, o.parallel),
                                                                                    .chunk = o.chunk}));
  return drafter;
}

}  // namespace

uint64_t TermNow() { return static_cast<uint64_t>(UnixMillis()); }

StatusOr<std::unique_ptr<Runtime>> Runtime::Open(const RuntimeOptions& options) {
  return CatchExhausted([&] { return TryOpen(options); });
}

StatusOr<std::unique_ptr<Runtime>> Runtime::TryOpen(const RuntimeOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->model_ = options.opened;
  if (runtime->model_ == nullptr) {
    GYRE_ASSIGN_OR_RETURN(runtime->model_, OpenModel(options.model, options.ForOpening()));
  }
  const ModelSpec& spec = runtime->model_->spec();
  if (options.stages < 1 || options.stages > static_cast<int>(spec.layers.size())) {
    return InvalidArgument("--stages {}: the model has {}, expected 1 to {}", options.stages,
                           Counted(spec.layers.size(), "layer"), spec.layers.size());
  }
  const std::optional<LayerRange> layers = options.serve ? options.serve->preference : std::nullopt;
  if (layers && layers->end > static_cast<int>(spec.layers.size())) {
    return InvalidArgument("--layers {}: the model has layers 0-{}", FormatRange(*layers), spec.layers.size() - 1);
  }
  const std::optional<KvType> named = ParseKvType(options.kv_type);
  if (!named)
    return InvalidArgument("--kv-type {}: expected f16, bf16, q8_0, q4_0, q4_0_plain or f32", options.kv_type);
  const KvType kv = *named;
  for (const LayerSpec& l : runtime->model_->spec().layers) GYRE_RETURN_IF_ERROR(CheckKvType(kv, l));
  const ServeOptions* serve = options.serve;
  const bool computes = serve == nullptr || !serve->no_local;
  if (computes) {
    GYRE_ASSIGN_OR_RETURN(runtime->device_, OpenOwnMemory(options));
  }
  uint64_t draft_weights = 0;
  GYRE_ASSIGN_OR_RETURN(runtime->mtp_, UsesMtp(options, *runtime->model_, kv));
  const Speculation speculation = ParseSpeculation(options.speculation).value_or(Speculation::kOff);
  if (speculation == Speculation::kDraft && options.draft_model.empty() && options.drafter == nullptr &&
      options.serve == nullptr)  // where a worker may draft
    return InvalidArgument("--speculation draft: --draft-model is missing");
  if (!options.draft_model.empty() && Uses(speculation, Speculation::kDraft)) {
    GYRE_ASSIGN_OR_RETURN(runtime->draft_model_, OpenModel(options.draft_model, options.ForOpeningDrafter()));
    GYRE_ASSIGN_OR_RETURN(draft_weights, DraftModelBytes(*runtime->draft_model_, 0));
  }
  GYRE_ASSIGN_OR_RETURN(const uint64_t memory,
                        MemoryForCache(runtime->device_.get(), *runtime->model_, runtime->mtp_, draft_weights));
  GYRE_ASSIGN_OR_RETURN(const KvChoice cache, ChooseKv(PreferenceOf(options, spec, runtime->mtp_,
                                                                    runtime->model_->content_hash(), kv, memory)));
  runtime->context_ = cache.context;
  if (runtime->draft_model_ != nullptr) {
    const uint64_t positions = uint64_t{std::max(1u, options.parallel)} * cache.context;
    GYRE_ASSIGN_OR_RETURN(runtime->draft_bytes_, DraftModelBytes(*runtime->draft_model_, positions));
  }
  runtime->context_shift_ = options.context_shift;
  if (!options.quiet) Log(cache.cut ? LogLevel::kWarn : LogLevel::kInfo, "{}", cache.sentence);
  const std::string warning = ContextWarning(runtime->context_, static_cast<uint64_t>(spec.context));
  if (!warning.empty() && !options.quiet) Log(LogLevel::kWarn, "{}", warning);
  RingPortOptions port;
  if (options.serve != nullptr) {
    port.listen = options.serve->ring;
    port.advertise_host = options.serve->advertise;
    port.identity = options.serve->identity;
    GYRE_ASSIGN_OR_RETURN(port.transport, ParseTransport(options.serve->transport));
  }
  if (options.tcp) port.listen = "127.0.0.1:0";
  GYRE_ASSIGN_OR_RETURN(runtime->port_, RingPort::Open(port));
  if (options.wrap_port) runtime->port_ = options.wrap_port(std::move(runtime->port_));
  if (options.serve != nullptr) {
    runtime->weights_ = std::make_unique<WeightStock>(WeightCache(options.serve->cache, 0), runtime->port_.get());
  }
  if (options.state != nullptr) {
    options.state->Serve({.model_hash = runtime->model_->content_hash(),
                          .context = cache.context,
                          .num_blocks = cache.memory[kPageGroup],
                          .block_size = options.block_size});
  }
  runtime->term_ = options.state != nullptr ? options.state->term() : TermNow();
  std::vector<LocalMember> members;
  bool holds = true;  // the model, without others
  if (computes && serve == nullptr) {
    GYRE_ASSIGN_OR_RETURN(members, runtime->MembersAlone(options, cache, kv));
  } else if (computes) {
    const uint64_t draft = runtime->draft_bytes_;
    const uint64_t free =
        Without(draft, runtime->device_ != nullptr ? RoomForLayers(*runtime->device_->room()) : AvailableMemory());
    const uint64_t given = Without(draft, serve->memory);
    LocalMember local{.name = "local", .device = runtime->device_};
    holds = HoldsModel(options, *runtime->model_, runtime->mtp_, kv, cache.memory.least, given != 0 ? given : free);
    // A member that can hold all layers can hold any share of them, so its memory needs no check in later plans; but
    // for a device's own, which is taken at once.
    if (given != 0 && !holds) {
      local.memory = given;
    } else if (local.device != nullptr) {
      local.memory = free;
    } else if (!holds) {
      local.memory = free / 10 * 9;
    }
    members.push_back(std::move(local));
  }
  GYRE_RETURN_IF_ERROR(runtime->Start(options, cache, kv, static_cast<int>(members.size())));
  GYRE_RETURN_IF_ERROR(runtime->AddWorkers(options, members));
  // After a restart it waits for workers that have not found this process yet.
  const bool adopts = options.state != nullptr && options.state->cluster() && options.state->cluster()->on_workers;
  if (!members.empty() && holds && !adopts) GYRE_RETURN_IF_ERROR(runtime->cluster_->WaitForPlan(kNoDeadline));
  return runtime;
}

// The device that is asked for, if it has memory of its own, which is reserved as it is opened. null: the host's
// processors compute, and each member gets some of them.
StatusOr<std::shared_ptr<Device>> Runtime::OpenOwnMemory(const RuntimeOptions& options) {
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, OpenDevice({.name = options.device,
                                                                    .isa = options.isa,
                                                                    .threads = 1,
                                                                    .cpus = {},
                                                                    .memory = options.device_memory,
                                                                    .graphs = !options.no_graphs}));
  return device->room() ? device : nullptr;
}

// The members of a process that serves no cluster: its stages. Those of one device share its memory. Layers that the
// device does not hold stay on the host's processors, as a stage of their own.
StatusOr<std::vector<Runtime::LocalMember>> Runtime::MembersAlone(const RuntimeOptions& options, const KvChoice& cache,
                                                                  KvType kv) const {
  std::vector<LocalMember> members;
  for (int i = 0; i < options.stages; ++i) {
    members.push_back({.name = options.stages == 1 ? "local" : fmt::format("local-{}", i + 1), .device = device_});
  }
  if (device_ == nullptr || options.stages > 1) return members;
  const uint64_t room = Without(draft_bytes_, RoomForLayers(*device_->room()));
  GYRE_ASSIGN_OR_RETURN(const ModelSizes sizes,
                        SizesOf(*model_, cache.memory, static_cast<int>(options.block_size), kv, mtp_));
  const int first = FirstThatFits(sizes, room), all = sizes.num_layers();
  if (first == 0) return members;
  if (first == all) {
    const LayerRange last{all - 1, all};
    return ResourceExhausted(
        "--device {}: it has {} for layers, and the last one needs {} with its KV cache and the output matrix; "
        "a smaller --ctx or --kv-tokens makes the cache smaller, --device-memory says how much is reserved, and "
        "--device cpu computes without it",
        device_->name(), DescribeBytes(room), DescribeBytes(RangeBytes(sizes, last) + sizes.MemoryOf(last)));
  }
  members[0].layers = LayerRange{first, all};
  members.insert(members.begin(), LocalMember{.name = "local-cpu", .layers = LayerRange{0, first}});
  if (!options.quiet) {
    Log(LogLevel::kWarn, "{} has {} for layers: it computes layers {}, and this machine's processors compute layers {}",
        device_->name(), DescribeBytes(room), FormatRange({first, all}), FormatRange({0, first}));
  }
  return members;
}

Status Runtime::Start(const RuntimeOptions& o, const KvChoice& cache, KvType kv, int members) {
  ClusterOptions c;
  c.term = term_;
  c.new_key = RandomRingKey;
  c.model_hash = model_->content_hash();
  GYRE_ASSIGN_OR_RETURN(c.sizes, SizesOf(*model_, cache.memory, static_cast<int>(o.block_size), kv, mtp_));
  c.block_size = static_cast<int>(o.block_size);
  c.kv_type = kv;
  c.mtp = mtp_;
  c.exact = o.exact;
  c.min_workers = o.serve != nullptr ? o.serve->min_workers : members;
  if (o.serve != nullptr && o.serve->bit_equal) {
    std::shared_ptr<Device> device = device_;
    if (device == nullptr) {
      GYRE_ASSIGN_OR_RETURN(device, OpenDevice({.name = o.device, .isa = o.isa}));
    }
    c.isa = device->isa();
    c.version = o.serve->version;
  }
  GYRE_ASSIGN_OR_RETURN(c.wire, ParseWireType(o.wire));
  if (o.serve != nullptr) {
    GYRE_ASSIGN_OR_RETURN(c.transport, ParseTransport(o.serve->transport));
    GYRE_ASSIGN_OR_RETURN(c.rebalance.mode, ParseRebalance(o.serve->rebalance));
  }
  c.replicate_kv = o.serve != nullptr && o.serve->replicate_kv;
  c.row_bytes = BytesPerValue(c.wire) * model_->spec().dim;
  c.progress = o.on_load;
  // Without its cluster's thread a process could neither change its plan nor notice a loss. So it ends, and a
  // supervisor starts it again.
  c.on_fatal = [](const Status& why) {
    Log(LogLevel::kError, "{}; the process ends", Message(why));
    std::_Exit(1);
  };
  c.tracer = o.tracer;
  if (o.timeouts != nullptr) c.timeouts = *o.timeouts;
  if (o.state != nullptr) {
    c.record = o.state->cluster();
    c.has_cache = !o.state->cache().units.empty();
    c.on_record = [state = o.state](const ClusterRecord& record) { state->Record(record); };
  }
  cluster_ = std::make_unique<Cluster>(std::move(c));

  EngineOptions e;
  e.scheduler.memory = cache.memory;
  e.scheduler.window = static_cast<uint32_t>(model_->spec().window);
  e.scheduler.block_size = o.block_size;
  e.scheduler.max_rows = o.max_rows;
  e.scheduler.chunk = o.chunk;
  e.scheduler.max_sequences = cache.max_sequences;
  const std::optional<SchedulerPolicy> policy = ParsePolicy(o.policy);
  if (!policy) return InvalidArgument("--policy {}: expected fcfs, prefill_first or decode_round_robin", o.policy);
  e.scheduler.policy = *policy;
  e.scheduler.step_tokens = o.step_tokens;
  e.scheduler.adapts_in_flight = o.steps_in_flight == 0;
  e.steps_in_flight = o.steps_in_flight;
  e.scheduler.reserve_positions = o.kv_reserve ? context_ : 0;
  // A row of an encoder's text depends on those behind it.
  const bool encoder = model_->spec().encoder;
  e.scheduler.prefix_cache = !o.no_prefix_cache && !encoder;
  e.scheduler.chunked_prefill = !o.no_chunked_prefill && !encoder;
  e.scheduler.continuous_batching = !o.no_continuous_batching;
  e.now = o.now;
  e.vocab = model_->spec().vocab;
  e.dim = model_->spec().dim;
  e.encoder = encoder;
  e.context = context_;
  if (o.context_shift) e.context_keep = o.context_keep;
  e.tokenizer = model_->tokenizer();
  e.adapters = static_cast<uint32_t>(model_->adapters().size());
  if (o.adapts_all && e.adapters > 0) e.adapter = 1;
  e.tracer = o.tracer;
  e.candidates_path = !o.no_candidates;
  const std::optional<Speculation> speculation = ParseSpeculation(o.speculation);
  if (!speculation) return InvalidArgument("--speculation {}: expected auto, off, ngram, draft or mtp", o.speculation);
  e.speculation = *speculation;
  e.drafter = o.drafter;
  e.draft_tokens = o.draft_tokens;
  e.mtp = mtp_;
  if (o.serve != nullptr && draft_model_ == nullptr && o.drafter == nullptr &&
      Uses(*speculation, Speculation::kDraft)) {
    GYRE_ASSIGN_OR_RETURN(remote_drafter_, RemoteDrafter::Start());
    e.drafter = remote_drafter_;
  }
  if (draft_model_ != nullptr) {
    GYRE_ASSIGN_OR_RETURN(e.drafter, OpenDrafter(o, draft_model_, *model_, context_, device_));
  }
  e.scheduler.takes_all_drafts = o.takes_all_drafts;
  if (o.state != nullptr) {
    e.cache = o.state->cache();
    e.generation = e.cache.generation + (uint64_t{1} << 16);
    e.on_cache = [state = o.state](const CacheNews& news) { state->Keep(news); };
  }
  e.on_broken = [cluster = cluster_.get()](Epoch epoch, const Status& why) { cluster->OnRingBroken(epoch, why); };
  GYRE_ASSIGN_OR_RETURN(engine_, Engine::Start(std::move(e)));
  ServiceLimits limits;
  if (o.context_shift) limits.unasked_tokens = kUnaskedContexts * context_;
  limits.keep_changing_lines = o.keep_changing_lines;
  service_ = std::make_unique<Service>(*model_, CallsOf(*engine_), context_, limits, o.state);
  return cluster_->Start(engine_.get(), port_.get());
}

Status Runtime::AddWorkers(const RuntimeOptions& options, std::span<const LocalMember> members) {
  const bool serves = options.serve != nullptr;
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(options.threads, options.cpus));
  // A stage on a device needs no processors to compute.
  const auto of_processors = static_cast<int>(
      std::count_if(members.begin(), members.end(), [](const LocalMember& m) { return m.device == nullptr; }));
  if (!options.cpus.empty() && team.threads < of_processors) {
    return InvalidArgument("--cpus {}: {} stages, expected a processor for each", options.cpus, of_processors);
  }
  auto next_cpu = team.cpus.begin();
  int with_cpus = 0;
  for (const LocalMember& member : members) {
    WorkerOptions w;
    w.name = member.name;
    w.model = model_;
    w.device = member.device;
    w.threads = team.threads;
    if (w.device == nullptr) {
      w.threads = std::max(1, team.threads / of_processors + (with_cpus++ < team.threads % of_processors ? 1 : 0));
      const auto last_cpu = next_cpu + std::min<std::ptrdiff_t>(w.threads, team.cpus.end() - next_cpu);
      const bool beside_device = device_ != nullptr;
      GYRE_ASSIGN_OR_RETURN(w.device, OpenDevice({.name = beside_device ? "cpu" : options.device,
                                                  .isa = options.isa,
                                                  .threads = w.threads,
                                                  .cpus = std::vector<int>(next_cpu, last_cpu)}));
      next_cpu = last_cpu;
    }
    w.exact = options.exact;
    w.weights = weights_.get();
    RingPort* port = port_.get();
    if (options.tcp) {
      GYRE_ASSIGN_OR_RETURN(auto own, RingPort::Open({.listen = "127.0.0.1:0"}));
      if (options.wrap_port) own = options.wrap_port(std::move(own));
      port = worker_ports_.emplace_back(std::move(own)).get();
    }
    w.port = port;
    MemberInfo info{.name = w.name,
                    .address = port->address(),
                    .host = "",
                    .local = serves,
                    .memory = member.memory,
                    .threads = w.threads,
                    .isa = w.device->isa(),
                    .version = serves ? options.serve->version : "",
                    .prefill_matches_decode = w.device->prefill_matches_decode(),
                    .model_hash = model_->content_hash(),
                    .preference = member.layers,
                    .own_memory = w.device->room().has_value()};
    if (serves) info.preference = options.serve->preference;
    if (serves && options.serve->measure) {
      GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(options.isa));
      info.speed =
          options.serve->measure({.isa = isa, .threads = w.threads, .file = model_->path(), .device = w.device.get()});
    }
    auto worker = std::make_shared<Worker>(std::move(w));
    port->SetBulkHandler(info.name, [weak = std::weak_ptr<Worker>(worker)](std::unique_ptr<Link> link) {
      if (const auto alive = weak.lock()) alive->ServeBulk(std::move(link));
    });
    workers_.push_back(worker);
    GYRE_RETURN_IF_ERROR(
        cluster_->Join(std::move(info), std::shared_ptr<StageControl>(worker, &worker->control())).status());
  }
  return absl::OkStatus();
}

Runtime::~Runtime() {
  if (cluster_ != nullptr) cluster_->Stop();
  service_.reset();
  engine_.reset();
  for (auto& worker : workers_) worker->Stop();
  cluster_.reset();
  workers_.clear();
}

void Runtime::ReportLoads() {
  for (const auto& w : workers_) cluster_->Report(w->control().name(), w->TakeLoad());
}

}  // namespace gyre
