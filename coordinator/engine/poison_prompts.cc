#include "coordinator/engine/poison_prompts.h"

#include <chrono>

#include "xxhash.h"

namespace gyre {
namespace {

constexpr Duration kRemembered = std::chrono::minutes(10);
constexpr size_t kMost = 64;

uint64_t HashOf(const std::vector<TokenId>& prompt) {
  return XXH3_64bits(prompt.data(), prompt.size() * sizeof(TokenId));
}

}  // namespace

void PoisonPrompts::Add(const std::vector<TokenId>& prompt, Deadline now) {
  MutexLock lock(&mutex_);
  until_.emplace_back(HashOf(prompt), now + kRemembered);
  if (until_.size() > kMost) until_.pop_front();
}

Status PoisonPrompts::Check(const std::vector<TokenId>& prompt, Deadline now) {
  MutexLock lock(&mutex_);
  while (!until_.empty() && until_.front().second < now) until_.pop_front();
  if (until_.empty()) return absl::OkStatus();
  const uint64_t hash = HashOf(prompt);
  for (const auto& [poison, until] : until_) {
    if (poison != hash) continue;
    return InvalidArgument(
        "a request with this prompt was taken to be the cause of lost workers; it is refused for {} s",
        std::chrono::duration_cast<std::chrono::seconds>(until - now).count());
  }
  return absl::OkStatus();
}

}  // namespace gyre
