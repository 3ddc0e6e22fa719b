#include "cli/target.h"

#include "cli/local_ring.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/chat_template.h"

namespace gyre {
namespace {

class LocalTarget : public Target {
 public:
  explicit LocalTarget(std::unique_ptr<LocalRing> ring) : ring_(std::move(ring)) {
    const Model& model = ring_->model();
    facts_ = {.model = model.path(),
              .architecture = model.spec().architecture,
              .kv_type = "",
              .context = ring_->context(),
              .vocab = model.spec().vocab,
              .tokenizer_note = model.tokenizer_note()};
    if (const Tokenizer* t = model.tokenizer()) facts_.add_bos = t->add_bos(), facts_.bos = t->bos();
  }

  const TargetFacts& facts() const override { return facts_; }
  Status Run(Request request, const std::function<void(const Event&)>& on_event) override {
    return RunRequest(ring_->engine(), std::move(request), on_event);
  }
  StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) override {
    const Tokenizer* t = ring_->model().tokenizer();
    if (t == nullptr) return FailedPrecondition("{}: {}", facts_.model, facts_.tokenizer_note);
    return t->Encode(text, options);
  }
  StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const std::string& format) override {
    Conversation conversation;
    conversation.messages = messages;
    return MakeChatPrompt(ring_->model(), format, conversation);
  }
  StatusOr<std::string> DescribeLayers() override { return ring_->DescribeLayers(); }
  StatusOr<std::string> DescribeStatus() override {
    const ClusterStatus status = ring_->cluster().status();
    return fmt::format("{}\nplan {}: {}; {}\n{}", facts_.model, status.plan ? status.plan->epoch.number : 0,
                       status.plan ? FormatRanges(*status.plan) : "none", status.state, ring_->DescribeLayers());
  }
  StatusOr<std::string> Resize(const std::string& ranges) override {
    GYRE_ASSIGN_OR_RETURN(const ChangeReport r, ring_->cluster().ResizeAndWait(ranges));
    return fmt::format("plan {}: {} after {:.0f} ms; {} KV pages moved, {} of them in the pause\n", r.epoch.number,
                       r.ranges, std::chrono::duration<double, std::milli>(r.took).count(), r.pages_moved,
                       r.last_pages);
  }

 private:
  const std::unique_ptr<LocalRing> ring_;
  TargetFacts facts_;
};

}  // namespace

StatusOr<std::unique_ptr<Target>> Target::Open(const RingOptions& options) {
  if (!options.cluster.empty()) return OpenRemote(options.cluster);
  GYRE_ASSIGN_OR_RETURN(auto ring, LocalRing::Open(options));
  return std::unique_ptr<Target>(std::make_unique<LocalTarget>(std::move(ring)));
}

}  // namespace gyre
