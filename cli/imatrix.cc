// gyre imatrix: how much each column of a model's weights matters, over a text.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/inbox.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "kernels/observe.h"
#include "model/importance.h"
#include "model/mapped_file.h"
#include "model/source_files.h"
#include "model/tensor_table.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "runtime/runtime.h"

namespace gyre {
namespace {

// Finds the tensor of a file that a matrix lies in, by its address.
class TensorsByPlace {
 public:
  explicit TensorsByPlace(const Model& model) {
    for (const auto& [name, t] : model.tensors().all()) {
      if (t.data != nullptr && t.dims.size() >= 2) places_.push_back({t.data, &name, &t});
    }
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  }

  void Add(const WeightView& w, const float* x, size_t rows, ImportanceSums* sums) const {
    auto it = std::upper_bound(places_.begin(), places_.end(), w.data,
                               [](const std::byte* at, const Place& p) { return at < p.begin; });
    if (it == places_.begin()) return;
    const Place& p = *--it;
    if (w.data >= p.begin + p.tensor->bytes || p.tensor->dims[0] != w.k) return;
    const uint64_t experts = p.tensor->dims.size() > 2 ? p.tensor->dims[2] : 1;
    const auto expert = static_cast<uint64_t>(w.data - p.begin) / (p.tensor->bytes / experts);
    sums->Add(*p.name, expert, experts, x, rows, w.k);
  }

 private:
  struct Place {
    const std::byte* begin;
    const std::string* name;
    const TensorView* tensor;
  };
  std::vector<Place> places_;
};

// Ends the observation when it goes.
struct Observation {
  explicit Observation(ProductObserver observer) { ObserveProducts(std::move(observer)); }
  ~Observation() { ObserveProducts({}); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
};

// Computes one chunk as a prompt.
Status Compute(Engine& engine, std::vector<TokenId> chunk) {
  Request request;
  request.prompt = std::move(chunk);
  request.max_new_tokens = 1;
  request.ignore_end = true;
  auto events = std::make_shared<Inbox<Event>>();
  GYRE_ASSIGN_OR_RETURN(const SeqId seq,
                        engine.Submit(std::move(request), [events](SeqId, const Event& e) { events->Push(e); }));
  bool cancelled = false;
  for (;;) {
    const std::optional<Event> e = events->Pop(After(std::chrono::milliseconds(50)));
    if (InterruptGuard::Interrupted() && !std::exchange(cancelled, true)) engine.Cancel(seq);
    if (!e) continue;
    if (const auto* failed = std::get_if<Failed>(&*e)) return failed->status;
    if (std::holds_alternative<Cancelled>(*e)) return InterruptGuard::Stopped();
    if (std::holds_alternative<Finished>(*e)) return absl::OkStatus();
  }
}

}  // namespace

Status ImatrixCommand(const ImatrixOptions& o) {
  GYRE_ASSIGN_OR_RETURN(const auto text, MappedFile::Open(o.text));
  NewFileOptions place{.overwrite = o.force, .sources = {text}};
  for (auto& file : SourceFiles(o.ring.model)) place.sources.push_back(std::move(file));
  GYRE_RETURN_IF_ERROR(NewFile::Create(o.out, place).status());
  GYRE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(o.ring.model, o.ring.open));
  const std::string_view all(reinterpret_cast<const char*>(text->bytes().data()), text->bytes().size());
  const std::vector<TokenId> ids = tokenizer->Encode(all, {.add_special = false});
  const auto chunks = static_cast<uint32_t>(ids.size() / o.chunk);
  if (chunks == 0) {
    return InvalidArgument("{}: it has {}, and a chunk has {}; a longer text, or a smaller --chunk", o.text,
                           Counted(ids.size(), "token"), o.chunk);
  }
  RuntimeOptions ring = o.ring;
  ring.ctx = o.chunk + 1;
  ring.no_prefix_cache = true;
  GYRE_RETURN_IF_ERROR(UseOneAdapter(&ring));
  LoadingBar bar(ring.quiet);
  ring.on_load = bar.callback();
  auto opened = Runtime::Open(ring);
  bar.Finish();
  GYRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, std::move(opened));
  const TensorsByPlace tensors(runtime->model());
  ImportanceSums sums;
  const InterruptGuard guard(kExitInterrupted);
  InterruptGuard::Begin();
  Progress progress("computing", o.ring.quiet, "chunks");
  {
    const Observation observation(
        [&](const WeightView& w, const float* x, size_t rows) { tensors.Add(w, x, rows, &sums); });
    for (uint32_t c = 0; c < chunks; ++c) {
      const auto from = ids.begin() + static_cast<std::ptrdiff_t>(size_t{c} * o.chunk);
      GYRE_RETURN_IF_ERROR(Compute(runtime->engine(), {from, from + static_cast<std::ptrdiff_t>(o.chunk)}));
      progress.Update(c + 1, chunks);
    }
  }
  progress.Finish();
  if (sums.size() == 0) return Unimplemented("{}: its weights are not those of a file", o.ring.model);
  GYRE_RETURN_IF_ERROR(sums.Write(o.out, place, o.text, o.chunk, chunks));
  if (!o.ring.quiet)
    fmt::print(stderr, "{}: {} over {} of {} tokens\n", o.out, Counted(sums.size(), "tensor"), Counted(chunks, "chunk"),
               o.chunk);
  return absl::OkStatus();
}

}  // namespace gyre
