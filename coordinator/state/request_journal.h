// The requests that can be reattached, as a pure state machine: what happened and a clock value in; what is to be
// written out. state_keeper.h has the thread and the store. docs/restart.md says what it is for.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "coordinator/engine/request.h"

namespace gyre {

// The id of a request that can be reattached: what the log knows its call by, and 128 random bits. Whoever has it may
// reattach to the request, if the tenant is the same.
std::string NewRequestId(const std::string& call);
// The call's part of it.
std::string CallOf(const std::string& request_id);
// Letters, digits and '-' only, at most 100.
bool IsRequestId(std::string_view text);

struct BookLimits {
  Duration resume_timeout = std::chrono::seconds(60);  // the time for which a request without a reader is kept
  size_t unattended = 1024;                     // requests without a reader; ended ones go first, then the oldest
  size_t unattended_bytes = size_t{128} << 20;  // what these hold
  // Those that were under way when the coordinator stopped are counted apart: their clients are on their way back.
  size_t restored = 65536;
  size_t restored_bytes = size_t{1} << 30;
};

// Not thread-safe. A request is named by its reattach_id. Its **reader** is a number; calls for the stream of an
// earlier reader are ignored.
class RequestJournal {
 public:
  explicit RequestJournal(const BookLimits& limits) : limits_(limits) {}

  // A request begins; what it has in `generated` counts as drawn. An id that is known is replaced.
  void Begin(const Request& request, uint64_t reader);
  // A token has an event, a new one or one from before a Reattach, in their order.
  void OnToken(const std::string& id, uint64_t reader, const TokenEvent& token);
  // The request has ended, and its reader may not have heard of that yet.
  void Finish(const std::string& id, uint64_t reader);
  // Nobody reads the request any more, or it has ended: it can be reattached for some time.
  void Leave(const std::string& id, uint64_t reader, Deadline now);
  // The request has failed, or was never begun.
  void Forget(const std::string& id, uint64_t reader);
  // Gives the request to a new reader, with all that was drawn in `generated`. kNotFound: there is none of that id and
  // tenant.
  StatusOr<Request> Reattach(const std::string& id, uint64_t tenant, uint64_t reader);
  // From the store, without a reader, in the order in which the requests began.
  void Restore(Request request, bool ended, Deadline now);
  // Forgets those whose time is over.
  void Tick(Deadline now);
  // The time at which Tick is due.
  Deadline deadline() const;
  size_t size() const { return entries_.size(); }

  struct Changes {
    std::vector<std::shared_ptr<const Request>> begun;  // without `generated`
    struct Tokens {
      std::string id;
      uint64_t first = 0;
      std::vector<TokenEvent> tokens;
      bool ended = false;  // behind these there is no other
    };
    std::vector<Tokens> tokens;
    std::vector<std::string> gone;
    bool empty() const { return begun.empty() && tokens.empty() && gone.empty(); }
  };
  bool changed() const { return !changed_.empty() || !gone_.empty(); }
  // Since the last call.
  Changes TakeChanges();
  // Changes taken before did not reach the store: the next changes contain the whole state.
  void StartAfresh();

 private:
  struct Entry {
    std::shared_ptr<const Request> request;
    std::vector<TokenEvent> tokens;
    size_t counted = 0;  // events of the present reader
    size_t written = 0;  // tokens in the store, or on their way there
    bool stored = false;
    bool ended = false, end_written = false;
    bool restored = false;  // was under way at the last stop, and nobody has taken it up since
    uint64_t number = 0;    // in the order in which they began
    uint64_t reader = 0;    // 0: nobody
    Deadline until = kNoDeadline;
  };
  // Requests without a reader in the order in which they go: by the end of their time, then by their age.
  struct Queue {
    std::set<std::tuple<Deadline, uint64_t, std::string>> order;
    size_t bytes = 0;
  };
  static size_t BytesOf(const Entry& entry);
  Queue& QueueOf(const Entry& entry) { return entry.ended ? ended_ : entry.restored ? restored_ : under_way_; }
  static std::tuple<Deadline, uint64_t, std::string> PlaceOf(const Entry& entry) {
    return {entry.until, entry.number, entry.request->reattach_id};
  }
  void Attend(Entry* entry, uint64_t reader);
  void Erase(const std::string& id);
  void EraseFirst(const Queue& queue);

  const BookLimits limits_;
  std::unordered_map<std::string, Entry> entries_;
  std::set<std::string> changed_;  // ids
  std::vector<std::string> gone_;  // of those that are stored
  uint64_t last_number_ = 0;
  Queue ended_, under_way_, restored_;  // without a reader
};

}  // namespace gyre
