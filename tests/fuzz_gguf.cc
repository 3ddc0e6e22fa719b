#include "model/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)gyre::OpenModelFromBytes({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
