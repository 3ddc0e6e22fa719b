// /v1/cluster over rings of the tiny model in this process: what it shows, what it changes, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "coordinator/http/cluster_json.h"
#include "coordinator/http/cluster_routes.h"
#include "coordinator/http/server.h"
#include "tests/testing/http_api.h"
#include "tests/testing/http_client.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre::http {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class HttpClusterTest : public ::testing::Test {
 protected:
  HttpClusterTest() {
    RuntimeOptions options = testing::TinyRing(model_.path(), 3, 200);
    options.tcp = true;
    ring_ = testing::OpenRing(options);
    api_ = std::make_unique<ApiCaller>(ring_->service());
    api_->context.cluster = &ring_->cluster();
    api_->context.engine_stats = [this] { return ring_->engine().stats(); };
    AddClusterRoutes(api_->router, api_->context);
  }
  boost::json::value Get() {
    const auto e = api_->Call("GET", "/v1/cluster", "");
    EXPECT_EQ(e->answer.status, 200);
    return Json(e->answer.body);
  }
  boost::json::value Post(const std::string& path, const std::string& body, int status = 200) {
    const auto e = api_->Call("POST", path, body);
    EXPECT_EQ(e->answer.status, status) << e->answer.body;
    EXPECT_EQ(e->answers, 1);
    return Json(e->answer.body);
  }

  testing::TinyModelFile model_{testing::TinyOptions{.layers = 6}};
  std::unique_ptr<Runtime> ring_;
  std::unique_ptr<ApiCaller> api_;
};

Request Question() {
  Request r;
  for (int i = 0; i < 40; ++i) r.prompt.push_back(static_cast<TokenId>(3 + i % 50));
  r.max_new_tokens = 20;
  r.ignore_end = true;
  return r;
}

TEST_F(HttpClusterTest, TheStatusSaysWhoHasWhatAndWhatItDoes) {
  ASSERT_TRUE(testing::RunOne(ring_->engine(), Question()).finished);
  // The engine shows its counters now and then, and the cluster takes loads in on its own thread.
  auto seen = [this] {
    const ClusterStatus status = ring_->cluster().status();
    return ring_->engine().stats().finished > 0 && status.members[0].load.steps > 0 &&
           status.members[2].load.answers_sent > 0;
  };
  ring_->ReportLoads();
  for (int i = 0; i < 4000 && !seen(); ++i) std::this_thread::sleep_for(milliseconds(5));
  const auto s = Get();
  EXPECT_EQ(At(s, "/object"), "cluster");
  EXPECT_EQ(At(s, "/version"), "9.9");
  EXPECT_EQ(At(s, "/state"), "serving");
  EXPECT_EQ(At(s, "/plan/number"), "1");
  EXPECT_EQ(At(s, "/plan/ranges"), "local-1=0-1,local-2=2-3,local-3=4-5");
  EXPECT_EQ(At(s, "/model/id"), "demo");
  EXPECT_EQ(At(s, "/model/architecture"), "llama");
  EXPECT_EQ(At(s, "/model/layers"), "6");
  EXPECT_EQ(At(s, "/model/context"), "200");
  EXPECT_EQ(At(s, "/model/vocab"), "96");
  EXPECT_EQ(At(s, "/model/weights"), "F32");
  EXPECT_EQ(At(s, "/model/hash"), fmt::format("{:016x}", (*OpenModel(model_.path()))->content_hash()));
  EXPECT_EQ(At(s, "/model/kv_type"), "f32");
  EXPECT_EQ(At(s, "/model/wire"), "f32");
  EXPECT_EQ(s.at("members").as_array().size(), 3u);
  EXPECT_EQ(At(s, "/members/0/name"), "local-1");
  EXPECT_EQ(At(s, "/members/1/layers"), R"({"first":2,"last":3})");
  EXPECT_EQ(At(s, "/members/1/state"), "serving");
  EXPECT_EQ(At(s, "/members/1/why"), "");
  EXPECT_GT(s.at_pointer("/members/0/weight_bytes").to_number<uint64_t>(), 0u);
  EXPECT_GT(s.at_pointer("/members/0/kv_bytes").to_number<uint64_t>(), 0u);
  EXPECT_GT(s.at_pointer("/members/0/steps").to_number<uint64_t>(), 0u);
  EXPECT_GT(s.at_pointer("/members/0/sent/rows").to_number<uint64_t>(), 0u);
  EXPECT_GT(s.at_pointer("/members/0/sent/latency_ms").to_number<double>(), 0) << "a round trip of loopback";
  EXPECT_EQ(At(s, "/members/0/sent/transport"), "tcp");
  EXPECT_EQ(At(s, "/first_hop/transport"), "tcp");
  EXPECT_EQ(At(s, "/first_hop/to"), "local-1");
  EXPECT_EQ(At(s, "/transport"), "auto");
  EXPECT_EQ(At(s, "/members/0/sent/to"), "local-2");
  EXPECT_EQ(At(s, "/members/2/sent/to"), "coordinator");
  EXPECT_EQ(s.at_pointer("/members/2/sent/rows").to_number<uint64_t>(), 20u) << "its answers";
  EXPECT_GT(s.at_pointer("/members/2/sent/bytes").to_number<uint64_t>(), 20u * 20);
  EXPECT_EQ(At(s, "/events/0/kind"), "joined");
  EXPECT_EQ(At(s, "/events/0/number"), "1");
  EXPECT_EQ(At(s, "/events/0/member"), "local-1");
  EXPECT_EQ(At(s, "/events/0/plan"), "null");
  EXPECT_EQ(At(s, "/events/3/kind"), "plan");
  EXPECT_EQ(At(s, "/events/3/plan"), "1");
  EXPECT_THAT(At(s, "/events/3/text"), HasSubstr("plan 1 serves: local-1=0-1,local-2=2-3,local-3=4-5"));
  EXPECT_GT(s.at_pointer("/events/3/took_ms").to_number<double>(), 0);
  EXPECT_GT(s.at_pointer("/events/3/at").to_number<double>(), 1e9);
  EXPECT_EQ(At(s, "/engine/finished"), "1");
  EXPECT_EQ(At(s, "/engine/block_size"), "4");
  EXPECT_GT(s.at_pointer("/engine/tokens_generated").to_number<uint64_t>(), 0u);
  EXPECT_EQ(At(s, "/plans"), R"({"made":1,"aborted":0,"lost":0})");
  EXPECT_EQ(At(s, "/history/0/result"), "serving");
  EXPECT_EQ(At(s, "/history/0/plan"), "1");
  const double age = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
                     s.at_pointer("/history/0/at").to_number<double>();
  EXPECT_GE(age, 0);
  EXPECT_LT(age, 3600);
}

