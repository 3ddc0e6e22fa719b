// The table of architectures: each row opens as a tiny file, says what its family computes, and needs each tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "model/arch.h"
#include "model/gguf.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_hybrid.h"

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
  if (arch == "olmo2") o.layers = 4;
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
    if (!testing::IsTiny(arch)) continue;
    const auto bytes = BuildTinyModel(Tiny(arch));
    const auto model = OpenModelFromBytes(bytes);
    ASSERT_TRUE(model.ok()) << arch << ": " << model.status();
    const ModelSpec& s = (*model)->spec();
    EXPECT_EQ(s.architecture, arch);
    for (int i = 0; i < static_cast<int>(s.layers.size()); ++i) {
      const LayerSpec& l = s.layers[static_cast<size_t>(i)];
      const auto w = (*model)->Layer(i);
      ASSERT_TRUE(w.ok()) << w.status();
      ASSERT_NE(l.attention(), nullptr);
      EXPECT_EQ(w->matrix(Slot::kQ).n, static_cast<size_t>(l.attention()->heads * l.attention()->head_dim));
      EXPECT_EQ(w->matrix(Slot::kK).n, static_cast<size_t>(l.attention()->kv_heads * l.attention()->head_dim));
      const ExpertSpec* e = l.experts();
      EXPECT_EQ(w->matrix(Slot::kDown).k, static_cast<size_t>(e != nullptr ? e->shared_width : l.dense()->width));
      EXPECT_EQ(w->experts.size(), static_cast<size_t>(e != nullptr ? e->count : 0));
      if (e != nullptr) EXPECT_EQ(w->experts.back().down.k, static_cast<size_t>(e->width));
      EXPECT_EQ(w->vector(Slot::kQBias).empty(), !l.attention()->qkv_bias);
      EXPECT_EQ(w->vector(Slot::kQNorm).empty(), l.attention()->qk_norm == QkNorm::kNone);
      EXPECT_EQ(w->vector(Slot::kMixerPostNorm).empty(), !l.post_norms);
    }
    EXPECT_FALSE((*model)->Layer(-1).ok());
    EXPECT_FALSE((*model)->Layer(static_cast<int>(s.layers.size())).ok());
  }
}

TEST(ArchTest, EachTensorIsNeededAndNamed) {
  size_t tensors = 0;
  for (const std::string& arch : KnownArchitectures()) {
    if (!testing::IsTiny(arch)) continue;
    const auto whole = BuildTinyModel(Tiny(arch));
    const auto file = Gguf::Parse(whole);
    ASSERT_TRUE(file.ok());
    for (const auto& [name, t] : file->tensors().all()) {
      if (testing::kSanitized && ++tensors % 5 != 0) continue;  // a model is made for each
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
      // A layer may be without it.
      if (name.ends_with("layer_output_scale.weight") || name.ends_with(".exp_probs_b.bias")) {
        EXPECT_TRUE(OpenError(o).ok());
        continue;
      }
      EXPECT_THAT(MessageOf(o), HasSubstr(name)) << arch;
    }
  }
}

// The writer draws the same numbers for a joint tensor as for its parts.
TEST(ArchTest, QueryKeyAndValueMayBeJointWithTheirBiases) {
  for (const char* arch : {"llama", "qwen2", "gpt-oss", "glm4moe", "seed_oss"}) {
    TinyOptions o = Tiny(arch);
    const auto apart = BuildTinyModel(o);
    o.joint_qkv = true;
    const auto joint = BuildTinyModel(o);
    const auto a = OpenModelFromBytes(apart), b = OpenModelFromBytes(joint);
    ASSERT_TRUE(a.ok() && b.ok()) << arch << b.status();
    const auto x = (*a)->Layer(1), y = (*b)->Layer(1);
    ASSERT_TRUE(x.ok() && y.ok()) << y.status();
    for (const Slot slot : {Slot::kQBias, Slot::kKBias, Slot::kVBias}) {
      EXPECT_EQ(x->vector(slot), y->vector(slot)) << arch;
      EXPECT_EQ(x->vector(slot).empty(), std::string(arch) == "llama");
    }
    for (const Slot slot : {Slot::kQ, Slot::kK, Slot::kV}) {
      const WeightView &v = x->matrix(slot), &w = y->matrix(slot);
      ASSERT_EQ(v.bytes(), w.bytes());
      EXPECT_EQ(std::memcmp(v.data, w.data, v.bytes()), 0) << arch;
    }
  }
}

