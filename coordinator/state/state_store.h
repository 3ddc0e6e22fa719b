// Where the coordinator's state is kept (docs/restart.md): what it must know when it is started again. SQLite is one
// place (sqlite_store.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace gyre {

// The changes since the last batch. Values are messages of proto/gyre/v1/state.proto, requests are named by their ids.
struct StateBatch {
  std::optional<std::string> cluster;  // StoredCluster
  std::optional<std::string> serving;  // StoredServing
  bool afresh = false;                 // all requests that the store has are forgotten first
  std::vector<std::string> gone;       // requests that are forgotten before the others come
  struct Begun {
    std::string id;
    std::string request;  // StoredRequest
  };
  std::vector<Begun> begun;
  struct Tokens {
    std::string id;
    uint64_t first = 0;  // the place of the first of them
    std::string tokens;  // EncodeTokens; "" = the request has ended here
  };
  std::vector<Tokens> tokens;  // of requests that have begun, in this batch or before; in order, without gaps
  // The index of the KV cache: a StoredUnit for each key, "" = it is forgotten. With `cache_afresh` all that there is
  // is forgotten first.
  bool cache_afresh = false;
  std::vector<std::pair<uint64_t, std::string>> cache;
  // Responses that are kept for later ones: a StoredResponse for each key, "" = it is forgotten.
  std::vector<std::pair<std::string, std::string>> responses;
  bool empty() const {
    return !cluster && !serving && !afresh && begun.empty() && tokens.empty() && gone.empty() && !cache_afresh &&
           cache.empty() && responses.empty();
  }
};

struct StoredState {
  uint64_t term = 0;  // this start's own, above the last one's
  uint64_t cluster_id = 0;
  std::string cluster, serving;  // "" = none yet
  struct OpenRequest {
    std::string id, request;
    std::vector<std::string> tokens;  // in order
  };
  std::vector<OpenRequest> requests;
  std::vector<std::string> cache;      // StoredUnits
  std::vector<std::string> responses;  // StoredResponses
};

// Used by one thread.
class StateStore {
 public:
  virtual ~StateStore() = default;
  // Durable when it returns: it outlives this process. An error says what and where, and then a part of the batch may
  // have been written, of each request its beginning. kAborted: another process has taken this one's place.
  virtual Status Write(const StateBatch& batch) = 0;
};

}  // namespace gyre
