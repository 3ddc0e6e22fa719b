#include "transport/ring_dialer.h"

#include <utility>

#include "base/log.h"
#include "base/ring_address.h"

namespace gyre {

StatusOr<std::unique_ptr<Link>> RingDialer::Dial(const std::string& address, const Hello& hello, Deadline deadline) {
  GYRE_ASSIGN_OR_RETURN(const RingAddress to, ParseRingAddress(address));
  StatusOr<Transport> transport = AgreedTransport(hello.transport, options_.transport);
  if (!transport.ok()) return Annotate(transport.status(), Describe(hello));
  GYRE_RETURN_IF_ERROR(carriers_.CheckUsable(*transport));
  if (*transport == Transport::kAuto && to.only_udp) transport = Transport::kUdp;
  GYRE_ASSIGN_OR_RETURN(DialedLink dialed, *transport == Transport::kAuto ? DialAny(to, hello, deadline)
                                                                          : DialOver(*transport, to, hello, deadline));
  if (dialed.serial.empty()) return std::move(dialed.link);
  std::unique_ptr<Link> link = peers_.Watch(std::move(dialed.link), hello.to, std::move(dialed.serial));
  peers_.EndRevoked(*options_.identity->current());  // a list may have come since the handshake
  return link;
}

StatusOr<DialedLink> RingDialer::DialOver(Transport transport, const RingAddress& to, const Hello& hello,
                                          Deadline deadline) {
  Carrier& carrier = carriers_.Of(transport);
  const CarrierRow& row = carrier.row();
  const Status reaches = carrier.Reaches(to);
  StatusOr<DialedLink> dialed = reaches.ok() ? carrier.Dial(to, hello, deadline) : StatusOr<DialedLink>(reaches);
  if (!absl::IsUnavailable(dialed.status()) || (reaches.ok() && row.begins_with_tcp)) return dialed;
  return FailedPrecondition("{} is to go over {} (--transport {}) to {}: {}", Describe(hello), row.words,
                            TransportName(transport), to.tcp, Message(dialed.status()));
}

StatusOr<DialedLink> RingDialer::DialAny(const RingAddress& to, const Hello& hello, Deadline deadline) {
  Status why;                        // the carrier before can't be taken
  LogLevel level = LogLevel::kInfo;  // of that: a warning where it should have worked
  for (const auto& carrier : carriers_.all()) {
    const CarrierRow& row = carrier->row();
    if (!row.automatic) continue;
    const Status before = std::exchange(why, carrier->Reaches(to));
    const LogLevel level_before = std::exchange(level, why.ok() ? LogLevel::kWarn : LogLevel::kInfo);
    if (!why.ok()) continue;
    StatusOr<DialedLink> dialed = carrier->Dial(to, hello, deadline);
    // Where this one fails too, nobody is there, and its error says so.
    if (dialed.ok() && !before.ok()) {
      Log(level_before, "{} goes to {} over {}: {}", Describe(hello), to.tcp, TransportName(row.transport),
          Message(before));
    }
    if (!absl::IsUnavailable(dialed.status()) || row.begins_with_tcp) return dialed;
    why = dialed.status();
  }
  return why;
}

}  // namespace gyre
