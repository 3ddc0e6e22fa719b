// Many clients that go away at any moment of their request: nothing of them stays.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/testing/http_api.h"
#include "tests/testing/http_server_rig.h"
#include "tests/testing/live_server.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::HttpAnswer;
using testing::HttpClient;
using testing::LiveServer;
using testing::Soon;

constexpr int kRequests = 500, kClients = 16;

// Where a whole answer has its text; nullptr: it has none.
struct Asked {
  std::string path, body;
  const char* text = nullptr;
};

std::string Quoted(const std::string& text) { return boost::json::serialize(boost::json::value(text)); }

// Requests that end by themselves, greedy ones, some with a common beginning, and some longer than a block.
Asked Question(uint32_t seed) {
  std::mt19937 random(seed);
  constexpr const char* kWords[] = {"Gyre", "a ring", "layers", "the worker", "cuts", "and", "of memory", "tokens"};
  std::string text = seed % 3 == 0 ? "What is Gyre? It cuts a model into stages and joins them into a ring. " : "";
  for (uint32_t n = 1 + random() % 40; n > 0; --n) text += std::string(kWords[random() % 8]) + " ";
  const std::string n = std::to_string(1 + random() % 50);
  const std::string greedy = R"({"model":"demo","temperature":0,"max_tokens":)" + n;
  const std::string stream = std::string(",\"stream\":") + (random() % 3 == 0 ? "false" : "true");
  const std::string messages = R"(,"messages":[{"role":"user","content":)" + Quoted(text) + "}]";
  const std::string input = R"(,"max_output_tokens":)" + n + ",\"input\":" + Quoted(text);
  switch (random() % 8) {
    case 0: return {"/v1/chat/completions", greedy + messages + stream + ",\"n\":2}"};
    case 1: return {"/v1/messages", greedy + messages + stream + "}"};
    case 2: return {"/v1/responses", R"({"temperature":0)" + input + stream + "}"};
    case 3:
      return {"/completion", R"({"temperature":0,"n_predict":)" + n + ",\"prompt\":" + Quoted(text) + stream + "}"};
    case 4: return {"/v1/embeddings", "{\"input\":[" + Quoted(text) + ",\"b\",\"c\"]}"};
    case 5:
      return {"/v1/completions", greedy + R"(,"echo":true,"logprobs":3,"prompt":)" + Quoted(text) + "}",
              "/choices/0/text"};
    default: return {"/v1/completions", greedy + ",\"prompt\":" + Quoted(text) + "}", "/choices/0/text"};
  }
}

class HttpStormTest : public ::testing::Test {
 protected:
  HttpStormTest() {
    RuntimeOptions options;
    options.model = GYRE_DEMO_MODEL;
    options.stages = 2;
    options.threads = 2;
    options.quiet = true;
    options.ctx = 256;
    options.block_size = 8;
    options.kv_tokens = 1024;  // less than all of them want
    auto ring = Runtime::Open(options);
    EXPECT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    server_ = std::make_unique<LiveServer>(*ring_);
  }
  // One client's request and its end.
  void Disturb(const Asked& asked, std::mt19937& random) {
    HttpClient client(server_->address());
    const std::string head = "POST " + asked.path +
                             " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(asked.body.size()) +
                             "\r\n\r\n";
    const std::string bytes = head + asked.body;
    switch (random() % 5) {
      case 0:  // within the request
        client.Send(bytes.substr(0, random() % bytes.size()));
        break;
      case 1:  // when it is sent
        client.Send(bytes);
        break;
      case 2:  // after some time
        client.Send(bytes);
        std::this_thread::sleep_for(milliseconds(random() % 60));
        break;
      default: {  // in the middle of the answer
        client.Send(bytes);
        const size_t enough = random() % 4000;
        while (client.input().size() < enough && client.Receive(milliseconds(300))) {
        }
      }
    }
    switch (random() % 3) {
      case 0: client.Reset(); break;
      case 1:
        client.CloseHalf();
        client.Receive(milliseconds(random() % 20));
        break;
      default: break;
    }
  }
  bool NothingIsLeft() {
    const EngineStats engine = ring_->engine().stats();
    const http::ServerStats http = server_->server().stats();
    const SchedulerStats& s = engine.scheduler;
    return http.active == 0 && http.connections == 0 && ring_->service().streams().streams() == 0 &&
           engine.sequences.empty() && s.waiting + s.prefill + s.decode + s.held + s.in_flight == 0 &&
           s.memory[kPageGroup].available == s.memory[kPageGroup].units &&
           engine.requests == engine.finished + engine.failed + engine.cancelled;
  }

