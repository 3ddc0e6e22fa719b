// tokenizer.bin of llama2.c and LEAP: u32 longest piece, then f32 score, u32 length and bytes of each token.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "model/tokenizer.h"

namespace gyre {

// For a model of `vocab` tokens. Scores that fall with the token are SentencePiece's, with plain spaces; scores that
// rise are ranks of byte-level BPE, split as Llama 3 does. kDataLoss: the file is cut short, or bytes are left over.
StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromBin(std::span<const std::byte> file, int vocab);

}  // namespace gyre
