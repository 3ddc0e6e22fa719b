#include "coordinator/engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace gyre {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Relative error allowed between the mass that log-sum-exps give and the mass summed over full logits. A decision that
// could differ within this margin is left to the full logits, so that both paths always draw the same token.
constexpr double kMassMargin = 1e-9;
// A draw sorts first the ids whose weight is above exp(-kFirstReach). Beyond exp(-kLastReach) weights are 0.
constexpr double kFirstReach = 6, kLastReach = 745;

// The changes that bias and penalties make to one id's logit.
struct Adjustment {
  TokenId id = 0;
  double bias = 0;
  uint32_t generated = 0;  // times among the generated tokens
  bool repeated = false;   // within the repetition penalty's reach
};

// Only the ids that are changed, by rising id.
std::vector<Adjustment> Adjustments(const SamplingParams& params, const TokenHistory& history) {
  std::unordered_map<TokenId, Adjustment> by_id;
  for (const auto& [id, bias] : params.logit_bias) by_id[id].bias += bias;
  std::erase_if(by_id, [](const auto& entry) { return entry.second.bias == 0; });
  const std::span<const TokenId> tokens = history.tokens;
  if (params.repetition_penalty != 1) {
    const size_t reach =
        params.penalty_last_n < 0 ? tokens.size() : std::min(tokens.size(), static_cast<size_t>(params.penalty_last_n));
    for (TokenId id : tokens.last(reach)) by_id[id].repeated = true;
  }
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    for (TokenId id : tokens.subspan(std::min(history.prompt_length, tokens.size()))) ++by_id[id].generated;
  }
  std::vector<Adjustment> all;
  all.reserve(by_id.size());
  for (auto& [id, adjustment] : by_id) {
    adjustment.id = id;
    all.push_back(adjustment);
  }
  std::sort(all.begin(), all.end(), [](const Adjustment& a, const Adjustment& b) { return a.id < b.id; });
  return all;
}

float Adjusted(const SamplingParams& params, const Adjustment& adjustment, float raw) {
  double logit = raw + adjustment.bias;
  if (adjustment.repeated) logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  if (adjustment.generated > 0) {
    logit -= static_cast<double>(params.frequency_penalty) * adjustment.generated + params.presence_penalty;
  }
  if (!std::isfinite(logit)) return static_cast<float>(logit);
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(logit, -kMost, kMost));
}

bool Allowed(std::span<const uint64_t> mask, TokenId id) {
  if (mask.empty()) return true;
  const size_t word = static_cast<size_t>(id) / 64;
  return word < mask.size() && (mask[word] >> (id % 64) & 1) != 0;
}

// An id with a logit of NaN or -inf can't be drawn.
bool Drawable(float logit) { return logit > -kInfinity; }

