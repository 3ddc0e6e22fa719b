#include "coordinator/state/etcd_store.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/plan.h"
#include "coordinator/engine/request_codec.h"

namespace gyre {
namespace {

constexpr size_t kMostOps = 100;                // etcd takes 128 (--max-txn-ops)
constexpr size_t kMostBytes = size_t{1} << 20;  // etcd takes 1.5 MiB (--max-request-bytes)
constexpr int64_t kPage = 16;
// A failed read of the state is repeated until this time is over.
constexpr auto kReading = std::chrono::seconds(20);
constexpr size_t kDigits = 10;

// The first key after all that begin with `prefix`.
std::string Behind(std::string prefix) {
  ++prefix.back();
  return prefix;
}

class EtcdStore : public StateStore {
 public:
  explicit EtcdStore(const EtcdStoreOptions& options) : options_(options), root_(options.etcd.name + "/") {}

  Status Open(StoredState* found) {
    GYRE_ASSIGN_OR_RETURN(client_, EtcdClient::Make(options_.etcd));
    GYRE_RETURN_IF_ERROR(LearnLast());
    found->term = options_.term;
    GYRE_ASSIGN_OR_RETURN(found->cluster, Text("plan"));
    GYRE_ASSIGN_OR_RETURN(found->serving, Text("serving"));
    GYRE_ASSIGN_OR_RETURN(const std::string id, Text("id"));
    if (id.empty()) {
      const RingKey random = RandomRingKey();
      std::memcpy(&found->cluster_id, random.data(), sizeof found->cluster_id);
      found->cluster_id |= 1;  // 0 means none
      GYRE_RETURN_IF_ERROR(Send({EtcdOp::Put(root_ + "id", std::to_string(found->cluster_id))}));
    } else {
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), found->cluster_id);
      if (error != std::errc() || end != id.data() + id.size() || found->cluster_id == 0) {
        return DataLoss("etcd: {}id is '{}', expected a number", root_, id);
      }
    }
    GYRE_RETURN_IF_ERROR(ReadRequests(found));
    GYRE_RETURN_IF_ERROR(ReadAll(Responses(), kPage, &found->responses));
    constexpr int64_t kEntries = 1000;
    return ReadAll(Cache(), kEntries, &found->cache);
  }

  Status Write(const StateBatch& batch) override {
    if (!knows_last_) GYRE_RETURN_IF_ERROR(LearnLast());
    // A request exists at every moment, whichever of the transactions is the last: new values replace old ones, and
    // removed requests are deleted at the end.
    std::set<std::string> gone(batch.gone.begin(), batch.gone.end());
    if (batch.afresh) gone.insert(known_.begin(), known_.end());
    std::vector<EtcdOp> ops;
    if (batch.cluster) ops.push_back(EtcdOp::Put(root_ + "plan", *batch.cluster));
    if (batch.serving) ops.push_back(EtcdOp::Put(root_ + "serving", *batch.serving));
    // The index may lose a part: each of its entries stands for itself.
    if (batch.cache_afresh) GYRE_RETURN_IF_ERROR(Send({EtcdOp::Delete(Cache(), Behind(Cache()))}));
    for (const auto& [unit, entry] : batch.cache) {
      const std::string key = fmt::format("{}{:0{}x}", Cache(), unit, kDigits);
      ops.push_back(entry.empty() ? EtcdOp::Delete(key, key + '\0') : EtcdOp::Put(key, entry));
    }
    for (const auto& [name, response] : batch.responses) {
      const std::string key = Responses() + name;
      if (response.size() > kMostBytes) {
        Log(LogLevel::kWarn, "{}: a response of {} bytes is not kept in etcd, at most {} are", name, response.size(),
            kMostBytes);
        continue;
      }
      ops.push_back(response.empty() ? EtcdOp::Delete(key, key + '\0') : EtcdOp::Put(key, response));
    }
    std::map<std::string, std::string> last_keys;  // of the requests that this batch begins
    for (const StateBatch::Begun& b : batch.begun) {
      if (b.request.size() > kMostBytes) {
        Log(LogLevel::kWarn, "{}: a request of {} bytes is not kept in etcd, at most {} are", b.id, b.request.size(),
            kMostBytes);
        continue;
      }
      gone.erase(b.id);
      known_.insert(b.id);
      last_keys[b.id] = Place(b.id);
      ops.push_back(EtcdOp::Put(Place(b.id), b.request));
    }
    for (const StateBatch::Tokens& t : batch.tokens) {
      if (known_.count(t.id) == 0 || gone.count(t.id) > 0) continue;
      const std::string key = fmt::format("{}{:0{}}", Place(t.id), t.first, kDigits);
      if (const auto last = last_keys.find(t.id); last != last_keys.end()) {
        // Deletes older pieces. etcd takes no key twice in a transaction, so only those between the keys that are put.
        ops.push_back(EtcdOp::Delete(last->second + '\0', key));
        last->second = key;
      }
      ops.push_back(EtcdOp::Put(key, t.tokens));
    }
    for (const auto& [id, last] : last_keys) ops.push_back(EtcdOp::Delete(last + '\0', Behind(Place(id))));
    for (const std::string& id : gone) ops.push_back(EtcdOp::Delete(Place(id), Behind(Place(id))));
    GYRE_RETURN_IF_ERROR(SendAll(&ops));
    for (const std::string& id : gone) known_.erase(id);
    return absl::OkStatus();
  }

