// Families with latent attention or recurrent state: what is read of their files, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/arch.h"
#include "model/gguf.h"
#include "model/layer_tensors.h"
#include "model/quantize.h"
#include "model/tensor_table.h"
#include "model/weights.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_hybrid.h"

namespace gyre {
namespace {

using testing::BuildTinyHybrid;
using ::testing::HasSubstr;

std::string ErrorWithout(const std::string& arch, const std::string& what) {
  const auto bytes = BuildTinyHybrid(arch, what);
  const auto model = OpenModelFromBytes(bytes);
  EXPECT_FALSE(model.ok()) << arch << " without " << what;
  return std::string(model.status().message());
}

TEST(HybridTest, EveryRowOpensAndEachTensorIsNeeded) {
  size_t known = 0, tensors = 0;
  for (const std::string& arch : KnownArchitectures()) {
    if (!testing::IsTinyHybrid(arch)) continue;
    ++known;
    const auto bytes = BuildTinyHybrid(arch);
    const auto model = OpenModelFromBytes(bytes);
    ASSERT_TRUE(model.ok()) << arch << ": " << model.status();
    const ModelSpec& spec = (*model)->spec();
    EXPECT_EQ(spec.layers.size(), 6u);
    EXPECT_EQ(spec.kv_groups, arch == "deepseek2" ? 1 : 2);
    const auto file = Gguf::Parse(bytes);
    ASSERT_TRUE(file.ok());
    for (const auto& [name, t] : file->tensors().all()) {
      if (name == "output.weight" || name.ends_with("exp_probs_b.bias")) continue;  // optional
      if (testing::kSanitized && ++tensors % 5 != 0) continue;                      // a model is made for each
      EXPECT_THAT(ErrorWithout(arch, name), HasSubstr(name)) << arch;
    }
  }
  EXPECT_EQ(known, 8u);
}

TEST(HybridTest, EachKeyIsNeededAndNamed) {
  for (const auto& [arch, keys] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"qwen35", {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"}},
           {"nemotron_h",
            {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"}},
           {"lfm2", {"shortconv.l_cache"}},
           {"deepseek2",
            {"attention.kv_lora_rank", "attention.key_length", "attention.key_length_mla",
             "attention.value_length_mla"}}}) {
    for (const std::string& key : keys) EXPECT_THAT(ErrorWithout(arch, key), HasSubstr(arch + "." + key));
  }
}

// The state of a sequence, by the formulas of the families' papers.
TEST(HybridTest, SizesOfWhatIsKept) {
  auto spec = [](const char* arch) {
    const auto bytes = BuildTinyHybrid(arch);
    return (*OpenModelFromBytes(bytes))->spec();
  };
  const ModelSpec delta = spec("qwen35"), mamba = spec("nemotron_h"), conv = spec("lfm2"), latent = spec("deepseek2");
  EXPECT_EQ(delta.UnitBytes(KvType::kF16, 1)[kSlotGroup], 4u * 4 * (3 * (2 * 2 * 8 + 4 * 8) + 4 * 8 * 8));
  EXPECT_EQ(mamba.UnitBytes(KvType::kF16, 1)[kSlotGroup], 4u * 3 * (3 * (64 + 2 * 2 * 8) + 64 * 8));
  EXPECT_EQ(conv.UnitBytes(KvType::kF16, 1)[kSlotGroup], 4u * 4 * 2 * 32);
  EXPECT_EQ(latent.UnitBytes(KvType::kF16, 1)[kSlotGroup], 0u);
  EXPECT_EQ(delta.UnitBytes(KvType::kF16, 1)[kPageGroup], 2u * 2 * 2 * 2 * 8);
  EXPECT_EQ(mamba.UnitBytes(KvType::kF16, 1)[kPageGroup], 2u * 2 * 2 * 8);
  EXPECT_EQ(latent.UnitBytes(KvType::kF16, 1)[kPageGroup], 2u * 6 * (16 + 4));
}

// Files in older tensors give the same layers.
TEST(HybridTest, OlderTensorsAreSplit) {
  for (const std::string& arch : {std::string("deepseek2"), std::string("qwen3next")}) {
    const auto now = BuildTinyHybrid(arch), before = BuildTinyHybrid(arch, {}, 1, true);
    const auto a = OpenModelFromBytes(now), b = OpenModelFromBytes(before);
    ASSERT_TRUE(a.ok() && b.ok()) << b.status();
    EXPECT_FALSE((*b)->tensors().Has(arch == "deepseek2" ? "blk.0.attn_kv_b.weight" : "blk.0.ssm_in.weight"));
    size_t made = 0;
    for (int layer = 0; layer < 6; ++layer) {
      const auto x = (*a)->Layer(layer), y = (*b)->Layer(layer);
      ASSERT_TRUE(x.ok() && y.ok()) << y.status();
      made += y->made.size();
      for (size_t slot = 0; slot < kSlots; ++slot) {
        const WeightView &v = x->matrices[slot], &w = y->matrices[slot];
        ASSERT_EQ(v.bytes(), w.bytes()) << arch << " " << slot;
        if (v.n > 0) EXPECT_EQ(std::memcmp(v.data, w.data, v.bytes()), 0) << arch << " " << layer << " " << slot;
      }
    }
    EXPECT_EQ(made, arch == "deepseek2" ? 12u : 8u);
  }
}

// Tensors that the forward pass takes as vectors keep their type, whatever their shape.
TEST(HybridTest, VectorsAreNotQuantized) {
  size_t vectors = 0, matrices = 0;
  for (const char* arch : {"qwen35", "nemotron_h", "lfm2"}) {
    const auto bytes = BuildTinyHybrid(arch);
    const auto file = Gguf::Parse(bytes);
    const auto model = OpenModelFromBytes(bytes);
    const auto& tensors = file->tensors().all();
    const ModelSpec& spec = (*model)->spec();
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      for (const TensorRow& row : LayerTensors(spec.layers[i], spec.dim)) {
        const auto it = tensors.find(fmt::format("blk.{}.{}", i, row.name));
        if (it == tensors.end()) continue;  // a part of a fused one
        const DType type = TypeFor("Q8_0", it->first, it->second, 6, false);
        EXPECT_EQ(type == DType::kF32, row.form == TensorForm::kVector) << it->first;
        ++(row.form == TensorForm::kVector ? vectors : matrices);
      }
    }
  }
  EXPECT_GT(vectors, 40u);
  EXPECT_GT(matrices, 40u);
}

}  // namespace
}  // namespace gyre
