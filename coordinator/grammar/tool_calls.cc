#include "coordinator/grammar/tool_calls.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "coordinator/grammar/json_schema.h"
#include "coordinator/grammar/json_tree.h"
#include "model/marked_text.h"
#include "model/tool_reader.h"

namespace gyre::grammar {
namespace {

namespace json = boost::json;

// The fields of the text that ToolCallSource writes.
struct Asked {
  ToolCalls calls;
  const ToolFormat* format = nullptr;
  std::vector<std::string> controls;
  AnswerFormat::Begins begins = AnswerFormat::Begins::kBefore;
};

std::string TextOf(const json::value& value) { return std::string(value.as_string()); }

// Throws what boost::json throws where a value has another type.
Asked ReadAsked(const json::value& text) {
  const json::object& object = text.as_object();
  Asked out;
  out.format = ToolFormatNamed(TextOf(object.at("format")));
  out.calls.required = object.at("required").as_bool();
  out.calls.parallel = object.at("parallel").as_bool();
  const auto begins = object.at("begins").as_int64();
  if (begins == 1) out.begins = AnswerFormat::Begins::kInReasoning;
  if (begins == 2) out.begins = AnswerFormat::Begins::kInContent;
  for (const json::value& control : object.at("controls").as_array()) out.controls.push_back(TextOf(control));
  for (const json::value& tool : object.at("tools").as_array()) {
    out.calls.tools.push_back({.name = TextOf(tool.at("name")),
                               .parameters = TextOf(tool.at("parameters")),
                               .strict = tool.at("strict").as_bool()});
  }
  if (const json::value* answer = object.if_contains("answer")) {
    out.calls.answer = Source{.kind = SourceKind::kJsonSchema, .text = TextOf(*answer)};
  }
  return out;
}

bool Has(const JsonTree& schema, std::string_view keyword) { return schema.Find(keyword) != nullptr; }

// Parameters that a tool does not declare are none, unless its schema says something of them.
void Close(JsonTree* schema) {
  const JsonTree* properties = schema->Find("properties");
  if (properties == nullptr || !properties->Is(JsonKind::kObject)) return;
  for (const char* keyword : {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames",
                              "minProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if",
                              "dependentSchemas", "dependencies", "dependentRequired"}) {
    if (Has(*schema, keyword)) return;
  }
  if (const JsonTree* required = schema->Find("required")) {
    for (const JsonTree& name : required->items) {
      if (!Has(*properties, name.text)) return;
    }
  }
  schema->members.push_back({"additionalProperties", {.kind = JsonKind::kFalse}});
}

class CallGrammar {
 public:
  CallGrammar(const Asked& asked, Grammar* grammar)
      : calls_(asked.calls),
        format_(*asked.format),
        controls_(asked.controls),
        begins_(asked.begins),
        grammar_(*grammar),
        e_(grammar->expressions()) {}

  Status Build() {
    for (const ToolCalls::Tool& tool : calls_.tools) {
      StatusOr<ExprId> arguments = Arguments(tool);
      if (!arguments.ok()) return Annotate(arguments.status(), "tool " + tool.name);
      const RuleId rule = grammar_.AddRule();
      grammar_.SetBody(rule, *arguments);
      tools_.emplace_back(tool.name, rule);
    }
    if (calls_.answer) {
      GYRE_ASSIGN_OR_RETURN(JsonTree schema, ReadJson(calls_.answer->text, grammar_.budget().bounds().nesting));
      GYRE_ASSIGN_OR_RETURN(answer_, AddValue(std::move(schema), &grammar_));
    }
    GYRE_ASSIGN_OR_RETURN(const ExprId whole, Whole());
    const RuleId root = grammar_.AddRule();
    grammar_.SetBody(root, whole);
    grammar_.SetRoot(root);
    return absl::OkStatus();
  }

 private:
  // ---- Texts

