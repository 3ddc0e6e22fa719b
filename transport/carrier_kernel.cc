// TCP that this end reads and writes through io_uring.
#include "transport/carrier.h"
#include "transport/stream_carrier.h"
#include "transport/uring_stream.h"

namespace gyre {
namespace {

class KernelCarrier : public StreamCarrier {
 public:
  KernelCarrier(const CarrierRow& row, const CarrierContext& context)
      : StreamCarrier(row, context,
                      [](Fd socket, const TcpOptions& limits) { return MakeUringStream(std::move(socket), limits); }) {}

  Status Usable() const override { return CheckUring(); }
  // A caller does not say how it reads and writes its end: its link is TCP.
  bool Brings(const Caller&, const Hello&) const override { return false; }
};

}  // namespace

std::unique_ptr<Carrier> MakeKernelCarrier(const CarrierRow& row, const CarrierContext& context) {
  return std::make_unique<KernelCarrier>(row, context);
}

}  // namespace gyre
