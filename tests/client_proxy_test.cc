// Proxies: how the environment names them, and requests through one; redirects that a fetcher follows.
#include "http_client/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "http_client/http_fetcher.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http_peer.h"
#include "tests/testing/http_proxy.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::HttpPeer;
using testing::HttpProxy;
using testing::Never;

using Variables = std::map<std::string, std::string>;
StatusOr<ProxySettings> Parse(const Variables& variables) {
  return ParseProxies([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

Url UrlOf(const std::string& text) {
  const StatusOr<Url> url = ParseUrl(text);
  EXPECT_TRUE(url.ok()) << url.status();
  return *url;
}

TEST(ProxySettingsTest, TheEnvironmentNamesThem) {
  const struct {
    Variables variables;
    std::string http, https;  // "" = none
  } kCases[] = {
      {{}, "", ""},
      {{{"http_proxy", "proxy:3128"}}, "http://proxy:3128", ""},
      {{{"HTTPS_PROXY", "http://proxy"}}, "", "http://proxy:80"},
      {{{"ALL_PROXY", "http://a:1/"}}, "http://a:1", "http://a:1"},
      {{{"ALL_PROXY", "http://a:1"}, {"https_proxy", "b:2"}}, "http://a:1", "http://b:2"},
      {{{"HTTP_PROXY", "upper:1"}, {"http_proxy", "lower:1"}}, "http://lower:1", ""},
      {{{"HTTP_PROXY", "upper:1"}, {"http_proxy", ""}}, "", ""},
      {{{"https_proxy", "http://[::1]:8"}}, "", "http://[::1]:8"},
  };
  for (const auto& c : kCases) {
    const StatusOr<ProxySettings> settings = Parse(c.variables);
    ASSERT_TRUE(settings.ok()) << settings.status();
    const auto http = settings->For(UrlOf("http://x")), https = settings->For(UrlOf("https://x"));
    EXPECT_EQ(http.has_value() ? FormatUrl(http->url) : "", c.http);
    EXPECT_EQ(https.has_value() ? FormatUrl(https->url) : "", c.https);
  }
}

TEST(ProxySettingsTest, APasswordIsSentAndNotShown) {
  const StatusOr<ProxySettings> settings = Parse({{"http_proxy", "http://us%40er:p@ss:word@proxy:1"}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->http->authorization, "Basic dXNAZXI6cEBzczp3b3Jk");  // us@er:p@ss:word
  EXPECT_EQ(FormatUrl(settings->http->url), "http://proxy:1");
  for (const char* bad :
       {"http://user:secret@", "http://user:secret@a b", "socks5://user:secret@a:1", "https://u:secret@a"}) {
    const Status status = Parse({{"https_proxy", bad}}).status();
    EXPECT_FALSE(status.ok()) << bad;
    EXPECT_THAT(Message(status), HasSubstr("https_proxy"));
    EXPECT_THAT(Message(status), ::testing::Not(HasSubstr("secret")));
  }
}

TEST(ProxySettingsTest, SomeHostsAreReachedStraight) {
  const struct {
    const char* direct;
    const char* url;
    bool straight;
  } kCases[] = {
      {"", "http://a.b", false},
      {"*", "http://a.b", true},
      {"a.b", "http://a.b", true},
      {"A.b", "http://a.B", true},
      {"a.b", "http://x.a.b", true},
      {".a.b", "http://x.a.b", true},
      {"*.a.b", "http://x.a.b", true},
      {"a.b", "http://xa.b", false},
      {"x, a.b:8080 ,y", "http://a.b:8080", true},
      {"a.b:8080", "http://a.b", false},
      {"10.0.0.0/8", "http://10.1.2.3", true},
      {"10.0.0.0/8", "http://11.1.2.3", false},
      {"10.0.0.0/33", "http://10.0.0.0", false},
      {"127.0.0.1", "http://127.0.0.1:99", true},
      {"127.0.0.1:99", "http://127.0.0.1:99", true},
      {"7.0.0.1", "http://127.0.0.1", false},
      {"fe80::/10", "http://[fe80::1]", true},
      {"::1", "http://[::1]:5", true},
      {"localhost", "http://127.0.0.1", false},
  };
  for (const auto& c : kCases) {
    const StatusOr<ProxySettings> settings = Parse({{"all_proxy", "http://p:1"}, {"NO_PROXY", c.direct}});
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(!settings->For(UrlOf(c.url)).has_value(), c.straight) << c.direct << " " << c.url;
  }
}

StatusOr<std::unique_ptr<HttpFetcher>> FetcherThrough(const std::string& proxy, const std::string& ca_file = "") {
  GYRE_ASSIGN_OR_RETURN(ProxySettings proxies, Parse({{"all_proxy", proxy}}));
  return HttpFetcher::Make({.http = {.ca_file = ca_file}, .proxies = proxies});
}

TEST(HttpProxyTest, PlainRequestsNameTheirServer) {
  HttpPeer peer([](HttpPeer::Call& call) { call.Respond(200, call.target + " " + call.host); });
  HttpProxy proxy("user:word");
  StatusOr<std::unique_ptr<HttpFetcher>> fetcher = FetcherThrough("http://user:word@" + proxy.address());
  ASSERT_TRUE(fetcher.ok());
  for (int i = 0; i < 2; ++i) {
    const StatusOr<HttpFetched> r = (*fetcher)->Get(peer.url() + "/x?y=1", {}, Never);
    ASSERT_TRUE(r.ok()) << r.status();
    EXPECT_EQ(r->body, fmt::format("/x?y=1 127.0.0.1:{}", peer.port()));
  }
  EXPECT_EQ(proxy.requests(), 2);
}

TEST(HttpProxyTest, TlsGoesThroughATunnel) {
  testing::Folder folder;
  const testing::Certificate certificate = testing::MakeCertificate();
  std::ofstream(folder / "ca.pem") << certificate.certificate;
  HttpPeer peer([](HttpPeer::Call& call) { call.Respond(200, "safe " + call.proxy_authorization); }, &certificate);
  HttpProxy proxy("user:word");
  StatusOr<std::unique_ptr<HttpFetcher>> fetcher =
      FetcherThrough("http://user:word@" + proxy.address(), folder / "ca.pem");
  ASSERT_TRUE(fetcher.ok());
  for (int i = 0; i < 2; ++i) {
    const StatusOr<HttpFetched> r = (*fetcher)->Get(fmt::format("https://localhost:{}/", peer.port()), {}, Never);
    ASSERT_TRUE(r.ok()) << r.status();
    EXPECT_EQ(r->body, "safe ") << "the proxy's password is the proxy's alone";
  }
  EXPECT_EQ(proxy.requests(), 1) << "the tunnel is used again";
}

TEST(HttpProxyTest, AProxyThatRefuses) {
  HttpPeer peer([](HttpPeer::Call& call) { call.Respond(200, ""); });
  HttpProxy proxy("user:word");
  StatusOr<std::unique_ptr<HttpFetcher>> fetcher = FetcherThrough("http://user:wrong@" + proxy.address());
  ASSERT_TRUE(fetcher.ok());
  const Status tunnel = (*fetcher)->Get("https://localhost:1/", {}, Never).status();
  EXPECT_EQ(tunnel.code(), absl::StatusCode::kFailedPrecondition) << tunnel;
  EXPECT_THAT(Message(tunnel), HasSubstr(proxy.address()));
  EXPECT_THAT(Message(tunnel), ::testing::Not(HasSubstr("wrong")));
  const StatusOr<HttpFetched> plain = (*fetcher)->Get(peer.url(), {}, Never);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->code, 407);
  fetcher = FetcherThrough("http://user:word@" + proxy.address());
  const Status nowhere = (*fetcher)->Get("https://localhost:1/", {}, Never).status();
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kUnavailable) << nowhere;
  EXPECT_THAT(Message(nowhere), HasSubstr("502"));
}

TEST(HttpFetcherTest, ReferencesAreRelativeToWhatNamedThem) {
  const StatusOr<HttpAddress> base = ParseAddress("https://a.b:8/x/y?z=1#part");
  ASSERT_TRUE(base.ok());
  EXPECT_EQ(base->target, "/x/y?z=1");
  EXPECT_EQ(FormatAddress(*base), "https://a.b:8/x/y") << "a query may hold a signature";
  const struct {
    const char* reference;
    const char* full;
  } kCases[] = {{"http://c/d?e", "http://c:80/d?e"}, {"//c/d", "https://c:443/d"},
                {"/d?e=/", "https://a.b:8/d?e=/"},   {"d", "https://a.b:8/x/d"},
                {"?q", "https://a.b:8/x/y?q"},       {"d?u=http://c", "https://a.b:8/x/d?u=http://c"},
                {"", "https://a.b:8/x/y?z=1"},       {"http://c", "http://c:80/"}};
  for (const auto& c : kCases) {
    const StatusOr<HttpAddress> next = ResolveReference(*base, c.reference);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(FormatUrl(next->server) + next->target, c.full) << c.reference;
  }
  for (const char* bad : {"ftp://x/y", "http://u:p@x/", "http://", "/a b", "javascript:x"}) {
    EXPECT_FALSE(ResolveReference(*base, bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseAddress("http://a/" + std::string(20000, 'x')).ok());
}

TEST(HttpFetcherTest, TheTokenIsItsServersAlone) {
  std::vector<std::string> seen;
  HttpPeer other([&](HttpPeer::Call& call) {
    seen.push_back(call.authorization);
    call.Respond(200, "there");
  });
  HttpPeer own([&](HttpPeer::Call& call) {
    seen.push_back(call.authorization);
    const std::string to = call.target == "/a" ? "/b" : other.url() + "/c";
    call.Respond(302, "", "Location: " + to + "\r\nX-Step: " + call.target + "\r\n");
  });
  auto fetcher = HttpFetcher::Make({.http = {.bearer = "secret"}, .bearer_for = UrlOf(own.url())});
  ASSERT_TRUE(fetcher.ok());
  const StatusOr<HttpFetched> r = (*fetcher)->Get(own.url() + "/a", {}, Never);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->body, "there");
  EXPECT_EQ(FindHeader(r->redirect_headers, "x-STEP"), "/a");
  EXPECT_THAT(seen, ::testing::ElementsAre("Bearer secret", "Bearer secret", ""));
}

TEST(HttpFetcherTest, ALongBodyIsLeft) {
  HttpPeer peer([](HttpPeer::Call& call) {
    call.BeginStream();
    while (call.Chunk(std::string(10000, 'x'))) {
    }
  });
  auto fetcher = HttpFetcher::Make({});
  ASSERT_TRUE(fetcher.ok());
  const StatusOr<HttpFetched> r = (*fetcher)->Get(peer.url(), {}, Never, 12345);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_TRUE(r->truncated);
  EXPECT_EQ(r->body.size(), 12345u);
}

}  // namespace
}  // namespace gyre
