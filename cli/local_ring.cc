#include "cli/local_ring.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "cli/progress.h"
#include "coordinator/plan_change.h"
#include "kernels/ops.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

StatusOr<Isa> ParseIsa(const std::string& name) {
  if (name.empty()) return DetectIsa();
  for (Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni}) {
    if (name != IsaName(isa)) continue;
    const std::string missing = IsaMissing(isa);
    if (!missing.empty()) return FailedPrecondition("--isa {}: {}", name, missing);
    return isa;
  }
  return InvalidArgument("--isa {}: expected ref, avx2, avx512 or avx512vnni", name);
}

// Physical cores: hyperthreads add nothing to streams and products that already fill a core.
int DefaultThreads() {
  const int logical = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::ifstream siblings("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
  std::string list;
  const bool smt = std::getline(siblings, list) && list.find_first_of(",-") != std::string::npos;
  return smt ? std::max(1, logical / 2) : logical;
}

// Bytes that could still be allocated, by /proc/meminfo; 0 = unknown.
uint64_t AvailableMemory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    meminfo.ignore(64, '\n');
  }
  return 0;
}

uint64_t KvBytesPerToken(const ModelSpec& spec, KvType type) {
  uint64_t elems = 0;
  for (const LayerSpec& layer : spec.layers) elems += ModelSpec::KvElems(layer);
  return elems * (type == KvType::kF16 ? 2 : 4);
}

// The number of KV blocks: what was asked for, or the context for each sequence that is to fit, as far as half of the
// memory goes (pages are touched only when used).
StatusOr<uint32_t> CountBlocks(const RingOptions& o, const ModelSpec& spec, KvType type, uint32_t context) {
  uint64_t tokens = o.kv_tokens != 0 ? o.kv_tokens : uint64_t{o.parallel} * context;
  const uint64_t per_token = KvBytesPerToken(spec, type);
  const uint64_t room = AvailableMemory() / 2 / std::max<uint64_t>(per_token, 1);
  if (o.kv_tokens == 0 && room > 0 && tokens > room) {
    tokens = std::max<uint64_t>(room, o.block_size);
    if (!o.quiet) {
      Log(LogLevel::kWarn, "the KV cache is cut to {} tokens ({:.1f} GiB), half of the free memory; --kv-tokens says more",
          tokens, static_cast<double>(tokens * per_token) / (1 << 30));
    }
  }
  const uint64_t blocks = (tokens + o.block_size - 1) / o.block_size;
  if (blocks == 0 || blocks >= kNoBlock) {
    return InvalidArgument("--kv-tokens {}: expected 1 to {}", tokens, uint64_t{kNoBlock - 1} * o.block_size);
  }
  return static_cast<uint32_t>(blocks);
}

uint64_t TermNow() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

StatusOr<std::unique_ptr<LocalRing>> LocalRing::Open(const RingOptions& options) {
  std::unique_ptr<LocalRing> ring(new LocalRing);
  GYRE_ASSIGN_OR_RETURN(ring->model_, OpenModel(options.model, options.open));
  const ModelSpec& spec = ring->model_->spec();
  ring->context_ = options.ctx != 0 ? options.ctx : static_cast<uint32_t>(spec.context);
  if (ring->context_ > static_cast<uint32_t>(spec.context) && !options.quiet) {
    Log(LogLevel::kWarn, "--ctx {} is more than the {} that the model was made for; far text may be poor",
        ring->context_, spec.context);
  }
  const KvType kv = options.kv_type == "f32" ? KvType::kF32 : KvType::kF16;
  GYRE_ASSIGN_OR_RETURN(const uint32_t num_blocks, CountBlocks(options, spec, kv, ring->context_));

  std::vector<std::string> names;
  for (int i = 0; i < options.stages; ++i) {
    names.push_back(options.stages == 1 ? "local" : fmt::format("local-{}", i + 1));
  }
  GYRE_ASSIGN_OR_RETURN(ring->plan_,
                        EvenPlan({.term = TermNow(), .number = 1}, 0, static_cast<int>(spec.layers.size()), names));
  GYRE_RETURN_IF_ERROR(ring->Wire(options));

  std::vector<StageControl*> controls;
  for (auto& worker : ring->workers_) controls.push_back(&worker->control());
  Progress progress("loading", options.quiet);
  const Status changed = ChangePlan(
      ring->plan_, controls,
      {.block_size = static_cast<int>(options.block_size),
       .num_blocks = num_blocks,
       .kv_type = kv,
       .deadline = kNoDeadline,
       .progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); }});
  progress.Finish();
  GYRE_RETURN_IF_ERROR(changed);
  GYRE_RETURN_IF_ERROR(ring->StartEngine(options, num_blocks));
  return ring;
}

