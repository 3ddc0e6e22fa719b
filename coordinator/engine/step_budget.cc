#include "coordinator/engine/step_budget.h"

#include <algorithm>
#include <bit>

#include "coordinator/engine/learned_time.h"

namespace gyre {
namespace {

// The rows of one prompt may take this share of the time that the decode rows take.
constexpr double kShare = 0.7;
// Fewer prompt rows say nothing about the cost of a row: each step's noise is larger.
constexpr uint32_t kTelling = 4;
// Without decode rows the time holds a pass over the weights, which more rows share.
constexpr uint32_t kTellingAlone = 64;

size_t SizeOf(uint32_t rows, size_t sizes) {
  return std::min<size_t>(static_cast<size_t>(std::bit_width(std::max(rows, 1u) - 1)), sizes - 1);
}

}  // namespace

StepBudget::Known StepBudget::KnownTime(uint32_t rows) const {
  const size_t size = SizeOf(rows, kSizes);
  for (size_t i = size + 1; i > 0; --i) {
    const uint32_t measured = 1u << (i - 1);
    if (decode_[i - 1] > 0) return {decode_[i - 1], rows > measured ? rows - measured : 0};
  }
  const auto larger = std::find_if(decode_.begin() + static_cast<std::ptrdiff_t>(size), decode_.end(),
                                   [](double seconds) { return seconds > 0; });
  return larger == decode_.end() ? Known{} : Known{*larger, 0};
}

void StepBudget::Observe(uint32_t decode_rows, uint32_t prompt_rows, Duration took) {
  const double seconds = SecondsOf(took);
  if (seconds <= 0) return;
  if (prompt_rows == 0) {
    if (decode_rows > 0) Learn(&decode_[SizeOf(decode_rows, kSizes)], seconds);
  } else if (decode_rows > 0 && prompt_rows >= kTelling) {
    const Known known = KnownTime(decode_rows);
    if (known.seconds == 0) return;
    if (!beside_) row_ = 0;
    beside_ = true;
    Learn(&row_, std::max(seconds - known.seconds, seconds / 100) / (prompt_rows + known.more));
  } else if (decode_rows == 0 && prompt_rows >= kTellingAlone && !beside_) {
    Learn(&row_, seconds / prompt_rows);
  }
}

uint32_t StepBudget::Rows(uint32_t decode_rows, uint32_t prompts, uint32_t decoding) const {
  const double more = std::max(
      {1.0, static_cast<double>(std::min(prompts, kCrowd)), static_cast<double>(prompts) / std::max(decoding, 1u)});
  const Known known = KnownTime(decode_rows);
  // While prompts never end, no step without them is measured. A decode row more costs about what a prompt row does.
  const double decode = known.seconds + known.more * row_;
  const double rows = known.seconds > 0 && row_ > 0 ? kShare * decode / row_ : kFirst;
  return static_cast<uint32_t>(std::clamp<double>(rows * more, kLeast, 1 << 20));
}

}  // namespace gyre
