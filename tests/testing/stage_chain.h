// A ring's stages called one after the other, without threads, links and coordinator.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "worker/stage.h"

namespace gyre::testing {

inline std::vector<Isa> AvailableIsas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni}) {
    if (IsaMissing(isa).empty()) out.push_back(isa);
  }
  return out;
}

struct ChainOptions {
  int stages = 1;
  KvShape kv{.type = KvType::kF32, .block_size = 4, .num_blocks = 64};
  Isa isa = Isa::kRef;
  int threads = 1;
  bool exact = false;
};

class StageChain {
 public:
  StageChain(std::shared_ptr<const Model> model, const ChainOptions& options)
      : model_(std::move(model)), options_(options), backend_(MakeBackend(options.isa, options.threads)) {
    const int layers = static_cast<int>(model_->spec().layers.size());
    for (int i = 0; i < options.stages; ++i) {
      LoadOptions load;
      load.range = {.begin = layers * i / options.stages, .end = layers * (i + 1) / options.stages};
      load.first = i == 0;
      load.last = i + 1 == options.stages;
      load.kv = options.kv;
      StageParts parts = LoadStageParts(model_, load, *backend_).value();
      stages_.push_back(std::make_unique<Stage>(std::move(parts), StageOptions{.exact = options.exact}, *backend_));
    }
  }

  Stage& stage(size_t i) { return *stages_[i]; }
  Stage& last() { return *stages_.back(); }
  const Model& model() const { return *model_; }
  const ChainOptions& options() const { return options_; }

  StatusOr<StepAnswer> Run(const StepBatch& batch, const std::vector<TokenId>& ids) {
    StepAnswer answer;
    std::span<const std::byte> rows = std::as_bytes(std::span(ids));
    for (auto& stage : stages_) {
      const Status status = stage->Run(batch, rows, &answer);
      if (!status.ok()) return status;
      rows = std::as_bytes(stage->hidden());
    }
    return answer;
  }

  // Every page of every layer, filled with NaN.
  void Poison() {
    for (auto& stage : stages_) {
      for (const auto& layer : stage->parts().layers) {
        std::memset(layer->pages->view().k, 0xFF, layer->pages->bytes());
      }
    }
  }

 private:
  const std::shared_ptr<const Model> model_;
  const ChainOptions options_;
  const std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

// A sequence's rows [first, first + count), with a request for all of them.
inline SeqRows MakeRows(uint64_t seq, uint32_t first, uint32_t count, const std::vector<BlockId>& table, size_t groups,
                        RowMode mode = RowMode::kFullLogits) {
  SeqRows s;
  s.seq = SeqId{seq};
  s.first_position = first;
  s.row_count = count;
  s.blocks.assign(groups, table);
  RowRequest r;
  r.count = count;
  r.mode = mode;
  s.requests.push_back(r);
  return s;
}

// Blocks for `positions`, `shift` blocks on from the pool's first, in an order of the seed's (0: as they come).
inline std::vector<BlockId> MakeTable(const KvShape& kv, size_t positions, uint32_t shift = 0, uint32_t seed = 0) {
  const size_t n = (positions + static_cast<size_t>(kv.block_size) - 1) / static_cast<size_t>(kv.block_size);
  std::vector<BlockId> all(kv.num_blocks);
  std::iota(all.begin(), all.end(), 0u);
  std::mt19937 random(seed);
  if (seed != 0) std::shuffle(all.begin(), all.end(), random);
  std::rotate(all.begin(), all.begin() + shift, all.end());
  all.resize(n);
  return all;
}

inline std::vector<TokenId> MakeIds(size_t n, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
  return ids;
}

using LogitRows = std::vector<std::vector<float>>;

// Logits after each id, the sequence sent in chunks.
inline LogitRows ChainLogits(StageChain& chain, const std::vector<TokenId>& ids, size_t chunk,
                             const std::vector<BlockId>& table, uint64_t seq = 1) {
  LogitRows out;
  for (size_t at = 0; at < ids.size(); at += chunk) {
    const size_t n = std::min(chunk, ids.size() - at);
    StepBatch batch;
    batch.seqs.push_back(MakeRows(seq, static_cast<uint32_t>(at), static_cast<uint32_t>(n), table,
                                  static_cast<size_t>(chain.model().spec().kv_groups)));
    const auto first = ids.begin() + static_cast<long>(at);
    StepAnswer answer = chain.Run(batch, {first, first + static_cast<long>(n)}).value();
    for (RowAnswer& row : answer.rows) out.push_back(std::move(row.values));
  }
  return out;
}

}  // namespace gyre::testing
