#include "client/http_fetcher.h"

namespace gyre {
namespace {

// Nobody follows these without looking again.
bool IsRedirect(const HttpHead& head) {
  return (head.code == 301 || head.code == 302 || head.code == 303 || head.code == 307 || head.code == 308) &&
         !FindHeader(head.headers, "location").empty();
}

}  // namespace

HttpFetcher::HttpFetcher(HttpFetcherOptions options) : options_(std::move(options)) {}

StatusOr<std::unique_ptr<HttpFetcher>> HttpFetcher::Make(HttpFetcherOptions options) {
  std::unique_ptr<HttpFetcher> fetcher(new HttpFetcher(std::move(options)));
  // The CA file is read when a client is made: its errors come before the first request.
  const HttpClientOptions& http = fetcher->options_.http;
  if (!http.ca_file.empty()) {
    GYRE_RETURN_IF_ERROR(HttpClient::Make({.tls = true, .host = "localhost", .port = 443}, http).status());
  }
  return fetcher;
}

StatusOr<HttpClient*> HttpFetcher::ClientFor(const Url& server) {
  std::unique_ptr<HttpClient>& client = clients_[FormatUrl(server)];
  if (client == nullptr) {
    HttpClientOptions http = options_.http;
    if (!options_.bearer_for || !(*options_.bearer_for == server)) http.bearer.clear();
    http.proxy = options_.proxies.For(server);
    StatusOr<std::unique_ptr<HttpClient>> made = HttpClient::Make(server, http);
    GYRE_RETURN_IF_ERROR(made.status());
    client = *std::move(made);
  }
  return client.get();
}

StatusOr<HttpFetched> HttpFetcher::Get(const std::string& url, const HttpHeaders& headers,
                                       const std::function<bool()>& interrupted) {
  HttpFetched out;
  GYRE_ASSIGN_OR_RETURN(out.address, ParseAddress(url));
  for (int redirects = 0;; ++redirects) {
    GYRE_ASSIGN_OR_RETURN(HttpClient * client, ClientFor(out.address.server));
    GYRE_ASSIGN_OR_RETURN(HttpResponse response,
                          client->Fetch({.target = out.address.target, .headers = headers}, interrupted));
    if (!IsRedirect(response)) {
      static_cast<HttpResponse&>(out) = std::move(response);
      return out;
    }
    if (redirects == options_.max_redirects) return DataLoss("{}: more than {} redirects", url, redirects);
    out.redirect_headers.insert(out.redirect_headers.end(), response.headers.begin(), response.headers.end());
    const StatusOr<HttpAddress> next = ResolveReference(out.address, FindHeader(response.headers, "location"));
    if (!next.ok())
      return DataLoss("{}: a redirect to nowhere: {}", FormatAddress(out.address), Message(next.status()));
    if (out.address.server.tls && !next->server.tls) {
      return DataLoss("{}: a redirect from https to {}, expected https", FormatAddress(out.address),
                      FormatAddress(*next));
    }
    out.address = *next;
  }
}

}  // namespace gyre
