// gyre perplexity: what a model loses on a text.
#include "scoring/perplexity.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <memory>
#include <string>
#include <utility>

#include "base/counted.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/source_files.h"
#include "scoring/score_record.h"

namespace gyre {
namespace {

namespace json = boost::json;

// The run that --against names.
struct SavedRun {
  std::string bytes;
  ScoreFile file;
};

StatusOr<std::unique_ptr<SavedRun>> ReadRun(const std::string& path) {
  auto run = std::make_unique<SavedRun>();
  GYRE_ASSIGN_OR_RETURN(run->bytes, ReadFile(path));
  StatusOr<ScoreFile> file = ScoreFile::Read(run->bytes);
  if (!file.ok()) return Annotate(file.status(), path);
  run->file = *file;
  if (run->file.top() == 0) return InvalidArgument("{}: it has no likeliest ids, so nothing can be compared", path);
  return run;
}

class PerplexityRun {
 public:
  PerplexityRun(const PerplexityOptions& o, Target& target) : o_(o), target_(target) {}

  Status Prepare(const std::string& text) {
    const TargetFacts& facts = target_.facts();
    bos_ = facts.add_bos && facts.bos >= 0;
    stride_ = o_.stride > 0 ? o_.stride : std::max(1u, o_.window / 2);
    if (stride_ > o_.window - 1) {
      return UsageError("--stride {} with --window {}: a window scores at most all of its tokens but the first",
                        stride_, o_.window);
    }
    if (o_.window > facts.context)
      return UsageError("--window {}: the context holds {}", o_.window, Counted(facts.context, "token"));
    GYRE_ASSIGN_OR_RETURN(ids_, target_.Encode(text, {.add_special = false}));
    bytes_ = text.size();
    windows_ = CutIntoWindows(ids_.size(), o_.window, stride_, bos_);
    if (windows_.empty())
      return InvalidArgument("{}: it has {}, of which none can be scored", o_.text_file, Counted(ids_.size(), "token"));
    format_.top = o_.save.empty() ? 0 : std::min(o_.top, static_cast<uint32_t>(facts.vocab));
    if (o_.against.empty()) return absl::OkStatus();
    GYRE_ASSIGN_OR_RETURN(saved_, ReadRun(o_.against));
    if (saved_->file.size() != scored()) {
      return InvalidArgument(
          "{}: it has {} scored tokens, this run has {}; text, tokenizer, --window and --stride must "
          "be the same",
          o_.against, saved_->file.size(), scored());
    }
    // The mass of the others is without all ids that are asked for, so all of them are saved.
    if (!o_.save.empty()) format_.top = Top();
    return absl::OkStatus();
  }

  uint64_t scored() const { return ids_.size() - windows_.front().scored; }

  Status Run(OutFile* out) {
    if (out != nullptr) {
      const std::string header = NpyHeader(format_, scored());
      GYRE_RETURN_IF_ERROR(out->Write(std::as_bytes(std::span(header))));
    }
    Progress progress("scoring", o_.ring.quiet, "tokens");
    for (size_t w = 0; w < windows_.size(); ++w) {
      GYRE_RETURN_IF_ERROR(Score(static_cast<uint32_t>(w), out));
      progress.Update(loss_.tokens(), scored());
    }
    progress.Finish();
    return out == nullptr ? absl::OkStatus() : out->Finish();
  }

  void Print() const {
    const std::string model = target_.facts().model;
    if (o_.json) return PrintJson(model);
    fmt::print("{}\n", model);
    fmt::print("  {} in {} of {}, stride {}\n", Counted(loss_.tokens(), "token"), Counted(windows_.size(), "window"),
               o_.window, stride_);
    fmt::print("  {:.5f} nats a token (standard error {:.5f}), perplexity {:.4f}\n", loss_.nats_per_token(),
               loss_.standard_error(), loss_.perplexity());
    fmt::print("  {:.5f} bits a byte\n", loss_.bits_per_byte(bytes_));
    if (saved_ == nullptr) return;
    const RunComparison& c = comparison_;
    fmt::print("against {}\n", o_.against);
    fmt::print(
        "  KL(saved || this) {:.6g} nats a token, at most {:.6g}; KL(this || saved) {:.6g}; Jensen-Shannon {:.6g}\n",
        c.forward(), c.most_forward(), c.reverse(), c.jensen_shannon());
    fmt::print("  top-1 agreement {:.3f}%; mean rank of the saved run's best {:.4f}", 100 * c.top1_agreement(),
               c.mean_rank());
    if (c.beyond() > 0) fmt::print(", {} beyond rank {}", Counted(c.beyond(), "token"), Top());
    fmt::print("\n");
  }

 private:
  uint32_t Top() const { return std::max(format_.top, saved_ == nullptr ? 0 : saved_->file.top()); }

