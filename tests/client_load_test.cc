// Load tests: which requests they send, how they send them, and the figures they make of the answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "client/load_plan.h"
#include "client/load_run.h"
#include "client/load_stats.h"
#include "client/metrics_text.h"
#include "client/openai.h"
#include "tests/testing/openai_peer.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::OpenAiPeer;

bool Uninterrupted() { return false; }
double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

TEST(PercentileTest, IsTheSmallestValueThatCoversTheShare) {
  EXPECT_EQ(Percentile({}, 50), 0);
  EXPECT_EQ(Percentile({7}, 1), 7);
  EXPECT_EQ(Percentile({7}, 99), 7);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 50), 2);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 51), 3);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 100), 4);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(Percentile(hundred, 50), 50);
  EXPECT_EQ(Percentile(hundred, 95), 95);
  EXPECT_EQ(Percentile(hundred, 99), 99);
}

LoadRecord Record(double due, std::vector<double> tokens_at, double ended) {
  LoadRecord r{.due = due, .sent = due, .ended = ended, .tokens_at = std::move(tokens_at)};
  r.asked = r.generated_tokens = static_cast<uint32_t>(r.tokens_at.size());
  r.counted = true;
  return r;
}

TEST(SummaryTest, CountsFromWhenARequestWasDue) {
  LoadRecord late = Record(1, {5, 6}, 6);
  late.sent = 4;  // it waited for a connection, which the server's clients would have to do too
  late.prompt_tokens = 10;
  LoadRecord broken = Record(0, {2}, 3);
  broken.status = Unavailable("gone");
  LoadRecord brief = Record(2, {3}, 4);
  brief.asked = 2;
  const LoadSummary s = Summarize({late, broken, brief}, 100, 1);
  EXPECT_EQ(s.requests, 3u);
  EXPECT_EQ(s.failed, 1u);
  EXPECT_EQ(s.short_answers, 1u);
  EXPECT_EQ(s.seconds, 6);
  EXPECT_EQ(s.generated_tokens, 3u);
  EXPECT_EQ(s.tokens_per_second, 0.5);
  EXPECT_EQ(s.to_first_token.count, 2u);
  EXPECT_EQ(s.to_first_token.longest, 4);
  EXPECT_EQ(s.first_to_first_token, 4);
  EXPECT_EQ(s.followers_to_first_token.longest, 1);
  EXPECT_EQ(s.between_tokens.count, 1u);
  EXPECT_EQ(s.latency.longest, 5);
}

TEST(StarvationTest, IsAGapInWhichOthersProgress) {
  std::vector<double> steady;
  for (int i = 0; i <= 100; ++i) steady.push_back(i * 0.1);
  const std::vector<LoadRecord> records{Record(0, steady, 10), Record(0, {1, 2, 6, 7}, 7), Record(3, {8}, 8),
                                        Record(0, {0.5, 1}, 1)};
  const auto found = FindStarvation(records, 3, 16);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].request, 1u);
  EXPECT_EQ(found[0].from, 2);
  EXPECT_EQ(found[0].to, 6);
  EXPECT_GE(found[0].others, 38u);
  EXPECT_EQ(found[1].request, 2u) << "waiting for the first token";
  EXPECT_EQ(Summarize(records, 100, 16).longest_wait, 5) << "of any gap, however short";
  // Where nobody gets a token it is the server that is slow.
  EXPECT_TRUE(FindStarvation({Record(0, {1, 9}, 9), Record(0, {1, 9}, 9)}, 3, 1).empty());
  // A request that never got one.
  EXPECT_EQ(FindStarvation({Record(0, steady, 10), Record(0, {}, 9)}, 3, 16).size(), 1u);
}

