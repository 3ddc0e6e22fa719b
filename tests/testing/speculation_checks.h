// What tests of drafters have in common: rings that take all drafts, requests of all kinds, and equal outcomes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/drafter.h"
#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_ring.h"

namespace gyre::testing {

inline RuntimeOptions SpeculatingRing(const std::string& model, int stages, const std::string& speculation) {
  RuntimeOptions o = TinyRing(model, stages, 96);
  o.speculation = speculation;
  o.takes_all_drafts = true;
  return o;
}

// Greedy and drawn at this temperature, with log-probabilities, stop ids and questions for full logits, by `i`.
inline void VarySettings(Request* r, uint32_t i, float temperature) {
  r->sampling.temperature = i % 3 == 0 ? 0.0f : temperature;
  r->sampling.seed = i;
  r->ignore_end = i != 4;
  if (i % 3 != 1) r->logprobs = i;
  if (i == 2) r->sampling.top_k = 0, r->sampling.top_p = 0.999f, r->sampling.min_p = 0;  // asks for all logits
  if (i == 4) r->stop_ids = {7, 8}, r->min_new_tokens = 10;
  r->priority = static_cast<int>(i % 2);
}

inline void ExpectSameOutcomes(const std::vector<Outcome>& got, const std::vector<Outcome>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(got[i].finished) << got[i].status;
    EXPECT_EQ(got[i].tokens, expected[i].tokens);
    EXPECT_EQ(got[i].probabilities, expected[i].probabilities);
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs);
    EXPECT_EQ(got[i].top, expected[i].top);
    EXPECT_EQ(got[i].stop_id, expected[i].stop_id);
    EXPECT_EQ(got[i].reason, expected[i].reason);
    EXPECT_EQ(got[i].usage.generated_tokens, expected[i].usage.generated_tokens);
  }
}

// Knows some texts, and guesses what follows in them: rightly, wrongly from some place on, or anything.
class Adversary : public Drafter {
 public:
  explicit Adversary(int vocab) : vocab_(vocab) {}
  void Know(std::vector<TokenId> text) { known_.push_back(std::move(text)); }

  void Draft(DraftQuestion q, std::function<void(std::vector<TokenId>)> answer) override {
    std::vector<TokenId> drafts;
    {
      std::lock_guard lock(mutex_);
      behind_ += q.assumed > 0 ? 1 : 0;
      std::vector<TokenId>& text = texts_[q.seq];
      text.resize(q.first);
      text.insert(text.end(), q.tokens.begin(), q.tokens.end());
      const uint32_t wrong_at = random_() % 3 == 0 ? UINT32_MAX : random_() % (q.most + 1);
      const auto known = std::find_if(known_.begin(), known_.end(), [&](const std::vector<TokenId>& k) {
        return k.size() >= text.size() && std::equal(text.begin(), text.end(), k.begin());
      });
      for (uint32_t i = 0; i < q.most; ++i) {
        const size_t at = text.size() + i;
        const bool right = i < wrong_at && known != known_.end() && at < known->size();
        drafts.push_back(right ? (*known)[at] : static_cast<TokenId>(random_() % static_cast<uint32_t>(vocab_)));
      }
    }
    answer(std::move(drafts));
  }
  void End(SeqId seq) override {
    std::lock_guard lock(mutex_);
    texts_.erase(seq);
  }
  void Stop() override {}
  Duration each() const override { return {}; }
  // Questions about what follows drafts in flight.
  int behind() const {
    std::lock_guard lock(mutex_);
    return behind_;
  }

 private:
  const int vocab_;
  std::vector<std::vector<TokenId>> known_;
  mutable std::mutex mutex_;
  int behind_ = 0;
  std::map<SeqId, std::vector<TokenId>> texts_;
  std::mt19937 random_{1};
};

inline constexpr int kSpeculationWords = 96;

// Greedy and drawn, with histories, log-probabilities, stop strings and questions for full logits.
inline std::vector<Request> SpeculationRequests() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    Request r;
    std::mt19937 random(i);
    // What stands there twice is drafted from the text itself.
    for (uint32_t n = 0; n < 12 + 3 * i; ++n) r.prompt.push_back(static_cast<TokenId>(random() % kSpeculationWords));
    r.prompt.insert(r.prompt.end(), r.prompt.begin(), r.prompt.begin() + 9);
    r.max_new_tokens = 36;
    VarySettings(&r, i, 0.8f);
    if (i % 2 == 1) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.2f;
    if (i == 3) r.sampling.temperature = 0, r.sampling.repetition_penalty = 1;
    requests.push_back(std::move(r));
  }
  return requests;
}

inline std::shared_ptr<Adversary> Knowing(const std::vector<Request>& requests, const std::vector<Outcome>& outcomes) {
  auto adversary = std::make_shared<Adversary>(kSpeculationWords);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<TokenId> text = requests[i].prompt;
    text.insert(text.end(), outcomes[i].tokens.begin(), outcomes[i].tokens.end());
    adversary->Know(std::move(text));
  }
  return adversary;
}

}  // namespace gyre::testing
