// Files from unauthenticated peers: whatever their bytes, an error or a model, never a crash or an allocation that they
// don't back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/gguf.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/largest_allocation.h"

namespace gyre {
namespace {

using testing::BuildTinyModel;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::kSlack;
using testing::LargestAllocation;
using testing::TinyOptions;

Status Open(const std::vector<std::byte>& bytes) { return OpenModelFromBytes(bytes).status(); }

std::string ErrorOf(const std::vector<std::byte>& bytes) {
  const Status status = Gguf::Parse(bytes).status();
  EXPECT_FALSE(status.ok());
  return Message(status);
}

template <typename T>
void Overwrite(std::vector<std::byte>* bytes, size_t at, T value) {
  ASSERT_LE(at + sizeof value, bytes->size());
  std::memcpy(bytes->data() + at, &value, sizeof value);
}

void AddVocabulary(GgufWriter& w) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", "b", "ab", "<0x41>"};
  w.Strings("tokenizer.ggml.tokens", tokens);
  w.Numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -1, -2, -3, -4, 0});
  w.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 1, 1, 1, 1, 6});
  w.Uint("tokenizer.ggml.bos_token_id", 1);
  w.Uint("tokenizer.ggml.eos_token_id", 2);
  w.Uint("tokenizer.ggml.padding_token_id", 0xFFFFFFFF);
}

TinyOptions Smallest() {
  TinyOptions o;
  o.dim = 8;
  o.layers = 1;
  o.heads = 2;
  o.kv_heads = 1;
  o.ffn = 8;
  o.vocab = 8;
  return o;
}

// As Smallest, with a tokenizer; the model's kind of it is set twice otherwise.
std::vector<std::byte> SmallestWithVocabulary(size_t* header) {
  GgufWriter w;
  w.String("tokenizer.ggml.model", "llama");
  AddVocabulary(w);
  return w.Finish(header);
}

TEST(GgufTest, TinyModelOpens) {
  const auto bytes = BuildTinyModel(Smallest());
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().dim, 8);
  EXPECT_EQ((*model)->tokenizer(), nullptr);
  EXPECT_FALSE((*model)->tokenizer_note().empty());
}

TEST(GgufTest, CutAnywhereIsAnError) {
  const auto bytes = BuildTinyModel(Smallest());
  for (size_t n = 0; n < bytes.size(); n += n < 4096 ? 1 : 97) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    size_t largest = LargestAllocation([&] { EXPECT_FALSE(Open(cut).ok()) << n; });
    EXPECT_LE(largest, n + kSlack);
  }
}

TEST(GgufTest, EveryFlippedBitOfTheHeaderIsHandled) {
  size_t header = 0;
  auto bytes = BuildTinyModel(Smallest(), &header);
  for (size_t bit = 0; bit < header * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    const size_t largest = LargestAllocation([&] {
      const Status status = Open(bytes);
      EXPECT_TRUE(status.ok() || !Message(status).empty());
    });
    EXPECT_LE(largest, bytes.size() + kSlack) << bit;
    bytes[bit / 8] ^= mask;
  }
  EXPECT_TRUE(Open(bytes).ok());
}

TEST(GgufTest, EveryFlippedBitOfAVocabularyIsHandled) {
  size_t header = 0;
  auto bytes = SmallestWithVocabulary(&header);
  for (size_t bit = 0; bit < header * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    const size_t largest = LargestAllocation([&] {
      const auto tokenizer = TokenizerFromBytes(bytes);
      if (!tokenizer.ok()) return;
      const auto ids = (*tokenizer)->Encode("ab </s>A\xFF", {.add_special = true, .parse_special = true});
      (*tokenizer)->Decode(ids);
    });
    EXPECT_LE(largest, bytes.size() + kSlack) << bit;
    bytes[bit / 8] ^= mask;
  }
}

