// LoRA adapters as files: both forms, scales, orders of rows, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "model/adapter.h"
#include "model/quantize.h"
#include "model/weights.h"
#include "tests/testing/lora_writer.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

std::vector<float> Floats(const WeightView& w) {
  std::vector<float> out(w.n * w.k);
  Dequantize(w.type, w.data, out.data(), out.size());
  return out;
}

std::string AdapterMessage(const Model& model, const std::string& path) {
  const auto adapter = Adapter::Open("x", path, model.spec(), true);
  return adapter.ok() ? "it was opened" : std::string(adapter.status().message());
}

// The GGUF form of an adapter and PEFT's give the same weights, whichever order of rows they have.
TEST(AdapterTest, BothFormsAreTheSameAdapter) {
  for (const std::string arch : {"llama", "qwen2", "phi3"}) {
    SCOPED_TRACE(arch);
    const testing::TinyModelFile file(testing::TinyOptions{.arch = arch, .layers = 3});
    const auto model = *OpenModel(file.path());
    const testing::LoraOptions options{
        .seed = 5,
        .rank = 3,
        .matrices = {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}};
    const testing::TinyModelFile gguf(testing::LoraGguf(*model, options));
    const testing::TempFolder folder;
    testing::WritePeft(*model, options, folder.path(),
                       arch == "llama" ? std::pair<uint64_t, uint64_t>{4, 2} : std::pair<uint64_t, uint64_t>{0, 0});
    const auto a = Adapter::Open("a", gguf.path(), model->spec(), true);
    const auto b = Adapter::Open("b", folder.path(), model->spec(), true);
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(b.ok()) << b.status();
    EXPECT_EQ((*a)->files().size(), 1u);
    EXPECT_EQ((*b)->files().size(), 2u);
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<MadeTensor::Bytes> held;
      const auto of_a = (*a)->Layer(layer, &held), of_b = (*b)->Layer(layer, &held);
      ASSERT_EQ(of_a.size(), 7u);
      ASSERT_EQ(of_b.size(), of_a.size());
      size_t bytes = 0;
      for (size_t i = 0; i < of_a.size(); ++i) {
        EXPECT_EQ(of_a[i].slot, of_b[i].slot);
        EXPECT_EQ(of_a[i].a.n, 3u);
        EXPECT_EQ(of_a[i].scale, 2.0f);
        EXPECT_EQ(of_b[i].scale, 2.0f);
        EXPECT_EQ(Floats(of_a[i].a), Floats(of_b[i].a));
        EXPECT_EQ(Floats(of_a[i].b), Floats(of_b[i].b));
        bytes += of_a[i].a.bytes() + of_a[i].b.bytes();
      }
      EXPECT_EQ((*a)->LayerBytes(layer), bytes);
    }
    std::vector<MadeTensor::Bytes> held;
    EXPECT_TRUE((*a)->Layer(3, &held).empty());
    EXPECT_EQ((*a)->LayerBytes(3), 0u);
  }
}

TEST(AdapterTest, ItsScaleFollowsFromItsSettings) {
  const testing::TinyModelFile file(testing::TinyOptions{.layers = 2});
  const auto model = *OpenModel(file.path());
  const testing::LoraOptions options{.rank = 4, .alpha = 6, .matrices = {"attn_q", "attn_v"}};
  const auto scales = [&](const boost::json::object& config) {
    const testing::TempFolder folder;
    testing::WritePeft(*model, options, folder.path(), {4, 2}, config);
    const auto adapter = Adapter::Open("a", folder.path(), model->spec(), true);
    EXPECT_TRUE(adapter.ok()) << adapter.status();
    std::vector<float> out;
    for (int layer = 0; adapter.ok() && layer < 2; ++layer) {
      std::vector<MadeTensor::Bytes> held;
      for (const LowRankWeights& w : (*adapter)->Layer(layer, &held)) out.push_back(w.scale);
    }
    return out;
  };
  using Scales = std::vector<float>;
  EXPECT_EQ(scales({}), (Scales{1.5f, 1.5f, 1.5f, 1.5f}));
  EXPECT_EQ(scales({{"use_rslora", true}}), (Scales{3, 3, 3, 3}));
  EXPECT_EQ(scales({{"alpha_pattern", boost::json::object{{"v_proj", 8}}}}), (Scales{1.5f, 2, 1.5f, 2}));
  EXPECT_EQ(scales({{"alpha_pattern", boost::json::object{{R"(layers\.1\.self_attn\.(q|k)_proj)", 12}}}}),
            (Scales{1.5f, 1.5f, 3, 1.5f}));
  // Without an alpha a GGUF adapter is not scaled.
  const testing::TinyModelFile gguf(testing::LoraGguf(*model, {.alpha = 0}));
  std::vector<MadeTensor::Bytes> held;
  EXPECT_EQ((*Adapter::Open("a", gguf.path(), model->spec(), true))->Layer(0, &held).at(0).scale, 1);
}

