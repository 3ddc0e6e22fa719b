#include "http_client/http_client.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "http_client/http_message.h"
#include "http_client/system_roots.h"

namespace gyre {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// The most bytes that one read takes.
constexpr size_t kReadBytes = 65536;

// All connections to one server. Stream: plain TCP, or TLS over it.
template <class Stream>
class Client : public HttpClient {
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;
  using Tls = std::unique_ptr<asio::ssl::context>;

 public:
  Client(const Url& url, const HttpClientOptions& options) : HttpClient(url), options_(options) {}

  Status Prepare() {
    if constexpr (kTls) {
      // The stamps are taken first, so that a file that changes meanwhile is read again the next time.
      std::string stamps = TlsStamps();
      GYRE_ASSIGN_OR_RETURN(tls_, MakeTls());
      tls_stamps_ = std::move(stamps);
    }
    return absl::OkStatus();
  }

  HttpId Start(HttpRequest request, HttpHandlers handlers) override {
    auto exchange = std::make_shared<Exchange>(*this, ++last_id_, std::move(handlers));
    exchange->Prepare(std::move(request));
    running_[last_id_] = exchange;
    asio::post(io_, [exchange] { exchange->Begin(); });
    return last_id_;
  }

  void Cancel(HttpId id) override {
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    asio::post(io_, [exchange = found->second] { exchange->End(absl::CancelledError("cancelled")); });
  }

  void At(Deadline time, std::function<void()> fn) override {
    auto timer = std::make_shared<asio::steady_timer>(io_, time);
    timer->async_wait([timer, fn = std::move(fn)](const error_code& error) {
      if (!error) fn();
    });
  }

  void RunOne(Deadline until) override {
    io_.restart();
    io_.run_one_until(until);
  }

  size_t open_connections() const override { return open_; }

  size_t DropClosed(int pool) override {
    auto& idle = idle_[pool];
    const auto closed = std::remove_if(idle.begin(), idle.end(), [](const auto& c) { return c->Stale(); });
    const auto count = static_cast<size_t>(idle.end() - closed);
    idle.erase(closed, idle.end());
    return count;
  }

 private:
  struct Connection {
    explicit Connection(Client& c) : client(c), stream(MakeStream(c)), data(kReadBytes) {
      buffer.reserve(kReadBytes);
      ++client.open_;
    }
    ~Connection() { --client.open_; }
    static Stream MakeStream(Client& c) {
      if constexpr (kTls) {
        return Stream(c.io_, *c.tls_);
      } else {
        return Stream(c.io_);
      }
    }
    beast::tcp_stream& tcp() { return beast::get_lowest_layer(stream); }
    // Whether the server has closed the connection, or sent bytes that nobody asked for.
    bool Stale() {
      char byte = 0;
      error_code error;
      tcp().socket().non_blocking(true, error);
      tcp().socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
      return error != asio::error::would_block;
    }
    Client& client;
    Stream stream;
    beast::flat_buffer buffer;
    std::vector<char> data;  // a piece of the body
  };

  // A request and its answer.
  class Exchange : public std::enable_shared_from_this<Exchange> {
   public:
    Exchange(Client& client, HttpId id, HttpHandlers handlers)
        : client_(client), id_(id), handlers_(std::move(handlers)), connecting_(client.io_) {}

    void Prepare(HttpRequest&& r) {
      pool_ = r.pool;
      request_ = MakeRequest(client_.url_, client_.options_, std::move(r));
    }

    void Begin() {
      if (ended_) return;
      connection_ = client_.TakeIdle(pool_);
      reused_ = connection_ != nullptr;
      if (reused_) {
        Write();
      } else {
        Connect();
      }
    }
    void End(Status status) {
      if (ended_) return;
      ended_ = true;
      connecting_.cancel();
      if (connection_ != nullptr && status.ok() && parser_->keep_alive()) {
        client_.idle_[pool_].push_back(std::move(connection_));
      } else if (connection_ != nullptr) {
        connection_->tcp().close();
      }
      const auto keep = this->shared_from_this();
      client_.running_.erase(id_);
      if (handlers_.on_done) handlers_.on_done(status);
      handlers_ = {};
    }

