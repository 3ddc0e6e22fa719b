// Any grammar in llama.cpp's form: an error, or a grammar whose masks never lead into a dead end.
#include "coordinator/grammar/gbnf.h"

#include <cstddef>
#include <cstdint>

#include "tests/testing/grammar_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const gyre::grammar::Bounds bounds = gyre::testing::FuzzBounds();
  gyre::testing::WalkByMasks(gyre::grammar::GbnfGrammar(text, bounds), size);
  return 0;
}
