// Header and payload decoders on any bytes.
#include <cstdlib>

#include "base/mask_codec.h"
#include "base/step_codec.h"
#include "transport/frame.h"
#include "transport/hello.h"
#include "transport/pages.h"
#include "transport/pieces.h"

namespace {

// Masks say of how many ids they are; a stage takes those of its own vocabulary. What was decoded is encoded the same.
void Masks(std::span<const std::byte> bytes) {
  const uint32_t vocab = gyre::Decoder(bytes).Get<uint32_t>() % 5000;
  (void)gyre::DecodeMasks(bytes, vocab + 1);
  const auto masks = gyre::DecodeMasks(bytes, vocab);
  if (vocab == 0 || !masks.ok()) return;
  gyre::Encoder again;
  gyre::EncodeMasks(*masks, vocab, &again);
  const auto same = gyre::DecodeMasks(again.bytes(), vocab);
  if (!same.ok() || *same != *masks) std::abort();
}

}  // namespace

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
  Masks(bytes);
  return 0;
}
