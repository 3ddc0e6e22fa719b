#include "coordinator/state/election.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "coordinator/state/etcd_store.h"

namespace gyre {
namespace {

// The limit for an answer, while nothing ends meanwhile.
constexpr Duration kCallTimeout = std::chrono::seconds(2);
// The clock by which threads sleep stands still while the machine is suspended. So they sleep briefly and look at the
// lease often.
constexpr Duration kGlance = std::chrono::milliseconds(100);

class EtcdElection : public Election {
 public:
  EtcdElection(const ElectionOptions& options, std::unique_ptr<EtcdClient> client)
      : options_(options), client_(std::move(client)), leadership_(options.leadership) {}
  ~EtcdElection() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
    if (guard_.joinable()) guard_.join();
  }

  Status Begin() {
    GYRE_ASSIGN_OR_RETURN(thread_, StartThread("election", [this] {
                            // No exception may leave the thread: a leader that can't renew its lease must not go on.
                            try {
                              Loop();
                            } catch (const std::exception& e) {
                              Log(LogLevel::kError, "the thread that holds the lease failed, so this process ends: {}",
                                  e.what());
                              std::abort();
                            }
                          }));
    GYRE_ASSIGN_OR_RETURN(guard_, StartThread("lease", [this] { Guard(); }));
    return absl::OkStatus();
  }

  StatusOr<Reign> WaitToLead(const std::function<bool()>& stopped) override {
    MutexLock lock(&mutex_);
    while (!reign_) {
      changed_.WaitUntil(&mutex_, After(std::chrono::milliseconds(50)));
      if (stopped()) return absl::CancelledError("stopped while it stood by");
    }
    return *reign_;
  }

  void Refused() override {
    MutexLock lock(&mutex_);
    leadership_.Refused();
    changed_.SignalAll();
  }

 private:
  void Loop() {
    for (;;) {
      std::optional<Leadership::Call> call;
      Deadline until;
      {
        MutexLock lock(&mutex_);
        for (;;) {
          const Deadline now = options_.now();
          if (stopping_ || leadership_.Lost(now)) break;
          if ((call = leadership_.Next(now))) break;
          Sleep(leadership_.deadline() - now);
        }
        const Deadline now = options_.now();
        if (stopping_) return GiveBack(leadership_.Leads(now) ? leadership_.lease() : 0);
        if (leadership_.Lost(now)) return;
        // A leader asks for no longer than it leads.
        until = After(leadership_.Leads(now) ? std::min(kCallTimeout, leadership_.until() - now) : kCallTimeout);
      }
      std::visit([&](const auto& c) { Make(c, until); }, *call);
    }
  }

  // Neither does I/O nor writes to the log, whose reader may stand still, so a lease that ends is never noticed late.
  void Guard() {
    {
      MutexLock lock(&mutex_);
      for (;;) {
        const Deadline now = options_.now();
        if (stopping_) return;
        if (leadership_.Lost(now)) break;
        Sleep(leadership_.Leads(now) ? leadership_.until() - now : kGlance);
      }
    }
    options_.on_lost();
  }

  void Sleep(Duration time) GYRE_REQUIRES(mutex_) { changed_.WaitUntil(&mutex_, After(std::min(time, kGlance))); }

