// The layer for drafts at the last stage, against one that is computed in double and without a thought for speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "model/tensor_table.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/tiny_mtp.h"

namespace gyre {
namespace {

using testing::OneStage;
using DoubleRows = std::vector<std::vector<double>>;

const testing::TinyMtpOptions kTiny{.loud = 1, .own = true};

// The layer of BuildTinyMtp, from its facts and its tensors' bytes.
class DoubleMtp {
 public:
  explicit DoubleMtp(const Model& model) : tensors_(model.tensors()) {}

  // The layer's normed output for rows at positions 0, 1, ... from the tokens behind them and hidden states.
  DoubleRows Outputs(const std::vector<TokenId>& next, const DoubleRows& hidden) const {
    const std::vector<double> embedding = Tensor("token_embd.weight"), join = Layer("nextn.eh_proj"),
                              attn_norm = Layer("attn_norm"), ffn_norm = Layer("post_attention_norm");
    const size_t dim = kTiny.dim, heads = kTiny.heads, head = dim / heads, kv_heads = kTiny.kv_heads;
    DoubleRows x, keys, values, out;
    for (size_t i = 0; i < next.size(); ++i) {
      const auto at = embedding.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(next[i]) * dim);
      std::vector<double> both = Norm({at, at + static_cast<std::ptrdiff_t>(dim)}, Layer("nextn.enorm"));
      const std::vector<double> h = Norm(hidden[i], Layer("nextn.hnorm"));
      both.insert(both.end(), h.begin(), h.end());
      std::vector<double> row = Times(join, both);
      const std::vector<double> y = Norm(row, attn_norm);
      keys.push_back(Rotated(Times(Layer("attn_k"), y), head, i));
      values.push_back(Times(Layer("attn_v"), y));
      const std::vector<double> q = Rotated(Times(Layer("attn_q"), y), head, i);
      std::vector<double> attended(dim);
      for (size_t a = 0; a < heads; ++a) {
        const size_t of = a / (heads / kv_heads) * head;
        std::vector<double> weights;
        double sum = 0;
        for (size_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (size_t e = 0; e < head; ++e) dot += q[a * head + e] * keys[j][of + e];
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(head))));
          sum += weights.back();
        }
        for (size_t j = 0; j <= i; ++j) {
          for (size_t e = 0; e < head; ++e) attended[a * head + e] += weights[j] / sum * values[j][of + e];
        }
      }
      Add(Times(Layer("attn_output"), attended), &row);
      const std::vector<double> z = Norm(row, ffn_norm);
      std::vector<double> gate = Times(Layer("ffn_gate"), z);
      const std::vector<double> up = Times(Layer("ffn_up"), z);
      for (size_t e = 0; e < gate.size(); ++e) gate[e] *= up[e] / (1 + std::exp(-gate[e]));
      Add(Times(Layer("ffn_down"), gate), &row);
      out.push_back(Norm(row, Layer("nextn.shared_head_norm")));
    }
    return out;
  }
  std::vector<double> Logits(const std::vector<double>& normed) const { return Times(Tensor("output.weight"), normed); }

 private:
  std::vector<double> Tensor(const std::string& name) const {
    const TensorView* t = tensors_.Find(name);
    std::vector<float> values(t->bytes / sizeof(float));
    std::memcpy(values.data(), t->data, t->bytes);
    return {values.begin(), values.end()};
  }
  std::vector<double> Layer(const std::string& name) const { return Tensor("blk.4." + name + ".weight"); }
  static std::vector<double> Times(const std::vector<double>& matrix, const std::vector<double>& x) {
    std::vector<double> out(matrix.size() / x.size());
    for (size_t n = 0; n < out.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) out[n] += matrix[n * x.size() + k] * x[k];
    }
    return out;
  }
  static std::vector<double> Norm(const std::vector<double>& x, const std::vector<double>& weights) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    std::vector<double> out;
    for (size_t i = 0; i < x.size(); ++i)
      out.push_back(x[i] / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5) * weights[i]);
    return out;
  }
  static std::vector<double> Rotated(std::vector<double> x, size_t head, size_t position) {
    for (size_t at = 0; at < x.size(); at += head) {
      for (size_t i = 0; i < head / 2; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head));
        const double a = x[at + i], b = x[at + head / 2 + i];
        x[at + i] = a * std::cos(angle) - b * std::sin(angle);
        x[at + head / 2 + i] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
    return x;
  }
  static void Add(const std::vector<double>& y, std::vector<double>* x) {
    for (size_t i = 0; i < x->size(); ++i) (*x)[i] += y[i];
  }

  const TensorTable& tensors_;
};

