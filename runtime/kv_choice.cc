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
  const uint64_t whole = tokens / std::max(choice.context, 1u);
  choice.sentence = fmt::format("KV cache: {} tokens, {:.2f} GiB ({}); context {}, {} sequences at once, {}", tokens,
                                static_cast<double>(tokens * wish.bytes_per_token) / (1 << 30), why, choice.context,
                                choice.max_sequences,
                                wish.reserve ? fmt::format("of which {} fit, a whole context reserved for each", whole)
                                             : fmt::format("{} of them with the whole context", whole));
  return choice;
}

}  // namespace gyre
