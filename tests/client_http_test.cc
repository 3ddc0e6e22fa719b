// The HTTP client against a server whose bytes the test writes; URLs and server-sent events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/x509.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/sse.h"
#include "http_client/http_client.h"
#include "http_client/system_roots.h"
#include "tests/testing/http_peer.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HttpPeer;
using testing::Never;

std::unique_ptr<HttpClient> ClientOf(const std::string& url, const HttpClientOptions& options = {}) {
  const auto parsed = ParseUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  auto client = HttpClient::Make(*parsed, options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

// A system by the paths that it has and the variables that are set.
std::string RootsOf(const std::set<std::string>& paths, const std::set<std::string>& variables = {}) {
  return SystemRootsElsewhere([&](const char* path) { return paths.contains(path); },
                              [&](const char* name) { return variables.contains(name); });
}

TEST(SystemRootsTest, AreFoundWhereAnotherSystemHasThem) {
  const std::string fedora = "/etc/pki/tls/certs/ca-bundle.crt", debian = "/etc/ssl/certs/ca-certificates.crt";
  EXPECT_EQ(RootsOf({fedora}), fedora);
  EXPECT_EQ(RootsOf({debian}), debian);
  EXPECT_EQ(RootsOf({}), "");
  // OpenSSL's own places and the user's words come first.
  EXPECT_EQ(RootsOf({fedora, X509_get_default_cert_dir()}), "");
  EXPECT_EQ(RootsOf({fedora, X509_get_default_cert_file()}), "");
  EXPECT_EQ(RootsOf({fedora}, {"SSL_CERT_FILE"}), "");
  EXPECT_EQ(RootsOf({fedora}, {"SSL_CERT_DIR"}), "");
}

TEST(UrlTest, WhatUsersWrite) {
  const struct {
    const char* text;
    const char* full;
  } kGood[] = {{"http://localhost", "http://localhost:80"},
               {"http://localhost:8080/", "http://localhost:8080"},
               {"https://a.b/v1/", "https://a.b:443/v1"},
               {"http://[::1]:99/x/v1", "http://[::1]:99/x/v1"},
               {"http://[::1]", "http://[::1]:80"}};
  for (const auto& c : kGood) {
    const auto url = ParseUrl(c.text);
    ASSERT_TRUE(url.ok()) << url.status();
    EXPECT_EQ(FormatUrl(*url), c.full);
  }
  for (const char* bad : {"", "localhost:8080", "ftp://a", "http://", "http://:80", "http://a:99999", "http://a b",
                          "http://::1", "http://user:word@a", "http://a/v1?x=1", "http://a\r\nHost: b"}) {
    EXPECT_EQ(ParseUrl(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

std::vector<std::string> Events(const std::string& stream, size_t cut) {
  SseParser parser;
  std::vector<std::string> out;
  auto take = [&](std::string_view name, std::string_view data) {
    out.push_back((name.empty() ? "" : std::string(name) + ":") + std::string(data));
  };
  for (size_t at = 0; at < stream.size(); at += cut) EXPECT_TRUE(parser.Feed(stream.substr(at, cut), take).ok());
  parser.Finish(take);
  return out;
}

TEST(SseTest, EventsComeWhereverTheStreamIsCut) {
  const std::string stream =
      "\xEF\xBB\xBF: a comment\n\ndata: one\n\ndata:two\r\n\r\nevent: named\rdata: 3\r\rdata: a\ndata:  b\n\n"
      "data\n\nid: 5\nretry: 1\n\n:keep-alive\n\ndata: {\"x\": 1}";
  for (size_t cut = 1; cut <= stream.size(); ++cut) {
    ASSERT_THAT(Events(stream, cut), ElementsAre("one", "two", "named:3", "a\n b", "{\"x\": 1}")) << cut;
  }
}

TEST(SseTest, AnEndlessEventIsRefused) {
  SseParser parser(100);
  Status status;
  for (int i = 0; i < 200 && status.ok(); ++i) {
    status = parser.Feed("data: x\n", [](std::string_view, std::string_view) { FAIL(); });
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(HttpClientTest, KeepsItsConnectionAndSendsWhatIsAsked) {
  std::string seen;
  HttpPeer peer([&](HttpPeer::Call& call) {
    seen = call.method + " " + call.target + " " + call.body + " " + call.authorization + " " + call.host;
    call.Respond(call.number == 1 ? 404 : 200, fmt::format("{}.{}", call.connection, call.number),
                 "Retry-After: 7\r\n");
  });
  auto client = ClientOf(peer.url(), {.bearer = "secret"});
  for (int i = 0; i < 3; ++i) {
    const auto r = client->Fetch({.method = "POST", .target = "/a?b", .body = "{}"}, Never);
    ASSERT_TRUE(r.ok()) << r.status();
    EXPECT_EQ(r->code, i == 1 ? 404 : 200);
    EXPECT_EQ(r->body, fmt::format("0.{}", i));
    EXPECT_EQ(r->retry_after, "7");
    EXPECT_EQ(seen, fmt::format("POST /a?b {{}} Bearer secret 127.0.0.1:{}", peer.port()));
  }
  EXPECT_EQ(peer.connections(), 1);
}

TEST(HttpClientTest, AStreamArrivesWhileItIsWritten) {
  std::atomic<int> arrived{0};
  HttpPeer peer([&](HttpPeer::Call& call) {
    call.BeginStream();
    for (int i = 0; i < 3; ++i) {
      // The next piece is written only when the one before has arrived.
      const auto end = std::chrono::steady_clock::now() + seconds(30);
      while (arrived < i && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
      call.Chunk(std::string(1, static_cast<char>('a' + i)));
    }
    call.EndStream();
  });
  auto client = ClientOf(peer.url());
  std::string text;
  for (int round = 0; round < 2; ++round) {
    text.clear();
    arrived = 0;
    const auto r = client->FetchStream(
        {.target = "/"}, [&](std::string_view bytes) { text += bytes, ++arrived; }, Never);
    ASSERT_TRUE(r.ok()) << r.status();
    EXPECT_EQ(text, "abc");
  }
  EXPECT_EQ(peer.connections(), 1) << "a stream that ended well leaves its connection";
}

TEST(HttpClientTest, AnErrorInPlaceOfAStreamIsKept) {
  HttpPeer peer([&](HttpPeer::Call& call) { call.Respond(429, "{\"error\":1}"); });
  const auto r = ClientOf(peer.url())
                     ->FetchStream(
                         {.target = "/"}, [](std::string_view) { FAIL(); }, Never);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->body, "{\"error\":1}");
}

TEST(HttpClientTest, AKeptConnectionThatTheServerClosedIsReplaced) {
  HttpPeer peer([&](HttpPeer::Call& call) {
    if (call.number > 0) {  // it came before the client could see the end
      call.close = true;
      return;
    }
    call.Respond(200, "x");
    call.close = call.connection == 0;
  });
  auto client = ClientOf(peer.url());
  for (int i = 0; i < 4; ++i) {
    const auto r = client->Fetch({.method = "POST", .target = "/", .body = "{}"}, Never);
    ASSERT_TRUE(r.ok()) << i << ": " << r.status();
  }
}

TEST(HttpClientTest, BrokenAnswersAreErrorsThatSayWhat) {
  const struct {
    std::string bytes;
    absl::StatusCode code;
    std::string says;
  } kCases[] = {
      {"", absl::StatusCode::kUnavailable, "closed the connection without an answer"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", absl::StatusCode::kUnavailable,
       "in the middle of its answer"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", absl::StatusCode::kUnavailable,
       "in the middle of its answer"},
      {"SSH-2.0-OpenSSH_9.2\r\n\r\n", absl::StatusCode::kDataLoss, "not HTTP"},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(70000, 'x') + "\r\n\r\n", absl::StatusCode::kResourceExhausted,
       "too long"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", absl::StatusCode::kResourceExhausted, "too long"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + std::string(0x800, 'x') + "\r\n",
       absl::StatusCode::kResourceExhausted, "too long"},
  };
  for (const auto& c : kCases) {
    HttpPeer peer([&](HttpPeer::Call& call) {
      call.Write(c.bytes);
      call.close = true;
    });
    const auto r = ClientOf(peer.url(), {.max_body_bytes = 1000})->Fetch({.target = "/"}, Never);
    EXPECT_EQ(r.status().code(), c.code) << c.bytes.substr(0, 60) << " " << r.status();
    EXPECT_THAT(Message(r.status()), HasSubstr(c.says));
    EXPECT_THAT(Message(r.status()), HasSubstr(peer.url()));
  }
}

TEST(HttpClientTest, ABodyUpToTheEndOfItsConnection) {
  HttpPeer peer([&](HttpPeer::Call& call) {
    call.Write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nall of it");
    call.close = true;
  });
  const auto r = ClientOf(peer.url())->Fetch({.target = "/"}, Never);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->body, "all of it");
}

TEST(HttpClientTest, AServerThatSaysNothingRunsIntoTheTimeLimit) {
  HttpPeer peer([&](HttpPeer::Call& call) {
    while (!call.Gone()) std::this_thread::sleep_for(milliseconds(5));
    call.close = true;
  });
  auto client = ClientOf(peer.url(), {.idle_timeout = milliseconds(200)});
  const auto r = client->Fetch({.target = "/"}, Never);
  EXPECT_EQ(r.status().code(), absl::StatusCode::kDeadlineExceeded) << r.status();
}

TEST(HttpClientTest, NobodyListens) {
  uint16_t port = 0;
  {
    HttpPeer peer([](HttpPeer::Call&) {});
    port = peer.port();
  }
  const auto r = ClientOf(fmt::format("http://127.0.0.1:{}", port))->Fetch({.target = "/"}, Never);
  EXPECT_EQ(r.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(r.status()), HasSubstr("Connection refused"));
}

TEST(HttpClientTest, CancelClosesTheConnection) {
  std::atomic<bool> gone{false}, began{false};
  HttpPeer peer([&](HttpPeer::Call& call) {
    call.BeginStream();
    call.Event("x");
    const auto end = std::chrono::steady_clock::now() + seconds(30);
    while (!call.Gone() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(2));
    gone = call.Gone();
    call.close = true;
  });
  auto client = ClientOf(peer.url());
  const auto r = client->FetchStream(
      {.target = "/"}, [&](std::string_view) { began = true; }, [&] { return began.load(); });
  EXPECT_EQ(r.status().code(), absl::StatusCode::kCancelled);
  for (int i = 0; i < 2000 && !gone; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(gone);
  for (int i = 0; i < 100 && client->open_connections() > 0; ++i) client->RunOne(After(milliseconds(5)));
  EXPECT_EQ(client->open_connections(), 0u);
}

TEST(HttpClientTest, HundredsOfRequestsAtOnceOnOneThread) {
  std::atomic<int> waiting{0};
  constexpr int kRequests = 200;
  HttpPeer peer([&](HttpPeer::Call& call) {
    // Nobody is answered before all are there.
    ++waiting;
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    while (waiting < kRequests && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
    call.Respond(200, call.body);
  });
  auto client = ClientOf(peer.url());
  int done = 0, right = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string body = fmt::format("[{}]", i);
    auto text = std::make_shared<std::string>();
    client->Start(
        {.method = "POST", .target = "/", .body = body},
        {.on_data = [text](std::string_view bytes) { *text += bytes; },
         .on_done = [&, text, body](const Status& status) { ++done, right += status.ok() && *text == body; }});
  }
  const Deadline end = After(seconds(60));
  while (done < kRequests && Clock::now() < end) client->RunOne(end);
  EXPECT_EQ(right, kRequests);
  EXPECT_EQ(peer.connections(), kRequests);
}

TEST(HttpClientTest, PoolsKeepTheirConnections) {
  std::atomic<bool> closes{false};
  HttpPeer peer([&](HttpPeer::Call& call) {
    call.close = closes;  // before the response, which the test may have before this function returns
    call.Respond(200, std::to_string(call.connection));
  });
  auto client = ClientOf(peer.url());
  auto all = [&](int pool, int count) {
    int done = 0, right = 0;
    for (int i = 0; i < count; ++i) {
      client->Start({.target = "/", .pool = pool},
                    {.on_done = [&](const Status& s) { ++done, right += s.ok() ? 1 : 0; }});
    }
    const Deadline end = After(seconds(30));
    while (done < count && Clock::now() < end) client->RunOne(end);
    EXPECT_EQ(right, count);
  };
  all(1, 20);
  EXPECT_EQ(client->open_connections(), 20u) << "each request that is started at once has its own";
  all(0, 1);
  EXPECT_EQ(client->open_connections(), 21u) << "none of the other pool was taken";
  closes = true;
  all(1, 20);
  EXPECT_EQ(peer.connections(), 21);
  for (int i = 0; i < 2000 && client->open_connections() > 1; ++i) {
    client->DropClosed(1);
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_EQ(client->open_connections(), 1u);
}

TEST(HttpClientTest, TimersCome) {
  auto client = ClientOf("http://127.0.0.1:1");
  bool late = false;
  client->At(After(milliseconds(30)), [&] { late = true; });
  const Deadline end = After(seconds(30));
  while (!late && Clock::now() < end) client->RunOne(end);
  EXPECT_TRUE(late);
}

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    char path[] = "/tmp/gyre-ca-XXXXXX";
    close(mkstemp(path));
    ca_ = path;
    Trust(certificate_.certificate);
  }
  ~TlsTest() override { unlink(ca_.c_str()); }
  // Writes the file of trusted certificates.
  void Trust(const std::string& text) const {
    std::FILE* out = std::fopen(ca_.c_str(), "w");
    std::fputs(text.c_str(), out);
    std::fclose(out);
  }
  const testing::Certificate certificate_ = testing::MakeCertificate();
  HttpPeer peer_{[](HttpPeer::Call& call) { call.Respond(200, "safe"); }, &certificate_};
  std::string ca_;
};

TEST_F(TlsTest, ATrustedCertificateServes) {
  for (const std::string& host : {std::string("127.0.0.1"), std::string("localhost")}) {
    auto client = ClientOf(fmt::format("https://{}:{}", host, peer_.port()), {.ca_file = ca_});
    for (int i = 0; i < 2; ++i) {
      const auto r = client->Fetch({.target = "/"}, Never);
      ASSERT_TRUE(r.ok()) << r.status();
      EXPECT_EQ(r->body, "safe");
    }
  }
}

TEST_F(TlsTest, AUnauthenticatedPeersCertificateDoesNot) {
  const auto r = ClientOf(peer_.url())->Fetch({.target = "/"}, Never);
  EXPECT_EQ(r.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(r.status()), HasSubstr("--ca FILE"));
  const auto url = ParseUrl(peer_.url());
  EXPECT_THAT(Message(HttpClient::Make(*url, {.ca_file = "/nonexistent"}).status()), HasSubstr("/nonexistent"));
}

TEST_F(TlsTest, ACertificateForAnotherNameDoesNot) {
  const testing::Certificate other = testing::MakeCertificate("DNS:other.example");
  HttpPeer peer([](HttpPeer::Call& call) { call.Respond(200, "?"); }, &other);
  Trust(other.certificate);
  const auto r = ClientOf(peer.url(), {.ca_file = ca_})->Fetch({.target = "/"}, Never);
  EXPECT_EQ(r.status().code(), absl::StatusCode::kUnavailable) << r.status();
  EXPECT_THAT(Message(r.status()), HasSubstr("certificate"));
}

// Each pool has a connection of its own, so the first request of a pool needs a new one.
TEST_F(TlsTest, NewConnectionsTrustWhatTheFileHoldsThen) {
  auto client = ClientOf(peer_.url(), {.ca_file = ca_});
  EXPECT_TRUE(client->Fetch({.target = "/", .pool = 0}, Never).ok());
  Trust(certificate_.certificate.substr(0, 200));  // half of it is written
  EXPECT_TRUE(client->Fetch({.target = "/", .pool = 1}, Never).ok());
  unlink(ca_.c_str());
  EXPECT_TRUE(client->Fetch({.target = "/", .pool = 2}, Never).ok());
  Trust(testing::MakeCertificate().certificate);
  const auto refused = client->Fetch({.target = "/", .pool = 3}, Never);
  EXPECT_THAT(Message(refused.status()), HasSubstr("certificate verify failed"));
  EXPECT_TRUE(client->Fetch({.target = "/", .pool = 0}, Never).ok()) << "an open connection goes on";
  Trust(certificate_.certificate);
  EXPECT_TRUE(client->Fetch({.target = "/", .pool = 3}, Never).ok());
}

}  // namespace
}  // namespace gyre