  Request RequestOf(const TextWindow& w) const {
    Request r;
    if (bos_) r.prompt.push_back(target_.facts().bos);
    r.prompt.insert(r.prompt.end(), ids_.begin() + static_cast<std::ptrdiff_t>(w.begin),
                    ids_.begin() + static_cast<std::ptrdiff_t>(w.end));
    ScoreSettings& score = r.score.emplace();
    score.from = static_cast<uint32_t>(w.scored - w.begin + (bos_ ? 1 : 0));
    score.top = Top();
    score.generated = o_.generated;
    if (saved_ == nullptr) return r;
    for (uint64_t i = loss_.tokens(); i < loss_.tokens() + (w.end - w.scored); ++i) {
      std::vector<TokenId>& named = score.named.emplace_back();
      for (const TokenLogprob& t : saved_->file.At(i).event.top) named.push_back(t.id);
      std::sort(named.begin(), named.end());
    }
    return r;
  }

  Status Score(uint32_t index, OutFile* out) {
    std::string records;
    Status status;
    bool cancelled = false;
    const uint64_t before = loss_.tokens(), expected = windows_[index].end - windows_[index].scored;
    GYRE_RETURN_IF_ERROR(target_.Run(
        RequestOf(windows_[index]),
        [&](const Event& event) {
          cancelled |= std::holds_alternative<Cancelled>(event);
          const auto* score = std::get_if<PromptTokenEvent>(&event);
          if (score != nullptr && status.ok()) status = Take(index, *score, &records);
        },
        &InterruptGuard::Interrupted));
    if (cancelled) return InterruptGuard::Stopped();
    GYRE_RETURN_IF_ERROR(status);
    if (loss_.tokens() - before != expected)
      return Internal("window {} got {} scores, expected {}", index, loss_.tokens() - before, expected);
    return out == nullptr ? absl::OkStatus() : out->Write(std::as_bytes(std::span(records)));
  }

  Status Take(uint32_t index, const PromptTokenEvent& event, std::string* records) {
    if (saved_ != nullptr) {
      if (loss_.tokens() >= saved_->file.size()) return Internal("more scores than the saved run has");
      const ScoreRecord saved = saved_->file.At(loss_.tokens());
      if (saved.index != index) return InvalidArgument("{}: its windows are others than this run's", o_.against);
      const Status added = comparison_.Add(saved.event, event, target_.facts().vocab);
      if (!added.ok()) return Annotate(added, o_.against);
    }
    if (event.top.size() < format_.top)
      return Internal("a score has {} likeliest ids, expected {}", event.top.size(), format_.top);
    if (!o_.save.empty()) AppendRecord(format_, index, event, std::nullopt, records);
    loss_.Add(event.logprob);
    return absl::OkStatus();
  }

  void PrintJson(const std::string& model) const {
    json::object out{{"model", model},
                     {"tokens", loss_.tokens()},
                     {"windows", windows_.size()},
                     {"window", o_.window},
                     {"stride", stride_},
                     {"bytes", bytes_},
                     {"nats_per_token", loss_.nats_per_token()},
                     {"standard_error", loss_.standard_error()},
                     {"perplexity", loss_.perplexity()},
                     {"bits_per_byte", loss_.bits_per_byte(bytes_)}};
    if (saved_ != nullptr) {
      out["against"] = json::object{{"file", o_.against},
                                    {"forward_kl", comparison_.forward()},
                                    {"largest_forward_kl", comparison_.most_forward()},
                                    {"reverse_kl", comparison_.reverse()},
                                    {"jensen_shannon", comparison_.jensen_shannon()},
                                    {"top1_agreement", comparison_.top1_agreement()},
                                    {"mean_rank", comparison_.mean_rank()},
                                    {"beyond_rank", Top()},
                                    {"beyond", comparison_.beyond()}};
    }
    fmt::print("{}\n", json::serialize(out));
  }

  const PerplexityOptions& o_;
  Target& target_;
  std::vector<TokenId> ids_;
  uint64_t bytes_ = 0;
  bool bos_ = false;
  uint32_t stride_ = 0;
  std::vector<TextWindow> windows_;
  ScoreFormat format_;
  std::unique_ptr<SavedRun> saved_;
  TextLoss loss_;
  RunComparison comparison_;
};

}  // namespace

Status PerplexityCommand(const PerplexityOptions& o) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(o.text_file));
  std::optional<OutFile> out;
  if (!o.save.empty()) {
    auto sources = SourceFiles(o.text_file);
    if (o.ring.cluster.empty()) {
      for (auto& file : SourceFiles(o.ring.model)) sources.push_back(std::move(file));
    }
    if (!o.against.empty()) {
      for (auto& file : SourceFiles(o.against)) sources.push_back(std::move(file));
    }
    GYRE_ASSIGN_OR_RETURN(OutFile file, OutFile::Open(o.save, {.overwrite = o.force, .sources = std::move(sources)}));
    out.emplace(std::move(file));
  }
  TargetOptions ring = o.ring;
  if (ring.cluster.empty() && ring.ctx == 0) ring.ctx = o.window;
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(ring));
  InterruptGuard::Begin();
  PerplexityRun run(o, *target);
  GYRE_RETURN_IF_ERROR(run.Prepare(text));
  GYRE_RETURN_IF_ERROR(run.Run(out ? &*out : nullptr));
  run.Print();
  return absl::OkStatus();
}

}  // namespace gyre
