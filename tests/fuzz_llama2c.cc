// Any bytes as a llama2.c model and a tokenizer.bin: the first byte says where the one ends and the other begins.
#include <cstring>

#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/testing/llama2c_writer.h"

namespace {
const std::vector<std::byte>& Whole() {
  static const auto* model = new std::vector<std::byte>(gyre::testing::BuildTinyBin({.vocab = 16}));
  return *model;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto model = gyre::OpenModelFromBytes(bytes);
    if (model.ok()) (void)(*model)->Layer(0);
    return 0;
  }
  const auto model = gyre::OpenModelFromBytes(Whole(), {}, bytes);
  if (model.ok() && (*model)->tokenizer() != nullptr) {
    const gyre::Tokenizer& t = *(*model)->tokenizer();
    (void)t.Decode(t.Encode("a b <s>\xFF", {.add_special = true, .parse_special = true}));
  }
  return 0;
}
