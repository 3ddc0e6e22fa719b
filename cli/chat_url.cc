// A chat with an OpenAI-compatible server: the conversation is sent there unchanged.
#include <boost/json.hpp>

#include "base/counted.h"
#include "cli/api_request.h"
#include "cli/chat_backend.h"
#include "cli/session.h"
#include "client/cluster_api.h"
#include "fmt/core.h"

namespace gyre {
namespace {

class UrlBackend : public ChatBackend {
 public:
  UrlBackend(std::unique_ptr<ApiClient> api, boost::json::array tools)
      : api_(std::move(api)), tools_(std::move(tools)) {}

  StatusOr<std::string> Describe() override { return fmt::format("{} at {}", model(), FormatUrl(api_->http()->url())); }
  std::string model() const override { return api_->model().id; }

  StatusOr<ChatAnswer> Answer(boost::json::array* messages, const GenerateOptions& options,
                              const OnText& on_text) override {
    GYRE_ASSIGN_OR_RETURN(boost::json::object body, ApiFields(options));
    body["messages"] = *messages;
    if (!tools_.empty()) body["tools"] = tools_;
    ChatAnswer answer;
    ApiCalls calls;
    Status wrong;
    const auto end = api_->Generate(
        std::move(body), true,
        [&](const ApiChunk& chunk) {
          if (!chunk.reasoning.empty()) on_text(chunk.reasoning, true);
          if (!chunk.text.empty()) on_text(chunk.text, false);
          answer.text += chunk.text;
          answer.reasoning += chunk.reasoning;
          if (wrong.ok()) wrong = calls.Take(chunk.calls);
        },
        [&] { return !wrong.ok() || InterruptGuard::Interrupted(); });
    GYRE_RETURN_IF_ERROR(wrong);
    answer.stopped = absl::IsCancelled(end.status());
    if (answer.stopped) return answer;
    GYRE_RETURN_IF_ERROR(end.status());
    answer.usage = UsageOf(*end);
    for (ApiCall& call : calls.Finish(end->finish_reason == "length")) {
      answer.calls.push_back({std::move(call.id), std::move(call.name), std::move(call.arguments)});
    }
    if (end->finish_reason == "length") {
      answer.note = options.n >= 0 ? fmt::format("the answer is cut off after {} or at the context's end",
                                                 Counted(static_cast<uint64_t>(options.n), "token"))
                                   : "the answer is cut off: the server's limit. /reset clears the conversation";
    } else if (!end->finish_reason.empty() && end->finish_reason != "stop" && answer.calls.empty()) {
      answer.note = "the server ended the answer: " + end->finish_reason;
    }
    return answer;
  }

  StatusOr<v1::StatusReply> FetchStatus() override {
    GYRE_ASSIGN_OR_RETURN(ServerCluster facts, FetchCluster(api_->http(), &InterruptGuard::Interrupted));
    return std::move(facts.status);
  }
  StatusOr<v1::ChangeReply> Resize(const std::string& ranges) override {
    return ResizeCluster(api_->http(), ranges, &InterruptGuard::Interrupted);
  }

 private:
  const std::unique_ptr<ApiClient> api_;
  const boost::json::array tools_;
};

}  // namespace

StatusOr<std::unique_ptr<ChatBackend>> OpenUrlBackend(const ChatOptions& options, boost::json::array tools) {
  GYRE_RETURN_IF_ERROR(ApiFields(options.generate).status());
  GYRE_ASSIGN_OR_RETURN(auto api, OpenApi(options.ring));
  return std::unique_ptr<ChatBackend>(std::make_unique<UrlBackend>(std::move(api), std::move(tools)));
}

}  // namespace gyre
