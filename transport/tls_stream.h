// A byte stream sealed with TLS, over another stream.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/tls_session.h"

namespace gyre {

// Seals `inner` with a session whose handshake is done. No byte that `inner` received is lost: the session has it.
std::unique_ptr<ByteStream> MakeTlsStream(std::unique_ptr<ByteStream> inner, std::unique_ptr<TlsSession> session);

// Does the session's handshake over `stream`. `stopped`, if not empty, is asked every 100 ms. kDeadlineExceeded;
// kCancelled: `stopped` said so; the errors of stream and session.
Status DoHandshake(ByteStream& stream, TlsSession& session, Deadline deadline,
                   const std::function<bool()>& stopped = {});

}  // namespace gyre
