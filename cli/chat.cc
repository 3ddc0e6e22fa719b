// gyre chat: a conversation. A turn's beginning is found again in the prefix cache; there is no session object.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/local_ring.h"
#include "cli/session.h"
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

const ChatFormat& ChooseFormat(const std::string& name, const Tokenizer& tokenizer) {
  for (const ChatFormat& f : kFormats) {
    if (!name.empty() && name == f.name) return f;
    if (name.empty() && tokenizer.Encode(f.marker, {.parse_special = true}).size() == 1) return f;
  }
  return kFormats[std::size(kFormats) - 1];
}

class Chat {
 public:
  Chat(LocalRing& ring, const ChatOptions& options)
      : ring_(ring), options_(options), tokenizer_(*ring.model().tokenizer()),
        format_(ChooseFormat(options.format, tokenizer_)) {
    Reset();
  }

  const char* format() const { return format_.name; }
  // False: /exit.
  bool Line(const std::string& line);

 private:
  void Reset() {
    ids_.clear();
    if (tokenizer_.add_bos()) ids_.push_back(tokenizer_.bos());
    if (options_.system.empty()) return;
    Markup(format_.system_begin);
    Typed(options_.system);
    Markup(format_.system_end);
  }
  void Markup(const char* text) { Append(text, true); }
  void Typed(const std::string& text) { Append(text, false); }
  void Append(const std::string& text, bool special) {
    if (text.empty()) return;
    const auto more = tokenizer_.Encode(text, {.add_special = false, .parse_special = special});
    ids_.insert(ids_.end(), more.begin(), more.end());
  }
  void Say(const std::string& text);
  void Command(const std::string& line);

  LocalRing& ring_;
  const ChatOptions& options_;
  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  std::vector<TokenId> ids_;  // the conversation so far
};

bool Chat::Line(const std::string& line) {
  if (line.empty()) return true;
  if (line == "/exit" || line == "/quit") return false;
  if (line[0] == '/') {
    Command(line);
  } else {
    Say(line);
  }
  return true;
}

void Chat::Command(const std::string& line) {
  if (line == "/layers") {
    fmt::print("{}", ring_.DescribeLayers());
  } else if (line == "/reset") {
    Reset();
    fmt::print("The conversation begins anew.\n");
  } else if (line == "/help") {
    fmt::print(
        "/layers  which stage has which layers, and how busy it is\n"
        "/reset   forget the conversation\n"
        "/exit    leave (Ctrl-D too; Ctrl-C stops an answer)\n");
  } else {
    fmt::print("{} is no command; /help lists them\n", line);
  }
}

void Chat::Say(const std::string& text) {
  const size_t before = ids_.size();
  Markup(format_.user_begin);
  Typed(text);
  Markup(format_.user_end);
  Markup(format_.reply_begin);
  if (ids_.size() >= ring_.context()) {
    fmt::print(stderr, "the conversation has {} tokens and fills the context of {}; /reset begins anew\n", ids_.size(),
               ring_.context());
    ids_.resize(before);
    return;
  }
  Request request;
  request.prompt = ids_;
  request.sampling = WithSeed(options_.generate);
  const uint32_t room = ring_.context() - static_cast<uint32_t>(ids_.size());
  request.max_new_tokens =
      options_.generate.n < 0 ? room : std::min(room, static_cast<uint32_t>(options_.generate.n));
  request.stops = options_.generate.stops;
  request.ignore_end = options_.generate.ignore_eos;
  InterruptGuard::Clear();
  const Status status = RunRequest(ring_.engine(), std::move(request), [&](const Event& event) {
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      if (!tokenizer_.IsEndOfGeneration(token->token)) ids_.push_back(token->token);
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
  if (!status.ok()) {
    fmt::print(stderr, "gyre: {}\n", Message(status));
    ids_.resize(before);
    return;
  }
  Markup(format_.reply_end);
}

}  // namespace

Status ChatCommand(const ChatOptions& options) {
  InterruptGuard guard;
  GYRE_ASSIGN_OR_RETURN(auto ring, LocalRing::Open(options.ring));
  if (ring->model().tokenizer() == nullptr) {
    return FailedPrecondition("{}: {}; a chat needs a tokenizer", options.ring.model, ring->model().tokenizer_note());
  }
  Chat chat(*ring, options);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    fmt::print("{} in {} stage(s), {} format. /help lists the commands.\n", ring->model().spec().architecture,
               ring->cluster().status().plan->stages.size(), chat.format());
  }
  for (std::string line;;) {
    if (terminal) fmt::print("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || !chat.Line(line)) break;
  }
  return absl::OkStatus();
}

}  // namespace gyre