TokenId Best(const std::vector<double>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class MtpTest : public ::testing::Test {
 protected:
  MtpTest() : bytes_(testing::BuildTinyMtp(kTiny)), model_(*OpenModelFromBytes(bytes_)) {}
  OneStage MakeStage() { return OneStage(model_, testing::TestDevice(Isa::kRef, 2), true, KvType::kF32, true, true); }
  static std::vector<TokenId> Prompt(uint32_t seed, size_t n) {
    std::mt19937 random(seed);
    std::vector<TokenId> ids;
    while (ids.size() < n) ids.push_back(static_cast<TokenId>(random() % kTiny.vocab));
    return ids;
  }
  // The final-normed hidden states of a prompt.
  static DoubleRows Hidden(OneStage& stage, const std::vector<TokenId>& ids) {
    const auto count = static_cast<uint32_t>(ids.size());
    DoubleRows hidden;
    for (const RowAnswer& row : stage.Answers({{.seq = 0,
                                .first = 0,
                                .row_class = RowClass::kPrompt,
                                .ids = ids,
                                .requests = {{.count = count, .mode = RowMode::kHidden}}}}))
      hidden.emplace_back(row.values.begin(), row.values.end());
    return hidden;
  }
  // What the layer drafts behind a prompt: the guess, then so many tokens.
  static std::vector<TokenId> Expected(const DoubleMtp& layer, const std::vector<TokenId>& ids, DoubleRows hidden,
                                       TokenId guess, size_t most) {
    std::vector<TokenId> next(ids.begin() + 1, ids.end()), drafts{guess};
    while (drafts.size() <= most) {
      next.push_back(drafts.back());
      hidden.push_back(layer.Outputs(next, hidden).back());
      drafts.push_back(Best(layer.Logits(hidden.back())));
    }
    return drafts;
  }

  const std::vector<std::byte> bytes_;
  const std::shared_ptr<const Model> model_;
};

TEST_F(MtpTest, LogitsAreThoseOfALayerInDouble) {
  OneStage stage = MakeStage();
  const std::vector<TokenId> ids = Prompt(1, 30), next = Prompt(2, 30);
  const DoubleRows hidden = Hidden(stage, ids);
  const DoubleMtp expected(*model_);
  const DoubleRows outputs = expected.Outputs(next, hidden);
  const MtpHead& mtp = *stage.stage().parts().ends.mtp;
  Backend& queue = stage.queue();
  Forward forward(queue, model_->spec().dim, true);
  std::vector<BlockId> table{5, 3, 8};
  StepBatch batch;
  batch.seqs.push_back({.row_class = RowClass::kPrompt, .row_count = 30, .blocks = {table}, .requests = {}});
  RowPlaces places;
  places.Fill(batch, queue);
  const size_t dim = kTiny.dim;
  std::vector<float> embedded(30 * dim), h, x(30 * dim), logits(30 * kTiny.vocab);
  for (size_t i = 0; i < 30; ++i) {
    DequantizeRow(mtp.embedding, static_cast<size_t>(next[i]), &embedded[i * dim]);
    for (const double v : hidden[i]) h.push_back(static_cast<float>(v));
  }
  DeviceBuffer<float> on_device, out;
  float* rows = on_device.EnsureCapacity(queue.device(), 30 * dim);
  float* all = out.EnsureCapacity(queue.device(), 30 * kTiny.vocab);
  forward.JoinForDrafts(mtp, queue.Upload(std::span<const float>(embedded)).data(),
                        queue.Upload(std::span<const float>(h)).data(), places, rows);
  forward.RunLayer(*mtp.layer, mtp.layer->pages.get(), places, places, rows);
  forward.DraftNorm(mtp, rows, 30, rows);
  forward.Head(rows, 30, *stage.stage().parts().ends.output, stage.stage().parts().ends, model_->spec(), all);
  const std::span<const float> got = queue.Download(static_cast<const float*>(all), 30 * kTiny.vocab);
  queue.Finish();
  double worst = 0, largest = 0;
  for (size_t i = 0; i < 30; ++i) {
    const std::vector<double> row = expected.Logits(outputs[i]);
    for (size_t v = 0; v < row.size(); ++v) {
      worst = std::max(worst, std::fabs(row[v] - static_cast<double>(got[i * kTiny.vocab + v])));
      largest = std::max(largest, std::fabs(row[v]));
    }
  }
  EXPECT_LT(worst, 1e-4);
  EXPECT_GT(largest, 0.5);
}

// A prompt in chunks, then a step with drafts: the tokens that are known, the likeliest one in their place where a
// greedy text goes on, positions, pages, and drafts of drafts.
TEST_F(MtpTest, DraftsFollowWhereAGreedyTextGoesOn) {
  const DoubleMtp expected(*model_);
  constexpr uint32_t kMost = 4;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    OneStage stage = MakeStage();
    const std::vector<TokenId> ids = Prompt(seed, 21);
    const DoubleRows hidden = Hidden(stage, ids);
    const auto part = [&](uint32_t first, uint32_t end) {
      return OneStage::Part{.seq = 1,
                            .first = first,
                            .row_class = RowClass::kPrompt,
                            .ids = {ids.begin() + first, ids.begin() + end},
                            .requests = {}};
    };
    OneStage::Part first = part(0, 8), last = part(8, 21);
    first.mtp = {.next = {ids.begin(), ids.begin() + 9}, .first = 8, .most = 0};
    last.mtp = {.next = {ids.begin() + 8, ids.end()}, .first = 12, .most = kMost};
    last.mtp->next.push_back(MtpRows::kUnknown);
    last.requests = {{.first = 12, .mode = RowMode::kArgmax}};
    EXPECT_TRUE(stage.Answers({first}).empty());
    const RowAnswer answer = stage.Answers({last}).at(0);
    const TokenId guess = answer.top.at(0).id;
    EXPECT_EQ(answer.drafts, Expected(expected, ids, hidden, guess, kMost));

    // Rows of drafts: the first is right, the second is not what a greedy text has.
    const TokenId wrong = (guess + 1) % static_cast<TokenId>(kTiny.vocab);
    std::vector<TokenId> longer = ids;
    longer.push_back(guess);
    OneStage other = MakeStage();
    const DoubleRows more = Hidden(other, longer);
    OneStage::Part step{.seq = 1,
                        .first = 20,
                        .row_class = RowClass::kPrompt,
                        .ids = {ids[20], guess, wrong},
                        .requests = {{.first = 0, .mode = RowMode::kArgmax},
                                     {.first = 1, .mode = RowMode::kTopK, .k = 5},
                                     {.first = 2, .mode = RowMode::kFullLogits}}};
    step.mtp = {.next = {ids[20], guess, wrong, MtpRows::kUnknown}, .first = 0, .most = kMost};
    const std::vector<RowAnswer> answers = stage.Answers({step});
    if (answers.at(1).top.at(0).id == wrong) continue;
    EXPECT_TRUE(answers[0].drafts.empty());
    EXPECT_EQ(answers[1].drafts, Expected(expected, longer, more, answers[1].top[0].id, kMost));
    EXPECT_TRUE(answers[2].drafts.empty());
  }
}

