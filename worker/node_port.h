// What other processes reach in a worker's process: its ring port, and the weights that it gives there. And what it
// asks of them: how fast the links to them are.
#pragma once

#include <cstdint>
#include <memory>

#include "base/host_port.h"
#include "base/sha256.h"
#include "base/status.h"
#include "transport/ring_port.h"
#include "weights/link_prober.h"
#include "weights/weight_stock.h"
#include "worker/event_outbox.h"
#include "worker/node.h"

namespace gyre {

// Thread-safe.
class NodePort {
 public:
  // Listens where the options say, else at the address that reaches the coordinator. What the prober finds becomes an
  // event. kFailedPrecondition: the address must not be listened at without TLS. kUnavailable: it can't be bound.
  static StatusOr<std::unique_ptr<NodePort>> Open(const NodeOptions& options, const HostPort& coordinator,
                                                  std::shared_ptr<EventOutbox> events);

  RingPort& ring() { return *ring_; }
  WeightStock& stock() { return stock_; }
  LinkProber& prober() { return prober_; }
  // The bytes that the weights of this model may take in the cache; at least 1, as 0 says that there is no limit.
  uint64_t RoomFor(const Hash256& root) const;

 private:
  NodePort(std::unique_ptr<RingPort> ring, const NodeOptions& options, std::shared_ptr<EventOutbox> events);

  const std::unique_ptr<RingPort> ring_;
  WeightStock stock_;  // its server uses the port
  LinkProber prober_;  // uses the stock
};

}  // namespace gyre
