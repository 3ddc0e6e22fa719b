// POST /v1/score over a real ring, and the shape of scoring that evaluation harnesses ask /v1/completions for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/escaping.h"
#include "boost/asio/detached.hpp"
#include "coordinator/http/score.h"
#include "scoring/score_record.h"
#include "tests/testing/arrow_reader.h"
#include "tests/testing/openai_rig.h"
#include "tests/testing/sanitized.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;

constexpr char kScore[] = "/v1/score";

class HttpScoreTest : public OpenAiRig {
 protected:
  HttpScoreTest() { AddScoreRoutes(api_.router, api_.context); }

  static std::vector<TokenId> Encode(const std::string& text) {
    return *runtime_->service().Tokenize(text, {.add_special = true});
  }
  static std::vector<PromptTokenEvent> Engine(std::vector<TokenId> ids, ScoreSettings score) {
    Question q;
    q.input = std::move(ids);
    q.score = std::move(score);
    return Ask(std::move(q)).scores;
  }
  std::string Refused(const std::string& body) {
    const auto exchange = api_.Post(kScore, body);
    EXPECT_EQ(exchange->answer.status, 400) << body;
    return At(Json(exchange->answer.body), "/error/message");
  }
};

TEST_F(HttpScoreTest, GivesWhatTheEngineSays) {
  const std::vector<TokenId> a = Encode("Lily and Tom went home."), b = Encode("What is a ring?");
  const json::value answer = api_.Get(
      kScore, R"({"input":[)" + Ids(a) + R"(,{"ids":)" + Ids(b) + R"(,"score_from":3},"What is a ring?"],"top":3})");
  const json::array& data = answer.at("data").as_array();
  ASSERT_EQ(data.size(), 3u);
  const std::vector<PromptTokenEvent> expected[] = {Engine(a, {.from = 1, .top = 3}), Engine(b, {.from = 3, .top = 3}),
                                                    Engine(b, {.from = 1, .top = 3})};
  for (size_t i = 0; i < 3; ++i) {
    const json::array& positions = data[i].at("positions").as_array();
    EXPECT_EQ(At(data[i], "/index"), std::to_string(i));
    ASSERT_EQ(positions.size(), expected[i].size());
    double sum = 0;
    for (size_t k = 0; k < positions.size(); ++k) {
      const PromptTokenEvent& e = expected[i][k];
      sum += static_cast<double>(e.logprob);
      EXPECT_EQ(positions[k].at("id").as_int64(), e.token);
      EXPECT_EQ(positions[k].at("logprob").to_number<float>(), e.logprob);
      EXPECT_NEAR(positions[k].at("rest").to_number<double>(), e.rest, 1e-9);
      for (size_t t = 0; t < 3; ++t) {
        EXPECT_EQ(positions[k].at("top").at(t).at(0).as_int64(), e.top[t].id);
        EXPECT_EQ(positions[k].at("top").at(t).at(1).to_number<float>(), e.top[t].logprob);
      }
    }
    EXPECT_NEAR(data[i].at("sum").to_number<double>(), sum, 1e-9);
    EXPECT_EQ(At(data[i], "/tokens"), std::to_string(positions.size()));
  }
  EXPECT_EQ(At(answer, "/usage/prompt_tokens"), std::to_string(a.size() + 2 * b.size()));
}

TEST_F(HttpScoreTest, AContinuationIsCutFromItsContext) {
  const json::value answer = api_.Get(
      kScore,
      R"({"input":[{"context":"Lily and Tom ","continuation":"went home."},{"context":"","continuation":"Hello"}]})");
  const std::vector<TokenId> context = Encode("Lily and Tom"), whole = Encode("Lily and Tom went home.");
  EXPECT_EQ(At(answer, "/data/0/score_from"), std::to_string(context.size()));
  EXPECT_EQ(At(answer, "/data/0/tokens"), std::to_string(whole.size() - context.size()));
  EXPECT_EQ(At(answer, "/data/1/score_from"), "1");
}

