// An HTTP/1.1 client for one server: kept connections, answers that stream, TLS.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "http_client/proxy.h"
#include "http_client/url.h"

namespace gyre {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;  // names and values
// The first value of that name, in upper or lower case; "" = there is none.
std::string FindHeader(const HttpHeaders& headers, std::string_view name);

struct HttpClientOptions {
  std::string ca_file;                                  // PEM certificates that are trusted beside the system's
  std::string cert_file, key_file;                      // this side's certificate chain and key, PEM; "" = none
  std::string ca_flag = "--ca", cert_flag = "";         // the flags that name these files, for errors; "" = none does
  std::string bearer;                                   // "Authorization: Bearer ..."; "" = none
  Duration connect_timeout = std::chrono::seconds(15);  // the name's look-up, TCP and TLS together
  Duration idle_timeout = std::chrono::minutes(10);     // without a byte, while an answer is waited for
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_body_bytes = size_t{256} << 20;  // one answer's
  std::optional<Proxy> proxy;                 // the way to the server; nullopt = straight
};

struct HttpRequest {
  std::string method = "GET";
  std::string target;   // path and query, as "/v1/models"
  std::string body;     // JSON; sent where it is not empty
  int pool = 0;         // requests of one pool leave the connections of others alone
  HttpHeaders headers;  // beside those that every request has, or in their place
};

struct HttpHead {
  int code = 0;
  std::string reason, content_type, retry_after;  // "" = not told
  HttpHeaders headers;                            // all
};
struct HttpResponse : HttpHead {
  std::string body;
};

struct HttpHandlers {
  std::function<void(const HttpHead&)> on_head;
  std::function<void(std::string_view)> on_data;  // as bytes come
  // Called once, as the last. OK: the answer is complete, whatever its code. kUnavailable: no connection, or it broke.
  // kDeadlineExceeded: a time limit. kCancelled. kResourceExhausted: the answer is too long. kDataLoss: not HTTP.
  // kFailedPrecondition: the proxy wants a password.
  std::function<void(const Status&)> on_done;
};

using HttpId = uint64_t;

// Not thread-safe: everything happens within the calls to RunOne, on the thread that makes them. Handlers may call all
// methods but RunOne and Fetch. Hundreds of requests may run at once, a connection each; idle connections are used
// again, and a request that finds one closed is sent again on a new one. If the files of TLS change, new connections
// use what they hold then; while they are no good (a certificate came, its key did not yet), what they held before.
class HttpClient {
 public:
  // kNotFound, kInvalidArgument: the CA file, or the own certificate. kFailedPrecondition: that one has ended.
  static StatusOr<std::unique_ptr<HttpClient>> Make(const Url& url, const HttpClientOptions& options);
  virtual ~HttpClient() = default;

  virtual HttpId Start(HttpRequest request, HttpHandlers handlers) = 0;
  // Closes the request's connection; on_done(kCancelled) comes later. Does nothing if the request has ended.
  virtual void Cancel(HttpId id) = 0;
  // Calls `fn` at that time.
  virtual void At(Deadline time, std::function<void()> fn) = 0;
  // Waits until something happened, or until the given time.
  virtual void RunOne(Deadline until) = 0;
  virtual size_t open_connections() const = 0;
  // Drops the idle connections of a pool that the server has closed, and returns their number.
  virtual size_t DropClosed(int pool) = 0;

  // Makes one request and waits for its end. `interrupted` is asked every 50 ms; then kCancelled. Errors as on_done.
  StatusOr<HttpResponse> Fetch(HttpRequest request, const std::function<bool()>& interrupted);
  // Like Fetch, but if the code is 200, the body is handed over as it comes and is not kept.
  StatusOr<HttpResponse> FetchStream(HttpRequest request, const std::function<void(std::string_view)>& on_data,
                                     const std::function<bool()>& interrupted);
  const Url& url() const { return url_; }

 protected:
  explicit HttpClient(Url url) : url_(std::move(url)) {}
  const Url url_;
};

}  // namespace gyre
