// gyre chat: a conversation. A turn's beginning is found again in the prefix cache; there is no session object.
#include <editline/readline.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/session.h"
#include "cli/target.h"
#include "fmt/core.h"

namespace gyre {
namespace {

// What stands around a message. Control tokens are recognised in these strings only, never in what was typed.
struct ChatFormat {
  const char* name;
  const char* marker;  // a vocabulary with this token speaks the format; "" = none needed
  const char* system_begin;
  const char* system_end;
  const char* user_begin;
  const char* user_end;
  const char* reply_begin;
  const char* reply_end;
};

constexpr ChatFormat kFormats[] = {
    {"chatml", "<|im_start|>", "<|im_start|>system\n", "<|im_end|>\n", "<|im_start|>user\n", "<|im_end|>\n",
     "<|im_start|>assistant\n", "<|im_end|>\n"},
    {"llama3", "<|start_header_id|>", "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|eot_id|>"},
    {"gemma", "<start_of_turn>", "<start_of_turn>user\n", "\n\n", "<start_of_turn>user\n", "<end_of_turn>\n",
     "<start_of_turn>model\n", "<end_of_turn>\n"},
    {"mistral", "[INST]", "[INST] ", "\n\n", "[INST] ", " [/INST]", "", "</s>"},
    // For models that only continue text: what was typed and what follows, nothing between.
    {"plain", "", "", "\n", "", "", "", "\n"},
};

StatusOr<const ChatFormat*> ChooseFormat(const std::string& name, Target& target) {
  for (const ChatFormat& f : kFormats) {
    if (!name.empty() && name == f.name) return &f;
    if (!name.empty() || f.marker[0] == '\0') continue;
    GYRE_ASSIGN_OR_RETURN(const auto ids, target.Encode(f.marker, {.add_special = false, .parse_special = true}));
    if (ids.size() == 1) return &f;
  }
  return &kFormats[std::size(kFormats) - 1];
}

class Chat {
 public:
  Chat(Target& target, const ChatOptions& options, const ChatFormat& format)
      : target_(target), options_(options), format_(format) {}

  Status Reset() {
    ids_.clear();
    if (target_.facts().add_bos) ids_.push_back(target_.facts().bos);
    if (options_.system.empty()) return absl::OkStatus();
    GYRE_RETURN_IF_ERROR(Markup(format_.system_begin));
    GYRE_RETURN_IF_ERROR(Typed(options_.system));
    return Markup(format_.system_end);
  }
  const char* format() const { return format_.name; }
  // False: /exit.
  bool Line(const std::string& line);

 private:
  Status Markup(const char* text) { return Append(text, true); }
  Status Typed(const std::string& text) { return Append(text, false); }
  Status Append(const std::string& text, bool special) {
    if (text.empty()) return absl::OkStatus();
    GYRE_ASSIGN_OR_RETURN(const auto more, target_.Encode(text, {.add_special = false, .parse_special = special}));
    ids_.insert(ids_.end(), more.begin(), more.end());
    return absl::OkStatus();
  }
  Status AppendTurn(const std::string& text) {
    GYRE_RETURN_IF_ERROR(Markup(format_.user_begin));
    GYRE_RETURN_IF_ERROR(Typed(text));
    GYRE_RETURN_IF_ERROR(Markup(format_.user_end));
    return Markup(format_.reply_begin);
  }
  Status Say(const std::string& text);
  void Command(const std::string& line);

  Target& target_;
  const ChatOptions& options_;
  const ChatFormat& format_;
  std::vector<TokenId> ids_;  // the conversation so far
};

bool Chat::Line(const std::string& line) {
  if (line.empty()) return true;
  if (line == "/exit" || line == "/quit") return false;
  if (line[0] == '/') {
    Command(line);
    return true;
  }
  const size_t before = ids_.size();
  if (const Status status = Say(line); !status.ok()) {
    fmt::print(stderr, "gyre: {}\n", Message(status));
    ids_.resize(before);
  }
  return true;
}

void Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string word = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  StatusOr<std::string> out = std::string();
  if (word == "/layers") {
    out = target_.DescribeLayers();
  } else if (word == "/status") {
    out = target_.DescribeStatus();
  } else if (word == "/resize") {
    out = target_.Resize(rest);
  } else if (word == "/reset") {
    const Status status = Reset();
    out = status.ok() ? StatusOr<std::string>(std::string("The conversation begins anew.\n")) : status;
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
  GYRE_RETURN_IF_ERROR(AppendTurn(text));
  const uint32_t context = target_.facts().context;
  if (ids_.size() >= context) {
    return ResourceExhausted("the conversation has {} tokens and fills the context of {}; /reset begins anew", ids_.size(),
                             context);
  }
  Request request;
  request.prompt = ids_;
  request.sampling = WithSeed(options_.generate);
  const uint32_t room = context - static_cast<uint32_t>(ids_.size());
  request.max_new_tokens =
      options_.generate.n < 0 ? room : std::min(room, static_cast<uint32_t>(options_.generate.n));
  request.stops = options_.generate.stops;
  request.ignore_end = options_.generate.ignore_eos;
  InterruptGuard::Clear();
  const Status status = target_.Run(std::move(request), [&](const Event& event) {
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      if (!target_.IsEnd(token->token)) ids_.push_back(token->token);
      fmt::print("{}", token->text);
      std::fflush(stdout);
    }
    if (auto* finished = std::get_if<Finished>(&event)) {
      fmt::print("{}\n", finished->text);
      if (!options_.ring.quiet) fmt::print(stderr, "[{}]\n", DescribeUsage(finished->usage));
    }
    if (std::holds_alternative<Cancelled>(event)) fmt::print("\n[stopped]\n");
  });
  InterruptGuard::Clear();
  GYRE_RETURN_IF_ERROR(status);
  return Markup(format_.reply_end);
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
  GYRE_ASSIGN_OR_RETURN(auto target, Target::Open(options.ring));
  if (!target->facts().tokenizer_note.empty()) {
    return FailedPrecondition("{}: {}; a chat needs a tokenizer", target->facts().model, target->facts().tokenizer_note);
  }
  GYRE_ASSIGN_OR_RETURN(const ChatFormat* format, ChooseFormat(options.format, *target));
  Chat chat(*target, options, *format);
  GYRE_RETURN_IF_ERROR(chat.Reset());
  LineReader reader;
  if (reader.terminal()) {
    fmt::print("{}, {} format. /help lists the commands.\n", target->facts().architecture, chat.format());
  }
  for (std::string line; reader.Read(&line) && chat.Line(line);) {
  }
  return absl::OkStatus();
}

}  // namespace gyre