   private:
    // A step's continuation, which does nothing once the exchange has ended. failed: the text before the error.
    template <class... A>
    auto Then(const char* failed, void (Exchange::*next)(const error_code&, A...)) {
      return [self = this->shared_from_this(), failed, next](const error_code& error, std::decay_t<A>... result) {
        if (self->ended_) return;
        if (error && failed != nullptr) return self->Fail(failed, error);
        (self.get()->*next)(error, result...);
      };
    }

    void Fail(const char* what, const error_code& error) {
      // The server may have closed a kept connection just when the request was sent.
      if (IsClosed(error) && reused_ && !answered_) {
        connection_->tcp().close();
        connection_ = nullptr;
        parser_.reset();
        client_.DropClosed(pool_);
        return Begin();
      }
      std::string cause;
      if constexpr (kTls) cause = TlsCause(connection_->stream.native_handle(), client_.options_, error);
      End(RequestError(client_.url_, client_.options_, what, error, answered_, cause));
    }

    void Connect() {
      if constexpr (kTls) client_.RefreshTls();
      connection_ = std::make_unique<Connection>(client_);
      connecting_.expires_after(client_.options_.connect_timeout);
      connecting_.async_wait([self = this->shared_from_this()](const error_code& error) {
        if (error || self->ended_) return;
        self->End(DeadlineExceeded(
            "{}: there was no connection within {} s", FormatUrl(self->client_.url_),
            std::chrono::duration_cast<std::chrono::seconds>(self->client_.options_.connect_timeout).count()));
      });
      if (!client_.endpoints_.empty()) return Dial();
      const Url& next = client_.options_.proxy.has_value() ? client_.options_.proxy->url : client_.url_;
      error_code no_number;
      const auto address = asio::ip::make_address(next.host, no_number);
      if (!no_number) {
        client_.endpoints_ = {tcp::endpoint(address, next.port)};
        return Dial();
      }
      client_.resolver_.async_resolve(next.host, std::to_string(next.port),
                                      Then("the name is not found", &Exchange::OnResolved));
    }
    void OnResolved(const error_code&, const tcp::resolver::results_type& results) {
      client_.endpoints_.clear();
      for (const auto& entry : results) client_.endpoints_.push_back(entry.endpoint());
      Dial();
    }
    void Dial() {
      // If this connection fails, the next one asks for the addresses anew.
      const std::vector<tcp::endpoint> endpoints = std::exchange(client_.endpoints_, {});
      connection_->tcp().async_connect(endpoints, Then("cannot connect", &Exchange::OnConnected));
    }
    void OnConnected(const error_code&, const tcp::endpoint& reached) {
      client_.endpoints_ = {reached};
      error_code ignored;
      connection_->tcp().socket().set_option(tcp::no_delay(true), ignored);
      if (kTls && client_.options_.proxy.has_value()) return Tunnel();
      StartTls();
    }

    // Asks the proxy for a connection on which TLS can begin.
    void Tunnel() {
      tunnel_request_ = MakeConnectRequest(client_.url_, *client_.options_.proxy);
      http::async_write(connection_->tcp(), tunnel_request_, Then("the proxy", &Exchange::OnTunnelAsked));
    }
    void OnTunnelAsked(const error_code&, size_t) {
      tunnel_.emplace();
      tunnel_->skip(true);
      http::async_read_header(connection_->tcp(), connection_->buffer, *tunnel_,
                              Then("the proxy", &Exchange::OnTunnel));
    }
    void OnTunnel(const error_code&, size_t) {
      const unsigned code = tunnel_->get().result_int();
      const std::string proxy = FormatUrl(client_.options_.proxy->url), server = FormatUrl(client_.url_);
      if (code == 407) {
        return End(FailedPrecondition("{}: the proxy {} wants a user and a password, or others than were given", server,
                                      proxy));
      }
      if (code / 100 != 2) return End(Unavailable("{}: the proxy {} answers {}", server, proxy, code));
      if (connection_->buffer.size() > 0) return End(DataLoss("{}: the proxy {} says too much", server, proxy));
      StartTls();
    }