TEST(AdapterTest, WhatIsNotObeyedIsRefusedByName) {
  const testing::TinyModelFile file(testing::TinyOptions{.layers = 2}),
      other(testing::TinyOptions{.arch = "qwen2", .layers = 2}), wider(testing::TinyOptions{.dim = 64, .layers = 2}),
      experts(testing::TinyOptions{.arch = "qwen2moe", .layers = 2});
  const auto model = *OpenModel(file.path());
  const auto gguf = [&](const Model& of, const testing::LoraOptions& o,
                        const std::function<void(testing::GgufWriter&)>& more = {}) {
    return testing::LoraGguf(of, o, more);
  };
  const auto said = [&](const std::vector<std::byte>& bytes) {
    const testing::TinyModelFile adapter(bytes);
    return AdapterMessage(*model, adapter.path());
  };
  EXPECT_THAT(said(gguf(**OpenModel(other.path()), {})), HasSubstr("architecture qwen2, the model's is llama"));
  EXPECT_THAT(said(gguf(**OpenModel(wider.path()), {})), HasSubstr("blk.0.attn_q.weight.lora_a"));
  EXPECT_THAT(said(gguf(*model, {.matrices = {}})), HasSubstr("no tensors"));
  EXPECT_THAT(said(gguf(*model, {}, [](auto& w) { w.String("adapter.alora.invocation_tokens", "x"); })),
              HasSubstr("adapter.alora.invocation_tokens"));
  const std::vector<float> some(64, 1.0f);
  for (const std::string name :
       {"token_embd.weight", "output.weight", "blk.0.attn_norm.weight", "blk.7.attn_q.weight"}) {
    EXPECT_THAT(said(gguf(*model, {.matrices = {"attn_q"}},
                          [&](auto& w) {
                            w.Tensor(name + ".lora_a", DType::kF32, {32, 2}, some);
                            w.Tensor(name + ".lora_b", DType::kF32, {2, 32}, some);
                          })),
                HasSubstr("tensor " + name + ".lora_"));
  }
  EXPECT_THAT(said(gguf(*model, {.matrices = {"attn_q"}},
                        [&](auto& w) {
                          w.Tensor("blk.0.attn_v.weight.lora_a", DType::kF32, {32, 2}, some);
                        })),
              HasSubstr("blk.0.attn_v.weight.lora_b is missing"));
  EXPECT_THAT(AdapterMessage(*model, file.path()), HasSubstr("a model, expected an adapter: general.type is missing"));
  EXPECT_THAT(AdapterMessage(*model, "/nonexistent"), HasSubstr("/nonexistent"));
  // A header whose data would begin behind the file's end.
  EXPECT_THAT(said(gguf(*model, {.matrices = {}}, [](auto& w) { w.Uint("general.alignment", 65536); })),
              HasSubstr("no tensors"));
  // The rows of PEFT's adapters are in an order that must be known.
  ModelSpec unknown = model->spec();
  unknown.architecture = "xverse";
  const testing::TempFolder of_unknown;
  testing::WritePeft(*model, {}, of_unknown.path(), {4, 2});
  EXPECT_THAT(std::string(Adapter::Open("x", of_unknown.path(), unknown, true).status().message()),
              HasSubstr("architecture xverse, whose order of rows is not known"));
  // An adapter of a mixture may change its attention, not its experts.
  const auto mixture = *OpenModel(experts.path());
  const testing::TinyModelFile attention(testing::LoraGguf(*mixture, {.matrices = {"attn_q"}})),
      shared(testing::LoraGguf(*mixture, {.matrices = {"ffn_up_shexp"}}));
  EXPECT_EQ(AdapterMessage(*mixture, attention.path()), "it was opened");
  EXPECT_THAT(AdapterMessage(*mixture, shared.path()), HasSubstr("ffn_up_shexp.weight.lora_"));

  const auto peft = [&](const boost::json::object& config) {
    const testing::TempFolder folder;
    testing::WritePeft(*model, {}, folder.path(), {4, 2}, config);
    return AdapterMessage(*model, folder.path());
  };
  EXPECT_THAT(peft({{"use_dora", true}}), HasSubstr("use_dora"));
  EXPECT_THAT(peft({{"bias", "all"}}), HasSubstr("bias"));
  EXPECT_THAT(peft({{"modules_to_save", boost::json::array{"lm_head"}}}), HasSubstr("modules_to_save"));
  EXPECT_THAT(peft({{"fan_in_fan_out", true}}), HasSubstr("fan_in_fan_out"));
  EXPECT_THAT(peft({{"peft_type", "IA3"}}), HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(peft({{"lora_alpha", nullptr}}), HasSubstr("lora_alpha"));
  EXPECT_THAT(peft({{"something_new", 3}}), HasSubstr("something_new"));
  EXPECT_THAT(peft({{"init_lora_weights", "pissa"}}), HasSubstr("init_lora_weights"));
  EXPECT_THAT(peft({{"arrow_config", boost::json::object{{"a", 1}}}}), HasSubstr("arrow_config"));
  EXPECT_THAT(peft({{"alpha_pattern", boost::json::object{{"(", 3}}}}), HasSubstr("alpha_pattern"));
  EXPECT_EQ(peft({{"lora_dropout", 0.1}, {"loftq_config", boost::json::object()}, {"peft_version", "0.17.1"}}),
            "it was opened");
}

// What `gyre convert --merge` does.
Status Merge(const std::string& model_path, const std::string& adapter_path, const std::string& out,
             bool requantize = false) {
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(model_path));
  GYRE_ASSIGN_OR_RETURN(const auto adapter, Adapter::Open("a", adapter_path, model->spec(), true));
  std::vector<MadeTensor::Bytes> made;
  GYRE_ASSIGN_OR_RETURN(auto additions, adapter->Additions(model->tensors(), model->spec(), &made));
  return QuantizeFile(model_path, out, {.type = "", .additions = std::move(additions), .requantize = requantize})
      .status();
}