TEST(GgufTest, AbsurdCountsAreRefusedBeforeTheyAreBelieved) {
  for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0}, uint64_t{1} << 63}) {
    for (const size_t at : {size_t{8}, size_t{16}}) {
      auto bytes = BuildTinyModel(Smallest());
      Overwrite(&bytes, at, count);
      const size_t largest = LargestAllocation([&] { EXPECT_FALSE(Open(bytes).ok()); });
      EXPECT_LE(largest, bytes.size() + kSlack);
    }
  }
}

TEST(GgufTest, PreambleSaysWhatItExpected) {
  auto bytes = BuildTinyModel(Smallest());
  Overwrite(&bytes, 4, uint32_t{1});
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("version 1, expected 2 or 3"));
  Overwrite(&bytes, 4, uint32_t{0x03000000});
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("big-endian"));
  Overwrite(&bytes, 4, uint32_t{2});
  EXPECT_TRUE(Open(bytes).ok());
  Overwrite(&bytes, 0, uint32_t{0x12345678});
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("expected GGUF"));
}

TEST(GgufTest, NamesInErrorsArePrintable) {
  GgufWriter w;
  w.Uint("a\x1b[2Jb", 1);
  w.Uint("a\x1b[2Jb", 1);
  EXPECT_THAT(ErrorOf(w.Finish()), HasSubstr("key a\\x1b[2Jb stands in the file twice"));
}

TEST(GgufTest, BadValuesAreNamed) {
  {
    GgufWriter w;
    w.Bool("flag", true);
    auto bytes = w.Finish();
    bytes[24 + 8 + 4 + 4] = std::byte{2};
    EXPECT_THAT(ErrorOf(bytes), HasSubstr("key flag: a bool of 2"));
  }
  {
    GgufWriter w;
    w.Numbers<uint32_t>("list", 4, {1, 2});
    auto bytes = w.Finish();
    Overwrite(&bytes, 24 + 8 + 4 + 4, uint32_t{9});
    EXPECT_THAT(ErrorOf(bytes), HasSubstr("array of arrays"));
    Overwrite(&bytes, 24 + 8 + 4 + 4, uint32_t{13});
    EXPECT_THAT(ErrorOf(bytes), HasSubstr("array of type 13"));
  }
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 1u << 21}) {
    GgufWriter w;
    w.Uint("general.alignment", alignment);
    EXPECT_FALSE(Gguf::Parse(w.Finish()).ok()) << alignment;
  }
}

// One tensor "t" of dims {a, b}, whose table entry is then spoiled.
class OneTensor {
 public:
  OneTensor() {
    GgufWriter w;
    w.Tensor("t", DType::kF32, {4, 2}, std::vector<float>(8, 1.0f));
    w.Tensor("u", DType::kF32, {4, 2}, std::vector<float>(8, 2.0f));
    bytes_ = w.Finish();
  }
  static constexpr size_t kDims = 24 + 8 + 1, kFirst = kDims + 4, kType = kFirst + 16, kOffset = kType + 4;
  static constexpr size_t kSecondOffset = kOffset + 8 + 8 + 1 + 4 + 16 + 4;
  template <typename T>
  std::string With(size_t at, T value) const {
    auto bytes = bytes_;
    Overwrite(&bytes, at, value);
    std::string error;
    EXPECT_LE(LargestAllocation([&] { error = ErrorOf(bytes); }), bytes.size() + kSlack);
    return error;
  }
  std::vector<std::byte> bytes_;
};

