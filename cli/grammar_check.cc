// gyre grammar check: whether texts obey a grammar, and what it costs.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "coordinator/grammar/choices.h"
#include "coordinator/grammar/compiled.h"
#include "coordinator/grammar/gbnf.h"
#include "coordinator/grammar/json_schema.h"
#include "coordinator/grammar/regex.h"
#include "coordinator/grammar/source.h"
#include "coordinator/grammar/tool_calls.h"
#include "fmt/core.h"
#include "model/answer_format.h"
#include "model/marked_text.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;
using grammar::CompiledGrammar;
using grammar::GrammarState;
using grammar::JsonKind;
using grammar::JsonTree;

// The processor time of this thread, because a busy machine doesn't change it as it changes the time of the clock.
double Microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// times: put in order. Part: 0.5 is the median.
double Quantile(const std::vector<double>& times, double part) {
  if (times.empty()) return 0;
  return times[std::min(times.size() - 1, static_cast<size_t>(part * static_cast<double>(times.size())))];
}

json::object Summary(std::vector<double> times, double unit) {
  std::sort(times.begin(), times.end());
  return {{"count", times.size()},
          {"p50", Quantile(times, 0.5) / unit},
          {"p99", Quantile(times, 0.99) / unit},
          {"max", times.empty() ? 0 : times.back() / unit}};
}

struct Times {
  std::vector<double> compile, masks;  // us
};

StatusOr<std::string> Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in) return NotFound("can't read {}", path);
  return text;
}

// What a text is to obey; nullptr: no field says it.
using Make = std::function<StatusOr<grammar::Grammar>()>;

class Checker {
 public:
  Checker(const GrammarCheckOptions& options, std::shared_ptr<const grammar::TokenTrie> trie)
      : json_{.formats = !options.no_formats, .any_order = !options.ordered}, trie_(std::move(trie)) {}

  const grammar::JsonOptions& json_options() const { return json_; }
  const grammar::TokenTrie& trie() const { return *trie_; }
  const Times& times() const { return times_; }

  // {"accepted": [...], ...} or {"refused": ...}. first_wrong: where the last text that isn't accepted stops.
  json::object Check(const Make& make, const std::vector<std::string>& texts, std::string* first_wrong) {
    const double began = Microseconds();
    StatusOr<grammar::Grammar> grammar = make();
    StatusOr<std::shared_ptr<CompiledGrammar>> compiled =
        grammar.ok() ? CompiledGrammar::Make(*std::move(grammar), trie_) : grammar.status();
    const double compile = Microseconds() - began;
    times_.compile.push_back(compile);
    if (!compiled.ok()) return {{"refused", Message(compiled.status())}, {"compile_ms", compile / 1000}};
    std::vector<double> masks;
    json::array accepted;
    for (const std::string& text : texts) {
      const StatusOr<bool> one = Accepts(compiled->get(), text, &masks, first_wrong);
      if (!one.ok()) return {{"refused", Message(one.status())}, {"compile_ms", compile / 1000}};
      accepted.push_back(*one);
    }
    times_.masks.insert(times_.masks.end(), masks.begin(), masks.end());
    return {{"accepted", accepted}, {"compile_ms", compile / 1000}, {"mask_us", Summary(std::move(masks), 1)}};
  }

 private:
  // Walks the text token by token, the longest one each time, and makes each state's mask.
  StatusOr<bool> Accepts(CompiledGrammar* g, const std::string& text, std::vector<double>* masks, std::string* wrong) {
    GrammarState state = g->start();
    for (size_t at = 0; at < text.size();) {
      const double began = Microseconds();
      const auto mask = g->Mask(state);
      if (absl::IsResourceExhausted(mask.status())) return mask.status();
      masks->push_back(Microseconds() - began);
      const std::string_view rest = std::string_view(text).substr(at);
      const TokenId token = trie_->Longest(rest);
      const std::string_view bytes = token < 0 ? rest.substr(0, 1) : std::string_view(trie_->piece(token));
      GYRE_ASSIGN_OR_RETURN(const GrammarState next, g->Advance(state, bytes));
      if (next.dead()) {
        *wrong = fmt::format("the text stops being one of the grammar within {} at byte {}",
                             json::serialize(json::string(std::string(bytes))), at);
        return false;
      }
      state = next;
      at += bytes.size();
    }
    if (g->MayEnd(state)) return true;
    *wrong = fmt::format("the text may not end at byte {}", text.size());
    return false;
  }

