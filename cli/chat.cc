// gyre chat: a conversation.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/counted.h"
#include "cli/answer_printer.h"
#include "cli/chat_backend.h"
#include "cli/chat_settings.h"
#include "cli/chat_tools.h"
#include "cli/commands.h"
#include "cli/conversation_file.h"
#include "cli/exit_code.h"
#include "cli/nearest.h"
#include "cli/session.h"
#include "cli/tables.h"
#include "cli/terminal.h"
#include "coordinator/http/tool_fields.h"
#include "fmt/core.h"
#include "model/source_files.h"

namespace gyre {
namespace {

struct ChatCommand {
  const char* names;  // separated by spaces; the first one is shown
  const char* arguments;
  const char* text;
};

constexpr ChatCommand kCommands[] = {
    {"/layers", "", "show which worker has which layers, and how busy it is"},
    {"/resize", "RANGES", "move layers: 0-3,4-7 or NAME=0-3,NAME=4-7, or boundaries: 4 8"},
    {"/status", "", "show the plan, requests and KV cache"},
    {"/set", "NAME VALUE", "change a setting: /set temp 0.7, /set system TEXT, /set wrap off"},
    {"/show", "", "show the model, the system message and the settings"},
    {"/regenerate", "", "write the last answer again"},
    {"/tools", "", "show the tools that the model may call"},
    {"/save", "FILE", "write the conversation to a file; /save! FILE overwrites one"},
    {"/load", "FILE", "go on with a conversation from a file"},
    {"/reset /clear", "", "clear the conversation"},
    {"/help /?", "", "show this"},
    {"/exit /quit /bye", "", "leave (Ctrl-D does the same)"},
};

constexpr char kKeys[] =
    "Ctrl-C stops an answer, Tab completes a command. A line that ends with \\ goes on\n"
    "in the next one; so do all lines between \"\"\" and \"\"\". A paste is one message.\n";

std::vector<std::string> Names(const ChatCommand& command) { return absl::StrSplit(command.names, ' '); }

std::string Help() {
  std::string out;
  for (const ChatCommand& c : kCommands) {
    const std::vector<std::string> names = Names(c);
    std::string head = names[0];
    if (*c.arguments != '\0') head += std::string(" ") + c.arguments;
    const std::string also = absl::StrJoin(names.begin() + 1, names.end(), ", ");
    out += fmt::format("{:<16}{}{}\n", head, c.text, also.empty() ? "" : "; also " + also);
  }
  return out + kKeys;
}

// The names that a person may type, for Tab.
std::vector<std::string> AllNames() {
  std::vector<std::string> out;
  for (const ChatCommand& c : kCommands) {
    for (std::string& name : Names(c)) out.push_back(std::move(name));
  }
  return out;
}

// The first name of a command. kInvalidArgument: there is none.
StatusOr<std::string> CommandNamed(const std::string& word) {
  for (const ChatCommand& c : kCommands) {
    for (const std::string& name : Names(c)) {
      if (name == word) return Names(c)[0];
    }
  }
  const std::string nearest = DidYouMean(word, AllNames());
  return InvalidArgument("unknown command {}{}", word, nearest.empty() ? "; /help lists the commands" : nearest);
}

class Chat {
 public:
  Chat(ChatBackend& backend, const ChatOptions& options, const std::string& description, ChatTools tools,
       MessageReader& reader)
      : backend_(backend),
        options_(options),
        reader_(reader),
        settings_(options, description),
        tools_(std::move(tools)) {
    Reset();
  }

  // Returns false after the command that leaves.
  bool Take(const std::string& message);
  // The number of messages and commands that failed.
  int failures() const { return failures_; }

 private:
  void Reset() {
    messages_.clear();
    SetSystem();
  }
  void SetSystem() {
    if (!messages_.empty() && messages_.front().at("role").as_string() == "system") messages_.erase(messages_.begin());
    if (settings_.system().empty()) return;
    messages_.insert(messages_.begin(), boost::json::object{{"role", "system"}, {"content", settings_.system()}});
  }
  void Add(const char* role, const std::string& text) {
    messages_.push_back(boost::json::object{{"role", role}, {"content", text}});
  }
  Status Say();
  StatusOr<ChatAnswer> Answer();
  void RunTools(const std::vector<ChatCall>& calls);
  std::optional<ChatTools::Consent> Ask(const std::string& question);
  Status Regenerate();
  // nullopt: the chat ends.
  StatusOr<std::optional<std::string>> Command(const std::string& line);
  StatusOr<std::string> FileCommand(const std::string& word, const std::string& path);

