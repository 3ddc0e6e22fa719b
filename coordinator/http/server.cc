#include "coordinator/http/server.h"

#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <thread>
#include <unordered_map>

#include "base/host_port.h"
#include "base/log.h"
#include "base/thread.h"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/ip/v6_only.hpp"
#include "coordinator/http/arrivals.h"
#include "coordinator/http/connection.h"
#include "coordinator/http/server_core.h"
#include "coordinator/http/tls.h"
#include "transport/fd.h"

namespace gyre::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// The pause after an accept that failed for lack of descriptors or memory.
constexpr auto kRest = std::chrono::milliseconds(100);
constexpr size_t kTurnedAway = 64;  // at once
// Accepted in a second, also of those that then have to wait or to give way; the others wait in the kernel's queue.
constexpr double kAccepts = 5000;
constexpr AdmissionLimits kWaiting{.total = 256, .per_address = 64};
constexpr int kBatch = 32;  // accepted before others have their turn on the thread
// Between two looks whether the turn of those that wait has come.
constexpr auto kTurn = std::chrono::milliseconds(20);
constexpr char kFull[] =
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 91\r\nretry-after: 1\r\n"
    "connection: close\r\n\r\n"
    "{\"error\":{\"message\":\"too many connections\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";

// The most connections: those of the options, limited by the descriptors of the process. The others are for links,
// files and threads. A shell's limit is often a small one, which each process may raise.
size_t MostConnections(size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::min<size_t>(768, wanted);
  const rlim_t needed = wanted + wanted / 2;
  if (limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max) {
    rlimit higher = limit;
    higher.rlim_cur = std::min(needed, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &higher) == 0) limit = higher;
  }
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur - limit.rlim_cur / 4, wanted));
}

std::string RandomPrefix() {
  uint32_t bits = 0;
  [[maybe_unused]] const ssize_t n = getrandom(&bits, sizeof bits, 0);
  return fmt::format("{:08x}-", bits);
}

// Clients that come together never wait, as a burst is as large as all connections that there may be.
AddressLimits ArrivalLimits(const ServerOptions& options, size_t most) {
  const ServerLimits& l = options.limits;
  const bool tls = !options.tls_cert.empty();
  const auto burst = static_cast<double>(std::max(most, l.arrivals_at_once));
  return {.per_second = tls ? l.handshakes_per_second : l.arrivals_per_second,
          .burst = 2 * burst,
          .address_per_second = tls ? l.address_handshakes_per_second : l.address_arrivals_per_second,
          .address_burst = burst};
}

StatusOr<tcp::acceptor> Bind(asio::io_context& io, const HostPort& at, const std::string& address) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(at.host, std::to_string(at.port), tcp::resolver::passive, error);
  if (error) return Unavailable("cannot listen at {}: {}", address, error.message());
  for (const auto& entry : found) {
    tcp::acceptor acceptor(io);
    const tcp::endpoint endpoint = entry.endpoint();
    error = {};
    acceptor.open(endpoint.protocol(), error);
    if (error) continue;
    error_code ignored;
    acceptor.set_option(tcp::acceptor::reuse_address(true), ignored);
    if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), ignored);
    acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(1024, error);
    if (!error) return acceptor;
  }
  if (error == asio::error::address_in_use) {
    return Unavailable("cannot listen at {}: another program has the port (port 0 takes any free one)", address);
  }
  return Unavailable("cannot listen at {}: {}", address, error.message());
}

struct Files {
  std::shared_ptr<const ApiKeys> keys;
  std::shared_ptr<asio::ssl::context> tls;
};

StatusOr<Files> LoadFiles(const ServerOptions& options) {
  Files files;
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return InvalidArgument("a certificate and its key belong together, only one of them is given");
  }
  if (!options.tls_cert.empty()) {
    GYRE_ASSIGN_OR_RETURN(files.tls, LoadTls(options.tls_cert, options.tls_key));
  }
  if (!options.api_keys.empty()) {
    GYRE_ASSIGN_OR_RETURN(ApiKeys keys, ApiKeys::Load(options.api_keys));
    files.keys = std::make_shared<const ApiKeys>(std::move(keys));
  }
  return files;
}

