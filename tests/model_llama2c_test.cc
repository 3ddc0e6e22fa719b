// llama2.c's .bin models and tokenizer.bin: layouts, bad bytes, options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/tokenizer.h"
#include "model/tokenizer_bin.h"
#include "model/weights.h"
#include "tests/testing/largest_allocation.h"
#include "tests/testing/llama2c_writer.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::BuildTinyBin;
using testing::BuildTokenizerBin;
using ::testing::HasSubstr;
using testing::kSlack;
using testing::LargestAllocation;
using testing::TinyBinOptions;

TinyBinOptions Version(int version, bool shared = true) {
  TinyBinOptions o;
  o.version = version;
  o.shared = shared;
  return o;
}

float At(const WeightView& w, size_t i) {
  std::vector<float> row(w.k);
  DequantizeRow(w, i / w.k, row.data());
  return row[i % w.k];
}

TEST(Llama2cTest, EveryVersionOpensTiedAndNot) {
  for (int version : {0, 1, 2}) {
    for (bool shared : {true, false}) {
      const auto bytes = BuildTinyBin(Version(version, shared));
      const auto model = OpenModelFromBytes(bytes);
      ASSERT_TRUE(model.ok()) << model.status();
      const ModelSpec& s = (*model)->spec();
      EXPECT_EQ(s.vocab, 262);
      EXPECT_EQ(s.tied_head, shared);
      EXPECT_EQ(s.layers.size(), 2u);
      EXPECT_EQ(s.layers[0].attention()->rope.pairing, RopePairing::kInterleaved);
      EXPECT_EQ(s.layers[0].attention()->rope.base, 10000.0);
      const auto head = (*model)->Head();
      ASSERT_TRUE(head.ok());
      EXPECT_EQ(head->output.data == (*model)->Embedding()->data, shared);
      EXPECT_EQ((*model)->Layer(1)->matrix(Slot::kDown).k, 24u);
    }
  }
}

// Offsets by hand, from the layout's description.
TEST(Llama2cTest, Version0TensorsLieWhereLlama2cPutsThem) {
  const auto bytes = BuildTinyBin(Version(0, false));
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  const size_t d = 16, h = 24, v = 262, kv = 8, s = 32;
  const std::byte* at = bytes.data() + 28;
  EXPECT_EQ((*model)->Embedding()->data, at);
  at += 4 * (v * d + 2 * d);
  EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kQ).data, at);
  EXPECT_EQ((*model)->Layer(1)->matrix(Slot::kQ).data, at + 4 * d * d);
  at += 4 * 2 * d * d;
  EXPECT_EQ((*model)->Layer(1)->matrix(Slot::kK).data, at + 4 * kv * d);
  at += 4 * 2 * (2 * kv * d + d * d) + 4 * 2 * d;
  EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kGate).data, at);
  EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kDown).data, at + 4 * 2 * h * d);
  EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kUp).data, at + 4 * 4 * h * d);
  at += 4 * 6 * h * d + 4 * (d + s * 4);
  EXPECT_EQ((*model)->Head()->output.data, at);
  EXPECT_EQ(at + 4 * v * d, bytes.data() + bytes.size());
}

TEST(Llama2cTest, Version2WeightsAreTheIntegersTimesTheirGroupsScales) {
  const auto bytes = BuildTinyBin(Version(2));
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  const size_t embedding = 256 + 4 * (2 * 2 * 16 + 16), elems = 262 * 16;
  const auto view = (*model)->Embedding();
  for (size_t i : {size_t{0}, size_t{7}, size_t{8}, elems - 1}) {
    float scale = 0;
    std::memcpy(&scale, bytes.data() + embedding + elems + i / 8 * 4, 4);
    EXPECT_EQ(At(*view, i), static_cast<float>(static_cast<int8_t>(bytes[embedding + i])) * scale);
  }
  // Equal files hash equally, wherever they lie.
  const uint64_t hash = (*model)->content_hash();
  const auto other = BuildTinyBin({.version = 2, .seed = 2});
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*OpenModelFromBytes(bytes))->content_hash(), hash);
  EXPECT_NE((*OpenModelFromBytes(other))->content_hash(), hash);
}

TEST(Llama2cTest, OptionsSayWhatTheFileCannot) {
  const auto bytes = BuildTinyBin(Version(1));
  const auto plain = OpenModelFromBytes(bytes);
  const auto model = OpenModelFromBytes(bytes, {.tokenizer_path = "", .rope_base = 500000, .norm_eps = 1e-6});
  ASSERT_TRUE(plain.ok() && model.ok());
  EXPECT_EQ((*model)->spec().layers[0].attention()->rope.base, 500000.0);
  EXPECT_EQ((*model)->spec().final_norm_eps, 1e-6f);
  EXPECT_NE((*model)->content_hash(), (*plain)->content_hash());
  EXPECT_FALSE(OpenModelFromBytes(bytes, {.tokenizer_path = "", .rope_base = -1, .norm_eps = 0}).ok());
}