TEST_F(HttpScoreTest, AnNpyFileHasAllInputsAndLogits) {
  const std::vector<TokenId> a = Encode("Lily and Tom went home."), b = Encode("What is a ring?");
  const auto vocab = static_cast<uint32_t>(runtime_->model().spec().vocab);
  for (const std::string type : {"none", "f32", "f16"}) {
    const auto exchange = api_.Post(
        kScore, R"({"format":"npy","top":2,"logits":")" + type + R"(","input":[)" + Ids(a) + "," + Ids(b) + "]}");
    ASSERT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    ScoreFormat format{.top = 2, .vocab = vocab};
    format.logits = type == "none" ? LogitType::kNone : type == "f16" ? LogitType::kF16 : LogitType::kF32;
    const uint64_t rows = a.size() + b.size() - 2;
    std::string expected = NpyHeader(format, rows);
    const bool logits = type != "none";
    uint32_t index = 0;
    for (const auto& ids : {a, b}) {
      for (const PromptTokenEvent& e : Engine(ids, {.from = 1, .top = 2, .logits = logits}))
        AppendRecord(format, index, e, std::nullopt, &expected);
      ++index;
    }
    EXPECT_EQ(exchange->answer.body == expected, true) << type;
    if (type == "none") EXPECT_EQ(ScoreFile::Read(exchange->answer.body)->size(), rows);
  }
  // In JSON the same bytes, for each position.
  const json::value answer = api_.Get(kScore, R"({"logits":"f32","input":)" + Ids(b) + "}");
  const auto scores = Engine(b, {.from = 1, .logits = true});
  for (size_t i = 0; i < scores.size(); ++i) {
    std::string bytes;
    ASSERT_TRUE(absl::Base64Unescape(At(answer, "/data/0/positions/" + std::to_string(i) + "/logits"), &bytes));
    ASSERT_EQ(bytes.size(), vocab * sizeof(float));
    EXPECT_EQ(std::memcmp(bytes.data(), scores[i].logits.data(), bytes.size()), 0);
  }
}

// The columns of an Arrow stream are the fields of the .npy records.
TEST_F(HttpScoreTest, AnArrowStreamHasTheSameRows) {
  const std::vector<TokenId> a = Encode("Lily and Tom went home."), b = Encode("What is a ring?");
  for (const std::string type : {"none", "f32"}) {
    const auto exchange = api_.Post(
        kScore, R"({"format":"arrow","top":2,"logits":")" + type + R"(","input":[)" + Ids(a) + "," + Ids(b) + "]}");
    ASSERT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    EXPECT_EQ(exchange->answer.content_type, "application/vnd.apache.arrow.stream");
    const testing::ArrowTable table = testing::ReadArrow(exchange->answer.body);
    EXPECT_TRUE(table.ended);
    ASSERT_EQ(table.rows, a.size() + b.size() - 2);
    size_t row = 0;
    uint32_t index = 0;
    for (const auto& ids : {a, b}) {
      for (const PromptTokenEvent& e : Engine(ids, {.from = 1, .top = 2, .logits = type == "f32"})) {
        EXPECT_EQ(table.Values<uint32_t>("index")[row], index);
        EXPECT_EQ(table.Values<uint32_t>("position")[row], e.position);
        EXPECT_EQ(table.Values<int32_t>("id")[row], e.token);
        EXPECT_EQ(table.Values<float>("logprob")[row], e.logprob);
        EXPECT_EQ(table.Values<double>("rest")[row], e.rest);
        EXPECT_EQ(table.Values<int32_t>("top_id")[2 * row + 1], e.top[1].id);
        EXPECT_EQ(table.Values<float>("top_logprob")[2 * row], e.top[0].logprob);
        if (type == "f32") {
          const std::string& logits = table.column("logits").data;
          const size_t bytes = e.logits.size() * sizeof(float);
          EXPECT_EQ(std::memcmp(logits.data() + row * bytes, e.logits.data(), bytes), 0) << row;
        }
        ++row;
      }
      ++index;
    }
    // A row of all logits has 4 KiB: no message has many more than the 64 KiB that are written together.
    EXPECT_LT(table.largest, size_t{80} << 10);
    if (type == "none") EXPECT_EQ(table.batches, 1u);
  }
}

