// gyre chat: a conversation. A turn's beginning is found again in the prefix cache; there is no session object.
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/session.h"
#include "cli/tables.h"
#include "cli/terminal.h"
#include "fmt/core.h"

namespace gyre {
namespace {

constexpr char kHelp[] =
    "/layers         show which worker has which layers, and how busy it is\n"
    "/resize RANGES  move layers: 0-3,4-7 or NAME=0-3,NAME=4-7, or the boundaries alone: 4 8\n"
    "/status         show the plan, requests and KV cache\n"
    "/reset          clear the conversation\n"
    "/exit           leave (Ctrl-D does the same)\n"
    "Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; so do all lines between two\n"
    "lines that are \"\"\". A paste of several lines is one message.\n";

class Chat {
 public:
  Chat(Target& target, const ChatOptions& options) : target_(target), options_(options) { Reset(); }

  // The form in which the model sees the conversation.
  StatusOr<std::string> Format() {
    boost::json::array probe{{{"role", "user"}, {"content", "?"}}};
    GYRE_ASSIGN_OR_RETURN(const ChatPrompt prompt, target_.Prompt(probe, options_.format));
    return prompt.format == "model" ? std::string("with its own chat template") : prompt.format + " format";
  }
  // False: /exit.
  bool Take(const std::string& message);
  // Messages and commands that failed.
  int failures() const { return failures_; }

 private:
  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) Add("system", options_.system);
  }
  void Add(const char* role, const std::string& text) {
    messages_.push_back(boost::json::object{{"role", role}, {"content", text}});
  }
  StatusOr<ChatPrompt> FitPrompt(uint32_t* room);
  Status Say(const std::string& text);
  StatusOr<std::string> Command(const std::string& line);
  std::string MoreRoom() const {
    return fmt::format("/reset clears the conversation; {} gives it more room",
                       options_.ring.cluster.empty() ? "`gyre chat --ctx N`" : "`gyre serve --ctx N`");
  }

  Target& target_;
  const ChatOptions& options_;
  boost::json::array messages_;
  int failures_ = 0;
};

bool Chat::Take(const std::string& message) {
  if (message.empty()) return true;
  if (message == "/exit" || message == "/quit") return false;
  Status status;
  if (message[0] == '/' && message.find('\n') == std::string::npos) {
    const StatusOr<std::string> out = Command(message);
    if (out.ok()) fmt::print("{}", *out);
    status = out.status();
  } else {
    const boost::json::array before = messages_;
    status = Say(message);
    if (!status.ok()) messages_ = before;
  }
  if (!status.ok()) {
    ++failures_;
    fmt::print(stderr, "gyre: {}\n", Message(status));
  }
  return true;
}

// A reply as text, or why there is none.
template <typename Reply>
StatusOr<std::string> Table(const StatusOr<Reply>& reply, std::string (*format)(const Reply&)) {
  GYRE_RETURN_IF_ERROR(reply.status());
  return format(*reply);
}

StatusOr<std::string> Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string word = line.substr(0, space);
  if (word == "/layers") return Table(target_.FetchStatus(), FormatLayers);
  if (word == "/status") return Table(target_.FetchStatus(), FormatStatus);
  if (word == "/resize") {
    return Table(target_.Resize(space == std::string::npos ? "" : line.substr(space + 1)), FormatChange);
  }
  if (word == "/help") return std::string(kHelp);
  if (word != "/reset") return InvalidArgument("unknown command {}; /help lists the commands", word);
  Reset();
  return std::string("Conversation cleared.\n");
}

