// The front of a server's port: accepts connections, ends those that say nothing or are no HTTP/2 (with TLS: no TLS),
// lets unauthenticated peers begin handshakes of TLS at a limited rate, keeps descriptors in reserve for the rest of
// the process, and hands the others over.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/admission.h"
#include "transport/rate_limit.h"

namespace gyre {

struct ListenerOptions {
  std::string address;                               // HOST:PORT, port 0 for any
  Duration hello_timeout = std::chrono::seconds(5);  // for HTTP/2's connection preface, or TLS's first record
  AdmissionLimits silent;                            // connections without either; above, the oldest of them ends
  size_t max_connections = 4096;                     // in all; fewer where the process may open few descriptors
  bool tls = false;                                  // connections begin with a handshake of TLS
  AddressLimits handshakes;
  // With tls: takes connections that ask for the join protocol, as Start's `take` does, behind their
  // preface; empty = they are refused. `host` is the peer's address, `peer` with its port.
  std::function<void(int fd, const std::string& host, const std::string& peer)> take_join;
};

class Listener {
 public:
  // Binds the address. Accepts nothing before Start. kInvalidArgument: not an address. kUnavailable: it can't be bound,
  // with the system's reason.
  static StatusOr<std::unique_ptr<Listener>> Open(const ListenerOptions& options);
  virtual ~Listener() = default;
  // HOST:PORT as bound.
  virtual const std::string& address() const = 0;
  // `take` owns the non-blocking socket that it gets, nothing of which was read. Called on the listener's thread; must
  // not block.
  virtual Status Start(std::function<void(int fd)> take) = 0;
  // Closes the port and joins the thread. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace gyre
