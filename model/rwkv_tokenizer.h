// RWKV's World tokenizer: from left to right the longest piece that the text begins with; pieces are bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/gguf.h"
#include "model/vocabulary.h"

namespace gyre {

// The bytes of a piece as a file has it: Python's spelling of bytes, with \t, \n, \r, \\, \' , \" and \xNN. kDataLoss:
// a backslash before something else.
StatusOr<std::string> RwkvBytes(std::string_view spelled);
// A byte that no piece begins with is left out. kDataLoss: a vocabulary that is not valid, a piece of more than 1,024
// bytes.
StatusOr<std::unique_ptr<Tokenizer>> MakeRwkvTokenizer(Vocabulary vocabulary);
// Reads tokenizer.ggml.* with model "rwkv".
StatusOr<std::unique_ptr<Tokenizer>> RwkvTokenizerFromGguf(const Gguf& gguf);

}  // namespace gyre
