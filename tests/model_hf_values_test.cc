// Weights of Hugging Face's folders in formats of their own, from the values as the formats define them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "model/hf/folder.h"
#include "model/hf/safetensors.h"
#include "model/mapped_file.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/hf_folder.h"
#include "tests/testing/safetensors_writer.h"

namespace gyre {
namespace {

using testing::Shard;

class HfValuesTest : public testing::HfFolderTest {};

// gpt-oss's experts, from the values as the format defines them.
TEST_F(HfValuesTest, ExpertsInBlocksOfMxfp4AreTheirValues) {
  constexpr double kCodes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  testing::TinyOptions o;
  o.arch = "gpt-oss";
  o.layers = 1;
  MakeFolder({"gpt-oss", "gpt_oss"}, testing::BuildTinyModel(o), 1);
  auto file = MappedFile::Open(Path("model.safetensors"));
  Shard out;
  {
    const auto tensors = *ParseSafetensors((*file)->bytes());
    for (const auto& [name, t] : tensors) {
      out.Add(name, t.dtype, t.shape, std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()));
    }
  }
  const std::string prefix = "model.layers.0.mlp.experts.";
  std::mt19937 random(1);
  std::map<std::string, std::string> blocks, scales;
  std::map<std::string, std::vector<float>> biases;
  for (const auto& [part, rows] : {std::pair<std::string, uint64_t>{"gate_up_proj", 64}, {"down_proj", 32}}) {
    for (uint64_t i = 0; i < 4 * rows * 16; ++i) blocks[part] += static_cast<char>(random());
    for (uint64_t i = 0; i < 4 * rows; ++i) scales[part] += static_cast<char>(120 + random() % 8);
    for (uint64_t i = 0; i < 4 * rows; ++i) biases[part].push_back(static_cast<float>(i));
    out.Add(prefix + part + "_blocks", "U8", {4, rows, 1, 16}, blocks[part]);
    out.Add(prefix + part + "_scales", "U8", {4, rows, 1}, scales[part]);
    out.AddFloats(prefix + part + "_bias", {4, rows}, biases[part]);
  }
  Write(Path("model.safetensors"), out.Bytes());
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(ConvertToGguf(**folder, Path("converted.gguf"), {}).ok());
  for (const std::string& path : {folder_, Path("converted.gguf")}) {
    const auto model = OpenModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto w = (*model)->Layer(0);
    ASSERT_TRUE(w.ok()) << w.status();
    std::vector<float> row(32);
    for (uint64_t e = 0; e < 4; ++e) {
      for (uint64_t r = 0; r < 32; ++r) {
        auto check = [&](const WeightView& view, const std::string& part, uint64_t at, const std::vector<float>& bias) {
          DequantizeRow(view, r, row.data());
          const double scale = std::exp2(static_cast<uint8_t>(scales[part][at]) - 127);
          for (size_t i = 0; i < 32; ++i) {
            const int code = static_cast<uint8_t>(blocks[part][at * 16 + i / 2]) >> (i % 2 * 4) & 15;
            EXPECT_EQ(row[i], scale * kCodes[code & 7] * (code > 7 ? -1 : 1))
                << part << " " << e << " " << r << " " << i;
          }
          EXPECT_EQ(bias[e * 32 + r], biases[part][at]);
        };
        check(w->experts[e].gate, "gate_up_proj", e * 64 + 2 * r, w->vector(Slot::kExpertGateBias));
        check(w->experts[e].up, "gate_up_proj", e * 64 + 2 * r + 1, w->vector(Slot::kExpertUpBias));
        check(w->experts[e].down, "down_proj", e * 32 + r, w->vector(Slot::kExpertDownBias));
      }
    }
  }
}

TEST_F(HfValuesTest, BlockFp8AndChannelInt8AreTheirProducts) {
  testing::TinyOptions o;
  o.dim = 160;
  o.heads = 5;
  o.kv_heads = 5;
  const auto bytes = testing::BuildTinyModel(o);
  MakeFolder({"llama", "llama"}, bytes, 1);
  auto file = MappedFile::Open(Path("model.safetensors"));
  auto tensors = *ParseSafetensors((*file)->bytes());
  Shard out;
  const uint64_t n = 160, k = 160;
  std::string fp8, int8;
  for (uint64_t i = 0; i < n * k; ++i) {
    uint8_t b = static_cast<uint8_t>(i * 37 % 251);
    if ((b & 0x7F) == 0x7F) b = 0;
    fp8 += static_cast<char>(b);
    int8 += static_cast<char>(static_cast<int>(i * 31 % 255) - 127);
  }
  std::vector<float> block(4), channel(n);
  for (size_t i = 0; i < 4; ++i) block[i] = 0.001f * static_cast<float>(i + 1);
  for (size_t i = 0; i < n; ++i) channel[i] = 0.0001f * static_cast<float>(i + 1);
  for (const auto& [name, t] : tensors) {
    if (name == "model.layers.0.self_attn.o_proj.weight") {
      out.Add(name, "F8_E4M3", t.shape, fp8);
      out.AddFloats(name + "_scale_inv", {2, 2}, block);
    } else if (name == "model.layers.0.self_attn.v_proj.weight") {
      out.Add(name, "I8", t.shape, int8);
      out.AddFloats(name + "_scale", {n, 1}, channel);
    } else {
      out.Add(name, t.dtype, t.shape, std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()));
    }
  }
  tensors.clear();
  Write(Path("model.safetensors"), out.Bytes());
  const auto model = OpenModel(folder_);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto w = (*model)->Layer(0);
  ASSERT_TRUE(w.ok());
  std::vector<float> row(k);
  for (size_t r : {0u, 127u, 128u, 159u}) {
    DequantizeRow(w->matrix(Slot::kO), r, row.data());
    for (size_t c = 0; c < k; ++c) {
      const auto b = static_cast<uint8_t>(fp8[r * k + c]);
      const int e = b >> 3 & 15, m = b & 7;
      const double value =
          (e == 0 ? m * std::pow(2, -9) : (1 + m / 8.0) * std::pow(2, e - 7)) * ((b & 0x80) != 0 ? -1 : 1);
      const double expected = value * static_cast<double>(block[r / 128 * 2 + c / 128]);
      EXPECT_NEAR(row[c], expected, std::fabs(expected) / 256 + 1e-30) << r << " " << c;
    }
    DequantizeRow(w->matrix(Slot::kV), r, row.data());
    for (size_t c = 0; c < k; ++c)
      EXPECT_FLOAT_EQ(row[c], static_cast<float>(static_cast<int8_t>(int8[r * k + c])) * channel[r]);
  }
  // GGUF keeps the integers, and has no 8-bit floats.
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto report = ConvertToGguf(**folder, Path("converted.gguf"), {});
  ASSERT_TRUE(report.ok()) << report.status();
  const std::map<std::pair<DType, DType>, int> changed = {{{DType::kI8, DType::kQ8_0}, 1},
                                                          {{DType::kF8E4M3, DType::kBF16}, 1}};
  EXPECT_EQ(report->changed, changed);
  const auto converted = OpenModel(Path("converted.gguf"));
  ASSERT_TRUE(converted.ok()) << converted.status();
  const auto stored = (*converted)->Layer(0);
  ASSERT_TRUE(stored.ok());
  std::vector<float> kept(k);
  for (const auto& [slot, error] : {std::pair(Slot::kV, 1.0f / 2048), {Slot::kO, 1.0f / 256}}) {
    for (size_t r = 0; r < n; ++r) {
      DequantizeRow(w->matrix(slot), r, row.data());
      DequantizeRow(stored->matrix(slot), r, kept.data());
      for (size_t c = 0; c < k; ++c) ASSERT_NEAR(kept[c], row[c], std::fabs(row[c]) * error) << r << " " << c;
    }
  }
}

}  // namespace
}  // namespace gyre
