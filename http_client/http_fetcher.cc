#include "http_client/http_fetcher.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace gyre {
namespace {

// A request's answer. If the body has more than `most` bytes, the rest is not read.
Status FetchUpTo(HttpClient* client, HttpRequest request, uint64_t most, const std::function<bool()>& interrupted,
                 HttpFetched* out) {
  // The handlers share it, as they may outlive this call by one turn.
  struct State {
    HttpResponse response;
    bool truncated = false;
    std::optional<Status> end;
  };
  auto state = std::make_shared<State>();
  const HttpId id = client->Start(
      std::move(request), {.on_head = [state](const HttpHead& head) { static_cast<HttpHead&>(state->response) = head; },
                           .on_data =
                               [state, most](std::string_view bytes) {
                                 const uint64_t room = most - state->response.body.size();
                                 state->response.body += bytes.substr(0, std::min<uint64_t>(room, bytes.size()));
                                 if (bytes.size() > room) state->truncated = true;
                               },
                           .on_done = [state](const Status& status) { state->end = status; }});
  bool cancelled = false;
  while (!state->end.has_value()) {
    client->RunOne(After(std::chrono::milliseconds(50)));
    if (cancelled || !(state->truncated || interrupted())) continue;
    cancelled = true;
    client->Cancel(id);
  }
  if (!state->truncated) GYRE_RETURN_IF_ERROR(*state->end);
  static_cast<HttpResponse&>(*out) = std::move(state->response);
  out->truncated = state->truncated;
  return absl::OkStatus();
}

}  // namespace

bool IsRedirect(const HttpHead& head) {
  return (head.code == 301 || head.code == 302 || head.code == 303 || head.code == 307 || head.code == 308) &&
         !FindHeader(head.headers, "location").empty();
}

HttpFetcher::HttpFetcher(HttpFetcherOptions options) : options_(std::move(options)) {}

StatusOr<std::unique_ptr<HttpFetcher>> HttpFetcher::Make(HttpFetcherOptions options) {
  std::unique_ptr<HttpFetcher> fetcher(new HttpFetcher(std::move(options)));
  // The CA file is read when a client is made, so one is made now: errors come before the first request.
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
                                       const std::function<bool()>& interrupted, uint64_t most) {
  HttpFetched out;
  GYRE_ASSIGN_OR_RETURN(out.address, ParseAddress(url));
  for (int redirects = 0;; ++redirects) {
    GYRE_ASSIGN_OR_RETURN(HttpClient * client, ClientFor(out.address.server));
    GYRE_RETURN_IF_ERROR(
        FetchUpTo(client, {.target = out.address.target, .headers = headers}, most, interrupted, &out));
    if (!IsRedirect(out)) return out;
    if (redirects == options_.max_redirects) return DataLoss("{}: more than {} redirects", url, redirects);
    out.redirect_headers.insert(out.redirect_headers.end(), out.headers.begin(), out.headers.end());
    const StatusOr<HttpAddress> next = ResolveReference(out.address, FindHeader(out.headers, "location"));
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
