#include "runtime/kv_choice.h"

#include <algorithm>

#include "base/counted.h"
#include "base/ids.h"
#include "fmt/core.h"

namespace gyre {

namespace {

// The number of blocks that a window and `rows` rows beside it touch.
uint64_t WindowedFor(const KvPreference& preference, uint64_t rows) {
  const uint64_t block = std::max(preference.block_size, 1u);
  return (preference.window - 1 + rows + block - 1) / block + 1;
}

// The blocks of layers with a window that belong to `blocks` blocks of the others, as docs/memory.md says.
uint64_t WindowBlocks(const KvPreference& preference, uint32_t max_sequences, uint64_t context, uint64_t blocks) {
  if (preference.window == 0) return 0;
  if (preference.chunk == 0) return blocks;
  constexpr uint64_t kShare = 8;
  const uint64_t block = std::max(preference.block_size, 1u);
  const uint64_t whole = std::max<uint64_t>(1, blocks * block / std::max<uint64_t>(context, 1));
  const uint64_t each = WindowedFor(preference, uint64_t{2} * preference.chunk);
  const uint64_t all = each * std::max(max_sequences, 1u);
  return std::min(blocks, std::max(each * whole, std::min(all, (blocks + kShare - 1) / kShare)));
}

}  // namespace

StatusOr<KvChoice> ChooseKv(const KvPreference& preference) {
  KvChoice choice;
  const uint64_t block = std::max(preference.block_size, 1u);
  choice.context = preference.ctx != 0 ? preference.ctx : preference.model_context;
  uint64_t tokens =
      preference.tokens != 0 ? preference.tokens : uint64_t{std::max(preference.parallel, 1u)} * choice.context;
  choice.max_sequences = preference.max_sequences != 0 ? preference.max_sequences : std::max(preference.parallel, 64u);
  const auto bytes_of = [&](uint64_t n) {
    const uint64_t context = preference.ctx != 0 ? choice.context : std::min<uint64_t>(choice.context, n * block);
    return n * preference.unit_bytes[kPageGroup] +
           WindowBlocks(preference, choice.max_sequences, context, n) * preference.unit_bytes[kWindowGroup];
  };
  // The most blocks that fit into half of the memory.
  uint64_t room = 0;
  if (preference.memory > 0) {
    uint64_t high = std::min<uint64_t>((tokens + block - 1) / block, kNoBlock) + 1;
    while (high - room > 1) {
      const uint64_t middle = room + (high - room) / 2;
      (bytes_of(middle) <= preference.memory / 2 ? room : high) = middle;
    }
    room *= block;
  }
  std::string why = preference.tokens != 0 ? "as asked for"
                    : preference.parallel <= 1
                        ? fmt::format("the context of {}", choice.context)
                        : fmt::format("{} times the context of {}", preference.parallel, choice.context);
  if (preference.tokens == 0 && preference.memory > 0 && tokens > room) {
    why = fmt::format("half of the free memory, where {} would be {}; --kv-tokens says more", why, tokens);
    tokens = std::max(room, block);
    choice.cut = true;
  }
  const uint64_t blocks = (tokens + block - 1) / block;
  if (blocks == 0 || blocks >= kNoBlock) {
    return InvalidArgument("--kv-tokens {}: expected 1 to {}", tokens, uint64_t{kNoBlock - 1} * block);
  }
  choice.memory[kPageGroup] = static_cast<uint32_t>(blocks);
  tokens = blocks * block;
  // If the user gave no context, it is at most as long as the cache.
  if (preference.ctx == 0) choice.context = static_cast<uint32_t>(std::min<uint64_t>(choice.context, tokens));
  KvUnits& least = choice.memory.least;
  least[kPageGroup] = static_cast<uint32_t>(std::min((choice.context + block - 1) / block, blocks));
  const uint64_t state_bytes = preference.unit_bytes[kSlotGroup];
  if (state_bytes > 0) {
    // Memory that is never written costs nothing, but a worker must have room for all that may be written.
    constexpr uint64_t kMost = 1 << 16;
    uint64_t slots = std::min(kMost, 2 * uint64_t{choice.max_sequences});
    if (preference.memory > 0) slots = std::min(slots, preference.memory / 4 / state_bytes);
    least[kSlotGroup] = 2;
    slots = std::max<uint64_t>(slots, least[kSlotGroup]);
    choice.memory[kSlotGroup] = static_cast<uint32_t>(slots);
    choice.max_sequences = std::min(choice.max_sequences, (choice.memory[kSlotGroup] + 1) / 2);
  }
  if (preference.window > 0) {
    uint32_t& windowed = choice.memory[kWindowGroup];
    windowed = static_cast<uint32_t>(WindowBlocks(preference, choice.max_sequences, choice.context, blocks));
    const uint64_t needed = preference.chunk == 0 ? blocks : WindowedFor(preference, preference.chunk);
    least[kWindowGroup] = static_cast<uint32_t>(std::min<uint64_t>(needed, windowed));
  }
  const uint64_t whole = tokens / std::max(choice.context, 1u);
  choice.sentence = fmt::format(
      "KV cache: {}, {:.2f} GiB ({}); context {}, {} at once, {}", Counted(tokens, "token"),
      static_cast<double>(bytes_of(blocks)) / (1 << 30), why, choice.context, Counted(choice.max_sequences, "sequence"),
      preference.reserve ? fmt::format("of which {} fit, a whole context reserved for each", whole)
                         : fmt::format("{} of them with the whole context", whole));
  if (preference.window > 0) {
    choice.sentence += fmt::format("; layers with a window of {} have {} tokens", preference.window,
                                   choice.memory[kWindowGroup] * block);
  }
  if (choice.memory[kSlotGroup] > 0) {
    choice.sentence += fmt::format("; {} of {:.1f} MiB", Counted(choice.memory[kSlotGroup], "recurrent state"),
                                   static_cast<double>(state_bytes) / (1 << 20));
  }
  return choice;
}

std::string ContextWarning(uint64_t context, uint64_t made_for) {
  if (context <= made_for) return "";
  return fmt::format("--ctx {} is more than the {} that the model was made for; far text may be poor", context,
                     made_for);
}

}  // namespace gyre
