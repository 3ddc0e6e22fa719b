// gyre run, gyre logits: one request each.
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>

#include "absl/strings/str_join.h"
#include "cli/answer_printer.h"
#include "cli/api_request.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/out_file.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "fmt/core.h"
#include "model/answer_splitter.h"
#include "model/quoted.h"
#include "model/source_files.h"

namespace gyre {
namespace {

// Writes text to stdout and remembers whether it arrived.
class Output {
 public:
  explicit Output(bool wrap) : printer_(wrap) {}
  void Write(const std::string& text, bool thinks = false) {
    if (!status_.ok() || printer_.Print(text, thinks)) return;
    status_ = Unavailable("stdout: {}", std::strerror(errno));
    InterruptGuard::Interrupt();  // nobody reads: nothing more is computed
  }
  const Status& status() const { return status_; }

 private:
  AnswerPrinter printer_;
  Status status_;
};

// The prompt of -p, -f or stdin. Usage error: there is none.
StatusOr<std::string> PromptText(const RunOptions& o) {
  if (!o.prompt_file.empty()) return ReadFile(o.prompt_file);
  if (!o.asked.empty()) return absl::StrJoin(o.asked, " ");
  if (o.has_prompt && o.prompt != "-") return o.prompt;
  if (!o.has_prompt && isatty(STDIN_FILENO) != 0) {
    return UsageError(
        "a prompt is needed: a question as the last word, -p TEXT, -f FILE, --ids FILE, or text on stdin");
  }
  std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) return UsageError("a prompt is needed: stdin is empty; -p TEXT, -f FILE or --ids FILE gives one");
  return text;
}

bool IsQuestion(const RunOptions& o) { return o.chat || !o.asked.empty(); }

bool Wraps(const RunOptions& o) {
  if (!IsQuestion(o) || o.no_wrap) return false;
  UseUtf8();
  return true;
}

boost::json::array Messages(const RunOptions& o, const std::string& question) {
  boost::json::array messages;
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  messages.push_back({{"role", "user"}, {"content", question}});
  return messages;
}

StatusOr<ChatPrompt> MakePrompt(const RunOptions& o, const std::string& text, Target& target) {
  ChatPrompt prompt;
  if (!o.ids_file.empty()) {
    GYRE_ASSIGN_OR_RETURN(prompt.ids, ReadIds(o.ids_file));
    return prompt;
  }
  if (!target.facts().tokenizer_note.empty()) {
    return FailedPrecondition("{}: {}; use --ids FILE", target.facts().model, target.facts().tokenizer_note);
  }
  if (IsQuestion(o)) {
    GYRE_ASSIGN_OR_RETURN(ChatPrompt asked, target.Prompt(Messages(o, text), nullptr, ""));
    if (o.chat || !o.system.empty() || asked.format == "model") return asked;
    if (!o.ring.quiet) fmt::print(stderr, "the model has no chat template, so it continues the text\n");
  }
  GYRE_ASSIGN_OR_RETURN(prompt.ids, target.Encode(text, {.add_special = true, .parse_special = o.parse_special}));
  if (prompt.ids.empty()) return InvalidArgument("the prompt is empty and the model has no begin-of-text token");
  return prompt;
}

// Prints the output of a run: text, or ids with single spaces between.
class Printer {
 public:
  Printer(Output* output, AnswerFormat format, bool ids, bool quiet)
      : output_(output), splitter_(std::move(format)), ids_(ids), quiet_(quiet) {}

  void operator()(const Event& event) {
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      if (ids_) {
        output_->Write(fmt::format("{}{}", first_ ? "" : " ", token->token));
      } else {
        Write(splitter_.Push(token->token, token->text));
      }
      first_ = false;
    }
    if (auto* finished = std::get_if<Finished>(&event)) {
      if (!ids_) Write(splitter_.Finish(finished->text));
      output_->Write("\n");
      if (!quiet_) fmt::print(stderr, "{}\n", DescribeUsage(finished->usage));
    }
    if (std::holds_alternative<Cancelled>(event)) {
      if (!ids_) Write(splitter_.Finish(""));
      output_->Write("\n");
    }
    if (const auto* waiting = std::get_if<Waiting>(&event); waiting && !quiet_) {
      fmt::print(stderr, "\n[{}]\n", PrintableSentence(Message(waiting->why)));
    }
  }

 private:
  void Write(const std::vector<AnswerSplitter::Piece>& pieces) {
    for (const AnswerSplitter::Piece& piece : pieces) output_->Write(piece.text, piece.reasoning);
  }

  Output* const output_;
  AnswerSplitter splitter_;
  const bool ids_;
  const bool quiet_;
  bool first_ = true;
};

uint32_t NewTokens(int64_t n, const TargetFacts& facts, size_t prompt) {
  uint64_t room = facts.context > prompt ? facts.context - prompt : 0;
  if (facts.context_shift) room = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(n < 0 ? room : std::min<uint64_t>(static_cast<uint64_t>(n), room));
}

