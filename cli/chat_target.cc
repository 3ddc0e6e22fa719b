// A chat with a Target: the conversation becomes ids here. The prefix cache keeps the beginning of each turn; there
// is no session object.
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <limits>
#include <random>

#include "base/counted.h"
#include "cli/chat_backend.h"
#include "cli/session.h"
#include "coordinator/http/tool_fields.h"
#include "fmt/core.h"
#include "model/quoted.h"
#include "model/tool_reader.h"

namespace gyre {
namespace {

namespace json = boost::json;

class TargetBackend : public ChatBackend {
 public:
  TargetBackend(std::unique_ptr<Target> target, const ChatOptions& options, json::array tools)
      : target_(std::move(target)), options_(options) {
    if (!tools.empty()) tools_ = std::move(tools);
  }

  StatusOr<std::string> Describe() override {
    const json::array probe{{{"role", "user"}, {"content", "?"}}};
    GYRE_ASSIGN_OR_RETURN(const ChatPrompt prompt, target_->Prompt(probe, tools_, options_.format));
    if (!tools_.is_null() && prompt.answer.tools == nullptr) {
      return Unimplemented(
          "--tools: the form of this model's calls of tools is not known; docs/api.md lists those that are");
    }
    return fmt::format("{} ({}), {}", model(), target_->facts().architecture,
                       prompt.format == "model" ? "with its own chat template" : prompt.format + " format");
  }
  std::string model() const override { return FileName(target_->facts().model); }
  StatusOr<ChatAnswer> Answer(json::array* messages, const GenerateOptions& options, const OnText& on_text) override;
  StatusOr<v1::StatusReply> FetchStatus() override { return target_->FetchStatus(); }
  StatusOr<v1::ChangeReply> Resize(const std::string& ranges) override { return target_->Resize(ranges); }

 private:
  StatusOr<ChatPrompt> FitPrompt(json::array* messages, int64_t n, uint32_t* room);
  std::string MoreRoom() const {
    return fmt::format("/reset clears the conversation; {} gives it more room",
                       options_.ring.cluster.empty() ? "`gyre chat --ctx N`" : "`gyre serve --ctx N`");
  }

  const std::unique_ptr<Target> target_;
  const ChatOptions& options_;
  json::value tools_;  // null: there are none
  // A conversation from a file may have the calls of another chat.
  const std::string calls_of_ = std::to_string(std::random_device{}());
  uint64_t calls_ = 0;  // so far
};

// A model's answer while it comes: what is shown, and what is kept.
class AnswerReader {
 public:
  AnswerReader(AnswerFormat format, DeclaredTools tools, const ChatBackend::OnText& on_text, ChatAnswer* answer)
      : reader_(std::move(format), std::move(tools)), on_text_(on_text), answer_(answer) {}

  void Push(TokenId token, std::string_view text) { Take(reader_.Push(token, text)); }
  void Finish(std::string_view text, bool cut) {
    Take(reader_.Finish(text, cut));
    // A call that was cut is none.
    if (in_call_) answer_->calls.pop_back();
  }

 private:
  void Take(const std::vector<AnswerDelta>& deltas) {
    using Kind = AnswerDelta::Kind;
    for (const AnswerDelta& delta : deltas) {
      switch (delta.kind) {
        case Kind::kContent: answer_->text += delta.text; break;
        case Kind::kReasoning: answer_->reasoning += delta.text; break;
        case Kind::kCall: answer_->calls.push_back({.name = delta.text}); break;
        case Kind::kArguments: answer_->calls.back().arguments += delta.text; break;
        case Kind::kCallEnd: break;
      }
      const bool shown = delta.kind == Kind::kContent || delta.kind == Kind::kReasoning;
      if (shown) on_text_(delta.text, delta.kind == Kind::kReasoning);
      in_call_ = !shown && delta.kind != Kind::kCallEnd;
    }
  }

  ToolReader reader_;
  const ChatBackend::OnText& on_text_;
  ChatAnswer* const answer_;
  bool in_call_ = false;  // the last one has not ended
};

// Where the second turn begins: a question, with all that belongs to it. Returns the end of the messages if there is
// one turn only.
json::array::iterator SecondTurn(json::array* messages, size_t first) {
  const auto begin = messages->begin() + static_cast<std::ptrdiff_t>(std::min(first + 1, messages->size()));
  return std::find_if(begin, messages->end(), [](const json::value& m) { return m.at("role") == "user"; });
}

// The conversation as ids, with room for an answer. If it is too long, the oldest turns are removed from it.
StatusOr<ChatPrompt> TargetBackend::FitPrompt(json::array* messages, int64_t n, uint32_t* room) {
  const uint32_t context = target_->facts().context;
  uint32_t answer = std::max(1u, std::min(context / 8, 256u));
  if (n >= 0) answer = std::min(answer, static_cast<uint32_t>(std::max<int64_t>(n, 1)));
  const size_t first = messages->front().at("role").as_string() == "system" ? 1 : 0;
  size_t dropped = 0;
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, target_->Prompt(*messages, tools_, options_.format));
    const size_t size = prompt.ids.size();
    const auto end = SecondTurn(messages, first);
    const bool only_question = end == messages->end();
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
      const bool called = messages->back().at("role") != "user";
      return ResourceExhausted("the message has {} with its template{}, and the context holds {}; {}",
                               Counted(size, "token"), called ? " and the results of tools" : "", context, MoreRoom());
    }
    const auto begin = messages->begin() + static_cast<std::ptrdiff_t>(first);
    dropped += static_cast<size_t>(end - begin);
    messages->erase(begin, end);
  }
}

StatusOr<ChatAnswer> TargetBackend::Answer(json::array* messages, const GenerateOptions& options,
                                           const OnText& on_text) {
  uint32_t room = 0;
  const int64_t n = options.n;
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, FitPrompt(messages, n, &room));
  Request request;
  request.prompt = std::move(prompt.ids);
  request.stop_ids = std::move(prompt.stop_ids);
  request.boundaries = std::move(prompt.boundaries);
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
  AnswerReader reader(std::move(prompt.answer), DeclareTools(tools_), on_text, &answer);
  const Status status = target_->Run(
      std::move(request),
      [&](const Event& event) {
        if (const auto* token = std::get_if<TokenEvent>(&event)) reader.Push(token->token, token->text);
        if (const auto* finished = std::get_if<Finished>(&event)) {
          reader.Finish(finished->text, finished->reason == FinishReason::kLength);
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
          reader.Finish("", true);
          answer.stopped = true;
        }
      },
      &InterruptGuard::Interrupted);
  GYRE_RETURN_IF_ERROR(status);
  for (ChatCall& call : answer.calls) call.id = http::CallId("call_", calls_of_, 0, calls_++);
  return answer;
}

}  // namespace

std::string FileName(const std::string& path) {
  const std::string trimmed = path.substr(0, path.find_last_not_of('/') + 1);
  return trimmed.substr(trimmed.rfind('/') + 1);
}

std::unique_ptr<ChatBackend> MakeTargetBackend(std::unique_ptr<Target> target, const ChatOptions& options,
                                               json::array tools) {
  return std::make_unique<TargetBackend>(std::move(target), options, std::move(tools));
}

}  // namespace gyre
