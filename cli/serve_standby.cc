#include "cli/serve_standby.h"

#include <linux/close_range.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "cli/exit_code.h"
#include "cli/serve_http.h"
#include "cli/session.h"
#include "coordinator/state/etcd_store.h"
#include "fmt/core.h"
#include "runtime/runtime.h"
#include "transport/tcp_link.h"

extern char** environ;

namespace gyre {
namespace {

// Tells the process that begins anew why it does.
constexpr char kBegunAnew[] = "GYRE_BEGUN_ANEW=1";

// Replaces the process by a new one with the same command line: nothing of the leader's state remains. Only the new one
// writes a line, as a log whose reader stands still would hold up the old one.
[[noreturn]] void BeginAnew() {
  if (InterruptGuard::Interrupted()) std::_Exit(0);  // it was told to end, and the lease ran out meanwhile
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string words((std::istreambuf_iterator<char>(in)), {});
  std::vector<char*> argv;
  for (size_t at = 0; at < words.size(); at += std::string_view(words.data() + at).size() + 1) {
    argv.push_back(words.data() + at);
  }
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (char** word = environ; *word != nullptr; ++word) {
    if (std::string_view(*word) != kBegunAnew) environment.push_back(*word);
  }
  std::string begun_anew = kBegunAnew;
  environment.push_back(begun_anew.data());
  environment.push_back(nullptr);
  // These include sockets.
  if (close_range(3, std::numeric_limits<unsigned>::max(), CLOSE_RANGE_CLOEXEC) != 0) std::_Exit(1);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execve("/proc/self/exe", argv.data(), environment.data());
  std::_Exit(1);  // its supervisor starts it again
}

StatusOr<EtcdOptions> EtcdOf(const ServeCommandOptions& options) {
  StatusOr<EtcdOptions> etcd = ParseEtcdUrl(options.standby);
  if (!etcd.ok()) return AsUsage(Annotate(etcd.status(), "--standby"));
  etcd->ca = options.etcd_ca;
  etcd->cert = options.etcd_cert;
  etcd->key = options.etcd_key;
  return etcd;
}

// The address for clients and workers: a listening address that means all addresses would be of no use to them.
std::string AskedAt(const std::string& bound, const std::string& advertise) {
  const StatusOr<HostPort> at = ParseHostPort(bound);
  if (!at.ok() || (at->host != "0.0.0.0" && at->host != "::")) return bound;
  return FormatHostPort(advertise.empty() ? HostName() : advertise, at->port);
}

}  // namespace

Status Standby::Check(const ServeCommandOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const EtcdOptions etcd, EtcdOf(options));
  if (!etcd.tls && (!etcd.ca.empty() || !etcd.cert.empty())) {
    return UsageError("--etcd-ca and --etcd-cert are for TLS: expected --standby etcds://...");
  }
  if (etcd.cert.empty() != etcd.key.empty()) {
    return UsageError("--etcd-cert and --etcd-key belong together, only one of them is given");
  }
  return EtcdClient::Make(etcd).status();
}

StatusOr<std::unique_ptr<Standby>> Standby::Open(const ServeCommandOptions& options, const ServeOptions& serve,
                                                 HttpFront* front) {
  if (std::getenv("GYRE_BEGUN_ANEW") != nullptr) {
    LogLine(LogLevel::kError,
            "the lease was lost, so another coordinator may lead: this process has begun anew and stands by");
  }
  std::unique_ptr<Standby> out(new Standby);
  GYRE_ASSIGN_OR_RETURN(out->etcd_, EtcdOf(options));
  out->front_ = front;
  out->quiet_ = options.ring.quiet;
  out->identity_ = serve.identity;
  GYRE_ASSIGN_OR_RETURN(out->server_, StandbyServer::Open({.address = serve.cluster, .identity = serve.identity}));
  out->own_ = AskedAt(out->server_->address(), serve.advertise);
  ElectionOptions election{.etcd = out->etcd_, .leadership = {}, .address = out->own_, .first_term = TermNow()};
  election.leadership.lease = std::chrono::seconds(options.lease_seconds);
  election.on_leader = [standby = out.get()](const std::string& leader) { standby->Tell(leader); };
  election.on_lost = BeginAnew;
  GYRE_ASSIGN_OR_RETURN(out->election_, Election::Start(election));
  return out;
}

// Runs on the election's thread. It is not called any more once this process leads, so the server still exists.
void Standby::Tell(const std::string& leader) {
  server_->SetLeader(leader);
  if (front_ != nullptr) front_->StandBy(StandbyText(leader));
  if (leader == own_) return;  // of the process before this one
  if (!leader.empty()) Log(LogLevel::kInfo, "standing by, the leader is {}", leader);
}

Status Standby::WaitToLead() {
  Deadline look = Clock::now();
  const auto reign = election_->WaitToLead([&] {
    if (identity_ != nullptr && Clock::now() >= look) {
      look = After(std::chrono::seconds(1));
      identity_->Refresh(false);
      server_->UpdateIdentity();
    }
    return false;
  });
  GYRE_RETURN_IF_ERROR(reign.status());
  reign_ = *reign;
  server_->SetLeader("");
  if (front_ != nullptr) front_->StandBy("this coordinator begins to lead; try again later");
  Log(LogLevel::kInfo, "this coordinator leads, in term {}", reign_.term);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<StateStore>> Standby::OpenState(StoredState* found) {
  EtcdStoreOptions store{.etcd = etcd_, .term = reign_.term, .leads_since = reign_.since, .lost = {}};
  store.lost = [election = election_.get()] { election->Refused(); };
  return OpenEtcdStore(store, found);
}

}  // namespace gyre
