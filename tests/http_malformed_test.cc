// Malformed requests to the real routes, through a socket: each gets the status that docs/api.md promises, and the
// server goes on as before. The server alone, with requests that two servers could read in two ways:
// http_server_hostile_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/testing/demo_runtime.h"
#include "tests/testing/http_api.h"
#include "tests/testing/http_server_rig.h"
#include "tests/testing/live_server.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::string_literals::operator""s;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::HttpClient;
using testing::LiveServer;
using testing::Soon;

constexpr char kGood[] = R"({"model":"demo","temperature":0,"max_tokens":12,"prompt":"What is Gyre?"})";

class HttpMalformedTest : public testing::DemoRuntimeTest {
 protected:
  void Serve(const http::ServerLimits& limits = {}) {
    server_ = std::make_unique<LiveServer>(*runtime_, limits);
    expected_ = Text();
    ASSERT_NE(expected_, "");
  }
  // The server answers as at the beginning, nothing hangs on, and nothing was its own fault.
  void TearDown() override {
    EXPECT_EQ(server_->Ask("GET", "/health").status, 200);
    EXPECT_EQ(Text(), expected_);
    EXPECT_TRUE(Soon([&] { return server_->server().stats().active == 0; }));
    EXPECT_TRUE(Soon([&] { return runtime_->service().streams().streams() == 0; }));
    EXPECT_TRUE(Soon([&] { return runtime_->engine().stats().sequences.empty(); }));
    EXPECT_TRUE(runtime_->engine().CheckIntegrity().ok()) << runtime_->engine().CheckIntegrity();
    for (const auto& r : server_->records()) EXPECT_NE(r.status, 500) << r.method << " " << r.path;
    server_.reset();
  }
  std::string Text() const {
    const HttpAnswer answer = server_->Ask("POST", "/v1/completions", kGood);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? http::At(http::Json(answer.body), "/choices/0/text") : "";
  }
  // The body to this route is refused with this status, in the shape of the route's API, and a request behind it on
  // the same connection is answered.
  void Refused(const std::string& path, const std::string& body, int status, const std::string& word = "") const {
    HttpClient client(server_->address());
    client.Request("POST", path, "Content-Type: application/json\r\n", body);
    const HttpAnswer answer = client.Answer();
    const std::string shown = path + " " + body.substr(0, 200) + "\n" + answer.body.substr(0, 500);
    EXPECT_EQ(answer.status, status) << shown;
    EXPECT_EQ(answer.Header("content-type"), "application/json") << shown;
    const boost::json::value json = http::Json(answer.body);
    EXPECT_NE(http::At(json, "/error/message"), "(absent)") << shown;
    if (path.substr(0, 12) == "/v1/messages") EXPECT_EQ(http::At(json, "/type"), "error") << shown;
    EXPECT_THAT(http::At(json, "/error/message"), HasSubstr(word)) << shown;
    client.Request("GET", "/health");
    EXPECT_EQ(client.Answer().status, 200) << shown;
  }

  std::unique_ptr<LiveServer> server_;
  std::string expected_;
};

// Every route that reads a body, with a body that it takes.
const std::vector<std::pair<std::string, std::string>>& Posts() {
  static const std::vector<std::pair<std::string, std::string>> posts{
      {"/v1/chat/completions", R"("messages":[{"role":"user","content":"Hi"}],"max_tokens":2)"},
      {"/v1/completions", R"("prompt":"Hi","max_tokens":2)"},
      {"/v1/responses", R"("input":"Hi","max_output_tokens":2)"},
      {"/v1/embeddings", R"("input":"Hi")"},
      {"/v1/messages", R"("model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":2)"},
      {"/v1/messages/count_tokens", R"("model":"demo","messages":[{"role":"user","content":"Hi"}])"},
      {"/completion", R"("prompt":"Hi","n_predict":2)"},
      {"/tokenize", R"("content":"Hi")"},
      {"/detokenize", R"("tokens":[5,6])"},
      {"/apply-template", R"("messages":[{"role":"user","content":"Hi"}])"},
      {"/v1/cluster/resize", R"("ranges":"0-7","dry_run":true)"},
      {"/v1/cluster/drain", R"("worker":"nobody")"},
      {"/v1/cluster/undrain", R"("worker":"nobody")"},
      {"/v1/cluster/remove", R"("worker":"nobody")"},
  };
  return posts;
}

