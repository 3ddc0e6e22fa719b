// What carries a link between two processes: a row of a table and a file for each carrier. A port's dialer and acceptor
// walk the table (docs/wire.md, "Adding a carrier").
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/ring_address.h"
#include "base/status.h"
#include "base/transport.h"
#include "transport/byte_stream.h"
#include "transport/hello.h"
#include "transport/hello_reader.h"
#include "transport/link.h"
#include "transport/ring_port.h"
#include "transport/tcp_link.h"

namespace gyre {

// What a port gives its carriers. All of it outlives them.
struct CarrierContext {
  const RingPortOptions& options;
  const std::string& host_id;  // of this host; "" = unknown
  // Whether links of this hello's plan are no longer needed.
  const std::function<bool(const Hello&)>& cancelled;
};

struct DialedLink {
  std::unique_ptr<Link> link;
  std::string serial;  // of the peer's certificate; "" without TLS
};

class Carrier;

// A row of the table.
struct CarrierRow {
  Transport transport;
  std::string_view words;  // for messages, such as "shared memory"
  // The transport that the peer sees. io_uring is TCP to the peer.
  Transport to_peer;
  // Whether a dialer tries it when nobody chose a carrier. The table's order is the order of the attempts.
  bool automatic;
  // Its links begin at the peer's TCP port. If this port can't be reached, no other carrier is tried.
  bool begins_with_tcp;
  // The level of the line that says why an `auto` port does not offer it.
  LogLevel not_offered;
  std::unique_ptr<Carrier> (*make)(const CarrierRow& row, const CarrierContext& context);
};

// One port's part of a carrier. Thread-safe after Offer.
class Carrier {
 public:
  virtual ~Carrier() = default;
  const CarrierRow& row() const { return row_; }

  // Why this process can't use it, if so: kUnimplemented, kFailedPrecondition.
  virtual Status Usable() const { return absl::OkStatus(); }
  // Called once, before the port's thread starts: opens what peers dial and adds it to the port's address. `at` is
  // where the port listens. Not called if the port's own choice is another carrier. kUnavailable, kResourceExhausted.
  virtual Status Offer(const HostPort& at, HelloReader& reader, RingAddress* address);

  // Whether a link to this address can be tried. kUnavailable says why not.
  virtual Status Reaches(const RingAddress& to) const;
  // Dials, says the hello, and waits until the peer has taken the link. kUnavailable: the peer does not offer this
  // carrier (if it begins with TCP: the peer can't be reached). Other errors are those of RingPort::Dial.
  virtual StatusOr<DialedLink> Dial(const RingAddress& to, const Hello& hello, Deadline deadline) = 0;

  // Whether this caller's link goes over it.
  virtual bool Brings(const Caller& caller, const Hello& hello) const = 0;
  // Tells a dialer that it is welcome, and takes over its connection. On an error the dialer was told nothing.
  virtual StatusOr<std::unique_ptr<ByteStream>> Accept(Connection connection, const Hello& hello,
                                                       const TcpOptions& limits) = 0;

 protected:
  Carrier(const CarrierRow& row, const CarrierContext& context) : row_(row), context_(context) {}
  const CarrierRow& row_;
  const CarrierContext context_;
};

// The carriers of one port.
class Carriers {
 public:
  explicit Carriers(const CarrierContext& context);

  // In the table's order.
  std::span<const std::unique_ptr<Carrier>> all() const { return all_; }
  // TCP if the table has no row for it.
  Carrier& Of(Transport transport) const;
  // The one that a caller's link goes over.
  Carrier& Of(const Caller& caller, const Hello& hello) const;
  // Whether this process can use the transport; kAuto always. The errors of Carrier::Usable.
  Status CheckUsable(Transport transport) const;
  // Offers those that the port's own choice allows. An error of a carrier that the port insists on is an error of the
  // port; others are logged.
  Status Offer(const HostPort& at, HelloReader& reader, RingAddress* address) const;

 private:
  const Transport own_;
  std::vector<std::unique_ptr<Carrier>> all_;
};

// The limits of a link of this role.
TcpOptions LimitsOf(const RingPortOptions& options, LinkRole role);

// Answers a hello over the caller's connection. Sending never blocks: the socket is fresh, so an answer fits in.
Status SendReply(int socket, TlsSession* tls, const HelloReply& reply, const Hello& hello);

// The rows' `make`, each in its carrier's file.
std::unique_ptr<Carrier> MakeShmCarrier(const CarrierRow& row, const CarrierContext& context);
std::unique_ptr<Carrier> MakeTcpCarrier(const CarrierRow& row, const CarrierContext& context);
std::unique_ptr<Carrier> MakeUdpCarrier(const CarrierRow& row, const CarrierContext& context);
std::unique_ptr<Carrier> MakeKernelCarrier(const CarrierRow& row, const CarrierContext& context);

}  // namespace gyre
