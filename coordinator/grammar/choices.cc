#include "coordinator/grammar/choices.h"

namespace gyre::grammar {

StatusOr<Grammar> ChoicesGrammar(const std::vector<std::string>& choices, const Bounds& bounds) {
  if (choices.empty()) return InvalidArgument("choices: expected one or more texts");
  Grammar grammar(bounds);
  std::vector<ExprId> texts;
  size_t bytes = 0;
  for (const std::string& c : choices) {
    bytes += c.size();
    if (bytes > bounds.source_bytes) {
      return ResourceExhausted("grammar: the bound of {} bytes of choices is passed", bounds.source_bytes);
    }
    texts.push_back(grammar.expressions().Text(c));
  }
  grammar.SetRoot(grammar.AddRule());
  grammar.SetBody(grammar.root(), grammar.expressions().Alt(std::move(texts)));
  GYRE_RETURN_IF_ERROR(grammar.Finish());
  return grammar;
}

}  // namespace gyre::grammar
