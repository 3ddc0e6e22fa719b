// Files from strangers: whatever is wrong with them, one clear error, no crash, no memory beyond the file's size.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "base/coding.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/shared_data.h"

namespace {
std::atomic<size_t> largest{0};
}
// Records the largest single request.
__attribute__((noinline)) void* operator new(size_t n) {
  for (size_t seen = largest; n > seen && !largest.compare_exchange_weak(seen, n);) {
  }
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace gyre {
namespace {

using testing::BuildTinyModel;
using testing::GgufWriter;
using testing::TinyOptions;

Status Open(std::span<const std::byte> bytes, std::span<const std::byte> tokenizer = {}) {
  // A copy of its own size, so that AddressSanitizer sees a read past the end.
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  largest = 0;
  const Status status = OpenModelFromBytes(copy, {}, tokenizer).status();
  EXPECT_LE(largest, bytes.size() + (size_t{1} << 20)) << status;
  if (!status.ok()) EXPECT_GT(status.message().size(), 10u);
  return status;
}

TEST(GgufFileTest, EveryCutOfTheHeaderIsAnError) {
  size_t header = 0;
  const auto bytes = BuildTinyModel({.layers = 1, .vocab = 32}, &header);
  ASSERT_TRUE(Open(bytes).ok()) << Open(bytes);
  for (size_t n = 0; n < header; ++n) EXPECT_FALSE(Open(std::span(bytes).first(n)).ok()) << n;
  EXPECT_FALSE(Open(std::span(bytes).first(bytes.size() - 40)).ok());
}

TEST(GgufFileTest, NoFlippedBitOfTheHeaderCrashes) {
  size_t header = 0;
  const auto good = BuildTinyModel({.layers = 1, .vocab = 32}, &header);
  int errors = 0;
  for (size_t bit = 0; bit < header * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    errors += !Open(bad).ok();
  }
  EXPECT_GT(errors, static_cast<int>(header * 8 / 2));  // some bits are values that may be other values
}

TEST(GgufFileTest, AbsurdCountsAndProductsAreRefused) {
  auto patched = [](size_t at, uint64_t v) {
    auto bytes = BuildTinyModel({.layers = 1});
    std::memcpy(&bytes[at], &v, 8);
    return Open(bytes);
  };
  for (uint64_t v : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32}) {
    EXPECT_TRUE(absl::IsDataLoss(patched(8, v)));
    EXPECT_TRUE(absl::IsDataLoss(patched(16, v)));
    EXPECT_TRUE(absl::IsDataLoss(patched(24, v)));  // the first key's length
  }
  GgufWriter w;
  w.String("general.architecture", "llama");
  w.Tensor("t", DType::kF32, {uint64_t{1} << 33, uint64_t{1} << 33}, {});
  EXPECT_TRUE(absl::IsDataLoss(Open(w.Finish())));
}

TEST(GgufFileTest, EachArchitectureOpensAndMissesEachOfItsTensors) {
  for (const char* arch : {"llama", "qwen2", "qwen3", "gemma3"}) {
    TinyOptions o{.arch = arch, .layers = 1, .vocab = 32};
    EXPECT_TRUE(Open(BuildTinyModel(o)).ok()) << arch << Open(BuildTinyModel(o));
    for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight",
                             "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                             "blk.0.attn_output.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
                             "blk.0.ffn_down.weight"}) {
      o.without = name;
      const Status status = Open(BuildTinyModel(o));
      EXPECT_FALSE(status.ok());
      EXPECT_NE(Message(status).find(name), std::string::npos) << status;
    }
  }
  for (const auto& [arch, name] : {std::pair("qwen2", "blk.0.attn_k.bias"), std::pair("qwen3", "blk.0.attn_q_norm.weight"),
                                   std::pair("gemma3", "blk.0.post_ffw_norm.weight")}) {
    const Status status = Open(BuildTinyModel({.arch = arch, .layers = 1, .without = name}));
    EXPECT_NE(Message(status).find(name), std::string::npos) << status;
  }
}

TEST(GgufFileTest, WhatIsUnknownIsSaidNotGuessed) {
  auto said = [](TinyOptions o, const char* word) {
    const Status status = Open(BuildTinyModel(o));
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_NE(Message(status).find(word), std::string::npos) << status;
  };
  said({.arch = "mamba", .layers = 1}, "known are llama qwen2 qwen3 gemma3");
  said({.layers = 1, .more = [](GgufWriter& w) { w.Uint("llama.expert_count", 4); }}, "expert_count");
  said({.layers = 1, .more = [](GgufWriter& w) { w.String("llama.rope.scaling.type", "yarn"); }}, "yarn");
  said({.layers = 1, .more = [](GgufWriter& w) { w.Uint("llama.attention.value_length", 4); }}, "value_length");
  said({.layers = 1, .more = [](GgufWriter& w) { w.Tensor("blk.0.extra", DType::kF32, {4}, {1, 2, 3, 4}); }}, "extra");
  const Status wrong = Open(BuildTinyModel({.layers = 1, .more = [](GgufWriter& w) { w.String("llama.vocab", "x"), w.Float("general.alignment", 3); }}));
  EXPECT_TRUE(absl::IsDataLoss(wrong)) << wrong;
}