bool Before(const TokenLogit& a, const TokenLogit& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

// Relative to the best, whose weight is 1.
double Weight(float logit, float best, float temperature) {
  if (logit == best) return 1;  // also where both are infinite
  return std::exp((static_cast<double>(logit) - best) / temperature);
}

size_t EffectiveTopK(const SamplingParams& params, size_t vocab) {
  const auto k = static_cast<size_t>(params.top_k);
  return k < vocab ? k : 0;
}

// The best of a row, best first: all that can be drawn, or a part of it.
struct Ranked {
  std::span<const TokenLogit> list;
  bool complete = false;
  // Bounds of the sum of the weights of all ids that can be drawn, the unknown ones included.
  double mass_low = 0;
  double mass_high = std::numeric_limits<double>::infinity();
};

// The number of ids of the list that the filters keep; nullopt: the list does not tell. `sums` are running sums of the
// weights of the first sums.size() entries; `closed`: no other id can be drawn.
std::optional<size_t> CountKept(const SamplingParams& params, std::span<const double> weights,
                                std::span<const double> sums, bool closed, double mass) {
  constexpr size_t kBeyond = std::numeric_limits<size_t>::max();
  size_t kept = closed ? sums.size() : kBeyond;
  if (params.top_p < 1) {
    const auto crossing = std::lower_bound(sums.begin(), sums.end(), params.top_p * mass);
    if (crossing != sums.end()) kept = std::min<size_t>(kept, crossing - sums.begin() + 1);
  }
  if (params.min_p > 0) {
    const double least = params.min_p;
    const auto failing = std::find_if(weights.begin(), weights.end(), [&](double w) { return w < least; });
    if (failing != weights.end()) kept = std::min<size_t>(kept, failing - weights.begin());
  }
  if (kept == kBeyond) return std::nullopt;
  return kept;
}

// A draw depends on these and on the logits.
struct Random {
  uint64_t seed = 0;
  uint32_t position = 0;
};

bool KeepsAll(const SamplingParams& params, size_t top_k) {
  return top_k == 0 && params.top_p >= 1 && params.min_p <= 0;
}

// The entry with the largest sum of logit / temperature and its id's Gumbel number. REQUIRES: the list isn't empty.
size_t LargestPerturbed(std::span<const TokenLogit> list, float temperature, const Random& random) {
  size_t at = 0;
  double most = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const double sum =
        static_cast<double>(list[i].logit) / temperature + GumbelAt(random.seed, random.position, list[i].id);
    if (i > 0 && (sum < most || (sum == most && list[i].id > list[at].id))) continue;
    most = sum;
    at = i;
  }
  return at;
}

// nullopt: the list does not decide the draw. A longer list never changes a decision: running sums add the same weights
// in the same order, and a decision that depends on the mass must hold at both its bounds. REQUIRES: temperature > 0,
// the list isn't empty.
std::optional<Draw> DrawRanked(const SamplingParams& params, size_t top_k, const Random& random, const Ranked& ranked) {
  const bool top_k_closes = top_k > 0 && top_k <= ranked.list.size();
  const size_t count = top_k_closes ? top_k : ranked.list.size();
  const bool closed = top_k_closes || ranked.complete;
  std::vector<double> weights(count), sums(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    weights[i] = Weight(ranked.list[i].logit, ranked.list[0].logit, params.temperature);
    sums[i] = sum += weights[i];
  }
  const auto draw = [&](size_t i, double mass) {
    return Draw{.token = ranked.list[i].id, .probability = static_cast<float>(weights[i] / mass)};
  };

  const bool gumbel = params.draw == DrawMethod::kGumbel;
  const double u = gumbel ? 0 : UniformAt(random.seed, random.position);
  if (KeepsAll(params, top_k)) {
    // Any id may have the largest sum.
    if (gumbel && !closed) return std::nullopt;
    if (gumbel) return draw(LargestPerturbed(ranked.list, params.temperature, random), ranked.mass_low);
    const auto low = std::upper_bound(sums.begin(), sums.end(), u * ranked.mass_low);
    const auto high = std::upper_bound(sums.begin(), sums.end(), u * ranked.mass_high);
    if (low != high || (low == sums.end() && !closed)) return std::nullopt;
    return draw(std::min<size_t>(low - sums.begin(), count - 1), ranked.mass_low);
  }

  double mass_low = ranked.mass_low;
  double mass_high = ranked.mass_high;
  if (top_k > 0) {
    mass_low = sum;
    if (closed) mass_high = sum;
  }
  const std::optional<size_t> kept = CountKept(params, weights, sums, closed, mass_low);
  if (!kept || kept != CountKept(params, weights, sums, closed, mass_high)) return std::nullopt;
  const double mass = sums[*kept - 1];
  if (gumbel) return draw(LargestPerturbed(ranked.list.first(*kept), params.temperature, random), mass);
  const auto drawn = std::upper_bound(sums.begin(), sums.begin() + *kept, u * mass);
  return draw(std::min<size_t>(drawn - sums.begin(), *kept - 1), mass);
}

