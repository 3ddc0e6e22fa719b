#include "runtime/local_target.h"

#include <utility>

#include "coordinator/service/status_reply.h"
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
              .context_shift = runtime_->context_shift(),
              .rounds_prompts = runtime_->cluster().status().rounds_prompts,
              .vocab = model.spec().vocab,
              .tokenizer_note = model.tokenizer_note()};
    if (const Tokenizer* t = model.tokenizer()) facts_.add_bos = t->add_bos(), facts_.bos = t->bos();
  }

  const TargetFacts& facts() const override { return facts_; }

  Status Run(Request request, const std::function<void(const Event&)>& on_event,
             const std::function<bool()>& interrupted) override {
    return runtime_->service().Run(std::move(request), on_event, interrupted);
  }

  StatusOr<std::vector<TokenId>> Encode(const std::string& text, const EncodeOptions& options) override {
    return runtime_->service().Tokenize(text, options);
  }

  StatusOr<ChatPrompt> Prompt(const boost::json::array& messages, const boost::json::value& tools,
                              const std::string& format) override {
    ChatInput chat{.format = format};
    chat.conversation.messages = messages;
    chat.conversation.tools = tools;
    return runtime_->service().Prompt(chat);
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
