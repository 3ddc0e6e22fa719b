#include "coordinator/grammar/source.h"

#include <boost/json/parse.hpp>
#include <string>
#include <vector>

#include "coordinator/grammar/choices.h"
#include "coordinator/grammar/gbnf.h"
#include "coordinator/grammar/json_schema.h"
#include "coordinator/grammar/regex.h"
#include "coordinator/grammar/tool_calls.h"

namespace gyre::grammar {
namespace {

StatusOr<std::vector<std::string>> ReadChoices(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  const boost::json::array* array = error ? nullptr : value.if_array();
  if (array == nullptr) return InvalidArgument("choices are an array of strings");
  std::vector<std::string> choices;
  for (const boost::json::value& choice : *array) {
    if (!choice.is_string()) return InvalidArgument("choice {} is no string", choices.size());
    choices.emplace_back(choice.get_string());
  }
  return choices;
}

}  // namespace

StatusOr<Grammar> ReadSource(const Source& source, bool compact, const Bounds& bounds) {
  switch (source.kind) {
    case SourceKind::kJsonObject: return JsonObjectGrammar({.compact = compact, .bounds = bounds});
    case SourceKind::kJsonSchema: return JsonSchemaGrammar(source.text, {.compact = compact, .bounds = bounds});
    case SourceKind::kRegex: return RegexGrammar(source.text, bounds);
    case SourceKind::kGbnf: return GbnfGrammar(source.text, bounds);
    case SourceKind::kToolCalls: return ToolCallGrammar(source.text, bounds);
    case SourceKind::kChoices: break;
    default: return InvalidArgument("grammars of kind {} are not known", static_cast<int>(source.kind));
  }
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::string> choices, ReadChoices(source.text));
  return ChoicesGrammar(choices, bounds);
}

}  // namespace gyre::grammar
