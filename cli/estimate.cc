// gyre estimate: the memory that a model needs, before it is run.
#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>

#include "base/counted.h"
#include "base/describe_bytes.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/model_source.h"
#include "cli/remote_headers.h"
#include "cli/session.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/engine/speculation.h"
#include "fmt/core.h"
#include "model/layer_reader.h"
#include "model/weights.h"
#include "runtime/kv_choice.h"
#include "runtime/model_drafter.h"
#include "runtime/runtime.h"
#include "worker/layer.h"

namespace gyre {
namespace {

namespace json = boost::json;

// "3" or "16G,8G,name=8G".
StatusOr<std::vector<PlanMember>> ParseNodes(const std::string& text) {
  std::vector<PlanMember> out;
  if (text.find_first_not_of("0123456789") == std::string::npos && !text.empty() && text.size() < 5) {
    for (int i = 1, n = std::stoi(text); i <= n; ++i) out.push_back({.name = fmt::format("node{}", i)});
  } else {
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const std::string part = text.substr(at, end - at);
      const size_t equals = part.find('=');
      PlanMember m{.name =
                       equals == std::string::npos ? fmt::format("node{}", out.size() + 1) : part.substr(0, equals)};
      const StatusOr<uint64_t> memory = ParseSize(equals == std::string::npos ? part : part.substr(equals + 1));
      if (!memory.ok()) return AsUsage(Annotate(memory.status(), "--nodes"));
      m.memory = *memory;
      out.push_back(std::move(m));
      at = end + 1;
    }
  }
  if (out.empty()) return UsageError("--nodes {}: expected a number of nodes, or their memory as 16G,8G", text);
  return out;
}

// The model's files, or their headers where it is not on this machine.
struct Found {
  std::string path;
  std::unique_ptr<RemoteHeaders> headers;  // null: the files are here
  uint64_t missing = 0;                    // bytes to pull

  static StatusOr<std::unique_ptr<Found>> Find(const EstimateOptions& options) {
    auto out = std::make_unique<Found>();
    out->path = options.model;
    std::error_code error;
    if (std::filesystem::exists(options.model, error)) return out;
    GYRE_ASSIGN_OR_RETURN(Source source, OpenSource(options.source));
    GYRE_ASSIGN_OR_RETURN(const ModelReference name, ReadModelName(options.model, source));
    if (name.kind == ModelReference::Kind::kPath) return out;
    if (const std::optional<CachedModel> cached = source.cache.Find(name)) {
      out->path = cached->path;
      return out;
    }
    InterruptGuard::Begin();
    source.pull.interrupted = &InterruptGuard::Interrupted;
    const Status fetched = out->Fetch(name, source);
    InterruptGuard::End();
    if (absl::IsCancelled(fetched)) return InterruptGuard::Stopped();
    GYRE_RETURN_IF_ERROR(fetched);
    return out;
  }

 private:
  Status Fetch(const ModelReference& name, const Source& source) {
    GYRE_ASSIGN_OR_RETURN(const PullPlan plan, PlanPull(name, source.cache, source.pull));
    for (const std::string& note : plan.notes) fmt::print(stderr, "{}\n", note);
    GYRE_ASSIGN_OR_RETURN(headers, RemoteHeaders::Fetch(plan, source.pull));
    path = headers->path();
    missing = plan.missing;
    fmt::print(stderr, "{} is not on this machine: {} of headers were read, a pull takes {}\n", plan.model.name,
               DescribeBytes(headers->fetched()), DescribeBytes(missing));
    return absl::OkStatus();
  }
};

// The weights of a draft model and its KV cache, which holds as many positions as the model's.
StatusOr<uint64_t> DraftBytes(const EstimateOptions& options, uint64_t tokens) {
  if (options.draft_model.empty()) return 0;
  GYRE_ASSIGN_OR_RETURN(const std::string path, LocateModel(options.draft_model, options.source));
  const ModelOptions drafter{.model = path, .open = options.open};
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(path, drafter.ForOpeningDrafter()));
  return DraftModelBytes(*model, tokens);
}

}  // namespace

