// gyre eval: a benchmark's questions.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/source_files.h"
#include "scoring/benchmark.h"
#include "scoring/continuation.h"

namespace gyre {
namespace {

namespace json = boost::json;

// The figures of one task.
struct TaskResult {
  Accuracy sum, mean, normalized;  // multiple choice
  Accuracy free;                   // free answers
};

void Count(bool right, Accuracy* of) {
  ++of->items;
  of->right += right ? 1 : 0;
}

StatusOr<std::vector<BenchmarkItem>> ReadItems(const std::string& path, uint64_t limit) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<BenchmarkItem> items;
  size_t number = 0;
  for (size_t at = 0; at < text.size() && (limit == 0 || items.size() < limit);) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    StatusOr<BenchmarkItem> item = ReadBenchmarkItem(line);
    if (!item.ok()) return Annotate(item.status(), fmt::format("{}:{}", path, number));
    items.push_back(*std::move(item));
  }
  if (items.empty()) return InvalidArgument("{}: no questions in it", path);
  return items;
}

class Evaluation {
 public:
  Evaluation(const EvalOptions& o, Target& target) : o_(o), target_(target) {}

  // Returns what the question got, as a line of --out.
  StatusOr<json::object> Ask(const BenchmarkItem& item) {
    TaskResult& task = tasks_[item.task];
    json::object line;
    if (!item.task.empty()) line["task"] = item.task;
    if (!item.choices.empty()) {
      GYRE_RETURN_IF_ERROR(Choose(item, &task, &line));
    } else {
      GYRE_RETURN_IF_ERROR(Answer(item, &task, &line));
    }
    return line;
  }

  void Print() const {
    if (o_.json) {
      json::object out{{"model", target_.facts().model}};
      json::object& tasks = out["tasks"].emplace_object();
      for (const auto& [name, task] : tasks_) {
        json::object& of = tasks[name].emplace_object();
        AddJson("acc", task.sum, &of);
        AddJson("acc_mean", task.mean, &of);
        AddJson("acc_norm", task.normalized, &of);
        AddJson("exact_match", task.free, &of);
      }
      fmt::print("{}\n", json::serialize(out));
      return;
    }
    fmt::print("{}\n", target_.facts().model);
    for (const auto& [name, task] : tasks_) {
      fmt::print("{}\n", name.empty() ? "questions" : name);
      PrintLine("by sum (acc)", task.sum);
      PrintLine("by mean of tokens", task.mean);
      PrintLine("by characters (acc_norm)", task.normalized);
      PrintLine("exact match", task.free);
    }
  }

 private:
  static void PrintLine(const char* what, const Accuracy& a) {
    if (a.items == 0) return;
    fmt::print("  {:<26}{:7.3f}% of {} (standard error {:.3f}%)\n", what, 100 * a.share(), a.items,
               100 * a.standard_error());
  }
  static void AddJson(const char* name, const Accuracy& a, json::object* out) {
    if (a.items == 0) return;
    (*out)[name] = json::object{{"value", a.share()}, {"standard_error", a.standard_error()}, {"items", a.items}};
  }

  StatusOr<std::vector<TokenId>> Encode(const std::string& text) { return target_.Encode(text, {.add_special = true}); }

  Status Run(Request request, const std::function<void(const Event&)>& on_event) {
    bool cancelled = false;
    GYRE_RETURN_IF_ERROR(target_.Run(
        std::move(request),
        [&](const Event& event) {
          cancelled |= std::holds_alternative<Cancelled>(event);
          on_event(event);
        },
        &InterruptGuard::Interrupted));
    return cancelled ? InterruptGuard::Stopped() : absl::OkStatus();
  }

