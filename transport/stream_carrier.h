// The carriers whose links are TCP to the other end, and differ in how this end reads and writes its socket.
#pragma once

#include <memory>

#include "base/status.h"
#include "transport/carrier.h"
#include "transport/tcp_greeting.h"

namespace gyre {

class StreamCarrier : public Carrier {
 public:
  StreamCarrier(const CarrierRow& row, const CarrierContext& context, MakeStreamFn make_stream)
      : Carrier(row, context), make_stream_(make_stream), greeter_(context, make_stream) {}

  StatusOr<DialedLink> Dial(const RingAddress& to, const Hello& hello, Deadline deadline) override;
  StatusOr<std::unique_ptr<ByteStream>> Accept(Connection connection, const Hello& hello,
                                               const TcpOptions& limits) override;

 private:
  const MakeStreamFn make_stream_;
  const TcpGreeter greeter_;
};

}  // namespace gyre