// REQUIRES: rising ids, so that the sum does not depend on how many of them were sorted by logit.
double MassOf(std::span<const TokenLogit> ids, float best, float temperature) {
  double mass = 0;
  for (const TokenLogit& entry : ids) mass += Weight(entry.logit, best, temperature);
  return mass;
}

// Where the client forbids ids, it is the client's doing, whatever logits the others have.
Status NothingLeft(const SamplingParams& params, uint32_t position) {
  const bool bans = std::any_of(params.logit_bias.begin(), params.logit_bias.end(),
                                [](const auto& bias) { return bias.second == -kInfinity; });
  if (bans) {
    return InvalidArgument("no token can be drawn at position {}: logit_bias forbids every id that is left", position);
  }
  return Internal("no token can be drawn at position {}: every logit is masked, banned or not a number", position);
}

// `adjustments` must be those that the row's request was made with.
Status CheckAnswer(const RowRequest& request, const RowAnswer& answer, std::span<const Adjustment> adjustments,
                   int vocab) {
  if (answer.mode != request.mode) {
    return Internal("the answer for position {} has mode {}, asked was {}", answer.position,
                    static_cast<int>(answer.mode), static_cast<int>(request.mode));
  }
  const auto same_id = [](const auto& a, const auto& b) { return a.id == b.id; };
  if (!std::equal(answer.biased.begin(), answer.biased.end(), adjustments.begin(), adjustments.end(), same_id)) {
    return Internal("the answer for position {} has other biased ids than sampling needs", answer.position);
  }
  const size_t k = request.mode == RowMode::kArgmax ? 1 : request.k;
  if (answer.top.size() > k) {
    return Internal("the answer for position {} has {} candidates, asked were {}", answer.position, answer.top.size(),
                    k);
  }
  for (size_t i = 0; i < answer.top.size(); ++i) {
    const TokenLogit& entry = answer.top[i];
    if (entry.id < 0 || entry.id >= vocab || !Allowed(request.mask, entry.id) ||
        std::binary_search(request.biased.begin(), request.biased.end(), entry.id)) {
      return Internal("the answer for position {} has the candidate {}, which was not asked for", answer.position,
                      entry.id);
    }
    if (i > 0 && Drawable(entry.logit) && !Before(answer.top[i - 1], entry)) {
      return Internal("the answer for position {} has its candidates out of order", answer.position);
    }
  }
  return {};
}

size_t CountAllowed(std::span<const uint64_t> mask, size_t vocab) {
  if (mask.empty()) return vocab;
  size_t count = 0;
  for (size_t word = 0; word < mask.size() && word * 64 < vocab; ++word) {
    const size_t bits = std::min<size_t>(64, vocab - word * 64);
    count += std::popcount(bits == 64 ? mask[word] : mask[word] & ((uint64_t{1} << bits) - 1));
  }
  return count;
}

// True if the candidates are all ids that are neither biased nor masked and can be drawn.
bool HoldsAllOthers(const RowRequest& request, const RowAnswer& answer, int vocab) {
  const size_t k = request.mode == RowMode::kArgmax ? 1 : request.k;
  if (answer.top.size() < k || !Drawable(answer.top.back().logit)) return true;
  size_t others = CountAllowed(request.mask, static_cast<size_t>(vocab));
  for (TokenId id : request.biased) others -= Allowed(request.mask, id);
  return answer.top.size() >= others;
}

