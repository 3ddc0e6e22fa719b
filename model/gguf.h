// A reader of GGUF v2 and v3 for untrusted bytes. Source: the GGUF specification of the ggml project.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/tensor_table.h"

namespace gyre {

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
const char* GgufTypeName(GgufType type);

// One metadata value. Its views point into the file; arrays are walked, never copied as a whole.
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array; never an array itself
  uint64_t count = 0;                // elements of an array
  std::span<const std::byte> bytes;  // the number, the string's characters, or all elements as stored
};

// Whether a file that begins with these bytes says that it is a GGUF file.
bool IsGguf(std::span<const std::byte> bytes);

class Gguf {
 public:
  // kDataLoss names the offset or key, the value and the expected one. Views point into `file`.
  static StatusOr<Gguf> Parse(std::span<const std::byte> file);
  // The size of the header, up to the tensors' data, of a file that begins with these bytes; nullopt: they are too few
  // to tell. file_bytes: the size of the whole file. Errors as Parse.
  static StatusOr<std::optional<size_t>> HeaderBytes(std::span<const std::byte> beginning, uint64_t file_bytes);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const TensorTable& tensors() const { return tensors_; }
  uint32_t version() const { return version_; }
  // Made of parts from elsewhere: the memory to which values and tensors point must outlive it.
  static Gguf FromParts(std::map<std::string, GgufValue, std::less<>> metadata, TensorTable tensors);
  // Adds the tensors of a further part of a split file. kDataLoss: a name exists already.
  Status AddTensors(const Gguf& part);
  // Puts other tensors in the place of one. kDataLoss: a name exists already.
  Status Replace(const std::string& name, const std::vector<std::pair<std::string, TensorView>>& by);
  // The place where the tensors' data begins: everything before it is the header.
  size_t data_offset() const { return data_offset_; }

  bool Has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  // nullopt: there is no such key. kDataLoss: it has another type, or is out of range.
  StatusOr<std::optional<int64_t>> Int(std::string_view key, int64_t min, int64_t max) const;
  StatusOr<std::optional<double>> Float(std::string_view key) const;
  StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  StatusOr<std::optional<std::string>> String(std::string_view key) const;
  // Integers (bools count as 0 and 1), from an array or, the same for all, a single number. kDataLoss unless there are
  // `n` of them.
  StatusOr<std::optional<std::vector<int64_t>>> Ints(std::string_view key, size_t n, int64_t min, int64_t max) const;
  // The array under a key, or nullptr; kDataLoss: no array of that element type.
  StatusOr<const GgufValue*> Array(std::string_view key, GgufType element) const;

 private:
  class Header;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  TensorTable tensors_;
  uint32_t version_ = 0;
  size_t data_offset_ = 0;
};

// Walks a string array: calls f(index, text).
template <typename Fn>
void ForEachString(const GgufValue& array, Fn f) {
  size_t at = 0;
  for (uint64_t i = 0; i < array.count; ++i) {
    uint64_t length = 0;
    __builtin_memcpy(&length, array.bytes.data() + at, 8);
    at += 8;
    f(i, std::string_view(reinterpret_cast<const char*>(array.bytes.data() + at), length));
    at += length;
  }
}

// A value for people: strings printable and cut at 64 bytes, arrays as type and count.
std::string DescribeValue(const GgufValue& value);

}  // namespace gyre