    void StartTls() {
      if constexpr (kTls) {
        error_code ignored;
        const std::string& host = client_.url_.host;
        connection_->stream.set_verify_callback(asio::ssl::host_name_verification(host));
        asio::ip::make_address(host, ignored);
        if (ignored) SSL_set_tlsext_host_name(connection_->stream.native_handle(), host.c_str());
        connection_->stream.async_handshake(asio::ssl::stream_base::client, Then("TLS", &Exchange::OnHandshake));
      } else {
        OnHandshake({});
      }
    }
    void OnHandshake(const error_code&) {
      connecting_.cancel();
      Write();
    }

    void Write() {
      connection_->tcp().expires_after(client_.options_.idle_timeout);
      http::async_write(connection_->stream, request_, Then("the request is not sent", &Exchange::OnWritten));
    }
    void OnWritten(const error_code&, size_t) {
      parser_.emplace();
      parser_->header_limit(static_cast<uint32_t>(client_.options_.max_header_bytes));
      parser_->body_limit(client_.options_.max_body_bytes);
      http::async_read_header(connection_->stream, connection_->buffer, *parser_, Then("no answer", &Exchange::OnHead));
    }
    void OnHead(const error_code&, size_t) {
      answered_ = true;
      const auto& head = parser_->get();
      if (head.result_int() / 100 == 1) return OnWritten({}, 0);  // "100 Continue" and its like
      if (handlers_.on_head) {
        const auto reason = head.reason();
        handlers_.on_head(MakeHead(head, head.result_int(), {reason.data(), reason.size()}));
      }
      Read();
    }
    void Read() {
      if (ended_) return;
      if (parser_->is_done()) return End(absl::OkStatus());
      auto& body = parser_->get().body();
      body.data = connection_->data.data();
      body.size = connection_->data.size();
      body.more = true;
      connection_->tcp().expires_after(client_.options_.idle_timeout);
      http::async_read_some(connection_->stream, connection_->buffer, *parser_, Then(nullptr, &Exchange::OnRead));
    }
    void OnRead(const error_code& error, size_t) {
      const size_t got = connection_->data.size() - parser_->get().body().size;
      if (got > 0 && handlers_.on_data) handlers_.on_data({connection_->data.data(), got});
      if (ended_) return;
      if (error && error != http::error::need_buffer) return Fail("the answer", error);
      Read();
    }

    Client& client_;
    const HttpId id_;
    int pool_ = 0;
    HttpHandlers handlers_;
    asio::steady_timer connecting_;
    std::unique_ptr<Connection> connection_;
    BeastRequest request_;
    std::optional<http::response_parser<http::buffer_body>> parser_;
    std::optional<http::response_parser<http::empty_body>> tunnel_;
    BeastRequest tunnel_request_;
    bool reused_ = false, answered_ = false, ended_ = false;
  };

