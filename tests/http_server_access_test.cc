// Access to the HTTP server: API keys and roles, hosts and origins, TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "coordinator/http/api_keys.h"
#include "coordinator/http/origin.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http_server_rig.h"
#include "tests/testing/https_client.h"

namespace gyre {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::HttpClient;
using testing::HttpsClient;
using ::testing::Not;
using testing::Soon;

class HttpAccessTest : public testing::HttpServerTest {
 protected:
  void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
  }
  // Until the server's thread has taken what Reload read.
  void Settle() { Get("/open"); }
  int Status(const std::string& method, const std::string& target, const std::string& headers = "") {
    HttpClient client(server_->address());
    client.Request(method, target, headers);
    return client.Answer().status;
  }
  Folder folder_;
};

TEST(HttpKeysTest, LinesAreANameAKeyAndARole) {
  const auto keys =
      http::ApiKeys::Parse("# comment\n\nann secret-1\nbob  secret-2 admin # behind\r\nann secret-3 user\n", "f");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->entries().size(), 3u);
  ASSERT_NE(keys->Find("secret-1"), nullptr);
  EXPECT_EQ(keys->Find("secret-1")->name, "ann");
  EXPECT_EQ(keys->Find("secret-1")->role, http::Role::kUser);
  EXPECT_EQ(keys->Find("secret-2")->role, http::Role::kAdmin);
  EXPECT_EQ(keys->Find("secret-3")->tenant, keys->Find("secret-1")->tenant);
  EXPECT_NE(keys->Find("secret-2")->tenant, keys->Find("secret-1")->tenant);
  EXPECT_NE(keys->Find("secret-2")->tenant, 0u);
  for (const char* other : {"", "secret-", "secret-11", "SECRET-1", "ann"}) EXPECT_EQ(keys->Find(other), nullptr);
}

TEST(HttpKeysTest, ANumberSignWithinAKeyBelongsToIt) {
  const auto keys =
      http::ApiKeys::Parse("root abcdefgh#ijklmnop admin # a comment\nann abcdefgh#other\t#and another\n", "f");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_NE(keys->Find("abcdefgh#ijklmnop"), nullptr);
  EXPECT_EQ(keys->Find("abcdefgh#ijklmnop")->role, http::Role::kAdmin);
  ASSERT_NE(keys->Find("abcdefgh#other"), nullptr);
  EXPECT_EQ(keys->Find("abcdefgh"), nullptr);
  EXPECT_FALSE(http::ApiKeys::Parse("ann #abcdefgh", "f").ok());
}

TEST(HttpKeysTest, AFileThatOthersMayReadIsRefused) {
  const testing::Folder folder;
  const std::string path = folder / "keys";
  std::ofstream(path) << "ann secret-key\n";
  for (const mode_t mode : {0644, 0640, 0604}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const auto keys = http::ApiKeys::Load(path);
    EXPECT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << mode;
    EXPECT_THAT(Message(keys.status()), HasSubstr("chmod 600"));
  }
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(http::ApiKeys::Load(path).ok());
}

TEST(HttpKeysTest, WrongLinesAreNamedAndKeysNeverShown) {
  for (const char* wrong : {"ann", "ann secret-key root", "ann secret-key user more", "ann secret",
                            "ann s\xC3\xA9"
                            "cret-key",
                            "ann secret-key\nbob secret-key", "", "# nothing"}) {
    const auto keys = http::ApiKeys::Parse(wrong, "file");
    ASSERT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(Message(keys.status()), HasSubstr("file:"));
    EXPECT_THAT(Message(keys.status()), Not(HasSubstr("cret")));
  }
  EXPECT_EQ(http::ApiKeys::Load("/nowhere/keys").status().code(), absl::StatusCode::kNotFound);
}

TEST(HttpKeysTest, TheKeyOfARequest) {
  const auto key = [](std::vector<std::pair<std::string, std::string>> headers) -> std::string {
    http::HttpRequest request;
    request.headers = std::move(headers);
    const auto found = http::KeyOf(request);
    return found ? std::string(*found) : "none";
  };
  EXPECT_EQ(key({}), "none");
  EXPECT_EQ(key({{"authorization", "Bearer abc"}}), "abc");
  EXPECT_EQ(key({{"authorization", "bEARER   abc"}}), "abc");
  EXPECT_EQ(key({{"authorization", "Bearer "}}), "none");
  EXPECT_EQ(key({{"authorization", "Basic abc"}}), "none");
  EXPECT_EQ(key({{"authorization", "Basic abc"}, {"x-api-key", "def"}}), "def");
  EXPECT_EQ(key({{"x-api-key", "def"}}), "def");
}