  const grammar::JsonOptions json_;
  const std::shared_ptr<const grammar::TokenTrie> trie_;
  Times times_;
};

StatusOr<std::shared_ptr<const grammar::TokenTrie>> OpenTrie(const GrammarCheckOptions& o) {
  if (!o.model.empty()) {
    GYRE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(o.model, o.open));
    return std::make_shared<const grammar::TokenTrie>(*tokenizer);
  }
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  bytes.emplace_back();
  return std::make_shared<const grammar::TokenTrie>(std::move(bytes), std::vector<TokenId>{256});
}

// The grammar that the flags name.
StatusOr<Make> FromFlags(const GrammarCheckOptions& o, const grammar::JsonOptions& options) {
  if (o.has_regex) return Make([o] { return grammar::RegexGrammar(o.regex); });
  if (!o.schema.empty()) {
    GYRE_ASSIGN_OR_RETURN(std::string schema, Content(o.schema));
    return Make([schema = std::move(schema), options, path = o.schema]() -> StatusOr<grammar::Grammar> {
      auto grammar = grammar::JsonSchemaGrammar(std::string_view(schema), options);
      if (!grammar.ok()) return Annotate(grammar.status(), path);
      return grammar;
    });
  }
  if (!o.gbnf.empty()) {
    GYRE_ASSIGN_OR_RETURN(std::string gbnf, Content(o.gbnf));
    return Make([gbnf = std::move(gbnf), path = o.gbnf]() -> StatusOr<grammar::Grammar> {
      auto grammar = grammar::GbnfGrammar(gbnf);
      if (!grammar.ok()) return Annotate(grammar.status(), path);
      return grammar;
    });
  }
  return Make();
}

bool HasControl(const grammar::TokenTrie& trie, const std::string& name) {
  const std::string marked = MarkedControl(name);
  const TokenId token = trie.Longest(marked);
  return token >= 0 && trie.piece(token) == marked;
}

// Calls of tools: the fields of chat completions, and the name of the form in which the model writes calls. Markers
// that are no control tokens of the vocabulary are text. Throws what boost::json throws where a field has another type.
StatusOr<grammar::Source> CallsOf(const json::object& line, const grammar::TokenTrie& trie) {
  const std::string name(line.at("format").as_string());
  const ToolFormat* form = ToolFormatNamed(name);
  if (form == nullptr) return InvalidArgument("no form of calls has the name \"{}\"", name);
  AnswerFormat format = AnswerFormatOf(*form, "");
  std::erase_if(format.controls, [&](const AnswerFormat::Control& c) { return !HasControl(trie, c.text); });
  const auto flag = [&](const char* field) {
    const json::value* value = line.if_contains(field);
    return value == nullptr || value->as_bool();
  };
  const json::value* choice = line.if_contains("tool_choice");
  grammar::ToolCalls calls;
  calls.required = choice != nullptr && choice->as_string() == "required";
  calls.parallel = flag("parallel_tool_calls");
  for (const json::value& tool : line.at("tools").as_array()) {
    const json::value* function = tool.as_object().if_contains("function");
    const json::object& declared = function == nullptr ? tool.as_object() : function->as_object();
    const json::value* parameters = declared.if_contains("parameters");
    calls.tools.push_back({.name = std::string(declared.at("name").as_string()),
                           .parameters = parameters == nullptr ? "{}" : json::serialize(*parameters),
                           .strict = flag("strict")});
  }
  return grammar::ToolCallSource(calls, format);
}

StatusOr<Make> FromTools(const std::string& text, const grammar::TokenTrie& trie) {
  try {
    json::parse_options deep;
    deep.max_depth = 1024;
    GYRE_ASSIGN_OR_RETURN(grammar::Source source, CallsOf(json::parse(text, {}, deep).as_object(), trie));
    return Make([source = std::move(source)] { return grammar::ReadSource(source); });
  } catch (const std::exception& e) {
    return InvalidArgument("\"tools\", \"format\" and what goes with them have another form: {}", e.what());
  }
}

