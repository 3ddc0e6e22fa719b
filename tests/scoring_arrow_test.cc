#include "scoring/arrow_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "kernels/quant.h"
#include "tests/testing/arrow_reader.h"
#include "tests/testing/process.h"

namespace gyre {
namespace {

using testing::ArrowTable;

constexpr uint32_t kWords = 5;

PromptTokenEvent ScoreAt(uint32_t position, uint32_t top, bool logits) {
  PromptTokenEvent e;
  e.position = position;
  e.token = static_cast<TokenId>(position * 3);
  e.logprob = -0.5f * static_cast<float>(position);
  e.rest = -1.0 / (1 + position);
  for (uint32_t i = 0; i < top; ++i)
    e.top.push_back({static_cast<TokenId>(i + position), -static_cast<float>(i + position)});
  for (uint32_t i = 0; logits && i < kWords; ++i)
    e.logits.push_back(static_cast<float>(position) + 0.25f * static_cast<float>(i));
  return e;
}

// Three batches of 1, 4 and 7 rows; the odd numbers need padding.
std::string Stream(const ScoreFormat& format, bool whole = true) {
  ArrowScores scores(format);
  std::string out = scores.Schema();
  uint32_t position = 1;
  for (const uint32_t rows : {1u, 4u, 7u}) {
    for (uint32_t i = 0; i < rows; ++i, ++position) {
      scores.Add(position % 2, ScoreAt(position, format.top, format.logits != LogitType::kNone),
                 position == 3 ? std::nullopt : std::optional(Divergence{0.5, 0.25, 1.0 / position}));
    }
    EXPECT_EQ(scores.bytes(), rows * RecordBytes(format));
    out += scores.TakeBatch();
    EXPECT_EQ(scores.TakeBatch(), "");
  }
  return out + (whole ? ArrowScores::End() : ArrowScores::Broken());
}

std::vector<ScoreFormat> Formats() {
  std::vector<ScoreFormat> out;
  for (const uint32_t top : {0u, 3u}) {
    for (const LogitType logits : {LogitType::kNone, LogitType::kF16, LogitType::kF32}) {
      for (const bool divergence : {false, true})
        out.push_back({.top = top, .logits = logits, .vocab = kWords, .divergence = divergence});
    }
  }
  return out;
}

TEST(ScoringArrowTest, AReaderGetsEveryValue) {
  for (const ScoreFormat& format : Formats()) {
    const ArrowTable table = testing::ReadArrow(Stream(format));
    EXPECT_TRUE(table.ended);
    EXPECT_EQ(table.batches, 3u);
    ASSERT_EQ(table.rows, 12u);
    const auto index = table.Values<uint32_t>("index"), position = table.Values<uint32_t>("position");
    const auto id = table.Values<int32_t>("id");
    const auto logprob = table.Values<float>("logprob");
    const auto rest = table.Values<double>("rest");
    EXPECT_EQ(table.column("rest").type, "f8");
    EXPECT_EQ(table.column("index").type, "u4");
    for (uint32_t i = 0; i < 12; ++i) {
      const PromptTokenEvent e = ScoreAt(i + 1, format.top, format.logits != LogitType::kNone);
      EXPECT_EQ(index[i], (i + 1) % 2);
      EXPECT_EQ(position[i], i + 1);
      EXPECT_EQ(id[i], e.token);
      EXPECT_EQ(logprob[i], e.logprob);
      EXPECT_EQ(rest[i], e.rest);
      for (uint32_t t = 0; t < format.top; ++t) {
        EXPECT_EQ(table.Values<int32_t>("top_id")[i * format.top + t], e.top[t].id);
        EXPECT_EQ(table.Values<float>("top_logprob")[i * format.top + t], e.top[t].logprob);
      }
      if (format.divergence) {
        const double js = table.Values<double>("jensen_shannon")[i];
        if (i + 1 == 3) {
          EXPECT_TRUE(std::isnan(js));
        } else {
          EXPECT_EQ(js, 1.0 / (i + 1));
        }
      }
      for (uint32_t w = 0; w < kWords && format.logits == LogitType::kF32; ++w)
        EXPECT_EQ(table.Values<float>("logits")[i * kWords + w], e.logits[w]);
      for (uint32_t w = 0; w < kWords && format.logits == LogitType::kF16; ++w)
        EXPECT_EQ(table.Values<uint16_t>("logits")[i * kWords + w], FloatToHalf(e.logits[w]));
    }
    EXPECT_EQ(table.columns.size(), 5u + (format.top > 0 ? 2 : 0) + (format.divergence ? 3 : 0) +
                                        (format.logits != LogitType::kNone ? 1 : 0));
    // What failed on the way is not taken for whole.
    EXPECT_FALSE(testing::ReadArrow(Stream(format, false)).ended);
  }
}

// Where pyarrow is there it reads the same; else this says that it skips.
TEST(ScoringArrowTest, PyarrowReadsIt) {
  char name[] = "/tmp/gyre-arrow-XXXXXX";
  const std::string folder = mkdtemp(name);
  const ScoreFormat format{.top = 3, .logits = LogitType::kF16, .vocab = kWords, .divergence = true};
  std::ofstream(folder + "/whole", std::ios::binary) << Stream(format);
  std::ofstream(folder + "/broken", std::ios::binary) << Stream(format, false);
  const std::string check =
      "import pyarrow as pa, sys\n"
      "t = pa.ipc.open_stream(open(sys.argv[1] + '/whole', 'rb')).read_all()\n"
      "t.validate(full=True)\n"
      "assert t.num_rows == 12 and t.column('position').to_pylist() == list(range(1, 13))\n"
      "assert t.column('top_id').to_pylist()[1] == [2, 3, 4]\n"
      "assert t.column('logits').to_pylist()[0] == [1, 1.25, 1.5, 1.75, 2]\n"
      "assert t.column('rest').to_pylist()[0] == -0.5\n"
      "try:\n"
      "  pa.ipc.open_stream(open(sys.argv[1] + '/broken', 'rb')).read_all()\n"
      "  print('a broken stream was taken for whole')\n"
      "except Exception: print('equal')\n";
  bool found = false;
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    testing::Process has({"/usr/bin/env", python, "-c", "import pyarrow"});
    if (found || has.Wait(std::chrono::seconds(60)) != 0) continue;
    found = true;
    testing::Process run({"/usr/bin/env", python, "-c", check, folder});
    run.Wait(std::chrono::seconds(60));
    EXPECT_EQ(run.output(), "equal\n");
  }
  std::filesystem::remove_all(folder);
  if (!found) GTEST_SKIP() << "pyarrow is missing";
}

}  // namespace
}  // namespace gyre
