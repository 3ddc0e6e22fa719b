// The coordinator's state in etcd, for the process that leads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/state/etcd_client.h"
#include "coordinator/state/state_store.h"

namespace gyre {

// The keys of a cluster, below EtcdOptions::name.
std::string LeaderKey(const EtcdOptions& options);
std::string TermKey(const EtcdOptions& options);

struct EtcdStoreOptions {
  EtcdOptions etcd;
  uint64_t term = 0;                           // of this leader
  int64_t leads_since = 0;                     // the revision at which the leader's key was made: its writes ask for it
  std::function<void()> lost;                  // a write found that another one leads; any thread, must not block
  Duration timeout = std::chrono::seconds(2);  // for one transaction
};

// Reads the state, and makes the cluster's id if there is none. A batch is written in transactions of at most
// 100 keys, in order. If one fails, those before it remain. Each checks that this process's last transaction is the
// one that it knows, so that none comes late. kUnavailable, kDeadlineExceeded: etcd does not answer. kDataLoss: it
// can't be understood. kFailedPrecondition: another one leads.
StatusOr<std::unique_ptr<StateStore>> OpenEtcdStore(const EtcdStoreOptions& options, StoredState* found);

}  // namespace gyre