// Sets the bounds of the mass of all ids that can be drawn, from the answer's log-sum-exp; leaves them open where it
// does not tell.
void BoundMass(const SamplingParams& params, const RowRequest& request, const RowAnswer& answer,
               std::span<const TokenLogit> biased, Ranked* ranked) {
  if (request.temperature != params.temperature) return;
  const double rest = answer.log_sum_exp_t;
  const float best = ranked->list[0].logit;
  const double scaled_best = static_cast<double>(best) / params.temperature;
  double mass = answer.top.empty() ? 0 : std::exp(rest - scaled_best);
  for (const TokenLogit& entry : biased) mass += Weight(entry.logit, best, params.temperature);
  if (!std::isfinite(mass)) return;
  const double margin =
      kMassMargin + 16 * std::numeric_limits<double>::epsilon() * (std::fabs(rest) + std::fabs(scaled_best));
  ranked->mass_low = mass * (1 - margin);
  ranked->mass_high = mass * (1 + margin);
}

}  // namespace

RowRequest MakeRowRequest(const SamplingParams& params, const TokenHistory& history, std::span<const uint64_t> mask,
                          uint32_t candidates) {
  RowRequest request;
  request.mask.assign(mask.begin(), mask.end());
  for (const Adjustment& adjustment : Adjustments(params, history)) request.biased.push_back(adjustment.id);
  const bool greedy = params.temperature == 0;
  if (greedy && request.biased.empty()) {
    request.mode = RowMode::kArgmax;
    return request;
  }
  if (params.draw == DrawMethod::kGumbel && !greedy && KeepsAll(params, static_cast<size_t>(params.top_k))) {
    request.mode = RowMode::kFullLogits;  // candidates never decide it
    request.biased.clear();
    return request;
  }
  request.mode = RowMode::kTopK;
  if (greedy) {
    request.k = 1;  // the best of the others is all that the biased ids compete with
    return request;
  }
  const bool all_fit = params.top_k > 0 && static_cast<uint32_t>(params.top_k) <= kMaxTopK;
  request.k = all_fit ? static_cast<uint32_t>(params.top_k) : std::clamp(candidates, 1u, kMaxTopK);
  const bool needs_mass = !all_fit && (params.top_p < 1 || params.min_p <= 0);
  // Without it the last stage passes over the row once less.
  if (needs_mass) request.temperature = params.temperature;
  return request;
}

StatusOr<std::optional<Draw>> SampleCandidates(const SamplingParams& params, const TokenHistory& history,
                                               const RowRequest& request, const RowAnswer& answer, int vocab,
                                               uint32_t moved) {
  const bool greedy = params.temperature == 0;
  const bool fits = request.mode == RowMode::kTopK ? request.k > 0 : request.mode == RowMode::kArgmax && greedy;
  if (!fits) {
    return InvalidArgument("a request of mode {} for {} candidates gives nothing to sample from",
                           static_cast<int>(request.mode), request.k);
  }
  const std::vector<Adjustment> adjustments = Adjustments(params, history);
  GYRE_RETURN_IF_ERROR(CheckAnswer(request, answer, adjustments, vocab));

  std::vector<TokenLogit> list;
  for (size_t i = 0; i < adjustments.size(); ++i) {
    const TokenId id = adjustments[i].id;
    const float logit = Adjusted(params, adjustments[i], answer.biased[i].logit);
    if (Drawable(logit) && Allowed(request.mask, id)) list.push_back({id, logit});
  }
  const std::vector<TokenLogit> biased = list;
  std::copy_if(answer.top.begin(), answer.top.end(), std::back_inserter(list),
               [](const TokenLogit& entry) { return Drawable(entry.logit); });
  if (list.empty()) return NothingLeft(params, answer.position);
  std::sort(list.begin(), list.end(), Before);
  Ranked ranked;
  ranked.complete = HoldsAllOthers(request, answer, vocab);
  if (!ranked.complete) {
    // Below the last of the top, unknown ids may stand between biased ids.
    list.erase(std::upper_bound(list.begin(), list.end(), answer.top.back(), Before), list.end());
  }
  ranked.list = list;
  if (greedy) return std::optional<Draw>({.token = list[0].id, .probability = 1});
  if (ranked.complete) {
    std::vector<TokenLogit> by_id = list;
    std::sort(by_id.begin(), by_id.end(), [](const TokenLogit& a, const TokenLogit& b) { return a.id < b.id; });
    ranked.mass_low = ranked.mass_high = MassOf(by_id, list[0].logit, params.temperature);
  } else {
    BoundMass(params, request, answer, biased, &ranked);
  }
  const auto top_k = EffectiveTopK(params, static_cast<size_t>(vocab));
  return DrawRanked(params, top_k, {params.seed, answer.position + moved}, ranked);
}