  // The rows of the context are computed for the first choice; the others find them in the prefix cache.
  Status Choose(const BenchmarkItem& item, TaskResult* task, json::object* line) {
    std::vector<ChoiceScore> scores;
    for (const std::string& choice : item.choices) {
      GYRE_ASSIGN_OR_RETURN(ScoredIds whole, EncodeContinuation(
                                                 [this](const std::string& text, bool special) {
                                                   return target_.Encode(text, {.add_special = special});
                                                 },
                                                 item.context, item.delimiter + choice));
      const size_t asked = whole.ids.size() - whole.from;
      Request request;
      request.prompt = std::move(whole.ids);
      request.score = {.from = whole.from};
      ChoiceScore& score = scores.emplace_back();
      GYRE_RETURN_IF_ERROR(Run(std::move(request), [&](const Event& event) {
        const auto* token = std::get_if<PromptTokenEvent>(&event);
        if (token == nullptr) return;
        score.sum += static_cast<double>(token->logprob);
        ++score.tokens;
      }));
      if (score.tokens != asked) return Internal("a choice got {} scores, expected {}", score.tokens, asked);
    }
    const Picks picks = PickChoices(item, scores);
    Count(picks.sum == item.right, &task->sum);
    Count(picks.mean == item.right, &task->mean);
    Count(picks.normalized == item.right, &task->normalized);
    json::array& sums = (*line)["sums"].emplace_array();
    for (const ChoiceScore& score : scores) sums.push_back(json::object{{"sum", score.sum}, {"tokens", score.tokens}});
    (*line)["picks"] = json::object{{"sum", picks.sum}, {"mean", picks.mean}, {"normalized", picks.normalized}};
    (*line)["answer"] = item.right;
    return absl::OkStatus();
  }

  Status Answer(const BenchmarkItem& item, TaskResult* task, json::object* line) {
    Request request;
    if (o_.chat) {
      json::array messages{json::object{{"role", "user"}, {"content", item.context}}};
      GYRE_ASSIGN_OR_RETURN(ChatPrompt prompt, target_.Prompt(messages, {}, ""));
      request.prompt = std::move(prompt.ids);
      request.stop_ids = std::move(prompt.stop_ids);
    } else {
      GYRE_ASSIGN_OR_RETURN(request.prompt, Encode(item.context));
    }
    if (request.prompt.empty()) return InvalidArgument("the context is empty");
    request.sampling.temperature = 0;
    request.max_new_tokens = item.max_tokens;
    request.stops = item.stop;
    std::string text;
    GYRE_RETURN_IF_ERROR(Run(std::move(request), [&](const Event& event) {
      if (const auto* token = std::get_if<TokenEvent>(&event)) text += token->text;
      if (const auto* finished = std::get_if<Finished>(&event)) text += finished->text;
    }));
    GYRE_ASSIGN_OR_RETURN(const std::optional<std::string> answer, ExtractAnswer(item, text));
    const bool right = IsRight(item, answer);
    Count(right, &task->free);
    (*line)["text"] = text;
    (*line)["extracted"] = answer ? json::value(*answer) : json::value();
    (*line)["right"] = right;
    return absl::OkStatus();
  }

  const EvalOptions& o_;
  Target& target_;
  std::map<std::string, TaskResult> tasks_;
};

}  // namespace

Status EvalCommand(const EvalOptions& o) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(const std::vector<BenchmarkItem> items, ReadItems(o.file, o.limit));
  std::optional<OutFile> out;
  if (!o.out.empty()) {
    GYRE_ASSIGN_OR_RETURN(OutFile file, OutFile::Open(o.out, {.overwrite = o.force, .sources = SourceFiles(o.file)}));
    out.emplace(std::move(file));
  }
  GYRE_ASSIGN_OR_RETURN(auto target, OpenTarget(o.ring));
  InterruptGuard::Begin();
  Evaluation evaluation(o, *target);
  Progress progress("asking", o.ring.quiet, "questions");
  for (size_t i = 0; i < items.size(); ++i) {
    StatusOr<json::object> line = evaluation.Ask(items[i]);
    if (absl::IsCancelled(line.status())) return line.status();
    if (!line.ok()) return Annotate(line.status(), fmt::format("question {} of {}", i + 1, o.file));
    if (out) {
      const std::string text = json::serialize(*line) + "\n";
      GYRE_RETURN_IF_ERROR(out->Write(std::as_bytes(std::span(text))));
    }
    progress.Update(i + 1, items.size());
  }
  progress.Finish();
  if (out) GYRE_RETURN_IF_ERROR(out->Finish());
  evaluation.Print();
  return absl::OkStatus();
}

}  // namespace gyre
