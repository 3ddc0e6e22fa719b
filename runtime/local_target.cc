#include "runtime/local_target.h"

#include <utility>

#include "base/inbox.h"
#include "coordinator/status_reply.h"
#include "gyre/v1/admin.pb.h"

namespace gyre {
namespace {

class LocalTarget : public Target {
 public:
  LocalTarget(std::unique_ptr<Runtime> runtime, std::string version)
      : runtime_(std::move(runtime)), version_(std::move(version)) {
    const Model& model = runtime_->model();
    facts_ = {.model = model.path(),
              .architecture = model.spec().architecture,
              .kv_type = "",
              .context = runtime_->context(),
              .vocab = model.spec().vocab,
              .tokenizer_note = model.tokenizer_note()};
    if (const Tokenizer* t = model.tokenizer()) facts_.add_bos = t->add_bos(), facts_.bos = t->bos();
  }

  const TargetFacts& facts() const override { return facts_; }

  Status Run(Request request, const std::function<void(const Event&)>& on_event,
             const std::function<bool()>& interrupted) override {
    Engine& engine = runtime_->engine();
    auto events = std::make_shared<Inbox<Event>>();
    GYRE_ASSIGN_OR_RETURN(const SeqId seq,
                          engine.Submit(std::move(request), [events](SeqId, const Event& e) { events->Push(e); }));
    for (bool cancelled = false;;) {
      const std::optional<Event> event = events->Pop(After(std::chrono::milliseconds(50)));
      if (!cancelled && interrupted()) {
        engine.Cancel(seq);
        cancelled = true;
      }
      if (!event) continue;
      on_event(*event);
      if (const auto* failed = std::get_if<Failed>(&*event)) return failed->status;
      if (std::holds_alternative<Finished>(*event) || std::holds_alternative<Cancelled>(*event)) {
        return absl::OkStatus();
      }
    }
  }

  StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) override {
    const Tokenizer* t = runtime_->model().tokenizer();
    if (t == nullptr) return FailedPrecondition("{}: {}", facts_.model, facts_.tokenizer_note);
    return t->Encode(text, options);
  }

  StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const std::string& format) override {
    Conversation conversation;
    conversation.messages = messages;
    return MakeChatPrompt(runtime_->model(), format, conversation);
  }

  StatusOr<v1::StatusReply> FetchStatus() override {
    runtime_->ReportLoads();
    v1::StatusReply reply;
    FillStatusReply({.version = version_, .model = runtime_->model(), .context = runtime_->context()},
                    runtime_->cluster().status(), runtime_->engine().stats(), &reply);
    return reply;
  }

  StatusOr<v1::ChangeReply> Resize(const std::string& ranges) override {
    GYRE_ASSIGN_OR_RETURN(const ChangeReport report, runtime_->cluster().ResizeAndWait(ranges));
    v1::ChangeReply reply;
    FillChangeReply(report, &reply);
    return reply;
  }

 private:
  const std::unique_ptr<Runtime> runtime_;
  const std::string version_;
  TargetFacts facts_;
};

}  // namespace

std::unique_ptr<Target> MakeLocalTarget(std::unique_ptr<Runtime> runtime, const std::string& version) {
  return std::make_unique<LocalTarget>(std::move(runtime), version);
}

}  // namespace gyre