TEST(PlanTest, WorkloadsHaveTheirLengths) {
  const auto single = PlanLoad({.workload = "single"});
  ASSERT_EQ(single->requests.size(), 1u);
  EXPECT_EQ(single->requests[0].prompt, 256u);
  EXPECT_EQ(single->requests[0].generate, 256u);
  EXPECT_FALSE(single->open_loop);

  const auto mixed = PlanLoad({.workload = "mixed", .requests = 500});
  EXPECT_EQ(mixed->at_once, 16u);
  uint32_t least = ~0u, most = 0;
  for (const LoadRequest& r : mixed->requests) {
    EXPECT_TRUE(r.generate >= 64 && r.generate <= 256);
    least = std::min(least, r.prompt), most = std::max(most, r.prompt);
  }
  EXPECT_TRUE(least >= 32 && least < 60 && most > 1000 && most <= 1024) << least << " " << most;
  EXPECT_EQ(PlanLoad({.seed = 1})->requests[3].prompt, PlanLoad({.seed = 1})->requests[3].prompt);
  EXPECT_NE(PlanLoad({.seed = 1})->requests[3].prompt, PlanLoad({.seed = 2})->requests[3].prompt);

  const auto prefix = PlanLoad({.workload = "prefix", .at_once = 48, .scale = 0.5});
  ASSERT_EQ(prefix->requests.size(), 48u);
  const auto a = PromptOfIds(prefix->requests[0], 1, 512), b = PromptOfIds(prefix->requests[1], 1, 512);
  ASSERT_EQ(a.size(), 528u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 512, a.end(), b.begin() + 512));
  for (const TokenId id : a) EXPECT_TRUE(id >= 64 && id < 448);
  EXPECT_NE(a, PromptOfIds(prefix->requests[0], 2, 512));
  const std::string x = PromptOfWords(prefix->requests[0], 1, 20, 16),
                    y = PromptOfWords(prefix->requests[1], 1, 20, 16);
  EXPECT_NE(x, y);
  EXPECT_EQ(std::count(x.begin(), x.end(), ' '), 19);
  EXPECT_EQ(x.substr(0, 60), y.substr(0, 60));
  EXPECT_EQ(PlanLoad({.workload = "other"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanTest, PoissonArrivalsHaveTheirRate) {
  const auto plan = PlanLoad({.requests = 4000, .rate = 20});
  EXPECT_TRUE(plan->open_loop);
  EXPECT_EQ(plan->requests[0].due, Duration::zero());
  std::vector<double> gaps;
  for (size_t i = 1; i < plan->requests.size(); ++i) {
    gaps.push_back(Seconds(plan->requests[i].due - plan->requests[i - 1].due));
    ASSERT_GE(gaps.back(), 0);
  }
  const Spread s = SpreadOf(gaps);
  EXPECT_NEAR(s.mean, 0.05, 0.003);
  EXPECT_NEAR(s.p50, 0.05 * std::log(2.0), 0.004) << "exponential";
}

TEST(TraceTest, LinesBecomeRequests) {
  const auto plan = PlanTrace(
      "{\"timestamp\": 3000, \"input_length\": 10, \"output_length\": 4}\n\n"
      "{\"at\": 1, \"prompt_tokens\": 20, \"max_tokens\": 5, \"shared_tokens\": 8}\r\n"
      "{\"at\": 5, \"prompt\": \"Hello\", \"max_tokens\": 6}",
      {.scale = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->requests.size(), 3u);
  EXPECT_TRUE(plan->open_loop);
  EXPECT_EQ(plan->requests[0].prompt, 40u);
  EXPECT_EQ(plan->requests[0].shared, 16u);
  EXPECT_EQ(plan->requests[0].due, Duration::zero());
  EXPECT_EQ(plan->requests[1].due, seconds(2));
  EXPECT_EQ(plan->requests[1].generate, 8u);
  EXPECT_EQ(plan->requests[2].text, "Hello");
  const auto fast =
      PlanTrace("{\"at\":0,\"prompt_tokens\":1,\"max_tokens\":1}\n{\"at\":100,\"prompt_tokens\":1,\"max_tokens\":1}",
                {.rate = 4});
  EXPECT_NEAR(Seconds(fast->requests[1].due), 0.25, 1e-6);
}

TEST(TraceTest, WrongLinesAreNamed) {
  const std::string good = "{\"prompt_tokens\":1,\"max_tokens\":1}\n";
  for (const char* bad : {"x", "[]", "{}", "{\"prompt_tokens\":5}", "{\"prompt_tokens\":-1,\"max_tokens\":1}",
                          "{\"prompt_tokens\":1,\"max_tokens\":\"1\"}", "{\"prompt_tokens\":1e99,\"max_tokens\":1}"}) {
    const auto plan = PlanTrace(good + bad, {});
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(Message(plan.status()), HasSubstr("line 2"));
  }
  EXPECT_FALSE(PlanTrace("", {}).ok());
}

TEST(MetricsTest, QueueWaitIsWhatGrewBetweenTwoReadings) {
  const auto before = ParseMetrics(
      "# HELP x_queue_seconds waiting\n# TYPE x_queue_seconds histogram\nx_queue_seconds_bucket{le=\"+Inf\"} 2\n"
      "x_queue_seconds_sum{key=\"a } b\"} 1.5\nx_queue_seconds_sum{key=\"c\"} 0.5 1700000000\nx_queue_seconds_count "
      "2\nx NaN\n"
      "x_queue_seconds_bucket{key=\"a\",le=\"0.1\"} 1\nx_queue_seconds_bucket{key=\"b\",le=\"0.1\"} 1\n"
      "broken{\n\n{}\nnothing\n");
  EXPECT_EQ(before.at("x_queue_seconds_sum"), 2);
  EXPECT_EQ(before.size(), 4u);
  auto after = before;
  EXPECT_EQ(QueueWaitBetween(before, after).mean, -1);
  EXPECT_EQ(QueueWaitBetween(before, after).p99, -1);
  after["x_queue_seconds_sum"] = 5;
  after["x_queue_seconds_count"] = 8;
  // Of six new requests three waited for at most 0.1 s, five for at most 2 s.
  after["x_queue_seconds_bucket{0.1}"] += 3;
  after["x_queue_seconds_bucket{2}"] = 5;
  after["x_queue_seconds_bucket{10}"] = 6;
  after["x_queue_seconds_bucket{+Inf}"] += 6;
  const QueueWait wait = QueueWaitBetween(before, after);
  EXPECT_EQ(wait.mean, 0.5);
  EXPECT_EQ(wait.p50, 0.1);
  EXPECT_EQ(wait.p95, 10);
  EXPECT_EQ(wait.p99, 10);
  EXPECT_EQ(QueueWaitBetween({}, {{"requests_seconds_sum", 1}, {"requests_seconds_count", 1}}).mean, -1);
}

TEST(ChunkTest, BothEndpointsAndTheirEnds) {
  for (const char* parts : {R"([{"type":"text","text":"a"},"b"])", R"("ab")"}) {
    for (const char* name : {"delta", "message"}) {
      const auto spoken = ParseApiChunk(fmt::format(R"({{"choices":[{{"{}":{{"content":{}}}}}]}})", name, parts));
      ASSERT_TRUE(spoken.ok()) << spoken.status();
      EXPECT_EQ(spoken->text, "ab");
    }
  }
  const auto thought = ParseApiChunk(
      R"({"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}}]})");
  EXPECT_EQ(thought->reasoning, "hm");
  for (const auto& [name, data] :
       {std::pair("error", R"({"message":"too hot"})"), std::pair("error", "too hot"),
        std::pair("", R"({"object":"error","message":"too hot"})"),
        std::pair("", R"({"type":"error","error":{"message":"too hot"}})"), std::pair("", R"({"error":"too hot"})")}) {
    const auto failed = ParseApiChunk(data, name);
    EXPECT_FALSE(failed.ok()) << data;
    EXPECT_NE(Message(failed.status()).find("too hot"), std::string::npos) << data << failed.status();
  }
  auto chunk = ParseApiChunk(R"({"choices":[{"index":0,"text":"ab","finish_reason":null}],"usage":null})");
  EXPECT_EQ(chunk->text, "ab");
  EXPECT_FALSE(chunk->usage.has_value());
  chunk = ParseApiChunk(
      R"({"choices":[{"delta":{"content":null,"reasoning_content":"hm"},"finish_reason":"stop","token_ids":[5,6]}]})");
  EXPECT_EQ(chunk->text, "");
  EXPECT_EQ(chunk->reasoning, "hm");
  EXPECT_EQ(chunk->finish_reason, "stop");
  EXPECT_EQ(chunk->ids, (std::vector<TokenId>{5, 6}));
  chunk = ParseApiChunk(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}})");
  ASSERT_TRUE(chunk->usage.has_value());
  EXPECT_EQ(chunk->usage->prompt_tokens, 7u);
  EXPECT_EQ(chunk->usage->completion_tokens, 9u);
  EXPECT_EQ(chunk->usage->cached_tokens, 4u);
  EXPECT_FALSE(chunk->answers);
  // Calls of tools, in parts of several streams' kinds.
  ApiCalls calls;
  const auto take = [&calls](const std::string& parts) {
    const auto chunk = ParseApiChunk(R"({"choices":[{"delta":{"tool_calls":)" + parts + "}}]}");
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    return calls.Take(chunk->calls);
  };
  EXPECT_TRUE(take(R"([{"index":0,"id":"a","function":{"name":"f","arguments":""}}])").ok());
  EXPECT_TRUE(
      take(R"([{"index":0,"function":{"arguments":"{\"x\":"}},{"index":1,"id":"b","function":{"name":"g"}}])").ok());
  EXPECT_TRUE(take(R"([{"index":0,"function":{"arguments":"1}"}}])").ok());
  EXPECT_TRUE(take(R"([{"id":"c","function":{"name":"h","arguments":{"y":2}}}])").ok()) << "without a number, whole";
  EXPECT_TRUE(take(R"([{"index":3,"id":"d","function":{"name":"i","arguments":"{\"cut"}}])").ok());
  EXPECT_EQ(take(R"([{"index":5,"function":{"arguments":"x"}}])").code(), absl::StatusCode::kDataLoss);
  const std::vector<ApiCall> whole = calls.Finish(true);
  ASSERT_EQ(whole.size(), 2u) << "a call that was cut is none, and one without arguments may be cut";
  EXPECT_EQ(whole[0].id + whole[0].name + whole[0].arguments, R"(af{"x":1})");
  EXPECT_EQ(whole[1].id + whole[1].name + whole[1].arguments, R"(ch{"y":2})");
  EXPECT_EQ(ApiCalls().Take({ApiChunk::CallPart{}}).code(), absl::StatusCode::kDataLoss) << "it never began";
  EXPECT_EQ(ApiCalls().Take(std::vector<ApiChunk::CallPart>(200, {{"", "f", ""}, -1})).code(),
            absl::StatusCode::kDataLoss);

  EXPECT_EQ(ParseApiChunk("<html>").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseApiChunk("[1]").status().code(), absl::StatusCode::kDataLoss);
  const auto failed = ParseApiChunk(R"({"error":{"message":"the ring broke","type":"server_error","code":503}})");
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(failed.status()), HasSubstr("the ring broke"));
  // Nothing of these shapes may be more than an error.
  for (const char* odd : {R"({"choices":5})", R"({"choices":[5]})", R"({"choices":[{"delta":[]}]})", R"({"usage":[]})",
                          R"({"choices":[{"text":5,"token_ids":[null,"x"]}],"usage":{"prompt_tokens":-1}})"}) {
    EXPECT_TRUE(ParseApiChunk(odd).ok()) << odd;
  }
}

class LoadRunTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpClient> Client(const OpenAiPeer& peer) {
    auto client = HttpClient::Make(*ParseApiUrl(peer.url()), {});
    EXPECT_TRUE(client.ok());
    return *std::move(client);
  }
  LoadRun Run(const OpenAiPeer& peer, const LoadPlan& plan, Duration duration = {}) {
    LoadDialect dialect{.model = "tiny", .vocab = 512, .min_tokens = false, .return_ids = false};
    return RunLoad(
        Client(peer).get(), plan, dialect, duration, [](size_t, size_t) {}, Uninterrupted);
  }
};

TEST_F(LoadRunTest, LearnsWhichFieldsAServerTakes) {
  const OpenAiPeer peer({.refused = {"min_tokens", "return_token_ids"}, .stops_after = 3});
  LoadDialect dialect{.model = "tiny"};
  const Status status = LearnDialect(Client(peer).get(), &dialect, Uninterrupted);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(dialect.ignore_eos);
  EXPECT_FALSE(dialect.min_tokens);
  EXPECT_FALSE(dialect.return_ids);
  EXPECT_NEAR(dialect.tokens_per_word, 2, 0.01);
  EXPECT_NEAR(dialect.tokens_beside, 1, 0.01);
  // So a prompt has the length that is asked for.
  const LoadRun run = RunLoad(
      Client(peer).get(), {.requests = {{.prompt = 301, .generate = 4}}}, dialect, {}, [](size_t, size_t) {},
      Uninterrupted);
  EXPECT_EQ(run.records[0].prompt_tokens, 301u);
  EXPECT_EQ(run.records[0].generated_tokens, 4u);
}