  ChatBackend& backend_;
  const ChatOptions& options_;
  MessageReader& reader_;
  ChatSettings settings_;
  ChatTools tools_;
  boost::json::array messages_;
  int failures_ = 0;
  int64_t regenerated_ = 0;  // times, so that a given seed gives another answer each time
};

bool Chat::Take(const std::string& message) {
  if (message.empty()) return true;
  Status status;
  const boost::json::array before = messages_;
  if (message[0] == '/' && message.find('\n') == std::string::npos) {
    const StatusOr<std::optional<std::string>> out = Command(message);
    status = out.status();
    if (out.ok() && !*out) return false;
    if (out.ok()) fmt::print("{}", **out);
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

StatusOr<std::optional<std::string>> Chat::Command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string word = line.substr(0, space);
  const std::string rest(absl::StripAsciiWhitespace(line.substr(space)));
  if (word == "/save!") return FileCommand(word, rest);
  GYRE_ASSIGN_OR_RETURN(const std::string command, CommandNamed(word));
  if (command == "/exit") return std::nullopt;
  if (command == "/layers") return Table(backend_.FetchStatus(), FormatLayers);
  if (command == "/status") return Table(backend_.FetchStatus(), FormatStatus);
  if (command == "/resize") return Table(backend_.Resize(rest), FormatChange);
  if (command == "/help") return Help();
  if (command == "/tools") return tools_.List();
  if (command == "/save" || command == "/load") return FileCommand(command, rest);
  if (command == "/show") return settings_.Show(rest);
  if (command == "/regenerate") {
    GYRE_RETURN_IF_ERROR(Regenerate());
    return std::string();
  }
  if (command == "/set") {
    auto out = settings_.Set(rest);
    SetSystem();
    return out;
  }
  Reset();
  return std::string("Conversation cleared.\n");
}

StatusOr<std::string> Chat::FileCommand(const std::string& word, const std::string& path) {
  if (path.empty()) return InvalidArgument("a file's name is needed, as {} chat.json", word);
  if (word == "/load") {
    GYRE_ASSIGN_OR_RETURN(messages_, LoadConversation(path));
    return fmt::format("{} from {}.\n", Counted(messages_.size(), "message"), path);
  }
  struct stat there {};
  if (word == "/save" && ::stat(path.c_str(), &there) == 0) {
    return InvalidArgument("{} exists; /save! {} overwrites it", path, path);
  }
  const NewFileOptions place{.overwrite = word == "/save!", .sources = SourceFiles(options_.ring.model)};
  GYRE_RETURN_IF_ERROR(SaveConversation(path, place, backend_.model(), messages_));
  return fmt::format("{} in {}.\n", Counted(messages_.size(), "message"), path);
}

Status Chat::Regenerate() {
  // The model's turn ends the list: its answers, their calls of tools and the results.
  const auto answers = [](const boost::json::value& m) {
    return m.at("role") == "assistant" || m.at("role") == "tool";
  };
  while (!messages_.empty() && answers(messages_.back())) messages_.pop_back();
  if (messages_.empty() || messages_.back().at("role").as_string() != "user") {
    return FailedPrecondition("there is no question yet whose answer could be written again");
  }
  ++regenerated_;
  return Say();
}

// Answers the conversation's last message, and calls the tools that the answers ask for.
Status Chat::Say() {
  for (uint32_t round = 0; round < options_.tool_rounds; ++round) {
    GYRE_ASSIGN_OR_RETURN(const ChatAnswer answer, Answer());
    if (answer.stopped || answer.calls.empty()) {
      Add("assistant", answer.text);
      return absl::OkStatus();
    }
    boost::json::array calls;
    for (const ChatCall& call : answer.calls) calls.push_back(http::ToolCall(call.id, call.name, call.arguments));
    boost::json::object message{{"role", "assistant"}, {"content", answer.text}, {"tool_calls", std::move(calls)}};
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    messages_.push_back(std::move(message));
    RunTools(answer.calls);
    if (InterruptGuard::Interrupted()) {
      fmt::print("[stopped]\n");
      return absl::OkStatus();
    }
  }
  fmt::print(stderr, "[the model called tools {} in a row, so the chat stops here; --tool-rounds N allows more]\n",
             options_.tool_rounds == 1 ? "once" : fmt::format("{} times", options_.tool_rounds));
  return absl::OkStatus();
}

// Each call has a result, also one that did not run: templates and servers want it.
void Chat::RunTools(const std::vector<ChatCall>& calls) {
  for (const ChatCall& call : calls) {
    const std::string result = tools_.Run(
        call, options_.ring.quiet, [this](const std::string& question) { return Ask(question); },
        &InterruptGuard::Interrupted);
    boost::json::object message = http::ToolResult(call.id, result);
    message["name"] = call.name;
    messages_.push_back(std::move(message));
  }
}

// Anything but a clear yes is a no.
std::optional<ChatTools::Consent> Chat::Ask(const std::string& question) {
  if (!reader_.terminal()) return std::nullopt;
  std::string answer;
  if (reader_.Ask(question, &answer) != MessageReader::Result::kMessage) {
    fmt::print("\n");
    return ChatTools::Consent::kNo;
  }
  answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  if (answer == "a" || answer == "always") return ChatTools::Consent::kAlways;
  return answer == "y" || answer == "yes" ? ChatTools::Consent::kYes : ChatTools::Consent::kNo;
}

StatusOr<ChatAnswer> Chat::Answer() {
  GenerateOptions generate = settings_.generate();
  if (generate.seed >= 0) generate.seed += regenerated_;
  AnswerPrinter printer(settings_.wrap());
  bool thought = false;
  GYRE_ASSIGN_OR_RETURN(ChatAnswer answer,
                        backend_.Answer(&messages_, generate, [&](const std::string& text, bool thinks) {
                          printer.Print(text, thinks);
                          thought |= thinks;
                        }));
  printer.End();
  // An answer that only calls is no empty row.
  if (!answer.text.empty() || answer.calls.empty() || (thought && reader_.terminal())) fmt::print("\n");
  if (answer.stopped) fmt::print("[stopped]\n");
  std::fflush(stdout);
  if (answer.usage && settings_.usage()) fmt::print(stderr, "[{}]\n", DescribeUsage(*answer.usage));
  if (!answer.note.empty()) fmt::print(stderr, "[{}]\n", answer.note);
  return answer;
}

StatusOr<std::unique_ptr<ChatBackend>> OpenBackend(const ChatOptions& options, const boost::json::array& tools) {
  if (!options.ring.url.empty()) return OpenUrlBackend(options, tools);
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  GYRE_RETURN_IF_ERROR(CheckFlags(options.generate, target->facts()));
  return MakeTargetBackend(std::move(target), options, tools);
}

}  // namespace

Status ChatCommand(const ChatOptions& options) {
  UseUtf8();
  InterruptGuard guard(kExitInterrupted);
  ChatTools tools;
  if (!options.tools.empty()) {
    if (options.generate.grammar) return UsageError("--tools can't go with a grammar: no call of a tool would obey it");
    GYRE_ASSIGN_OR_RETURN(tools, ChatTools::Open(options.tools, options.allowed_tools));
  }
  GYRE_ASSIGN_OR_RETURN(const auto backend, OpenBackend(options, tools.declared()));
  GYRE_ASSIGN_OR_RETURN(const std::string description, backend->Describe());
  MessageReader reader(AllNames());
  Chat chat(*backend, options, description, std::move(tools), reader);
  if (reader.terminal()) fmt::print("{}. /help lists the commands.\n", description);
  InterruptGuard::Begin();
  for (std::string message;;) {
    const MessageReader::Result result = reader.Read(&message);
    // The cursor stands behind the prompt.
    if (result != MessageReader::Result::kMessage && reader.terminal()) fmt::print("\n");
    if (result == MessageReader::Result::kEnd) break;
    if (result == MessageReader::Result::kInterrupted) {
      if (!reader.terminal() || InterruptGuard::Terminated()) return InterruptGuard::Stopped();
      fmt::print("(/exit or Ctrl-D leaves)\n");
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
