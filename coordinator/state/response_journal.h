// The responses that clients may go on from, or ask for again (previous_response_id of /v1/responses), as a pure state
// machine: what happened and a clock value in; what is to be written out. response_store.h has the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"

namespace gyre {

struct ResponseLimits {
  int64_t keep_seconds = 30 * int64_t{86400};  // since it was made, or its conversation went on
  size_t responses = 10000;
  size_t bytes = size_t{256} << 20;
};

// Texts are JSON.
struct KeptResponse {
  std::string id;
  uint64_t tenant = 0;   // whose it is; nobody else finds it
  std::string previous;  // the response that it goes on from; "" = none
  std::string input;     // its own items, an array
  std::string response;  // the object, with its output
  int64_t created = 0;   // seconds since 1970
  bool deleted = false;  // it is there only for those that go on from it
  bool operator==(const KeptResponse&) const = default;
};

// Not thread-safe. Times are seconds since 1970. Of what is kept, the longest unused goes first, and of a conversation
// the last response before those that it goes on from, so what is left of it is whole.
class ResponseJournal {
 public:
  explicit ResponseJournal(const ResponseLimits& limits) : limits_(limits) {}

  // One with a known id replaces it. One that is larger than all that may be kept is not kept.
  void Keep(KeptResponse response, int64_t now);
  // Takes in what the store had, in the order in which the responses were made.
  void Restore(std::vector<KeptResponse> responses, int64_t now);
  // kNotFound: there is none of that id and tenant, or it was deleted.
  StatusOr<KeptResponse> Find(const std::string& id, uint64_t tenant, int64_t now);
  // All responses of the conversation up to this one, the first one first. It counts as used. The same error, also
  // where one before it is gone.
  StatusOr<std::vector<KeptResponse>> Conversation(const std::string& id, uint64_t tenant, int64_t now);
  // Nobody finds it any more. Responses that go on from it keep what they need of it. The same error.
  Status Delete(const std::string& id, uint64_t tenant, int64_t now);

  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }
  // What changed since the last call, by a key that names tenant and id; nullopt: it is gone.
  using Change = std::pair<std::string, std::optional<KeptResponse>>;
  std::vector<Change> TakeChanges();

 private:
  struct Entry {
    KeptResponse response;
    uint64_t stamp = 0;
    int64_t used = 0;
    uint32_t followers = 0;
  };
  static std::string KeyOf(uint64_t tenant, const std::string& id);
  static size_t BytesOf(const KeptResponse& response);
  Entry* At(const std::string& key);
  Entry* Previous(const Entry& entry);
  void Add(KeptResponse response, int64_t now);
  void Use(Entry* entry, int64_t now);
  void Erase(const std::string& key);
  void EraseUseless(const std::string& key);
  void Tick(int64_t now);

  const ResponseLimits limits_;
  std::unordered_map<std::string, Entry> entries_;
  std::set<std::pair<uint64_t, std::string>> order_;  // by stamp
  std::set<std::string> changed_;
  uint64_t last_stamp_ = 0;
  size_t bytes_ = 0;
};

}  // namespace gyre
