#include "transport/ring_port.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <map>
#include <thread>
#include <tuple>
#include <vector>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/mutex.h"
#include "transport/inproc_link.h"

namespace gyre {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// A hop's receiving end that nobody has claimed yet.
struct Parked {
  Hello hello;
  std::unique_ptr<Link> link;
  bool local = false;
  Deadline since = Clock::now();
};

std::string Describe(const Hello& h) {
  return fmt::format("{} {} of plan {}", h.role == LinkRole::kRing ? "hop" : "bulk link", h.hop, h.epoch.number);
}

Status SendReply(Link& link, const HelloReply& reply) {
  const auto payload = EncodeHelloReply(reply);
  const ByteSpan parts[] = {payload};
  return link.Send({.kind = FrameKind::kHello}, parts, After(std::chrono::seconds(1)));
}

class Port : public RingPort {
 public:
  explicit Port(const RingPortOptions& options) : options_(options), acceptor_(io_) {}
  ~Port() override {
    asio::post(io_, [this] {
      ErrorCode ignored;
      acceptor_.close(ignored);
      strangers_.clear();
    });
    work_.reset();
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status Listen();
  const std::string& address() const override { return address_; }
  StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline) override;
  StatusOr<std::unique_ptr<Link>> Accept(const Hello& expected, Deadline deadline) override;
  void SetBulkHandler(const std::string& name, BulkHandler handler) override {
    MutexLock lock(&bulk_mutex_);
    if (handler) {
      bulk_[name] = std::move(handler);
    } else {
      bulk_.erase(name);
    }
  }
  void SetKey(uint64_t term, const RingKey& key) override {
    MutexLock lock(&mutex_);
    term_ = term;
    key_ = key;
  }
  void Cancel(Epoch epoch) override;
  RingPortStats stats() const override {
    MutexLock lock(&mutex_);
    RingPortStats stats = stats_;
    stats.waiting = parked_.size();
    return stats;
  }

 private:
  // A connection that has not said its hello.
  struct Stranger {
    Stranger(tcp::socket s, asio::io_context& io) : socket(std::move(s)), timer(io) {}
    tcp::socket socket;
    asio::steady_timer timer;
    std::array<std::byte, kFrameHeaderBytes> header{};
    FrameHeader frame;
    std::vector<std::byte> payload;
    std::string peer;
  };

  void AcceptNext();
  void OnConnection(tcp::socket socket);
  void OnHeader(const std::shared_ptr<Stranger>& s);
  void OnHello(const std::shared_ptr<Stranger>& s);
  void Refuse(const std::shared_ptr<Stranger>& s, const std::string& why);
  void Forget(const std::shared_ptr<Stranger>& s) {
    s->timer.cancel();
    strangers_.remove(s);
  }
  // False: nobody wants it.
  bool Park(Parked parked);
  void DropOld() GYRE_REQUIRES(mutex_);
  bool Cancelled(Epoch epoch) const GYRE_REQUIRES(mutex_) {
    return epoch.term == cancelled_.term && epoch.number <= cancelled_.number;
  }

  const RingPortOptions options_;
  std::string address_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  tcp::acceptor acceptor_;
  std::list<std::shared_ptr<Stranger>> strangers_;  // of the port's thread
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Parked> parked_ GYRE_GUARDED_BY(mutex_);
  Epoch cancelled_ GYRE_GUARDED_BY(mutex_);
  uint64_t term_ GYRE_GUARDED_BY(mutex_) = 0;
  RingKey key_ GYRE_GUARDED_BY(mutex_){};
  RingPortStats stats_ GYRE_GUARDED_BY(mutex_);
  Mutex bulk_mutex_;
  std::map<std::string, BulkHandler> bulk_ GYRE_GUARDED_BY(bulk_mutex_);
  Deadline last_log_ = Deadline::min();  // of the port's thread
};

Status Port::Listen() {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options_.listen));
  ErrorCode error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(at.host, std::to_string(at.port), tcp::resolver::passive, error);
  if (error || found.empty()) return Unavailable("{}: {}", options_.listen, error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return Unavailable("cannot listen at {}: {}", options_.listen, error.message());
  const std::string& host = options_.advertise_host;
  const uint16_t bound = acceptor_.local_endpoint(error).port();
  // At all addresses: others know best how they reach this machine.
  const bool any = host.empty() && endpoint.address().is_unspecified();
  address_ = any ? fmt::format(":{}", bound) : FormatHostPort(host.empty() ? at.host : host, bound);
  AcceptNext();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "ring port");
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& e) {
        Log(LogLevel::kError, "ring port {}: {}", address_, e.what());
      }
    }
  });
  return absl::OkStatus();
}