TEST_F(HttpMalformedTest, WhatIsNoJsonIsRefusedByEveryRoute) {
  Serve();
  const std::string deep = std::string(100000, '['), objects = [] {
    std::string out;
    for (int i = 0; i < 10000; ++i) out += R"({"a":)";
    return out;
  }();
  for (const auto& [path, good] : Posts()) {
    const std::string open = "{" + good, field = open + ",\"x\":";
    const std::vector<std::string> bodies{
        // Cut, and more than one.
        ""s,
        "{"s,
        open,
        open + ",",
        open + ",}",
        open + "}}",
        open + "} x",
        open + "}" + open + "}",
        "\"",
        "{\"a",
        // Almost JSON.
        "nul"s,
        "True"s,
        "{'a':1}"s,
        "{a:1}"s,
        field + "undefined}",
        field + "NaN}",
        field + "Infinity}",
        field + "-Infinity}",
        field + "[1,]}",
        open + "} // no",
        "/* no */" + open + "}",
        "\xEF\xBB\xBF" + open + "}",
        "a=b&c=d"s,
        "<a/>"s,
        "\0"s,
        open + "\0}"s,
        // Numbers.
        field + "01}",
        field + "+1}",
        field + ".5}",
        field + "1.}",
        field + "1e}",
        field + "0x10}",
        field + "--1}",
        field + "1e999999999999}",
        // Strings.
        field + "\"\n\"}",
        field + "\"\t\"}",
        field + "\"\\x41\"}",
        field + "\"\\u12\"}",
        field + "\"\\ud800\"}",
        field + "\"\\udc00\"}",
        field + "\"\\ud800\\u0041\"}",
        // No UTF-8: alone, cut, overlong, a surrogate, beyond the last character, in a name.
        field + "\"\x80\"}",
        field + "\"\xC3\"}",
        field + "\"\xC0\xAF\"}",
        field + "\"\xED\xA0\x80\"}",
        field + "\"\xF4\x90\x80\x80\"}",
        field + "\"\xFF\xFE\"}",
        open + ",\"\xE9\":1}",
        // No object.
        "[]"s,
        "[" + open + "}]",
        "null"s,
        "7"s,
        "\"text\""s,
        // Too deep; a name that stands twice.
        deep,
        field + deep,
        field + objects,
        field + std::string(65, '[') + std::string(65, ']') + "}",
        open + "," + good + "}",
        field + R"({"a":1,"a":2}})",
    };
    for (const std::string& body : bodies) Refused(path, body, 400);
  }
}

TEST_F(HttpMalformedTest, WhatIsNoFieldOfARouteIsRefusedByName) {
  Serve();
  const std::string huge(100000, '9');
  for (const auto& [path, good] : Posts()) {
    for (const std::string& value : {"1"s, "-1e308"s, "123456789012345678901234567890"s, huge, "1e300"s,
                                     std::string(60, '[') + std::string(60, ']'), "\"" + huge + "\"", "\"\\u0000\""s,
                                     R"({"a":[{"b":{"c":[]}}]})"s}) {
      Refused(path, "{" + good + ",\"no_such_field\":" + value + "}", 400, "no_such_field");
    }
    // A number of many digits, behind which the JSON goes on.
    Refused(path, "{" + good + ",\"no_such_field\":0." + huge + "}", 400, "no_such_field");
  }
}

