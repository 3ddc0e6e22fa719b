// The server over loopback: connections that stay, streams, wakers, clients that leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/http/response_head.h"
#include "tests/testing/http_server_rig.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::HttpClient;
using testing::Soon;

class HttpServerTest : public testing::HttpServerTest {};

TEST(ResponseHeadTest, EachStatusHasAReasonThatServersGive) {
  auto first_line = [](int status) {
    http::HttpResponse response;
    response.status = status;
    const std::string head = http::FormatResponseHead(response, {});
    return head.substr(0, head.find("\r\n"));
  };
  EXPECT_EQ(first_line(200), "HTTP/1.1 200 OK");
  EXPECT_EQ(first_line(503), "HTTP/1.1 503 Service Unavailable");
  EXPECT_EQ(first_line(529), "HTTP/1.1 529 Overloaded");
  EXPECT_EQ(first_line(550), "HTTP/1.1 550 ");
}

TEST_F(HttpServerTest, OneConnectionAnswersManyRequests) {
  Serve();
  HttpClient client(server_->address());
  std::string last;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Request("POST", "/echo?a=1&b=%41+c", "Content-Type: application/json; charset=utf-8\r\n", "hi"));
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST /echo a=1 b=A c  [hi]");
    EXPECT_NE(answer.Header("x-request-id"), last);
    EXPECT_EQ(answer.Header("connection"), "");
    last = answer.Header("x-request-id");
  }
  EXPECT_EQ(server_->stats().connections, 1u);
  ASSERT_TRUE(client.Request("GET", "/echo", "Connection: close\r\n"));
  EXPECT_EQ(client.Answer().Header("connection"), "close");
  EXPECT_TRUE(client.Ended());
  client.Close();
  ASSERT_TRUE(Soon([&] { return records().size() == 4 && server_->stats().connections == 0; }));
  EXPECT_EQ(records()[0].status, 200);
  EXPECT_EQ(records()[0].path, "/echo");
  EXPECT_FALSE(records()[0].gone);
}

TEST_F(HttpServerTest, RequestsThatComeTogetherAreAnsweredInOrder) {
  Serve();
  HttpClient client(server_->address());
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
    text += "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n";
  }
  ASSERT_TRUE(client.Send(text));
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(client.Answer().body, HasSubstr("[" + std::to_string(10 + i) + "]"));
    EXPECT_EQ(client.Answer().body, "first;aaaabbbbcccc");
  }
}

TEST_F(HttpServerTest, ARequestMayComeByteByByte) {
  Serve();
  HttpClient client(server_->address());
  const std::string text =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;name=value\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
  for (const char c : text) {
    ASSERT_TRUE(client.Send(std::string(1, c)));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(client.Answer().body, HasSubstr("[abc0123456789]"));
  ASSERT_TRUE(client.Request("GET", "/echo"));
  EXPECT_EQ(client.Answer().status, 200);
}

TEST_F(HttpServerTest, StreamsComeInChunksAndToOldClientsUntilTheEnd) {
  Serve();
  HttpClient client(server_->address());
  client.Request("GET", "/stream?n=30&size=1000");
  HttpAnswer answer = client.Answer();
  EXPECT_EQ(answer.Header("transfer-encoding"), "chunked");
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body.size(), 30006u);
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  answer = client.Answer();
  EXPECT_EQ(answer.Header("transfer-encoding"), "");
  EXPECT_EQ(answer.body, "first;aaaabbbbcccc");
  HttpClient old(server_->address());
  old.Send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Answer().Header("connection"), "keep-alive");
  EXPECT_EQ(old.Answer().Header("connection"), "close");
  EXPECT_TRUE(old.Ended());
}

TEST_F(HttpServerTest, HeadHasTheHeadersOfGetAndNoBody) {
  Serve();
  HttpClient client(server_->address());
  client.Request("HEAD", "/echo");
  EXPECT_EQ(client.Answer(true).Header("content-length"), std::to_string(std::string("HEAD /echo  []").size()));
  client.Request("HEAD", "/stream");
  EXPECT_EQ(client.Answer(true).Header("transfer-encoding"), "chunked");
  client.Request("GET", "/echo");
  EXPECT_EQ(client.Answer().body, "GET /echo  []");
  EXPECT_EQ(written_, 0);
}