TEST_F(LoadRunTest, AServerThatStopsEarlyIsRefused) {
  const OpenAiPeer peer({.refused = {"min_tokens", "ignore_eos", "return_token_ids"}, .stops_after = 3});
  LoadDialect dialect{.model = "tiny"};
  const Status status = LearnDialect(Client(peer).get(), &dialect, Uninterrupted);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  const OpenAiPeer other({.refused = {"prompt"}});
  EXPECT_THAT(Message(LearnDialect(Client(other).get(), &dialect, Uninterrupted)),
              HasSubstr("'prompt' is not supported"));
}

TEST_F(LoadRunTest, AClosedLoopKeepsSoManyRunning) {
  const OpenAiPeer peer({.before_first = milliseconds(20), .between = milliseconds(2)});
  const LoadRun run = Run(peer, *PlanLoad({.requests = 24, .at_once = 6, .scale = 0.05}));
  ASSERT_EQ(run.records.size(), 24u);
  EXPECT_EQ(peer.most_at_once(), 6);
  EXPECT_EQ(peer.peer().connections(), 6);
  for (const LoadRecord& r : run.records) {
    EXPECT_TRUE(r.ok()) << r.status;
    EXPECT_EQ(r.generated_tokens, r.asked);
    EXPECT_EQ(r.tokens_at.size(), r.asked);
    EXPECT_EQ(r.cached_tokens, 3u);
    EXPECT_GE(r.to_first_token(), 0.02);
    EXPECT_TRUE(std::is_sorted(r.tokens_at.begin(), r.tokens_at.end()));
    EXPECT_GE(r.ended, r.tokens_at.back());
  }
  for (const auto& body : peer.bodies()) EXPECT_TRUE(body.at("prompt").is_array());
}

