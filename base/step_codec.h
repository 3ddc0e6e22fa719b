// The bytes of messages in frames: docs/wire.md. All input is checked before it is used.
#pragma once

#include <cstddef>
#include <span>

#include "base/coding.h"
#include "base/status.h"
#include "base/step.h"

namespace gyre {

inline constexpr uint32_t kMaxStepRows = 1u << 20;
inline constexpr uint32_t kMaxKvGroups = 16;

// The head of a kTokens or kHidden payload: u32 descriptor length, descriptor, zeros to a multiple of 4. The rows'
// data follows as a part of its own.
void EncodeStepPrefix(const StepBatch& batch, Encoder* out);

struct StepPayload {
  StepBatch batch;
  std::span<const std::byte> rows;  // into the payload; rows * width bytes
};
// kDataLoss: the bytes are wrong. `width` = bytes a row. The batch is complete and consistent (positions, requests, no
// sequence twice); the stage checks ids, block numbers and models.
StatusOr<StepPayload> DecodeStepPayload(std::span<const std::byte> payload, size_t width);

// The largest size in bytes of an encoded answer to a step.
uint64_t MaxAnswerBytes(const StepBatch& batch, size_t vocab, size_t dim);
void EncodeStepAnswer(const StepAnswer& answer, Encoder* out);
StatusOr<StepAnswer> DecodeStepAnswer(std::span<const std::byte> payload);
void EncodeStepError(const StepError& error, Encoder* out);
StatusOr<StepError> DecodeStepError(std::span<const std::byte> payload);
void EncodeFullLogitsRequest(const FullLogitsRequest& question, Encoder* out);
StatusOr<FullLogitsRequest> DecodeFullLogitsRequest(std::span<const std::byte> payload);
void EncodeLogitsAnswer(const LogitsAnswer& answer, Encoder* out);
StatusOr<LogitsAnswer> DecodeLogitsAnswer(std::span<const std::byte> payload);

}  // namespace gyre
