// GET of any URL: redirects, proxies, and a token that is sent to its own server only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "http_client/http_client.h"
#include "http_client/proxy.h"
#include "http_client/url.h"

namespace gyre {

struct HttpFetcherOptions {
  HttpClientOptions http;  // `bearer` goes to bearer_for alone; `proxy` is chosen from `proxies`
  std::optional<Url> bearer_for;
  ProxySettings proxies;
  int max_redirects = 10;
};

struct HttpFetched : HttpResponse {
  HttpAddress address;           // where the answer came from
  HttpHeaders redirect_headers;  // all that the redirects on the way there had
  bool truncated = false;        // the body is longer than was asked for, and is not all here
};

// Whether the answer redirects its reader.
bool IsRedirect(const HttpHead& head);

// Not thread-safe, as the HttpClients in it.
class HttpFetcher {
 public:
  // kNotFound, kInvalidArgument: the CA file.
  static StatusOr<std::unique_ptr<HttpFetcher>> Make(HttpFetcherOptions options);

  // The client for that server; it lives as long as the fetcher.
  StatusOr<HttpClient*> ClientFor(const Url& server);
  // GET that follows redirects: from https to https only. The answer's code may be any but a redirect's. If the body
  // has more than `most` bytes, the rest is not read. Errors as HttpClient::Fetch; kDataLoss: too many redirects, or
  // one without a target.
  StatusOr<HttpFetched> Get(const std::string& url, const HttpHeaders& headers,
                            const std::function<bool()>& interrupted, uint64_t most = UINT64_MAX);

 private:
  explicit HttpFetcher(HttpFetcherOptions options);

  const HttpFetcherOptions options_;
  std::map<std::string, std::unique_ptr<HttpClient>> clients_;  // by FormatUrl of the server
};

}  // namespace gyre
