// A LoRA adapter (Hu et al. 2021, arXiv 2106.09685): what it adds to the products of a model's matrices. docs/lora.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/quant.h"
#include "model/made_tensor.h"
#include "model/mapped_file.h"
#include "model/spec.h"
#include "model/tensor_table.h"

namespace gyre {

enum class Slot : uint8_t;

// A change of one matrix W [n][k]: scale * b (a x) is added to W x.
struct LowRankWeights {
  Slot slot{};
  WeightView a;  // [rank][k]
  WeightView b;  // [n][rank]
  float scale = 1;
};

// The same for rows [first_row, first_row + b.n) of a tensor.
struct RowAddition {
  uint64_t first_row = 0;
  LowRankWeights weights;
};

// An opened adapter. Immutable and thread-safe; views point into it.
class Adapter {
 public:
  // Opens a GGUF file, a folder of PEFT, or the .safetensors in one, for a model with this spec. `name`: what requests
  // call it by. `whole`: the file's tensors are there and count in the hash; else only its header is read. kNotFound;
  // kDataLoss (damaged, other sizes than the model's); kFailedPrecondition (made for another architecture);
  // kUnimplemented (it changes what no adapter may change here, by name).
  static StatusOr<std::shared_ptr<const Adapter>> Open(std::string name, const std::string& path, const ModelSpec& spec,
                                                       bool whole);

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  // xxHash64 of the header and a sample of each tensor; 0: it was not opened whole.
  uint64_t content_hash() const { return hash_; }
  // The tensors "blk.3.attn_q.weight.lora_a" and "... .lora_b", as the file has them.
  const TensorTable& tensors() const { return tensors_; }
  // The file with the tensors, and the adapter_config.json of a folder.
  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }
  // Bytes of what Layer gives; 0: the adapter does not change the layer.
  size_t LayerBytes(int layer) const;
  // What it adds in a layer, in the table's order of slots. Views point into the file, or into `made`.
  std::vector<LowRankWeights> Layer(int layer, std::vector<MadeTensor::Bytes>* made) const;
  // What it adds to each tensor of a model's file, by name: to the rows from `first_row` on. Views as in Layer.
  // kUnimplemented: a matrix that the file has in another form, as experts.
  StatusOr<std::map<std::string, std::vector<RowAddition>>> Additions(const TensorTable& file, const ModelSpec& spec,
                                                                      std::vector<MadeTensor::Bytes>* made) const;

 private:
  // Where a slot's part of b begins in its tensor.
  struct Change {
    Slot slot{};
    std::string tensor;  // "blk.3.attn_q.weight"
    uint64_t first_row = 0, rows = 0;
  };
  Adapter() = default;
  Status OpenGguf(const ModelSpec& spec, bool whole);  // REQUIRES: its file in files_
  Status OpenPeft(const ModelSpec& spec, bool whole);
  // Finds the place of every tensor. `halves`: the rows of queries and keys have Hugging Face's order.
  Status Place(const ModelSpec& spec, bool halves);

  std::string name_, path_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  TensorTable tensors_;
  std::map<std::string, float> scales_;  // of "blk.3.attn_q.weight"
  std::vector<std::vector<Change>> layers_;
  uint64_t hash_ = 0;
};

}  // namespace gyre
