// A writer of GGUF v3.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/new_file.h"

namespace gyre {

// Call order: all metadata, all tensors' names, Begin, each tensor's bytes in that order, Finish. The
// file is a NewFile: an unfinished one is removed.
class GgufWriter {
 public:
  // Errors of NewFile::Create.
  static StatusOr<GgufWriter> Create(const std::string& path, const NewFileOptions& options);

  // A value of any type, as Gguf::Parse gives it.
  void Add(std::string_view key, const GgufValue& value);
  void Add(std::string_view key, uint32_t value);
  void Add(std::string_view key, std::string_view value);
  void AddTensor(std::string_view name, DType type, const std::vector<uint64_t>& dims);

  // kUnavailable: the system's reason, such as a full disk.
  Status Begin();
  Status Write(std::span<const std::byte> bytes);  // of one tensor; several calls may make it up
  Status Finish();

 private:
  explicit GgufWriter(NewFile file) : file_(std::move(file)) {}
  void Put(const void* data, size_t bytes);
  template <typename T>
  void Number(T v) {
    Put(&v, sizeof v);
  }
  void Text(std::string_view s);
  Status PadTo(uint64_t alignment);

  static constexpr uint64_t kAlignment = 32;
  enum class Part { kHead, kValues, kInfos };
  NewFile file_;
  std::string head_, values_, infos_;
  Part part_ = Part::kValues;  // what Put appends to
  uint64_t n_values_ = 0, offset_ = 0;
  std::vector<uint64_t> sizes_;
  size_t current_ = 0;         // tensor that is being written
  uint64_t current_done_ = 0;  // bytes of it
};

}  // namespace gyre
