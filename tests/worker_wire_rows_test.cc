// Activations as they travel: their bytes, and how far from what was sent they arrive.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "fmt/core.h"
#include "tests/testing/tcp_pair.h"
#include "tests/testing/wire_rows.h"

namespace gyre {
namespace {

using testing::DecodeRows;
using testing::EncodeRows;

constexpr WireType kTypes[] = {WireType::kF32, WireType::kF16, WireType::kQ8};
constexpr size_t kDims[] = {1, 31, 32, 33, 40, 64, 1000, 4096};

std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) out += fmt::format("{:02x}", static_cast<int>(b));
  return out;
}

// Rows as a residual stream has them: most values near one, some rows and some values far larger or smaller.
std::vector<float> RandomRows(size_t rows, size_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(rows * dim);
  for (size_t r = 0; r < rows; ++r) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random() % 30) - 20);
    for (size_t i = 0; i < dim; ++i) x[r * dim + i] = normal(random) * scale * (random() % 50 == 0 ? 100.0f : 1.0f);
  }
  return x;
}

std::vector<std::byte> Encoded(WireType type, std::span<const float> x, size_t dim, size_t cut = 0) {
  std::vector<std::byte> out;
  EXPECT_EQ(EncodeRows(type, x, dim, &out), cut);
  EXPECT_EQ(out.size(), x.size() / dim * WireRowBytes(type, dim));
  return out;
}

std::vector<float> Decoded(WireType type, std::span<const std::byte> bytes, size_t dim) {
  std::vector<float> x(bytes.size() / WireRowBytes(type, dim) * dim);
  DecodeRows(type, bytes, dim, x.data());
  return x;
}

TEST(WireRowsTest, TheBytesArePinned) {
  const float x[] = {1, -2, 0.333251953125f, 65504, 0x1p-24f, -0.0f};
  EXPECT_EQ(Hex(Encoded(WireType::kF16, x, 6)), "003c00c05535ff7b01000080");
  EXPECT_EQ(Hex(Encoded(WireType::kF32, std::span(x).first(2), 2)), "0000803f000000c0");
  // Scale 254 / 127 = 2: half a step rounds to even, and the second block is filled up with zeros.
  std::vector<float> row(34);
  row[0] = 254, row[1] = -254, row[2] = 2, row[3] = -7.5f, row[4] = 1, row[5] = 3, row[33] = -127;
  const std::string zeros52(52, '0'), zeros60(60, '0');
  EXPECT_EQ(Hex(Encoded(WireType::kQ8, row, 34)),
            "0040"
            "7f8101fc0002" +
                zeros52 +
                "003c"
                "0081" +
                zeros60);
  EXPECT_EQ(WireRowBytes(WireType::kF32, 34), 136u);
  EXPECT_EQ(WireRowBytes(WireType::kF16, 34), 68u);
  EXPECT_EQ(WireRowBytes(WireType::kQ8, 34), 68u);
  EXPECT_EQ(WireRowBytes(WireType::kQ8, 32), 34u);
}

// The scale of the block of 32 that value i of a row is in, as it travels.
float ScaleOf(std::span<const std::byte> row, size_t i) {
  uint16_t half = 0;
  std::memcpy(&half, row.data() + i / 32 * 34, sizeof half);
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                       : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

TEST(WireRowsTest, RowsArriveOverALinkWithinTheirBounds) {
  auto [here, there] = testing::TcpPair();
  constexpr size_t kRows = 5;
  for (WireType type : kTypes) {
    double worst = 0;  // error by bound
    for (size_t dim : kDims) {
      const std::vector<float> x = RandomRows(kRows, dim, static_cast<uint32_t>(dim));
      const std::vector<std::byte> bytes = Encoded(type, x, dim);
      const ByteSpan parts[] = {bytes};
      ASSERT_TRUE(
          here->Send({.kind = FrameKind::kHidden, .dtype = type, .rows = kRows}, parts, After(std::chrono::seconds(5)))
              .ok());
      const auto frame = there->Recv(After(std::chrono::seconds(5)));
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(frame->header.dtype, type);
      ASSERT_EQ(frame->payload.size(), kRows * WireRowBytes(type, dim));
      const std::vector<float> y = Decoded(type, frame->payload, dim);
      for (size_t i = 0; i < x.size(); ++i) {
        const ByteSpan row = ByteSpan(bytes).subspan(i / dim * WireRowBytes(type, dim));
        double bound = 0;
        if (type == WireType::kF16) bound = std::max(0x1p-11 * std::fabs(static_cast<double>(x[i])), 0x1p-25);
        // The inverse of the scale is rounded as well, by 2^-24 of 127 steps.
        if (type == WireType::kQ8) bound = std::max(0.50001 * static_cast<double>(ScaleOf(row, i % dim)), 0x1p-18);
        const double error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(x[i]));
        ASSERT_LE(error, bound) << WireTypeName(type) << " dim " << dim << " value " << i << ": " << x[i] << " came as "
                                << y[i];
        if (bound > 0) worst = std::max(worst, error / bound);
      }
      if (type == WireType::kF32) EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0);
    }
    if (type != WireType::kF32) EXPECT_GT(worst, 0.95) << "the bounds could be tighter";
  }
}