// A student's distribution that turns out to be none: the rows before it are there, and the stream has no end.
TEST_F(HttpScoreTest, AnArrowStreamThatFailsIsNotWhole) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 60; ++i) ids.push_back(static_cast<TokenId>(i % 200 + 3));
  json::array student;
  for (int i = 0; i < 59; ++i)
    student.push_back(json::object{{"ids", {1, 2}}, {"logprobs", {-1, i == 55 ? -0.1 : -2}}});
  student[55].as_object()["logprobs"] = {-0.1, -0.2};
  const auto exchange = api_.Post(
      kScore,
      json::serialize(json::object{{"format", "arrow"},
                                   {"logits", "f32"},
                                   {"input", json::object{{"ids", json::value_from(ids)}, {"student", student}}}}));
  const testing::ArrowTable table = testing::ReadArrow(exchange->answer.body);
  EXPECT_FALSE(table.ended);
  EXPECT_GT(table.rows, 0u);
  EXPECT_LT(table.rows, 56u);
}

// A student that is the model itself differs in nothing; another one does, and by what the definition says.
TEST_F(HttpScoreTest, DivergencesFromAStudentsDistributions) {
  const std::vector<TokenId> ids = Encode("Lily and Tom went home.");
  const auto scores = Engine(ids, {.from = 4, .top = 20});
  json::array same, other;
  double forward = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    json::array named, equal, flat;
    double p_rest = 1, kl = 0;
    for (const TokenLogprob& t : scores[i].top) {
      named.push_back(t.id);
      equal.push_back(t.logprob);
      flat.push_back(std::log(0.04));  // 20 ids with 0.04 each leave 0.2
      const double p = std::exp(static_cast<double>(t.logprob));
      kl += p * (static_cast<double>(t.logprob) - std::log(0.04));
      p_rest -= p;
    }
    kl += p_rest * std::log(p_rest / 0.2);
    if (i == 0) forward = kl;
    same.push_back(json::object{{"ids", named}, {"logprobs", equal}});
    other.push_back(json::object{{"ids", named}, {"logprobs", flat}});
  }
  const auto ask = [&](const json::array& student) {
    return api_.Get(
        kScore, json::serialize(json::object{
                    {"input", json::object{{"ids", json::value_from(ids)}, {"score_from", 4}, {"student", student}}}}));
  };
  const json::value equal = ask(same);
  for (const json::value& p : equal.at("data").at(0).at("positions").as_array()) {
    for (const char* name : {"forward_kl", "reverse_kl", "jensen_shannon"})
      EXPECT_NEAR(p.at(name).to_number<double>(), 0, 1e-6) << name;
  }
  const json::value apart = ask(other);
  EXPECT_NEAR(apart.at("data").at(0).at("positions").at(0).at("forward_kl").to_number<double>(), forward, 1e-5);
  EXPECT_GT(apart.at("data").at(0).at("positions").at(0).at("reverse_kl").to_number<double>(), 0.01);
}

TEST_F(HttpScoreTest, WrongRequestsHaveTheirSentence) {
  EXPECT_THAT(Refused(R"({})"), HasSubstr("input"));
  EXPECT_THAT(Refused(R"({"input":[]})"), HasSubstr("1 to 2048"));
  EXPECT_THAT(Refused(R"({"input":[[1,2]],"top":1025})"), HasSubstr("top"));
  EXPECT_THAT(Refused(R"({"input":[[1,2]],"logits":"f64"})"), HasSubstr("none, f16 or f32"));
  EXPECT_THAT(Refused(R"({"input":[[1,2]],"format":"csv"})"), HasSubstr("json, npy or arrow"));
  EXPECT_THAT(Refused(R"({"input":[[1,2]],"score_as":"both"})"), HasSubstr("prompt or generated"));
  EXPECT_THAT(Refused(R"({"input":[[1,2]],"score_from":2})"), HasSubstr("has 2 tokens, of which none"));
  EXPECT_THAT(Refused(R"({"input":[[1,-2]]})"), HasSubstr("not a token id"));
  EXPECT_THAT(Refused(R"({"input":[{"text":"a b","ids":[1,2]}]})"), HasSubstr("one of ids, text"));
  EXPECT_THAT(Refused(R"({"input":[{"ids":[1,2],"what":1}]})"), HasSubstr("what"));
  EXPECT_THAT(Refused(R"({"input":[{"ids":[1,2,3],"student":[{"ids":[1],"logprobs":[-1]}]}]})"),
              HasSubstr("1 distributions for 2 scored positions"));
  EXPECT_THAT(Refused(R"({"input":[{"ids":[1,2],"student":[{"ids":[1,1],"logprobs":[-1,-2]}]}]})"),
              HasSubstr("each once"));
  EXPECT_THAT(Refused(R"({"input":[{"ids":[1,2],"student":[{"ids":[1,2],"logprobs":[-0.1,-0.2]}]}]})"),
              HasSubstr("more than 1"));
}