StatusOr<Draw> SampleFull(const SamplingParams& params, const TokenHistory& history, std::span<const uint64_t> mask,
                          std::span<const float> logits, uint32_t position) {
  const std::vector<Adjustment> adjustments = Adjustments(params, history);
  std::vector<TokenLogit> list;
  list.reserve(logits.size());
  auto next = adjustments.begin();
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    float logit = logits[i];
    if (next != adjustments.end() && next->id == id) logit = Adjusted(params, *next++, logit);
    if (Drawable(logit) && Allowed(mask, id)) list.push_back({id, logit});
  }
  if (list.empty()) return NothingLeft(params, position);
  const TokenLogit best = *std::min_element(list.begin(), list.end(), Before);
  if (params.temperature == 0) return Draw{.token = best.id, .probability = 1};

  const size_t top_k = EffectiveTopK(params, logits.size());
  Ranked ranked;
  if (top_k == 0) ranked.mass_low = ranked.mass_high = MassOf(list, best.logit, params.temperature);
  const Random random{params.seed, position};
  if (params.draw == DrawMethod::kGumbel && KeepsAll(params, top_k)) {
    const TokenLogit& drawn = list[LargestPerturbed(list, params.temperature, random)];
    return Draw{
        .token = drawn.id,
        .probability = static_cast<float>(Weight(drawn.logit, best.logit, params.temperature) / ranked.mass_low)};
  }
  // Most draws need only a few of the best ids, so few are sorted at first.
  const auto enough = static_cast<std::ptrdiff_t>(std::min(top_k, list.size()));
  auto sorted = list.begin(), end = list.begin();
  for (double reach = kFirstReach;; reach *= 2) {
    const double least = reach < kLastReach ? best.logit - reach * params.temperature : -kInfinity;
    end = std::partition(end, list.end(), [least](const TokenLogit& e) { return e.logit >= least; });
    if (end - list.begin() < enough) continue;
    if (top_k > 0) {
      std::nth_element(list.begin(), list.begin() + enough, end, Before);
      end = list.begin() + enough;
    }
    std::sort(sorted, end, Before);
    sorted = end;
    ranked.list = std::span(list.begin(), sorted);
    ranked.complete = sorted == list.end();
    if (std::optional<Draw> draw = DrawRanked(params, top_k, random, ranked)) return *draw;
    if (ranked.complete || top_k > 0) {
      return Internal("the draw at position {} is undecided with all logits known", position);
    }
  }
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

namespace {

// 53 bits.
uint64_t BitsAt(uint64_t seed, std::array<uint32_t, 4> counter) {
  const std::array<uint32_t, 4> words =
      Philox4x32(counter, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (uint64_t{words[1]} << 32 | words[0]) >> 11;
}

}  // namespace

double UniformAt(uint64_t seed, uint32_t position) {
  return static_cast<double>(BitsAt(seed, {position, 0, 0, 0})) * 0x1p-53;
}

double GumbelAt(uint64_t seed, uint32_t position, TokenId id) {
  // u is neither 0 nor 1, for which the result would be infinite: it has 52 bits, as with 53 the half would be rounded
  // away.
  const double u =
      (static_cast<double>(BitsAt(seed, {position, static_cast<uint32_t>(id), 1, 0}) >> 1) + 0.5) * 0x1p-52;
  return -std::log(-std::log(u));
}

}  // namespace gyre