TEST(WireRowsTest, ARowIsEncodedFromThatRowAlone) {
  for (WireType type : kTypes) {
    for (size_t dim : kDims) {
      const std::vector<float> x = RandomRows(9, dim, 3);
      const std::vector<std::byte> together = Encoded(type, x, dim);
      const size_t width = WireRowBytes(type, dim);
      for (size_t r = 0; r < 9; ++r) {
        const std::vector<std::byte> alone = Encoded(type, std::span(x).subspan(r * dim, dim), dim);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>(r * width)))
            << WireTypeName(type) << " dim " << dim << " row " << r;
        EXPECT_EQ(std::memcmp(Decoded(type, alone, dim).data(), Decoded(type, together, dim).data() + r * dim,
                              dim * sizeof(float)),
                  0);
      }
    }
  }
}

TEST(WireRowsTest, WhatIsOutOfRangeIsCutAndCounted) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(64, 1.0f);
  x[0] = 65504, x[1] = 65520, x[2] = -1e30f, x[40] = 3;
  std::vector<float> y = Decoded(WireType::kF16, Encoded(WireType::kF16, x, 64, 2), 64);
  EXPECT_EQ(y[0], 65504);
  EXPECT_EQ(y[1], 65504);
  EXPECT_EQ(y[2], -65504);
  EXPECT_EQ(y[40], 3);
  y = Decoded(WireType::kQ8, Encoded(WireType::kQ8, x, 64, 1), 64);
  EXPECT_EQ(y[2], -127.0f * 65504);
  EXPECT_NEAR(y[40], 3, 0.02) << "the other block keeps its own scale";
  // A value that is no number stays none, in its block, and is not counted as cut.
  x[2] = 5;
  x[1] = std::nanf("");
  y = Decoded(WireType::kF16, Encoded(WireType::kF16, x, 64), 64);
  EXPECT_TRUE(std::isnan(y[1]) && y[2] == 5);
  y = Decoded(WireType::kQ8, Encoded(WireType::kQ8, x, 64), 64);
  EXPECT_TRUE(std::all_of(y.begin(), y.begin() + 32, [](float v) { return std::isnan(v); }));
  EXPECT_NEAR(y[40], 3, 0.02);
  x[1] = -inf;
  y = Decoded(WireType::kF16, Encoded(WireType::kF16, x, 64), 64);
  EXPECT_EQ(y[1], -inf);
  y = Decoded(WireType::kQ8, Encoded(WireType::kQ8, x, 64), 64);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[31]) && !std::isnan(y[32]));
}

TEST(WireRowsTest, AnyBytesGiveValues) {
  std::mt19937 random(5);
  for (WireType type : kTypes) {
    for (size_t dim : kDims) {
      std::vector<std::byte> bytes(3 * WireRowBytes(type, dim));
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      EXPECT_EQ(Decoded(type, bytes, dim).size(), 3 * dim);
    }
    EXPECT_TRUE(Decoded(type, {}, 32).empty());
    EXPECT_TRUE(Encoded(type, {}, 32).empty());
  }
}

}  // namespace
}  // namespace gyre
