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
  explicit UrlBackend(std::unique_ptr<ApiClient> api) : api_(std::move(api)) {}

  StatusOr<std::string> Describe() override { return fmt::format("{} at {}", model(), FormatUrl(api_->http()->url())); }
  std::string model() const override { return api_->model().id; }

  StatusOr<ChatAnswer> Answer(boost::json::array* messages, const GenerateOptions& options,
                              const OnText& on_text) override {
    GYRE_ASSIGN_OR_RETURN(boost::json::object body, ApiFields(options));
    body["messages"] = *messages;
    ChatAnswer answer;
    const auto end = api_->Generate(
        std::move(body), true,
        [&](const ApiChunk& chunk) {
          if (!chunk.reasoning.empty()) on_text(chunk.reasoning, true);
          if (!chunk.text.empty()) on_text(chunk.text, false);
          answer.text += chunk.text;
        },
        &InterruptGuard::Interrupted);
    answer.stopped = absl::IsCancelled(end.status());
    if (answer.stopped) return answer;
    GYRE_RETURN_IF_ERROR(end.status());
    answer.usage = UsageOf(*end);
    if (end->finish_reason == "length") {
      answer.note = options.n >= 0 ? fmt::format("the answer is cut off after {} or at the context's end",
                                                 Counted(static_cast<uint64_t>(options.n), "token"))
                                   : "the answer is cut off: the server's limit. /reset clears the conversation";
    } else if (!end->finish_reason.empty() && end->finish_reason != "stop") {
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
};

}  // namespace

StatusOr<std::unique_ptr<ChatBackend>> OpenUrlBackend(const ChatOptions& options) {
  GYRE_RETURN_IF_ERROR(ApiFields(options.generate).status());
  GYRE_ASSIGN_OR_RETURN(auto api, OpenApi(options.ring));
  return std::unique_ptr<ChatBackend>(std::make_unique<UrlBackend>(std::move(api)));
}

}  // namespace gyre