  std::string TlsStamps() const {
    return FileStamp(options_.ca_file) + FileStamp(options_.cert_file) + FileStamp(options_.key_file);
  }
  // Reads the files of TLS.
  StatusOr<Tls> MakeTls() const {
    auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
    SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_2_VERSION);
    TrustSystemRoots(tls->native_handle());
    error_code error;
    if (!options_.ca_file.empty()) {
      tls->load_verify_file(options_.ca_file, error);
      if (error) return InvalidArgument("{}: {}, expected certificates in PEM form", options_.ca_file, error.message());
    }
    if (!options_.cert_file.empty()) {
      tls->use_certificate_chain_file(options_.cert_file, error);
      if (error)
        return InvalidArgument("{}: {}, expected a certificate in PEM form", options_.cert_file, error.message());
      tls->use_private_key_file(options_.key_file, asio::ssl::context::pem, error);
      if (error)
        return InvalidArgument("{}: {}, expected the certificate's key in PEM form", options_.key_file,
                               error.message());
      // A key of another kind than the certificate's is no error before this.
      if (SSL_CTX_check_private_key(tls->native_handle()) != 1) {
        ERR_clear_error();
        return InvalidArgument("{}: it is not the key of {}, expected the certificate's", options_.key_file,
                               options_.cert_file);
      }
      GYRE_RETURN_IF_ERROR(CheckNotEnded(SSL_CTX_get0_certificate(tls->native_handle()), options_.cert_file));
    }
    tls->set_verify_mode(asio::ssl::verify_peer);
    return tls;
  }
  // Reads the files of TLS again if they changed. Where they are no good, as when one of them is written later, the
  // next connection reads them again, and until then it stays as it was.
  void RefreshTls() {
    std::string stamps = TlsStamps();
    if (stamps == tls_stamps_) return;
    StatusOr<Tls> fresh = MakeTls();
    if (fresh.ok()) {
      tls_ = *std::move(fresh);  // connections keep what they began with
      tls_stamps_ = std::move(stamps);
    } else if (stamps != refused_stamps_) {
      Log(LogLevel::kWarn, "the certificates for {} stay as they were: {}", FormatUrl(url_), Message(fresh.status()));
      refused_stamps_ = std::move(stamps);
    }
  }
  std::unique_ptr<Connection> TakeIdle(int pool) {
    auto& idle = idle_[pool];
    while (!idle.empty()) {
      std::unique_ptr<Connection> c = std::move(idle.back());
      idle.pop_back();
      if (!c->Stale()) return c;
    }
    return nullptr;
  }
  const HttpClientOptions options_;
  size_t open_ = 0;
  Tls tls_;
  std::string tls_stamps_, refused_stamps_;  // of its files, when they were read, and when they were no good
  asio::io_context io_{1};
  tcp::resolver resolver_{io_};
  std::vector<tcp::endpoint> endpoints_;                          // the host's, once they are known
  std::map<int, std::vector<std::unique_ptr<Connection>>> idle_;  // by pool
  std::map<HttpId, std::shared_ptr<Exchange>> running_;
  HttpId last_id_ = 0;
};

template <class Stream>
StatusOr<std::unique_ptr<HttpClient>> MakeOf(const Url& url, const HttpClientOptions& options) {
  auto client = std::make_unique<Client<Stream>>(url, options);
  GYRE_RETURN_IF_ERROR(client->Prepare());
  return std::unique_ptr<HttpClient>(std::move(client));
}

}  // namespace

std::string FindHeader(const HttpHeaders& headers, std::string_view name) {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const auto& h) {
    return beast::iequals({h.first.data(), h.first.size()}, {name.data(), name.size()});
  });
  return found == headers.end() ? "" : found->second;
}

StatusOr<std::unique_ptr<HttpClient>> HttpClient::Make(const Url& url, const HttpClientOptions& options) {
  return url.tls ? MakeOf<TlsStream>(url, options) : MakeOf<beast::tcp_stream>(url, options);
}

StatusOr<HttpResponse> HttpClient::Fetch(HttpRequest request, const std::function<bool()>& interrupted) {
  return FetchStream(std::move(request), nullptr, interrupted);
}

StatusOr<HttpResponse> HttpClient::FetchStream(HttpRequest request,
                                               const std::function<void(std::string_view)>& on_data,
                                               const std::function<bool()>& interrupted) {
  // The handlers share it, as they may outlive this call by one turn.
  struct State {
    HttpResponse response;
    std::optional<Status> end;
  };
  auto state = std::make_shared<State>();
  const HttpId id = Start(std::move(request),
                          {.on_head = [state](const HttpHead& head) { static_cast<HttpHead&>(state->response) = head; },
                           .on_data =
                               [state, on_data](std::string_view bytes) {
                                 if (on_data != nullptr && state->response.code == 200) {
                                   on_data(bytes);
                                 } else {
                                   state->response.body += bytes;
                                 }
                               },
                           .on_done = [state](const Status& status) { state->end = status; }});
  bool cancelled = false;
  while (!state->end) {
    RunOne(After(std::chrono::milliseconds(50)));
    if (cancelled || !interrupted()) continue;
    cancelled = true;
    Cancel(id);
  }
  GYRE_RETURN_IF_ERROR(*state->end);
  return std::move(state->response);
}

}  // namespace gyre