TEST_F(LoadRunTest, ALeaderGoesAlone) {
  std::atomic<int> begun{0}, alone{0};
  OpenAiPeer peer(
      {.before_first = milliseconds(50), .instead = [&](testing::HttpPeer::Call&, const boost::json::object&) {
         alone = begun == 0 ? 1 : alone.load();
         ++begun;
         std::this_thread::sleep_for(milliseconds(30));
         if (begun > 1 && alone == 1) alone = 2;  // another came before the first had its token
         return false;
       }});
  const LoadRun run = Run(peer, *PlanLoad({.workload = "prefix", .requests = 4, .scale = 0.02, .lead = true}));
  ASSERT_EQ(run.records.size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_GE(run.records[i].sent, run.records[0].tokens_at.front());
}

TEST_F(LoadRunTest, AnOpenLoopSendsWhenARequestIsDue) {
  const OpenAiPeer peer({.before_first = milliseconds(300)});
  LoadPlan plan{.open_loop = true, .at_once = 1000};
  for (int i = 0; i < 10; ++i) plan.requests.push_back({.due = milliseconds(10 * i), .prompt = 4, .generate = 2});
  const LoadRun run = Run(peer, plan);
  ASSERT_EQ(run.records.size(), 10u);
  EXPECT_EQ(peer.most_at_once(), 10) << "nobody waits for answers";
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(run.records[i].due, 0.01 * static_cast<double>(i), 1e-6);
    EXPECT_GE(run.records[i].sent, run.records[i].due);
  }
  // With a limit the wait counts.
  plan.at_once = 1;
  plan.requests.resize(3);
  const LoadRun limited = Run(peer, plan);
  EXPECT_GE(limited.records[2].to_first_token(), 0.8);
}

