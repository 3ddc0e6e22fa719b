// The far ends of an engine's ring, controlled by a test: it sees the engine's frames, and answers as a toy model
// would, or wrongly, or never.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/mask_codec.h"
#include "base/step_codec.h"
#include "coordinator/engine/engine.h"
#include "transport/inproc_link.h"
#include "transport/queued_link.h"

namespace gyre::testing {

// For one thread.
class ScriptedStage {
 public:
  static constexpr int kVocab = 97, kDim = 8;

  // A frame from the engine.
  struct Received {
    FrameKind kind{};  // kTokens or kFullLogitsRequest; 0: nothing came
    StepId step{};
    Epoch epoch;
    StepBatch batch;
    FullLogitsRequest question;
    std::vector<SeqId> seqs() const {
      std::vector<SeqId> out;
      for (const SeqRows& s : batch.seqs) out.push_back(s.seq);
      return out;
    }
  };

  // Makes the links of the next plan; earlier ones stay as they are, and are no longer read.
  Ring NewRing(uint64_t salt = 0, uint32_t stages = 1, const InprocOptions& to_first_options = {}) {
    auto [to_first, first] = MakeInprocLinkPair(to_first_options);
    auto [last, from_last] = MakeInprocLinkPair();
    first_ = std::move(first);
    last_ = std::move(last);
    old_.push_back(first_);
    old_.push_back(last_);
    return {.epoch = {.term = 1, .number = ++number_},
            .stages = stages,
            .prefill_matches_decode = true,
            .cache_namespace = salt,
            .to_first = MakeQueuedLink(std::move(to_first)),
            .from_last = std::move(from_last)};
  }
  void CloseToFirst() { first_->Close(); }
  void CloseBoth() {
    first_->Close();
    last_->Close();
  }

  // The engine's next frame; if none comes, the test fails and ends.
  Received Next() {
    Received r = Poll(std::chrono::seconds(20));
    if (r.kind == FrameKind{}) throw std::runtime_error("the engine sends nothing");
    return r;
  }
  Received Poll(Duration timeout) {
    Received r;
    StatusOr<Frame> frame = first_->Recv(After(timeout));
    for (; frame.ok() && frame->header.kind == FrameKind::kMasks; frame = first_->Recv(After(timeout))) {
      const auto masks = DecodeMasks(frame->payload, kVocab);
      EXPECT_TRUE(masks.ok()) << masks.status();
      for (const NumberedMask& mask : *masks) masks_[{frame->header.epoch.number, mask.number}] = mask.words;
      masks_came_ += masks->size();
    }
    if (!frame.ok()) return r;
    r.kind = frame->header.kind;
    r.step = frame->header.step;
    r.epoch = frame->header.epoch;
    if (r.kind == FrameKind::kFullLogitsRequest) {
      r.question = *DecodeFullLogitsRequest(frame->payload);
      return r;
    }
    const StatusOr<StepPayload> payload = DecodeStepPayload(frame->payload, sizeof(TokenId));
    EXPECT_TRUE(payload.ok()) << payload.status();
    r.batch = payload->batch;
    std::vector<TokenId> ids(payload->rows.size() / sizeof(TokenId));
    std::memcpy(ids.data(), payload->rows.data(), payload->rows.size());
    auto id = ids.begin();
    for (const SeqRows& s : r.batch.seqs) {
      for (uint32_t i = 0; i < s.row_count; ++i) tokens_[{s.seq, s.first_position + i}] = *id++;
    }
    return r;
  }

  // The toy model: a row's logits depend on its token and position, and are close together.
  static std::vector<float> Logits(TokenId token, uint32_t position) {
    std::vector<float> logits;
    for (uint32_t id = 0; id < kVocab; ++id) {
      const uint32_t x = id * 2654435761u + static_cast<uint32_t>(token) * 40503u + position * 7919u;
      logits.push_back(static_cast<float>((x >> 7) % 1000) * 1e-3f);
    }
    return logits;
  }
  std::vector<float> LogitsOf(const FullLogitsRequest& q) const {
    return Logits(tokens_.at({q.seq, q.position}), q.position);
  }

  size_t masks_came() const { return masks_came_; }

