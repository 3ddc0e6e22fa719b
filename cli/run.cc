// gyre run, gyre logits: one request each.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/commands.h"
#include "cli/session.h"
#include "fmt/core.h"

namespace gyre {
namespace {

void Write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

StatusOr<std::vector<TokenId>> PromptIds(const RunOptions& o, Target& target) {
  if (!o.ids_file.empty()) return ReadIds(o.ids_file);
  std::string text = o.prompt;
  if (!o.prompt_file.empty()) {
    GYRE_ASSIGN_OR_RETURN(text, ReadFile(o.prompt_file));
  } else if (!o.has_prompt) {
    return InvalidArgument("a prompt is needed: -p TEXT, -f FILE or --ids FILE");
  }
  if (!target.facts().tokenizer_note.empty()) {
    return FailedPrecondition("{}: {}; use --ids FILE", target.facts().model, target.facts().tokenizer_note);
  }
  GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                        target.Encode(text, {.add_special = true, .parse_special = o.parse_special}));
  if (o.echo) Write(text);
  if (ids.empty()) return InvalidArgument("the prompt is empty and the model has no begin-of-text token");
  return ids;
}

// Prints what a run generates: text, or ids with single spaces between.
class Printer {
 public:
  Printer(bool ids, bool quiet) : ids_(ids), quiet_(quiet) {}

  void operator()(const Event& event) {
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      if (ids_) {
        Write(fmt::format("{}{}", first_ ? "" : " ", token->token));
      } else if (!token->text.empty()) {
        Write(token->text);
      }
      first_ = false;
    }
    if (auto* finished = std::get_if<Finished>(&event)) {
      if (!ids_) Write(finished->text);
      Write("\n");
      if (!quiet_) fmt::print(stderr, "{}\n", DescribeUsage(finished->usage));
    }
    if (std::holds_alternative<Cancelled>(event)) {
      Write("\n");
      fmt::print(stderr, "stopped by Ctrl-C\n");
    }
  }

 private:
  const bool ids_;
  const bool quiet_;
  bool first_ = true;
};

uint32_t NewTokens(int64_t n, uint32_t context, size_t prompt) {
  const uint64_t room = context > prompt ? context - prompt + 1 : 1;
  return static_cast<uint32_t>(n < 0 ? room : std::min<uint64_t>(static_cast<uint64_t>(n), room));
}

}  // namespace

Status RunCommand(const RunOptions& options) {
  InterruptGuard guard;
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  GYRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, PromptIds(options, *target));
  const bool as_ids = !options.ids_file.empty();
  if (options.generate.n == 0) return absl::OkStatus();
  Request request;
  request.sampling = WithSeed(options.generate);
  if (!options.ring.quiet && request.sampling.temperature > 0) {
    fmt::print(stderr, "seed {}\n", request.sampling.seed);
  }
  request.max_new_tokens = NewTokens(options.generate.n, target->facts().context, ids.size());
  request.prompt = std::move(ids);
  request.stops = options.generate.stops;
  request.ignore_end = options.generate.ignore_eos;
  return target->Run(std::move(request), Printer(as_ids, options.ring.quiet), &InterruptGuard::Interrupted);
}

Status LogitsCommand(const LogitsOptions& options) {
  InterruptGuard guard;
  GYRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, ReadIds(options.ids_file));
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(options.ring));
  if (!options.ring.cluster.empty() && !options.ring.quiet) {
    fmt::print(stderr, "the cluster keeps its KV cache in {}\n", target->facts().kv_type);
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(options.out_file.c_str(), "wb"), std::fclose);
  if (out == nullptr) return NotFound("{}: {}", options.out_file, std::strerror(errno));
  Request request;
  request.prompt = std::move(ids);
  request.prompt_logits = true;
  bool written = true, cancelled = false;
  GYRE_RETURN_IF_ERROR(target->Run(
      std::move(request),
      [&](const Event& event) {
        cancelled |= std::holds_alternative<Cancelled>(event);
        if (auto* row = std::get_if<LogitsEvent>(&event)) {
          written &=
              std::fwrite(row->logits.data(), sizeof(float), row->logits.size(), out.get()) == row->logits.size();
        }
      },
      &InterruptGuard::Interrupted));
  if (cancelled) return absl::CancelledError("stopped by Ctrl-C");
  if (!written || std::fclose(out.release()) != 0) {
    return Unavailable("{}: {}", options.out_file, std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace gyre