Status LocalRing::Wire(const RingOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(options.isa));
  const int stages = options.stages;
  const int threads = options.threads > 0 ? options.threads : DefaultThreads();
  for (int hop = 0; hop <= stages; ++hop) {  // coordinator -> 0 -> ... -> N-1 -> coordinator
    auto [sender, receiver] = MakeInprocLinkPair({});
    links_.push_back(std::move(sender));
    links_.push_back(std::move(receiver));
  }
  for (int i = 0; i < stages; ++i) {
    LocalWorkerOptions w;
    w.name = plan_.stages[static_cast<size_t>(i)].members[0].worker;
    w.model = model_;
    w.isa = isa;
    w.threads = std::max(1, threads / stages + (i < threads % stages ? 1 : 0));
    w.exact = options.exact;
    w.in = links_[static_cast<size_t>(2 * i + 1)].get();
    w.out = links_[static_cast<size_t>(2 * i + 2)].get();
    workers_.push_back(std::make_unique<LocalWorker>(std::move(w)));
  }
  return absl::OkStatus();
}

Status LocalRing::StartEngine(const RingOptions& o, uint32_t num_blocks) {
  const auto stages = static_cast<uint32_t>(o.stages);
  EngineOptions e;
  e.scheduler.num_blocks = num_blocks;
  e.scheduler.block_size = o.block_size;
  // One more than the stages hides the coordinator's turn; a lone stage takes everything in one step.
  e.scheduler.max_in_flight = stages == 1 ? 1 : stages + 1;
  e.scheduler.decode_groups = stages;
  e.scheduler.max_rows = o.max_rows;
  e.scheduler.chunk = o.chunk;
  e.scheduler.max_sequences = std::max<uint32_t>(o.parallel, 64);
  e.scheduler.prefix_cache = !o.no_prefix_cache;
  e.scheduler.chunked_prefill = !o.no_chunked_prefill;
  e.scheduler.continuous_batching = !o.no_continuous_batching;
  e.epoch = plan_.epoch;
  e.vocab = model_->spec().vocab;
  e.context = context_;
  e.tokenizer = model_->tokenizer();
  e.candidates_path = !o.no_candidates;
  GYRE_ASSIGN_OR_RETURN(engine_, Engine::Start(std::move(e), {.to_first = links_.front().get(),
                                                              .from_last = links_.back().get()}));
  return absl::OkStatus();
}

LocalRing::~LocalRing() {
  engine_.reset();
  for (auto& link : links_) link->Close();
  workers_.clear();
}

std::string LocalRing::DescribeLayers() {
  std::string out = fmt::format("{:<10} {:>8} {:>8} {:>6}\n", "stage", "layers", "threads", "busy");
  for (size_t i = 0; i < workers_.size(); ++i) {
    const LayerRange range = plan_.stages[i].layers;
    out += fmt::format("{:<10} {:>8} {:>8} {:>5.0f}%\n", workers_[i]->control().name(),
                       fmt::format("{}-{}", range.begin, range.end - 1), workers_[i]->threads(),
                       workers_[i]->TakeBusyShare() * 100);
  }
  return out;
}

}  // namespace gyre