  std::string Marked(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      const auto found = std::find_if(controls_.begin(), controls_.end(),
                                      [&](const std::string& c) { return !c.empty() && text.starts_with(c); });
      out += found == controls_.end() ? std::string(text.substr(0, 1)) : MarkedControl(*found);
      text.remove_prefix(found == controls_.end() ? 1 : found->size());
    }
    return out;
  }
  // A text of the table.
  ExprId Written(std::string_view text) {
    const size_t sign = std::min(text.find_first_of(kSigns), text.size());
    const ExprId before = e_.Text(Marked(text.substr(0, sign)));
    if (sign == text.size()) return before;
    const char kind = text[sign];
    text.remove_prefix(sign + 1);
    ExprId here = kEpsilon;
    if (kind == CallText::kMayBe) {
      const size_t end = text.find(CallText::kMayBe);
      here = e_.Optional(Written(text.substr(0, end)));
      text.remove_prefix(end + 1);
    } else if (kind == CallText::kMaySpace) {
      here = e_.Optional(e_.Alt(e_.Text(" "), e_.Text("\n")));
    } else {
      here = kind == CallText::kIndex ? Index() : Id();
    }
    return e_.Concat({before, here, Written(text)});
  }
  ExprId Id() { return e_.Repeat(e_.Alt({e_.Range('0', '9'), e_.Range('A', 'Z'), e_.Range('a', 'z')}), 9, 9); }
  ExprId Index() { return e_.Alt(e_.Text("0"), e_.Concat(e_.Range('1', '9'), e_.Repeat(e_.Range('0', '9'), 0, 2))); }
  ExprId Space() { return e_.Repeat(e_.Alt({e_.Text(" "), e_.Text("\n"), e_.Text("\r"), e_.Text("\t")}), 0, 16); }
  ExprId AnyByte() {
    ByteSet any;
    any.set();
    return e_.Bytes(any);
  }
  ExprId Any() { return e_.Star(AnyByte()); }
  // Any bytes and tokens without the text.
  ExprId Without(const std::string& text) { return e_.Not(e_.Concat({Any(), e_.Text(text), Any()})); }
  // Any bytes and tokens up to the first such text, with it. Its bytes are decided on without a rule: a call that could
  // begin behind each of them would have to be walked for each token.
  ExprId UpTo(const std::string& text) {
    const ExprId ended = e_.Concat(Any(), e_.Text(text));
    return e_.And(ended, e_.Not(e_.Concat({ended, AnyByte(), Any()})));
  }
  // Text without control tokens.
  ExprId PlainText() {
    ByteSet bytes;
    bytes.set();
    for (const char mark : {kMarkBegin, kMarkEnd}) bytes.reset(static_cast<uint8_t>(mark));
    return e_.Star(e_.Bytes(bytes));
  }
  ExprId TextWithout(const std::string& text) { return e_.And(PlainText(), Without(text)); }

  // ---- Calls

  // The arguments of a tool's call, with the text that ends them.
  StatusOr<ExprId> Arguments(const ToolCalls::Tool& tool) {
    GYRE_ASSIGN_OR_RETURN(JsonTree schema, ReadJson(tool.parameters, grammar_.budget().bounds().nesting));
    ArgumentsForm form = Form(tool);
    if (calls_.required || tool.strict) {
      Close(&schema);
      return AddArguments(std::move(schema), form, &grammar_);
    }
    // Any arguments; texts are read as such.
    json::object properties;
    for (const std::string& name : form.text_names) {
      if (name.find(form.name_end) == std::string::npos) properties[name] = json::object{{"type", "string"}};
    }
    const json::object any{{"type", "object"}, {"properties", std::move(properties)}};
    GYRE_ASSIGN_OR_RETURN(schema, ReadJson(json::serialize(any), grammar_.budget().bounds().nesting));
    return AddArguments(std::move(schema), form, &grammar_);
  }

  ArgumentsForm Form(const ToolCalls::Tool& tool) {
    const CallText& text = format_.text;
    ArgumentsForm out;
    out.object = text.value[0] == '\0';
    out.key = Written(text.key);
    out.value = Written(text.value);
    out.value_end = Written(text.value_end);
    out.separator = Written(text.separator);
    out.close = Written(text.behind);
    out.bare_names = format_.form == ToolForm::kPythonic || format_.form == ToolForm::kTaggedPythonic;
    if (out.bare_names) {
      out.style.kind = JsonStyle::Kind::kPython;
    } else if (format_.form == ToolForm::kBraces) {
      out.style = {.kind = JsonStyle::Kind::kBraces, .quote = Marked(*format_.inner.begin()), .avoid = {}};
      if (out.style.quote[0] != kMarkBegin) out.style.avoid = out.style.quote;
    } else if (!out.object) {
      const std::string_view value = text.value;
      out.texts = true;
      out.says_text = value.ends_with("string=\"");
      out.drops_lines = format_.form == ToolForm::kXmlParameters && !value.ends_with('\n');
      out.name_end = value[0] == '"' ? "\"" : Marked(value.substr(0, value.find_first_of("\n\v")));
      out.style.avoid = Marked(text.value_end);
      std::erase_if(out.style.avoid, [](char c) { return c == '\n' || c == CallText::kMaySpace; });
      boost::system::error_code error;
      const json::value parameters = json::parse(tool.parameters, error);
      const json::object function{{"name", tool.name}, {"parameters", error ? json::value() : parameters}};
      DeclaredTools declared = DeclareTools(json::array{function});
      if (!declared.empty()) out.text_names = std::move(declared.begin()->second);
    }
    return out;
  }