TEST(AdapterTest, IsMergedIntoAFile) {
  const testing::LoraOptions options{.matrices = {"attn_qkv", "attn_q", "attn_k", "ffn_down", "ffn_up"}};
  for (const std::string arch : {"llama", "phi3"}) {
    const testing::TinyModelFile file(testing::TinyOptions{.arch = arch, .layers = 2});
    const auto model = *OpenModel(file.path());
    const testing::TinyModelFile gguf(testing::LoraGguf(*model, options));
    const testing::TempFolder out;
    const Status status = Merge(file.path(), gguf.path(), out.path() + "/merged.gguf");
    ASSERT_TRUE(status.ok()) << status;
    const auto merged = *OpenModel(out.path() + "/merged.gguf");
    const testing::TinyModelFile expected_file(testing::MergedModel(*model, options));
    const auto expected = *OpenModel(expected_file.path());
    int changed = 0;
    for (const auto& [name, t] : expected->tensors().all()) {
      const TensorView* got = merged->tensors().Find(name);
      ASSERT_NE(got, nullptr) << name;
      ASSERT_EQ(got->type, t.type) << name;
      ASSERT_EQ(got->bytes, t.bytes) << name;
      const auto* a = reinterpret_cast<const float*>(t.data);
      const auto* b = reinterpret_cast<const float*>(got->data);
      for (size_t i = 0; i < t.bytes / sizeof(float); ++i) ASSERT_NEAR(a[i], b[i], 1e-6) << name;
      changed += std::memcmp(model->tensors().Find(name)->data, got->data, t.bytes) != 0 ? 1 : 0;
    }
    EXPECT_EQ(changed, arch == "llama" ? 2 * 4 : 2 * 3);
    EXPECT_EQ(merged->spec().layers, model->spec().layers);
  }
}

// The adapter may have the matrices of a file in one tensor, or the file those of the adapter.
TEST(AdapterTest, IsMergedWhereOneOfTheTwoIsFused) {
  const auto adapter_of = [](const Model& model, const std::string& name, uint64_t rows) {
    return testing::LoraGguf(model, {.matrices = {}}, [&](testing::GgufWriter& w) {
      w.Tensor("blk.1." + name + ".lora_a", DType::kF32, {32, 1}, std::vector<float>(32, 1.0f));
      w.Tensor("blk.1." + name + ".lora_b", DType::kF32, {1, rows}, std::vector<float>(rows, 0.25f));
    });
  };
  // The rows of tensors of layer 1 that a merge changes.
  const auto changed = [&](const std::string& arch, const std::string& name, uint64_t rows) {
    const testing::TinyModelFile file(testing::TinyOptions{.arch = arch, .layers = 2});
    const auto model = *OpenModel(file.path());
    const testing::TinyModelFile gguf(adapter_of(*model, name, rows));
    const testing::TempFolder out;
    const Status status = Merge(file.path(), gguf.path(), out.path() + "/m.gguf");
    EXPECT_TRUE(status.ok()) << status;
    const auto merged = *OpenModel(out.path() + "/m.gguf");
    std::map<std::string, std::pair<uint64_t, uint64_t>> ranges;
    for (const auto& [tensor, t] : model->tensors().all()) {
      const std::byte* other = merged->tensors().Find(tensor)->data;
      const uint64_t row_bytes = t.dims[0] * sizeof(float);
      for (uint64_t r = 0; r < t.bytes / row_bytes; ++r) {
        if (std::memcmp(t.data + r * row_bytes, other + r * row_bytes, row_bytes) == 0) continue;
        auto [it, first] = ranges.try_emplace(tensor.substr(6), r, r + 1);
        it->second.second = r + 1;
      }
    }
    return ranges;
  };
  using Ranges = std::map<std::string, std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(changed("phi3", "attn_q.weight", 32), (Ranges{{"attn_qkv.weight", {0, 32}}}));
  EXPECT_EQ(changed("phi3", "attn_v.weight", 16), (Ranges{{"attn_qkv.weight", {48, 64}}}));
  EXPECT_EQ(changed("phi3", "ffn_up.weight", 64), (Ranges{{"ffn_up.weight", {64, 128}}}));
  EXPECT_EQ(changed("phi3", "ffn_up.weight", 128), (Ranges{{"ffn_up.weight", {0, 128}}}));
  EXPECT_EQ(changed("llama", "attn_qkv.weight", 64),
            (Ranges{{"attn_q.weight", {0, 32}}, {"attn_k.weight", {0, 16}}, {"attn_v.weight", {0, 16}}}));
  EXPECT_EQ(changed("llama", "ffn_up.weight", 64), (Ranges{{"ffn_up.weight", {0, 64}}}));
}