Status EstimateCommand(const EstimateOptions& options) {
  InterruptGuard guard(kExitInterrupted);
  OpenOptions open = options.open;
  open.context = static_cast<int>(options.ctx);
  GYRE_ASSIGN_OR_RETURN(const auto found, Found::Find(options));
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(found->path, open));
  const ModelSpec& spec = model->spec();
  const uint64_t context = options.ctx != 0 ? options.ctx : static_cast<uint64_t>(spec.context);
  const std::string warning = ContextWarning(context, static_cast<uint64_t>(spec.context));
  if (!warning.empty()) fmt::print(stderr, "{}\n", warning);
  const uint64_t tokens = context * options.parallel;
  const KvType kv = ParseKvType(options.kv_type).value_or(KvType::kF16);
  GYRE_ASSIGN_OR_RETURN(std::vector<PlanMember> nodes, ParseNodes(options.nodes));
  // A single node without a given memory is this machine.
  if (nodes.size() == 1 && nodes[0].memory == 0) nodes[0].memory = AvailableMemory();
  // As `gyre run` uses it: an error in it is said there.
  const Speculation speculation = ParseSpeculation(options.speculation).value_or(Speculation::kOff);
  const bool mtp = Uses(speculation, Speculation::kMtp) && ReadMtp(model->tensors(), spec).ok();
  const KvPreference preference{.ctx = static_cast<uint32_t>(context),
                                .model_context = static_cast<uint32_t>(spec.context),
                                .parallel = options.parallel,
                                .unit_bytes = spec.UnitBytes(kv, KvPreference().block_size, mtp),
                                .window = static_cast<uint32_t>(spec.window)};
  GYRE_ASSIGN_OR_RETURN(KvChoice cache, ChooseKv(preference));
  // Each of these sequences has a state, and there are as many snapshots.
  if (cache.memory[kSlotGroup] > 0) cache.memory[kSlotGroup] = 2 * options.parallel;
  GYRE_ASSIGN_OR_RETURN(const ModelSizes sizes,
                        SizesOf(*model, cache.memory, static_cast<int>(preference.block_size), kv, mtp));
  std::vector<uint64_t> pages;
  uint64_t all_pages = 0, widest = 0;
  for (const LayerSpec& l : spec.layers) {
    GYRE_RETURN_IF_ERROR(CheckKvType(kv, l));
    pages.push_back(sizes.MemoryOf(static_cast<int>(pages.size())));
    all_pages += pages.back();
    // A row of scratch holds the outputs of each matrix, those of attention twice, and those of one expert at a time.
    uint64_t wide = ModelSpec::KvElems(l);
    for (const TensorRow& t : LayerTensors(l, spec.dim)) {
      const bool back = t.slot == Slot::kO || t.slot == Slot::kDown || t.slot == Slot::kExpertDown;
      if (t.form != TensorForm::kVector && !back) wide += t.heads * (t.slot == Slot::kQ ? 2 * t.dims[1] : t.dims[1]);
    }
    widest = std::max(widest, wide);
  }
  // These are the activations of a step, and the logits of its rows.
  const uint64_t rows = options.max_rows;
  const uint64_t buffers = rows * 4 * (4 * static_cast<uint64_t>(spec.RowElems()) + widest);
  const uint64_t head_buffers = std::min<uint64_t>(rows, 64) * 4 * static_cast<uint64_t>(spec.vocab);
  if (nodes.size() > sizes.layers.size()) {
    return UsageError("--nodes {}: the model has {}, and each node needs one", options.nodes,
                      Counted(sizes.layers.size(), "layer"));
  }
  GYRE_ASSIGN_OR_RETURN(const uint64_t draft, DraftBytes(options, tokens));
  if (nodes[0].memory > 0) nodes[0].memory -= std::min(nodes[0].memory - 1, draft);
  GYRE_ASSIGN_OR_RETURN(const std::vector<Assignment> parts, BalanceLayers(sizes, nodes));
  uint64_t weights = sizes.both;
  GYRE_ASSIGN_OR_RETURN(const uint64_t ends, EndBytes(*model, true, true));
  const uint64_t drafts = sizes.both - ends;
  for (uint64_t l : sizes.layers) weights += l;

  json::array list;
  bool fits = true;
  if (!options.json) {
    fmt::print("weights        {}\n", DescribeBytes(weights));
    fmt::print("KV cache       {} for {} ({} x {}, {})\n", DescribeBytes(all_pages), Counted(tokens, "token"),
               options.parallel, context, options.kv_type);
    if (!options.parallel_given) {
      fmt::print("               {} with the whole context, as `gyre {}` has room for; --parallel N counts others\n",
                 options.parallel == 1 ? "one request" : fmt::format("{} requests", options.parallel),
                 options.parallel == 1 ? "run" : "serve");
    }
    const uint64_t in_windows = uint64_t{cache.memory[kWindowGroup]} * preference.block_size;
    if (in_windows > 0)
      fmt::print("               {} of them in layers with a window of {}\n", in_windows, spec.window);
    if (mtp) fmt::print("drafts         {} of the weights, for a layer and its KV cache\n", DescribeBytes(drafts));
    if (draft > 0) fmt::print("draft model    {} with its KV cache, on {}\n", DescribeBytes(draft), nodes[0].name);
    fmt::print("buffers        {} a node for steps of {}, {} more for the last\n\n", DescribeBytes(buffers),
               Counted(rows, "row"), DescribeBytes(head_buffers));
    fmt::print("{:<12} {:>8} {:>12} {:>12} {:>12} {:>12}  {}\n", "node", "layers", "weights", "KV cache", "buffers",
               "together", "");
  }
  for (const Assignment& part : parts) {
    uint64_t own = RangeBytes(sizes, part.layers), cache = 0;
    for (int i = part.layers.begin; i < part.layers.end; ++i) cache += pages[static_cast<size_t>(i)];
    const uint64_t scratch = buffers + (part.layers.end == sizes.num_layers() ? head_buffers : 0);
    const auto node =
        std::find_if(nodes.begin(), nodes.end(), [&](const PlanMember& m) { return m.name == part.worker; });
    const uint64_t sum = own + cache + scratch;
    const bool ok = node->memory == 0 || sum <= node->memory;
    fits = fits && ok;
    list.push_back({{"node", part.worker},
                    {"layers", FormatRange(part.layers)},
                    {"weights", own},
                    {"kv", cache},
                    {"buffers", scratch},
                    {"memory", node->memory},
                    {"fits", ok}});
    if (options.json) continue;
    const std::string verdict = node->memory == 0 ? ""
                                : ok              ? fmt::format("of {}", DescribeBytes(node->memory))
                                                  : fmt::format("does not fit into {}", DescribeBytes(node->memory));
    fmt::print("{:<12} {:>8} {:>12} {:>12} {:>12} {:>12}  {}\n", part.worker, FormatRange(part.layers),
               DescribeBytes(own), DescribeBytes(cache), DescribeBytes(scratch), DescribeBytes(sum), verdict);
  }
  if (options.json) {
    fmt::print("{}\n", json::serialize(json::object{{"weights", weights},
                                                    {"kv", all_pages},
                                                    {"tokens", tokens},
                                                    {"parallel", options.parallel},
                                                    {"context", context},
                                                    {"buffers", buffers},
                                                    {"head_buffers", head_buffers},
                                                    {"draft", draft},
                                                    {"fits", fits},
                                                    {"to_pull", found->missing},
                                                    {"nodes", std::move(list)}}));
  }
  if (fits) return absl::OkStatus();
  std::fflush(stdout);
  return ResourceExhausted(
      "the model does not fit; a smaller --ctx or --parallel makes the KV cache smaller, `gyre quantize` makes the "
      "weights smaller");
}

}  // namespace gyre
