// gyre diff, as a user starts it: a tensor that was changed by 1% is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/tensor_table.h"
#include "model/weights.h"
#include "tests/testing/command.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/tiny_hybrid.h"

namespace gyre {
namespace {

namespace json = boost::json;
using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;

class CliDiffTest : public testing::FolderTest {
 protected:
  CliDiffTest() {
    std::string ids;
    for (int i = 0; i < 40; ++i) ids += std::to_string((i * 37 + 5) % 96) + " ";
    std::ofstream(Path("ids.txt")) << ids;
  }
  json::value Diff(std::vector<std::string> words) const {
    words.insert(words.begin(), "diff");
    words.insert(words.end(), {"--ids", Path("ids.txt"), "-q", "--json", "--device", "cpu", "-t", "1"});
    const Ended ended = Gyre(words);
    EXPECT_EQ(ended.code, 0) << ended.text;
    boost::system::error_code error;
    json::value value = json::parse(ended.text, error);
    EXPECT_FALSE(error) << ended.text;
    return value;
  }
};

// Every element of a tensor of floats, 1% more or less in turn: a factor alone may vanish in a norm behind it.
std::vector<std::byte> Changed(const std::vector<std::byte>& bytes, const std::string& tensor) {
  std::vector<std::byte> out = bytes;
  const auto model = OpenModelFromBytes(bytes);
  const TensorView* view = (*model)->tensors().Find(tensor);
  if (view == nullptr || view->type != DType::kF32) {
    ADD_FAILURE() << tensor << " is no tensor of floats";
    return out;
  }
  std::byte* at = out.data() + (view->data - bytes.data());
  uint32_t random = 1;
  for (size_t i = 0; i < view->bytes; i += sizeof(float)) {
    float v = 0;
    std::memcpy(&v, at + i, sizeof v);
    random = random * 1664525 + 1013904223;
    v *= random >> 31 == 0 ? 1.01f : 0.99f;
    std::memcpy(at + i, &v, sizeof v);
  }
  return out;
}

struct Plant {
  const char* arch;
  const char* tensor;
  int layer;
};
constexpr Plant kPlants[] = {
    {"llama", "attn_q.weight", 0},
    {"llama", "attn_k.weight", 1},
    {"llama", "ffn_down.weight", 2},
    {"llama", "ffn_norm.weight", 3},
    {"llama", "attn_norm.weight", 4},
    {"qwen3moe", "attn_q_norm.weight", 0},
    {"qwen3moe", "ffn_gate_inp.weight", 1},
    {"qwen3moe", "ffn_up_exps.weight", 3},
    {"qwen3moe", "ffn_down_exps.weight", 4},
    {"gemma3", "post_attention_norm.weight", 0},
    {"gemma3", "attn_v.weight", 2},
    {"gemma3", "attn_output.weight", 4},
    {"qwen2", "attn_q.bias", 1},
    {"qwen2", "attn_v.bias", 4},
    {"gpt-oss", "attn_sinks.weight", 2},
    {"gpt-oss", "ffn_up_exps.bias", 3},
    {"gemma4", "attn_k.weight", 1},
    {"gemma4", "inp_gate.weight", 4},
    {"qwen35", "ssm_out.weight", 1},
    {"nemotron_h", "ssm_in.weight", 0},
};

std::vector<std::byte> ModelOf(const std::string& arch) {
  if (testing::IsTinyHybrid(arch)) return testing::BuildTinyHybrid(arch);
  return testing::BuildTinyModel({.arch = arch, .side = arch == "gemma4"});
}

TEST_F(CliDiffTest, NamesTheLayerOfEachPlant) {
  int named = 0, named_in_noise = 0;
  for (const Plant& plant : kPlants) {
    const std::string what = std::string(plant.arch) + " " + plant.tensor + " " + std::to_string(plant.layer);
    const std::vector<std::byte> model = ModelOf(plant.arch);
    Write("a.gguf", model);
    Write("b.gguf", Changed(model, "blk." + std::to_string(plant.layer) + "." + plant.tensor));
    const std::string layer = "layer " + std::to_string(plant.layer);
    const json::value found = Diff({Path("a.gguf"), Path("b.gguf"), "--kv-type", "f32"});
    named += found.at("first_jump") == json::value(layer);
    EXPECT_EQ(found.at("first_jump"), json::value(layer)) << what;
    for (const json::value& place : found.at("places").as_array()) {
      const double own = place.at("own_error").to_number<double>();
      if (place.at("place") == json::value(layer)) {
        EXPECT_GT(own, 0) << what;
      } else if (std::string(plant.arch) != "gemma4") {  // there later layers read the keys of earlier ones
        EXPECT_EQ(own, 0) << what << ", " << place.at("place");
      }
    }
    EXPECT_GT(found.at("mean").at("forward_kl").to_number<double>(), 0) << what;
    // Beside the rounding of all layers.
    const json::value noisy = Diff({Path("a.gguf"), Path("b.gguf"), "--kv-type", "f32", "--b-isa", "ref"});
    named_in_noise += noisy.at("first_jump") == json::value(layer);
    EXPECT_EQ(noisy.at("first_jump"), json::value(layer)) << what;
  }
  EXPECT_EQ(named, 20);
  EXPECT_EQ(named_in_noise, 20);
}

TEST_F(CliDiffTest, NamesTheEnds) {
  const std::vector<std::byte> model = testing::BuildTinyModel({});
  Write("a.gguf", model);
  for (const auto& [tensor, place] :
       {std::pair("token_embd.weight", "embedding"), {"output.weight", "head"}, {"output_norm.weight", "head"}}) {
    Write("b.gguf", Changed(model, tensor));
    EXPECT_EQ(Diff({Path("a.gguf"), Path("b.gguf")}).at("first_jump"), json::value(place)) << tensor;
  }
  // All layers differ alike: none is at fault.
  const json::value alike = Diff({Path("a.gguf"), "--a-kv-type", "f32", "--b-kv-type", "bf16"});
  EXPECT_TRUE(alike.at("first_jump").is_null()) << alike;
  EXPECT_GT(alike.at("mean").at("forward_kl").to_number<double>(), 0);
  EXPECT_EQ(alike.at("per_token").as_array().size(), 40u);
}

// The residual stream of a layer does not depend on how the rows are cut, nor on the layers behind it.
TEST_F(CliDiffTest, StopsAtALayerAndWritesBothStreams) {
  Write("a.gguf", testing::BuildTinyModel({}));
  Write("b.gguf", testing::BuildTinyModel({.seed = 2}));
  const std::vector<std::string> words{Path("a.gguf"), Path("b.gguf"), "--stop-at", "1", "--out", Path("at1")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return more;
  };
  const json::value stopped = Diff(with({"--chunk", "7"}));
  EXPECT_EQ(stopped.at("places").as_array().size(), 3u);  // the embedding and two layers
  EXPECT_FALSE(stopped.as_object().contains("mean"));
  const std::string a = Read("at1.a.npy"), b = Read("at1.b.npy");
  EXPECT_THAT(a, HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (40, 32)}"));
  ASSERT_EQ(a.size(), 128 + 40 * 32 * sizeof(float));
  // The same figure from the files.
  double off = 0, whole = 0;
  for (size_t at = 128; at < a.size(); at += sizeof(float)) {
    float x = 0, y = 0;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    off += static_cast<double>(y - x) * static_cast<double>(y - x);
    whole += static_cast<double>(x) * static_cast<double>(x);
  }
  const double error = stopped.at("places").at(2).at("error").to_number<double>();
  EXPECT_NEAR(std::sqrt(off / whole), error, 1e-6 * error);
  std::vector<std::string> again = with({"--ids", Path("ids.txt"), "-q"});
  again.insert(again.begin(), "diff");
  const Ended refused = Gyre(again);
  EXPECT_EQ(refused.code, 1) << "the files exist";
  EXPECT_THAT(refused.text, HasSubstr("--force"));
  EXPECT_EQ(Diff(with({"--force"})), stopped);
  EXPECT_EQ(Read("at1.a.npy"), a) << "the rows depend on the chunks";
  // A model that is read stays.
  std::filesystem::create_symlink("a.gguf", Path("trap.b.npy"));
  again = {"diff",  Path("a.gguf"), Path("b.gguf"), "--ids", Path("ids.txt"), "--stop-at", "0",
           "--out", Path("trap"),   "--force",      "-q"};
  EXPECT_EQ(Gyre(again).code, 1);
  EXPECT_EQ(std::filesystem::file_size(Path("a.gguf")), testing::BuildTinyModel({}).size());
}

TEST_F(CliDiffTest, SaysWhatCannotBeCompared) {
  Write("a.gguf", testing::BuildTinyModel({}));
  Write("b.gguf", testing::BuildTinyModel({.layers = 4}));
  const Ended layers = Gyre({"diff", Path("a.gguf"), Path("b.gguf"), "--ids", Path("ids.txt"), "-q"});
  EXPECT_EQ(layers.code, 1);
  EXPECT_THAT(layers.text, HasSubstr("5 layers"));
  EXPECT_EQ(Gyre({"diff", Path("a.gguf"), "--ids", Path("ids.txt"), "-q"}).code, 2) << "both sides are the same";
  EXPECT_EQ(Gyre({"diff", Path("a.gguf"), "--b-exact", "-q"}).code, 2) << "no tokens";
  EXPECT_EQ(
      Gyre({"diff", Path("a.gguf"), "--b-exact", "--ids", Path("ids.txt"), "--stop-at", "5", "--out", Path("x")}).code,
      2);
  std::ofstream(Path("far.txt")) << "1 96";
  const Ended far = Gyre({"diff", Path("a.gguf"), "--b-exact", "--ids", Path("far.txt"), "-q"});
  EXPECT_THAT(far.text, HasSubstr("token id 96"));
  const Ended text = Gyre({"diff", Path("a.gguf"), "--b-exact", "--text", "x", "-q"});
  EXPECT_THAT(text.text, HasSubstr("--ids"));
}

// A model of 24 layers, most of whose bytes are a hole in its file.
struct LargeModel {
  std::vector<std::byte> bytes;
  uint64_t hole = 0, layer = 0;  // bytes
};
LargeModel BuildLargeModel(DType type) {
  constexpr uint32_t kDim = 512, kFfn = 4096, kLayers = 24;
  testing::GgufWriter w;
  w.String("general.architecture", "llama");
  w.Uint("llama.context_length", 512);
  w.Uint("llama.embedding_length", kDim);
  w.Uint("llama.block_count", kLayers);
  w.Uint("llama.feed_forward_length", kFfn);
  w.Uint("llama.attention.head_count", 8);
  w.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::vector<float> ones(kDim, 1.0f), embedding(size_t{96} * kDim, 0.5f);
  w.Tensor("token_embd.weight", DType::kF32, {kDim, 96}, embedding);
  w.Tensor("output_norm.weight", DType::kF32, {kDim}, ones);
  for (uint32_t i = 0; i < kLayers; ++i) {
    for (const char* norm : {"attn_norm", "ffn_norm"})
      w.Tensor("blk." + std::to_string(i) + "." + norm + ".weight", DType::kF32, {kDim}, ones);
  }
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
      w.Hole(b + name + ".weight", type, {kDim, kDim});
    for (const char* name : {"ffn_gate", "ffn_up"}) w.Hole(b + name + ".weight", type, {kDim, kFfn});
    w.Hole(b + "ffn_down.weight", type, {kFfn, kDim});
  }
  return {w.Finish(), w.HoleBytes(), w.HoleBytes() / kLayers};
}

// Of weights that are multiplied in the file, and of such that are packed.
TEST_F(CliDiffTest, HoldsTwoLayersInMemory) {
  const auto peak = [] {
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    return static_cast<uint64_t>(usage.ru_maxrss) << 10;
  };
  for (const DType type : {DType::kQ8_0, DType::kF32}) {
    Write("a.gguf", testing::BuildTinyModel({}));
    Diff({Path("a.gguf"), "--b-exact"});
    const uint64_t small = peak();
    const LargeModel large = BuildLargeModel(type);
    for (const char* name : {"large.gguf", "other.gguf"}) {
      Write(name, large.bytes);
      std::filesystem::resize_file(Path(name), large.bytes.size() + large.hole);
    }
    Diff({Path("large.gguf"), Path("other.gguf")});
    const uint64_t took = peak() - small;
    // Two layers, and the pages of the one that is being packed.
    EXPECT_LT(took, 4 * large.layer) << Info(type).name << ": layers of " << large.layer << " bytes";
    RecordProperty(std::string(Info(type).name) + "_layers_in_memory",
                   std::to_string(static_cast<double>(took) / static_cast<double>(large.layer)));
  }
}

}  // namespace
}  // namespace gyre