std::vector<std::byte> TinyBin(int version, int vocab = 20) {
  Encoder out;
  const int32_t dim = 8, hidden = 12, layers = 2, heads = 2, kv_heads = 1, seq = 16;
  if (version > 0) {
    out.Put(uint32_t{0x616B3432});
    out.Put(int32_t{version});
  }
  for (int32_t v : {dim, hidden, layers, heads, kv_heads, vocab, seq}) out.Put(v);
  if (version > 0) out.Put(uint8_t{1});
  if (version == 2) out.Put(int32_t{4});
  if (version > 0) {
    while (out.size() < 256) out.Put(uint8_t{0});
  }
  const size_t vectors = static_cast<size_t>(dim * (2 * layers + 1));
  const size_t matrices = static_cast<size_t>(vocab * dim + layers * (dim * dim * 2 + 2 * 4 * dim + 3 * hidden * dim));
  for (size_t i = 0; i < vectors; ++i) out.Put(1.0f);
  if (version == 2) {
    std::vector<std::byte> bytes(matrices + matrices / 4 * 4, std::byte{1});
    out.PutBytes(bytes.data(), bytes.size());
  } else {
    for (size_t i = 0; i < matrices; ++i) out.Put(0.5f);
  }
  if (version == 0) {
    for (int i = 0; i < seq * 4; ++i) out.Put(0.0f);
  }
  return {out.bytes().begin(), out.bytes().end()};
}

TEST(Llama2cFileTest, EveryCutAndEveryFlippedHeaderBit) {
  for (int version : {0, 1, 2}) {
    const auto good = TinyBin(version);
    ASSERT_TRUE(Open(good).ok()) << version << Open(good);
    for (size_t n = 0; n < good.size(); n += n < 300 ? 1 : 17) EXPECT_FALSE(Open(std::span(good).first(n)).ok()) << n;
    for (size_t bit = 0; bit < (version == 0 ? 28u : 41u) * 8; ++bit) {
      auto bad = good;
      bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      (void)Open(bad);
    }
  }
}

TEST(Llama2cFileTest, TokenizerCutsAreErrors) {
  Encoder out;
  out.Put(uint32_t{4});
  for (int i = 0; i < 20; ++i) {
    out.Put(static_cast<float>(-i));
    out.PutString("ab");
  }
  EXPECT_TRUE(Open(TinyBin(1), out.bytes()).ok()) << Open(TinyBin(1), out.bytes());
  for (size_t n = 1; n < out.size(); ++n) EXPECT_FALSE(Open(TinyBin(1), out.bytes().first(n)).ok()) << n;
}

// {"text": "...", "ids": [...], ...}: enough of JSON for these lines is read by the tokenize command's own tests; here the
// text is taken where it has no escapes.
TEST(SpmTest, KnownCases) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: token cases are not there";
  for (const char* family : {"llama-spm", "phi-3", "gemma3"}) {
    const auto tokenizer = OpenTokenizer(testing::SharedData(std::string("tokenizers/") + family + ".vocab.gguf"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::ifstream in(testing::SharedData(std::string("tokenizers/") + family + ".cases.jsonl"));
    int tried = 0, wrong = 0;
    for (std::string line; std::getline(in, line);) {
      const size_t text = line.find("\"text\": \""), ids = line.find("\", \"ids\": [");
      if (text == std::string::npos || ids == std::string::npos || line.find('\\') != std::string::npos) continue;
      std::vector<TokenId> expected;
      for (const char* p = line.c_str() + ids + 11; *p != ']';) {
        char* end = nullptr;
        expected.push_back(static_cast<TokenId>(std::strtol(p, &end, 10)));
        if (end == p) break;
        p = *end == ',' ? end + 1 : end;
      }
      const bool special = line.find("\"parse_special\": true") != std::string::npos;
      const std::string input = line.substr(text + 9, ids - text - 9);
      if (input.empty()) continue;
      ++tried;
      if ((*tokenizer)->Encode(input, {.parse_special = special}) != expected && ++wrong < 5) {
        ADD_FAILURE() << family << ": " << line.substr(0, 300);
      }
    }
    EXPECT_GT(tried, 5);
    EXPECT_EQ(wrong, 0) << family << " of " << tried;
  }
}

}  // namespace
}  // namespace gyre