  void Answer(const Received& r) {
    if (r.kind == FrameKind::kFullLogitsRequest) return AnswerQuestion(r.question, LogitsOf(r.question));
    AnswerStep(r, [](RowAnswer*) {});
  }
  template <typename Change>
  void AnswerStep(const Received& r, Change change) {
    StepAnswer answer;
    for (const SeqRows& s : r.batch.seqs) {
      for (const RowRequest& request : s.requests) {
        for (uint32_t i = 0; i < request.count; ++i) {
          answer.rows.push_back(RowOf(s, request, s.first_position + request.first + i, r.epoch));
          change(&answer.rows.back());
        }
      }
    }
    Encoder out;
    EncodeStepAnswer(answer, &out);
    Send(FrameKind::kAnswer, r.epoch, r.step, out);
  }
  void AnswerQuestion(const FullLogitsRequest& question, std::vector<float> logits) {
    Encoder out;
    EncodeLogitsAnswer({.question = question, .logits = std::move(logits)}, &out);
    Send(FrameKind::kLogitsAnswer, {.term = 1, .number = number_}, {}, out);
  }
  void FailStep(const Received& r, const std::string& why) {
    Encoder out;
    EncodeStepError({.stage = 0, .message = why}, &out);
    Send(FrameKind::kStepError, r.epoch, r.step, out);
  }
  // Answers every frame until `done` returns true.
  template <typename Done>
  void ServeUntil(Done done) {
    const Deadline late = After(std::chrono::seconds(60));
    while (!done()) {
      const Received r = Poll(std::chrono::milliseconds(2));
      if (r.kind != FrameKind{}) Answer(r);
      if (Clock::now() > late) throw std::runtime_error("the engine does not come to an end");
    }
  }

 private:
  static bool BestFirst(const TokenLogit& a, const TokenLogit& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
  RowAnswer RowOf(const SeqRows& s, const RowRequest& request, uint32_t position, Epoch epoch) const {
    const std::vector<uint64_t>* mask = &request.mask;
    if (request.mask_number) {
      const auto known = masks_.find({epoch.number, *request.mask_number});
      EXPECT_NE(known, masks_.end()) << "there is no mask " << *request.mask_number;
      if (known != masks_.end()) mask = &known->second;
    }
    const auto allowed = [mask](TokenId id) {
      return mask->empty() || ((*mask)[static_cast<size_t>(id) / 64] >> static_cast<size_t>(id) % 64 & 1) != 0;
    };
    const std::vector<float> logits = Logits(tokens_.at({s.seq, position}), position);
    RowAnswer row{.seq = s.seq, .incarnation = s.incarnation, .position = position, .mode = request.mode};
    if (request.mode == RowMode::kHidden) {
      row.values.assign(logits.begin(), logits.begin() + kDim);
      return row;
    }
    if (request.logprobs) {
      for (TokenId id = 0; id < kVocab; ++id) row.best.push_back({id, logits[static_cast<size_t>(id)]});
      double sum = 0;
      for (const TokenLogit& t : row.best) sum += std::exp(double{t.logit});
      row.log_sum_exp_all = std::log(sum);
      std::sort(row.best.begin(), row.best.end(), BestFirst);
      row.best.resize(std::min<size_t>(row.best.size(), *request.logprobs));
    }
    if (request.mode == RowMode::kFullLogits) {
      row.values = logits;
      return row;
    }
    for (TokenId id : request.biased) row.biased.push_back({id, logits[static_cast<size_t>(id)]});
    if (request.mode == RowMode::kTargets) return row;
    double sum_t = 0;
    for (TokenId id = 0; id < kVocab; ++id) {
      if (std::binary_search(request.biased.begin(), request.biased.end(), id) || !allowed(id)) continue;
      const float logit = logits[static_cast<size_t>(id)];
      row.top.push_back({id, logit});
      if (request.temperature > 0) sum_t += std::exp(double{logit} / request.temperature);
    }
    std::sort(row.top.begin(), row.top.end(), BestFirst);
    row.top.resize(std::min<size_t>(row.top.size(), request.mode == RowMode::kArgmax ? 1 : request.k));
    if (request.mode == RowMode::kTopK && request.temperature > 0) row.log_sum_exp_t = std::log(sum_t);
    return row;
  }
  void Send(FrameKind kind, Epoch epoch, StepId step, const Encoder& out) {
    const ByteSpan parts[] = {out.bytes()};
    (void)last_->Send({.kind = kind, .epoch = epoch, .step = step}, parts, kNoDeadline);
  }

  uint64_t number_ = 0;
  std::shared_ptr<Link> first_, last_;
  std::vector<std::shared_ptr<Link>> old_;  // open: the engine must not need their end to notice a new ring
  std::map<std::pair<SeqId, uint32_t>, TokenId> tokens_;
  std::map<std::pair<uint64_t, uint32_t>, std::vector<uint64_t>> masks_;  // by plan and number
  size_t masks_came_ = 0;
};

}  // namespace gyre::testing