TEST(AdapterTest, MergesQuantizeAgainOnlyWhereTheyMay) {
  const testing::LoraOptions options{.matrices = {"attn_q"}};
  for (const DType type : {DType::kQ8_0, DType::kIQ2_XXS}) {
    const bool made = type == DType::kQ8_0;
    const testing::TinyModelFile file(
        testing::TinyOptions{.dim = 256, .layers = 1, .ffn = 256, .type = made ? type : DType::kF32});
    const auto model = *OpenModel(file.path());
    const testing::TinyModelFile gguf(testing::LoraGguf(*model, options));
    const testing::TempFolder out;
    if (made) {
      EXPECT_THAT(std::string(Merge(file.path(), gguf.path(), out.path() + "/m.gguf").message()),
                  HasSubstr("--requantize"));
      EXPECT_TRUE(Merge(file.path(), gguf.path(), out.path() + "/m.gguf", true).ok());
      EXPECT_EQ((*OpenModel(out.path() + "/m.gguf"))->tensors().Find("blk.0.attn_q.weight")->type, type);
      continue;
    }
    // A type that is only read: the tensor's place in the file says so.
    std::vector<std::byte> bytes(model->files()[0]->bytes().begin(), model->files()[0]->bytes().end());
    const std::string name = "blk.0.attn_q.weight";
    const auto at = std::search(bytes.begin(), bytes.end(), reinterpret_cast<const std::byte*>(name.data()),
                                reinterpret_cast<const std::byte*>(name.data() + name.size()));
    ASSERT_NE(at, bytes.end());
    const auto number = static_cast<uint32_t>(type);
    std::memcpy(&*at + name.size() + 4 + 16, &number, sizeof number);
    const testing::TinyModelFile read_only(bytes);
    EXPECT_THAT(std::string(Merge(read_only.path(), gguf.path(), out.path() + "/m.gguf", true).message()),
                HasSubstr("is IQ2_XXS, which is read only"));
  }
}

// The hash of a model with adapters is that of no other model.
TEST(AdapterTest, AdaptersCountInTheModelsHash) {
  const testing::TinyModelFile file(testing::TinyOptions{.layers = 2});
  const auto plain = *OpenModel(file.path());
  const testing::TinyModelFile one(testing::LoraGguf(*plain, {.seed = 1})), two(testing::LoraGguf(*plain, {.seed = 2}));
  const auto hash = [&](std::vector<AdapterFile> adapters) {
    OpenOptions open;
    open.adapters = std::move(adapters);
    const auto model = OpenModel(file.path(), open);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->content_hash();
  };
  const std::vector<uint64_t> hashes = {plain->content_hash(), hash({{"a", one.path()}}), hash({{"a", two.path()}}),
                                        hash({{"a", one.path()}, {"b", two.path()}}),
                                        hash({{"a", two.path()}, {"b", one.path()}})};
  for (size_t i = 0; i < hashes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(hashes[i], hashes[j]) << i << " " << j;
  }
  EXPECT_EQ(hash({{"another name", one.path()}}), hashes[1]);
  OpenOptions open;
  open.adapters = {{"a", one.path()}};
  EXPECT_GT(*LayerBytes(**OpenModel(file.path(), open), 1), *LayerBytes(*plain, 1));
}

}  // namespace
}  // namespace gyre