// A client that takes nothing holds the rows back; it gets all of them in the end.
TEST_F(HttpScoreTest, ASlowReaderHoldsTheRowsBack) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 900; ++i) ids.push_back(static_cast<TokenId>(i % 200 + 3));
  std::string inputs = Ids(ids);
  for (int i = 0; i < 3; ++i) inputs += "," + Ids(ids);
  const auto vocab = static_cast<size_t>(runtime_->model().spec().vocab);
  const size_t all = 4 * 899 * vocab * sizeof(float);
  for (const std::string format : {"npy", "arrow"}) {
    size_t most = 0;
    const auto exchange =
        api_.Call("POST", kScore, R"({"format":")" + format + R"(","logits":"f32","input":[)" + inputs + "]}",
                  [&](FakeExchange& e) {
                    e.blocked = true;
                    boost::asio::co_spawn(
                        e.io,
                        [&]() -> Awaitable<void> {
                          // Until nothing more comes.
                          for (size_t before = 1, same = 0; same < 50;) {
                            co_await e.Pause(std::chrono::milliseconds(5));
                            const size_t now = runtime_->service().streams().queued_bytes();
                            most = std::max(most, now);
                            same = now == before && now > 0 ? same + 1 : 0;
                            before = now;
                          }
                          e.blocked = false;
                        },
                        boost::asio::detached);
                  });
    EXPECT_EQ(exchange->answer.status, 200);
    EXPECT_GT(exchange->answer.body.size(), all);
    if (!testing::kSanitized) EXPECT_GT(most, size_t{4} << 20);  // a slow engine is found at rest before it is
    // Each of the four streams has its limit, and what was on its way.
    const StreamLimits limits;
    const SchedulerOptions scheduler;
    EXPECT_LE(most, 4 * (limits.stream_bytes + scheduler.sequence_answer_bytes + (size_t{1} << 20)));
  }
}

// EleutherAI's harness, model type local-completions: prompts as ids, echo, logprobs, max_tokens 0 or 1. It reads
// token_logprobs[ctxlen:-1], and of top_logprobs whether the largest is the token's own
// (lm_eval/models/openai_completions.py, LocalCompletionsAPI.parse_logprobs).
TEST_F(HttpScoreTest, TheShapeOfLocalCompletions) {
  const std::vector<TokenId> ids = Encode("Lily and Tom went home.");
  const auto expected = Engine(ids, {.from = 1, .top = 1});
  for (const int most : {0, 1}) {
    const json::value answer = api_.Get(kComplete, R"({"model":"demo","prompt":[)" + Ids(ids) + "," + Ids(ids) +
                                                       R"(],"temperature":0,"max_tokens":)" + std::to_string(most) +
                                                       R"(,"logprobs":1,"seed":1234,"echo":true})");
    ASSERT_EQ(answer.at("choices").as_array().size(), 2u);
    for (const json::value& choice : answer.at("choices").as_array()) {
      const json::array& logprobs = choice.at("logprobs").at("token_logprobs").as_array();
      const json::array& top = choice.at("logprobs").at("top_logprobs").as_array();
      ASSERT_EQ(logprobs.size(), ids.size() + static_cast<size_t>(most));
      ASSERT_EQ(top.size(), logprobs.size());
      EXPECT_TRUE(logprobs[0].is_null());
      for (size_t i = 1; i < ids.size(); ++i) {
        EXPECT_EQ(logprobs[i].to_number<float>(), expected[i - 1].logprob);
        double best = -1e9;
        for (const auto& [name, value] : top[i].as_object()) best = std::max(best, value.to_number<double>());
        const bool greedy = expected[i - 1].top[0].id == ids[i];
        EXPECT_EQ(best == logprobs[i].to_number<double>(), greedy) << i;
      }
    }
  }
}

}  // namespace
}  // namespace gyre::http
