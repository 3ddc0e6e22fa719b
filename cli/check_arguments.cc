#include "cli/check_arguments.h"

#include <string>
#include <utility>

#include "coordinator/grammar/compiled.h"
#include "coordinator/grammar/json_schema.h"
#include "model/utf8.h"

namespace gyre {
namespace {

constexpr size_t kShown = 80;  // bytes on each side of the place

// The last bytes of a text, and the first ones, in whole characters.
std::string LastBytes(std::string_view text) {
  if (text.size() <= kShown) return std::string(text);
  size_t at = text.size() - kShown;
  while (at < text.size() && ContinuesUtf8(text[at])) ++at;
  return "..." + std::string(text.substr(at));
}
std::string FirstBytes(std::string_view text) {
  if (text.size() <= kShown) return std::string(text);
  size_t end = kShown;
  while (end > 0 && ContinuesUtf8(text[end])) --end;
  return std::string(text.substr(0, end)) + "...";
}

// Whether a number stands around a place that a grammar may refuse in this spelling only: it takes few digits, and no
// exponent where there are limits.
bool MayBeSpelledOtherwise(std::string_view text, size_t at) {
  const auto in_number = [](char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e'; };
  size_t first = at, end = at;
  while (first > 0 && in_number(text[first - 1])) --first;
  while (end < text.size() && in_number(text[end])) ++end;
  const std::string_view number = text.substr(first, end - first);
  constexpr size_t kMostDigits = 15;
  return number.size() > kMostDigits || number.find('e') != std::string_view::npos;
}

}  // namespace

Status CheckArguments(std::string_view schema, std::string_view arguments) {
  using grammar::CompiledGrammar;
  auto read = grammar::JsonSchemaGrammar(schema, {.any_order = true});
  if (!read.ok()) return absl::OkStatus();
  const auto compiled = CompiledGrammar::Make(*std::move(read), nullptr);
  if (!compiled.ok()) return absl::OkStatus();
  grammar::GrammarState state = (*compiled)->start();
  for (size_t at = 0; at < arguments.size(); ++at) {
    const auto next = (*compiled)->Advance(state, arguments.substr(at, 1));
    if (!next.ok()) return absl::OkStatus();
    if (next->dead()) {
      if (MayBeSpelledOtherwise(arguments, at)) return absl::OkStatus();
      // The message does not cut a character.
      while (at > 0 && ContinuesUtf8(arguments[at])) --at;
      return InvalidArgument("the arguments do not fit the tool's parameters: behind {} may not come {}",
                             LastBytes(arguments.substr(0, at)), FirstBytes(arguments.substr(at)));
    }
    state = *next;
  }
  return absl::OkStatus();
}

}  // namespace gyre