TEST_F(LoadRunTest, ErrorsAreKeptAndTheRestGoesOn) {
  std::atomic<int> n{0};
  const OpenAiPeer peer({.instead = [&](testing::HttpPeer::Call& call, const boost::json::object&) {
    switch (n++) {
      case 0: return call.Respond(503, R"({"error":{"message":"the queue is full"}})", "Retry-After: 3\r\n");
      case 1:
        call.BeginStream();
        call.Event(R"({"choices":[{"text":"x"}]})");
        call.Event(R"({"error":{"message":"the ring broke"}})");
        return call.EndStream();
      case 2:
        call.BeginStream();
        call.Event(R"({"choices":[{"text":"x"}]})");
        call.close = true;
        return true;
      default: return false;
    }
  }});
  const LoadRun run = Run(peer, *PlanLoad({.requests = 5, .at_once = 1, .scale = 0.02}));
  ASSERT_EQ(run.records.size(), 5u);
  EXPECT_THAT(Message(run.records[0].status), HasSubstr("the queue is full (try again in 3 s)"));
  EXPECT_THAT(Message(run.records[1].status), HasSubstr("the ring broke"));
  EXPECT_THAT(Message(run.records[2].status), HasSubstr("in the middle of its answer"));
  EXPECT_TRUE(run.records[3].ok() && run.records[4].ok());
}

TEST_F(LoadRunTest, ADurationRepeatsTheRequestsWithOtherPrompts) {
  const OpenAiPeer peer({.between = milliseconds(1)});
  const LoadRun run = Run(peer, *PlanLoad({.requests = 2, .at_once = 2, .scale = 0.02}), milliseconds(300));
  EXPECT_GT(run.records.size(), 4u);
  const auto bodies = peer.bodies();
  EXPECT_NE(bodies[0].at("prompt"), bodies[2].at("prompt"));
}

TEST_F(LoadRunTest, InterruptedRequestsEnd) {
  const OpenAiPeer peer({.between = milliseconds(20)});
  LoadDialect dialect{.model = "tiny", .vocab = 512};
  const Deadline end = After(milliseconds(150));
  auto client = Client(peer);
  const LoadRun run = RunLoad(
      client.get(), *PlanLoad({.requests = 8, .at_once = 4, .rate = 5}), dialect, {}, [](size_t, size_t) {},
      [end] { return Clock::now() > end; });
  EXPECT_TRUE(run.interrupted);
  EXPECT_LT(run.records.size(), 8u);
  client->RunOne(After(milliseconds(300)));  // what was to come later does not
}

}  // namespace
}  // namespace gyre