TEST(Llama2cTest, CutLongerAndFlippedFilesAreErrorsOrModels) {
  for (int version : {0, 1, 2}) {
    auto bytes = BuildTinyBin(Version(version));
    for (size_t n = 0; n < bytes.size(); n += n < 300 ? 1 : 101) {
      const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
      // int8 weights become f32: four bytes for one.
      const size_t largest =
          LargestAllocation([&] { EXPECT_FALSE(OpenModelFromBytes(cut).ok()) << version << ' ' << n; });
      EXPECT_LE(largest, n + kSlack);
    }
    const size_t header = version == 0 ? 28 : 64;
    for (size_t bit = 0; bit < header * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      const size_t largest = LargestAllocation([&] { (void)OpenModelFromBytes(bytes); });
      EXPECT_LE(largest, bytes.size() + kSlack);
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    bytes.push_back(std::byte{0});
    EXPECT_THAT(Message(OpenModelFromBytes(bytes).status()), HasSubstr("bytes"));
  }
}

TEST(Llama2cTest, HeadersThatCannotBeAreNamed) {
  auto with = [](size_t at, int32_t value) {
    auto bytes = BuildTinyBin(Version(1));
    std::memcpy(bytes.data() + 8 + at, &value, 4);
    return Message(OpenModelFromBytes(bytes).status());
  };
  EXPECT_THAT(with(0, 0), HasSubstr("dim is 0"));
  EXPECT_THAT(with(4, -1), HasSubstr("hidden_dim is -1"));
  EXPECT_THAT(with(8, 1 << 30), HasSubstr("n_layers"));
  EXPECT_THAT(with(12, 5), HasSubstr("5 heads"));
  EXPECT_THAT(with(16, 3), HasSubstr("3 key-value heads"));
  EXPECT_THAT(with(0, 4 * 4098), HasSubstr("4098 elements each, expected at most 4096"));
  EXPECT_THAT(with(20, INT32_MIN), HasSubstr("vocab_size"));
}

class TokenizerBinTest : public ::testing::Test {
 protected:
  StatusOr<std::shared_ptr<const Model>> Open(const std::vector<std::byte>& tokenizer) {
    return OpenModelFromBytes(model_, {}, tokenizer);
  }
  const std::vector<std::byte> model_ = BuildTinyBin(Version(0));
  const std::vector<std::byte> tokenizer_ = BuildTokenizerBin({" ", "a", " a"});
};

TEST_F(TokenizerBinTest, EncodesAndDecodes) {
  const auto model = Open(tokenizer_);
  ASSERT_TRUE(model.ok()) << model.status();
  const Tokenizer& t = *(*model)->tokenizer();
  EXPECT_EQ((*model)->tokenizer_note(), "");
  EXPECT_EQ(t.bos(), 1);
  EXPECT_TRUE(t.IsEndOfGeneration(2));
  EXPECT_EQ(t.Encode("a", {.add_special = true}), (std::vector<TokenId>{1, 261}));
  EXPECT_EQ(t.Encode("aZ\xFF", {}), (std::vector<TokenId>{261, 3 + 'Z', 3 + 0xFF}));
  EXPECT_EQ(t.Decode(t.Encode("a a\nZ\xFF", {.add_special = true})), "a a\nZ\xFF");
  EXPECT_EQ(t.Encode("<s>", {}).size(), 4u);  // the prefix and three bytes: text can't forge control tokens
  EXPECT_TRUE(t.Encode("", {}).empty());
}

TEST_F(TokenizerBinTest, CutAndFlippedFilesAreErrorsOrTokenizers) {
  for (size_t n = 1; n < tokenizer_.size(); n += testing::kSanitized ? 3 : 1) {
    const std::vector<std::byte> cut(tokenizer_.begin(), tokenizer_.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_FALSE(Open(cut).ok()) << n;
  }
  auto bytes = tokenizer_;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(Open(bytes).ok());
  bytes.pop_back();
  for (size_t bit = 0; bit < bytes.size() * 8; bit += testing::kSanitized ? 11 : 3) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    (void)Open(bytes);
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
}

// LEAP writes Llama 3's vocabulary with the token as its score: the rank of the merge.
TEST(TokenizerBin, ScoresThatRiseAreRanks) {
  std::vector<std::byte> file(4);
  int id = 0;
  auto add = [&](std::string_view piece) {
    const auto score = static_cast<float>(id);
    const auto length = static_cast<uint32_t>(piece.size());
    const size_t at = file.size();
    file.resize(at + 8 + length);
    std::memcpy(file.data() + at, &score, 4);
    std::memcpy(file.data() + at + 4, &length, 4);
    std::memcpy(file.data() + at + 8, piece.data(), length);
    return id++;
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  const int bc = add("bc"), ab = add("ab"), abc = add("abc"), begin = add("<|begin_of_text|>"), end = add("<|eot_id|>");
  const auto t = TokenizerFromBin(file, id);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->kind(), "bpe");
  EXPECT_EQ((*t)->bos(), begin);
  EXPECT_TRUE((*t)->IsEndOfGeneration(end));
  EXPECT_EQ((*t)->Encode("abc", {.add_special = true}), (std::vector<TokenId>{begin, abc}));
  EXPECT_EQ((*t)->Encode("ab bcb", {}), (std::vector<TokenId>{ab, ' ', bc, 'b'}));
  EXPECT_EQ((*t)->Encode("<|eot_id|>", {}).size(), 10u);
}

}  // namespace
}  // namespace gyre