class Server final : public HttpServer {
 public:
  Server(ServerOptions options, Router router)
      : core_(std::move(options), std::move(router)),
        most_(MostConnections(core_.options.limits.connections)),
        accepts_(kAccepts, 2 * static_cast<double>(most_) + kAccepts),
        arrivals_(ArrivalLimits(core_.options, most_), kWaiting, core_.options.limits.arrival_time),
        acceptor_(io()),
        ticker_(io()) {
    core_.id_prefix = RandomPrefix();
  }
  ~Server() override { Server::Stop(); }

  Status Start();
  const std::string& address() const override { return address_; }
  const std::string& url() const override { return url_; }
  void SetRouter(Router router) override { core_.SetRouter(std::move(router)); }
  Status Reload() override;
  void Drain() override {
    asio::post(io(), [this] {
      core_.draining = true;
      CloseAcceptor();
    });
  }
  ServerStats stats() const override {
    return {.connections = core_.connections,
            .accepted = core_.accepted,
            .refused = core_.refused,
            .active = core_.active,
            .requests = core_.requests,
            .bytes_sent = core_.bytes_sent};
  }
  void Stop() override;

 private:
  asio::io_context& io() { return core_.hub->io(); }
  void Loop();
  void CloseAcceptor() {
    error_code ignored;
    acceptor_.close(ignored);
  }
  Awaitable<void> Accept();
  // A number of connections that are there. Returns an error for which it has to rest, or 0.
  int AcceptSome();
  void Serve(Fd fd);
  void Refuse(Fd fd);
  void Take(tcp::socket socket);
  // Ends the connection that has been idle longest. Returns false if none is idle.
  bool EndOldestIdle();
  Awaitable<void> Tick();

  ServerCore core_;
  const size_t most_;
  std::string address_, url_;
  TokenBucket accepts_;    // server's thread
  Arrivals<Fd> arrivals_;  // server's thread
  tcp::acceptor acceptor_;
  asio::steady_timer ticker_;
  std::unordered_map<const Connection*, std::shared_ptr<Connection>> connections_;  // server's thread
  // Clients that were told that the server is full. Closing at once could lose this answer. Server's thread.
  std::deque<std::pair<Deadline, tcp::socket>> turned_away_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
};

Status Server::Start() {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(core_.options.address));
  GYRE_ASSIGN_OR_RETURN(core_.origins, MakeOriginRules(at.host, core_.options.hosts, core_.options.cors));
  GYRE_ASSIGN_OR_RETURN(Files files, LoadFiles(core_.options));
  core_.keys = std::move(files.keys);
  core_.tls = std::move(files.tls);
  GYRE_ASSIGN_OR_RETURN(acceptor_, Bind(io(), at, core_.options.address));
  error_code error;
  const tcp::endpoint bound = acceptor_.local_endpoint(error);
  if (error) return Unavailable("cannot listen at {}: {}", core_.options.address, error.message());
  address_ = FormatHostPort(at.host, bound.port());
  url_ = (core_.tls != nullptr ? "https://" : "http://") + address_;
  const auto say = [](std::exception_ptr thrown) {
    if (thrown != nullptr) std::rethrow_exception(thrown);
  };
  asio::co_spawn(io(), Accept(), say);
  asio::co_spawn(io(), Tick(), say);
  GYRE_ASSIGN_OR_RETURN(thread_, StartThread("http", [this] { Loop(); }));
  return absl::OkStatus();
}

void Server::Loop() {
  for (;;) {
    try {
      io().run();
      return;
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "http: {}", e.what());
    }
  }
}

Awaitable<void> Server::Accept() {
  error_code ignored;
  acceptor_.native_non_blocking(true, ignored);
  while (acceptor_.is_open()) {
    if (const Deadline now = Clock::now(); !accepts_.Has(now)) {
      asio::steady_timer rest(io(), accepts_.Next(now));
      co_await rest.async_wait(kAwait);
      continue;
    }
    co_await acceptor_.async_wait(tcp::acceptor::wait_read, kAwait);
    if (!acceptor_.is_open()) break;
    const int error = AcceptSome();
    if (error == 0) continue;
    Log(LogLevel::kWarn, "http: a connection can't be accepted: {}", std::strerror(error));
    asio::steady_timer rest(io(), kRest);
    co_await rest.async_wait(kAwait);
  }
}