TEST(ArchTest, FamiliesDiffer) {
  auto layers = [](const char* arch) {
    const auto bytes = BuildTinyModel(Tiny(arch));
    return (*OpenModelFromBytes(bytes))->spec();
  };
  const ModelSpec llama = layers("llama"), qwen2 = layers("qwen2"), qwen3 = layers("qwen3"), gemma = layers("gemma3");
  EXPECT_EQ(llama.layers[0].attention()->rope.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(qwen2.layers[0].attention()->rope.pairing, RopePairing::kHalves);
  EXPECT_FALSE(llama.layers[0].attention()->qkv_bias);
  EXPECT_TRUE(qwen2.layers[0].attention()->qkv_bias);
  EXPECT_EQ(qwen3.layers[0].attention()->qk_norm, QkNorm::kHead);
  EXPECT_EQ(llama.embedding_scale, 1.0f);
  EXPECT_EQ(gemma.embedding_scale, std::sqrt(32.0f));
  EXPECT_EQ(gemma.layers[0].dense()->activation, Activation::kGeluTanh);
  EXPECT_TRUE(gemma.layers[0].post_norms);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(gemma.layers[i].attention()->window, i == 5 ? 0 : 8) << i;
  EXPECT_FLOAT_EQ(llama.layers[0].attention()->scale, 1 / std::sqrt(8.0f));
  EXPECT_EQ(llama.kv_groups, 1);
}

TEST(ArchTest, UnknownArchitectureListsTheKnown) {
  TinyOptions o = Tiny("phi9");
  const Status status = OpenError(o);
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(Message(status), HasSubstr("\"phi9\" is not known; known are llama mistral qwen2 qwen2moe qwen3"));
  EXPECT_THAT(Message(status), HasSubstr("; the nearest is llama, in which every tensor has a place"));
  o.more = [](GgufWriter& w) {
    w.Uint("phi9.attention.half_life", 3);
    w.Tensor("blk.0.attn_half.weight", DType::kF32, {32}, std::vector<float>(32));
  };
  EXPECT_THAT(MessageOf(o), HasSubstr("in which 1 tensor has no place, such as blk.0.attn_half.weight; it does "
                                      "not read the keys phi9.attention.half_life"));
  o.more = [](GgufWriter& w) {
    for (int i = 0; i < 10; ++i) w.Uint(fmt::format("phi9.k{}", i), 3);
  };
  EXPECT_THAT(MessageOf(o), HasSubstr("phi9.k6 phi9.k7 and 2 more"));
}

struct Spoiled {
  const char* named;
  void (*more)(GgufWriter&);
};

TEST(ArchTest, ValuesThatChangeTheArithmeticAreRefused) {
  const Spoiled cases[] = {
      {"rope.scaling.type", [](GgufWriter& w) { w.String("llama.rope.scaling.type", "spiral"); }},
      {"yarn_log_multiplier", [](GgufWriter& w) { w.Float("llama.rope.scaling.yarn_log_multiplier", 0.1f); }},
      {"expert_gating_func", [](GgufWriter& w) { w.Uint("llama.expert_gating_func", 2); }},
      {"attention.value_length",
       [](GgufWriter& w) {
         w.Uint("llama.attention.key_length", 8);
         w.Uint("llama.attention.value_length", 16);
       }},
      {"attn_logit_softcapping", [](GgufWriter& w) { w.Float("llama.attn_logit_softcapping", 50); }},
      {"attention.causal", [](GgufWriter& w) { w.Bool("llama.attention.causal", false); }},
      {"logit_scale", [](GgufWriter& w) { w.Float("llama.logit_scale", 0.5f); }},
      {"attention.chunk_size", [](GgufWriter& w) { w.Uint("llama.attention.chunk_size", 8); }},
      {"rope.scaling.alpha", [](GgufWriter& w) { w.Float("llama.rope.scaling.alpha", 2); }},
      {"rope.dimension_sections",
       [](GgufWriter& w) {
         w.Numbers("llama.rope.dimension_sections", 4, std::vector<uint32_t>{2, 1, 1, 0});
       }},
      {"swiglu_clamp_exp",
       [](GgufWriter& w) {
         w.Numbers("llama.swiglu_clamp_exp", 6, std::vector<float>{0, 1});
       }},
      {"rope.freq_base_swa",
       [](GgufWriter& w) {
         w.Uint("llama.attention.sliding_window", 16);
         w.Float("llama.rope.freq_base_swa", 500);
       }},
      {"attention.key_length_swa",
       [](GgufWriter& w) {
         w.Uint("llama.attention.sliding_window", 16);
         w.Uint("llama.attention.key_length_swa", 4);
       }},
  };
  for (const Spoiled& c : cases) {
    TinyOptions o = Tiny("llama");
    o.more = c.more;
    const Status status = OpenError(o);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << c.named << ": " << status;
    EXPECT_THAT(Message(status), HasSubstr(c.named));
  }
}

TEST(ArchTest, PartsAreOneModelAndMissingOrMixedOnesAreNamed) {
  namespace fs = std::filesystem;
  char folder[] = "/tmp/gyre-parts-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  auto file = [&](int part, int of = 2) { return fmt::format("{}/m-{:05}-of-{:05}.gguf", folder, part, of); };
  auto write = [](const std::string& path, const std::vector<std::byte>& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  // The last norm alone in the second part.
  TinyOptions o = Tiny("llama");
  const auto whole = BuildTinyModel(o);
  const auto total = static_cast<uint32_t>(Gguf::Parse(whole)->tensors().all().size());
  static uint32_t count;
  count = total;
  o.without = "output_norm.weight";
  o.more = [](GgufWriter& w) {
    w.Uint("split.no", 0);
    w.Uint("split.count", 2);
    w.Uint("split.tensors.count", count);
  };
  write(file(1), BuildTinyModel(o));
  EXPECT_THAT(Message(OpenModel(file(1)).status()), HasSubstr("missing: " + file(2)));
  auto second = [&](uint32_t number, uint32_t tensors) {
    GgufWriter w;
    w.Uint("split.no", number);
    w.Uint("split.count", 2);
    w.Uint("split.tensors.count", tensors);
    w.Tensor("output_norm.weight", DType::kF32, {32}, std::vector<float>(32, 1.0f));
    return w.Finish();
  };
  write(file(2), second(1, total));
  for (int named : {1, 2}) {
    const auto model = OpenModel(file(named));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->tensors().all().size(), total);
    EXPECT_EQ((*model)->Head()->final_norm, std::vector<float>(32, 1.0f));
  }
  write(file(2), second(0, total));
  EXPECT_THAT(Message(OpenModel(file(1)).status()),
              HasSubstr(file(2) + ": inside it is part 1 of 2, expected part 2 of 2"));
  write(file(2), second(1, total + 1));
  EXPECT_THAT(Message(OpenModel(file(1)).status()),
              HasSubstr(fmt::format("part 2 belongs to a model of {} tensors", total + 1)));
  const auto first = BuildTinyModel(o);
  EXPECT_THAT(Message(OpenModelFromBytes(first).status()), HasSubstr("part 1 of 2"));
  fs::remove_all(folder);
}

TEST(ArchTest, ValuesThatChangeNothingPass) {
  TinyOptions o = Tiny("llama");
  o.more = [](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "none");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.expert_count", 0);
    w.Float("llama.logit_scale", 1);
    w.Uint("llama.vocab_size", 96);
    w.Numbers("llama.rope.dimension_sections", 4, std::vector<uint32_t>(4));
    w.Uint("llama.attention.sliding_window", 16);
    w.Float("llama.rope.freq_base_swa", 10000);
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

TEST(ArchTest, HeadsOfMoreElementsThanKernelsTakeAreRefused) {
  auto bytes = BuildTinyModel(Tiny("llama"));
  const std::string_view key = "llama.embedding_length",
                         file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t at = file.find(key);
  ASSERT_NE(at, file.npos);
  const uint32_t dim = 4 * 4098;  // of 4 heads; the tensors, which stay small, are read later
  std::memcpy(&bytes[at + key.size() + 4], &dim, 4);
  EXPECT_THAT(Message(OpenModelFromBytes(bytes).status()), HasSubstr("4098 elements each, expected at most 4096"));
}

TEST(ArchTest, HeadCountsMayComeLayerByLayer) {
  TinyOptions o = Tiny("llama");
  o.heads_per_layer = true;
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().layers[1].attention()->heads, 4);
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
  EXPECT_EQ((*model)->spec().layers[0].attention()->rope.dims, 4);
  EXPECT_EQ((*model)->spec().layers[0].attention()->rope.frequency_factors, (std::vector<float>{1, 8}));
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
  EXPECT_EQ((*model)->Layer(0)->vector(Slot::kVBias), std::vector<float>(16, 3.0f));
  o.more = [](GgufWriter& w) { w.Tensor("blk.0.attn_q.bias", DType::kF32, {32}, std::vector<float>(32, 1.0f)); };
  EXPECT_THAT(MessageOf(o), HasSubstr("blk.0.attn_k.bias"));
}

ModelSpec SpecWith(const std::string& arch, void (*more)(GgufWriter&)) {
  TinyOptions o = Tiny(arch);
  o.more = more;
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? (*model)->spec() : ModelSpec{.layers = std::vector<LayerSpec>(2)};
}

// Of a file of which only the metadata is the architecture's.
StatusOr<ModelSpec> SpecOf(const std::string& arch, void (*more)(GgufWriter&)) {
  TinyOptions o = Tiny(arch);
  o.more = more;
  const auto bytes = BuildTinyModel(o);
  const auto file = Gguf::Parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  return SpecFromGguf(*file);
}

TEST(ArchTest, PositionsOfSeveralPartsRotateHalves) {
  const auto plain = SpecOf("glm4", nullptr),
             parts = SpecOf("glm4", [](GgufWriter&w) {
               w.Numbers("glm4.rope.dimension_sections", 4, std::vector<uint32_t>{2, 1, 1, 0});
             });
  ASSERT_TRUE(plain.ok() && parts.ok()) << plain.status() << parts.status();
  EXPECT_EQ(plain->layers[0].attention()->rope.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(parts->layers[0].attention()->rope.pairing, RopePairing::kHalves);
}

TEST(ArchTest, WindowedLayersMayHaveABaseOfTheirOwn) {
  const ModelSpec spec = SpecWith("gpt-oss", [](GgufWriter& w) { w.Float("gpt-oss.rope.freq_base_swa", 500); });
  const RopeSpec &local = spec.layers[0].attention()->rope, &global = spec.layers[1].attention()->rope;
  EXPECT_EQ(local.base, 500);
  EXPECT_EQ(global.base, 10000);
  EXPECT_EQ(local.magnitude, global.magnitude);
  EXPECT_EQ(local.frequency_factors, std::vector<float>({1, 4, 4, 4}));  // the scaling stays
}

TEST(ArchTest, WhatAFamilyNeitherReadsNorComputesIsNamed) {
  struct Case {
    const char *arch, *named;
    void (*more)(GgufWriter&);
  };
  const Case cases[] = {
      {"lfm2", "lfm2.attention.sliding_window",
       [](GgufWriter& w) {
         w.Uint("lfm2.shortconv.l_cache", 3);
         w.Uint("lfm2.attention.sliding_window", 8);
       }},
      {"mimo2", "key mimo2.attention.sliding_window_pattern is missing",
       [](GgufWriter& w) { w.Uint("mimo2.attention.sliding_window", 8); }},
      {"llama4", "is 16, known for llama4 are 0 and 8192",
       [](GgufWriter& w) { w.Uint("llama4.attention.sliding_window", 16); }},
      {"phimoe", "phimoe.expert_group_count is 2",
       [](GgufWriter& w) {
         w.Uint("phimoe.expert_count", 4);
         w.Uint("phimoe.expert_used_count", 2);
         w.Uint("phimoe.expert_group_count", 2);
       }},
      {"phimoe", "phimoe.expert_gating_func is 2",
       [](GgufWriter& w) {
         w.Uint("phimoe.expert_count", 4);
         w.Uint("phimoe.expert_used_count", 2);
         w.Uint("phimoe.expert_gating_func", 2);
       }},
      {"llama4", "llama4.expert_group_count is 2",
       [](GgufWriter& w) {
         w.Uint("llama4.expert_count", 4);
         w.Uint("llama4.expert_used_count", 1);
         w.Uint("llama4.expert_group_count", 2);
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.named);
    const auto spec = SpecOf(c.arch, c.more);
    ASSERT_FALSE(spec.ok());
    EXPECT_THAT(Message(spec.status()), HasSubstr(c.named));
  }
}

TEST(ArchTest, EachLayerMayHaveABiasOnItsChoice) {
  TinyOptions o = Tiny("minimax-m2");
  o.without = "blk.1.exp_probs_b.bias";
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE((*model)->spec().layers[0].experts()->choice_bias);
  EXPECT_FALSE((*model)->spec().layers[1].experts()->choice_bias);
}

TEST(ArchTest, WindowsAndSoftcapsAreTheFamilys) {
  EXPECT_EQ(SpecWith("mistral", nullptr).layers[1].attention()->window, 8);
  EXPECT_EQ(SpecWith("llama", nullptr).layers[1].attention()->window, 0);
  EXPECT_EQ(SpecWith("llama", [](GgufWriter& w) { w.Uint("llama.attention.sliding_window", 16); })
                .layers[1]
                .attention()
                ->window,
            16);
  // The file may say which layers have it, also where the family does not.
  const ModelSpec qwen = SpecWith("qwen2", [](GgufWriter& w) {
    w.Uint("qwen2.attention.sliding_window", 16);
    w.Numbers("qwen2.attention.sliding_window_pattern", 7, std::vector<uint8_t>{0, 1});
  });
  EXPECT_EQ(qwen.layers[0].attention()->window, 0);
  EXPECT_EQ(qwen.layers[1].attention()->window, 16);
  const ModelSpec gemma = SpecWith("gemma2", [](GgufWriter& w) { w.Float("gemma2.attn_logit_softcapping", 20); });
  EXPECT_EQ(gemma.layers[0].attention()->window, 8);
  EXPECT_EQ(gemma.layers[1].attention()->window, 0);
  EXPECT_EQ(gemma.layers[0].attention()->softcap, 20.0f);
  EXPECT_EQ(gemma.final_softcap, 30.0f);
  EXPECT_EQ(gemma.layers[0].attention()->qk_norm, QkNorm::kNone);
}

TEST(ArchTest, AContextBeyondARotationThatFollowsTheLengthIsRefused) {
  TinyOptions o = Tiny("llama");
  o.more = [](GgufWriter& w) { w.Bool("gyre.rope.follows_length", true); };
  const auto bytes = BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  const int context = (*model)->spec().context;
  EXPECT_TRUE(OpenModelFromBytes(bytes, {.context = context}).ok());
  const Status status = OpenModelFromBytes(bytes, {.context = context + 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr(fmt::format("expected at most {}", context)));
}

TEST(ArchTest, YarnsRampEndsBetweenPairsWhereTheFileSaysSo) {
  const auto factors = [](void (*more)(GgufWriter&)) {
    return SpecWith("llama", more).layers[0].attention()->rope.frequency_factors;
  };
  const auto yarn = [](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "yarn");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.rope.scaling.original_context_length", 128);
  };
  static constexpr auto kYarn = yarn;
  const auto rounded = factors([](GgufWriter& w) { kYarn(w); });
  const auto exact = factors([](GgufWriter& w) {
    kYarn(w);
    w.Bool("gyre.rope.yarn_truncate", false);
  });
  EXPECT_NE(rounded, exact);
  EXPECT_EQ(rounded, factors([](GgufWriter& w) {
              kYarn(w);
              w.Bool("gyre.rope.yarn_truncate", true);
            }));
}

TEST(ArchTest, ExpertsAreReadAndDenseLayersHaveNone) {
  auto experts = [](const char* arch) {
    const LayerSpec layer = SpecWith(arch, nullptr).layers[0];
    return layer.experts() != nullptr ? *layer.experts() : ExpertSpec{};
  };
  const ExpertSpec qwen = experts("qwen2moe");
  EXPECT_EQ(qwen.count, 4);
  EXPECT_EQ(qwen.used, 2);
  EXPECT_EQ(qwen.width, 32);
  EXPECT_FALSE(qwen.normalize);
  EXPECT_EQ(qwen.shared_width, 64);
  EXPECT_TRUE(qwen.shared_gate);
  EXPECT_TRUE(experts("qwen3moe").normalize);
  EXPECT_EQ(experts("qwen3moe").shared_width, 0);
  EXPECT_EQ(experts("llama").count, 0);
  TinyOptions o = Tiny("qwen3moe");
  o.used = 5;
  EXPECT_THAT(MessageOf(o), HasSubstr("expert_used_count"));
}

// Against the formulas as the papers write them.
TEST(ArchTest, RopeScalingsStretchTheFrequencies) {
  auto rope = [](void (*more)(GgufWriter&)) { return SpecWith("llama", more).layers[0].attention()->rope; };
  const RopeSpec linear = rope([](GgufWriter& w) { w.Float("llama.rope.scaling.factor", 8); });
  EXPECT_EQ(linear.frequency_factors, std::vector<float>(4, 8.0f));
  EXPECT_EQ(linear.magnitude, 1.0f);
  const RopeSpec ntk = rope([](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "ntk");
    w.Float("llama.rope.scaling.factor", 4);
  });
  EXPECT_NEAR(ntk.base, 10000 * std::pow(4.0, 8.0 / 6.0), 1e-6);
  const RopeSpec yarn = rope([](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "yarn");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.rope.scaling.original_context_length", 128);
  });
  EXPECT_NEAR(yarn.magnitude, 0.1 * std::log(4.0) + 1, 1e-6);
  const RopeSpec stronger = rope([](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "yarn");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.rope.scaling.original_context_length", 128);
    w.Float("llama.rope.scaling.attn_factor", 1.5f);
    w.Float("llama.rope.scaling.yarn_attn_factor", 2);
  });
  EXPECT_NEAR(stronger.magnitude, 3 * (0.1 * std::log(4.0) + 1), 1e-6);
  EXPECT_EQ(stronger.frequency_factors, yarn.frequency_factors);
  for (size_t i = 0; i < 4; ++i) {
    const double theta = std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
    auto dim = [](double turns) {
      return 8 * std::log(128 / (turns * 2 * 3.14159265358979)) / (2 * std::log(10000.0));
    };
    const double low = std::max(std::floor(dim(32)), 0.0), high = std::min(std::ceil(dim(1)), 7.0);
    const double gamma = 1 - std::min(std::max((static_cast<double>(i) - low) / (high - low), 0.0), 1.0);
    EXPECT_NEAR(theta / static_cast<double>(yarn.frequency_factors[i]), (1 - gamma) * theta / 4 + gamma * theta,
                1e-6 * theta)
        << i;
  }
  const RopeSpec llama3 = rope([](GgufWriter& w) {
    w.String("llama.rope.scaling.type", "llama3");
    w.Float("llama.rope.scaling.factor", 8);
    w.Uint("llama.rope.scaling.original_context_length", 64);
  });
  for (size_t i = 0; i < 4; ++i) {
    const double wavelength = 2 * 3.14159265358979 / std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
    double expected = 8;
    if (wavelength < 64 / 4.0)
      expected = 1;
    else if (wavelength <= 64)
      expected = 1 / ((1 - (64 / wavelength - 1) / 3) / 8 + (64 / wavelength - 1) / 3);
    EXPECT_NEAR(llama3.frequency_factors[i], expected, 1e-5) << i;
  }
  TinyOptions o = Tiny("llama");
  o.more = [](GgufWriter& w) { w.Float("llama.rope.scaling.factor", 0.5f); };
  EXPECT_THAT(MessageOf(o), HasSubstr("factor is 0.5"));
}