TEST_F(HttpAccessTest, RolesDecide) {
  options_.api_keys = folder_ / "keys";
  Write(options_.api_keys, "ann user-key-1 user\nroot admin-key-1 admin\n");
  Serve();
  const std::string user = "Authorization: Bearer user-key-1\r\n", admin = "x-api-key: admin-key-1\r\n";
  EXPECT_EQ(Status("GET", "/open"), 200);
  EXPECT_EQ(Status("GET", "/open", "x-api-key: wrong-key\r\n"), 200);
  EXPECT_EQ(Status("GET", "/echo"), 401);
  EXPECT_EQ(Status("GET", "/echo", "x-api-key: wrong-key\r\n"), 401);
  EXPECT_EQ(Status("GET", "/echo", user), 200);
  EXPECT_EQ(Status("GET", "/echo", admin), 200);
  EXPECT_EQ(Status("POST", "/admin"), 401);
  EXPECT_EQ(Status("POST", "/admin", user), 403);
  EXPECT_EQ(Status("POST", "/admin", admin), 200);
  EXPECT_EQ(Get("/echo").Header("www-authenticate"), "Bearer");
  EXPECT_EQ(Get("/echo", user).body, "GET /echo ann []");
  EXPECT_EQ(Status("GET", "/nowhere"), 404);
}

TEST_F(HttpAccessTest, WithoutKeysThisMachineMayDoEverything) {
  Serve();
  EXPECT_EQ(Status("GET", "/echo"), 200);
  EXPECT_EQ(Status("POST", "/admin"), 200);
  EXPECT_EQ(Status("GET", "/echo", "Authorization: Bearer anything\r\n"), 200);
}

TEST_F(HttpAccessTest, ABodyIsNotReadBeforeTheKeyIsKnown) {
  options_.api_keys = folder_ / "keys";
  Write(options_.api_keys, "ann user-key-1\n");
  Serve();
  HttpClient client(server_->address());
  client.Send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.Answer().status, 401);
}

TEST_F(HttpAccessTest, NewKeysReplaceOldOnesAndWrongFilesChangeNothing) {
  options_.api_keys = folder_ / "keys";
  Write(options_.api_keys, "ann old-key-1\n");
  Serve();
  HttpClient open(server_->address());
  open.Request("GET", "/echo", "x-api-key: old-key-1\r\n");
  EXPECT_EQ(open.Answer().status, 200);
  Write(options_.api_keys, "ann\n");
  EXPECT_EQ(server_->Reload().code(), absl::StatusCode::kInvalidArgument);
  Settle();
  EXPECT_EQ(Status("GET", "/echo", "x-api-key: old-key-1\r\n"), 200);
  Write(options_.api_keys, "ann new-key-1\n");
  EXPECT_TRUE(server_->Reload().ok());
  Settle();
  EXPECT_EQ(Status("GET", "/echo", "x-api-key: new-key-1\r\n"), 200);
  open.Request("GET", "/echo", "x-api-key: old-key-1\r\n");
  EXPECT_EQ(open.Answer().status, 401) << "connections that are open see the new keys too";
}

TEST(HttpOriginTest, HostsThatNoUnauthenticatedPeersNameServerCanHave) {
  const auto rules = http::MakeOriginRules("gyre.example", {"Other.Example"}, {});
  ASSERT_TRUE(rules.ok());
  for (const char* fine :
       {"localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080",
        "192.168.1.5:8080", "a.localhost", "gyre.example", "GYRE.example:1", "other.example:80"}) {
    EXPECT_FALSE(http::CheckHost(*rules, fine)) << fine;
  }
  for (const char* foreign : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost",
                              "xgyre.example", "x.gyre.example", "1.2.3", "0x7f.1", "2130706433"}) {
    const auto error = http::CheckHost(*rules, foreign);
    ASSERT_TRUE(error) << foreign;
    EXPECT_EQ(error->status, 403) << foreign;
    EXPECT_THAT(error->message, HasSubstr("--allow-host"));
  }
  for (const char* wrong : {"", ":80", "a b", "localhost:", "localhost:x", "localhost:65536", "[::1", "[localhost]",
                            "a@b", "a/b", "::1", ".", "localhost:80:80"}) {
    const auto error = http::CheckHost(*rules, wrong);
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->status, 400) << wrong;
  }
  EXPECT_FALSE(http::MakeOriginRules("h", {"a:80"}, {}).ok());
  for (const char* wrong : {"example.org", "ftp://a", "*", "null", "https://a/b", "https://"}) {
    EXPECT_FALSE(http::MakeOriginRules("h", {}, {wrong}).ok()) << wrong;
  }
}