TEST_F(HttpClusterTest, ADryRunShowsWhatAResizeThenDoes) {
  ASSERT_TRUE(testing::RunOne(ring_->engine(), Question()).finished);
  std::this_thread::sleep_for(milliseconds(100));
  const std::string ranges = "local-1=0-3,local-2=4-5";
  const auto dry = Post("/v1/cluster/resize", R"({"ranges":")" + ranges + R"(","dry_run":true})");
  EXPECT_EQ(At(dry, "/plan"), "null");
  EXPECT_EQ(At(dry, "/ranges"), ranges);
  EXPECT_EQ(At(dry, "/dry_run"), "true");
  EXPECT_EQ(At(dry, "/moves/0/layers"), R"({"first":2,"last":3})");
  EXPECT_EQ(At(dry, "/moves/0/from"), "local-2");
  EXPECT_EQ(At(dry, "/moves/0/to"), "local-1");
  EXPECT_GT(dry.at_pointer("/moves/0/weight_bytes").to_number<uint64_t>(), 0u);
  EXPECT_GT(dry.at_pointer("/moves/0/kv_bytes").to_number<uint64_t>(), 0u) << "the answer's blocks are cached";
  EXPECT_EQ(At(dry, "/moves/1/from"), "local-3");
  EXPECT_EQ(At(dry, "/members/2/name"), "local-3");
  EXPECT_EQ(At(dry, "/members/2/layers"), "null");
  EXPECT_EQ(At(dry, "/members/0/fits"), "true");
  EXPECT_EQ(At(dry, "/took_ms"), "0E0");
  EXPECT_EQ(At(dry, "/pages_moved"), "0");
  EXPECT_EQ(At(Get(), "/plan/number"), "1") << "nothing was done";
  const auto real = Post("/v1/cluster/resize", R"({"ranges":")" + ranges + R"("})");
  EXPECT_EQ(At(real, "/plan"), "2");
  EXPECT_EQ(At(real, "/moves"), At(dry, "/moves"));
  EXPECT_EQ(At(real, "/members"), At(dry, "/members"));
  EXPECT_GT(real.at("pages_moved").to_number<uint64_t>(), 0u);
  EXPECT_EQ(At(Get(), "/plan/ranges"), ranges);
}

