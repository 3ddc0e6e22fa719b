// TCP. A port always listens there, as every hello that does not come from the same host arrives over it.
#include "transport/carrier.h"
#include "transport/stream_carrier.h"
#include "transport/tcp_stream.h"

namespace gyre {
namespace {

class TcpCarrier : public StreamCarrier {
 public:
  TcpCarrier(const CarrierRow& row, const CarrierContext& context)
      : StreamCarrier(row, context,
                      [](Fd socket, const TcpOptions& limits) { return MakeTcpStream(std::move(socket), limits); }) {}

  bool Brings(const Caller& caller, const Hello& hello) const override { return !caller.local && !hello.udp; }
};

}  // namespace

std::unique_ptr<Carrier> MakeTcpCarrier(const CarrierRow& row, const CarrierContext& context) {
  return std::make_unique<TcpCarrier>(row, context);
}

}  // namespace gyre