  // NAME `after` arguments: of each tool.
  ExprId Named(ExprId after) {
    std::vector<ExprId> ways;
    for (const auto& [name, arguments] : tools_) ways.push_back(e_.Concat({e_.Text(name), after, e_.Call(arguments)}));
    return e_.Alt(std::move(ways));
  }
  // A rule for what is used more than once.
  ExprId Once(ExprId body) {
    const RuleId rule = grammar_.AddRule();
    grammar_.SetBody(rule, body);
    return e_.Call(rule);
  }
  bool many() const { return format_.text.many && calls_.parallel; }

  // opened: the form's marker has come.
  ExprId Calls(bool opened = false) {
    const CallText& text = format_.text;
    std::string_view begin = text.begin, before = text.before;
    const bool each = begin.empty();  // each call has the marker
    if (opened) (each ? before : begin).remove_prefix(std::string_view(format_.open).size());
    const ExprId call = Once(e_.Concat(Written(before), Named(Written(text.after))));
    // In a text the next marker begins the next call, whatever stands before it.
    const bool more = many() && !(opened && each);
    const ExprId others = more ? e_.Star(e_.Concat(Written(text.between), call)) : kEpsilon;
    return e_.Concat({Written(begin), call, others, Written(text.end)});
  }

  StatusOr<ExprId> Whole() {
    switch (format_.form) {
      case ToolForm::kHarmony: return Messages();
      case ToolForm::kRecipient: return Recipients();
      case ToolForm::kLlamaJson:
      case ToolForm::kPythonic: return WholeAnswer();
      default: break;
    }
    if (calls_.required) return e_.Concat(Space(), Once(Calls()));
    if (calls_.answer) return e_.Concat(Space(), e_.Alt(Once(Calls()), answer_));
    const std::string marker = Marked(format_.open);
    const ExprId free = Without(marker);
    const ExprId called = e_.Concat(UpTo(marker), Once(Calls(true)));
    return many() ? e_.Concat(e_.Star(called), free) : e_.Alt(called, free);
  }

  // The answer is a call, or a text that is read as none.
  ExprId WholeAnswer() {
    const ExprId tag = e_.Text(Marked(format_.open));
    const bool llama = format_.form == ToolForm::kLlamaJson;
    const ExprId inner = Once(Calls());
    const ExprId tagged = e_.Concat({tag, inner, e_.Text(Marked(format_.close))});
    const ExprId calls = e_.Concat(Space(), e_.Alt(inner, tagged));
    if (calls_.required) return calls;
    if (calls_.answer) return e_.Alt(calls, e_.Concat(Space(), answer_));
    const ExprId space = e_.Star(e_.Alt({e_.Text(" "), e_.Text("\n"), e_.Text("\r"), e_.Text("\t")}));
    std::vector<ExprId> begins = {tag};
    if (llama) begins.push_back(e_.Text("{"));
    for (const auto& [name, arguments] : tools_) {
      begins.push_back(e_.Concat({e_.Optional(e_.Concat(e_.Text("["), space)), e_.Text(name),
                                  e_.Optional(e_.Text(".call")), space, e_.Text("(")}));
    }
    return e_.Alt(calls, e_.Not(e_.Concat({space, e_.Alt(std::move(begins)), Any()})));
  }

  // Each part of the answer begins with its recipient.
  ExprId Recipients() {
    const ExprId call = Once(Named(Written(format_.text.after)));
    const ExprId between = Written(format_.text.between);
    const ExprId more = many() ? e_.Star(e_.Concat(between, call)) : kEpsilon;
    if (calls_.required) return e_.Concat(call, more);
    const std::string marker = Marked(format_.open);
    const ExprId all = e_.Text("all\n");
    const ExprId said = e_.Concat(all, calls_.answer ? answer_ : TextWithout(marker));
    // The first marker ends a text: of four > the last one is no part of it.
    const ExprId ended = calls_.answer ? e_.Concat(said, between) : e_.Concat(all, e_.And(PlainText(), UpTo(marker)));
    if (!many()) return e_.Alt(said, e_.Concat(e_.Optional(ended), call));
    return e_.Concat(e_.Star(Once(e_.Alt(ended, e_.Concat(call, between)))), e_.Alt(said, call));
  }

