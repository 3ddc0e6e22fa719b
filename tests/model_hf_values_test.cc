// Weights of Hugging Face's folders in formats of their own, from the values as the formats define them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <random>

#include "model/hf/folder.h"
#include "model/hf/safetensors.h"
#include "model/mapped_file.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/hf_folder.h"
#include "tests/testing/safetensors_writer.h"
#include "worker/layer.h"

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

// NVFP4 as ModelOpt and as compressed-tensors write it, and MXFP4 of the latter: the folder, and the GGUF file made of
// it.
TEST_F(HfValuesTest, PackedFloatsOf4BitsAreTheirValues) {
  constexpr double kCodes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  testing::TinyOptions o;
  o.dim = 128;
  o.layers = 1;
  MakeFolder({"llama", "llama"}, testing::BuildTinyModel(o), 1);
  auto file = MappedFile::Open(Path("model.safetensors"));
  auto tensors = *ParseSafetensors((*file)->bytes());
  const std::string layer = "model.layers.0.self_attn.";
  struct Packed {
    std::string name, beside, second_name;
    Slot slot;
    uint64_t group;
    float second, factor;
  };
  const Packed all[] = {{layer + "o_proj.weight", "", "_scale_2", Slot::kO, 16, 0.0015f, 0.0015f},
                        {layer + "v_proj.weight", "_packed", "_global_scale", Slot::kV, 16, 500, 1 / 500.0f},
                        {layer + "k_proj.weight", "_packed", "", Slot::kK, 32, 0, 1}};
  std::map<std::string, std::string> codes, scales;
  std::map<std::string, uint64_t> rows;
  const uint64_t k = 128;
  std::mt19937 random(2);
  Shard out;
  for (const auto& [name, t] : tensors) {
    const auto* p = std::find_if(std::begin(all), std::end(all), [&](const Packed& one) { return one.name == name; });
    if (p == std::end(all)) {
      out.Add(name, t.dtype, t.shape, std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()));
      continue;
    }
    const uint64_t n = rows[name] = t.shape[0];
    for (uint64_t i = 0; i < n * k / 2; ++i) codes[name] += static_cast<char>(random());
    for (uint64_t i = 0; i < n * k / p->group; ++i)
      scales[name] += static_cast<char>(p->group == 16 ? random() % 127 : 100 + random() % 30);
    out.Add(name + p->beside, "U8", {n, k / 2}, codes[name]);
    out.Add(name + "_scale", p->group == 16 ? "F8_E4M3" : "U8", {n, k / p->group}, scales[name]);
    const std::string module = name.substr(0, name.rfind('.'));
    if (!p->second_name.empty()) out.AddFloats(name + p->second_name, {1}, {p->second});
    out.AddFloats(module + (p->beside.empty() ? ".input_scale" : ".input_global_scale"), {1}, {3});
  }
  tensors.clear();
  Write(Path("model.safetensors"), out.Bytes());
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto report = ConvertToGguf(**folder, Path("converted.gguf"), {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->changed.empty());
  for (const std::string& path : {folder_, Path("converted.gguf")}) {
    const auto model = OpenModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->tensors().Has("blk.0.attn_output.scale"), path != folder_);
    const auto w = (*model)->Layer(0);
    ASSERT_TRUE(w.ok()) << w.status();
    if (path == folder_) {  // exact products read what was made of the file
      const auto backend = MakeCpuDevice(Isa::kRef, 1)->NewBackend();
      for (const bool exact : {false, true}) {
        const auto layer = LoadLayer(
            **model, 0, *backend, [](size_t) {}, exact);
        ASSERT_TRUE(layer.ok()) << layer.status();
        if (exact) EXPECT_FALSE((*layer)->weights.made.empty());
      }
    }
    std::vector<float> row(k);
    for (const Packed& p : all) {
      const WeightView& view = w->matrix(p.slot);
      EXPECT_EQ(view.type, p.group == 16 ? DType::kNVFP4 : DType::kMXFP4);
      for (uint64_t r = 0; r < rows[p.name]; ++r) {
        // GGUF's order of the rows of keys is another one.
        if (p.slot == Slot::kK && path != folder_) continue;
        DequantizeRow(view, r, row.data());
        for (uint64_t i = 0; i < k; ++i) {
          const int code = static_cast<uint8_t>(codes[p.name][(r * k + i) / 2]) >> (i % 2 * 4) & 15;
          const auto s = static_cast<uint8_t>(scales[p.name][(r * k + i) / p.group]);
          const int e = s >> 3 & 15, m = s & 7;
          const double scale = p.group == 32 ? std::exp2(s - 127)
                               : e == 0      ? std::ldexp(m, -9)
                                             : std::ldexp(8 + m, e - 10);
          const double expected = scale * kCodes[code & 7] * (code > 7 ? -1 : 1) * static_cast<double>(p.factor);
          ASSERT_NEAR(row[i], expected, std::fabs(expected) * 2e-7) << p.name << " " << r << " " << i;
        }
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
    } else if (name == "model.layers.0.self_attn.k_proj.weight") {
      out.Add(name, "F8_E4M3", t.shape, fp8);
      out.AddFloats(name + "_scale", {}, {0.5f});
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
    std::vector<float> blocks(k);
    DequantizeRow(w->matrix(Slot::kK), r, blocks.data());
    for (size_t c = 0; c < k; ++c) EXPECT_FLOAT_EQ(blocks[c] * block[r / 128 * 2 + c / 128], row[c] * 0.5f);
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
                                                          {{DType::kF8E4M3, DType::kBF16}, 2}};
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
