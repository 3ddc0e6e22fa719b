// A manifest from any bytes: it is refused, or it is whole and written back the same.
#include <cstdlib>

#include "weights/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto manifest = gyre::DecodeManifest(bytes);
  if (!manifest.ok()) return 0;
  const auto again = gyre::EncodeManifest(*manifest);
  if (again.size() != size || !std::equal(again.begin(), again.end(), bytes.begin())) std::abort();
  (void)gyre::PiecesOf(*manifest, {0, 2}, true, true, false);
  return 0;
}
