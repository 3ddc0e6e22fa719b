// The ends of a process's links. Hops between two members of this process stay in memory; the others are TCP
// connections or shared memory, dialed by the sender and claimed by the receiver under the hop's name.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "identity/identity.h"
#include "transport/admission.h"
#include "transport/hello.h"
#include "transport/link.h"
#include "transport/rate_limit.h"
#include "transport/tcp_link.h"

namespace gyre {

struct RingPortOptions {
  // "HOST:PORT" to listen at, port 0 for any free one. Empty: no sockets, only hops within this process.
  std::string listen;
  std::string advertise_host;  // what others dial; empty = the host of `listen`
  // The carriers that this process may use. kAuto and kShm: it also listens at a Unix socket.
  Transport transport = Transport::kTcp;
  TcpOptions tcp;                                    // of ring links
  Duration bulk_silence = std::chrono::seconds(60);  // TcpOptions::silence of bulk links
  Duration hello_timeout = std::chrono::seconds(5);
  Duration unclaimed_timeout = std::chrono::seconds(60);  // of links whose key could not be verified
  AdmissionLimits unverified;                             // those without a hello, and those without a known key
  size_t max_unclaimed = 256;                             // links whose key is right
  std::shared_ptr<IdentityFolder> identity;               // for TLS on TCP links; null: without
  AddressLimits handshakes;
};

struct RingPortStats {
  uint64_t accepted = 0;  // hellos that may be claimed
  uint64_t refused = 0;   // garbage, silence, wrong key, displaced by others
  size_t waiting = 0;     // unclaimed now
  size_t keys = 0;        // of plans, known now
};

// Thread-safe. Throws nothing: without descriptors, threads or memory, kResourceExhausted.
class RingPort {
 public:
  // kUnavailable: the address can't be bound.
  static StatusOr<std::unique_ptr<RingPort>> Open(const RingPortOptions& options);
  virtual ~RingPort() = default;

  // A RingAddress (base/ring_address.h) for others, with ":PORT" if it listens at every address; "" without sockets.
  // A hop to this address stays in the process.
  virtual const std::string& address() const = 0;

  // The sending end of a hop, or the pulling end of a bulk link, from the member hello.from to hello.to; with TLS their
  // certificates must say so. Returns when the receiver has claimed it and agreed,
  // and within 100 ms of a Cancel of its epoch. kUnavailable, kDeadlineExceeded, kFailedPrecondition (the receiver's
  // refusal, or a wanted carrier that can't be had), kCancelled.
  virtual StatusOr<std::unique_ptr<Link>> Dial(const std::string& address, const Hello& hello, Deadline deadline) = 0;
  // The receiving end of the hop that `expected` names: waits for its dialer, the member expected.from. A dialer with
  // another name, key or model is refused and does not end the wait. kDeadlineExceeded, kCancelled.
  virtual StatusOr<std::unique_ptr<Link>> Accept(const Hello& expected, Deadline deadline) = 0;
  // Bulk links to worker `name` are handed over on the dialer's or the port's thread; the handler must not block. {}
  // removes it; a handler that is being called returns first.
  using BulkHandler = std::function<void(std::unique_ptr<Link>)>;
  virtual void SetBulkHandler(const std::string& name, BulkHandler handler) = 0;
  // From now on links for weights with this key are handed over likewise, whatever plan there is; {} removes it.
  virtual void SetWeightsHandler(const RingKey& key, BulkHandler handler) {
    static_cast<void>(key), static_cast<void>(handler);
  }
  // The key of a plan's ring and bulk links, which their hellos must prove. It is known until a Cancel of its plan, or
  // the second plan after it. Links that wait with another key are dropped, and so are those that were verified by the
  // key of another term.
  virtual void SetKey(Epoch epoch, const RingKey& key) = 0;
  // Ends waits for a hop of this epoch or an older one of the term, and drops its unclaimed links and its key.
  virtual void Cancel(Epoch epoch) = 0;
  // Likewise, but bulk links of this plan can still be dialed and are taken until another plan serves, whatever plans
  // are given up meanwhile, or a key of another term comes.
  virtual void Serves(Epoch epoch) { Cancel(epoch); }
  virtual RingPortStats stats() const = 0;
};

}  // namespace gyre
