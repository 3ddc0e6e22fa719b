// The web page's files and their headers.
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/http/page_routes.h"

namespace gyre::http {
namespace {

constexpr PageAsset kAsset = {"/a.js", "text/javascript; charset=utf-8", "abc", "let a = 1; let b = 2;", "packed"};

HttpRequest Asking(std::vector<std::pair<std::string, std::string>> headers) {
  HttpRequest request;
  request.method = "GET";
  request.path = "/a.js";
  request.headers = std::move(headers);
  return request;
}

std::string HeaderOf(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

const PageAsset* Find(std::string_view path) {
  for (const PageAsset& asset : PageAssets()) {
    if (asset.path == path) return &asset;
  }
  return nullptr;
}

TEST(HttpPage, ProgramHoldsThePageAndAllThatItNames) {
  const PageAsset* index = Find("/");
  ASSERT_NE(index, nullptr);
  EXPECT_EQ(index->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(index->body.substr(0, 15), "<!doctype html>");
  int named = 0;
  for (const std::string_view attribute : {"src=\"", "href=\""}) {
    size_t at = 0;
    while ((at = index->body.find(attribute, at)) != std::string_view::npos) {
      at += attribute.size();
      const std::string_view path = index->body.substr(at, index->body.find('"', at) - at);
      EXPECT_NE(Find(path), nullptr) << path;
      ++named;
    }
  }
  EXPECT_GE(named, 3);
  for (const PageAsset& asset : PageAssets()) {
    EXPECT_EQ(asset.etag.size(), 24u) << asset.path;
    EXPECT_EQ(asset.gzip.substr(0, 2), "\x1f\x8b") << asset.path;
  }
}

TEST(HttpPage, ProgramHoldsTheDescriptionOfItsApi) {
  const PageAsset* description = Find("/openapi.json");
  ASSERT_NE(description, nullptr);
  EXPECT_EQ(description->content_type, "application/json");
  EXPECT_NE(description->body.find("\"/v1/chat/completions\""), std::string_view::npos);
}

TEST(HttpPage, CompressesForWhoeverTakesIt) {
  for (const char* header : {"gzip", "deflate, gzip;q=0.5, br", " br , gzip ", "*"})
    EXPECT_TRUE(TakesGzip(header)) << header;
  for (const char* header : {"", "br", "gzip;q=0", "x-gzip", "gzip; q=0.0, br"})
    EXPECT_FALSE(TakesGzip(header)) << header;
  const HttpResponse packed = PageAnswer(kAsset, Asking({{"accept-encoding", "gzip, br"}}));
  EXPECT_EQ(packed.body, "packed");
  EXPECT_EQ(HeaderOf(packed, "content-encoding"), "gzip");
  EXPECT_EQ(HeaderOf(packed, "etag"), "\"abc-gz\"");
  const HttpResponse plain = PageAnswer(kAsset, Asking({}));
  EXPECT_EQ(plain.body, kAsset.body);
  EXPECT_EQ(HeaderOf(plain, "content-encoding"), "");
  EXPECT_EQ(HeaderOf(plain, "etag"), "\"abc\"");
  EXPECT_EQ(HeaderOf(plain, "vary"), "accept-encoding");
  PageAsset small = kAsset;
  small.gzip = "longer than the body itself is, as tiny files get";
  EXPECT_EQ(PageAnswer(small, Asking({{"accept-encoding", "gzip"}})).body, kAsset.body);
}

TEST(HttpPage, WhoeverHasTheFileGetsNoBody) {
  for (const char* tag : {"\"abc\"", "W/\"abc\"", "\"x\", \"abc\"", "*"}) {
    const HttpResponse same = PageAnswer(kAsset, Asking({{"if-none-match", tag}}));
    EXPECT_EQ(same.status, 304) << tag;
    EXPECT_EQ(same.body, "") << tag;
    EXPECT_EQ(HeaderOf(same, "etag"), "\"abc\"") << tag;
  }
  for (const char* tag : {"\"ab\"", "abc", "\"abc-gz\"", ""}) {
    EXPECT_EQ(PageAnswer(kAsset, Asking({{"if-none-match", tag}})).status, 200) << tag;
  }
}

TEST(HttpPage, ReachesNothingButItsOwnServer) {
  const HttpResponse response = PageAnswer(kAsset, Asking({}));
  EXPECT_EQ(HeaderOf(response, "content-security-policy").find("default-src 'self';"), 0u);
  EXPECT_EQ(HeaderOf(response, "content-security-policy").find("unsafe"), std::string::npos);
  EXPECT_EQ(HeaderOf(response, "cache-control"), "no-cache");
  for (const PageAsset& asset : PageAssets()) {
    if (asset.path == "/licenses.txt") continue;  // holds addresses of licenses, which nobody loads
    EXPECT_EQ(asset.body.find("src=\"http"), std::string_view::npos) << asset.path;
    EXPECT_EQ(asset.body.find("@import"), std::string_view::npos) << asset.path;
    EXPECT_EQ(asset.body.find("url(http"), std::string_view::npos) << asset.path;
  }
}

TEST(HttpPage, RoutesAreForEveryone) {
  Router router;
  AddPageRoutes(router);
  for (const PageAsset& asset : PageAssets()) {
    const Router::Match match = router.Find("GET", asset.path);
    ASSERT_NE(match.route, nullptr) << asset.path;
    EXPECT_EQ(match.route->role, Role::kAnyone) << asset.path;
    EXPECT_NE(router.Find("HEAD", asset.path).route, nullptr) << asset.path;
    EXPECT_EQ(router.Find("POST", asset.path).allow, "GET, HEAD") << asset.path;
  }
}

}  // namespace
}  // namespace gyre::http
