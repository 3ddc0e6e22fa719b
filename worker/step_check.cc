#include "worker/step_check.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "transport/frame.h"

namespace gyre {
namespace {

uint64_t Number(SeqId seq) {
  return static_cast<uint64_t>(seq);
}

// kNoBlock is allowed where no row of this stage reads or writes.
Status CheckTable(const StepLimits& limits, const SeqRows& s, size_t group) {
  const std::vector<BlockId>& table = s.blocks[group];
  const uint64_t end = uint64_t{s.first_position} + s.row_count;
  const uint64_t needed = (end + limits.block_size - 1) / limits.block_size;
  if (table.size() < needed) {
    return InvalidArgument("sequence {}: {} blocks in group {} for {} positions, expected {}", Number(s.seq),
                           table.size(), group, end, needed);
  }
  const int window = limits.windows[group];
  const uint64_t span = window > 0 ? static_cast<uint64_t>(window) - 1 : uint64_t{s.first_position};
  const uint64_t first_read = s.first_position - std::min<uint64_t>(span, s.first_position);
  const uint64_t first_block = window == StepLimits::kNoLayer ? needed : first_read / limits.block_size;
  for (uint64_t i = 0; i < table.size(); ++i) {
    if (table[i] < limits.num_blocks) continue;
    if (table[i] == kNoBlock && (i < first_block || i >= needed)) continue;
    if (table[i] == kNoBlock) {
      return InvalidArgument("sequence {}: no block for the positions from {} in group {}, which are read",
                             Number(s.seq), i * limits.block_size, group);
    }
    return InvalidArgument("sequence {}: block {} in group {}, this stage has 0-{}", Number(s.seq), table[i], group,
                           limits.num_blocks - 1);
  }
  return absl::OkStatus();
}

Status CheckRequest(const StepLimits& limits, const SeqRows& s, const RowRequest& r, uint32_t next_row) {
  const uint64_t seq = Number(s.seq);
  if (r.first < next_row || r.count == 0 || uint64_t{r.first} + r.count > s.row_count) {
    return InvalidArgument("sequence {}: a request for rows {}-{} of {}, after row {}", seq, r.first,
                           uint64_t{r.first} + r.count - 1, s.row_count, next_row);
  }
  if (r.mode < RowMode::kArgmax || r.mode > RowMode::kHidden) {
    return InvalidArgument("sequence {}: a request of mode {}, known are 1-5", seq, static_cast<int>(r.mode));
  }
  if (r.mode == RowMode::kTopK && (r.k == 0 || r.k > kMaxTopK)) {
    return InvalidArgument("sequence {}: the best {} ids, expected 1-{}", seq, r.k, kMaxTopK);
  }
  if (!(r.temperature >= 0 && r.temperature <= std::numeric_limits<float>::max())) {
    return InvalidArgument("sequence {}: temperature {}, expected a number from 0", seq, r.temperature);
  }
  if (!r.mask.empty() && r.mask.size() != (limits.vocab + 63) / 64) {
    return InvalidArgument("sequence {}: a mask of {} words, expected {}", seq, r.mask.size(),
                           (limits.vocab + 63) / 64);
  }
  TokenId previous = -1;
  for (const TokenId id : r.touched) {
    if (id <= previous || static_cast<size_t>(id) >= limits.vocab) {
      return InvalidArgument("sequence {}: id {} after {} is asked for, expected rising ids of 0-{}", seq, id, previous,
                             limits.vocab - 1);
    }
    previous = id;
  }
  return absl::OkStatus();
}

Status CheckSequence(const StepLimits& limits, const SeqRows& s) {
  const uint64_t seq = Number(s.seq);
  if (s.model != limits.model)
    return InvalidArgument("sequence {}: model {}, this stage runs {}", seq, s.model, limits.model);
  if (s.adapter != 0) return Unimplemented("sequence {}: adapter {}, none is loaded", seq, s.adapter);
  if (s.row_count == 0 || s.row_count > uint32_t{std::numeric_limits<int32_t>::max()} - s.first_position) {
    return InvalidArgument("sequence {}: {} rows from position {}", seq, s.row_count, s.first_position);
  }
  if (s.blocks.size() != limits.windows.size()) {
    return InvalidArgument("sequence {}: {} block tables, expected {}", seq, s.blocks.size(), limits.windows.size());
  }
  for (size_t group = 0; group < s.blocks.size(); ++group) GYRE_RETURN_IF_ERROR(CheckTable(limits, s, group));
  uint32_t next_row = 0;
  for (const RowRequest& r : s.requests) {
    GYRE_RETURN_IF_ERROR(CheckRequest(limits, s, r, next_row));
    next_row = r.first + r.count;
  }
  return absl::OkStatus();
}

// The result must fit into a frame, beside the descriptor's own bytes.
Status CheckResult(const StepLimits& limits, const StepBatch& batch, uint64_t rows) {
  constexpr uint64_t kRoom = kMaxPayload / 2;
  uint64_t bytes = rows * limits.dim * sizeof(float);
  if (limits.last) {
    bytes = 0;
    for (const SeqRows& s : batch.seqs) {
      for (const RowRequest& r : s.requests) {
        uint64_t row = 64 + r.touched.size() * sizeof(TokenLogit);
        if (r.mode == RowMode::kTopK) row += std::min<uint64_t>(r.k, limits.vocab) * sizeof(TokenLogit);
        if (r.mode == RowMode::kFullLogits) row += limits.vocab * sizeof(float);
        if (r.mode == RowMode::kHidden) row += limits.dim * sizeof(float);
        bytes += r.count * row;
      }
    }
  }
  if (bytes <= kRoom) return absl::OkStatus();
  return ResourceExhausted("the result of {} rows takes {} MiB, a frame holds {}", rows, bytes >> 20, kRoom >> 20);
}

Status CheckIds(const StepLimits& limits, std::span<const std::byte> rows) {
  for (size_t i = 0; i < rows.size(); i += sizeof(TokenId)) {
    TokenId id = 0;
    std::memcpy(&id, rows.data() + i, sizeof id);
    if (id < 0 || static_cast<size_t>(id) >= limits.vocab) {
      return InvalidArgument("token id {}, the vocabulary has 0-{}", id, limits.vocab - 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace

StepLimits MakeStepLimits(const StageParts& parts, uint32_t model) {
  const ModelSpec& spec = parts.model->spec();
  const KvShape& kv = parts.layers.front()->pages->shape();
  StepLimits limits{.model = model,
                    .first = parts.first,
                    .last = parts.last,
                    .dim = static_cast<size_t>(spec.dim),
                    .vocab = static_cast<size_t>(spec.vocab),
                    .block_size = static_cast<uint32_t>(kv.block_size),
                    .num_blocks = kv.num_blocks,
                    .windows = std::vector<int>(static_cast<size_t>(spec.kv_groups), StepLimits::kNoLayer)};
  for (const auto& layer : parts.layers) {
    int& window = limits.windows[static_cast<size_t>(layer->spec.kv_group)];
    const bool everything = layer->spec.window == 0 || window == 0;
    window = everything ? 0 : std::max(window, layer->spec.window);
  }
  return limits;
}

Status CheckStep(const StepLimits& limits, const StepBatch& batch, std::span<const std::byte> rows) {
  uint64_t count = 0;
  for (const SeqRows& s : batch.seqs) {
    GYRE_RETURN_IF_ERROR(CheckSequence(limits, s));
    count += s.row_count;
  }
  if (count == 0) return InvalidArgument("a step without rows");
  if (rows.size() != count * limits.input_width()) {
    return InvalidArgument("{} bytes for {} rows of {}", rows.size(), count, limits.input_width());
  }
  GYRE_RETURN_IF_ERROR(CheckResult(limits, batch, count));
  return limits.first ? CheckIds(limits, rows) : absl::OkStatus();
}

}  // namespace gyre
