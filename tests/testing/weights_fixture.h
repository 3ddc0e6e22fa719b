// Models in files, their manifests, and caches in temporary folders.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "model/weights.h"
#include "tests/testing/temp_folder.h"
#include "weights/manifest.h"
#include "weights/weight_cache.h"

namespace gyre::testing {

inline std::shared_ptr<const Model> Opened(const std::string& path, const OpenOptions& options = {}) {
  auto model = OpenModel(path, options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : nullptr;
}

inline std::shared_ptr<const Manifest> ManifestOf(const std::shared_ptr<const Model>& model) {
  auto bytes = BytesOf(model);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  auto manifest = LayoutOf(*model, *bytes);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_TRUE(HashPieces(*bytes, 2, {}, &*manifest).ok());
  return std::make_shared<const Manifest>(*std::move(manifest));
}

// The bytes that a coordinator sends so that the model can be opened elsewhere.
inline std::vector<std::byte> HeaderOf(const Manifest& manifest, const ModelBytes& bytes) {
  std::vector<std::byte> header;
  for (const Piece& p : manifest.pieces) {
    if (p.tensor != kHeaderPiece) continue;
    const auto part = bytes.bytes[p.at.file].subspan(p.at.offset, p.at.bytes);
    header.insert(header.end(), part.begin(), part.end());
  }
  return header;
}

inline std::vector<uint32_t> TensorPieces(const Manifest& manifest) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < manifest.pieces.size(); ++i) {
    if (manifest.pieces[i].tensor != kHeaderPiece) out.push_back(i);
  }
  return out;
}

// A value for waits that nobody cancels.
inline bool Never() { return false; }

// Flips a bit of the file.
inline void FlipBit(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

}  // namespace gyre::testing