  void Make(const Leadership::Look&, Deadline until) {
    const auto leader = client_->Get(LeaderKey(options_.etcd), until);
    Tell(leader.status());
    if (leader.ok()) {
      const std::string address = *leader ? (*leader)->value : "";
      if (address != leader_ && options_.on_leader) options_.on_leader(address);
      leader_ = address;
    }
    MutexLock lock(&mutex_);
    leadership_.Looked(leader.ok() ? StatusOr<bool>(leader->has_value()) : leader.status(), options_.now());
  }
  void Make(const Leadership::Grant&, Deadline until) {
    const Deadline asked = options_.now();
    const auto life = std::chrono::duration_cast<std::chrono::seconds>(options_.leadership.lease);
    const auto lease = client_->Grant(life, until);
    Tell(lease.status());
    MutexLock lock(&mutex_);
    leadership_.Granted(lease.ok() ? StatusOr<Leadership::Lease>({lease->id, lease->life}) : lease.status(), asked,
                        options_.now());
  }
  void Make(const Leadership::Campaign& campaign, Deadline until) {
    const StatusOr<std::optional<Reign>> reign = Run(campaign.lease, until);
    Tell(reign.status());
    MutexLock lock(&mutex_);
    leadership_.Campaigned(reign.ok() ? StatusOr<bool>(reign->has_value()) : reign.status(), options_.now());
    if (!leadership_.Leads(options_.now())) return;
    reign_ = *reign;
    changed_.SignalAll();
  }
  void Make(const Leadership::Renew& renew, Deadline until) {
    const Deadline asked = options_.now();
    const auto life = client_->Renew(renew.lease, until);
    Tell(life.status());
    MutexLock lock(&mutex_);
    leadership_.Renewed(life, asked, options_.now());
  }

  // nullopt: another coordinator was faster.
  StatusOr<std::optional<Reign>> Run(int64_t lease, Deadline until) {
    GYRE_ASSIGN_OR_RETURN(const auto before, client_->Get(TermKey(options_.etcd), until));
    Reign reign{.term = options_.first_term};
    if (before) {
      const std::string& text = before->value;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), reign.term);
      if (error != std::errc() || end != text.data() + text.size()) {
        return DataLoss("etcd: {} is '{}', expected a number", TermKey(options_.etcd), text);
      }
      ++reign.term;
    }
    const std::vector<EtcdCompare> conditions{
        {.key = LeaderKey(options_.etcd), .created = true, .revision = 0},
        {.key = TermKey(options_.etcd), .created = false, .revision = before ? before->modified : 0}};
    GYRE_ASSIGN_OR_RETURN(const EtcdClient::Txn done,
                          client_->Do(conditions,
                                      {EtcdOp::Put(LeaderKey(options_.etcd), options_.address, lease),
                                       EtcdOp::Put(TermKey(options_.etcd), std::to_string(reign.term))},
                                      until));
    if (!done.succeeded) return std::optional<Reign>();
    reign.since = done.revision;
    return std::optional(reign);
  }

  // An etcd that goes away is logged, and so is one that comes back.
  void Tell(const Status& status) {
    const bool away = !status.ok();
    if (away == away_) return;
    away_ = away;
    if (away) {
      Log(LogLevel::kWarn, "etcd fails: {}", Message(status));
    } else {
      LogLine(LogLevel::kInfo, "etcd answers again");
    }
  }

  void GiveBack(int64_t lease) {
    if (lease == 0) return;
    const Status status = client_->Revoke(lease, After(kCallTimeout));
    if (!status.ok()) Log(LogLevel::kWarn, "the lease is not given back, it ends by itself: {}", Message(status));
  }

  const ElectionOptions options_;
  const std::unique_ptr<EtcdClient> client_;  // of the thread
  std::string leader_;                        // of the thread
  bool away_ = false;                         // of the thread
  Mutex mutex_;
  CondVar changed_;
  Leadership leadership_ GYRE_GUARDED_BY(mutex_);
  std::optional<Reign> reign_ GYRE_GUARDED_BY(mutex_);
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  std::thread thread_, guard_;
};

}  // namespace

Deadline BootNow() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return Deadline(
      std::chrono::duration_cast<Duration>(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec)));
}

StatusOr<std::unique_ptr<Election>> Election::Start(const ElectionOptions& options) {
  GYRE_ASSIGN_OR_RETURN(auto client, EtcdClient::Make(options.etcd));
  auto election = std::make_unique<EtcdElection>(options, std::move(client));
  GYRE_RETURN_IF_ERROR(election->Begin());
  return std::unique_ptr<Election>(std::move(election));
}

}  // namespace gyre
