// The matrix instructions. Fragments: PTX ISA, "Matrix fragments for mma.m16n8k16" and "mma.m16n8k32". A register has
// two elements of 2 bytes or four of one byte, the first one lowest. With p elements of a register, g = lane / 4 and
// t = p (lane % 4), a lane has
//   of A [16][8 p]: rows g, g + 8, g, g + 8 at columns t .. t + p - 1, in the last two registers + 4 p
//   of B [8 p][8]:  column g, rows t .. t + p - 1, in the second register + 4 p
//   of C [16][8]:   rows g, g, g + 8, g + 8 at columns 2 (lane % 4), + 1, and these again.
// A GPU adds the products of a sum in an order that nobody has written down; here k rises.
#include <cstring>

#include "kernels/quant.h"
#include "tests/testing/simt/block.h"
#include "tests/testing/simt/source_line.h"
#include "tests/testing/simt/vocabulary.h"

#define GYRE_HERE simt::CodeAt(__builtin_return_address(0))

namespace gyre::gpu {
namespace {

template <typename Sum>
struct Fragments {
  uint32_t a[4], b[2];
  Sum c[4];
};

struct Bf16 {
  using Sum = float;
  static constexpr int kBits = 16;
  static float Of(uint32_t bits) { return Bf16ToFloat(static_cast<uint16_t>(bits)); }
};
struct F16 {
  using Sum = float;
  static constexpr int kBits = 16;
  static float Of(uint32_t bits) { return HalfToFloat(static_cast<uint16_t>(bits)); }
};
struct Int8 {
  using Sum = int;
  static constexpr int kBits = 8;
  static int Of(uint32_t bits) { return static_cast<int8_t>(bits); }
};
struct Fp8 {
  using Sum = float;
  static constexpr int kBits = 8;
  static float Of(uint32_t bits) { return Fp8ToFloat(static_cast<uint8_t>(bits)); }
};

template <typename Element>
void Multiply(const void* const* ins, void* const* outs) {
  using Sum = typename Element::Sum;
  constexpr int kPacked = 32 / Element::kBits, kDepth = 8 * kPacked;
  Sum a[16][kDepth], b[kDepth][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& in = *static_cast<const Fragments<Sum>*>(ins[lane]);
    const int g = lane / 4, t = kPacked * (lane % 4);
    for (int e = 0; e < kPacked; ++e) {
      const int shift = e * Element::kBits;
      for (int r = 0; r < 4; ++r) a[g + r % 2 * 8][t + e + r / 2 * 4 * kPacked] = Element::Of(in.a[r] >> shift);
      for (int r = 0; r < 2; ++r) b[t + e + r * 4 * kPacked][g] = Element::Of(in.b[r] >> shift);
    }
    for (int i = 0; i < 4; ++i) c[g + i / 2 * 8][2 * (lane % 4) + i % 2] = in.c[i];
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) static_cast<Sum*>(outs[lane])[i] = c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  }
}

template <typename Element>
void MeetToMultiply(typename Element::Sum (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t code) {
  const Fragments<typename Element::Sum> in{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
  simt::Block::Running()->Meet(simt::Meeting::kMultiply, &in, c, Multiply<Element>, code);
}

template <bool kTransposed>
void LoadRows(const void* const* ins, void* const* outs) {
  uint16_t rows[32][8];
  for (int i = 0; i < 32; ++i) std::memcpy(rows[i], ins[i], 16);
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int j = 0; j < 4; ++j) {
      const uint16_t(*matrix)[8] = rows + 8 * j;
      const uint32_t low = kTransposed ? matrix[t][g] : matrix[g][t],
                     high = kTransposed ? matrix[t + 1][g] : matrix[g][t + 1];
      static_cast<uint32_t*>(outs[lane])[j] = low | high << 16;
    }
  }
}
template <bool kTransposed>
void MeetToLoad(uint32_t (&r)[4], const void* row, uint32_t code) {
  simt::Block& block = *simt::Block::Running();
  if (simt::kChecked) block.Touch(row, 16, simt::Access::kRead, true, code);
  block.Meet(simt::Meeting::kLoadMatrix, row, r, LoadRows<kTransposed>, code);
}

}  // namespace

void LoadMatrix4(uint32_t (&r)[4], const void* row) { MeetToLoad<false>(r, row, GYRE_HERE); }
void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) { MeetToLoad<true>(r, row, GYRE_HERE); }
void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MeetToMultiply<Bf16>(c, a, b, GYRE_HERE);
}
void MmaF16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { MeetToMultiply<F16>(c, a, b, GYRE_HERE); }
void MmaInt8(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { MeetToMultiply<Int8>(c, a, b, GYRE_HERE); }
void MmaFp8(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { MeetToMultiply<Fp8>(c, a, b, GYRE_HERE); }

}  // namespace gyre::gpu
