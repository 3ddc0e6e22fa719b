// Scores as a stream of Arrow record batches: pyarrow.ipc.open_stream reads it. The columns are the fields of the .npy
// records (docs/scoring.md). Source: the Arrow columnar format 1.5, "IPC Streaming Format". Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/request.h"
#include "scoring/divergence.h"
#include "scoring/score_record.h"

namespace gyre {

inline constexpr char kArrowStreamType[] = "application/vnd.apache.arrow.stream";

// Used by one thread.
class ArrowScores {
 public:
  explicit ArrowScores(const ScoreFormat& format);

  // The stream begins with its schema.
  std::string Schema() const;
  // As AppendRecord, to the batch that grows. Its bytes are bytes().
  void Add(uint32_t index, const PromptTokenEvent& event, const std::optional<Divergence>& divergence);
  size_t bytes() const { return rows_ * RecordBytes(format_); }
  // The rows that were added since, as a message; "" if there are none.
  std::string TakeBatch();
  // The end of a whole stream.
  static std::string End();
  // The end of a stream in which something failed: a message without its body, so that every reader fails, too.
  static std::string Broken();

 private:
  // Numbers of one type, or lists of `list` of them.
  struct Column {
    std::string name;
    bool floating = false, is_signed = false;
    uint32_t bits = 32;
    uint32_t list = 0;  // 0: no list
    std::string data;   // of the batch
  };
  Column& AddColumn(std::string name, bool floating, bool is_signed, uint32_t bits, uint32_t list = 0);

  const ScoreFormat format_;
  std::vector<Column> columns_;
  size_t rows_ = 0;  // of the batch
};

}  // namespace gyre
