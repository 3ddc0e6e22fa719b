#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/counted.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/plan.h"
#include "base/unix_time.h"
#include "coordinator/state/state_keeper.h"
#include "runtime/devices.h"
#include "runtime/kv_choice.h"
#include "runtime/model_drafter.h"
#include "worker/catch_exhausted.h"
#include "worker/layer.h"

namespace gyre {
namespace {

// With shifted contexts a request without a limit generates at most this many contexts of tokens.
constexpr uint32_t kUnaskedContexts = 4;

KvPreference PreferenceOf(const RuntimeOptions& o, const ModelSpec& spec, uint64_t hash, KvType type) {
  KvPreference preference{.ctx = o.ctx,
                          .model_context = static_cast<uint32_t>(spec.context),
                          .tokens = o.kv_tokens,
                          .parallel = o.parallel,
                          .max_sequences = o.max_sequences,
                          .block_size = o.block_size,
                          .reserve = o.kv_reserve,
                          .unit_bytes = spec.UnitBytes(type, o.block_size),
                          .window = static_cast<uint32_t>(spec.window),
                          .chunk = o.no_chunked_prefill ? 0 : o.chunk,
                          .memory = AvailableMemory()};
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
bool HoldsModel(const RuntimeOptions& o, const Model& model, KvType type, const KvUnits& least) {
  const uint64_t memory = o.serve->memory != 0 ? o.serve->memory : AvailableMemory();
  const auto sizes = SizesOf(model, {.units = least}, static_cast<int>(o.block_size), type);
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

// Bytes that one activation takes on the wire; q8 includes its share of a block's scale.
double BytesPerValue(WireType wire) { return wire == WireType::kF16 ? 2 : wire == WireType::kQ8 ? 1.0625 : 4; }

// The draft model computes while the stages wait for it, so it has as many threads as they.
StatusOr<std::shared_ptr<Drafter>> OpenDrafter(const RuntimeOptions& o, const Model& target, uint32_t context) {
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(o.draft_model, o.ForOpening()));
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(o.threads, o.cpus));
  GYRE_ASSIGN_OR_RETURN(
      const auto device,
      OpenDevice({.name = o.device, .isa = o.isa, .threads = std::max(1, team.threads), .cpus = team.cpus}));
  GYRE_ASSIGN_OR_RETURN(const std::shared_ptr<Drafter> drafter, ModelDrafter::Open({.model = model,
                                                                                    .target = &target,
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
  if (!named) return InvalidArgument("--kv-type {}: expected f16, bf16, q8_0, q4_0 or f32", options.kv_type);
  const KvType kv = *named;
  for (const LayerSpec& l : runtime->model_->spec().layers) GYRE_RETURN_IF_ERROR(CheckKvType(kv, l));
  GYRE_ASSIGN_OR_RETURN(const KvChoice cache,
                        ChooseKv(PreferenceOf(options, spec, runtime->model_->content_hash(), kv)));
  runtime->context_ = cache.context;
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
  GYRE_RETURN_IF_ERROR(runtime->Start(options, cache, kv));
  const ServeOptions* serve = options.serve;
  const int members = serve == nullptr ? options.stages : serve->no_local ? 0 : 1;
  // A member that can hold all layers can hold any share of them, so its memory needs no check in later plans.
  uint64_t memory = 0;
  if (serve != nullptr && members > 0 && !HoldsModel(options, *runtime->model_, kv, cache.memory.least)) {
    memory = serve->memory != 0 ? serve->memory : AvailableMemory() / 10 * 9;
  }
  GYRE_RETURN_IF_ERROR(runtime->AddWorkers(options, members, memory));
  // After a restart it waits for workers that have not found this process yet.
  const bool adopts = options.state != nullptr && options.state->cluster() && options.state->cluster()->on_workers;
  if (members > 0 && memory == 0 && !adopts) GYRE_RETURN_IF_ERROR(runtime->cluster_->WaitForPlan(kNoDeadline));
  return runtime;
}

Status Runtime::Start(const RuntimeOptions& o, const KvChoice& cache, KvType kv) {
  ClusterOptions c;
  c.term = term_;
  c.new_key = RandomRingKey;
  c.model_hash = model_->content_hash();
  GYRE_ASSIGN_OR_RETURN(c.sizes, SizesOf(*model_, cache.memory, static_cast<int>(o.block_size), kv));
  c.block_size = static_cast<int>(o.block_size);
  c.kv_type = kv;
  c.exact = o.exact;
  c.min_workers = o.serve != nullptr ? o.serve->min_workers : o.stages;
  if (o.serve != nullptr && o.serve->bit_equal) {
    GYRE_ASSIGN_OR_RETURN(const auto device, OpenDevice({.name = o.device, .isa = o.isa}));
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
  e.scheduler.prefix_cache = !o.no_prefix_cache;
  e.scheduler.chunked_prefill = !o.no_chunked_prefill;
  e.scheduler.continuous_batching = !o.no_continuous_batching;
  e.now = o.now;
  e.vocab = model_->spec().vocab;
  e.dim = model_->spec().dim;
  e.context = context_;
  if (o.context_shift) e.context_keep = o.context_keep;
  e.tokenizer = model_->tokenizer();
  e.tracer = o.tracer;
  e.candidates_path = !o.no_candidates;
  const std::optional<Speculation> speculation = ParseSpeculation(o.speculation);
  if (!speculation) return InvalidArgument("--speculation {}: expected auto, off or ngram", o.speculation);
  e.speculation = *speculation;
  e.drafter = o.drafter;
  e.draft_tokens = o.draft_tokens;
  if (!o.draft_model.empty() && *speculation == Speculation::kAuto) {
    GYRE_ASSIGN_OR_RETURN(e.drafter, OpenDrafter(o, *model_, context_));
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
  service_ = std::make_unique<Service>(*model_, CallsOf(*engine_), context_, limits, o.state);
  return cluster_->Start(engine_.get(), port_.get());
}

Status Runtime::AddWorkers(const RuntimeOptions& options, int members, uint64_t memory) {
  const bool serves = options.serve != nullptr;
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(options.threads, options.cpus));
  if (!options.cpus.empty() && team.threads < members) {
    return InvalidArgument("--cpus {}: {} stages, expected a processor for each", options.cpus, members);
  }
  auto next_cpu = team.cpus.begin();
  for (int i = 0; i < members; ++i) {
    WorkerOptions w;
    w.name = members == 1 ? "local" : fmt::format("local-{}", i + 1);
    w.model = model_;
    w.threads = std::max(1, team.threads / members + (i < team.threads % members ? 1 : 0));
    const auto last_cpu = next_cpu + std::min<std::ptrdiff_t>(w.threads, team.cpus.end() - next_cpu);
    GYRE_ASSIGN_OR_RETURN(w.device, OpenDevice({.name = options.device,
                                                .isa = options.isa,
                                                .threads = w.threads,
                                                .cpus = std::vector<int>(next_cpu, last_cpu)}));
    next_cpu = last_cpu;
    w.exact = options.exact;
    w.weights = weights_.get();
    RingPort* port = port_.get();
    if (options.tcp) {
      GYRE_ASSIGN_OR_RETURN(auto own, RingPort::Open({.listen = "127.0.0.1:0"}));
      port = worker_ports_.emplace_back(std::move(own)).get();
    }
    w.port = port;
    MemberInfo info{.name = w.name,
                    .address = port->address(),
                    .host = "",
                    .local = serves,
                    .memory = memory,
                    .threads = w.threads,
                    .isa = w.device->isa(),
                    .version = serves ? options.serve->version : "",
                    .prefill_matches_decode = w.device->prefill_matches_decode(),
                    .model_hash = model_->content_hash()};
    if (serves) info.preference = options.serve->preference;
    if (serves && options.serve->measure) {
      GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(options.isa));
      info.speed = options.serve->measure({.isa = isa, .threads = w.threads, .file = model_->path()});
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