// Where another token was drawn than the guess, the row before gets the keys and values of the drawn one.
TEST_F(MtpTest, AGuessThatWasNotDrawnLeavesNoKeys) {
  const DoubleMtp expected(*model_);
  constexpr uint32_t kMost = 3;
  for (uint32_t seed = 11; seed <= 16; ++seed) {
    SCOPED_TRACE(seed);
    OneStage stage = MakeStage(), other = MakeStage();
    const std::vector<TokenId> ids = Prompt(seed, 9);
    OneStage::Part prompt{.seq = 1,
                          .first = 0,
                          .row_class = RowClass::kPrompt,
                          .ids = ids,
                          .requests = {{.first = 8, .mode = RowMode::kArgmax}}};
    prompt.mtp = {.next = ids, .first = 8, .most = kMost};
    prompt.mtp->next.push_back(MtpRows::kUnknown);
    std::vector<TokenId> longer = ids;
    longer.push_back((stage.Answers({prompt}).at(0).top.at(0).id + 5) % static_cast<TokenId>(kTiny.vocab));
    const DoubleRows hidden = Hidden(other, longer);
    OneStage::Part step{.seq = 1,
                        .first = 9,
                        .row_class = RowClass::kPrompt,
                        .ids = {longer[9]},
                        .requests = {{.first = 0, .mode = RowMode::kArgmax}}};
    step.mtp = {.next = {longer[9], MtpRows::kUnknown}, .first = 0, .most = kMost};
    const RowAnswer answer = stage.Answers({step}).at(0);
    EXPECT_EQ(answer.drafts, Expected(expected, longer, hidden, answer.top.at(0).id, kMost));
  }
}

TEST_F(MtpTest, WrongRowsAreRefused) {
  OneStage stage = MakeStage();
  StepAnswer answer;
  OneStage::Part part{.seq = 1, .first = 0, .row_class = RowClass::kPrompt, .ids = {1, 2, 3}, .requests = {}};
  for (const MtpRows& rows :
       {MtpRows{.next = {1, 2, 3}}, MtpRows{.next = {1, 2, 3, 96}}, MtpRows{.next = {1, 2, -2, 3}},
        MtpRows{.next = {1, 2, MtpRows::kUnknown, 3}}, MtpRows{.next = {1, 2, 3, 4}, .most = 65}}) {
    part.mtp = rows;
    EXPECT_TRUE(absl::IsInvalidArgument(stage.Try({part}, &answer)));
  }
  part.mtp = MtpRows{.next = {1, 2, 3, MtpRows::kUnknown}, .first = 3};
  EXPECT_TRUE(stage.Try({part}, &answer).ok());
}

}  // namespace
}  // namespace gyre