TEST(HttpOriginTest, PagesOfUnauthenticatedPeersAreTold) {
  using http::OriginKind;
  const auto rules = http::MakeOriginRules("127.0.0.1", {}, {"https://Friend.example", "http://localhost:3000"});
  ASSERT_TRUE(rules.ok());
  const auto kind = [&](std::vector<std::pair<std::string, std::string>> headers) {
    http::HttpRequest request;
    request.headers = std::move(headers);
    return http::ClassifyOrigin(*rules, request);
  };
  const std::pair<std::string, std::string> here{"host", "localhost:8080"}, plain{"host", "gyre.example"};
  EXPECT_EQ(kind({here}), OriginKind::kNone);
  EXPECT_EQ(kind({here, {"origin", "http://localhost:8080"}}), OriginKind::kSame);
  EXPECT_EQ(kind({here, {"origin", "HTTP://LOCALHOST:8080"}}), OriginKind::kSame);
  EXPECT_EQ(kind({plain, {"origin", "https://gyre.example"}}), OriginKind::kSame);
  EXPECT_EQ(kind({plain, {"origin", "http://gyre.example:80"}}), OriginKind::kSame);
  EXPECT_EQ(kind({here, {"origin", "https://friend.example"}}), OriginKind::kListed);
  EXPECT_EQ(kind({here, {"origin", "https://friend.example:443"}}), OriginKind::kListed);
  EXPECT_EQ(kind({here, {"origin", "http://localhost:3000"}}), OriginKind::kListed);
  for (const char* unauthenticated :
       {"http://friend.example", "https://friend.example:444", "https://friend.example.evil", "http://localhost:8081",
        "http://localhost", "http://127.0.0.1:8080", "null", "", "file://", "http://localhost:8080/x",
        "http://localhost:8080@evil"}) {
    EXPECT_EQ(kind({here, {"origin", unauthenticated}}), OriginKind::kForeign) << unauthenticated;
  }
  // Pictures and scripts have no Origin.
  EXPECT_EQ(kind({here, {"sec-fetch-site", "cross-site"}, {"sec-fetch-mode", "no-cors"}}), OriginKind::kForeign);
  EXPECT_EQ(kind({here, {"sec-fetch-site", "same-site"}}), OriginKind::kForeign);
  EXPECT_EQ(kind({here, {"sec-fetch-site", "cross-site"}, {"sec-fetch-mode", "navigate"}}), OriginKind::kNone);
  EXPECT_EQ(kind({here, {"sec-fetch-site", "same-origin"}}), OriginKind::kNone);
  EXPECT_EQ(kind({here, {"sec-fetch-site", "none"}}), OriginKind::kNone);
}

