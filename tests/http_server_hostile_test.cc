// Hostile clients: requests that are wrong or that two servers could read in two ways, and clients that are slow,
// many, or leave early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <random>

#include "coordinator/http/request_parser.h"
#include "tests/testing/http_server_rig.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::HttpClient;
using testing::Soon;

class HttpHostileTest : public testing::HttpServerTest {};

std::string Head(const std::string& headers, const std::string& line = "POST /echo HTTP/1.1") {
  return line + "\r\nHost: localhost\r\n" + headers + "\r\n";
}

struct Wrong {
  std::string what, bytes;
  int status;
};

std::vector<Wrong> WrongRequests() {
  using std::string_literals::operator""s;
  const std::string deep = "GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::string many;
  for (int i = 0; i < 200; ++i) many += "x" + std::to_string(i) + ": y\r\n";
  return {
      // Where does the body end?
      {"both lengths", Head("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
      {"both lengths, turned", Head("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n") + "0\r\n\r\n", 400},
      {"two lengths", Head("Content-Length: 4\r\nContent-Length: 5\r\n") + "abcd", 400},
      {"the same length twice", Head("Content-Length: 4\r\nContent-Length: 4\r\n") + "abcd", 400},
      {"a list of lengths", Head("Content-Length: 4, 4\r\n") + "abcd", 400},
      {"a length with a sign", Head("Content-Length: +4\r\n") + "abcd", 400},
      {"a negative length", Head("Content-Length: -4\r\n") + "abcd", 400},
      {"a length in hexadecimal", Head("Content-Length: 0x4\r\n") + "abcd", 400},
      {"an empty length", Head("Content-Length:\r\n"), 400},
      {"a length of many digits", Head("Content-Length: 99999999999999999999\r\n"), 400},
      {"two codings", Head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
      {"another coding", Head("Transfer-Encoding: gzip\r\n"), 501},
      {"another coding before", Head("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n", 501},
      {"chunked twice in one", Head("Transfer-Encoding: chunked, chunked\r\n") + "0\r\n\r\n", 501},
      {"a coding with a strange character", Head("Transfer-Encoding: \vchunked\r\n") + "0\r\n\r\n", 400},
      {"a coding in HTTP/1.0", Head("Transfer-Encoding: chunked\r\n", "POST /echo HTTP/1.0") + "0\r\n\r\n", 400},
      {"a chunk without a size", Head("Transfer-Encoding: chunked\r\n") + "\r\nabc\r\n0\r\n\r\n", 400},
      {"a chunk size with a prefix", Head("Transfer-Encoding: chunked\r\n") + "0x3\r\nabc\r\n0\r\n\r\n", 400},
      {"a negative chunk size", Head("Transfer-Encoding: chunked\r\n") + "-3\r\nabc\r\n0\r\n\r\n", 400},
      {"a chunk size with a space", Head("Transfer-Encoding: chunked\r\n") + " 3\r\nabc\r\n0\r\n\r\n", 400},
      {"a huge chunk size", Head("Transfer-Encoding: chunked\r\n") + "fffffffffffffffff\r\nabc", 400},
      {"a chunk size beyond the limit", Head("Transfer-Encoding: chunked\r\n") + "ffffffff\r\nabc", 413},
      {"a chunk longer than its size", Head("Transfer-Encoding: chunked\r\n") + "3\r\nabcd\r\n0\r\n\r\n", 400},
      {"a chunk size and a line feed", Head("Transfer-Encoding: chunked\r\n") + "3\nabc\r\n0\r\n\r\n", 400},
      {"a chunk's name with a line feed", Head("Transfer-Encoding: chunked\r\n") + "3;a\nb\r\nabc\r\n0\r\n\r\n", 400},
      {"a chunk size without an end", Head("Transfer-Encoding: chunked\r\n") + "3;" + std::string(9000, 'a'), 400},
      {"a chunk size of many zeros", Head("Transfer-Encoding: chunked\r\n") + std::string(30000, '0'), 400},
      {"a trailer that is too long",
       Head("Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n0\r\nx: " + std::string(20000, 'y') + "\r\n\r\n", 431},
      {"a trailer without an end",
       Head("Transfer-Encoding: chunked\r\n") + "0\r\nx: y\r\n" +
           [] {
             std::string lines;
             for (int i = 0; i < 3000; ++i) lines += "a: b\r\n";
             return lines;
           }(),
       431},
      {"chunks with long names",
       Head("Transfer-Encoding: chunked\r\n") +
           [] {
             std::string chunks;
             for (int i = 0; i < 200; ++i) chunks += "1;" + std::string(900, 'a') + "\r\nx\r\n";
             return chunks;
           }(),
       400},
      // Lines.
      {"a line feed alone", "GET /echo HTTP/1.1\nHost: localhost\n\n", 400},
      {"a line feed alone between headers", "GET /echo HTTP/1.1\r\nHost: localhost\nx: y\r\n\r\n", 400},
      {"a carriage return alone", "GET /echo HTTP/1.1\r\nHost: localhost\rx: y\r\n\r\n", 400},
      {"a header that goes on", Head("x: a\r\n b\r\n"), 400},
      {"a first header that goes on", "GET /echo HTTP/1.1\r\n Host: localhost\r\n\r\n", 400},
      {"space before the colon", Head("Content-Length : 4\r\n") + "abcd", 400},
      {"a tab before the colon", Head("Transfer-Encoding\t: chunked\r\n"), 400},
      {"no colon", Head("nonsense\r\n"), 400},
      {"no name", Head(": value\r\n"), 400},
      {"a name with a bracket", Head("a[b]: c\r\n"), 400},
      {"a zero byte in a value", Head("x: a\0b\r\n"s), 400},
      {"a zero byte in a name", Head("x\0: b\r\n"s), 400},
      {"a bell in a value", Head("x: \a\r\n"), 400},
      // The request line.
      {"no version", "GET /echo\r\nHost: localhost\r\n\r\n", 400},
      {"another version", "GET /echo HTTP/1.2\r\nHost: localhost\r\n\r\n", 505},
      {"HTTP/2 in words", "GET /echo HTTP/2.0\r\nHost: localhost\r\n\r\n", 505},
      {"HTTP/2's preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"a lower version name", "GET /echo http/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"two spaces", "GET  /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a space in the target", "GET /ec ho HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a tab", "GET\t/echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a letter that is not ASCII", "GET /\xC3\xA9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a zero byte in the target", "GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n"s, 400},
      {"no slash", "GET echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a fragment", "GET /echo#x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a cut escape", "GET /echo%4 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a wrong escape", "GET /echo%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"an escaped zero byte", "GET /echo%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a wrong escape in the query", "GET /echo?a=%g0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a star", "GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"another host in the target", "GET http://other/echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"a tunnel", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", 400},
      {"an unknown method", "BREW /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 501},
      {"a method with a bracket", "G(T /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      // For whom it is.
      {"no host", "GET /echo HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET /echo HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"an empty host", "GET /echo HTTP/1.1\r\nHost:\r\n\r\n", 400},
      {"a host with a path", "GET /echo HTTP/1.1\r\nHost: localhost/x\r\n\r\n", 400},
      {"a host with a user", "GET /echo HTTP/1.1\r\nHost: a@localhost\r\n\r\n", 400},
      {"a port that is none", "GET /echo HTTP/1.1\r\nHost: localhost:99999\r\n\r\n", 400},
      // Too much.
      {"a long target", deep, 431},
      {"a long header", Head("x: " + std::string(20000, 'y') + "\r\n"), 431},
      {"a header without an end", "GET /echo HTTP/1.1\r\nx: " + std::string(30000, 'y'), 431},
      {"many headers", Head(many), 431},
      {"a body that is too large", Head("Content-Length: 9000000\r\n"), 413},
      {"another expectation", Head("Expect: a miracle\r\nContent-Length: 1\r\n") + "x", 417},
      // Other protocols.
      {"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400},
      {"bytes", "\x80\x81\x82\x83", 400},
      {"a space", " GET /echo HTTP/1.1\r\n\r\n", 400},
  };
}

TEST_F(HttpHostileTest, WrongRequestsAreRefusedAndTheConnectionEnds) {
  options_.limits.linger_time = milliseconds(50);
  Serve();
  for (const Wrong& wrong : WrongRequests()) {
    SCOPED_TRACE(wrong.what);
    HttpClient client(server_->address());
    // The bytes after it must not be taken for a request, unless the end of the wrong one is certain.
    client.Send(wrong.bytes + "GET /echo?smuggled=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, wrong.status) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("\"message\""));
    if (answer.Header("connection") == "close") {
      EXPECT_TRUE(client.Ended());
      EXPECT_THAT(client.input(), ::testing::Not(HasSubstr("smuggled")));
    }
  }
  EXPECT_EQ(Get("/echo").status, 200);
  for (const auto& record : records()) EXPECT_NE(record.status, 500);
}

// With and without the end of the connection: a request that has no body is over at its empty line.
TEST_F(HttpHostileTest, OnlyRequestsWithAClearEndKeepTheConnection) {
  Serve();
  HttpClient client(server_->address());
  client.Request("GET", "/nowhere");
  EXPECT_EQ(client.Answer().status, 404);
  client.Request("GET", "/echo", "Host: other\r\n");
  EXPECT_EQ(client.Answer().status, 400);
  EXPECT_TRUE(client.Ended());
}

// If a request is refused before its body is read, the bytes of the body still come: they are no request.
TEST_F(HttpHostileTest, ABodyThatIsNotReadIsNoRequest) {
  Serve();
  const std::string inner = "GET /echo?smuggled=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string length = "Content-Length: " + std::to_string(inner.size()) + "\r\n";
  const std::vector<std::pair<int, std::string>> refused{
      {404, Head(length, "POST /nowhere HTTP/1.1")},
      {405, Head(length, "DELETE /echo HTTP/1.1")},
      {415, Head(length + "Content-Type: text/plain\r\n")},
      {403, Head(length + "Origin: http://evil.example\r\n")},
      {417, Head(length + "Expect: more\r\n")},
      {404, Head("Transfer-Encoding: chunked\r\n", "POST /nowhere HTTP/1.1")},
  };
  for (const auto& [status, head] : refused) {
    HttpClient client(server_->address());
    client.Send(head + inner + inner);
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.Header("connection"), "close") << status;
    EXPECT_TRUE(client.Ended());
    EXPECT_EQ(client.input(), "") << status;
  }
}

TEST_F(HttpHostileTest, AnyCutOfARequestIsHarmless) {
  Serve();
  const std::string whole = Head("Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n0\r\n\r\n";
  for (size_t n = 0; n < whole.size(); ++n) {
    HttpClient client(server_->address());
    client.Send(whole.substr(0, n));
    if (n % 2 == 0) client.CloseHalf();
    if (n % 3 == 0) client.Reset();
  }
  EXPECT_TRUE(Soon([&] { return server_->stats().active == 0 && server_->stats().connections == 0; }));
  EXPECT_EQ(Get("/echo").status, 200);
}

TEST_F(HttpHostileTest, RandomChangesOfRequestsAreHarmless) {
  options_.limits.linger_time = milliseconds(5);
  Serve();
  std::mt19937 random(1);
  const std::vector<Wrong> seeds = WrongRequests();
  for (int i = 0; i < (testing::kSanitized ? 300 : 1500); ++i) {
    std::string bytes = seeds[random() % seeds.size()].bytes.substr(0, 2000);
    for (uint32_t n = random() % 4; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 4 == 0 ? random() : "\r\n :0;a"[random() % 7]);
    }
    HttpClient client(server_->address());
    client.Send(bytes);
    if (random() % 2 == 0) client.Receive(milliseconds(random() % 3));
  }
  EXPECT_EQ(Get("/echo").status, 200);
}

TEST_F(HttpHostileTest, SlowClientsAreGivenUp) {
  options_.limits.head_time = milliseconds(300);
  options_.limits.body_time = milliseconds(300);
  options_.limits.idle_time = milliseconds(300);
  options_.limits.linger_time = milliseconds(100);
  Serve();
  HttpClient silent(server_->address()), head(server_->address()), body(server_->address()), idle(server_->address());
  head.Send("GET /echo HTTP/1.1\r\n");
  body.Send(Head("Content-Length: 10\r\n") + "abc");
  idle.Request("GET", "/echo");
  EXPECT_EQ(idle.Answer().status, 200);
  // A byte from time to time changes nothing.
  const Deadline end = After(seconds(20));
  while (Clock::now() < end && head.Send("x") && body.Send("") && server_->stats().connections > 0) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(head.Answer().status, 408);
  EXPECT_EQ(body.Answer().status, 408);
  EXPECT_TRUE(silent.Ended());
  EXPECT_EQ(silent.input(), "");
  EXPECT_TRUE(idle.Ended());
  EXPECT_EQ(idle.input(), "");
  EXPECT_TRUE(Soon([&] { return server_->stats().connections == 0; }));
}

TEST_F(HttpHostileTest, AClientThatTakesNothingIsGivenUp) {
  options_.limits.write_time = milliseconds(300);
  Serve();
  HttpClient client(server_->address());
  client.Request("GET", "/stream?n=100000&size=10000");
  EXPECT_TRUE(Soon([&] { return gone_ == 1; }));
  EXPECT_GT(written_, 0);
  EXPECT_LT(written_, 100000) << "the route was not slowed down";
  EXPECT_TRUE(Soon([&] { return server_->stats().connections == 0; }));
}

TEST_F(HttpHostileTest, AClientThatNeitherReadsNorStopsAskingIsBounded) {
  options_.limits.write_time = milliseconds(500);
  Serve();
  HttpClient client(server_->address());
  std::string asks;
  for (int i = 0; i < 20000; ++i) asks += "GET /stream?size=3000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
  client.Send(asks);
  EXPECT_TRUE(Soon([&] { return server_->stats().requests > 0 && server_->stats().connections == 0; }));
  EXPECT_LT(server_->stats().requests, 20000u);
}

TEST_F(HttpHostileTest, FullServersEndIdleConnectionsFirst) {
  options_.limits.connections = 4;
  Serve();
  HttpClient oldest(server_->address()), newer(server_->address());
  for (HttpClient* client : {&oldest, &newer}) {
    client->Request("GET", "/echo");
    EXPECT_EQ(client->Answer().status, 200);
  }
  HttpClient first(server_->address()), second(server_->address());
  for (HttpClient* client : {&first, &second}) client->Request("GET", "/wait");
  ASSERT_TRUE(Soon([&] { return waiting_ == 2; }));
  HttpClient third(server_->address());
  third.Request("GET", "/wait");
  EXPECT_TRUE(oldest.Ended());
  ASSERT_TRUE(Soon([&] { return waiting_ == 3; }));
  HttpClient fourth(server_->address());
  fourth.Request("GET", "/wait");
  EXPECT_TRUE(newer.Ended());
  ASSERT_TRUE(Soon([&] { return waiting_ == 4; }));
  HttpClient refused(server_->address());
  refused.Request("GET", "/echo");
  ASSERT_TRUE(Soon([&] { return server_->stats().refused == 1; }));
  const HttpAnswer answer = refused.Answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body,
            R"({"error":{"message":"too many connections","type":"server_error","param":null,"code":null}})");
  EXPECT_EQ(server_->stats().refused, 1u);
  Wake();
  for (HttpClient* client : {&first, &second, &third, &fourth}) EXPECT_EQ(client->Answer().body, "x");
}

// A shell lets its programs open few files unless they ask for more.
TEST_F(HttpHostileTest, TheLimitOfOpenFilesIsRaisedForItsConnections) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 2000) GTEST_SKIP() << "this process may open few files";
  rlimit few = before;
  few.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  options_.limits.connections = 1000;
  Serve();
  rlimit after{};
  getrlimit(RLIMIT_NOFILE, &after);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_GE(after.rlim_cur, 1333u);
}

TEST_F(HttpHostileTest, BodiesOfAllRequestsTogetherAreBounded) {
  options_.limits.all_bodies_bytes = 100000;
  Serve();
  HttpClient one(server_->address()), other(server_->address());
  one.Send(Head("Content-Length: 90000\r\n") + std::string(80000, 'a'));
  ASSERT_TRUE(Soon([&] { return server_->stats().active == 1; }));
  std::this_thread::sleep_for(milliseconds(100));
  other.Send(Head("Content-Length: 50000\r\n") + std::string(50000, 'b'));
  EXPECT_EQ(other.Answer().status, 503);
  one.Send(std::string(10000, 'a'));
  EXPECT_EQ(one.Answer().status, 200);
  HttpClient again(server_->address());
  again.Send(Head("Content-Length: 90000\r\n") + std::string(90000, 'a'));
  EXPECT_EQ(again.Answer().status, 200) << "the count must come back";
}

size_t ResidentKib() {
  std::ifstream in("/proc/self/statm");
  size_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

TEST_F(HttpHostileTest, IdleAndActiveConnectionsDoNotGrow) {
  const size_t idle = testing::kSanitized ? 100 : 1000;
  options_.limits.connections = 2000;
  Serve();
  std::vector<std::unique_ptr<HttpClient>> clients, active;
  for (size_t i = 0; i < idle; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->address()));
    clients.back()->Request("GET", "/echo");
    ASSERT_EQ(clients.back()->Answer().status, 200) << i;
  }
  for (int i = 0; i < 16; ++i) active.push_back(std::make_unique<HttpClient>(server_->address()));
  const auto round = [&] {
    for (const auto& client : active) client->Request("GET", "/stream?n=20&size=100");
    for (const auto& client : active) ASSERT_TRUE(client->Answer().whole);
    for (const auto& client : active) client->Request("POST", "/echo", "", std::string(10000, 'x'));
    for (const auto& client : active) ASSERT_EQ(client->Answer().status, 200);
  };
  for (int i = 0; i < 20; ++i) round();
  {
    std::lock_guard lock(mutex_);
    records_.clear();
    records_.reserve(100000);
  }
  const size_t before = ResidentKib();
  for (int i = 0; i < (testing::kSanitized ? 20 : 200); ++i) round();
  const size_t after = ResidentKib();
  if (!testing::kSanitized) EXPECT_LT(after, before + 2048) << "KiB; " << before << " before";
  EXPECT_EQ(server_->stats().connections, idle + 16);
}

TEST(HttpTargetTest, TargetsAreSplitAndDecoded) {
  const auto read = [](std::string_view target) {
    http::HttpRequest request;
    std::string authority;
    const auto error = http::ReadTarget(target, &request, &authority);
    if (error) return "error " + std::to_string(error->status);
    std::string out = authority + " " + request.path;
    for (const auto& [name, value] : request.query) out += " " + name + "=" + value;
    return out;
  };
  EXPECT_EQ(read("/"), " /");
  EXPECT_EQ(read("/a%2Fb/../c"), " /a/b/../c");
  EXPECT_EQ(read("/a?b=c&d&&=e&f=%41%20+g"), " /a b=c d= =e f=A  g");
  EXPECT_EQ(read("/a?b?c=/d"), " /a b?c=/d");
  EXPECT_EQ(read("http://Host:80/a?b"), "Host:80 /a b=");
  EXPECT_EQ(read("HTTPS://h/"), "h /");
  for (const char* wrong :
       {"", "a", "http://h", "http:///a", "/%", "/%1", "/%zz", "/%0a", "/a#b", "ftp://h/", "//\x7f"}) {
    EXPECT_EQ(read(wrong), "error 400") << wrong;
  }
}

}  // namespace
}  // namespace gyre
