// The coordinator's gRPC port: workers attach, operators ask, clients generate. Messages: proto/gyre/v1.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/engine/engine.h"
#include "coordinator/service/service.h"
#include "identity/identity.h"
#include "model/weights.h"

namespace gyre {

class RemoteDrafter;
class WeightOffer;

struct GrpcServerOptions {
  std::string address;  // HOST:PORT, port 0 for any
  uint64_t term = 0;
  uint64_t cluster_id = 0;  // of the state that the term is from; 0 = there is none
  std::string version;
  uint32_t context = 0;
  bool context_shift = false;
  std::string kv_type;
  bool exact = false;
  RemoteDrafter* drafter = nullptr;  // for workers that draft; outlives the server, null = there may be none
  uint32_t texts = 1;                // whole contexts that run at once
  WeightOffer* weights = nullptr;    // for workers without the file; outlives the server, null = they can't join
  OpenOptions open;                  // what workers need to open the same .bin model
  Duration heartbeat_timeout = std::chrono::milliseconds(1750);  // a worker that is silent for this time is lost
  Duration hello_timeout = std::chrono::seconds(5);              // a connection that says nothing of HTTP/2 ends then
  Duration idle_timeout = std::chrono::minutes(2);               // so does one without a call; clients connect again
  std::shared_ptr<IdentityFolder> identity;                      // null: no TLS, and everybody may call everything
  std::string cluster_ca;                                        // the CA's folder, for joins with tokens; "" = none
};

class GrpcServer {
 public:
  // Model, engine, cluster and service outlive it. kInvalidArgument: not an address. kUnavailable: the address can't be
  // bound, with the reason.
  static StatusOr<std::unique_ptr<GrpcServer>> Open(const GrpcServerOptions& options, const Model& model,
                                                    Engine& engine, Cluster& cluster, Service& service);
  virtual ~GrpcServer() = default;
  // HOST:PORT as bound.
  virtual const std::string& address() const = 0;
  // Ends every call. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace gyre
