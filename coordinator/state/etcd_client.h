// The calls of etcd that a coordinator needs, over its JSON gateway (/v3, etcd's API reference "gRPC gateway").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "http_client/http_client.h"

namespace gyre {

struct EtcdOptions {
  std::vector<std::string> hosts;  // HOST:PORT of its members
  std::string name = "gyre";       // keys begin with it and a slash
  bool tls = false;
  std::string ca, cert, key;  // PEM files; ca "" = the system's, cert and key "" = none
  // If a member's answer takes longer, the next member is asked.
  Duration attempt = std::chrono::milliseconds(700);
};

// "etcd://HOST:PORT[,HOST:PORT...][/NAME]", or etcds:// for TLS. kInvalidArgument: the message says what is wrong.
StatusOr<EtcdOptions> ParseEtcdUrl(const std::string& text);

struct EtcdValue {
  std::string key, value;
  int64_t created = 0;   // create_revision
  int64_t modified = 0;  // mod_revision
  int64_t lease = 0;     // 0 = none
};

// One step of a transaction.
struct EtcdOp {
  static EtcdOp Put(std::string key, std::string value, int64_t lease = 0);
  static EtcdOp Delete(std::string key, std::string end = "");  // [key, end); end "": the key alone
  bool put = false;
  std::string key, value, end;
  int64_t lease = 0;
};

// A condition of a transaction: the key was made (or changed) at that revision; 0 = it does not exist.
struct EtcdCompare {
  std::string key;
  bool created = false;
  int64_t revision = 0;
};

// For one thread. Errors: kUnavailable, kDeadlineExceeded: no member answered completely in time, and it is unknown
// whether a write has happened. kFailedPrecondition: etcd refuses it.
class EtcdClient {
 public:
  static StatusOr<std::unique_ptr<EtcdClient>> Make(const EtcdOptions& options);
  virtual ~EtcdClient() = default;

  struct Lease {
    int64_t id = 0;
    Duration life{};
  };
  virtual StatusOr<Lease> Grant(std::chrono::seconds life, Deadline until) = 0;
  // Returns the lease's new life; zero: it has ended.
  virtual StatusOr<Duration> Renew(int64_t lease, Deadline until) = 0;
  virtual Status Revoke(int64_t lease, Deadline until) = 0;
  struct Txn {
    bool succeeded = false;  // all conditions held, and all of it was done
    int64_t revision = 0;
  };
  virtual StatusOr<Txn> Do(const std::vector<EtcdCompare>& conditions, const std::vector<EtcdOp>& ops,
                           Deadline until) = 0;
  struct Page {
    std::vector<EtcdValue> values;  // in the order of their keys
    bool more = false;
    int64_t revision = 0;
  };
  // Reads the keys in [key, end), at most `limit` (0 = all); end "": only the key. `revision`: as it was then, 0 =
  // now.
  virtual StatusOr<Page> Read(const std::string& key, const std::string& end, int64_t limit, int64_t revision,
                              Deadline until) = 0;
  StatusOr<std::optional<EtcdValue>> Get(const std::string& key, Deadline until);
};

}  // namespace gyre
