#include "coordinator/grpc/join_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <list>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/grpc/refusal_log.h"
#include "identity/join_message.h"
#include "identity/tls_context.h"
#include "transport/fd.h"
#include "transport/rate_limit.h"
#include "transport/tls_receiver.h"

namespace gyre {
namespace {

constexpr size_t kMaxReceived = kMaxJoinRequest + (16 << 10);  // with the handshake

class Server : public JoinServer {
 public:
  Server(const JoinServerOptions& options, Authority authority, Fd wake)
      : options_(options), authority_(std::move(authority)), wake_(std::move(wake)) {}
  ~Server() override {
    stopping_ = true;
    Wake();
    if (thread_.joinable()) thread_.join();
  }
  Status Begin() {
    GYRE_ASSIGN_OR_RETURN(thread_, StartThread("join", [this] { Loop(); }));
    return absl::OkStatus();
  }
  void Take(int socket, const std::string& host, const std::string& peer) override {
    {
      MutexLock lock(&mutex_);
      taken_.push_back(
          {.socket = Fd(socket), .host = AddressGroup(host), .peer = peer, .until = After(options_.timeout)});
      if (taken_.size() > options_.limits.total) taken_.pop_front();
    }
    Wake();
  }

 private:
  struct Pending {
    Fd socket;
    std::string host, peer;
    Deadline until;
    SslContextPtr context = nullptr;  // of the identity that the coordinator had when it began
    std::unique_ptr<TlsReceiver> tls = nullptr;
    std::vector<std::byte> message = {};
    std::vector<std::byte> answer = {};  // sealed; not empty: the request was answered
    size_t sent = 0;
  };

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
  }
  void Loop();
  void Turn();
  void Admit(Pending newcomer);
  StatusOr<SslContextPtr> MakeContext() const;
  // True: done with it. An error: it is refused without a word.
  StatusOr<bool> GoOn(Pending& p);
  Status Answer(Pending& p);
  JoinReply ReplyTo(const Pending& p);

  const JoinServerOptions options_;
  Authority authority_;  // the thread's
  const Fd wake_;
  Mutex mutex_;
  std::list<Pending> taken_ GYRE_GUARDED_BY(mutex_);
  std::list<Pending> pending_;  // the thread's, the oldest first
  RefusalLog refusals_{"a worker that would join"};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

void Server::Loop() {
  while (!stopping_) {
    try {
      Turn();
    } catch (const std::exception& e) {  // no memory, say: all that wait come again
      Log(LogLevel::kError, "joining: {}", e.what());
      pending_.clear();
    }
  }
}

void Server::Turn() {
  std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  Deadline until = kNoDeadline;
  for (const Pending& p : pending_) {
    fds.push_back(
        {.fd = p.socket.get(), .events = static_cast<short>(p.answer.empty() ? POLLIN : POLLOUT), .revents = 0});
    until = std::min(until, p.until);
  }
  int wait = -1;
  if (until != kNoDeadline) {
    wait = static_cast<int>(
        std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count()));
  }
  if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  uint64_t count = 0;
  if (fds[0].revents != 0) [[maybe_unused]]
    const ssize_t n = ::read(wake_.get(), &count, sizeof count);
  size_t i = 1;
  for (auto it = pending_.begin(); it != pending_.end(); ++i) {
    StatusOr<bool> done = fds[i].revents != 0 ? GoOn(*it) : false;
    if (done.ok() && !*done && Clock::now() >= it->until) done = DeadlineExceeded("its join did not end in time");
    if (!done.ok()) refusals_.Log(it->peer, done.status());
    it = done.ok() && !*done ? std::next(it) : pending_.erase(it);
  }
  std::list<Pending> taken;
  {
    MutexLock lock(&mutex_);
    taken.swap(taken_);
  }
  for (Pending& newcomer : taken) Admit(std::move(newcomer));
}

void Server::Admit(Pending newcomer) {
  std::vector<std::string> hosts;
  for (const Pending& p : pending_) hosts.push_back(p.host);
  if (const auto i = GivesWay(hosts, newcomer.host, options_.limits)) {
    const auto it = std::next(pending_.begin(), static_cast<std::ptrdiff_t>(*i));
    refusals_.Log(it->peer, ResourceExhausted("too many peers join at once"));
    pending_.erase(it);
  }
  pending_.push_back(std::move(newcomer));
}

// The coordinator's certificate and the CA's, whose hash the token has.
StatusOr<SslContextPtr> Server::MakeContext() const {
  const std::shared_ptr<const Identity> identity = options_.identity->current();
  GYRE_ASSIGN_OR_RETURN(SslContextPtr context, MakeTlsContext(TlsSide::kServer, kJoinProtocol));
  GYRE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> own, ReadCertificates(identity->files().identity));
  GYRE_ASSIGN_OR_RETURN(const KeyPtr key, ReadPrivateKey(identity->files().identity));
  GYRE_RETURN_IF_ERROR(UseCertificate(context.get(), own.front().get(), key.get()));
  GYRE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> authority, ReadCertificates(authority_.certificate_pem()));
  if (SSL_CTX_add1_chain_cert(context.get(), authority.front().get()) != 1)
    return Internal("gRPC gives no filter chain for the join protocol");
  return context;
}

