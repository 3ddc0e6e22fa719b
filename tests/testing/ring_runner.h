// Runs requests on an engine and collects their results, for tests and benchmarks.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/engine.h"

namespace gyre::testing {

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<float> probabilities;  // of each
  std::string text;
  std::vector<std::vector<float>> logits;  // in order of position
  // With Request::logprobs and prompt_logprobs: one for each token, the prompt's from position 1.
  std::vector<float> logprobs, prompt_logprobs;
  std::vector<uint32_t> prompt_positions;
  std::vector<std::vector<TokenLogprob>> top, prompt_top;
  std::vector<PromptTokenEvent> scores;  // all of prompt_logprobs, or of Request::score
  std::vector<float> embedding;
  std::vector<Status> waits;  // why it waited
  std::vector<PromptProgress> progress;
  int terminals = 0;
  int events_after_terminal = 0;
  Status status;  // of Submit or of Failed
  bool cancelled = false;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  Usage usage;
  std::string stop;
  TokenId stop_id = -1;
};

// Many requests at once. Thread-safe sinks; Wait blocks until each has its terminal event.
class Runner {
 public:
  explicit Runner(Engine& engine) : engine_(engine) {}

  // Returns the request's index in Wait's result. on_token: called with the number of tokens so far, at each token and
  // each answer to a row of the prompt; on the engine's thread.
  size_t Add(Request request, std::function<void(SeqId, size_t tokens)> on_token = {}) {
    size_t index = 0;
    {
      std::lock_guard lock(state_->mutex);
      index = state_->outcomes.size();
      state_->outcomes.emplace_back();
    }
    auto sink = [state = state_, index, on_token](SeqId seq, const Event& event) {
      size_t tokens = 0;
      {
        std::lock_guard lock(state->mutex);
        Take(state->outcomes[index], event);
        tokens = state->outcomes[index].tokens.size();
      }
      state->changed.notify_all();
      const bool row = std::holds_alternative<TokenEvent>(event) || std::holds_alternative<LogitsEvent>(event) ||
                       std::holds_alternative<PromptTokenEvent>(event);
      if (on_token && row) on_token(seq, tokens);
    };
    auto seq = engine_.Submit(std::move(request), sink);
    std::lock_guard lock(state_->mutex);
    if (!seq.ok()) {
      state_->outcomes[index].status = seq.status();
      state_->outcomes[index].terminals = 1;
    }
    ids_.push_back(seq.ok() ? *seq : SeqId{0});
    return index;
  }
  SeqId id(size_t index) const { return ids_[index]; }

  std::vector<Outcome> Wait() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return AllEnded(); });
    return state_->outcomes;
  }
  bool done() const {
    std::lock_guard lock(state_->mutex);
    return AllEnded();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Outcome> outcomes;
  };
  bool AllEnded() const {
    for (const Outcome& o : state_->outcomes) {
      if (o.terminals == 0) return false;
    }
    return true;
  }
  static void Take(Outcome& o, const Event& event) {
    if (o.terminals > 0) ++o.events_after_terminal;
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      o.tokens.push_back(token->token);
      o.probabilities.push_back(token->probability);
      o.text += token->text;
      o.logprobs.push_back(token->logprob);
      o.top.push_back(token->top);
    } else if (auto* prompt = std::get_if<PromptTokenEvent>(&event)) {
      o.prompt_positions.push_back(prompt->position);
      o.prompt_logprobs.push_back(prompt->logprob);
      o.prompt_top.push_back(prompt->top);
      o.scores.push_back(*prompt);
    } else if (auto* embedding = std::get_if<EmbeddingEvent>(&event)) {
      o.embedding = embedding->values;
    } else if (auto* row = std::get_if<LogitsEvent>(&event)) {
      o.logits.push_back(row->logits);
    } else if (auto* waiting = std::get_if<Waiting>(&event)) {
      o.waits.push_back(waiting->why);
    } else if (auto* progress = std::get_if<PromptProgress>(&event)) {
      o.progress.push_back(*progress);
    } else {
      ++o.terminals;
      if (auto* finished = std::get_if<Finished>(&event)) {
        o.finished = true;
        o.text += finished->text;
        o.reason = finished->reason;
        o.usage = finished->usage;
        o.stop = finished->stop;
        o.stop_id = finished->stop_id;
      } else if (auto* failed = std::get_if<Failed>(&event)) {
        o.status = failed->status;
      } else {
        o.cancelled = true;
      }
    }
  }

  Engine& engine_;
  std::vector<SeqId> ids_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline Outcome RunOne(Engine& engine, Request request) {
  Runner runner(engine);
  runner.Add(std::move(request));
  return runner.Wait().front();
}

inline std::vector<Outcome> RunAll(Engine& engine, const std::vector<Request>& requests) {
  Runner runner(engine);
  for (const Request& r : requests) runner.Add(r);
  return runner.Wait();
}

}  // namespace gyre::testing
