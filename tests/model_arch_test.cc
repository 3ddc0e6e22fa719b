// The table of architectures: each row opens as a tiny file, says what its family computes, and needs each tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/arch.h"
#include "model/gguf.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"

namespace gyre {
namespace {

using testing::BuildTinyModel;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TinyOptions;

TinyOptions Tiny(const std::string& arch) {
  TinyOptions o;
  o.arch = arch;
  o.layers = arch == "gemma3" ? 7 : 2;
  return o;
}

Status OpenError(const TinyOptions& o) {
  const auto bytes = BuildTinyModel(o);
  return OpenModelFromBytes(bytes).status();
}

std::string MessageOf(const TinyOptions& o) {
  const Status status = OpenError(o);
  EXPECT_FALSE(status.ok());
  return Message(status);
}

TEST(ArchTest, EveryRowOpens) {
  for (const std::string& arch : KnownArchitectures()) {
    const auto bytes = BuildTinyModel(Tiny(arch));
    const auto model = OpenModelFromBytes(bytes);
    ASSERT_TRUE(model.ok()) << arch << ": " << model.status();
    const ModelSpec& s = (*model)->spec();
    EXPECT_EQ(s.architecture, arch);
    for (int i = 0; i < static_cast<int>(s.layers.size()); ++i) {
      const LayerSpec& l = s.layers[static_cast<size_t>(i)];
      const auto w = (*model)->Layer(i);
      ASSERT_TRUE(w.ok()) << w.status();
      EXPECT_EQ(w->q.n, static_cast<size_t>(l.heads * l.head_dim));
      EXPECT_EQ(w->k.n, static_cast<size_t>(l.kv_heads * l.head_dim));
      EXPECT_EQ(w->down.k, static_cast<size_t>(l.ffn));
      EXPECT_EQ(w->q_bias.empty(), !l.qkv_bias);
      EXPECT_EQ(w->q_norm.empty(), !l.qk_norm);
      EXPECT_EQ(w->attn_post_norm.empty(), !l.post_norms);
    }
    EXPECT_FALSE((*model)->Layer(-1).ok());
    EXPECT_FALSE((*model)->Layer(static_cast<int>(s.layers.size())).ok());
  }
}

TEST(ArchTest, EachTensorIsNeededAndNamed) {
  for (const std::string& arch : KnownArchitectures()) {
    const auto whole = BuildTinyModel(Tiny(arch));
    const auto file = Gguf::Parse(whole);
    ASSERT_TRUE(file.ok());
    for (const auto& [name, t] : file->tensors().all()) {
      TinyOptions o = Tiny(arch);
      o.without = name;
      if (name == "output.weight") {  // then the head is tied
        const auto bytes = BuildTinyModel(o);
        const auto model = OpenModelFromBytes(bytes);
        ASSERT_TRUE(model.ok()) << model.status();
        EXPECT_TRUE((*model)->spec().tied_head);
        EXPECT_EQ((*model)->Head()->output.data, (*model)->Embedding()->data);
        continue;
      }
      EXPECT_THAT(MessageOf(o), HasSubstr(name)) << arch;
    }
  }
}

TEST(ArchTest, FamiliesDiffer) {
  auto layers = [](const char* arch) {
    const auto bytes = BuildTinyModel(Tiny(arch));
    return (*OpenModelFromBytes(bytes))->spec();
  };
  const ModelSpec llama = layers("llama"), qwen2 = layers("qwen2"), qwen3 = layers("qwen3"), gemma = layers("gemma3");
  EXPECT_EQ(llama.layers[0].rope.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(qwen2.layers[0].rope.pairing, RopePairing::kHalves);
  EXPECT_FALSE(llama.layers[0].qkv_bias);
  EXPECT_TRUE(qwen2.layers[0].qkv_bias);
  EXPECT_TRUE(qwen3.layers[0].qk_norm);
  EXPECT_EQ(llama.embedding_scale, 1.0f);
  EXPECT_EQ(gemma.embedding_scale, std::sqrt(32.0f));
  EXPECT_EQ(gemma.layers[0].activation, Activation::kGeluTanh);
  EXPECT_TRUE(gemma.layers[0].post_norms);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(gemma.layers[i].window, i == 5 ? 0 : 8) << i;
  EXPECT_FLOAT_EQ(llama.layers[0].attention_scale, 1 / std::sqrt(8.0f));
  EXPECT_EQ(llama.kv_groups, 1);
}

TEST(ArchTest, UnknownArchitectureListsTheKnown) {
  TinyOptions o = Tiny("phi3");
  const Status status = OpenError(o);
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(Message(status), HasSubstr("\"phi3\" is not known; known are llama qwen2 qwen3 gemma3"));
}

struct Spoiled {
  const char* named;
  void (*more)(GgufWriter&);
};

TEST(ArchTest, ValuesThatChangeTheArithmeticAreRefused) {
  const Spoiled cases[] = {
      {"rope.scaling.type", [](GgufWriter& w) { w.String("llama.rope.scaling.type", "yarn"); }},
      {"rope.scaling.factor", [](GgufWriter& w) { w.Float("llama.rope.scaling.factor", 8); }},
      {"expert_count", [](GgufWriter& w) { w.Uint("llama.expert_count", 4); }},
      {"attention.value_length",
       [](GgufWriter& w) {
         w.Uint("llama.attention.key_length", 8);
         w.Uint("llama.attention.value_length", 16);
       }},
      {"attn_logit_softcapping", [](GgufWriter& w) { w.Float("llama.attn_logit_softcapping", 50); }},
      {"attention.sliding_window", [](GgufWriter& w) { w.Uint("llama.attention.sliding_window", 8); }},
      {"attention.causal", [](GgufWriter& w) { w.Bool("llama.attention.causal", false); }},
      {"split", [](GgufWriter& w) { w.Uint("split.count", 2); }},
      {"logit_scale", [](GgufWriter& w) { w.Float("llama.logit_scale", 0.5f); }},
  };
  for (const Spoiled& c : cases) {
    TinyOptions o = Tiny("llama");
    o.more = c.more;
    const Status status = OpenError(o);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << c.named << ": " << status;
    EXPECT_THAT(Message(status), HasSubstr(c.named));
  }
}

TEST(ArchTest, ValuesThatChangeNothingPass) {
  TinyOptions o = Tiny("llama");
  o.more = [](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "none");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.expert_count", 0);
    w.Uint("llama.attention.sliding_window", 512);
    w.Float("llama.logit_scale", 1);
    w.Uint("llama.vocab_size", 96);
  };
  EXPECT_TRUE(OpenError(o).ok()) << OpenError(o);
}

TEST(ArchTest, ValuesOutOfRangeAreCorrupt) {
  const Spoiled cases[] = {
      {"rope.dimension_count", [](GgufWriter& w) { w.Uint("llama.rope.dimension_count", 10); }},
      {"rope.dimension_count", [](GgufWriter& w) { w.Uint("llama.rope.dimension_count", 3); }},
      {"vocab_size", [](GgufWriter& w) { w.Uint("llama.vocab_size", 95); }},
      {"attention.key_length", [](GgufWriter& w) { w.Uint("llama.attention.key_length", 0); }},
      {"attention.key_length", [](GgufWriter& w) { w.Uint("llama.attention.key_length", 1u << 30); }},
      {"is no integer", [](GgufWriter& w) { w.String("llama.vocab_size", "96"); }},
  };
  for (const Spoiled& c : cases) {
    TinyOptions o = Tiny("llama");
    o.more = c.more;
    const Status status = OpenError(o);
    EXPECT_TRUE(absl::IsDataLoss(status)) << c.named << ": " << status;
  }
}

TEST(ArchTest, HeadCountsMayComeLayerByLayer) {
  TinyOptions o = Tiny("llama");
  o.heads_per_layer = true;
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().layers[1].heads, 4);
}

TEST(ArchTest, PartialRotationAndFrequencyFactors) {
  TinyOptions o = Tiny("llama");
  o.more = [](GgufWriter& w) {
    w.Uint("llama.rope.dimension_count", 4);
    w.Tensor("rope_freqs.weight", DType::kF32, {2}, {1.0f, 8.0f});
  };
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().layers[0].rope.dims, 4);
  EXPECT_EQ((*model)->spec().layers[0].rope.frequency_factors, (std::vector<float>{1, 8}));
  o.more = [](GgufWriter& w) { w.Tensor("rope_freqs.weight", DType::kF32, {4}, {1, 1, 0, 1}); };
  EXPECT_THAT(MessageOf(o), HasSubstr("rope_freqs.weight"));
  o.more = [](GgufWriter& w) { w.Tensor("rope_freqs.weight", DType::kF32, {2}, {1, 1}); };
  EXPECT_THAT(MessageOf(o), HasSubstr("rope_freqs.weight"));
}

