// The manifest of a model's files: their tensors and header, and a hash of every piece. docs/weights.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/sha256.h"
#include "base/status.h"
#include "model/mapped_file.h"
#include "model/weights.h"

namespace gyre {

// The most bytes of a piece.
inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
// The value of Piece::tensor for pieces of no tensor: these are needed to open the model.
inline constexpr uint32_t kHeaderPiece = UINT32_MAX;
// The most bytes of an encoded manifest.
inline constexpr uint64_t kMaxManifest = uint64_t{512} << 20;

struct ManifestFile {
  std::string name;  // within the model, without a folder
  uint64_t size = 0;
};

// A run of bytes of one file.
struct Extent {
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0;
};

struct ManifestTensor {
  std::string name;            // GGUF's
  uint32_t type = 0;           // DType's number
  std::vector<uint64_t> dims;  // as TensorView
  std::vector<Extent> extents;
};

struct Piece {
  Extent at;
  uint32_t tensor = kHeaderPiece;
  Hash256 hash{};  // Sha256OfHalves
};

// Immutable once made.
struct Manifest {
  std::vector<ManifestFile> files;
  std::string open;  // the file that OpenModel is given, "." = the folder of all
  // The files of the model's adapters, which go beside it, in their order: those that OpenOptions::adapters name.
  std::vector<std::string> Adapters() const;
  std::vector<ManifestTensor> tensors;
  std::vector<Piece> pieces;  // by file and offset: they tile every file
  Hash256 root{};             // of the encoded manifest

  uint64_t HeaderBytes() const;
  // "tensor NAME" or "the header of FILE", for messages.
  std::string Describe(uint32_t piece) const;
};

// The bytes of each file of a model, in the manifest's order; they live as long as `mapped`.
struct ModelBytes {
  std::vector<ManifestFile> files;
  std::string open;
  std::vector<std::string> paths;  // of the files on this machine
  std::vector<std::span<const std::byte>> bytes;
  std::vector<std::shared_ptr<const MappedFile>> mapped;
};

// All files that are needed to open the model on another machine, without those of a separate tokenizer.
// kFailedPrecondition: a model without files.
StatusOr<ModelBytes> BytesOf(const std::shared_ptr<const Model>& model);

// The manifest without the hashes and the root.
StatusOr<Manifest> LayoutOf(const Model& model, const ModelBytes& bytes);

// Hashes all pieces, with `threads` threads. `progress` gets the bytes done and in total, on one of them; if it returns
// true, the work ends with kCancelled.
Status HashPieces(const ModelBytes& bytes, int threads, const std::function<bool(uint64_t, uint64_t)>& progress,
                  Manifest* manifest);

std::vector<std::byte> EncodeManifest(const Manifest& manifest);
// Checks all that it reads: kDataLoss says what is wrong. The root is computed.
StatusOr<Manifest> DecodeManifest(std::span<const std::byte> bytes);

// The pieces that opening the model needs, in their order.
std::vector<uint32_t> HeaderPieces(const Manifest& manifest);

// The pieces that a stage needs beside the header's, in the order of loading: its layers, then its ends.
struct NeededPieces {
  std::vector<std::vector<uint32_t>> layers;  // of range.begin, ...
  std::vector<uint32_t> ends;
};
// `per_block`: ModelSpec::layers_per_block; of such layers the first is given the pieces.
NeededPieces PiecesOf(const Manifest& manifest, LayerRange range, bool first, bool last, bool tied_head,
                      bool mtp = false, int per_block = 1);

}  // namespace gyre
