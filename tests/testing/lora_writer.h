// LoRA adapters with seeded random weights for tiny models, in both forms, and models with an adapter merged into them.
#pragma once

#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "model/mapped_file.h"
#include "model/tensor_table.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/safetensors_writer.h"

namespace gyre::testing {

struct LoraOptions {
  uint32_t seed = 1;
  uint64_t rank = 4;
  float alpha = 6;
  DType type = DType::kF32;  // in GGUF
  // The parts of names of the matrices that it changes, of every layer.
  std::vector<std::string> matrices = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
};

// What it has for one matrix [n][k].
struct LoraPart {
  std::string name;  // "blk.3.attn_q.weight"
  uint64_t n = 0, k = 0;
  std::vector<float> a, b;  // [rank][k], [n][rank]
};

// Of every matrix that the model has of those that the options name.
inline std::vector<LoraPart> MakeLora(const Model& model, const LoraOptions& o) {
  std::mt19937 random(o.seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<LoraPart> parts;
  for (size_t layer = 0; layer < model.spec().layers.size(); ++layer) {
    for (const std::string& matrix : o.matrices) {
      LoraPart part{.name = "blk." + std::to_string(layer) + "." + matrix + ".weight"};
      const TensorView* t = model.tensors().Find(part.name);
      if (t == nullptr) continue;
      part.k = t->dims[0];
      part.n = t->dims[1];
      const float by = 0.5f / __builtin_sqrtf(static_cast<float>(part.k));
      for (uint64_t i = 0; i < o.rank * part.k; ++i) part.a.push_back(normal(random) * by);
      for (uint64_t i = 0; i < o.rank * part.n; ++i) part.b.push_back(normal(random) * 0.3f);
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

inline std::vector<std::byte> LoraGguf(const Model& model, const LoraOptions& o,
                                       const std::function<void(GgufWriter&)>& more = {}) {
  GgufWriter w;
  w.String("general.type", "adapter");
  w.String("general.architecture", model.spec().architecture);
  w.String("adapter.type", "lora");
  w.Float("adapter.lora.alpha", o.alpha);
  for (const LoraPart& p : MakeLora(model, o)) {
    w.Tensor(p.name + ".lora_a", o.type, {p.k, o.rank}, p.a);
    w.Tensor(p.name + ".lora_b", o.type, {o.rank, p.n}, p.b);
  }
  if (more) more(w);
  return w.Finish();
}

// The same adapter as a folder of PEFT: adapter_config.json and adapter_model.safetensors. With `heads`, queries and
// keys of the model's file are in pairs: those of the folder are in halves, by so many heads of each.
inline void WritePeft(const Model& model, const LoraOptions& o, const std::string& folder,
                      std::pair<uint64_t, uint64_t> heads = {0, 0}, boost::json::object config = {}) {
  const std::pair<const char*, const char*> names[] = {
      {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},    {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"ffn_gate", "mlp.gate_proj"},     {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},       {"attn_qkv", "self_attn.qkv_proj"}};
  Shard shard;
  for (const LoraPart& p : MakeLora(model, o)) {
    const size_t dot = p.name.find('.', 4);
    const std::string layer = p.name.substr(4, dot - 4), part = p.name.substr(dot + 1, p.name.rfind('.') - dot - 1);
    for (const auto& [ours, theirs] : names) {
      if (part != ours) continue;
      std::vector<float> b = p.b;
      const uint64_t count = part == "attn_q" ? heads.first : part == "attn_k" ? heads.second : 0;
      for (uint64_t row = 0; count > 0 && row < p.n; ++row) {
        const uint64_t size = p.n / count, i = row % size, to = row - i + i % 2 * (size / 2) + i / 2;
        std::copy_n(p.b.begin() + static_cast<ptrdiff_t>(row * o.rank), o.rank,
                    b.begin() + static_cast<ptrdiff_t>(to * o.rank));
      }
      const std::string module = "base_model.model.model.layers." + layer + "." + theirs;
      shard.AddFloats(module + ".lora_A.weight", {o.rank, p.k}, p.a);
      shard.AddFloats(module + ".lora_B.weight", {p.n, o.rank}, b);
    }
  }
  boost::json::object all{{"peft_type", "LORA"},
                          {"task_type", "CAUSAL_LM"},
                          {"r", o.rank},
                          {"lora_alpha", o.alpha},
                          {"bias", "none"},
                          {"use_dora", false},
                          {"fan_in_fan_out", false},
                          {"modules_to_save", nullptr},
                          {"target_modules", boost::json::array{"q_proj", "v_proj"}}};
  for (const auto& item : config) all[item.key()] = item.value();
  std::ofstream(folder + "/adapter_config.json") << boost::json::serialize(all);
  std::ofstream(folder + "/adapter_model.safetensors", std::ios::binary) << shard.Bytes();
}

// The bytes of the model's file, whose matrices are f32, with W + alpha / rank B A in the place of each W.
inline std::vector<std::byte> MergedModel(const Model& model, const LoraOptions& o) {
  const auto file = model.files().at(0)->bytes();
  std::vector<std::byte> bytes(file.begin(), file.end());
  for (const LoraPart& p : MakeLora(model, o)) {
    std::byte* at = bytes.data() + (model.tensors().Find(p.name)->data - file.data());
    for (uint64_t n = 0; n < p.n; ++n) {
      for (uint64_t k = 0; k < p.k; ++k, at += sizeof(float)) {
        double sum = 0;
        for (uint64_t r = 0; r < o.rank; ++r)
          sum += static_cast<double>(p.b[n * o.rank + r]) * static_cast<double>(p.a[r * p.k + k]);
        float w = 0;
        std::memcpy(&w, at, sizeof w);
        w = static_cast<float>(static_cast<double>(w) +
                               sum * static_cast<double>(o.alpha) / static_cast<double>(o.rank));
        std::memcpy(at, &w, sizeof w);
      }
    }
  }
  return bytes;
}

}  // namespace gyre::testing