// Runs a request on an OpenAI-compatible server, which has its own tokenizer, template and seed.
Status RunOverHttp(const RunOptions& o, const std::string& text) {
  namespace json = boost::json;
  const bool as_ids = !o.ids_file.empty();
  if (o.parse_special) return UsageError("--parse-special can't go with --url: the server reads the prompt");
  GYRE_ASSIGN_OR_RETURN(json::object body, ApiFields(o.generate));
  if (as_ids) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ReadIds(o.ids_file));
    body["prompt"] = json::array(ids.begin(), ids.end());
    body["return_token_ids"] = true;
  } else if (IsQuestion(o)) {
    body["messages"] = Messages(o, text);
  } else {
    body["prompt"] = text;
  }
  GYRE_ASSIGN_OR_RETURN(const auto api, OpenApi(o.ring));
  Output output(Wraps(o));
  InterruptGuard::Begin();
  if (o.echo && !as_ids) output.Write(text);
  if (o.generate.n == 0) return output.status();
  bool first = true;
  const auto end = api->Generate(
      std::move(body), IsQuestion(o),
      [&](const ApiChunk& chunk) {
        if (!as_ids) output.Write(chunk.reasoning, true);
        if (!as_ids) output.Write(chunk.text);
        for (const TokenId id : as_ids ? chunk.ids : std::vector<TokenId>()) {
          output.Write(fmt::format("{}{}", first ? "" : " ", id));
          first = false;
        }
      },
      &InterruptGuard::Interrupted);
  GYRE_RETURN_IF_ERROR(output.status());
  if (absl::IsCancelled(end.status())) {
    output.Write("\n");
    return InterruptGuard::Stopped();
  }
  GYRE_RETURN_IF_ERROR(end.status());
  if (as_ids && first && end->usage.completion_tokens > 0) {
    return Unimplemented("{}: the server does not tell token ids, which --ids prints", o.ring.url);
  }
  output.Write("\n");
  if (const auto usage = UsageOf(*end); usage && !o.ring.quiet) fmt::print(stderr, "{}\n", DescribeUsage(*usage));
  return output.status();
}

}  // namespace

Status RunCommand(const RunOptions& options) {
  InterruptGuard guard(kExitInterrupted);
  const bool as_ids = !options.ids_file.empty();
  std::string text;
  if (!as_ids) {
    GYRE_ASSIGN_OR_RETURN(text, PromptText(options));
  }
  if (!options.ring.url.empty()) return RunOverHttp(options, text);
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  GYRE_RETURN_IF_ERROR(CheckFlags(options.generate, target->facts()));
  Request request;
  GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, MakePrompt(options, text, *target));
  request.prompt = std::move(prompt.ids);
  request.stop_ids = std::move(prompt.stop_ids);
  Output output(Wraps(options));
  InterruptGuard::Begin();
  if (options.echo && !as_ids) output.Write(text);
  if (options.generate.n == 0) return output.status();
  request.sampling = WithSeed(options.generate);
  if (!options.ring.quiet && target->facts().rounds_prompts) {
    fmt::print(stderr,
               "activations of the prompt are rounded to bf16, as AMX takes them; with --exact, here or at the "
               "coordinator, they are not\n");
  }
  if (!options.ring.quiet && request.sampling.temperature > 0) {
    fmt::print(stderr, "seed {}\n", request.sampling.seed);
  }
  request.max_new_tokens = NewTokens(options.generate.n, target->facts(), request.prompt.size());
  request.stops = options.generate.stops;
  request.ignore_end = options.generate.ignore_eos;
  if (request.ignore_end) request.stop_ids.clear();
  request.grammar_source = options.generate.grammar;
  request.compact_json = options.generate.compact_json;
  request.jump_ahead = !options.generate.no_jump_ahead;
  request.answer_format = prompt.answer;
  Printer printer(&output, std::move(prompt.answer), as_ids, options.ring.quiet);
  const Status status = target->Run(
      std::move(request), [&](const Event& event) { printer(event); }, &InterruptGuard::Interrupted);
  GYRE_RETURN_IF_ERROR(output.status());
  GYRE_RETURN_IF_ERROR(status);
  return InterruptGuard::Interrupted() ? InterruptGuard::Stopped() : absl::OkStatus();
}

Status LogitsCommand(const LogitsOptions& options) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, ReadIds(options.ids_file));
  auto sources = SourceFiles(options.ids_file);
  if (options.ring.cluster.empty()) {
    for (auto& file : SourceFiles(options.ring.model)) sources.push_back(std::move(file));
  }
  GYRE_ASSIGN_OR_RETURN(OutFile out,
                        OutFile::Open(options.out_file, {.overwrite = options.force, .sources = std::move(sources)}));
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  InterruptGuard::Begin();
  if (!options.ring.cluster.empty() && !options.ring.quiet) {
    fmt::print(stderr, "the cluster keeps its KV cache in {}\n", target->facts().kv_type);
  }
  GYRE_RETURN_IF_ERROR(ForEachLogits(*target, std::move(ids), [&](const std::vector<float>& logits) {
    return out.Write(std::as_bytes(std::span(logits)));
  }));
  return out.Finish();
}

}  // namespace gyre
