// Scores as records of a .npy file: numpy.load gives a structured array. docs/scoring.md describes the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "coordinator/engine/request.h"
#include "scoring/divergence.h"

namespace gyre {

enum class LogitType : uint8_t { kNone, kF16, kF32 };

// The fields of every record.
struct ScoreFormat {
  uint32_t top = 0;                     // likeliest ids: a model of fewer ids has as many as it has
  LogitType logits = LogitType::kNone;  // of the whole vocabulary
  uint32_t vocab = 0;
  bool divergence = false;
  bool operator==(const ScoreFormat&) const = default;
};
size_t RecordBytes(const ScoreFormat& format);
// The bytes before the records: numpy's format 1.0, little-endian, C order, of the shape [records].
std::string NpyHeader(const ScoreFormat& format, uint64_t records);
// `index`: which input or window it is of. REQUIRES: the event has what the format says, but
// for the divergence: NaN stands for one that is not there.
void AppendRecord(const ScoreFormat& format, uint32_t index, const PromptTokenEvent& event,
                  const std::optional<Divergence>& divergence, std::string* out);

// What AppendRecord wrote, without logits and divergences.
struct ScoreRecord {
  uint32_t index = 0;
  PromptTokenEvent event;
};
// A file of records with `top` likeliest ids and nothing of a vocabulary's size. The bytes outlive it.
class ScoreFile {
 public:
  // kDataLoss: it is no such file, or it ends too early.
  static StatusOr<ScoreFile> Read(std::string_view bytes);
  uint32_t top() const { return format_.top; }
  uint64_t size() const { return records_; }
  ScoreRecord At(uint64_t i) const;

 private:
  ScoreFormat format_;
  uint64_t records_ = 0;
  std::string_view bytes_;  // of the records
};

}  // namespace gyre
