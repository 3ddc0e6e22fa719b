// gyre chat: a conversation.
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/answer_printer.h"
#include "cli/chat_backend.h"
#include "cli/commands.h"
#include "cli/conversation_file.h"
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
    "/regenerate     write the last answer again\n"
    "/save FILE      write the conversation to a file; /save! FILE overwrites one\n"
    "/load FILE      go on with a conversation from a file\n"
    "/reset          clear the conversation\n"
    "/exit           leave (Ctrl-D does the same)\n"
    "Ctrl-C stops an answer. A line that ends with \\ goes on in the next one; so do all lines between two\n"
    "lines that are \"\"\". A paste of several lines is one message.\n";

class Chat {
 public:
  Chat(ChatBackend& backend, const ChatOptions& options) : backend_(backend), options_(options) { Reset(); }

  // Returns false after /exit.
  bool Take(const std::string& message);
  // The number of messages and commands that failed.
  int failures() const { return failures_; }

 private:
  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) Add("system", options_.system);
  }
  void Add(const char* role, const std::string& text) {
    messages_.push_back(boost::json::object{{"role", role}, {"content", text}});
  }
  Status Say();
  Status Regenerate();
  StatusOr<std::string> Command(const std::string& line);
  StatusOr<std::string> FileCommand(const std::string& word, const std::string& path);

  ChatBackend& backend_;
  const ChatOptions& options_;
  boost::json::array messages_;
  int failures_ = 0;
  int64_t regenerated_ = 0;  // times, so that a given seed gives another answer each time
};

bool Chat::Take(const std::string& message) {
  if (message.empty()) return true;
  if (message == "/exit" || message == "/quit") return false;
  Status status;
  const boost::json::array before = messages_;
  if (message == "/regenerate") {
    status = Regenerate();
  } else if (message[0] == '/' && message.find('\n') == std::string::npos) {
    const StatusOr<std::string> out = Command(message);
    if (out.ok()) fmt::print("{}", *out);
    status = out.status();
  } else {
    Add("user", message);
    status = Say();
  }
  if (!status.ok()) {
    messages_ = before;
    ++failures_;
    fmt::print(stderr, "gyre: {}\n", Message(status));
  }
  return true;
}

// A reply as text, or the reason why there is none.
template <typename Reply>
StatusOr<std::string> Table(const StatusOr<Reply>& reply, std::string (*format)(const Reply&)) {
  GYRE_RETURN_IF_ERROR(reply.status());
  return format(*reply);
}

StatusOr<std::string> Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string word = line.substr(0, space);
  if (word == "/layers") return Table(backend_.FetchStatus(), FormatLayers);
  if (word == "/status") return Table(backend_.FetchStatus(), FormatStatus);
  if (word == "/resize") {
    return Table(backend_.Resize(space == std::string::npos ? "" : line.substr(space + 1)), FormatChange);
  }
  if (word == "/help") return std::string(kHelp);
  if (word == "/save" || word == "/save!" || word == "/load") {
    return FileCommand(word, space == std::string::npos ? "" : line.substr(space + 1));
  }
  if (word != "/reset") return InvalidArgument("unknown command {}; /help lists the commands", word);
  Reset();
  return std::string("Conversation cleared.\n");
}

StatusOr<std::string> Chat::FileCommand(const std::string& word, const std::string& path) {
  if (path.empty()) return InvalidArgument("a file's name is needed, as {} chat.json", word);
  if (word == "/load") {
    GYRE_ASSIGN_OR_RETURN(messages_, LoadConversation(path));
    return fmt::format("{} messages from {}.\n", messages_.size(), path);
  }
  struct stat there {};
  if (word == "/save" && ::stat(path.c_str(), &there) == 0) {
    return InvalidArgument("{} exists; /save! {} overwrites it", path, path);
  }
  GYRE_RETURN_IF_ERROR(SaveConversation(path, word == "/save!", backend_.model(), messages_));
  return fmt::format("{} messages in {}.\n", messages_.size(), path);
}

Status Chat::Regenerate() {
  while (!messages_.empty() && messages_.back().at("role").as_string() == "assistant") messages_.pop_back();
  if (messages_.empty() || messages_.back().at("role").as_string() != "user") {
    return FailedPrecondition("there is no question yet whose answer could be written again");
  }
  ++regenerated_;
  return Say();
}

// Answers the conversation's last message.
Status Chat::Say() {
  GenerateOptions generate = options_.generate;
  if (generate.seed >= 0) generate.seed += regenerated_;
  AnswerPrinter printer;
  GYRE_ASSIGN_OR_RETURN(const ChatAnswer answer,
                        backend_.Answer(&messages_, generate,
                                        [&](const std::string& text, bool thinks) { printer.Print(text, thinks); }));
  printer.End();
  fmt::print("\n{}", answer.stopped ? "[stopped]\n" : "");
  std::fflush(stdout);
  if (answer.usage && !options_.ring.quiet) fmt::print(stderr, "[{}]\n", DescribeUsage(*answer.usage));
  if (!answer.note.empty()) fmt::print(stderr, "[{}]\n", answer.note);
  Add("assistant", answer.text);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<ChatBackend>> OpenBackend(const ChatOptions& options) {
  if (!options.ring.url.empty()) return OpenUrlBackend(options);
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  return MakeTargetBackend(std::move(target), options);
}

}  // namespace

Status ChatCommand(const ChatOptions& options) {
  UseUtf8();
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(const auto backend, OpenBackend(options));
  Chat chat(*backend, options);
  GYRE_ASSIGN_OR_RETURN(const std::string description, backend->Describe());
  MessageReader reader;
  if (reader.terminal()) fmt::print("{}. /help lists the commands.\n", description);
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
