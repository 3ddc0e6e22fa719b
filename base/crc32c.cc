#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gyre {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? (c >> 1) ^ kPolynomial : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cHardware(std::span<const std::byte> bytes, uint32_t crc) {
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  uint64_t c = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    c = _mm_crc32_u64(c, word);
  }
  auto c32 = static_cast<uint32_t>(c);
  for (; n > 0; --n, ++p) c32 = _mm_crc32_u8(c32, static_cast<uint8_t>(*p));
  return ~c32;
}

__attribute__((target("sse4.2"))) std::array<uint32_t, 4> QuartersHardware(std::span<const std::byte> bytes,
                                                                           size_t quarter) {
  const std::byte* p = bytes.data();
  uint64_t a = ~uint32_t{0}, b = a, c = a, d = a;
  for (size_t at = 0; at < quarter; at += 8) {
    uint64_t words[4];
    for (size_t i = 0; i < 4; ++i) std::memcpy(&words[i], p + i * quarter + at, 8);
    a = _mm_crc32_u64(a, words[0]);
    b = _mm_crc32_u64(b, words[1]);
    c = _mm_crc32_u64(c, words[2]);
    d = _mm_crc32_u64(d, words[3]);
  }
  return {~static_cast<uint32_t>(a), ~static_cast<uint32_t>(b), ~static_cast<uint32_t>(c),
          Crc32cHardware(bytes.subspan(4 * quarter), ~static_cast<uint32_t>(d))};
}
#endif

bool HasInstruction() {
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2") != 0;
  return hardware;
#else
  return false;
#endif
}

}  // namespace

std::array<uint32_t, 4> Crc32cOfQuarters(std::span<const std::byte> bytes) {
  const size_t quarter = bytes.size() / 4 / 8 * 8;
#if defined(__x86_64__)
  if (HasInstruction()) return QuartersHardware(bytes, quarter);
#endif
  return {Crc32cPortable(bytes.first(quarter)), Crc32cPortable(bytes.subspan(quarter, quarter)),
          Crc32cPortable(bytes.subspan(2 * quarter, quarter)), Crc32cPortable(bytes.subspan(3 * quarter))};
}

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc) {
  uint32_t c = ~crc;
  for (std::byte b : bytes) c = kTable[(c ^ static_cast<uint8_t>(b)) & 0xFF] ^ (c >> 8);
  return ~c;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  if (HasInstruction()) return Crc32cHardware(bytes, crc);
#endif
  return Crc32cPortable(bytes, crc);
}

}  // namespace gyre
