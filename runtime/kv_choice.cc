#include "runtime/kv_choice.h"

#include <algorithm>

#include "base/ids.h"
#include "fmt/core.h"

namespace gyre {

StatusOr<KvChoice> ChooseKv(const KvWish& wish) {
  KvChoice choice;
  const uint64_t block = std::max(wish.block_size, 1u);
  choice.context = wish.ctx != 0 ? wish.ctx : wish.model_context;
  uint64_t tokens = wish.tokens != 0 ? wish.tokens : uint64_t{std::max(wish.parallel, 1u)} * choice.context;
  const uint64_t room = wish.memory / 2 / std::max<uint64_t>(wish.bytes_per_token, 1);
  std::string why = wish.tokens != 0
                        ? "as asked for"
                        : fmt::format("{} times the context of {}", std::max(wish.parallel, 1u), choice.context);
  if (wish.tokens == 0 && room > 0 && tokens > room) {
    why = fmt::format("half of the free memory, where {} would be {}; --kv-tokens says more", why, tokens);
    tokens = std::max(room / block * block, block);
    choice.cut = true;
  }
  const uint64_t blocks = (tokens + block - 1) / block;
  if (blocks == 0 || blocks >= kNoBlock) {
    return InvalidArgument("--kv-tokens {}: expected 1 to {}", tokens, uint64_t{kNoBlock - 1} * block);
  }
  choice.num_blocks = static_cast<uint32_t>(blocks);
  tokens = blocks * block;
  // A context that nobody asked for is no longer than the cache.
  if (wish.ctx == 0) choice.context = static_cast<uint32_t>(std::min<uint64_t>(choice.context, tokens));
  choice.max_sequences = wish.max_sequences != 0 ? wish.max_sequences : std::max(wish.parallel, 64u);
  if (wish.state_bytes > 0) {
    // Memory that is never written costs nothing, but a worker must hold what may be.
    constexpr uint64_t kMost = 1 << 16;
    uint64_t slots = std::min(kMost, 2 * uint64_t{choice.max_sequences});
    if (wish.memory > 0) slots = std::min(slots, wish.memory / 4 / wish.state_bytes);
    slots = std::max<uint64_t>(slots, 2);
    choice.num_slots = static_cast<uint32_t>(slots);
    choice.max_sequences = std::min(choice.max_sequences, (choice.num_slots + 1) / 2);
  }
  const uint64_t whole = tokens / std::max(choice.context, 1u);
  choice.sentence = fmt::format("KV cache: {} tokens, {:.2f} GiB ({}); context {}, {} sequences at once, {}", tokens,
                                static_cast<double>(tokens * wish.bytes_per_token) / (1 << 30), why, choice.context,
                                choice.max_sequences,
                                wish.reserve ? fmt::format("of which {} fit, a whole context reserved for each", whole)
                                             : fmt::format("{} of them with the whole context", whole));
  if (choice.num_slots > 0) {
    choice.sentence += fmt::format("; {} recurrent states of {:.1f} MiB", choice.num_slots,
                                   static_cast<double>(wish.state_bytes) / (1 << 20));
  }
  return choice;
}

}  // namespace gyre
