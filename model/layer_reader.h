// Finds a layer's weights among a file's tensors, by GGUF's names.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "model/tensor_table.h"
#include "model/weights.h"

namespace gyre {

// kInvalidArgument: there is no such layer; kDataLoss: a tensor is missing or has another shape. `used`, unless null,
// collects the names that were looked up; then views of tensors that are made have no data, and there are no vectors.
// Views point to the tensors' memory, or into `made`.
StatusOr<LayerWeights> ReadLayer(const TensorTable& tensors, const ModelSpec& spec, int layer,
                                 std::unordered_set<std::string>* used);

// Checks that every tensor of the spec is there and right, and no other is: a tensor that no code reads would be a part
// of the model that is silently left out.
Status CheckTensors(const TensorTable& tensors, const ModelSpec& spec);
// The names, sorted, of those others. Errors as CheckTensors for the spec's tensors.
StatusOr<std::vector<std::string>> TensorsWithoutPlace(const TensorTable& tensors, const ModelSpec& spec);

StatusOr<WeightView> ReadEmbedding(const TensorTable& tensors, const ModelSpec& spec);
// The table of positions [positions][dim]. REQUIRES: the spec has one.
StatusOr<WeightView> ReadPositions(const TensorTable& tensors, const ModelSpec& spec);
// Each token's part of the per-layer embeddings [vocab][per_layer_width]. REQUIRES: the spec has per-layer embeddings.
StatusOr<WeightView> ReadPerLayerTokens(const TensorTable& tensors, const ModelSpec& spec);
// The layer for drafts. kFailedPrecondition: the model has none, and why; kDataLoss: a tensor is missing or has another
// shape; kUnimplemented: there are others in it. The layer itself is as ReadLayer gives it with `used`.
StatusOr<MtpWeights> ReadMtp(const TensorTable& tensors, const ModelSpec& spec);
// The matrices [dim][dim] of the streams behind the first, at the beginning or the end. REQUIRES: the spec has several.
StatusOr<std::vector<WeightView>> ReadStreams(const TensorTable& tensors, const ModelSpec& spec, bool ends);
// What an encoder's embeddings go through. REQUIRES: the spec has embedding_norm.
StatusOr<EmbeddingVectors> ReadEmbeddingVectors(const TensorTable& tensors, const ModelSpec& spec);
StatusOr<HeadWeights> ReadHead(const TensorTable& tensors, const ModelSpec& spec);

}  // namespace gyre
