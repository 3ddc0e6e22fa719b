// The first byte says where the model ends and the tokenizer begins.
#include "model/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const size_t cut = bytes.size() * data[0] / 255;
  (void)gyre::OpenModelFromBytes(bytes.first(cut), {}, bytes.subspan(cut));
  return 0;
}