  std::unique_ptr<Runtime> ring_;
  std::unique_ptr<LiveServer> server_;
};

TEST_F(HttpStormTest, ClientsThatGoAwayAtAnyMomentLeaveNothing) {
  // The answers of some of them without any disturbance.
  std::vector<Asked> calm;
  for (uint32_t seed = 0; calm.size() < 8; ++seed) {
    if (Question(seed).text != nullptr) calm.push_back(Question(seed));
  }
  std::vector<std::string> expected;
  for (const Asked& asked : calm) {
    const HttpAnswer answer = server_->Ask("POST", asked.path, asked.body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    expected.push_back(http::At(http::Json(answer.body), asked.text));
  }
  std::atomic<int> next{0}, read{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (int n = next++; n < kRequests; n = next++) {
        std::mt19937 random(static_cast<uint32_t>(n));
        if (n % 10 != 0) {
          Disturb(Question(static_cast<uint32_t>(n)), random);
          continue;
        }
        const size_t which = static_cast<size_t>(n / 10) % calm.size();
        const HttpAnswer answer = server_->Ask("POST", calm[which].path, calm[which].body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        if (answer.status == 200) EXPECT_EQ(http::At(http::Json(answer.body), calm[which].text), expected[which]);
        ++read;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(read, kRequests / 10);
  EXPECT_TRUE(Soon([&] { return NothingIsLeft(); }));
  const EngineStats stats = ring_->engine().stats();
  EXPECT_EQ(stats.scheduler.memory[kPageGroup].available, stats.scheduler.memory[kPageGroup].units);
  EXPECT_EQ(stats.scheduler.leaked_blocks, 0u);
  EXPECT_EQ(stats.integrity_faults, 0u);
  EXPECT_EQ(stats.failed, 0u);
  EXPECT_GT(stats.cancelled, 50u);
  EXPECT_GT(stats.finished, 50u);
  EXPECT_TRUE(ring_->engine().CheckIntegrity().ok()) << ring_->engine().CheckIntegrity();
  for (const http::RequestRecord& record : server_->records()) {
    // 400: a body that was cut.
    EXPECT_TRUE(record.status == 200 || record.status == 0 || (record.status == 400 && record.gone))
        << record.method << " " << record.path << " " << record.status;
  }
  for (size_t i = 0; i < calm.size(); ++i) {
    EXPECT_EQ(http::At(http::Json(server_->Ask("POST", calm[i].path, calm[i].body).body), calm[i].text), expected[i]);
  }
}

TEST_F(HttpStormTest, ManyWhoAskAtOnceAreAllAnswered) {
  // Nobody's text becomes tokens before all have asked.
  std::atomic<bool> go{false};
  for (int i = 0; i < ServiceLimits{}.work_threads; ++i) {
    const Status posted = ring_->service().Post([&go] {
      while (!go) std::this_thread::sleep_for(milliseconds(1));
    });
    ASSERT_TRUE(posted.ok()) << posted;
  }
  constexpr size_t kMany = 300;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (size_t i = 0; i < kMany; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->address()));
    ASSERT_TRUE(clients.back()->Request("POST", "/v1/completions", "", R"({"prompt":"What is","max_tokens":2})"));
  }
  const bool all_ask = Soon([&] { return server_->server().stats().active == kMany; });
  go = true;
  EXPECT_TRUE(all_ask);
  for (const auto& client : clients) {
    const HttpAnswer answer = client->Answer();
    ASSERT_EQ(answer.status, 200) << answer.body;
  }
}

}  // namespace
}  // namespace gyre
