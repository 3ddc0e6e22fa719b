// Divergences, windows of a text, benchmarks' measures, records of .npy files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "scoring/benchmark.h"
#include "scoring/continuation.h"
#include "scoring/divergence.h"
#include "scoring/perplexity.h"
#include "scoring/score_record.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

std::vector<double> RandomDistribution(std::mt19937* random, size_t n) {
  std::vector<double> p(n);
  double sum = 0;
  for (double& v : p) sum += v = std::exp(std::normal_distribution<double>(0, 2)(*random));
  for (double& v : p) v /= sum;
  return p;
}

// By the definitions, over the given outcomes.
Divergence Defined(const std::vector<double>& p, const std::vector<double>& q, double beta) {
  Divergence d;
  for (size_t i = 0; i < p.size(); ++i) {
    const double m = beta * p[i] + (1 - beta) * q[i];
    d.forward += p[i] * std::log(p[i] / q[i]);
    d.reverse += q[i] * std::log(q[i] / p[i]);
    d.jensen_shannon += beta * p[i] * std::log(p[i] / m) + (1 - beta) * q[i] * std::log(q[i] / m);
  }
  return d;
}

TEST(DivergenceTest, IsWhatItsDefinitionSays) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const std::vector<double> p = RandomDistribution(&random, 20), q = RandomDistribution(&random, 20);
    const double beta = 0.05 * (round % 20) + 0.02;
    const Divergence whole = Defined(p, q, beta);
    for (const size_t named : {20u, 7u}) {
      std::vector<TokenLogprob> teacher;
      std::vector<float> student;
      std::vector<double> p_parts, q_parts;
      double p_left = 1, q_left = 1;
      for (size_t i = 0; i < named; ++i) {
        teacher.push_back({static_cast<TokenId>(i), static_cast<float>(std::log(p[i]))});
        student.push_back(static_cast<float>(std::log(q[i])));
        p_parts.push_back(p[i]);
        q_parts.push_back(q[i]);
        p_left -= p[i];
        q_left -= q[i];
      }
      if (named < 20) {
        p_parts.push_back(p_left);
        q_parts.push_back(q_left);
      }
      const auto got = Diverge(teacher, student, named == 20, beta);
      ASSERT_TRUE(got.ok()) << got.status();
      const Divergence expected = Defined(p_parts, q_parts, beta);
      EXPECT_NEAR(got->forward, expected.forward, 1e-5);
      EXPECT_NEAR(got->reverse, expected.reverse, 1e-5);
      EXPECT_NEAR(got->jensen_shannon, expected.jensen_shannon, 1e-5);
      // What is known of a part is never more than what is true of the whole.
      EXPECT_LE(got->forward, whole.forward + 1e-5);
      EXPECT_LE(got->reverse, whole.reverse + 1e-5);
      EXPECT_LE(got->jensen_shannon, whole.jensen_shannon + 1e-5);
    }
  }
}

TEST(DivergenceTest, RefusesWhatIsNoDistribution) {
  const std::vector<TokenLogprob> teacher{{1, -1.0f}, {2, -1.0f}};
  EXPECT_THAT(Message(Diverge(teacher, std::vector<float>{-1}, false, 0.5).status()), HasSubstr("for 2 ids"));
  EXPECT_THAT(Message(Diverge(teacher, std::vector<float>{-0.1f, -0.5f}, false, 0.5).status()),
              HasSubstr("more than 1"));
  EXPECT_THAT(Message(Diverge(teacher, std::vector<float>{-1, NAN}, false, 0.5).status()), HasSubstr("no number"));
  // An id that the student excludes costs the teacher's mass times a large number, not infinity for a tiny one.
  const auto apart = Diverge(teacher, std::vector<float>{-1, -9999}, false, 0.5);
  ASSERT_TRUE(apart.ok());
  EXPECT_GT(apart->forward, 1000);
  EXPECT_LT(apart->jensen_shannon, std::log(2) + 1e-9);
  // With a weight of 0 one of the two is not asked.
  for (const double beta : {0.0, 1.0}) {
    EXPECT_NEAR(Diverge(teacher, std::vector<float>{-1, -9999}, false, beta)->jensen_shannon, 0, 1e-9);
  }
}

