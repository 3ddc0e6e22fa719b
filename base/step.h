// A step: one ragged batch that passes once round the ring, and its answer. Plain data; step_codec.h has its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/memory_counts.h"

namespace gyre {

enum class RowMode : uint8_t {
  kArgmax = 1,      // the best unmasked id and its logit (ties to the lower id)
  kTopK = 2,        // biased logits, the top K of the other unmasked ids, log-sum-exps of those others
  kTargets = 3,     // logits of `biased`, and the log-sum-exp of all ids at temperature 1
  kFullLogits = 4,  // every logit
  kHidden = 5,      // the final-normed hidden state
};

// The answer that is asked of rows [first, first + count) of one SeqRows: these are logit rows. For all other rows only
// keys and values are computed.
struct RowRequest {
  uint32_t first = 0;
  uint32_t count = 1;
  RowMode mode = RowMode::kArgmax;
  uint32_t k = 0;               // kTopK: 1..kMaxTopK
  float temperature = 0;        // kTopK: > 0 also asks for the log-sum-exp at this temperature
  std::vector<TokenId> biased;  // strictly rising; kTopK: ids left out of the top K; kTargets: the ids asked for
  std::vector<uint64_t> mask;   // bit id of word id/64 set = allowed; empty = every id is allowed
  std::optional<uint32_t> mask_number;  // in place of `mask`: one that came before (mask_codec.h), 0..kMaxMasks - 1
  // Also asks for the log-sum-exp of all ids and this many of the best of all ids, 0..kMaxTopK, whatever `biased` and
  // `mask` say. Not with kHidden.
  std::optional<uint32_t> logprobs;
  bool operator==(const RowRequest&) const = default;
};
inline constexpr uint32_t kMaxTopK = 1024;
inline constexpr uint32_t kMaxAdapters = 256;  // of a model
// Masks that a last stage keeps: 20 MB with 152,000 ids.
inline constexpr uint32_t kMaxMasks = 1024;

// The table of a sequence in the KV group of recurrent state (docs/memory.md), as entries of SeqRows::blocks.
struct SlotTable {
  static constexpr size_t kEntries = 5;  // and two for each mark
  // The state after the item's row number `row` goes to this slot, too: the rows behind may turn out to be void.
  struct Mark {
    uint32_t row = 0;
    BlockId slot = kNoBlock;
    bool operator==(const Mark&) const = default;
  };
  BlockId slot = kNoBlock;   // the sequence's own
  BlockId begin = kNoBlock;  // the snapshot that is copied to it before the rows, and its number; kNoBlock: none
  uint32_t begin_number = 0;
  BlockId copy = kNoBlock;  // where it is copied to after them, and that snapshot's number; kNoBlock: nowhere
  uint32_t copy_number = 0;
  std::vector<Mark> marks = {};  // rows rise
  std::vector<BlockId> Entries() const {
    std::vector<BlockId> entries{slot, begin, begin_number, copy, copy_number};
    for (const Mark& mark : marks) entries.insert(entries.end(), {mark.row, mark.slot});
    return entries;
  }
  // REQUIRES: kEntries entries, and an even number behind them.
  static SlotTable From(const std::vector<BlockId>& e) {
    SlotTable table{e[0], e[1], e[2], e[3], e[4], {}};
    for (size_t i = kEntries; i < e.size(); i += 2) table.marks.push_back({e[i], e[i + 1]});
    return table;
  }
  bool operator==(const SlotTable&) const = default;
};

// The table of a sequence in the KV group of layers with a window: blocks from number `first` of the sequence on, up to
// the last row of the step. Blocks before it were freed, as no row reads them.
struct WindowTable {
  uint32_t first = 0;
  std::vector<BlockId> blocks;
  std::vector<BlockId> Entries() const {
    std::vector<BlockId> entries{first};
    entries.insert(entries.end(), blocks.begin(), blocks.end());
    return entries;
  }
  bool operator==(const WindowTable&) const = default;
};

// A sequence's tables in a step, of all KV groups.
struct StepTables {
  std::vector<BlockId> blocks;  // pages: the whole table up to the last row
  SlotTable slots;              // with recurrent state
  WindowTable window;           // of layers with a window
  // As SeqRows::blocks has them, for a model with these units.
  std::vector<std::vector<BlockId>> Entries(const MemoryCounts& of) const {
    std::vector<std::vector<BlockId>> entries{blocks};
    if (of[kSlotGroup] > 0) entries.push_back(slots.Entries());
    if (of[kWindowGroup] > 0) {
      entries.resize(kWindowGroup);
      entries.push_back(window.Entries());
    }
    return entries;
  }
  bool operator==(const StepTables&) const = default;
};

// What the layer for drafts at the last stage needs of a sequence's rows (docs/speculation.md, MTP).
struct MtpRows {
  static constexpr TokenId kUnknown = -1;
  std::vector<TokenId> next;  // the first row's token, and for each row the token behind it
  uint32_t first = 0;  // the rows from this one on decide a token, and drafts follow one of them; row_count: none
  uint32_t most = 0;   // drafts
  bool operator==(const MtpRows&) const = default;
};
inline constexpr uint32_t kMaxMtpDrafts = 64;

// The rows of one sequence in a step. A sequence stands in a step at most once.
struct SeqRows {
  SeqId seq{};
  uint32_t incarnation = 0;  // raised each time the sequence is preempted; results of an older one are discarded
  uint32_t model = 0;
  uint32_t adapter = 0;
  RowClass row_class = RowClass::kPrompt;
  uint32_t first_position = 0;
  uint32_t row_count = 0;
  // One table for each KV group. The group of pages has the whole table up to the last row of this step, by position /
  // block size. The group of recurrent state has a SlotTable, that of layers with a window a WindowTable.
  std::vector<std::vector<BlockId>> blocks;
  std::vector<RowRequest> requests;  // rising by first, not overlapping
  std::optional<MtpRows> mtp = {};   // the layer for drafts computes these rows, too
  bool operator==(const SeqRows&) const = default;
};

// The descriptor in every frame of a step. The rows' data (token ids, then hidden states) follows it in the order of
// `seqs`.
struct StepBatch {
  std::vector<SeqRows> seqs;
  uint32_t TotalRows() const {
    uint32_t n = 0;
    for (const SeqRows& s : seqs) n += s.row_count;
    return n;
  }
  bool operator==(const StepBatch&) const = default;
};

struct TokenLogit {
  TokenId id = 0;
  float logit = 0;
  bool operator==(const TokenLogit&) const = default;
};

// The answer to one requested row.
struct RowAnswer {
  SeqId seq{};
  uint32_t incarnation = 0;
  uint32_t position = 0;
  RowMode mode = RowMode::kArgmax;
  std::vector<TokenLogit> biased;  // raw logits of the biased (or target) ids, rising id. Masked ids included
  std::vector<TokenLogit> top;     // kArgmax: one; kTopK: up to K others, logit falling then id rising
  double log_sum_exp = 0;          // kTargets: of all ids, at temperature 1
  double log_sum_exp_t = 0;        // of logit / temperature of the unmasked others, K included, where it was asked
  std::vector<float> values;       // kFullLogits: [vocab]; kHidden: [dim]
  // Where log-probabilities were asked for: the best of all ids, logit falling then id rising, and the log-sum-exp of
  // all ids at temperature 1.
  std::vector<TokenLogit> best;
  double log_sum_exp_all = 0;
  std::vector<TokenId> drafts = {};  // of MtpRows: a guess of the row's token, and then of those behind it
  bool operator==(const RowAnswer&) const = default;
};

struct StepAnswer {
  std::vector<RowAnswer> rows;
  uint32_t drafts_us = 0;  // the time that the drafts took
  bool operator==(const StepAnswer&) const = default;
};

// Requests the full logits of a row from the last stage, because its candidates did not decide the sampled token.
struct FullLogitsRequest {
  SeqId seq{};
  uint32_t incarnation = 0;
  uint32_t model = 0;
  uint32_t position = 0;
  bool operator==(const FullLogitsRequest&) const = default;
};

// Empty logits: the hidden state is no longer kept, so the row has to be sent again.
struct LogitsAnswer {
  FullLogitsRequest question;
  std::vector<float> logits;
  bool operator==(const LogitsAnswer&) const = default;
};

// The error that a stage sends instead of a step that it could not compute.
struct StepError {
  uint32_t stage = 0;
  std::string message;
  bool operator==(const StepError&) const = default;
};

}  // namespace gyre
