// gyre parse-answer: recorded answers in, the messages that clients get out.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include <boost/json.hpp>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "fmt/core.h"
#include "model/chat_template.h"
#include "model/recorded_answer.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

using Find = std::function<AnswerFormat(std::string_view prompt)>;

StatusOr<json::object> Parse(const std::string& text, const Find& find, bool bytewise) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) return InvalidArgument("expected a JSON object");
  GYRE_ASSIGN_OR_RETURN(const RecordedAnswer answer, ReadRecordedAnswer(value.get_object(), find));
  json::object out = ParseAnswer(answer, [bytewise](size_t) { return bytewise; });
  const json::value* id = value.get_object().if_contains("id");
  if (id == nullptr) return out;
  json::object named{{"id", *id}};
  for (const auto& [key, field] : out) named[key] = field;
  return named;
}

StatusOr<Find> FindFormats(const ParseAnswerOptions& options) {
  if (!options.model.empty()) {
    GYRE_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, OpenVocabulary(options.model, {}));
    if (model->tokenizer() == nullptr) return FailedPrecondition("{}: {}", options.model, model->tokenizer_note());
    return Find([model](std::string_view prompt) {
      const auto ids = model->tokenizer()->Encode(prompt, {.add_special = false, .parse_special = true});
      return FindAnswerFormat(model->chat_template(), *model->tokenizer(), ids);
    });
  }
  std::string source;
  if (!options.file.empty()) {
    GYRE_ASSIGN_OR_RETURN(source, ReadFile(options.file));
    GYRE_RETURN_IF_ERROR(Annotate(ChatTemplate::Parse(source, "", "").status(), options.file));
  }
  return Find([source](std::string_view prompt) { return FindAnswerFormat(source, prompt); });
}

}  // namespace

Status ParseAnswerCommand(const ParseAnswerOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const Find find, FindFormats(options));
  if (!options.jsonl) {
    const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
    GYRE_ASSIGN_OR_RETURN(const json::object out, Parse(text, find, options.bytewise));
    fmt::print("{}\n", json::serialize(out));
    return absl::OkStatus();
  }
  return EachInputLine([&](const std::string& line) {
    const StatusOr<json::object> out = Parse(line, find, options.bytewise);
    fmt::print("{}\n", json::serialize(out.ok() ? *out : json::object{{"error", Message(out.status())}}));
    return absl::OkStatus();
  });
}

}  // namespace gyre
