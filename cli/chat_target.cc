// A chat with a Target: the conversation becomes ids here. The prefix cache keeps the beginning of each turn; there
// is no session object.
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <limits>

#include "base/counted.h"
#include "cli/chat_backend.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/answer_splitter.h"
#include "model/quoted.h"

namespace gyre {
namespace {

class TargetBackend : public ChatBackend {
 public:
  TargetBackend(std::unique_ptr<Target> target, const ChatOptions& options)
      : target_(std::move(target)), options_(options) {}

  StatusOr<std::string> Describe() override {
    boost::json::array probe{{{"role", "user"}, {"content", "?"}}};
    GYRE_ASSIGN_OR_RETURN(const ChatPrompt prompt, target_->Prompt(probe, options_.format));
    return fmt::format("{} ({}), {}", model(), target_->facts().architecture,
                       prompt.format == "model" ? "with its own chat template" : prompt.format + " format");
  }
  std::string model() const override { return FileName(target_->facts().model); }
  StatusOr<ChatAnswer> Answer(boost::json::array* messages, const GenerateOptions& options,
                              const OnText& on_text) override;
  StatusOr<v1::StatusReply> FetchStatus() override { return target_->FetchStatus(); }
  StatusOr<v1::ChangeReply> Resize(const std::string& ranges) override { return target_->Resize(ranges); }

 private:
  StatusOr<ChatPrompt> FitPrompt(boost::json::array* messages, int64_t n, uint32_t* room);
  std::string MoreRoom() const {
    return fmt::format("/reset clears the conversation; {} gives it more room",
                       options_.ring.cluster.empty() ? "`gyre chat --ctx N`" : "`gyre serve --ctx N`");
  }

  const std::unique_ptr<Target> target_;
  const ChatOptions& options_;
};

// The conversation as ids, with room for an answer. If it is too long, the oldest messages are removed from it in
// pairs, a question with its answer.
StatusOr<ChatPrompt> TargetBackend::FitPrompt(boost::json::array* messages, int64_t n, uint32_t* room) {
  const uint32_t context = target_->facts().context;
  uint32_t answer = std::max(1u, std::min(context / 8, 256u));
  if (n >= 0) answer = std::min(answer, static_cast<uint32_t>(std::max<int64_t>(n, 1)));
  const size_t first = messages->front().at("role").as_string() == "system" ? 1 : 0;
  size_t dropped = 0;
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, target_->Prompt(*messages, options_.format));
    const size_t size = prompt.ids.size();
    const bool only_question = messages->size() <= first + 1;
    if (size + answer <= context || (only_question && size < context)) {
      *room =
          target_->facts().context_shift ? std::numeric_limits<uint32_t>::max() : context - static_cast<uint32_t>(size);
      if (dropped > 0) {
        fmt::print(stderr, "[the context of {} is full: the {} forgotten. {}]\n", Counted(context, "token"),
                   dropped == 1 ? "oldest message is" : fmt::format("{} oldest messages are", dropped), MoreRoom());
      }
      return prompt;
    }
    if (only_question) {
      return ResourceExhausted("the message has {} with its template, and the context holds {}; {}",
                               Counted(size, "token"), context, MoreRoom());
    }
    const auto begin = messages->begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + std::min<std::ptrdiff_t>(2, messages->end() - begin - 1);
    dropped += static_cast<size_t>(end - begin);
    messages->erase(begin, end);
  }
}

StatusOr<ChatAnswer> TargetBackend::Answer(boost::json::array* messages, const GenerateOptions& options,
                                           const OnText& on_text) {
  uint32_t room = 0;
  const int64_t n = options.n;
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, FitPrompt(messages, n, &room));
  Request request;
  request.prompt = std::move(prompt.ids);
  request.stop_ids = std::move(prompt.stop_ids);
  request.sampling = WithSeed(options);
  request.max_new_tokens = n < 0 ? room : static_cast<uint32_t>(std::min<int64_t>(room, n));
  request.stops = options.stops;
  request.ignore_end = options.ignore_eos;
  if (request.ignore_end) request.stop_ids.clear();
  request.grammar_source = options.grammar;
  request.compact_json = options.compact_json;
  request.jump_ahead = !options.no_jump_ahead;
  request.answer_format = prompt.answer;
  ChatAnswer answer;
  AnswerSplitter splitter(std::move(prompt.answer));
  const auto show = [&](const std::vector<AnswerSplitter::Piece>& pieces) {
    for (const AnswerSplitter::Piece& piece : pieces) {
      if (!piece.reasoning) answer.text += piece.text;
      on_text(piece.text, piece.reasoning);
    }
  };
  const Status status = target_->Run(
      std::move(request),
      [&](const Event& event) {
        if (const auto* token = std::get_if<TokenEvent>(&event)) show(splitter.Push(token->token, token->text));
        if (const auto* finished = std::get_if<Finished>(&event)) {
          show(splitter.Finish(finished->text));
          answer.usage = finished->usage;
          if (finished->reason == FinishReason::kLength) {
            answer.note = n >= 0 && static_cast<uint64_t>(n) <= room
                              ? fmt::format("the answer is cut off after {}, as --n-predict says",
                                            Counted(static_cast<uint64_t>(n), "token"))
                              : fmt::format("the answer is cut off: the context of {} tokens is full. {}",
                                            target_->facts().context, MoreRoom());
          }
        }
        if (const auto* waiting = std::get_if<Waiting>(&event)) {
          fmt::print(stderr, "\n[{}]\n", PrintableSentence(Message(waiting->why)));
        }
        if (std::holds_alternative<Cancelled>(event)) {
          show(splitter.Finish(""));
          answer.stopped = true;
        }
      },
      &InterruptGuard::Interrupted);
  GYRE_RETURN_IF_ERROR(status);
  return answer;
}

}  // namespace

std::string FileName(const std::string& path) {
  const std::string trimmed = path.substr(0, path.find_last_not_of('/') + 1);
  return trimmed.substr(trimmed.rfind('/') + 1);
}

std::unique_ptr<ChatBackend> MakeTargetBackend(std::unique_ptr<Target> target, const ChatOptions& options) {
  return std::make_unique<TargetBackend>(std::move(target), options);
}

}  // namespace gyre
