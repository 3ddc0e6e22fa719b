// A weight matrix in the memory of the emulated GPU.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "kernels/codebooks.h"
#include "kernels/cuda/products/matrix.h"
#include "kernels/cuda/weights/pack.h"
#include "tests/testing/gpu_memory.h"

namespace gyre::testing {

class GpuCodebooks {
 public:
  cuda::Codebooks books() const {
    return {iq2_xxs_.data(), iq2_xs_.data(), iq2_s_.data(), iq3_xxs_.data(), iq3_s_.data(), iq1_.data()};
  }

 private:
  using Table = GpuVector<uint16_t>;
  Table iq2_xxs_{std::span<const uint16_t>(codebooks::kIq2Xxs)}, iq2_xs_{std::span<const uint16_t>(codebooks::kIq2Xs)},
      iq2_s_{std::span<const uint16_t>(codebooks::kIq2S)}, iq3_xxs_{std::span<const uint16_t>(codebooks::kIq3Xxs)},
      iq3_s_{std::span<const uint16_t>(codebooks::kIq3S)}, iq1_{std::span<const uint16_t>(codebooks::kIq1S)};
};

// Packed in tiles if its type can be, or as it lies in the file.
class GpuMatrix {
 public:
  GpuMatrix(const WeightView& w, const GpuCodebooks& books, bool packed = true)
      : bytes_(std::span(reinterpret_cast<const uint8_t*>(w.data), w.bytes())),
        scales_(Scales(w)),
        sizes_(packed ? cuda::SizesOfTiles(w.type, w.n, w.k, w.group) : cuda::TileSizes{}),
        tiles_(sizes_.bytes()) {
    matrix_ = {.type = w.type,
               .n = w.n,
               .k = w.k,
               .row_bytes = w.row_bytes(),
               .data = bytes_.data(),
               .scales = scales_.data(),
               .group = w.group,
               .first_row = w.first_row,
               .books = books.books(),
               .tiles = {}};
    if (sizes_.bytes() == 0) return;
    matrix_.data = nullptr;
    cuda::DescribeTiles(w.type, w.k, sizes_, tiles_.data(), &matrix_.tiles);
    matrix_.tiles.by *= WholeScale(w);
    // In two parts, as a large matrix comes.
    const size_t first = w.n > 16 ? 16 : w.n;
    cuda::PackRows(nullptr, matrix_, 0, first, bytes_.data());
    if (first < w.n) cuda::PackRows(nullptr, matrix_, first, w.n - first, bytes_.data() + first * w.row_bytes());
  }
  const cuda::Matrix& matrix() const { return matrix_; }

 private:
  static std::vector<float> Scales(const WeightView& w) {
    if (w.scales == nullptr) return {};
    const size_t across = (w.k + w.group - 1) / w.group, down = (w.first_row + w.n + w.group - 1) / w.group;
    std::vector<float> scales(w.type == DType::kF8E4M3 ? across * down : w.n * w.k / w.group);
    std::memcpy(scales.data(), w.scales, scales.size() * sizeof(float));
    return scales;
  }

  GpuVector<uint8_t> bytes_;
  GpuVector<float> scales_;
  cuda::TileSizes sizes_;
  GpuVector<uint8_t> tiles_;
  cuda::Matrix matrix_;
};

}  // namespace gyre::testing