// The grammar that a line names, or else the flags'.
StatusOr<Make> FromLine(const JsonTree& line, const std::string& text, const Make& flags, const Checker& checker) {
  if (line.Find("tools") != nullptr) return FromTools(text, checker.trie());
  const grammar::JsonOptions& options = checker.json_options();
  if (const JsonTree* schema = line.Find("schema")) {
    return Make([schema, options] { return grammar::JsonSchemaGrammar(*schema, options); });
  }
  for (const char* field : {"pattern", "grammar"}) {
    const JsonTree* written = line.Find(field);
    if (written == nullptr) continue;
    if (!written->Is(JsonKind::kString)) return InvalidArgument("expected a text as \"{}\"", field);
    if (field == std::string_view("pattern")) return Make([written] { return grammar::RegexGrammar(written->text); });
    return Make([written] { return grammar::GbnfGrammar(written->text); });
  }
  if (flags == nullptr) return InvalidArgument("expected \"schema\", \"pattern\", \"grammar\" or \"tools\"");
  return flags;
}

// A text, or a list of texts and of {"control": NAME}.
StatusOr<std::string> TextOf(const JsonTree& value, const grammar::TokenTrie& trie) {
  if (value.Is(JsonKind::kString)) return value.text;
  std::string text;
  if (!value.Is(JsonKind::kArray)) return InvalidArgument("expected a list of texts as \"texts\"");
  for (const JsonTree& part : value.items) {
    const JsonTree* control = part.Is(JsonKind::kObject) ? part.Find("control") : nullptr;
    const JsonTree& written = control == nullptr ? part : *control;
    if (!written.Is(JsonKind::kString)) {
      return InvalidArgument("a part of a text is a text or has a \"control\"");
    }
    text += control != nullptr && HasControl(trie, written.text) ? MarkedControl(written.text) : written.text;
  }
  return text;
}

Status CheckLines(Checker* checker, const Make& flags) {
  size_t refused = 0;
  GYRE_RETURN_IF_ERROR(EachInputLine([&](const std::string& line) -> Status {
    GYRE_ASSIGN_OR_RETURN(const JsonTree tree, grammar::ReadJson(line, 1024));
    GYRE_ASSIGN_OR_RETURN(const Make make, FromLine(tree, line, flags, *checker));
    std::vector<std::string> texts;
    if (const JsonTree* list = tree.Find("texts")) {
      if (!list->Is(JsonKind::kArray)) return InvalidArgument("expected a list of texts as \"texts\"");
      for (const JsonTree& item : list->items) {
        GYRE_ASSIGN_OR_RETURN(std::string text, TextOf(item, checker->trie()));
        texts.push_back(std::move(text));
      }
    }
    std::string wrong;
    const json::object result = checker->Check(make, texts, &wrong);
    refused += result.contains("refused");
    fmt::print("{}\n", json::serialize(result));
    return absl::OkStatus();
  }));
  const json::object all = {{"lines", checker->times().compile.size()},
                            {"refused", refused},
                            {"compile_ms", Summary(checker->times().compile, 1000)},
                            {"mask_us", Summary(checker->times().masks, 1)}};
  fmt::print(stderr, "{}\n", json::serialize(all));
  return absl::OkStatus();
}

}  // namespace

Status GrammarCheckCommand(const GrammarCheckOptions& o) {
  GYRE_ASSIGN_OR_RETURN(auto trie, OpenTrie(o));
  Checker checker(o, std::move(trie));
  GYRE_ASSIGN_OR_RETURN(const Make flags, FromFlags(o, checker.json_options()));
  if (o.jsonl) return CheckLines(&checker, flags);
  std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  std::vector<std::string> texts = {text};
  // A line feed that only ends the terminal's line is none of the text.
  if (text.ends_with('\n')) texts.push_back(text.substr(0, text.size() - 1));
  std::string wrong;
  json::object result = checker.Check(flags, texts, &wrong);
  if (const json::value* refused = result.if_contains("refused")) {
    return InvalidArgument("{}", std::string_view(refused->get_string()));
  }
  const json::array accepted = result["accepted"].get_array();
  const bool any = std::any_of(accepted.begin(), accepted.end(), [](const json::value& v) { return v.get_bool(); });
  result["accepted"] = json::array{any};
  fmt::print("{}\n", json::serialize(result));
  return any ? absl::OkStatus() : InvalidArgument("{}", wrong);
}

}  // namespace gyre