 private:
  std::string Requests() const { return root_ + "request/"; }
  std::string Cache() const { return root_ + "cache/"; }
  std::string Responses() const { return root_ + "response/"; }
  // The request's own key; its tokens' keys begin with it.
  std::string Place(const std::string& id) const { return Requests() + id + "/"; }

  StatusOr<std::string> Text(const char* name) {
    GYRE_ASSIGN_OR_RETURN(const auto value, client_->Get(root_ + name, After(options_.timeout)));
    return value ? value->value : std::string();
  }

  // Reads the last transaction that was done, as one whose answer was lost may have been done.
  Status LearnLast() {
    GYRE_ASSIGN_OR_RETURN(const auto value, client_->Get(root_ + "written", After(options_.timeout)));
    last_ = value ? value->modified : 0;
    knows_last_ = true;
    return absl::OkStatus();
  }

  // Sends transactions of the sizes that etcd takes. Afterwards `ops` is empty.
  Status SendAll(std::vector<EtcdOp>* ops) {
    std::vector<EtcdOp> part;
    size_t bytes = 0;
    for (EtcdOp& op : *ops) {
      const size_t size = op.key.size() + op.value.size();
      if (!part.empty() && (part.size() == kMostOps || bytes + size > kMostBytes)) {
        GYRE_RETURN_IF_ERROR(Send(std::exchange(part, {})));
        bytes = 0;
      }
      bytes += size;
      part.push_back(std::move(op));
    }
    ops->clear();
    return part.empty() ? absl::OkStatus() : Send(std::move(part));
  }

  Status Send(std::vector<EtcdOp> ops) {
    ops.push_back(EtcdOp::Put(root_ + "written", std::to_string(options_.term)));
    const std::vector<EtcdCompare> conditions{
        {.key = LeaderKey(options_.etcd), .created = true, .revision = options_.leads_since},
        {.key = root_ + "written", .created = false, .revision = last_}};
    const auto done = client_->Do(conditions, ops, After(options_.timeout));
    if (!done.ok()) {
      knows_last_ = false;
      return done.status();
    }
    if (done->succeeded) {
      last_ = done->revision;
      return absl::OkStatus();
    }
    knows_last_ = false;
    GYRE_ASSIGN_OR_RETURN(const auto leader, client_->Get(LeaderKey(options_.etcd), After(options_.timeout)));
    if (leader && leader->created == options_.leads_since)
      return Unavailable("etcd: a write that was given up arrived late");
    if (options_.lost) options_.lost();
    return absl::AbortedError("another coordinator leads");
  }

