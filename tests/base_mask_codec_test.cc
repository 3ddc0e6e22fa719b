// Masks as bytes: they come back as they were, in the shortest form, and no bytes from outside do harm.
#include "base/mask_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/step.h"

namespace gyre {
namespace {

std::vector<uint64_t> Words(uint32_t vocab, uint64_t share, std::mt19937_64* random) {
  std::vector<uint64_t> words((vocab + 63) / 64);
  for (uint32_t id = 0; id < vocab; ++id) {
    if ((*random)() % 1000 < share) words[id / 64] |= uint64_t{1} << id % 64;
  }
  return words;
}

std::vector<std::byte> Bytes(const std::vector<NumberedMask>& masks, uint32_t vocab) {
  Encoder out;
  EncodeMasks(masks, vocab, &out);
  return {out.bytes().begin(), out.bytes().end()};
}

TEST(MaskCodec, MasksComeBackInTheShortestForm) {
  std::mt19937_64 random(1);
  for (const uint32_t vocab : {1u, 63u, 64u, 65u, 128u, 1000u, 50257u}) {
    for (const uint64_t share : {0u, 1u, 20u, 300u, 500u, 700u, 990u, 1000u}) {
      const std::vector<NumberedMask> masks = {{.number = 0, .words = Words(vocab, share, &random)},
                                               {.number = kMaxMasks - 1, .words = Words(vocab, share, &random)}};
      const auto bytes = Bytes(masks, vocab);
      const auto back = DecodeMasks(bytes, vocab);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, masks) << vocab << " " << share;
      EXPECT_LE(bytes.size(), 8 + 2 * (9 + (vocab + 63) / 64 * 8));
    }
  }
  const uint32_t vocab = 128256;
  std::vector<uint64_t> one((vocab + 63) / 64), all_but_one(one.size(), ~uint64_t{0});
  one[1000] = 1;
  all_but_one[7] ^= 1;
  EXPECT_LE(Bytes({{.number = 3, .words = one}}, vocab).size(), 8u + 9 + 3);
  EXPECT_LE(Bytes({{.number = 3, .words = all_but_one}}, vocab).size(), 8u + 9 + 3);
}

TEST(MaskCodec, WhatIsCutOrNamesWhatIsNotThereIsRefused) {
  const uint32_t vocab = 100;
  std::mt19937_64 random(2);
  const auto bytes = Bytes(
      {{.number = 1, .words = Words(vocab, 30, &random)}, {.number = 2, .words = Words(vocab, 500, &random)}}, vocab);
  EXPECT_TRUE(DecodeMasks(bytes, vocab).ok());
  EXPECT_THAT(std::string(DecodeMasks(bytes, 101).status().message()),
              ::testing::HasSubstr("100 ids, this model has 101"));
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(DecodeMasks(std::span(bytes).first(n), vocab).ok()) << n;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodeMasks(longer, vocab).ok());
  const auto one = [&](uint32_t number, uint8_t form, const std::vector<uint8_t>& content, uint32_t length) {
    Encoder out;
    out.Put(vocab);
    out.Put(uint32_t{1});
    out.Put(number);
    out.Put(form);
    out.Put(length);
    out.PutBytes(content.data(), content.size());
    return DecodeMasks(out.bytes(), vocab).status();
  };
  const auto whole = [&](uint32_t number, uint8_t form, const std::vector<uint8_t>& content) {
    return one(number, form, content, static_cast<uint32_t>(content.size()));
  };
  EXPECT_TRUE(whole(0, 1, {99}).ok());
  EXPECT_FALSE(whole(kMaxMasks, 1, {99}).ok()) << "a number that no mask has";
  EXPECT_FALSE(whole(0, 3, {99}).ok()) << "a form that there is not";
  EXPECT_FALSE(whole(0, 1, {100}).ok()) << "an id behind the last";
  EXPECT_FALSE(whole(0, 2, {98, 1}).ok()) << "an id behind the last, by its distance";
  EXPECT_FALSE(whole(0, 1, {0x80}).ok()) << "a number that does not end";
  EXPECT_FALSE(whole(0, 1, {0xFF, 0xFF, 0xFF, 0xFF, 0x7F}).ok()) << "a number of 35 bits";
  EXPECT_FALSE(whole(0, 1, {0x80, 0x80, 0x80, 0x80, 0x80, 0}).ok()) << "a number of six bytes";
  EXPECT_FALSE(whole(0, 0, std::vector<uint8_t>(15)).ok()) << "too few words";
  EXPECT_FALSE(whole(0, 0, std::vector<uint8_t>(24)).ok()) << "too many words";
  std::vector<uint8_t> beyond(16);
  beyond[15] = 0x80;
  EXPECT_FALSE(whole(0, 0, beyond).ok()) << "a bit behind the last id";
  EXPECT_FALSE(one(0, 1, {99}, UINT32_MAX).ok()) << "a length beyond the end";
  Encoder many;
  many.Put(vocab);
  many.Put(UINT32_MAX);
  EXPECT_FALSE(DecodeMasks(many.bytes(), vocab).ok()) << "more masks than bytes";
}

// Damaged bytes are refused, or are masks of the same vocabulary that no stage minds.
TEST(MaskCodec, DamagedBytesDoNoHarm) {
  std::mt19937_64 random(3);
  const uint32_t vocab = 777;
  for (int round = 0; round < 20000; ++round) {
    auto bytes = Bytes({{.number = 5, .words = Words(vocab, random() % 1001, &random)}}, vocab);
    for (uint64_t n = 1 + random() % 4; n > 0; --n) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto masks = DecodeMasks(bytes, vocab);
    if (!masks.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(masks.status())) << masks.status();
      continue;
    }
    for (const NumberedMask& mask : *masks) {
      EXPECT_LT(mask.number, kMaxMasks);
      ASSERT_EQ(mask.words.size(), (vocab + 63) / 64);
      EXPECT_EQ(mask.words.back() >> vocab % 64, 0u);
    }
  }
}

}  // namespace
}  // namespace gyre