TEST(WindowsTest, EachIdIsScoredOnceWithEnoughBeforeIt) {
  for (const bool bos : {false, true}) {
    for (const uint32_t window : {2u, 5u, 16u}) {
      for (uint32_t stride = 1; stride < window; ++stride) {
        for (size_t ids = 0; ids < 60; ++ids) {
          size_t next = bos ? 0 : 1;
          for (const TextWindow& w : CutIntoWindows(ids, window, stride, bos)) {
            EXPECT_EQ(w.scored, next);
            EXPECT_GT(w.end, w.scored);
            EXPECT_LE(w.end - w.begin + (bos ? 1 : 0), window);
            // An id of a later window has at least window - stride ids before it, but for the first window's.
            if (w.begin > 0) EXPECT_GE(w.scored - w.begin + (bos ? 1 : 0), window - stride);
            EXPECT_GE(w.scored - w.begin + (bos ? 1 : 0), 1u);
            next = w.end;
          }
          EXPECT_EQ(next, std::max(ids, size_t{bos ? 0u : 1u}));
        }
      }
    }
  }
}

TEST(TextLossTest, SumsUp) {
  TextLoss loss;
  for (const float l : {-1.0f, -2.0f, -3.0f}) loss.Add(l);
  EXPECT_DOUBLE_EQ(loss.nats_per_token(), 2);
  EXPECT_DOUBLE_EQ(loss.perplexity(), std::exp(2.0));
  EXPECT_DOUBLE_EQ(loss.bits_per_byte(12), 6 / std::log(2) / 12);
  EXPECT_NEAR(loss.standard_error(), 1 / std::sqrt(3), 1e-12);
}

TEST(ContinuationTest, IsCutAsHarnessesCutIt) {
  // A token a byte, but " b" is one token, behind a begin-of-text token.
  bool ends = false;  // with the token 2
  const auto encode = [&ends](const std::string& text, bool special) -> StatusOr<std::vector<TokenId>> {
    std::vector<TokenId> ids;
    if (special) ids.push_back(1);
    for (size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.compare(i, 2, " b") == 0;
      ids.push_back(pair ? 256 : static_cast<TokenId>(text[i]));
      i += pair ? 1 : 0;
    }
    if (special && ends) ids.push_back(2);
    return ids;
  };
  for (const bool ending : {false, true}) {
    ends = ending;
    const auto cut = EncodeContinuation(encode, "aa ", "b");
    ASSERT_TRUE(cut.ok());
    EXPECT_EQ(cut->ids, (std::vector<TokenId>{1, 'a', 'a', 256}));
    EXPECT_EQ(cut->from, 3u);
    EXPECT_EQ(EncodeContinuation(encode, "", "ab")->from, 1u);
    EXPECT_EQ(EncodeContinuation(encode, " ", "b")->ids, (std::vector<TokenId>{1, 256}));
    EXPECT_THAT(Message(EncodeContinuation(encode, "aa", "").status()), HasSubstr("no token"));
  }
}

TEST(BenchmarkTest, PicksByEachMeasure) {
  const auto item = ReadBenchmarkItem(R"({"context":"q","choices":["ab","äbcdefgh","abc"],"answer":1})");
  ASSERT_TRUE(item.ok()) << item.status();
  // Sum: the first; by tokens: the third; by characters: the second.
  const Picks picks = PickChoices(*item, {{-4, 1}, {-7, 4}, {-4.5, 3}});
  EXPECT_EQ(picks.sum, 0u);
  EXPECT_EQ(picks.mean, 2u);
  EXPECT_EQ(picks.normalized, 1u);
}

TEST(BenchmarkTest, FreeAnswersCountByTextOrRegex) {
  const auto item = ReadBenchmarkItem(
      R"({"prompt":"6*7?","answer":["42","Forty-two"],"regex":"[0-9]+|[Ff]orty-two","ignore_case":true})");
  ASSERT_TRUE(item.ok()) << item.status();
  const auto right = [&](const char* text) { return IsRight(*item, *ExtractAnswer(*item, text)); };
  EXPECT_TRUE(right("It is 42, I think, not 43."));
  EXPECT_TRUE(right("  forty-two\n"));
  EXPECT_FALSE(right("43 or 42"));
  EXPECT_FALSE(right("no idea"));
  const auto exact = ReadBenchmarkItem(R"({"prompt":"6*7?","answer":"42"})");
  EXPECT_TRUE(IsRight(*exact, *ExtractAnswer(*exact, " 42\n")));
  EXPECT_FALSE(IsRight(*exact, *ExtractAnswer(*exact, "It is 42")));
}