// The conversation as ids, with room for an answer. Where it has grown too long, the oldest messages are left out of
// it, from a question to the answer before the next one, and the user is told.
StatusOr<ChatPrompt> Chat::FitPrompt(uint32_t* room) {
  const uint32_t context = target_.facts().context;
  const int64_t n = options_.generate.n;
  uint32_t answer = std::max(1u, std::min(context / 8, 256u));
  if (n >= 0) answer = std::min(answer, static_cast<uint32_t>(std::max<int64_t>(n, 1)));
  const size_t first = options_.system.empty() ? 0 : 1;
  size_t dropped = 0;
  for (;;) {
    GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, target_.Prompt(messages_, options_.format));
    const size_t size = prompt.ids.size();
    const bool only_question = messages_.size() <= first + 1;
    if (size + answer <= context || (only_question && size < context)) {
      *room = context - static_cast<uint32_t>(size);
      if (dropped > 0) {
        fmt::print(stderr, "[the context of {} tokens is full: the {} oldest messages are forgotten. {}]\n", context,
                   dropped, MoreRoom());
      }
      return prompt;
    }
    if (only_question) {
      return ResourceExhausted("the message has {} tokens with its template, and the context holds {}; {}", size,
                               context, MoreRoom());
    }
    const auto begin = messages_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + std::min<std::ptrdiff_t>(2, messages_.end() - begin - 1);
    dropped += static_cast<size_t>(end - begin);
    messages_.erase(begin, end);
  }
}

Status Chat::Say(const std::string& text) {
  Add("user", text);
  uint32_t room = 0;
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, FitPrompt(&room));
  Request request;
  request.prompt = std::move(prompt.ids);
  request.stop_ids = std::move(prompt.stop_ids);
  request.sampling = WithSeed(options_.generate);
  const int64_t n = options_.generate.n;
  request.max_new_tokens = n < 0 ? room : static_cast<uint32_t>(std::min<int64_t>(room, n));
  request.stops = options_.generate.stops;
  request.ignore_end = options_.generate.ignore_eos;
  if (request.ignore_end) request.stop_ids.clear();
  std::string reply;
  const Status status = target_.Run(
      std::move(request),
      [&](const Event& event) {
        if (auto* token = std::get_if<TokenEvent>(&event)) {
          reply += token->text;
          fmt::print("{}", token->text);
          std::fflush(stdout);
        }
        if (auto* finished = std::get_if<Finished>(&event)) {
          reply += finished->text;
          fmt::print("{}\n", finished->text);
          std::fflush(stdout);
          if (!options_.ring.quiet) fmt::print(stderr, "[{}]\n", DescribeUsage(finished->usage));
          if (finished->reason == FinishReason::kLength) {
            if (n >= 0 && static_cast<uint64_t>(n) <= room) {
              fmt::print(stderr, "[the answer is cut off after {} tokens, as --n-predict says]\n", n);
            } else {
              fmt::print(stderr, "[the answer is cut off: the context of {} tokens is full. {}]\n",
                         target_.facts().context, MoreRoom());
            }
          }
        }
        if (std::holds_alternative<Cancelled>(event)) fmt::print("\n[stopped]\n");
      },
      &InterruptGuard::Interrupted);
  GYRE_RETURN_IF_ERROR(status);
  Add("assistant", reply);
  return absl::OkStatus();
}

std::string FileName(const std::string& path) {
  const std::string trimmed = path.substr(0, path.find_last_not_of('/') + 1);
  return trimmed.substr(trimmed.rfind('/') + 1);
}

}  // namespace

Status ChatCommand(const ChatOptions& options) {
  UseUtf8();
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  Chat chat(*target, options);
  GYRE_ASSIGN_OR_RETURN(const std::string format, chat.Format());
  MessageReader reader;
  if (reader.terminal()) {
    fmt::print("{} ({}), {}. /help lists the commands.\n", FileName(target->facts().model),
               target->facts().architecture, format);
  }
  InterruptGuard::Begin();
  for (std::string message;;) {
    const MessageReader::Result result = reader.Read(&message);
    if (result == MessageReader::Result::kEnd) break;
    if (result == MessageReader::Result::kInterrupted) {
      if (!reader.terminal() || InterruptGuard::Terminated()) return InterruptGuard::Stopped();
      fmt::print("\n(/exit or Ctrl-D leaves)\n");
      InterruptGuard::Clear();
      continue;
    }
    const bool more = chat.Take(message);
    if (InterruptGuard::Terminated() || (InterruptGuard::Interrupted() && !reader.terminal())) {
      return InterruptGuard::Stopped();
    }
    InterruptGuard::Clear();
    if (!more) break;
  }
  if (!reader.terminal() && chat.failures() > 0) {
    return FailedPrecondition("{} of the messages failed", chat.failures());
  }
  return absl::OkStatus();
}

}  // namespace gyre