  struct Entry {
    int64_t created = 0;
    StoredState::OpenRequest request;
    size_t tokens = 0;  // in the pieces so far
    bool whole = true;  // no piece was missing so far
  };

  // A piece that does not begin where the one before ended is dropped, with all after it: its tokens are drawn again.
  static Status AddPiece(const std::string& number, std::string piece, Entry* entry) {
    size_t first = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), first);
    entry->whole =
        entry->whole && error == std::errc() && end == number.data() + number.size() && first == entry->tokens;
    if (!entry->whole) return absl::OkStatus();
    std::vector<TokenEvent> tokens;
    GYRE_RETURN_IF_ERROR(Annotate(DecodeTokens(piece, &tokens), "etcd: the request " + entry->request.id));
    entry->tokens += tokens.size();
    entry->request.tokens.push_back(std::move(piece));
    return absl::OkStatus();
  }

  // Reads fewer keys at once if etcd does not answer in time.
  StatusOr<EtcdClient::Page> ReadPage(const std::string& from, int64_t revision) {
    const Deadline give_up = After(kReading);
    for (;;) {
      auto page = client_->Read(from, Behind(Requests()), page_, revision, After(options_.timeout));
      if (page.ok() || absl::IsFailedPrecondition(page.status()) || Clock::now() >= give_up) return page;
      page_ = std::max<int64_t>(1, page_ / 2);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  Status ReadRequests(StoredState* found) {
    std::vector<Entry> entries;
    std::string from = Requests();
    int64_t revision = 0;
    for (bool more = true; more;) {
      GYRE_ASSIGN_OR_RETURN(EtcdClient::Page page, ReadPage(from, revision));
      if (revision == 0) revision = page.revision;
      more = page.more && !page.values.empty();
      for (EtcdValue& v : page.values) {
        from = v.key + '\0';
        const std::string name = v.key.substr(Requests().size());
        const size_t slash = name.find('/');
        if (slash == std::string::npos) return DataLoss("etcd: {} is no key of a request", v.key);
        const std::string id = name.substr(0, slash);
        if (slash + 1 == name.size()) {
          entries.push_back({.created = v.created, .request = {.id = id, .request = std::move(v.value), .tokens = {}}});
          known_.insert(id);
        } else if (!entries.empty() && entries.back().request.id == id) {  // in the order of their numbers
          GYRE_RETURN_IF_ERROR(AddPiece(name.substr(slash + 1), std::move(v.value), &entries.back()));
        }
      }
    }
    // Entries of one transaction have the same revision.
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.created < b.created; });
    for (Entry& e : entries) found->requests.push_back(std::move(e.request));
    return absl::OkStatus();
  }

  // All values whose keys begin so, as many at once.
  Status ReadAll(const std::string& prefix, int64_t at_once, std::vector<std::string>* values) {
    std::string from = prefix;
    int64_t revision = 0;
    for (bool more = true; more;) {
      GYRE_ASSIGN_OR_RETURN(EtcdClient::Page page,
                            client_->Read(from, Behind(prefix), at_once, revision, After(options_.timeout)));
      if (revision == 0) revision = page.revision;
      more = page.more && !page.values.empty();
      for (EtcdValue& v : page.values) {
        from = v.key + '\0';
        values->push_back(std::move(v.value));
      }
    }
    return absl::OkStatus();
  }

  const EtcdStoreOptions options_;
  const std::string root_;
  std::unique_ptr<EtcdClient> client_;
  int64_t page_ = kPage;
  std::set<std::string> known_;  // requests that may have a key
  int64_t last_ = 0;             // the revision of the last transaction
  bool knows_last_ = false;
};

}  // namespace

std::string LeaderKey(const EtcdOptions& options) { return options.name + "/leader"; }
std::string TermKey(const EtcdOptions& options) { return options.name + "/term"; }

StatusOr<std::unique_ptr<StateStore>> OpenEtcdStore(const EtcdStoreOptions& options, StoredState* found) {
  auto store = std::make_unique<EtcdStore>(options);
  GYRE_RETURN_IF_ERROR(store->Open(found));
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace gyre