TEST_F(HttpClusterTest, DrainAndUndrain) {
  const auto drained = Post("/v1/cluster/drain", R"({"worker":"local-2"})");
  EXPECT_EQ(At(drained, "/ranges"), "local-1=0-2,local-3=3-5");
  auto s = Get();
  EXPECT_EQ(At(s, "/members/2/name"), "local-2");
  EXPECT_EQ(At(s, "/members/2/state"), "drained");
  EXPECT_THAT(At(s, "/members/2/why"), HasSubstr("before an undrain"));
  EXPECT_EQ(At(s, "/members/2/layers"), "null");
  EXPECT_EQ(At(s, "/members/2/sent"), "null");
  EXPECT_EQ(At(Post("/v1/cluster/resize", R"({"ranges":"local-2=0-5"})", 409), "/error/message"),
            "local-2 is drained: it gets no layers before an undrain");
  EXPECT_EQ(At(Post("/v1/cluster/undrain", R"({"worker":"local-2"})"), "/plan"), "2");
  EXPECT_EQ(At(Get(), "/members/2/state"), "idle");
}

TEST_F(HttpClusterTest, TheKvCacheGetsAnotherSize) {
  const std::string resize = "/v1/cluster/resize";
  const auto dry = Post(resize, R"({"kv_tokens":321,"dry_run":true})");
  EXPECT_EQ(At(dry, "/kv_tokens"), "324") << "whole blocks";
  EXPECT_EQ(At(dry, "/plan"), "null");
  EXPECT_EQ(At(Post(resize, R"({"kv_tokens":324})"), "/kv_tokens"), "324");
  EXPECT_EQ(ring_->cluster().status().num_blocks, 81u);
  EXPECT_THAT(At(Post(resize, R"({"kv_tokens":0})", 400), "/error/message"), HasSubstr("kv_tokens"));
  EXPECT_THAT(At(Post(resize, R"({"kv_tokens":64,"ranges":"0-5"})", 400), "/error/message"), HasSubstr("expected one"));
}

TEST_F(HttpClusterTest, WhatIsWrongIsRefusedInTheApisOwnWords) {
  const std::string resize = "/v1/cluster/resize";
  Post(resize, "", 400);
  Post(resize, "[]", 400);
  Post(resize, R"({"ranges":5})", 400);
  Post(resize, R"({"ranges":"0-5","dry_run":"yes"})", 400);
  EXPECT_EQ(At(Post(resize, "{}", 400), "/error/param"), "ranges");
  EXPECT_EQ(At(Post(resize, R"({"ranges":"0-5","force":true})", 400), "/error/param"), "force");
  EXPECT_THAT(At(Post(resize, R"({"ranges":"0-1,3-5"})", 400), "/error/message"), HasSubstr("nobody has layer 2"));
  EXPECT_EQ(At(Post(resize, R"({"ranges":"bob=0-5"})", 404), "/error/type"), "invalid_request_error");
  EXPECT_EQ(At(Post(resize, R"({"ranges":"0-5","proposed":true})", 400), "/error/param"), "ranges");
  EXPECT_THAT(At(Post(resize, R"({"proposed":true})", 409), "/error/message"), HasSubstr("no plan is proposed"));
  Post("/v1/cluster/drain", R"({"worker":"bob"})", 404);
  Post("/v1/cluster/drain", "{}", 400);
  Post("/v1/cluster/undrain", R"({"worker":"bob"})", 404);
  EXPECT_EQ(At(Get(), "/plan/number"), "1");
  EXPECT_EQ(At(Get(), "/plans/aborted"), "0");
}

// A status at once, at the changes of a resize, and then each second.
TEST_F(HttpClusterTest, EventsComeAtEveryChange) {
  std::thread other;
  const auto e = api_->Call("GET", "/v1/cluster/events", "", [&](FakeExchange& exchange) {
    other = std::thread([this, &exchange] {
      std::this_thread::sleep_for(milliseconds(200));
      EXPECT_TRUE(ring_->cluster().ResizeAndWait("local-2=0-2,local-1=3-5").ok());
      std::this_thread::sleep_for(milliseconds(1500));
      exchange.Leave();
    });
  });
  other.join();
  EXPECT_TRUE(e->streamed);
  EXPECT_EQ(e->answer.content_type, "text/event-stream");
  const auto events = Events(e->answer.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_LE(events.size(), 40u);
  EXPECT_EQ(events[0].event, "status");
  EXPECT_EQ(At(Json(events[0].data), "/plan/number"), "1");
  EXPECT_EQ(At(Json(events.back().data), "/plan/number"), "2");
  EXPECT_EQ(At(Json(events.back().data), "/state"), "serving");
}

TEST_F(HttpClusterTest, EventsEndWithTheServer) {
  std::atomic<bool> draining{false};
  api_->context.draining = [&] { return draining.load(); };
  std::thread other;
  const auto e = api_->Call("GET", "/v1/cluster/events", "", [&](FakeExchange&) {
    other = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(100));
      draining = true;
    });
  });
  other.join();
  EXPECT_GE(e->writes, 1);
}

