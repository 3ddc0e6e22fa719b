// Source: FIPS 180-4; Intel's intrinsics guide, for what the SHA extensions compute.
#include "base/sha256_pair.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace gyre {
namespace {

constexpr size_t kBlock = 64;  // bytes

#if defined(__x86_64__)

#define GYRE_SHA __attribute__((target("sha,sse4.1,ssse3,avx")))

alignas(64) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The hash of a message as far as it was read: its words A to H.
using State = std::array<uint32_t, 8>;
constexpr State kFirst = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

bool HasInstructions() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & (1u << 29)) == 0) return false;
    return __builtin_cpu_supports("avx") != 0;  // and the system saves its registers
  }();
  return has;
}

GYRE_SHA inline __m128i Load(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
GYRE_SHA inline void Store(void* at, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(at), value); }

// Reads the next `blocks` blocks of each of N messages.
template <size_t N>
GYRE_SHA void Read(const std::array<State*, N>& states, const std::array<const std::byte*, N>& messages,
                   size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[N], cdgh[N];
  for (size_t n = 0; n < N; ++n) {
    const __m128i badc = _mm_shuffle_epi32(Load(states[n]->data()), 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(Load(states[n]->data() + 4), 0x1B);
    abef[n] = _mm_alignr_epi8(badc, efgh, 8);
    cdgh[n] = _mm_blend_epi16(efgh, badc, 0xF0);
  }
  for (size_t block = 0; block < blocks; ++block) {
    __m128i words[N][4], abef_before[N], cdgh_before[N];  // words: the last 16 of the message's schedule
    for (size_t n = 0; n < N; ++n) {
      abef_before[n] = abef[n];
      cdgh_before[n] = cdgh[n];
      for (size_t i = 0; i < 4; ++i)
        words[n][i] = _mm_shuffle_epi8(Load(messages[n] + kBlock * block + 16 * i), big_endian);
    }
#pragma GCC unroll 16
    for (size_t four = 0; four < 16; ++four) {  // rounds
      const __m128i constants = Load(&kRounds[4 * four]);
#pragma GCC unroll 2
      for (size_t n = 0; n < N; ++n) {
        const __m128i now = words[n][four % 4], before = words[n][(four + 3) % 4];
        const __m128i sum = _mm_add_epi32(now, constants);
        cdgh[n] = _mm_sha256rnds2_epu32(cdgh[n], abef[n], sum);
        abef[n] = _mm_sha256rnds2_epu32(abef[n], cdgh[n], _mm_shuffle_epi32(sum, 0x0E));
        __m128i& next = words[n][(four + 1) % 4];
        if (four >= 3 && four < 15)
          next = _mm_sha256msg2_epu32(_mm_add_epi32(next, _mm_alignr_epi8(now, before, 4)), now);
        if (four >= 1 && four < 13) words[n][(four + 3) % 4] = _mm_sha256msg1_epu32(before, now);
      }
    }
    for (size_t n = 0; n < N; ++n) {
      abef[n] = _mm_add_epi32(abef[n], abef_before[n]);
      cdgh[n] = _mm_add_epi32(cdgh[n], cdgh_before[n]);
    }
  }
  for (size_t n = 0; n < N; ++n) {
    const __m128i feba = _mm_shuffle_epi32(abef[n], 0x1B), dchg = _mm_shuffle_epi32(cdgh[n], 0xB1);
    Store(states[n]->data(), _mm_blend_epi16(feba, dchg, 0xF0));
    Store(states[n]->data() + 4, _mm_alignr_epi8(dchg, feba, 8));
  }
}

// Reads what is left of a message of `total` bytes, and its end.
Hash256 Finish(State state, std::span<const std::byte> rest, uint64_t total) {
  const size_t whole = rest.size() / kBlock;
  Read<1>({&state}, {rest.data()}, whole);
  std::array<std::byte, 2 * kBlock> end{};
  const std::span<const std::byte> tail = rest.subspan(whole * kBlock);
  std::copy(tail.begin(), tail.end(), end.begin());
  end[tail.size()] = std::byte{0x80};
  const size_t blocks = tail.size() + 1 + sizeof(uint64_t) <= kBlock ? 1 : 2;
  const uint64_t bits = __builtin_bswap64(8 * total);
  std::memcpy(&end[blocks * kBlock - sizeof bits], &bits, sizeof bits);
  Read<1>({&state}, {end.data()}, blocks);
  Hash256 hash;
  for (uint32_t& word : state) word = __builtin_bswap32(word);
  std::memcpy(hash.data(), state.data(), hash.size());
  return hash;
}

std::array<Hash256, 2> BothAtOnce(std::span<const std::byte> a, std::span<const std::byte> b) {
  State first = kFirst, second = kFirst;
  const size_t blocks = std::min(a.size(), b.size()) / kBlock, bytes = blocks * kBlock;
  Read<2>({&first, &second}, {a.data(), b.data()}, blocks);
  return {Finish(first, a.subspan(bytes), a.size()), Finish(second, b.subspan(bytes), b.size())};
}

#undef GYRE_SHA

#else

bool HasInstructions() { return false; }
std::array<Hash256, 2> BothAtOnce(std::span<const std::byte>, std::span<const std::byte>) { return {}; }

#endif

}  // namespace

std::array<Hash256, 2> Sha256Pair(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (HasInstructions()) return BothAtOnce(a, b);
  return {Sha256(a), Sha256(b)};
}

Hash256 Sha256OfHalves(std::span<const std::byte> bytes) {
  const size_t half = bytes.size() / kBlock / 2 * kBlock;
  const std::array<Hash256, 2> both = Sha256Pair(bytes.first(half), bytes.subspan(half));
  return Sha256(std::as_bytes(std::span(both)));
}

}  // namespace gyre
