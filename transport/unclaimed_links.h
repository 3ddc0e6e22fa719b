// The receiving ends of hops that were dialed and not yet claimed: how many may wait, for how long, and with
// which key.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/admission.h"
#include "transport/fd.h"
#include "transport/hello.h"
#include "transport/hello_reader.h"
#include "transport/link.h"

namespace gyre {

struct UnclaimedLink {
  Hello hello;
  Connection connection;
  std::unique_ptr<Link> link;  // of a hop within this process, instead of the connection

  // Set by UnclaimedLinks.
  uint64_t id = 0;
  bool verified = false;  // its key is the plan's
  Deadline since{};
};

// Whether the connection still waits: a waiting dialer sends nothing, so readable bytes are its end, or garbage.
bool StillWaits(int socket);

// kUnknownPlan: of the known term, and newer than all plans that are or were. kGone: of a plan that is over, so its key
// is not known any more.
enum class KeyCheck { kUnknownTerm, kUnknownPlan, kGone, kWrong, kRight };

// kRefused: the plan is over, the key is wrong, or too many wait. kReady: it is a bulk link with the right key, so
// it does not wait.
enum class Arrival { kWaits, kRefused, kReady };

// Thread-safe. `on_refused` is called without a lock, by the thread that found the reason.
class UnclaimedLinks {
 public:
  struct Options {
    Duration timeout;            // for links whose plan has no known key
    AdmissionLimits unverified;  // for the same ones
    size_t max_verified = 0;     // links whose key is right
    // late: the caller is a member whose plan ended meanwhile, as far as anybody can tell, and not unauthenticated.
    std::function<void(const Caller&, const std::string& why, bool late)> on_refused;
  };
  explicit UnclaimedLinks(Options options) : options_(std::move(options)) {}

  // Takes a link that has to wait. One that is kReady stays with the caller, its hello with the plan's key. As one call
  // decides, no bulk link can miss a SetKey that comes meanwhile.
  Arrival Add(UnclaimedLink* link);
  // Waits for the hop that `expected` names. kDeadlineExceeded, kCancelled.
  StatusOr<UnclaimedLink> Claim(const Hello& expected, Deadline deadline);
  // Drops links with another key of this plan, those of plans that are over, and those of another term. Returns the
  // bulk links that waited for this key.
  std::vector<UnclaimedLink> SetKey(Epoch epoch, const RingKey& key);
  // Ends waits for a hop of this epoch or an older one of the term, and drops its links and keys.
  void Cancel(Epoch epoch);
  // Likewise, but bulk links of this plan stay welcome until another one serves, or a key of another term is set.
  void Serves(Epoch epoch);
  bool Cancelled(const Hello& hello) const;
  // Drops links whose dialer has gone, and those that waited too long for the key of their term.
  void DropDead();
  size_t size() const;
  size_t keys() const;  // that are known now

 private:
  using Links = std::list<UnclaimedLink>;
  // The keys of the running plan and of one that is being prepared.
  static constexpr size_t kKeys = 2;
  static constexpr size_t kTerms = 8;

  // On kRight hello->key is set to the plan's key.
  KeyCheck Check(Hello* hello) const GYRE_REQUIRES(mutex_);
  bool CancelledLocked(Epoch epoch) const GYRE_REQUIRES(mutex_) {
    const auto it = cancelled_.find(epoch.term);
    return it != cancelled_.end() && epoch.number <= it->second;
  }
  bool ServedLocked(const Hello& hello) const GYRE_REQUIRES(mutex_) {
    return hello.role == LinkRole::kBulk && served_ == hello.epoch;
  }
  // Moves the links that satisfy `which` out of the list.
  Links Take(const std::function<bool(const UnclaimedLink&)>& which) GYRE_REQUIRES(mutex_);
  Links MakeRoom(const UnclaimedLink& newcomer) GYRE_REQUIRES(mutex_);
  void Refuse(const Links& links, const char* why, bool late = false);

  const Options options_;
  mutable Mutex mutex_;
  CondVar changed_;
  Links links_ GYRE_GUARDED_BY(mutex_);  // the oldest first
  uint64_t next_id_ GYRE_GUARDED_BY(mutex_) = 1;
  // The highest number of each term. A wait of an earlier term may still be on its way.
  std::map<uint64_t, uint64_t> cancelled_ GYRE_GUARDED_BY(mutex_);
  uint64_t term_ GYRE_GUARDED_BY(mutex_) = 0;    // of the keys
  uint64_t newest_ GYRE_GUARDED_BY(mutex_) = 0;  // plan of the term whose key was known; 0 = no term is known
  std::optional<Epoch> served_ GYRE_GUARDED_BY(mutex_);
  RingKey served_key_ GYRE_GUARDED_BY(mutex_){};
  std::map<uint64_t, RingKey> keys_ GYRE_GUARDED_BY(mutex_);  // of the term, by the plan's number
};

}  // namespace gyre