TEST_F(HttpServerTest, AClientThatExpectsAWordBeforeTheBodyGetsIt) {
  options_.limits.body_bytes = 100;
  Serve();
  HttpClient client(server_->address());
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: ";
  client.Send(head + "5\r\n\r\n");
  EXPECT_EQ(client.Answer().status, 100);
  client.Send("hello");
  EXPECT_THAT(client.Answer().body, HasSubstr("[hello]"));
  client.Send(head + "101\r\n\r\n");
  EXPECT_EQ(client.Answer().status, 413) << "before the body";
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTest, UnknownPathsMethodsAndTypes) {
  Serve();
  EXPECT_EQ(Get("/nowhere").status, 404);
  HttpClient client(server_->address());
  client.Request("DELETE", "/echo");
  HttpAnswer answer = client.Answer();
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.Header("allow"), "GET, HEAD, POST");
  client.Request("BREW", "/echo");
  EXPECT_EQ(client.Answer().status, 501);
  client.Request("POST", "/echo", "Content-Type: text/plain\r\n", "x");
  answer = client.Answer();
  EXPECT_EQ(answer.status, 415);
  EXPECT_THAT(answer.body, HasSubstr("-H 'Content-Type: application/json'")) << "what a user of curl forgot";
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTest, ARouteThatThrowsOrForgetsToAnswerIs500) {
  Serve();
  HttpClient client(server_->address());
  for (const char* path : {"/throw", "/silent"}) {
    client.Request("GET", path);
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, 500);
    EXPECT_THAT(answer.body, ::testing::Not(HasSubstr("fault")));
  }
  client.Request("GET", "/throw?late=1");
  const HttpAnswer cut = client.Answer();
  EXPECT_EQ(cut.body, "begun");
  EXPECT_FALSE(cut.whole) << "a cut answer must not look like a whole one";
  EXPECT_EQ(Get("/timeout").body, "timeout");
}

TEST_F(HttpServerTest, WakersWakeFromAnyThreadAndOutliveTheServer) {
  Serve();
  HttpClient client(server_->address());
  client.Request("GET", "/wait?n=200");
  ASSERT_TRUE(Soon([&] { return waiting_ == 1; }));
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) Wake();
    });
  }
  const HttpAnswer answer = client.Answer();
  EXPECT_EQ(answer.body, std::string(200, 'x'));
  server_->Stop();
  server_ = nullptr;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Wake(), 1u);
}

TEST_F(HttpServerTest, ARouteLearnsThatItsClientHasGone) {
  Serve();
  for (const bool reset : {false, true}) {
    const int before = gone_;
    HttpClient client(server_->address());
    client.Request("GET", "/wait");
    ASSERT_TRUE(Soon([&] { return waiting_ == before + 1; }));
    if (reset) {
      client.Reset();
    } else {
      client.Close();
    }
    EXPECT_TRUE(Soon([&] { return gone_ == before + 1; }));
    EXPECT_TRUE(Soon([&] { return server_->stats().active == 0; }));
  }
  EXPECT_TRUE(records()[0].gone);
}

TEST_F(HttpServerTest, AClientThatClosesItsHalfGetsAnswersThatAreThere) {
  Serve();
  HttpClient client(server_->address());
  client.Request("GET", "/echo");
  client.Request("GET", "/echo?2=");
  client.CloseHalf();
  EXPECT_EQ(client.Answer().status, 200);
  EXPECT_EQ(client.Answer().status, 200);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTest, TheNextRequestIsKeptWhileOneIsAnswered) {
  Serve();
  HttpClient client(server_->address());
  client.Request("GET", "/wait");
  ASSERT_TRUE(Soon([&] { return waiting_ == 1; }));
  client.Request("GET", "/echo");
  std::this_thread::sleep_for(milliseconds(30));
  Wake();
  EXPECT_EQ(client.Answer().body, "x");
  EXPECT_EQ(client.Answer().body, "GET /echo  []");
}

TEST_F(HttpServerTest, DrainingAnswersWhatRunsAndNothingElse) {
  Serve();
  HttpClient running(server_->address()), idle(server_->address());
  running.Request("GET", "/wait");
  idle.Request("GET", "/echo");
  EXPECT_EQ(idle.Answer().status, 200);
  ASSERT_TRUE(Soon([&] { return waiting_ == 1; }));
  server_->Drain();
  EXPECT_TRUE(Soon([&] { return !ConnectTcp(server_->address(), After(milliseconds(100))).ok(); }));
  idle.Request("GET", "/open");
  EXPECT_EQ(idle.Answer().status, 200);
  Wake();
  EXPECT_EQ(running.Answer().body, "x");
  running.Request("GET", "/echo");
  EXPECT_EQ(running.Answer().status, 503);
}

TEST_F(HttpServerTest, StopEndsWhatRuns) {
  Serve();
  HttpClient running(server_->address()), idle(server_->address());
  running.Request("GET", "/wait");
  ASSERT_TRUE(Soon([&] { return waiting_ == 1; }));
  server_->Stop();
  EXPECT_EQ(gone_, 1);
  EXPECT_TRUE(idle.Ended());
}

TEST(HttpServerAddressTest, APortInUseAndNoAddressAreRefused) {
  auto first = http::HttpServer::Open({.address = "127.0.0.1:0"}, {});
  ASSERT_TRUE(first.ok());
  const auto second = http::HttpServer::Open({.address = (*first)->address()}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(second.status()), HasSubstr("another program has the port"));
  EXPECT_EQ(http::HttpServer::Open({.address = "nowhere"}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gyre
