// Little-endian bytes: an encoder that appends and a decoder that never reads past the end. Standard library only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gyre {

static_assert(std::endian::native == std::endian::little, "the codecs copy native numbers");

template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Encoder {
 public:
  void Reset() { bytes_.clear(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

  template <Number T>
  void Put(T value) {
    PutBytes(&value, sizeof value);
  }
  void PutBytes(const void* data, size_t n) {
    const auto* p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + n);
  }
  // Puts the count as u32, then the elements.
  template <Number T>
  void PutVector(std::span<const T> values) {
    Put(static_cast<uint32_t>(values.size()));
    PutBytes(values.data(), values.size_bytes());
  }
  void PutString(std::string_view s) { PutVector(std::span<const char>(s)); }
  void PadTo(size_t multiple) {
    while (bytes_.size() % multiple != 0) bytes_.push_back(std::byte{0});
  }
  // Overwrites a number that was put before.
  template <Number T>
  void Patch(size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }

 private:
  std::vector<std::byte> bytes_;
};

// After the first read past the end all reads return zeros and ok() is false, so callers check once at the end.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  size_t remaining() const { return bytes_.size() - at_; }
  size_t position() const { return at_; }
  // Whether all reads succeeded and nothing remains.
  bool Done() const { return ok_ && remaining() == 0; }
  void Fail() { ok_ = false; }

  template <Number T>
  T Get() {
    T value{};
    GetBytes(&value, sizeof value);
    return value;
  }
  void GetBytes(void* out, size_t n) {
    if (!ok_ || n > remaining()) {
      ok_ = false;
      return;
    }
    if (n > 0) std::memcpy(out, bytes_.data() + at_, n);
    at_ += n;
  }
  void Skip(size_t n) {
    if (!ok_ || n > remaining()) {
      ok_ = false;
      return;
    }
    at_ += n;
  }
  // Checks the count against the remaining bytes before it allocates.
  template <Number T>
  void GetVector(std::vector<T>* out) {
    const uint32_t n = Get<uint32_t>();
    out->clear();
    if (!ok_ || n > remaining() / sizeof(T)) {
      ok_ = false;
      return;
    }
    out->resize(n);
    GetBytes(out->data(), n * sizeof(T));
  }
  std::string GetString() {
    std::vector<char> chars;
    GetVector(&chars);
    return {chars.begin(), chars.end()};
  }
  // Reads a count of items that take at least min_bytes each; fails if they can't fit in the remaining bytes.
  uint32_t GetCount(size_t min_bytes) {
    const uint32_t n = Get<uint32_t>();
    if (!ok_ || n > remaining() / min_bytes) {
      ok_ = false;
      return 0;
    }
    return n;
  }
  std::span<const std::byte> Rest() const { return bytes_.subspan(at_); }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace gyre