TEST(ArchTest, LongRopeFollowsTheContextThatIsWanted) {
  TinyOptions o = Tiny("phi3");
  o.more = [](GgufWriter& w) {
    w.Uint("phi3.rope.scaling.original_context_length", 128);
    w.Float("phi3.rope.scaling.attn_factor", 1.25f);
    w.Tensor("rope_factors_long.weight", DType::kF32, {4}, {2, 3, 4, 5});
    w.Tensor("rope_factors_short.weight", DType::kF32, {4}, {1, 1, 1, 2});
  };
  const auto bytes = BuildTinyModel(o);
  const auto far = OpenModelFromBytes(bytes), near = OpenModelFromBytes(bytes, {.context = 128});
  ASSERT_TRUE(far.ok() && near.ok()) << far.status() << near.status();
  EXPECT_EQ((*far)->spec().layers[0].attention()->rope.frequency_factors, (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ((*near)->spec().layers[0].attention()->rope.frequency_factors, (std::vector<float>{1, 1, 1, 2}));
  EXPECT_EQ((*near)->spec().layers[0].attention()->rope.magnitude, 1.25f);
  EXPECT_NE((*far)->content_hash(), (*near)->content_hash());
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
  EXPECT_EQ(layers[0].attention()->window, 8);
  EXPECT_EQ(layers[0].attention()->rope.base, 500.0);
  EXPECT_EQ(layers[1].attention()->window, 0);
}

TEST(ArchTest, WeightTypesAreSeenThrough) {
  for (DType type : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1}) {
    TinyOptions o = Tiny("llama");
    o.type = type;
    const auto bytes = BuildTinyModel(o);
    const auto model = OpenModelFromBytes(bytes);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kQ).type, type);
    EXPECT_EQ((*model)->float_weights(), type == DType::kF16 || type == DType::kBF16);
  }
}

}  // namespace
}  // namespace gyre