TEST_F(HttpMalformedTest, HugeNumbersAreOutOfRange) {
  Serve();
  const std::vector<std::pair<std::string, std::vector<std::string>>> fields{
      {"/v1/chat/completions",
       {"temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "top_logprobs", "top_k", "min_p",
        "repetition_penalty", "frequency_penalty", "presence_penalty", "priority"}},
      {"/v1/completions", {"temperature", "max_tokens", "n", "logprobs", "best_of"}},
      {"/v1/responses", {"temperature", "max_output_tokens", "top_logprobs"}},
      {"/v1/embeddings", {"dimensions"}},
      {"/v1/messages", {"temperature", "top_p", "top_k", "min_p", "seed"}},
      {"/completion",
       {"temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "n_probs", "seed",
        "frequency_penalty"}},
  };
  for (const auto& [path, names] : fields) {
    const auto good =
        std::find_if(Posts().begin(), Posts().end(), [&, &at = path](auto& post) { return post.first == at; });
    for (const std::string& name : names) {
      if (good->second.find("\"" + name + "\"") != std::string::npos) continue;
      for (const char* value : {"1e300", "-1e300", "99999999999999999999999", "-99999999999999999999999",
                                "9223372036854775808", "18446744073709551616"}) {
        Refused(path, "{" + good->second + ",\"" + name + "\":" + value + "}", 400, name);
      }
      for (const char* value : {"\"7\"", "[7]", "{\"a\":7}", "true"}) {
        Refused(path, "{" + good->second + ",\"" + name + "\":" + value + "}", 400, name);
      }
    }
  }
  for (const char* id : {"-1", "1e30", "99999999999", "9223372036854775808", "0.5", "\"5\""}) {
    const HttpAnswer ids = server_->Ask("POST", "/v1/completions", "{\"prompt\":[1,"s + id + "]}");
    EXPECT_TRUE(ids.status == 400 || ids.status == 400) << id << ids.body;
    const HttpAnswer text = server_->Ask("POST", "/detokenize", "{\"tokens\":[1,"s + id + "]}");
    EXPECT_TRUE(text.status == 400 || text.status == 400) << id << text.body;
  }
}

TEST_F(HttpMalformedTest, ARequestMayComeInAnyPieces) {
  Serve();
  const std::string body(kGood);
  const std::string line = "POST /v1/completions HTTP/1.1\r\n", host = "Host: localhost\r\n",
                    length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  const auto text = [](HttpClient& client) {
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? http::At(http::Json(answer.body), "/choices/0/text") : "";
  };
  HttpClient bytes(server_->address());
  for (const char c : line + host + length + "\r\n" + body) bytes.Send(std::string(1, c));
  EXPECT_EQ(text(bytes), expected_);
  std::string chunks;
  for (const char c : body) chunks += "1;a=b\r\n"s + c + "\r\n";
  HttpClient chunked(server_->address());
  chunked.Send(line + "Transfer-Encoding: chunked\r\n" + host + "\r\n" + chunks + "0\r\nx-trailer: y\r\n\r\n");
  EXPECT_EQ(text(chunked), expected_);
  // Two requests and the beginning of a third in one write.
  HttpClient pipelined(server_->address());
  const std::string whole = line + host + length + "\r\n" + body;
  pipelined.Send(whole + whole + whole.substr(0, whole.size() / 2));
  EXPECT_EQ(text(pipelined), expected_);
  EXPECT_EQ(text(pipelined), expected_);
  pipelined.Send(whole.substr(whole.size() / 2));
  EXPECT_EQ(text(pipelined), expected_);
  // Headers of any number that say nothing about where the message ends.
  HttpClient repeated(server_->address());
  repeated.Send(line + host + length + "Accept: a/b\r\naccept: c/d\r\nACCEPT:\r\nCookie: a\r\nCookie: b\r\n\r\n" +
                body);
  EXPECT_EQ(text(repeated), expected_);
}

TEST_F(HttpMalformedTest, HeadersThatSayWhoAsksOrWhatStandOnce) {
  Serve();
  for (const std::string& headers :
       {"Content-Type: application/json\r\nContent-Type: text/plain\r\n"s,
        "Authorization: Bearer a\r\nauthorization: Bearer b\r\n"s, "X-Api-Key: a\r\nx-api-key: b\r\n"s,
        "Origin: http://localhost\r\nOrigin: http://evil.example\r\n"s, "Expect: 100-continue\r\nExpect: x\r\n"s,
        "Content-Encoding: gzip\r\n"s}) {
    HttpClient client(server_->address());
    client.Request("POST", "/v1/completions", headers, kGood);
    EXPECT_EQ(client.Answer().status, headers[8] == 'E' ? 415 : 400) << headers;
  }
}

