#include "coordinator/http/grammar_fields.h"

#include <optional>
#include <string>
#include <utility>

#include "boost/json/serialize.hpp"

namespace gyre::http {
namespace {

namespace json = boost::json;
using grammar::SourceKind;

void Set(JsonFields& fields, std::string_view name, SourceKind kind, std::string text, Question* question) {
  if (question->grammar_source) {
    fields.Fail(BadRequest("the request names more than one grammar", fields.Path(name)));
    return;
  }
  question->grammar_source = grammar::Source{.kind = kind, .text = std::move(text)};
}

// A schema as a value or as the text of one.
void ReadSchema(JsonFields& fields, std::string_view name, Question* question) {
  const json::value* schema = fields.Any(name);
  if (schema == nullptr) return;
  const bool text = schema->is_string();
  Set(fields, name, SourceKind::kJsonSchema, text ? std::string(schema->get_string()) : json::serialize(*schema),
      question);
}

void ReadText(JsonFields& fields, std::string_view name, SourceKind kind, Question* question) {
  std::optional<std::string> text = fields.String(name);
  if (text && !text->empty()) Set(fields, name, kind, *std::move(text), question);
}

void ReadChoices(JsonFields& fields, std::string_view name, Question* question) {
  if (const json::array* choices = fields.Array(name)) {
    Set(fields, name, SourceKind::kChoices, json::serialize(*choices), question);
  }
}

void ReadJsonObject(JsonFields& fields, std::string_view name, Question* question) {
  if (fields.Bool(name).value_or(false)) Set(fields, name, SourceKind::kJsonObject, "", question);
}

// {"name": ..., "schema": ..., "strict": ...}: a schema is obeyed whatever `strict` says.
void ReadNamedSchema(JsonFields& fields, Question* question) {
  fields.Require("schema");
  ReadSchema(fields, "schema", question);
  fields.Bool("strict");
  for (const char* name : {"name", "description"}) fields.Ignore(name);
}

}  // namespace

void ReadTextFormat(JsonFields& fields, std::string_view name, Question* question) {
  const json::object* format = fields.Object(name);
  if (format == nullptr) return;
  JsonFields inner(*format, fields.Path(name) + ".");
  inner.Require("type");
  const std::string type = inner.String("type").value_or("");
  if (type == "json_object" && format->contains("schema")) {
    ReadSchema(inner, "schema", question);
  } else if (type == "json_object") {
    Set(inner, "type", SourceKind::kJsonObject, "", question);
  } else if (type == "json_schema") {
    if (const json::object* named = inner.Object("json_schema")) {
      JsonFields in(*named, inner.Path("json_schema") + ".");
      ReadNamedSchema(in, question);
      if (std::optional<ApiError> error = in.Finish()) inner.Fail(*std::move(error));
    } else {
      ReadNamedSchema(inner, question);
    }
  } else if (type == "regex") {
    inner.Require("pattern");
    ReadText(inner, "pattern", SourceKind::kRegex, question);
  } else if (!inner.failed() && type != "text") {
    inner.Fail(BadRequest(inner.Path("type") + " may be text, json_object, json_schema or regex", inner.Path("type")));
  }
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

void ReadGrammars(JsonFields& fields, Question* question) {
  ReadText(fields, "grammar", SourceKind::kGbnf, question);
  ReadSchema(fields, "json_schema", question);
  ReadSchema(fields, "guided_json", question);
  ReadText(fields, "guided_regex", SourceKind::kRegex, question);
  ReadChoices(fields, "guided_choice", question);
  ReadText(fields, "guided_grammar", SourceKind::kGbnf, question);
  ReadJsonObject(fields, "guided_json_object", question);
  if (const json::object* structured = fields.Object("structured_outputs")) {
    JsonFields inner(*structured, fields.Path("structured_outputs") + ".");
    ReadSchema(inner, "json", question);
    ReadText(inner, "regex", SourceKind::kRegex, question);
    ReadChoices(inner, "choice", question);
    ReadText(inner, "grammar", SourceKind::kGbnf, question);
    ReadJsonObject(inner, "json_object", question);
    inner.Refuse("structural_tag", "tags that begin a grammar are not known");
    inner.Refuse("whitespace_pattern", "white space is as docs/grammar.md says");
    question->compact_json = inner.Bool("disable_any_whitespace").value_or(false);
    if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
  }
  question->jump_ahead = fields.Bool("jump_ahead").value_or(true);
  fields.Refuse("guided_whitespace_pattern", "white space is as docs/grammar.md says");
  fields.Ignore("guided_decoding_backend");
  for (const char* name : {"grammar_lazy", "grammar_triggers"}) {
    fields.Refuse(name, "a grammar holds from the beginning of the answer");
  }
}

void ReadOllamaFormat(JsonFields& fields, Question* question) {
  const json::value* format = fields.Any("format");
  if (format == nullptr || *format == "") return;
  if (*format == "json") return Set(fields, "format", SourceKind::kJsonObject, "", question);
  if (format->is_object()) return ReadSchema(fields, "format", question);
  fields.Fail(BadRequest("format must be \"json\" or a JSON Schema", "format"));
}

}  // namespace gyre::http
