// Quantizing: the error of each type against that of the field's usual tool, and files that come out whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "model/quantize.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

// Bell-shaped as weights are, from a generator that is the same everywhere.
std::vector<float> Bell(size_t n) {
  uint64_t state = 12345;
  std::vector<float> out(n);
  for (float& v : out) {
    double sum = 0;
    for (int k = 0; k < 12; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<double>(state >> 33) / 2147483648.0;
    }
    v = static_cast<float>(sum - 6) * 0.02f;
  }
  return out;
}

double RelativeError(DType type, const std::vector<float>& x) {
  std::vector<std::byte> bytes(x.size() / Info(type).block_elems * Info(type).block_bytes);
  EXPECT_TRUE(Quantize(type, x.data(), bytes.data(), x.size()));
  std::vector<float> y(x.size());
  Dequantize(type, bytes.data(), y.data(), y.size());
  double error = 0, values = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    values += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / values);
}

// ggml's reference quantizers (d99724f2, without an importance matrix) on the same 65,536 numbers.
TEST(QuantizeTest, ErrorsAreWithinTwoPercentOfTheUsualTools) {
  const std::vector<float> x = Bell(256 * 256);
  const std::map<DType, double> reference = {
      {DType::kQ8_0, 0.0052647}, {DType::kQ4_0, 0.0847705}, {DType::kQ4_1, 0.0774693}, {DType::kQ5_0, 0.0420271},
      {DType::kQ5_1, 0.0375099}, {DType::kQ4_K, 0.070722},  {DType::kQ5_K, 0.0358269}, {DType::kQ6_K, 0.0175553}};
  for (const auto& [type, theirs] : reference) {
    const double ours = RelativeError(type, x);
    RecordProperty(Info(type).name, std::to_string(ours));
    EXPECT_LE(ours, 1.02 * theirs) << Info(type).name;
    EXPECT_GE(ours, 0.5 * theirs) << Info(type).name;
  }
}

TEST(QuantizeTest, OddBlocksSurvive) {
  std::vector<std::vector<float>> blocks{std::vector<float>(256, 0.0f), std::vector<float>(256, 1.0f),
                                         std::vector<float>(256, -2.5f), std::vector<float>(256, 1e-30f)};
  blocks.push_back(std::vector<float>(256, 0.0f));
  blocks.back()[17] = -3;
  blocks.push_back(Bell(256));
  for (float& v : blocks.back()) v = std::fabs(v) + 1;
  for (const auto& x : blocks) {
    for (DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
      std::vector<std::byte> bytes(Info(type).block_bytes);
      ASSERT_TRUE(Quantize(type, x.data(), bytes.data(), 256));
      std::vector<float> y(256);
      Dequantize(type, bytes.data(), y.data(), 256);
      float largest = 0;
      for (float v : x) largest = std::max(largest, std::fabs(v));
      for (size_t i = 0; i < 256; ++i) {
        EXPECT_TRUE(std::isfinite(y[i]));
        EXPECT_NEAR(y[i], x[i], 0.12 * static_cast<double>(largest) + 1e-7) << Info(type).name << " " << i;
      }
    }
  }
}

class QuantizeFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gyre-quantize-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    testing::TinyOptions o;
    o.dim = 256;
    o.ffn = 512;
    o.layers = 8;
    o.type = DType::kF16;
    Write("in.gguf", testing::BuildTinyModel(o));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::vector<std::byte>& bytes) const {
    std::ofstream(Path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::string folder_;
};

TEST_F(QuantizeFileTest, EveryTypeGivesAModelOfThatType) {
  for (const std::string& type : QuantizeTypes()) {
    if (testing::kSanitized && type != "Q8_0" && type != "Q4_K_M") continue;
    uint64_t last = 0;
    const auto report = QuantizeFile(Path("in.gguf"), Path("out.gguf"),
                                     {.type = type, .threads = 3, .progress = [&](uint64_t done, uint64_t total) {
                                        EXPECT_GE(done, last);
                                        EXPECT_LE(done, total);
                                        last = done;
                                      }});
    ASSERT_TRUE(report.ok()) << type << ": " << report.status();
    EXPECT_FALSE(std::filesystem::exists(Path("out.gguf.partial")));
    const auto model = OpenModel(Path("out.gguf"));
    ASSERT_TRUE(model.ok()) << type << ": " << model.status();
    const std::string base = Info((*model)->Layer(2)->q.type).name;
    EXPECT_EQ(type.substr(0, base.size()), base);
    if (type == "Q4_K_M") {
      EXPECT_EQ((*model)->Layer(0)->v.type, DType::kQ6_K);
      EXPECT_EQ((*model)->Layer(0)->ffn.down.type, DType::kQ6_K);
      EXPECT_EQ((*model)->Layer(1)->v.type, DType::kQ4_K);
      EXPECT_EQ((*model)->Head()->output.type, DType::kQ6_K);
      EXPECT_LT(report->relative_error, 0.072);
    }
    if (type == "F32") EXPECT_EQ(report->relative_error, 0);
  }
}

TEST_F(QuantizeFileTest, TheNumberOfThreadsChangesNothing) {
  std::vector<std::string> files;
  for (int threads : {1, 2, testing::kSanitized ? 2 : 5}) {
    ASSERT_TRUE(QuantizeFile(Path("in.gguf"), Path("out.gguf"), {.type = "Q5_K_M", .threads = threads}).ok());
    std::ifstream in(Path("out.gguf"), std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  EXPECT_TRUE(files[0] == files[1] && files[0] == files[2]);
}

TEST_F(QuantizeFileTest, WhatCannotBeDoneIsSaid) {
  EXPECT_THAT(Message(QuantizeFile(Path("in.gguf"), Path("o"), {.type = "Q9"}).status()), HasSubstr("known are F32"));
  EXPECT_TRUE(absl::IsNotFound(QuantizeFile(Path("none.gguf"), Path("o"), {.type = "Q8_0"}).status()));
  EXPECT_THAT(Message(QuantizeFile(Path("in.gguf"), Path("no/such/o"), {.type = "Q8_0"}).status()),
              HasSubstr("No such file"));
  ASSERT_TRUE(QuantizeFile(Path("in.gguf"), Path("q8.gguf"), {.type = "Q8_0"}).ok());
  EXPECT_THAT(Message(QuantizeFile(Path("q8.gguf"), Path("o"), {.type = "Q4_0"}).status()), HasSubstr("--requantize"));
  EXPECT_FALSE(std::filesystem::exists(Path("o")));
  EXPECT_TRUE(QuantizeFile(Path("q8.gguf"), Path("o"), {.type = "Q4_0", .requantize = true}).ok());
  // Rows of 64 don't divide into blocks of 256.
  testing::TinyOptions small;
  small.ffn = 64;
  Write("small.gguf", testing::BuildTinyModel(small));
  const auto report = QuantizeFile(Path("small.gguf"), Path("o"), {.type = "Q4_K_M"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->fallbacks.empty());
  EXPECT_THAT(report->fallbacks[0], HasSubstr("Q5_0"));
  EXPECT_TRUE(OpenModel(Path("o")).ok()) << OpenModel(Path("o")).status();
}

}  // namespace
}  // namespace gyre