void Port::AcceptNext() {
  acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) OnConnection(std::move(socket));
    if (error && error != asio::error::connection_aborted) {
      // Out of descriptors, say: try again a little later instead of spinning.
      auto timer = std::make_shared<asio::steady_timer>(io_, std::chrono::milliseconds(100));
      timer->async_wait([this, timer](const ErrorCode& e) {
        if (!e) AcceptNext();
      });
      return;
    }
    AcceptNext();
  });
}

void Port::OnConnection(tcp::socket socket) {
  ErrorCode error;
  auto s = std::make_shared<Stranger>(std::move(socket), io_);
  const auto peer = s->socket.remote_endpoint(error);
  s->peer = error ? "a peer" : FormatHostPort(peer.address().to_string(), peer.port());
  strangers_.push_back(s);
  if (strangers_.size() + stats().waiting > options_.max_strangers) return Refuse(s, "too many connections wait");
  s->timer.expires_after(options_.hello_timeout);
  s->timer.async_wait([this, s](const ErrorCode& e) {
    if (!e) Refuse(s, "no hello came in time");
  });
  asio::async_read(s->socket, asio::buffer(s->header.data(), s->header.size()), [this, s](const ErrorCode& e, size_t) {
    if (e == asio::error::operation_aborted) return;
    if (e) return Refuse(s, "it ended before its hello: " + e.message());
    OnHeader(s);
  });
}

void Port::OnHeader(const std::shared_ptr<Stranger>& s) {
  StatusOr<FrameHeader> header = DecodeHeader(s->header, kMaxHello);
  if (!header.ok()) return Refuse(s, Message(header.status()));
  if (header->kind != FrameKind::kHello) return Refuse(s, "its first frame is no hello");
  s->frame = *header;
  s->payload.resize(header->length);
  asio::async_read(s->socket, asio::buffer(s->payload.data(), s->payload.size()),
                   [this, s](const ErrorCode& e, size_t) {
                     if (e == asio::error::operation_aborted) return;
                     if (e) return Refuse(s, "it ended within its hello: " + e.message());
                     OnHello(s);
                   });
}

void Port::OnHello(const std::shared_ptr<Stranger>& s) {
  if (Crc32c(s->payload) != s->frame.payload_crc) return Refuse(s, "the checksum of its hello is wrong");
  StatusOr<Hello> hello = DecodeHello(s->payload);
  if (!hello.ok()) return Refuse(s, Message(hello.status()));
  if (hello->protocol != kLinkProtocol) {
    return Refuse(s, fmt::format("it speaks link protocol {}, expected {}", hello->protocol, kLinkProtocol));
  }
  {
    // Before the key of a term is known here its hellos wait; they are checked when they are claimed.
    MutexLock lock(&mutex_);
    const bool stale = hello->epoch.term != term_ && hello->role == LinkRole::kBulk;
    const bool wrong = hello->epoch.term == term_ && !SameKey(hello->key, key_);
    if (stale || wrong) hello->from.clear(), hello->protocol = 0;
  }
  if (hello->protocol == 0) return Refuse(s, "its hello has a wrong key");
  ErrorCode error;
  const int fd = s->socket.release(error);
  if (error) return Refuse(s, error.message());
  const std::string peer = fmt::format("{} ({})", hello->from, s->peer);
  Forget(s);
  Park({.hello = *hello, .link = MakeTcpLink(fd, peer, options_.tcp)});
}

// One line for the first, then a line a minute with their number.
void Port::Refuse(const std::shared_ptr<Stranger>& s, const std::string& why) {
  ErrorCode ignored;
  s->socket.close(ignored);
  Forget(s);
  uint64_t refused = 0;
  {
    MutexLock lock(&mutex_);
    refused = ++stats_.refused;
  }
  const Deadline now = Clock::now();
  if (last_log_ != Deadline::min() && now < last_log_ + std::chrono::minutes(1)) return;
  last_log_ = now;
  Log(LogLevel::kWarn, "ring port {}: refused {}: {} ({} refused since the start)", address_, s->peer, why, refused);
}

void Port::DropOld() {
  const Deadline limit = Clock::now() - std::chrono::seconds(60);
  parked_.remove_if([limit](const Parked& p) { return !p.local && p.since < limit; });
}

bool Port::Park(Parked parked) {
  {
    MutexLock lock(&mutex_);
    if (Cancelled(parked.hello.epoch)) return false;
    ++stats_.accepted;
    if (parked.hello.role == LinkRole::kRing) {
      DropOld();
      parked_.push_back(std::move(parked));
      changed_.SignalAll();
      return true;
    }
  }
  MutexLock lock(&bulk_mutex_);
  const auto handler = bulk_.find(parked.hello.to);
  const bool known = handler != bulk_.end();
  const std::string refusal = known ? "" : fmt::format("no worker {} here", parked.hello.to);
  if (!parked.local && !SendReply(*parked.link, {.refusal = refusal}).ok()) return false;
  if (known) handler->second(std::move(parked.link));
  return known;
}