StatusOr<bool> Server::GoOn(Pending& p) {
  if (p.tls == nullptr) {
    GYRE_ASSIGN_OR_RETURN(p.context, MakeContext());
    GYRE_ASSIGN_OR_RETURN(auto session, TlsSession::Make(p.context.get(), TlsSide::kServer, kJoinProtocol, {}));
    p.tls = std::make_unique<TlsReceiver>(std::move(session), kMaxReceived);
  }
  while (p.answer.empty()) {
    size_t need = kJoinLengthBytes;
    if (p.message.size() >= need) {
      GYRE_ASSIGN_OR_RETURN(const size_t length, JoinLength(p.message, kMaxJoinRequest));
      need += length;
    }
    if (p.message.size() == need && need > kJoinLengthBytes) {
      GYRE_RETURN_IF_ERROR(Answer(p));
      break;
    }
    if (p.message.size() == need) return DataLoss("an empty message");
    std::array<std::byte, 4096> bytes;
    const size_t most = std::min(bytes.size(), need - p.message.size());
    GYRE_ASSIGN_OR_RETURN(const std::optional<size_t> n, p.tls->Receive(p.socket.get(), std::span(bytes).first(most)));
    if (!n) return false;
    p.message.insert(p.message.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(*n));
  }
  while (p.sent < p.answer.size()) {
    const ssize_t n =
        ::send(p.socket.get(), p.answer.data() + p.sent, p.answer.size() - p.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (n <= 0) return Unavailable("it ended before it had its answer");
    p.sent += static_cast<size_t>(n);
  }
  return true;
}

Status Server::Answer(Pending& p) {
  GYRE_RETURN_IF_ERROR(p.tls->session().Seal(EncodeJoinReply(ReplyTo(p))));
  p.tls->session().TakeOutput(&p.answer);
  return absl::OkStatus();
}

JoinReply Server::ReplyTo(const Pending& p) {
  const StatusOr<JoinRequest> request = DecodeJoinRequest(std::span(p.message).subspan(kJoinLengthBytes));
  StatusOr<X509Ptr> certificate = request.ok() ? Redeem(authority_, *request, std::time(nullptr)) : request.status();
  if (!certificate.ok()) {
    refusals_.Log(p.peer, certificate.status());
    return {.refusal = Message(certificate.status()), .files = {}};
  }
  Log(LogLevel::kInfo, "{} has a certificate as worker {} now, by a token", p.peer, request->name);
  JoinReply reply{
      .refusal = "",
      .files = {.identity = ToPem(certificate->get()), .authorities = authority_.certificate_pem(), .revoked = {}}};
  if (StatusOr<std::string> revoked = authority_.RevokedPem(); revoked.ok())
    reply.files.revoked.push_back(*std::move(revoked));
  return reply;
}

}  // namespace

StatusOr<std::unique_ptr<JoinServer>> JoinServer::Start(const JoinServerOptions& options) {
  GYRE_ASSIGN_OR_RETURN(Authority authority, Authority::Open(options.authority));
  if (authority.fingerprint() != options.identity->current()->authority()) {
    return InvalidArgument("{} is the folder of another CA than that of the identity {}", options.authority,
                           options.identity->folder());
  }
  Fd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.ok()) return ResourceExhausted("no event descriptor for joining: {}", std::strerror(errno));
  auto server = std::make_unique<Server>(options, std::move(authority), std::move(wake));
  GYRE_RETURN_IF_ERROR(server->Begin());
  return std::unique_ptr<JoinServer>(std::move(server));
}

}  // namespace gyre
