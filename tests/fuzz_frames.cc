// Header and payload decoders on any bytes.
#include "base/step_codec.h"
#include "transport/frame.h"
#include "transport/hello.h"
#include "transport/pages.h"
#include "transport/pieces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  (void)gyre::DecodeHeader(bytes);
  (void)gyre::DecodeStepPayload(bytes, 4);
  (void)gyre::DecodeStepAnswer(bytes);
  (void)gyre::DecodeStepError(bytes);
  (void)gyre::DecodeFullLogitsRequest(bytes);
  (void)gyre::DecodeLogitsAnswer(bytes);
  (void)gyre::DecodeHello(bytes);
  (void)gyre::DecodeHelloReply(bytes, {}, {});
  (void)gyre::DecodeChallenge(bytes);
  (void)gyre::DecodePullPages(bytes);
  (void)gyre::DecodePages(bytes);
  (void)gyre::DecodePullPiece(bytes);
  (void)gyre::DecodePiece(bytes);
  return 0;
}