StatusOr<std::unique_ptr<Link>> Port::Accept(const Hello& expected, Deadline deadline) {
  for (;;) {
    Parked found;
    {
      MutexLock lock(&mutex_);
      for (;;) {
        if (Cancelled(expected.epoch)) return absl::CancelledError("the plan was given up");
        auto it = parked_.begin();
        while (it != parked_.end() && !(it->hello.epoch == expected.epoch && it->hello.hop == expected.hop)) ++it;
        if (it != parked_.end()) {
          found = std::move(*it);
          parked_.erase(it);
          break;
        }
        if (!changed_.WaitUntil(&mutex_, deadline) && Clock::now() >= deadline) {
          return DeadlineExceeded("{}: nobody dialed it", Describe(expected));
        }
      }
    }
    if (found.local) return std::move(found.link);
    // A dialer that gave up meanwhile has closed its end; one that waits has sent nothing more.
    if (!absl::IsDeadlineExceeded(found.link->Recv(Clock::now()).status())) continue;
    std::string refusal;
    if (!SameKey(found.hello.key, expected.key))
      refusal = "the ring's key is another one";
    else if (found.hello.model_hash != expected.model_hash)
      refusal = "the model is another one";
    else if (found.hello.wire != expected.wire) {
      refusal = fmt::format("its activations would come as {}, the plan's are {} (--wire)",
                            WireTypeName(found.hello.wire), WireTypeName(expected.wire));
    }
    const Status sent = SendReply(*found.link, {.refusal = refusal});
    if (refusal.empty() && sent.ok()) return std::move(found.link);
    Log(LogLevel::kWarn, "{} from {}: {}", Describe(expected), found.hello.from,
        refusal.empty() ? Message(sent) : refusal);
  }
}

StatusOr<std::unique_ptr<Link>> Port::Dial(const std::string& address, const Hello& hello, Deadline deadline) {
  if (address == address_) {
    auto [here, there] = MakeInprocLinkPair({});
    if (!Park({.hello = hello, .link = std::move(there), .local = true})) {
      return hello.role == LinkRole::kBulk ? NotFound("no worker {} here", hello.to)
                                           : absl::CancelledError("the plan was given up");
    }
    return std::move(here);
  }
  {
    MutexLock lock(&mutex_);
    if (Cancelled(hello.epoch)) return absl::CancelledError("the plan was given up");
  }
  GYRE_ASSIGN_OR_RETURN(const int fd, ConnectTcp(address, deadline));
  std::unique_ptr<Link> link = MakeTcpLink(fd, address, options_.tcp);
  const auto payload = EncodeHello(hello);
  const ByteSpan parts[] = {payload};
  GYRE_RETURN_IF_ERROR(link->Send({.kind = FrameKind::kHello, .epoch = hello.epoch}, parts, deadline));
  for (;;) {
    // In turns, so that a plan that was given up ends the wait.
    StatusOr<Frame> frame = link->Recv(std::min(deadline, After(std::chrono::milliseconds(100))));
    if (frame.ok()) {
      if (frame->header.kind != FrameKind::kHello) return DataLoss("{} answered a hello with another frame", address);
      GYRE_ASSIGN_OR_RETURN(const HelloReply reply, DecodeHelloReply(frame->payload));
      if (!reply.refusal.empty())
        return FailedPrecondition("{} refuses {}: {}", address, Describe(hello), reply.refusal);
      return link;
    }
    if (!absl::IsDeadlineExceeded(frame.status())) return Annotate(frame.status(), Describe(hello));
    if (Clock::now() >= deadline) return DeadlineExceeded("{}: {} was not answered", address, Describe(hello));
    MutexLock lock(&mutex_);
    if (Cancelled(hello.epoch)) return absl::CancelledError("the plan was given up");
  }
}

void Port::Cancel(Epoch epoch) {
  std::list<Parked> dropped;
  MutexLock lock(&mutex_);
  if (cancelled_.term != epoch.term || cancelled_.number < epoch.number) cancelled_ = epoch;
  for (auto it = parked_.begin(); it != parked_.end();) {
    const auto next = std::next(it);
    if (Cancelled(it->hello.epoch)) dropped.splice(dropped.end(), parked_, it);
    it = next;
  }
  changed_.SignalAll();
}

}  // namespace

StatusOr<std::unique_ptr<RingPort>> RingPort::Open(const RingPortOptions& options) {
  auto port = std::make_unique<Port>(options);
  if (!options.listen.empty()) GYRE_RETURN_IF_ERROR(port->Listen());
  return std::unique_ptr<RingPort>(std::move(port));
}

}  // namespace gyre
