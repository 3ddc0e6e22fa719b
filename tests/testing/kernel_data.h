// Made-up inputs for kernels, and what every comparison of them needs: data that is not constant, outputs that are
// poisoned before a call and guarded behind it.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"

namespace gyre::testing {

inline std::vector<float> RandomFloats(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  if (n > 1) {
    EXPECT_NE(v.front(), v.back()) << "constant data proves nothing";
  }
  return v;
}

// Bytes of a weight matrix of any type that dequantizes, at an address that is a multiple of 2 but not of 64.
class WeightData {
 public:
  WeightData(DType type, size_t n, size_t k, uint32_t seed) : type_(type), n_(n), k_(k) {
    const DTypeInfo& info = Info(type);
    const size_t blocks = n * k / info.block_elems, bytes = blocks * info.block_bytes;
    offset_ = type == DType::kF32 ? 4 : 2;
    bytes_.resize(bytes + offset_);
    const std::vector<float> values = RandomFloats(n * k, seed, 0.5f);
    if (Quantize(type, values.data(), data(), n * k)) return;
    // The others from random bytes, with scales that are sensible numbers.
    std::mt19937 random(seed);
    for (size_t i = 0; i < bytes; ++i) data()[i] = static_cast<std::byte>(random() & 255);
    for (size_t b = 0; b < blocks; ++b) {
      std::byte* block = data() + b * info.block_bytes;
      const uint16_t d = FloatToHalf(0.001f + 0.00001f * static_cast<float>(random() % 100));
      if (type == DType::kQ6_K) {
        std::memcpy(block + 208, &d, 2);
      } else {
        const uint16_t min = FloatToHalf(0.002f + 0.00001f * static_cast<float>(random() % 100));
        std::memcpy(block, &d, 2);
        std::memcpy(block + 2, &min, 2);
      }
    }
  }

  std::byte* data() { return bytes_.data() + offset_; }
  WeightView view() { return {type_, n_, k_, data()}; }
  size_t row_bytes() const { return k_ / Info(type_).block_elems * Info(type_).block_bytes; }
  // Row-major floats.
  std::vector<float> Floats() {
    std::vector<float> f(n_ * k_);
    Dequantize(type_, data(), f.data(), f.size());
    return f;
  }

 private:
  DType type_;
  size_t n_, k_, offset_ = 0;
  std::vector<std::byte> bytes_;
};

// n floats that start as NaN, with 64 marked ones behind them; off the alignment that vectors like.
class Output {
 public:
  explicit Output(size_t n) : n_(n), v_(n + 1 + kGuard, kMark) {
    std::fill_n(data(), n, std::numeric_limits<float>::quiet_NaN());
  }
  float* data() { return v_.data() + 1; }
  size_t size() const { return n_; }
  float operator[](size_t i) const { return v_[i + 1]; }
  bool GuardIntact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (v_[n_ + 1 + i] != kMark) return false;
    }
    return v_[0] == kMark;
  }
  bool SameBits(const float* other, size_t from, size_t n) const {
    return std::memcmp(v_.data() + 1 + from, other, n * sizeof(float)) == 0;
  }

 private:
  static constexpr float kMark = 12345.5f;
  static constexpr size_t kGuard = 64;
  size_t n_;
  std::vector<float> v_;
};

// x as the int8 kernels see it: scale * q, one scale per 32 elements.
inline std::vector<float> AsInt8(const std::vector<float>& x, std::vector<float>* scales = nullptr) {
  std::vector<float> y(x.size());
  for (size_t b = 0; b < x.size(); b += 32) {
    float amax = 0;
    for (size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(x[i]));
    const float scale = amax / 127, inverse = amax > 0 ? 127 / amax : 0;
    for (size_t i = b; i < b + 32; ++i) y[i] = scale * std::nearbyint(x[i] * inverse);
    if (scales != nullptr) scales->push_back(scale);
  }
  return y;
}

inline constexpr DType kMatMulTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                                         DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A test of one instruction set; skipped with the reason where the CPU lacks it.
class IsaTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const std::string missing = IsaMissing(GetParam());
    if (!missing.empty()) GTEST_SKIP() << IsaName(GetParam()) << ": " << missing;
  }
  std::unique_ptr<Backend> Make(int threads = 1) const { return MakeBackend(GetParam(), threads); }
};

inline auto EveryIsa() {
  return ::testing::Values(Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni);
}
inline std::string NameOfIsa(const ::testing::TestParamInfo<Isa>& info) {
  return IsaName(info.param);
}

}  // namespace gyre::testing
