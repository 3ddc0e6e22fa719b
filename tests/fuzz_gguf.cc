// Any bytes as a GGUF file: parsed, opened as a model, its tokenizer used.
#include <cstring>

#include "model/tokenizer.h"
#include "model/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size + 4);  // aligned, and always with GGUF's magic
  std::memcpy(bytes.data(), "GGUF", 4);
  if (size > 0) std::memcpy(bytes.data() + 4, data, size);
  const auto model = gyre::OpenModelFromBytes(bytes);
  if (model.ok()) {
    for (int i = 0; i < static_cast<int>((*model)->spec().layers.size()); ++i) (void)(*model)->Layer(i);
    (void)(*model)->DescribeMetadata();
  }
  const auto tokenizer = gyre::TokenizerFromBytes(bytes);
  if (tokenizer.ok()) {
    const auto ids = (*tokenizer)->Encode("a b\xE2\x96\x81</s>\xFF", {.add_special = true, .parse_special = true});
    (void)(*tokenizer)->Decode(ids);
  }
  return 0;
}
