// The last layer goes on with the rows that something is wanted of, and with no others: what is wanted and all that
// comes later is, bit for bit, as if all were.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/testing/gguf_writer.h"
#include "tests/testing/kernel_test.h"
#include "worker/stage.h"

namespace gyre {
namespace {

constexpr uint32_t kPages = 24, kPageSize = 16, kVocab = 96;

// All layers of a model in one stage, with two sequences' tables.
class OneStage {
 public:
  OneStage(std::shared_ptr<const Model> model, Isa isa) : backend_(MakeBackend(isa, 2)) {
    StageParts parts{
        .model = model, .range = {0, static_cast<int>(model->spec().layers.size())}, .first = true, .last = true};
    for (int i = 0; i < parts.range.end; ++i) {
      auto layer = *LoadLayer(*model, i, *backend_, [](size_t) {});
      layer->pages = *PagePool::Make(layer->spec, kPages, kPageSize, KvType::kF16);
      parts.layers.push_back(std::move(layer));
    }
    parts.ends = *LoadEnds(*model, true, true, *backend_, [](size_t) {});
    groups_ = static_cast<size_t>(model->spec().kv_groups);
    stage_ = std::make_unique<Stage>(std::move(parts), *backend_, false, WireType::kF32);
  }

  // Rows [first, first + ids.size()) of a sequence.
  struct Part {
    uint64_t seq;
    uint32_t first;
    RowClass row_class;
    std::vector<TokenId> ids;
    std::vector<RowRequest> requests;
  };
  // [requested row][vocab]
  std::vector<std::vector<float>> Run(const std::vector<Part>& step) {
    StepBatch batch;
    std::vector<TokenId> ids;
    for (const Part& p : step) {
      std::vector<BlockId> table;
      for (uint32_t b = 0; b < kPages / 2; ++b) table.push_back(static_cast<BlockId>(2 * b + p.seq));
      batch.seqs.push_back({.seq = SeqId{p.seq},
                            .row_class = p.row_class,
                            .first_position = p.first,
                            .row_count = static_cast<uint32_t>(p.ids.size()),
                            .blocks = std::vector(groups_, table),
                            .requests = p.requests});
      ids.insert(ids.end(), p.ids.begin(), p.ids.end());
    }
    StepAnswer answer;
    const Status status = stage_->Run(batch, std::as_bytes(std::span(ids)), ++step_, &answer);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::vector<float>> logits;
    for (RowAnswer& row : answer.rows) logits.push_back(std::move(row.values));
    return logits;
  }

 private:
  std::unique_ptr<Backend> backend_;
  size_t groups_ = 1;
  std::unique_ptr<Stage> stage_;
  uint64_t step_ = 0;
};

RowRequest Logits(uint32_t first, uint32_t count) {
  return {.first = first, .count = count, .mode = RowMode::kFullLogits};
}

std::vector<TokenId> Ids(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % kVocab);
  return ids;
}

bool Equal(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class WantedRows : public ::testing::TestWithParam<Isa> {};

TEST_P(WantedRows, AreAsIfAllWereWanted) {
  if (!IsaMissing(GetParam()).empty()) GTEST_SKIP() << IsaMissing(GetParam());
  // Post-norms and windows; biases, experts and a shared one; norms of heads; one matrix for queries, keys and values.
  for (const char* arch : {"llama", "gemma3", "qwen2moe", "qwen3", "phi3"}) {
    for (DType type : {DType::kF16, DType::kQ8_0}) {
      SCOPED_TRACE(std::string(arch) + " " + Info(type).name);
      const std::vector<std::byte> file =
          testing::BuildTinyModel({.arch = arch, .layers = 3, .vocab = kVocab, .type = type});
      const auto model = OpenModelFromBytes(file);
      ASSERT_TRUE(model.ok()) << model.status();
      const std::vector<TokenId> prompt = Ids(40, 1), other = Ids(9, 2), next = {7};
      using Step = std::vector<OneStage::Part>;
      // A prompt beside another one that is not at its end, then both go on.
      auto steps = [&](std::vector<RowRequest> of_prompt, std::vector<RowRequest> of_other) {
        return std::vector<Step>{
            {{0, 0, RowClass::kPrompt, prompt, std::move(of_prompt)},
             {1, 0, RowClass::kPrompt, other, std::move(of_other)}},
            {{0, 40, RowClass::kGenerated, next, {Logits(0, 1)}}, {1, 9, RowClass::kPrompt, other, {Logits(8, 1)}}},
            {{0, 41, RowClass::kGenerated, next, {Logits(0, 1)}}, {1, 18, RowClass::kGenerated, next, {Logits(0, 1)}}}};
      };
      auto run = [&](const std::vector<Step>& all) {
        OneStage stage(*model, GetParam());
        std::vector<std::vector<float>> logits;
        for (const Step& step : all) {
          for (auto& row : stage.Run(step)) logits.push_back(std::move(row));
        }
        return logits;
      };
      const auto all = run(steps({Logits(0, 40)}, {Logits(0, 9)}));
      ASSERT_EQ(all.size(), 40u + 9 + 4);
      ASSERT_FALSE(Equal(all[0], all[39]));
      // `rows`: those of the first step that are wanted, of both sequences.
      auto check = [&](const std::vector<Step>& some, std::vector<size_t> rows) {
        const auto got = run(some);
        for (size_t i = 49; i < all.size(); ++i) rows.push_back(i);
        ASSERT_EQ(got.size(), rows.size());
        for (size_t i = 0; i < rows.size(); ++i)
          EXPECT_TRUE(Equal(got[i], all[rows[i]])) << "row " << rows[i] << " of " << rows.size();
      };
      check(steps({}, {}), {});
      check(steps({Logits(39, 1)}, {}), {39});
      check(steps({}, {Logits(0, 1)}), {40});
      check(steps({Logits(3, 2), Logits(17, 1), Logits(38, 2)}, {Logits(5, 1), Logits(8, 1)}),
            {3, 4, 17, 38, 39, 45, 48});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, WantedRows, ::testing::ValuesIn(testing::IsasWithTiles()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
