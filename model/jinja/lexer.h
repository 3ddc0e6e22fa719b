// Splits a template's text into tokens: the data between tags, and the tokens within them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/value.h"

namespace gyre::jinja {

struct Token {
  enum class Kind {
    kData,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of a string: its value
  int line = 0;
};

// White space is handled as in Hugging Face's chat templates: trim_blocks, lstrip_blocks, the template's last newline
// dropped. Throws Error.
std::vector<Token> Lex(std::string_view source);

}  // namespace gyre::jinja