TEST(GgufTest, TensorTableIsChecked) {
  const OneTensor t;
  ASSERT_TRUE(Gguf::Parse(t.bytes_).ok());
  EXPECT_THAT(t.With(OneTensor::kDims, uint32_t{0}), HasSubstr("tensor t: 0 dimensions, expected 1 to 4"));
  EXPECT_THAT(t.With(OneTensor::kDims, uint32_t{5}), HasSubstr("tensor t: 5 dimensions"));
  EXPECT_THAT(t.With(OneTensor::kFirst, uint64_t{0}), HasSubstr("tensor t: dimension 0 is 0"));
  EXPECT_THAT(t.With(OneTensor::kFirst, uint64_t{1} << 63), HasSubstr("tensor t: too many elements"));
  EXPECT_THAT(t.With(OneTensor::kFirst, (uint64_t{1} << 62) + 1), HasSubstr("tensor t: too many elements"));
  EXPECT_THAT(t.With(OneTensor::kFirst, uint64_t{1} << 40), HasSubstr("tensor t"));
  EXPECT_THAT(t.With(OneTensor::kType, uint32_t{2}), HasSubstr("rows of 4 elements"));
  EXPECT_THAT(t.With(OneTensor::kType, uint32_t{4}), HasSubstr("tensor t: type 4"));
  EXPECT_THAT(t.With(OneTensor::kType, ~uint32_t{0}), HasSubstr("tensor t: type 4294967295"));
  EXPECT_THAT(t.With(OneTensor::kOffset, uint64_t{4}), HasSubstr("tensor t: offset 4 is no multiple of 32"));
  EXPECT_THAT(t.With(OneTensor::kOffset, ~uint64_t{31}), HasSubstr("tensor t"));
  EXPECT_THAT(t.With(OneTensor::kSecondOffset, uint64_t{0}), HasSubstr("overlap"));
  EXPECT_THAT(t.With(OneTensor::kSecondOffset, uint64_t{64}), HasSubstr("tensor u"));
}

TEST(GgufTest, DuplicateTensorIsRefused) {
  GgufWriter w;
  w.Tensor("t", DType::kF32, {4}, {1, 2, 3, 4});
  w.Tensor("t", DType::kF32, {4}, {1, 2, 3, 4});
  EXPECT_THAT(ErrorOf(w.Finish()), HasSubstr("tensor t stands in the file twice"));
}

