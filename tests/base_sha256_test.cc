// SHA-256, of one message and of two at once.
#include "base/sha256_pair.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace gyre {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Sha256Test, IsTheStandards) {
  const std::string abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  const std::string empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  EXPECT_EQ(Hex(Sha256("abc")), abc);
  const auto both = Sha256Pair(BytesOf("abc"), {});
  EXPECT_EQ(Hex(both[0]), abc);
  EXPECT_EQ(Hex(both[1]), empty);
}

// Every length around the blocks' ends, and messages of very different lengths.
TEST(Sha256Test, TwoMessagesHaveTheHashesOfEach) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(70'000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  const std::span<const std::byte> all(bytes);
  const auto check = [&](size_t a_at, size_t a, size_t b) {
    const auto first = all.subspan(a_at, a), second = all.last(b);
    const auto both = Sha256Pair(first, second);
    EXPECT_EQ(Hex(both[0]), Hex(Sha256(first))) << a << " and " << b;
    EXPECT_EQ(Hex(both[1]), Hex(Sha256(second))) << a << " and " << b;
  };
  for (size_t a = 0; a < 200; ++a) {
    for (const size_t b : {size_t{0}, a, size_t{55}, size_t{56}, size_t{64}, size_t{119}, size_t{128}}) check(1, a, b);
  }
  for (int i = 0; i < 200; ++i) check(random() % 64, random() % 35'000, random() % 35'000);
  check(0, 70'000, 3);
}

TEST(Sha256Test, HalvesAreCutBetweenBlocks) {
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  for (const size_t size : {0, 1, 63, 64, 127, 128, 191, 192, 1000}) {
    const auto all = std::span<const std::byte>(bytes).first(size);
    const size_t half = size / 128 * 64;
    const Hash256 first = Sha256(all.first(half)), second = Sha256(all.subspan(half));
    std::vector<std::byte> text(first.begin(), first.end());
    text.insert(text.end(), second.begin(), second.end());
    EXPECT_EQ(Hex(Sha256OfHalves(all)), Hex(Sha256(text))) << size;
  }
}

}  // namespace
}  // namespace gyre