TEST(ArchTest, LlamaMayHaveBiasesAllThreeOrNone) {
  TinyOptions o = Tiny("llama");
  o.layers = 1;
  o.more = [](GgufWriter& w) {
    w.Tensor("blk.0.attn_q.bias", DType::kF32, {32}, std::vector<float>(32, 1.0f));
    w.Tensor("blk.0.attn_k.bias", DType::kF32, {16}, std::vector<float>(16, 2.0f));
    w.Tensor("blk.0.attn_v.bias", DType::kF32, {16}, std::vector<float>(16, 3.0f));
  };
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->Layer(0)->v_bias, std::vector<float>(16, 3.0f));
  o.more = [](GgufWriter& w) { w.Tensor("blk.0.attn_q.bias", DType::kF32, {32}, std::vector<float>(32, 1.0f)); };
  EXPECT_THAT(MessageOf(o), HasSubstr("blk.0.attn_k.bias"));
}

TEST(ArchTest, TensorsThatNobodyReadsAreAnError) {
  TinyOptions o = Tiny("llama");
  o.more = [](GgufWriter& w) { w.Tensor("blk.0.attn_output.bias", DType::kF32, {4}, {1, 2, 3, 4}); };
  const Status status = OpenError(o);
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(Message(status), HasSubstr("blk.0.attn_output.bias"));
  o.more = [](GgufWriter& w) { w.Tensor("blk.0.attn_rot_embd.weight", DType::kF32, {4}, {1, 2, 3, 4}); };
  EXPECT_TRUE(OpenError(o).ok());
}

TEST(ArchTest, Gemma3PatternCanBeStated) {
  TinyOptions o = Tiny("gemma3");
  o.more = [](GgufWriter& w) {
    w.Uint("gemma3.attention.sliding_window_pattern", 2);
    w.Float("gemma3.rope.freq_base_swa", 500);
  };
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& layers = (*model)->spec().layers;
  EXPECT_EQ(layers[0].window, 8);
  EXPECT_EQ(layers[0].rope.base, 500.0);
  EXPECT_EQ(layers[1].window, 0);
}

TEST(ArchTest, WeightTypesAreSeenThrough) {
  for (DType type : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1}) {
    TinyOptions o = Tiny("llama");
    o.type = type;
    const auto bytes = BuildTinyModel(o);
    const auto model = OpenModelFromBytes(bytes);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->Layer(0)->q.type, type);
    EXPECT_EQ((*model)->float_weights(), type == DType::kF16);
  }
}

}  // namespace
}  // namespace gyre