// The same over a real connection; a change goes on when its client has gone.
TEST_F(HttpClusterTest, OverHttp) {
  Router router;
  AddClusterRoutes(router, api_->context);
  auto opened = HttpServer::Open({.address = "127.0.0.1:0"}, std::move(router));
  ASSERT_TRUE(opened.ok()) << opened.status();
  HttpServer& server = **opened;
  testing::HttpClient client(server.address());
  ASSERT_TRUE(client.Request("GET", "/v1/cluster"));
  auto answer = client.Answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(At(Json(answer.body), "/plan/number"), "1");
  EXPECT_EQ(answer.Header("cache-control"), "no-store");

  testing::HttpClient watcher(server.address());
  ASSERT_TRUE(watcher.Request("GET", "/v1/cluster/events"));
  const std::string json = "Content-Type: application/json\r\n";
  ASSERT_TRUE(client.Request("POST", "/v1/cluster/resize", json, R"({"ranges":"local-2=0-2,local-1=3-5"})"));
  answer = client.Answer();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(At(Json(answer.body), "/plan"), "2");
  while (watcher.input().find("\"number\":2") == std::string::npos) ASSERT_TRUE(watcher.Receive());
  EXPECT_THAT(watcher.input(), HasSubstr("event: status\ndata: {"));

  ASSERT_TRUE(client.Request("POST", "/v1/cluster/resize", json, R"({"ranges":"local-3=0-5"})"));
  client.Close();
  for (int i = 0; i < 4000 && ring_->cluster().status().plans < 3; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(FormatNamedRanges(*ring_->cluster().status().plan), "local-3=0-5");
  server.Stop();
}

TEST(ClusterJsonTest, WhoIsLeftOutSaysWhy) {
  ClusterStatus status;
  status.state = "1 of 2 workers have joined";
  status.members.push_back({.info = {.name = "w1"}, .left_out = "w1 needs 2.00 GiB for layers 0-7"});
  const boost::json::value s = StatusJson({}, status, {});
  EXPECT_EQ(At(s, "/plan"), "null");
  EXPECT_EQ(At(s, "/members/0/state"), "left_out");
  EXPECT_EQ(At(s, "/members/0/why"), "w1 needs 2.00 GiB for layers 0-7");
}

TEST(ClusterJsonTest, WhatWasMeasuredAndABetterPlan) {
  ClusterStatus status;
  status.rebalance = Rebalance::kAsk;
  status.step_seconds = 0.004;
  MemberStatus w1{.info = {.name = "w1", .speed = {.memory_bytes_per_second = 2e9}}, .why = "it is fast"};
  w1.links = {{.to = "w2", .failure = "", .round_trip_us = 500, .bytes_per_second = 1e8},
              {.to = "w3", .failure = "Connection refused"}};
  w1.stage_seconds = 0.002;
  status.members.push_back(std::move(w1));
  EXPECT_EQ(At(StatusJson({}, status, {}), "/proposal"), "null");
  status.proposal =
      Proposal{.ranges = "w1=0-7", .gain = 2, .step_seconds = 0.002, .step_seconds_now = 0.004, .why = "x"};
  const boost::json::value s = StatusJson({}, status, {});
  EXPECT_EQ(At(s, "/rebalance"), "ask");
  EXPECT_EQ(At(s, "/step_ms"), "4E0");
  EXPECT_EQ(At(s, "/proposal/ranges"), "w1=0-7");
  EXPECT_EQ(At(s, "/proposal/gain"), "2E0");
  EXPECT_EQ(At(s, "/members/0/measured/memory_bytes_per_second"), "2E9");
  EXPECT_EQ(At(s, "/members/0/measured/why"), "it is fast");
  EXPECT_EQ(At(s, "/members/0/measured/links/0/round_trip_ms"), "5E-1");
  EXPECT_EQ(At(s, "/members/0/measured/links/1/failure"), "Connection refused");
}

}  // namespace
}  // namespace gyre::http