// A connection that is refused costs three system calls and no more, so the sockets are not asio's until they are
// served.
int Server::AcceptSome() {
  for (int i = 0; i < kBatch; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Fd fd(
        ::accept4(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.ok()) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : errno;
    accepts_.Take();
    ++core_.accepted;
    const StatusOr<HostPort> peer = NumericHostPort(from, size);
    auto outcome = arrivals_.Arrive(peer.ok() ? peer->host : "?", std::move(fd), Clock::now());
    if (outcome.serve) Serve(std::move(*outcome.serve));
    if (outcome.give_way) Refuse(std::move(*outcome.give_way));
  }
  return 0;
}

// With a reset, which leaves nothing in the kernel.
void Server::Refuse(Fd fd) {
  ++core_.refused;
  const linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

void Server::Serve(Fd fd) {
  error_code error;
  tcp::socket socket(io());
  socket.assign(acceptor_.is_open() ? acceptor_.local_endpoint(error).protocol() : tcp::v4(), fd.get(), error);
  if (error) return;
  fd.release();
  try {
    Take(std::move(socket));
  } catch (const std::exception& e) {
    Log(LogLevel::kError, "http: a connection can't be served: {}", e.what());
  }
}

void Server::Take(tcp::socket socket) {
  if (connections_.size() >= most_ && !EndOldestIdle()) {
    ++core_.refused;
    if (core_.tls != nullptr || turned_away_.size() >= kTurnedAway) return;
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFull, sizeof kFull - 1), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    turned_away_.emplace_back(After(core_.options.limits.linger_time), std::move(socket));
    return;
  }
  const auto connection = std::make_shared<Connection>(core_, std::move(socket));
  connections_.emplace(connection.get(), connection);
  core_.connections = connections_.size();
  asio::co_spawn(io(), connection->Run(), [this, connection](std::exception_ptr thrown) {
    connections_.erase(connection.get());
    core_.connections = connections_.size();
    connection->Abort();
    if (thrown != nullptr) std::rethrow_exception(thrown);
  });
}

bool Server::EndOldestIdle() {
  const Connection* oldest = nullptr;
  Deadline since = kNoDeadline;
  for (const auto& [key, connection] : connections_) {
    const std::optional<Deadline> idle = connection->idle_since();
    if (!idle || *idle >= since) continue;
    since = *idle;
    oldest = key;
  }
  if (oldest == nullptr) return false;
  // It leaves the map now, as its own end comes a moment later.
  const auto connection = std::move(connections_.extract(oldest).mapped());
  connection->Abort();
  return true;
}

Awaitable<void> Server::Tick() {
  const ServerLimits& limits = core_.options.limits;
  const Duration least = std::min({limits.head_time, limits.body_time, limits.idle_time, limits.write_time});
  const Duration tick = std::clamp<Duration>(least / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(250));
  Deadline check = After(tick);
  while (!stopped_) {
    ticker_.expires_at(arrivals_.waiting() == 0 ? check : std::min(check, After(kTurn)));
    co_await ticker_.async_wait(kAwait);
    const Deadline now = Clock::now();
    for (Fd& late : arrivals_.Expired(now)) Refuse(std::move(late));
    for (Fd& next : arrivals_.Turns(now)) Serve(std::move(next));
    if (now < check) continue;
    check = now + tick;
    while (!turned_away_.empty() && turned_away_.front().first <= now) turned_away_.pop_front();
    for (const auto& [key, connection] : connections_) connection->CheckTime(now);
  }
}

Status Server::Reload() {
  GYRE_ASSIGN_OR_RETURN(Files files, LoadFiles(core_.options));
  asio::post(io(), [this, files = std::move(files)] {
    core_.keys = files.keys;
    core_.tls = files.tls;
  });
  return absl::OkStatus();
}

void Server::Stop() {
  if (stopped_.exchange(true)) return;
  if (!thread_.joinable()) return;
  asio::post(io(), [this] {
    core_.draining = true;
    CloseAcceptor();
    ticker_.cancel();
    turned_away_.clear();
    arrivals_.Clear();
    for (const auto& [key, connection] : connections_) connection->Abort();
  });
  thread_.join();
  core_.hub->Stop();
}

}  // namespace

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Open(ServerOptions options, Router router) {
  auto server = std::make_unique<Server>(std::move(options), std::move(router));
  GYRE_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

Status CheckSettings(const ServerOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options.address));
  GYRE_RETURN_IF_ERROR(MakeOriginRules(at.host, options.hosts, options.cors).status());
  return LoadFiles(options).status();
}

}  // namespace gyre::http
