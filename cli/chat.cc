// gyre chat: a conversation. A turn's beginning is found again in the prefix cache; there is no session object.
#include <editline/readline.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/session.h"
#include "cli/tables.h"
#include "fmt/core.h"

namespace gyre {
namespace {

class Chat {
 public:
  Chat(Target& target, const ChatOptions& options) : target_(target), options_(options) { Reset(); }

  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) Add("system", options_.system);
  }
  // What the conversation is to be written in.
  StatusOr<std::string> Format() {
    boost::json::array probe{{{"role", "user"}, {"content", "?"}}};
    GYRE_ASSIGN_OR_RETURN(const ChatPrompt prompt, target_.Prompt(probe, options_.format));
    return prompt.format == "model" ? std::string("with its own chat template") : prompt.format + " format";
  }
  // False: /exit.
  bool Line(const std::string& line);

 private:
  void Add(const char* role, const std::string& text) {
    messages_.push_back(boost::json::object{{"role", role}, {"content", text}});
  }
  Status Say(const std::string& text);
  void Command(const std::string& line);

  Target& target_;
  const ChatOptions& options_;
  boost::json::array messages_;
};

bool Chat::Line(const std::string& line) {
  if (line.empty()) return true;
  if (line == "/exit" || line == "/quit") return false;
  if (line[0] == '/') {
    Command(line);
    return true;
  }
  const size_t before = messages_.size();
  if (const Status status = Say(line); !status.ok()) {
    fmt::print(stderr, "gyre: {}\n", Message(status));
    while (messages_.size() > before) messages_.pop_back();
  }
  return true;
}

// A reply as text, or why there is none.
template <typename Reply>
StatusOr<std::string> Table(const StatusOr<Reply>& reply, std::string (*format)(const Reply&)) {
  GYRE_RETURN_IF_ERROR(reply.status());
  return format(*reply);
}

void Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string word = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  StatusOr<std::string> out = std::string();
  if (word == "/layers") {
    out = Table(target_.FetchStatus(), FormatLayers);
  } else if (word == "/status") {
    out = Table(target_.FetchStatus(), FormatStatus);
  } else if (word == "/resize") {
    out = Table(target_.Resize(rest), FormatChange);
  } else if (word == "/reset") {
    Reset();
    out = std::string("The conversation begins anew.\n");
  } else if (word == "/help") {
    out = std::string(
        "/layers         who has which layers, and how busy they are\n"
        "/resize RANGES  move layers: 0-3,4-7 or NAME=0-3,NAME=4-7 or boundaries as 4 8\n"
        "/status         plan, requests, KV cache\n"
        "/reset          forget the conversation\n"
        "/exit           leave (Ctrl-D too; Ctrl-C stops an answer)\n");
  } else {
    out = fmt::format("{} is no command; /help lists them\n", word);
  }
  if (out.ok()) {
    fmt::print("{}", *out);
  } else {
    fmt::print(stderr, "gyre: {}\n", Message(out.status()));
  }
}

Status Chat::Say(const std::string& text) {
  Add("user", text);
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, target_.Prompt(messages_, options_.format));
  const uint32_t context = target_.facts().context;
  if (prompt.ids.size() >= context) {
    return ResourceExhausted("the conversation has {} tokens and fills the context of {}; /reset begins anew",
                             prompt.ids.size(), context);
  }
  const uint32_t room = context - static_cast<uint32_t>(prompt.ids.size());
  Request request;
  request.prompt = std::move(prompt.ids);
  request.stop_ids = std::move(prompt.stop_ids);
  request.sampling = WithSeed(options_.generate);
  request.max_new_tokens = options_.generate.n < 0 ? room : std::min(room, static_cast<uint32_t>(options_.generate.n));
  request.stops = options_.generate.stops;
  request.ignore_end = options_.generate.ignore_eos;
  std::string reply;
  InterruptGuard::Clear();
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
          if (!options_.ring.quiet) fmt::print(stderr, "[{}]\n", DescribeUsage(finished->usage));
        }
        if (std::holds_alternative<Cancelled>(event)) fmt::print("\n[stopped]\n");
      },
      &InterruptGuard::Interrupted);
  InterruptGuard::Clear();
  GYRE_RETURN_IF_ERROR(status);
  Add("assistant", reply);
  return absl::OkStatus();
}

// Lines of a terminal are edited, and remembered in $XDG_STATE_HOME/gyre or ~/.local/state/gyre.
class LineReader {
 public:
  LineReader() : terminal_(isatty(STDIN_FILENO) != 0) {
    if (!terminal_) return;
    using_history();
    const char* state = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    if (state == nullptr && home == nullptr) return;
    const std::filesystem::path folder =
        (state != nullptr ? std::filesystem::path(state) : std::filesystem::path(home) / ".local/state") / "gyre";
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    path_ = folder / "history";
    read_history(path_.c_str());
  }
  ~LineReader() {
    if (!path_.empty()) write_history(path_.c_str());
  }
  // False: the end.
  bool Read(std::string* line) {
    std::fflush(stdout);
    if (!terminal_) return static_cast<bool>(std::getline(std::cin, *line));
    const std::unique_ptr<char, void (*)(void*)> read(readline("> "), std::free);
    if (read == nullptr) return false;
    *line = read.get();
    if (!line->empty()) add_history(line->c_str());
    return true;
  }
  bool terminal() const { return terminal_; }

 private:
  const bool terminal_;
  std::string path_;
};

}  // namespace

Status ChatCommand(const ChatOptions& options) {
  InterruptGuard guard;
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  Chat chat(*target, options);
  GYRE_ASSIGN_OR_RETURN(const std::string format, chat.Format());
  LineReader reader;
  if (reader.terminal()) {
    fmt::print("{}, {}. /help lists the commands.\n", target->facts().architecture, format);
  }
  for (std::string line; reader.Read(&line) && chat.Line(line);) {
  }
  return absl::OkStatus();
}

}  // namespace gyre
