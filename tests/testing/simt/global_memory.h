// The memory of the emulated GPU: one range of addresses, and what is known of each of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "tests/testing/simt/shadow.h"

namespace gyre::simt {

class GlobalMemory {
 public:
  static constexpr size_t kBytes = size_t{16} << 30;  // of addresses

  static GlobalMemory& The();

  // simt.h has their rules.
  std::byte* Allocate(size_t bytes, bool zeros);
  void Free(std::byte* memory) noexcept;
  void CopyIn(const void* host, std::byte* device, size_t bytes);
  void CopyOut(const std::byte* device, void* host, size_t bytes);
  void Copy(const std::byte* from, std::byte* to, size_t bytes);
  void Zero(std::byte* device, size_t bytes);

  // A launch may touch the memory while it has this; one launch at a time has it.
  class Open {
   public:
    explicit Open(GlobalMemory& memory);
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    GlobalMemory& memory_;
  };

  // The memory stays open between the launches of a batch, as opening and closing take longer than many a launch.
  class Batch {
   public:
    explicit Batch(GlobalMemory& memory);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    GlobalMemory& memory_;
  };

  // The rest is for the launch.
  // From the beginning of the memory; kBytes or more for an address elsewhere.
  size_t OffsetOf(uintptr_t address) const { return address - reinterpret_cast<uintptr_t>(seen_); }
  // Whether all bytes belong to a piece that is allocated. REQUIRES: the offset is less than kBytes, bytes <= 16.
  bool Allocated(size_t offset, size_t bytes) const {
    const size_t last = offset + bytes - 1;
    return (used_of_16_[offset / 16] & kUsed) > offset % 16 && (used_of_16_[last / 16] & kUsed) > last % 16;
  }
  // Whether the piece of this byte began with zeros.
  bool BeganAsZeros(size_t offset) const { return (used_of_16_[offset / 16] & kZeros) != 0; }
  Cell* cells(size_t offset) { return cells_ + offset; }

 private:
  static constexpr uint8_t kUsed = 31, kZeros = 32;

  GlobalMemory();
  // The offset of these bytes. Throws Fault if they are not all in one piece.
  size_t OffsetInPiece(const std::byte* device, size_t bytes, const char* what) const GYRE_REQUIRES(mutex_);
  bool Written(size_t offset) const { return cells_[offset].written.phase != kNoPhase || BeganAsZeros(offset); }
  void WrittenByHost(size_t offset, size_t bytes);
  // Fresh again: nobody has written it.
  void Forget(size_t offset, size_t bytes);

  void OpenLocked() GYRE_REQUIRES(mutex_);
  void CloseLocked() GYRE_REQUIRES(mutex_);

  Mutex mutex_;
  bool is_open_ GYRE_GUARDED_BY(mutex_) = false;
  int batches_ GYRE_GUARDED_BY(mutex_) = 0;
  std::byte* seen_ = nullptr;                 // the addresses that kernels use: closed between launches
  std::byte* twin_ = nullptr;                 // the same memory, for copies
  Cell* cells_ = nullptr;                     // of each byte; where kChecked
  uint8_t* used_of_16_ = nullptr;             // of each 16 bytes: how many are allocated (kUsed), and kZeros
  size_t fresh_ GYRE_GUARDED_BY(mutex_) = 0;  // from here on nothing was ever allocated
  std::map<size_t, size_t> pieces_ GYRE_GUARDED_BY(mutex_);  // bytes of each, by offset
  std::map<size_t, size_t> free_ GYRE_GUARDED_BY(mutex_);    // places that were given back
};

}  // namespace gyre::simt
