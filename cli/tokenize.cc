// gyre tokenize: text in, token ids out.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include <boost/json.hpp>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "fmt/core.h"
#include "model/tokenizer.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace json = boost::json;

std::string Join(const std::vector<TokenId>& ids, const char* separator) {
  std::string out;
  for (TokenId id : ids) out += fmt::format("{}{}", out.empty() ? "" : separator, id);
  return out;
}

// {"text": ..., "add_special"?: bool, "parse_special"?: bool} -> its ids; the flags are the defaults.
StatusOr<std::vector<TokenId>> EncodeLine(const Tokenizer& tokenizer, const std::string& line, EncodeOptions options) {
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  if (error) return InvalidArgument("not JSON: {}", error.message());
  const json::object* object = value.if_object();
  const json::value* text = object != nullptr ? object->if_contains("text") : nullptr;
  if (text == nullptr || !text->is_string()) return InvalidArgument("expected an object with a string \"text\"");
  auto flag = [object](const char* name, bool fallback) {
    const json::value* v = object->if_contains(name);
    return v != nullptr && v->is_bool() ? v->get_bool() : fallback;
  };
  options.add_special = flag("add_special", options.add_special);
  options.parse_special = flag("parse_special", options.parse_special);
  return tokenizer.Encode(std::string_view(text->get_string().data(), text->get_string().size()), options);
}

}  // namespace

Status TokenizeCommand(const TokenizeOptions& o) {
  GYRE_ASSIGN_OR_RETURN(auto tokenizer, OpenTokenizer(o.model, o.open));
  const EncodeOptions options{.add_special = o.add_special, .parse_special = o.parse_special};
  if (!o.jsonl) {
    const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
    fmt::print("{}\n", Join(tokenizer->Encode(text, options), " "));
    return absl::OkStatus();
  }
  return EachInputLine([&](const std::string& line) -> Status {
    GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, EncodeLine(*tokenizer, line, options));
    fmt::print("{{\"ids\": [{}]}}\n", Join(ids, ", "));
    return absl::OkStatus();
  });
}

}  // namespace gyre