TEST_F(HttpAccessTest, APageOfAUnauthenticatedPeerGetsNothing) {
  options_.cors = {"https://friend.example"};
  Serve();
  const std::string evil = "Origin: https://evil.example\r\n", friendly = "Origin: https://friend.example\r\n";
  EXPECT_EQ(Status("POST", "/admin", evil), 403);
  EXPECT_EQ(Status("GET", "/echo", evil), 403);
  EXPECT_EQ(Status("GET", "/open", evil), 403);
  const HttpAnswer fine = Get("/stream", friendly);
  EXPECT_EQ(fine.status, 200);
  EXPECT_EQ(fine.Header("access-control-allow-origin"), "https://friend.example");
  EXPECT_EQ(fine.Header("vary"), "origin");
  HttpClient rebound(server_->address());
  rebound.Send("POST /admin HTTP/1.1\r\nHost: rebound.example\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(rebound.Answer().status, 403);
  const std::string preflight =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n";
  HttpClient client(server_->address());
  client.Request("OPTIONS", "/echo", friendly + preflight);
  const HttpAnswer yes = client.Answer();
  EXPECT_EQ(yes.status, 204);
  EXPECT_EQ(yes.Header("access-control-allow-origin"), "https://friend.example");
  EXPECT_EQ(yes.Header("access-control-allow-headers"), "authorization");
  EXPECT_THAT(yes.Header("access-control-allow-methods"), HasSubstr("POST"));
  client.Request("OPTIONS", "/echo", evil + preflight);
  const HttpAnswer no = client.Answer();
  EXPECT_EQ(no.status, 403);
  EXPECT_EQ(no.Header("access-control-allow-origin"), "");
}

class HttpTlsTest : public HttpAccessTest {
 protected:
  void SetUp() override {
    options_.tls_cert = folder_ / "cert.pem";
    options_.tls_key = folder_ / "key.pem";
    testing::WriteCertificate(options_.tls_cert, options_.tls_key, "first");
  }
};

TEST_F(HttpTlsTest, RequestsStreamsAndLargeBodies) {
  Serve();
  EXPECT_EQ(server_->url().substr(0, 8), "https://");
  HttpsClient client(server_->address());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.peer(), "first");
  client.Request("GET", "/stream?n=100&size=5000");
  const HttpAnswer answer = client.Answer();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body.size(), 500006u);
  client.Request("POST", "/echo", "", std::string(300000, 'x'));
  EXPECT_THAT(client.Answer().body, HasSubstr(std::string(300000, 'x')));
  client.Request("GET", "/wait?n=3");
  ASSERT_TRUE(Soon([&] { return waiting_ == 1; }));
  while (server_->stats().active > 0) {
    Wake();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(client.Answer().body, "xxx");
  client.Request("GET", "/echo", "Connection: close\r\n");
  EXPECT_EQ(client.Answer().status, 200);
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpTlsTest, AClientThatLeavesIsNoticed) {
  Serve();
  HttpsClient client(server_->address());
  client.Request("GET", "/wait");
  ASSERT_TRUE(Soon([&] { return waiting_ == 1; }));
  client.Close();
  EXPECT_TRUE(Soon([&] { return gone_ == 1 && server_->stats().connections == 0; }));
}

TEST_F(HttpTlsTest, OldVersionsAndOtherProtocolsAreRefused) {
  Serve();
  EXPECT_FALSE(HttpsClient(server_->address(), {.max_version = TLS1_1_VERSION}).connected());
  EXPECT_TRUE(HttpsClient(server_->address(), {.max_version = TLS1_2_VERSION}).connected());
  EXPECT_TRUE(HttpsClient(server_->address(), {.min_version = TLS1_3_VERSION}).connected());
  EXPECT_EQ(HttpsClient(server_->address(), {.protocols = "\x02h2\x08http/1.1"}).protocol(), "http/1.1");
  EXPECT_FALSE(HttpsClient(server_->address(), {.protocols = "\x02h2"}).connected());
  HttpClient plain(server_->address());
  plain.Request("GET", "/echo");
  EXPECT_TRUE(plain.Ended());
  EXPECT_EQ(Soon([&] { return server_->stats().connections == 0; }), true);
}

TEST_F(HttpTlsTest, SilentHandshakesEnd) {
  options_.limits.head_time = std::chrono::milliseconds(200);
  Serve();
  HttpClient silent(server_->address());
  EXPECT_TRUE(silent.Ended());
}

TEST_F(HttpTlsTest, AClientThatTakesNothingIsGivenUp) {
  options_.limits.write_time = std::chrono::milliseconds(300);
  Serve();
  HttpsClient client(server_->address());
  client.Request("GET", "/stream?n=100000&size=10000");
  EXPECT_TRUE(Soon([&] { return gone_ == 1; }));
  EXPECT_LT(written_, 100000);
}

TEST_F(HttpTlsTest, ANewCertificateIsTakenAndAWrongOneIsNot) {
  Serve();
  HttpsClient old(server_->address());
  testing::WriteCertificate(options_.tls_cert, folder_ / "other.pem", "second");
  EXPECT_THAT(Message(server_->Reload()), HasSubstr("expected the private key of"));
  Write(options_.tls_cert, "nonsense");
  EXPECT_THAT(Message(server_->Reload()), HasSubstr("no certificate chain in PEM"));
  EXPECT_EQ(HttpsClient(server_->address()).peer(), "first");
  testing::WriteCertificate(options_.tls_cert, options_.tls_key, "second");
  EXPECT_TRUE(server_->Reload().ok());
  EXPECT_TRUE(Soon([&] { return HttpsClient(server_->address()).peer() == "second"; }));
  old.Request("GET", "/echo");
  EXPECT_EQ(old.Answer().status, 200);
}

}  // namespace
}  // namespace gyre
