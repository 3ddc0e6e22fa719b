#include "transport/carrier.h"

#include "transport/local_socket.h"

namespace gyre {
namespace {

constexpr CarrierRow kCarriers[] = {
    {.transport = Transport::kShm,
     .words = "shared memory",
     .to_peer = Transport::kShm,
     .automatic = true,
     .begins_with_tcp = false,
     .not_offered = LogLevel::kWarn,
     .make = MakeShmCarrier},
    {.transport = Transport::kTcp,
     .words = "TCP",
     .to_peer = Transport::kTcp,
     .automatic = true,
     .begins_with_tcp = true,
     .not_offered = LogLevel::kInfo,
     .make = MakeTcpCarrier},
    {.transport = Transport::kUdp,
     .words = "UDP",
     .to_peer = Transport::kUdp,
     .automatic = false,
     .begins_with_tcp = true,
     .not_offered = LogLevel::kInfo,
     .make = MakeUdpCarrier},
    {.transport = Transport::kKernel,
     .words = "io_uring",
     .to_peer = Transport::kTcp,
     .automatic = false,
     .begins_with_tcp = true,
     .not_offered = LogLevel::kInfo,
     .make = MakeKernelCarrier},
};

}  // namespace

Status Carrier::Offer(const HostPort& at, HelloReader& reader, RingAddress* address) {
  static_cast<void>(at), static_cast<void>(reader), static_cast<void>(address);
  return absl::OkStatus();
}

Status Carrier::Reaches(const RingAddress& to) const {
  static_cast<void>(to);
  return absl::OkStatus();
}

Carriers::Carriers(const CarrierContext& context) : own_(context.options.transport) {
  for (const CarrierRow& row : kCarriers) all_.push_back(row.make(row, context));
}

Carrier& Carriers::Of(Transport transport) const {
  Carrier* tcp = nullptr;
  for (const auto& carrier : all_) {
    if (carrier->row().transport == transport) return *carrier;
    if (carrier->row().transport == Transport::kTcp) tcp = carrier.get();
  }
  return *tcp;
}

Carrier& Carriers::Of(const Caller& caller, const Hello& hello) const {
  for (const auto& carrier : all_) {
    if (carrier->Brings(caller, hello)) return *carrier;
  }
  return Of(Transport::kTcp);
}

Status Carriers::CheckUsable(Transport transport) const {
  if (transport == Transport::kAuto) return absl::OkStatus();
  return Annotate(Of(transport).Usable(), fmt::format("--transport {}", TransportName(transport)));
}

Status Carriers::Offer(const HostPort& at, HelloReader& reader, RingAddress* address) const {
  for (const auto& carrier : all_) {
    const CarrierRow& row = carrier->row();
    if (own_ != Transport::kAuto && own_ != row.transport) continue;
    const Status offered = carrier->Offer(at, reader, address);
    if (offered.ok()) continue;
    if (own_ == row.transport) return Annotate(offered, fmt::format("--transport {}", TransportName(row.transport)));
    Log(row.not_offered, "no link of this process goes over {}: {}", row.words, Message(offered));
  }
  return absl::OkStatus();
}

TcpOptions LimitsOf(const RingPortOptions& options, LinkRole role) {
  TcpOptions limits = options.tcp;
  if (role != LinkRole::kRing) limits.silence = options.bulk_silence;
  return limits;
}

Status SendReply(int socket, TlsSession* tls, const HelloReply& reply, const Hello& hello) {
  std::vector<std::byte> bytes = HelloFrame(EncodeHelloReply(reply, hello));
  if (tls != nullptr) {
    GYRE_RETURN_IF_ERROR(tls->Seal(bytes));
    bytes.clear();
    tls->TakeOutput(&bytes);
  }
  return SendWithFds(socket, bytes, {});
}

}  // namespace gyre
