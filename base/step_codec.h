// Byte form of what travels in frames: docs/wire.md. Everything that comes in is checked before it is believed.
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
// kDataLoss: what is wrong. `width` = bytes a row. The batch is whole and consistent in itself (positions, requests,
// no sequence twice); ids, block numbers and models are for the stage to check.
StatusOr<StepPayload> DecodeStepPayload(std::span<const std::byte> payload, size_t width);

// What the answer to a step has at most, encoded, in bytes.
uint64_t MaxAnswerBytes(const StepBatch& batch, size_t vocab, size_t dim);
void EncodeStepAnswer(const StepAnswer& answer, Encoder* out);
StatusOr<StepAnswer> DecodeStepAnswer(std::span<const std::byte> payload);
void EncodeStepError(const StepError& error, Encoder* out);
StatusOr<StepError> DecodeStepError(std::span<const std::byte> payload);
void EncodeLogitsQuestion(const LogitsQuestion& question, Encoder* out);
StatusOr<LogitsQuestion> DecodeLogitsQuestion(std::span<const std::byte> payload);
void EncodeLogitsAnswer(const LogitsAnswer& answer, Encoder* out);
StatusOr<LogitsAnswer> DecodeLogitsAnswer(std::span<const std::byte> payload);

}  // namespace gyre
