#include "coordinator/http/page_routes.h"

#include <cstdlib>
#include <string>
#include <utility>

namespace gyre::http {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Removes the next element from the front of a list with commas.
std::string_view NextElement(std::string_view& list) {
  const size_t comma = list.find(',');
  const std::string_view element = Trimmed(list.substr(0, comma));
  list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  return element;
}

// Whether a header If-None-Match names `tag`, which has its quotes. Weak tags compare as equal, as for any GET.
bool Names(std::string_view if_none_match, std::string_view tag) {
  while (!if_none_match.empty()) {
    std::string_view element = NextElement(if_none_match);
    if (element.substr(0, 2) == "W/") element.remove_prefix(2);
    if (element == tag || element == "*") return true;
  }
  return false;
}

Awaitable<void> Answer(Exchange& exchange, const PageAsset& asset) {
  HttpResponse response = PageAnswer(asset, exchange.request());
  co_await exchange.Respond(std::move(response));
}

}  // namespace

bool TakesGzip(std::string_view accept_encoding) {
  while (!accept_encoding.empty()) {
    const std::string_view element = NextElement(accept_encoding);
    const size_t semicolon = element.find(';');
    const std::string_view name = Trimmed(element.substr(0, semicolon));
    if (name != "gzip" && name != "*") continue;
    if (semicolon == std::string_view::npos) return true;
    const std::string weight(Trimmed(element.substr(semicolon + 1)));
    return weight.compare(0, 2, "q=") != 0 || std::strtod(weight.c_str() + 2, nullptr) > 0;
  }
  return false;
}

HttpResponse PageAnswer(const PageAsset& asset, const HttpRequest& request) {
  const std::string* encodings = request.Header("accept-encoding");
  const bool packed = encodings != nullptr && TakesGzip(*encodings) && asset.gzip.size() < asset.body.size();
  // Both forms have their own tag, as a tag stands for bytes.
  std::string tag = '"' + std::string(asset.etag) + (packed ? "-gz\"" : "\"");
  const std::string* known = request.Header("if-none-match");
  HttpResponse response;
  response.content_type = asset.content_type;
  response.headers = {{"cache-control", "no-cache"},
                      {"vary", "accept-encoding"},
                      {"content-security-policy", std::string(kPolicy)},
                      {"referrer-policy", "no-referrer"},
                      {"cross-origin-opener-policy", "same-origin"},
                      {"cross-origin-resource-policy", "same-origin"}};
  if (known != nullptr && Names(*known, tag)) {
    response.status = 304;
  } else {
    if (packed) response.headers.emplace_back("content-encoding", "gzip");
    response.body = packed ? asset.gzip : asset.body;
  }
  response.headers.emplace_back("etag", std::move(tag));
  return response;
}

void AddPageRoutes(Router& router) {
  for (const PageAsset& asset : PageAssets()) {
    Route route;
    route.method = "GET";
    route.path = asset.path;
    route.role = Role::kAnyone;
    route.handler = [&asset](Exchange& exchange) { return Answer(exchange, asset); };
    router.Add(std::move(route));
  }
}

}  // namespace gyre::http