  // Messages of gpt-oss: the prompt ends with the first one's "<|start|>assistant".
  StatusOr<ExprId> Messages() {
    const ExprId message = e_.Text(Marked("<|message|>")), channel = e_.Text(Marked("<|channel|>"));
    const ExprId text = TextWithout(Marked("<|end|>"));
    const ExprId next = e_.Text(Marked("<|end|><|start|>assistant"));
    const ExprId call = Once(e_.Alt(
        e_.Concat(Written(format_.text.before), Named(Written(format_.text.after))),
        e_.Concat(e_.Text(" to=functions."), Named(Written("<|channel|>commentary <|constrain|>json<|message|>")))));
    const ExprId thought = e_.Concat({channel, e_.Text("analysis"), message, text});
    const ExprId said = Once(e_.Alt(thought, e_.Concat({channel, e_.Text("commentary"), message, text})));
    const ExprId answer = e_.Concat({channel, e_.Text("final"), message, calls_.answer ? answer_ : text});
    // An answer that must have a form is not left out.
    const ExprId last = calls_.answer ? e_.Alt(answer, call) : e_.Alt({answer, call, said});
    const ExprId before = calls_.parallel ? e_.Alt(said, call) : said;
    const ExprId whole = calls_.required ? e_.Concat(e_.Optional(e_.Concat(thought, next)), call)
                                         : e_.Concat(e_.Star(e_.Concat(before, next)), last);
    if (begins_ == AnswerFormat::Begins::kBefore) return whole;
    if (!calls_.required) return e_.Concat(text, e_.Optional(e_.Concat(next, whole)));
    if (begins_ == AnswerFormat::Begins::kInReasoning) return e_.Concat({text, next, call});
    return Unimplemented("the prompt begins the answer's text, so it can't be a call");
  }

  static constexpr char kSignList[] = {CallText::kMaySpace, CallText::kIndex, CallText::kId, CallText::kMayBe};
  static constexpr std::string_view kSigns{kSignList, sizeof kSignList};

  const ToolCalls& calls_;
  const ToolFormat& format_;
  const std::vector<std::string>& controls_;
  const AnswerFormat::Begins begins_;
  Grammar& grammar_;
  Expressions& e_;
  std::vector<std::pair<std::string, RuleId>> tools_;  // with their arguments
  ExprId answer_ = kNothing;
};

}  // namespace

StatusOr<Source> ToolCallSource(const ToolCalls& calls, const AnswerFormat& format) {
  if (format.tools == nullptr) {
    return Unimplemented(
        "the model's chat template has no form of calls that this server knows, so none can be asked for");
  }
  json::array controls, tools;
  for (const AnswerFormat::Control& control : format.controls) controls.emplace_back(control.text);
  for (const ToolCalls::Tool& tool : calls.tools) {
    tools.push_back(json::object{{"name", tool.name}, {"parameters", tool.parameters}, {"strict", tool.strict}});
  }
  json::object out{{"format", format.tools->name},
                   {"controls", std::move(controls)},
                   {"begins", static_cast<int64_t>(format.begins)},
                   {"tools", std::move(tools)},
                   {"required", calls.required},
                   {"parallel", calls.parallel}};
  if (calls.answer && !calls.required) {
    const bool object = calls.answer->kind == SourceKind::kJsonObject;
    if (!IsJson(*calls.answer)) {
      return Unimplemented("beside tools the answer's form may be a JSON Schema or any object, no other grammar");
    }
    out["answer"] = object ? R"({"type": "object"})" : calls.answer->text;
  }
  return Source{.kind = SourceKind::kToolCalls, .text = json::serialize(out)};
}

StatusOr<Grammar> ToolCallGrammar(std::string_view source, const Bounds& bounds) {
  if (source.size() > bounds.source_bytes) {
    return ResourceExhausted("grammar: the bound of {} bytes of tools is passed", bounds.source_bytes);
  }
  Asked asked;
  try {
    boost::system::error_code error;
    asked = ReadAsked(json::parse({source.data(), source.size()}, error));
  } catch (const std::exception& e) {
    return InvalidArgument("a grammar of calls is not as a coordinator writes it: {}", e.what());
  }
  if (asked.format == nullptr) return InvalidArgument("a grammar of calls names a form that is not known");
  Grammar grammar(bounds);
  GYRE_RETURN_IF_ERROR(CallGrammar(asked, &grammar).Build());
  const Status finished = grammar.Finish();
  if (absl::IsInvalidArgument(finished)) return InvalidArgument("no call obeys the tools' schemas");
  GYRE_RETURN_IF_ERROR(finished);
  return grammar;
}

}  // namespace gyre::grammar