// A second request within the first must not be one.
TEST_F(HttpMalformedTest, NothingIsSmuggledIntoARoute) {
  Serve();
  const std::string inner = "POST /v1/cluster/resize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
  const std::string line = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", body(kGood);
  const std::string n = std::to_string(body.size()), hex = fmt::format("{:x}", body.size());
  for (const std::string& bytes : {
           line + "Content-Length: " + n + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
           line + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + hex + "\r\n" + body + "\r\n0\r\n\r\n" +
               inner,
           line + "Transfer-Encoding: xchunked\r\n\r\n" + inner,
           line + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner,
           line + "Content-Length: 0\r\nContent-Length: " + n + "\r\n\r\n" + inner,
           line + "Content-Length: " + n + "\r\n x\r\n\r\n" + inner,
           line + "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
           line + "Content-Length: 1_0\r\n\r\n" + inner,
           line + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\n\r\n\r\n" + inner,
           line + "Transfer-Encoding: chunked\r\n\r\n" + hex + "\r\n" + body + "0\r\n\r\n" + inner,
           line + "Transfer-Encoding: chunked\r\n\r\n" + hex + "\r\n" + body + "\r\n0x0\r\n\r\n" + inner,
       }) {
    HttpClient client(server_->address());
    client.Send(bytes);
    const HttpAnswer answer = client.Answer();
    EXPECT_TRUE(answer.status == 400 || answer.status == 501) << answer.status << "\n" << bytes;
    EXPECT_EQ(answer.Header("connection"), "close") << bytes;
    EXPECT_TRUE(client.Ended()) << bytes;
    EXPECT_EQ(client.input(), "") << bytes;
  }
  for (const auto& record : server_->records()) EXPECT_NE(record.path, "/v1/cluster/resize");
}

TEST_F(HttpMalformedTest, SlowHeadsAndBodiesTakeNothingFromOthers) {
  Serve({.head_time = milliseconds(800), .body_time = milliseconds(800), .linger_time = milliseconds(100)});
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n";
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (size_t i = 0; i < 64; ++i) {
    slow.push_back(std::make_unique<HttpClient>(server_->address()));
    slow.back()->Send(i % 2 == 0 ? head.substr(0, 1 + i) : head + std::string(i, ' '));
  }
  // While they go on with a byte now and then, questions are answered, and nobody waits for them for ever.
  const Deadline end = After(seconds(20));
  while (server_->server().stats().connections > 0 && Clock::now() < end) {
    for (const auto& client : slow) client->Send(" ");
    EXPECT_EQ(Text(), expected_);
    std::this_thread::sleep_for(milliseconds(50));
  }
  for (size_t i = 0; i < slow.size(); ++i) {
    const int status = slow[i]->Answer().status;  // 0: what it still sent broke the connection
    EXPECT_TRUE(status == 408 || status == 0) << i << " " << status;
  }
  EXPECT_TRUE(Soon([&] { return server_->server().stats().connections == 0; }));
  EXPECT_GE(server_->server().stats().requests, 64u);
}

// Clients that end at each byte of a request and at each of the first bytes of its answer.
TEST_F(HttpMalformedTest, AnEarlyEndIsHarmlessEverywhere) {
  Serve();
  const std::string body = R"({"prompt":"a","max_tokens":30,"stream":true})";
  const std::string whole =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  const size_t step = testing::kSanitized ? 5 : 1;
  for (size_t n = 0; n < whole.size(); n += step) {
    HttpClient client(server_->address());
    client.Send(whole.substr(0, n));
    if (n % 3 == 0) client.CloseHalf();
    if (n % 3 == 1) client.Reset();
  }
  for (size_t n = 0; n < 300; n += 10 * step) {
    HttpClient client(server_->address());
    client.Send(whole);
    while (client.input().size() < n && client.Receive()) {
    }
    if (n % 20 == 0) client.Reset();
  }
  EXPECT_TRUE(Soon([&] { return server_->server().stats().connections == 0; }));
}

}  // namespace
}  // namespace gyre