TEST(GgufTest, ValuesReadAsWhatTheyAre) {
  GgufWriter w;
  w.Uint("u", 7);
  w.Float("f", 1.5f);
  w.Bool("b", true);
  w.String("s", "word");
  w.Numbers<int32_t>("ints", 5, {3, 4});
  w.Strings("strings", {"x", "", "yz"});
  const auto bytes = w.Finish();
  auto g = Gguf::Parse(bytes);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(**g->Int("u", 0, 10), 7);
  EXPECT_FALSE(g->Int("u", 0, 6).ok());
  EXPECT_FALSE(g->Int("s", 0, 6).ok());
  EXPECT_FALSE(g->Int("absent", 0, 6)->has_value());
  EXPECT_EQ(**g->Float("f"), 1.5);
  EXPECT_EQ(**g->Float("u"), 7.0);
  EXPECT_FALSE(g->Float("s").ok());
  EXPECT_TRUE(**g->Bool("b"));
  EXPECT_FALSE(g->Bool("u").ok());
  EXPECT_EQ(**g->String("s"), "word");
  EXPECT_EQ(**g->Ints("ints", 2, 0, 9), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(**g->Ints("u", 3, 0, 9), (std::vector<int64_t>{7, 7, 7}));
  EXPECT_FALSE(g->Ints("ints", 3, 0, 9).ok());
  std::string joined;
  ForEachString(**g->Array("strings", GgufType::kString), [&](uint64_t, std::string_view s) {
    joined += s;
    joined += '|';
  });
  EXPECT_EQ(joined, "x||yz|");
}

TEST(GgufTest, HashTellsFilesApart) {
  auto bytes = BuildTinyModel(Smallest());
  const uint64_t first = (*OpenModelFromBytes(bytes))->content_hash();
  const auto copy = bytes;
  EXPECT_EQ((*OpenModelFromBytes(copy))->content_hash(), first);
  TinyOptions other = Smallest();
  other.seed = 2;
  const auto different = BuildTinyModel(other);
  EXPECT_NE((*OpenModelFromBytes(different))->content_hash(), first);
}

TEST(GgufHeaderTest, TheBeginningTellsWhereTheDataBegins) {
  testing::GgufWriter writer;
  writer.String("general.architecture", "llama");
  writer.Strings("tokenizer.ggml.tokens", {"a", "bc", ""});
  writer.Numbers<float>("scores", 6, {1, 2, 3});
  writer.Tensor("t", DType::kF32, {8}, std::vector<float>(8, 1.0f));
  size_t header = 0;
  const std::vector<std::byte> file = writer.Finish(&header);
  for (size_t n = 0; n <= file.size(); ++n) {
    const auto bytes = Gguf::HeaderBytes(std::span(file).first(n), file.size());
    ASSERT_TRUE(bytes.ok()) << n << ": " << bytes.status();
    ASSERT_EQ(bytes->has_value(), n >= header) << n;
    if (n >= header) {
      ASSERT_EQ(**bytes, Gguf::Parse(file)->data_offset());
    }
  }
  // Damage is reported even if there is much of it, and a file that ends too early is damaged.
  std::vector<std::byte> damaged = file;
  damaged[8] = std::byte{255}, damaged[12] = std::byte{255};
  EXPECT_TRUE(absl::IsDataLoss(Gguf::HeaderBytes(std::span(damaged).first(64), file.size()).status()));
  EXPECT_TRUE(absl::IsDataLoss(Gguf::HeaderBytes(std::span(file).first(64), 64).status()));
}

// NVFP4's scales of the second level: "X.scale" has one for a matrix, or one for each expert.
TEST(GgufScalesTest, BelongToTheirWeights) {
  const auto parsed = [](DType type, const std::vector<uint64_t>& weight, const std::vector<uint64_t>& scale,
                         DType scale_type = DType::kF32, const std::string& stem = "blk.0.ffn_up_exps",
                         bool router_scale = false) {
    testing::GgufWriter writer;
    writer.String("general.architecture", "llama");
    uint64_t elements = 1, numbers = 1;
    for (const uint64_t d : weight) elements *= d;
    for (const uint64_t d : scale) numbers *= d;
    writer.Tensor(stem + ".weight", type, weight, std::vector<float>(elements, 1.0f));
    std::vector<float> scales;
    for (uint64_t i = 0; i < numbers; ++i) scales.push_back(0.5f + static_cast<float>(i));
    writer.Tensor(stem + ".scale", scale_type, scale, scales);
    if (router_scale) writer.Tensor("blk.0.ffn_gate_inp.scale", DType::kF32, {2}, std::vector<float>(2, 1.0f));
    const std::vector<std::byte> file = writer.Finish();
    const auto gguf = Gguf::Parse(file);
    if (!gguf.ok()) return Message(gguf.status());
    const TensorView* t = gguf->tensors().Find(stem + ".weight");
    std::string values;
    std::vector<float> row(weight[0]);
    for (uint64_t r = 0; r < t->Rows().n; ++r) {
      DequantizeRow(t->Rows(), r, row.data());
      values += std::to_string(row[0]).substr(0, 3) + " ";
    }
    return values + gguf->tensors().ScaledBy(stem + ".scale");
  };
  EXPECT_EQ(parsed(DType::kNVFP4, {64, 2}, {1}), "0.5 0.5 blk.0.ffn_up_exps.weight");
  EXPECT_EQ(parsed(DType::kNVFP4, {64, 2, 2}, {2}), "0.5 0.5 1.5 1.5 blk.0.ffn_up_exps.weight");
  EXPECT_EQ(parsed(DType::kF16, {64, 2}, {1}), "1.0 1.0 ");
  // The factor of Gemma 4's experts, which covers it, has the same name.
  EXPECT_EQ(parsed(DType::kNVFP4, {64, 1, 2}, {2}, DType::kF32, "blk.0.ffn_down_exps", true), "1.0 1.0 ");
  EXPECT_THAT(parsed(DType::kNVFP4, {64, 2}, {2}),
              HasSubstr("scale of tensor blk.0.ffn_up_exps.weight has the type F32"));
  EXPECT_THAT(parsed(DType::kNVFP4, {64, 2, 3}, {2}), HasSubstr("one number in F32 for each matrix"));
  EXPECT_THAT(parsed(DType::kNVFP4, {64, 2}, {1}, DType::kF16), HasSubstr("has the type F16"));
}

}  // namespace
}  // namespace gyre