TEST(BenchmarkTest, WrongLinesHaveTheirSentence) {
  const auto refused = [](const char* line) { return Message(ReadBenchmarkItem(line).status()); };
  EXPECT_THAT(refused("{"), HasSubstr("not JSON"));
  EXPECT_THAT(refused("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(refused(R"({"context":"q","answer":1,"choices":["a"]})"), HasSubstr("numbers 0 to 0"));
  EXPECT_THAT(refused(R"({"context":"q","choices":["a"]})"), HasSubstr("answer is missing"));
  EXPECT_THAT(refused(R"({"choices":["a"],"answer":0})"), HasSubstr("context is missing"));
  EXPECT_THAT(refused(R"({"context":"q","answer":"a","what":1})"), HasSubstr("what is not known"));
  EXPECT_THAT(refused(R"({"context":"q","answer":"a","regex":"("})"), HasSubstr("regular expression"));
  EXPECT_THAT(refused(R"({"context":"q","answer":"a","choices":["a"]})"), HasSubstr("number of one of the choices"));
}

TEST(ScoreRecordTest, ReadsWhatItWrites) {
  std::mt19937 random(3);
  for (const uint32_t top : {0u, 1u, 64u}) {
    const ScoreFormat format{.top = top};
    std::string bytes = NpyHeader(format, 7);
    EXPECT_EQ(bytes.size() % 64, 0u);
    std::vector<PromptTokenEvent> events;
    for (uint32_t i = 0; i < 7; ++i) {
      PromptTokenEvent& e = events.emplace_back();
      e = {
          .position = i + 1, .token = static_cast<TokenId>(random() % 1000), .logprob = -0.25f * static_cast<float>(i)};
      e.rest = -0.125 * i;
      for (uint32_t k = 0; k < top; ++k) e.top.push_back({static_cast<TokenId>(k * 3), -0.5f * static_cast<float>(k)});
      AppendRecord(format, i / 2, e, std::nullopt, &bytes);
    }
    // A divergence that is not there is none, not 0.
    std::string one;
    AppendRecord({.top = top, .divergence = true}, 0, events[0], std::nullopt, &one);
    double last = 0;
    std::memcpy(&last, one.data() + one.size() - sizeof last, sizeof last);
    EXPECT_TRUE(std::isnan(last));
    EXPECT_EQ(bytes.size(), NpyHeader(format, 7).size() + 7 * RecordBytes(format));
    const auto file = ScoreFile::Read(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ(file->size(), 7u);
    for (uint32_t i = 0; i < 7; ++i) {
      const ScoreRecord r = file->At(i);
      EXPECT_EQ(r.index, i / 2);
      EXPECT_EQ(r.event.position, events[i].position);
      EXPECT_EQ(r.event.token, events[i].token);
      EXPECT_EQ(r.event.logprob, events[i].logprob);
      EXPECT_EQ(r.event.rest, events[i].rest);
      EXPECT_EQ(r.event.top, events[i].top);
    }
    // No cut and no change of a byte of the header passes.
    for (size_t n = 0; n < bytes.size(); n += 1 + n / 50) EXPECT_FALSE(ScoreFile::Read(bytes.substr(0, n)).ok()) << n;
    for (size_t i = 0; i < NpyHeader(format, 7).size(); ++i) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ 1);
      EXPECT_FALSE(ScoreFile::Read(changed).ok()) << i;
    }
  }
}

TEST(RunComparisonTest, EqualRunsDoNotDiffer) {
  RunComparison c;
  const PromptTokenEvent saved{.position = 1, .token = 5, .top = {{7, -0.5f}, {5, -1.5f}}};
  PromptTokenEvent now = saved;
  now.named = {{5, -1.5f}, {7, -0.5f}};
  ASSERT_TRUE(c.Add(saved, now, 100).ok());
  EXPECT_NEAR(c.forward(), 0, 1e-12);
  EXPECT_EQ(c.top1_agreement(), 1);
  EXPECT_EQ(c.mean_rank(), 1);
  // Now the other one is likelier.
  now.named = {{5, -0.5f}, {7, -1.5f}};
  now.top = {{5, -0.5f}, {7, -1.5f}};
  ASSERT_TRUE(c.Add(saved, now, 100).ok());
  EXPECT_NEAR(c.forward(), (std::exp(-0.5) - std::exp(-1.5)) / 2, 1e-6);
  EXPECT_EQ(c.top1_agreement(), 0.5);
  EXPECT_EQ(c.mean_rank(), 1.5);
  now.token = 6;
  EXPECT_THAT(Message(c.Add(saved, now, 100)), HasSubstr("the saved run has the id 5"));
}

}  // namespace
}  // namespace gyre
