// Writes GGUF v3.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace gyre {

// First all metadata, then all tensors' names, then Begin, then each tensor's bytes in that order, then Finish. The
// file appears under its name only when it is whole.
class GgufWriter {
 public:
  // kUnavailable: the file can't be made.
  static StatusOr<GgufWriter> Create(const std::string& path);
  GgufWriter(GgufWriter&& other) noexcept;
  GgufWriter& operator=(GgufWriter&&) = delete;
  ~GgufWriter();  // an unfinished file is removed

  // As it was read.
  void Add(std::string_view key, const GgufValue& value);
  void Add(std::string_view key, uint32_t value);
  void Add(std::string_view key, std::string_view value);
  void AddTensor(std::string_view name, DType type, const std::vector<uint64_t>& dims);

  // kUnavailable: the system's reason, a full disk say.
  Status Begin();
  Status Write(std::span<const std::byte> bytes);  // of one tensor; several calls may make it up
  Status Finish();

 private:
  GgufWriter() = default;
  void Put(const void* data, size_t bytes);
  template <typename T>
  void Number(T v) {
    Put(&v, sizeof v);
  }
  void Text(std::string_view s);
  Status PadTo(uint64_t alignment);
  Status Raw(const void* data, size_t bytes);

  static constexpr uint64_t kAlignment = 32;
  std::string path_, partial_;
  std::FILE* file_ = nullptr;
  std::string values_, infos_;
  std::string* out_ = &values_;
  uint64_t n_values_ = 0, offset_ = 0, written_ = 0;
  std::vector<uint64_t> sizes_;
  size_t current_ = 0;         // tensor that is being written
  uint64_t current_done_ = 0;  // bytes of it
};

}  // namespace gyre
