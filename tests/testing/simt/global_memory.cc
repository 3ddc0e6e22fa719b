#include "tests/testing/simt/global_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "tests/testing/simt/simt.h"

namespace gyre::simt {
namespace {

constexpr size_t kPlace = 256;    // pieces begin at multiples of this
constexpr size_t kBetween = 256;  // bytes between two pieces, which no kernel may touch
constexpr size_t kPage = 4096;

size_t Room(size_t bytes) { return (bytes + kPlace - 1) / kPlace * kPlace + kBetween; }

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

template <typename T>
T* MapZeros(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Die("emulated GPU: no address space for what is known of its memory");
  return static_cast<T*>(memory);
}

// Zeros, which cost no memory where they fill pages.
void ZeroPages(void* memory, size_t bytes, int advice) {
  auto* begin = static_cast<std::byte*>(memory);
  std::byte* end = begin + bytes;
  auto* first = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage);
  auto* last = reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(end) / kPage * kPage);
  if (first >= last) {
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, static_cast<size_t>(first - begin));
  if (first < last && madvise(first, static_cast<size_t>(last - first), advice) != 0)
    std::memset(first, 0, static_cast<size_t>(last - first));
  std::memset(last, 0, static_cast<size_t>(end - last));
}

}  // namespace

GlobalMemory& GlobalMemory::The() {
  static auto* const kMemory = new GlobalMemory;  // kernels may run until the process ends
  return *kMemory;
}

GlobalMemory::GlobalMemory() {
  const int file = memfd_create("emulated_gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kBytes)) != 0) Die("emulated GPU: no memory file");
  void* seen = mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void* twin = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (seen == MAP_FAILED || twin == MAP_FAILED) Die("emulated GPU: no address space for its memory");
  seen_ = static_cast<std::byte*>(seen);
  twin_ = static_cast<std::byte*>(twin);
  if (kChecked) cells_ = MapZeros<Cell>(kBytes * sizeof(Cell));
  used_of_16_ = MapZeros<uint8_t>(kBytes / 16);
  fresh_ = kPlace;
}

void GlobalMemory::OpenLocked() {
  if (is_open_) return;
  if (mprotect(seen_, kBytes, PROT_READ | PROT_WRITE) != 0) Die("emulated GPU: its memory does not open");
  is_open_ = true;
}
void GlobalMemory::CloseLocked() {
  if (!is_open_ || batches_ > 0) return;
  if (mprotect(seen_, kBytes, PROT_NONE) != 0) Die("emulated GPU: its memory does not close");
  is_open_ = false;
}

GlobalMemory::Open::Open(GlobalMemory& memory) : memory_(memory) {
  memory_.mutex_.Lock();
  memory_.OpenLocked();
}
GlobalMemory::Open::~Open() {
  memory_.CloseLocked();
  memory_.mutex_.Unlock();
}

GlobalMemory::Batch::Batch(GlobalMemory& memory) : memory_(memory) {
  MutexLock lock(&memory_.mutex_);
  ++memory_.batches_;
}
GlobalMemory::Batch::~Batch() {
  MutexLock lock(&memory_.mutex_);
  --memory_.batches_;
  memory_.CloseLocked();
}

std::byte* GlobalMemory::Allocate(size_t bytes, bool zeros) {
  if (bytes > kBytes) throw std::bad_alloc();
  const size_t room = Room(bytes);
  MutexLock lock(&mutex_);
  size_t offset = fresh_;
  // Freed memory is used again as late as possible, so that a stale address is noticed.
  if (room <= kBytes - fresh_) {
    fresh_ += room;
  } else {
    auto place = std::find_if(free_.begin(), free_.end(), [&](const auto& f) { return f.second >= room; });
    if (place == free_.end()) throw std::bad_alloc();
    offset = place->first;
    const size_t left = place->second - room;
    free_.erase(place);
    if (left > 0) free_[offset + room] = left;
  }
  pieces_[offset] = bytes;
  for (size_t i = 0; i < bytes; i += 16)
    used_of_16_[(offset + i) / 16] = static_cast<uint8_t>(std::min<size_t>(16, bytes - i) | (zeros ? kZeros : 0));
  if (!zeros) std::memset(twin_ + offset, kGarbage, bytes);  // where it is fresh, it is 0 and takes no memory
  return seen_ + offset;
}

void GlobalMemory::Free(std::byte* memory) noexcept {
  MutexLock lock(&mutex_);
  const auto piece = pieces_.find(OffsetOf(reinterpret_cast<uintptr_t>(memory)));
  if (piece == pieces_.end()) {
    std::fprintf(stderr, "emulated GPU: what is freed was never allocated\n");
    std::abort();
  }
  const auto [offset, bytes] = *piece;
  pieces_.erase(piece);
  Forget(offset, bytes);
  auto place = free_.emplace(offset, Room(bytes)).first;
  if (auto next = std::next(place); next != free_.end() && place->first + place->second == next->first) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place != free_.begin()) {
    auto before = std::prev(place);
    if (before->first + before->second == place->first) {
      before->second += place->second;
      free_.erase(place);
    }
  }
}

void GlobalMemory::Forget(size_t offset, size_t bytes) {
  std::fill_n(used_of_16_ + offset / 16, (bytes + 15) / 16, uint8_t{0});
  ZeroPages(twin_ + offset, bytes, MADV_REMOVE);
  if (kChecked) ZeroPages(cells_ + offset, bytes * sizeof(Cell), MADV_DONTNEED);
}

size_t GlobalMemory::OffsetInPiece(const std::byte* device, size_t bytes, const char* what) const {
  const size_t offset = OffsetOf(reinterpret_cast<uintptr_t>(device));
  auto piece = pieces_.upper_bound(offset);
  if (piece != pieces_.begin() && offset < kBytes) {
    --piece;
    const size_t inside = offset - piece->first;
    if (inside <= piece->second && bytes <= piece->second - inside) return offset;
  }
  throw Fault("a copy " + std::string(what) + " of " + std::to_string(bytes) + " bytes leaves global memory's piece");
}

void GlobalMemory::WrittenByHost(size_t offset, size_t bytes) {
  for (size_t i = 0; kChecked && i < bytes; ++i) {
    cells_[offset + i] = Cell();
    cells_[offset + i].written.phase = kHostPhase;
  }
}

void GlobalMemory::CopyIn(const void* host, std::byte* device, size_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(&mutex_);
  const size_t offset = OffsetInPiece(device, bytes, "to the device");
  std::memcpy(twin_ + offset, host, bytes);
  WrittenByHost(offset, bytes);
}

void GlobalMemory::CopyOut(const std::byte* device, void* host, size_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(&mutex_);
  const size_t offset = OffsetInPiece(device, bytes, "to the host");
  for (size_t i = 0; kChecked && i < bytes; ++i) {
    if (!Written(offset + i))
      throw Fault("a copy to the host of " + std::to_string(bytes) +
                  " bytes has bytes that nobody wrote, the first is " + std::to_string(i));
  }
  std::memcpy(host, twin_ + offset, bytes);
}

void GlobalMemory::Copy(const std::byte* from, std::byte* to, size_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(&mutex_);
  const size_t source = OffsetInPiece(from, bytes, "from the device"), target = OffsetInPiece(to, bytes, "within it");
  std::memcpy(twin_ + target, twin_ + source, bytes);
  WrittenByHost(target, bytes);
  for (size_t i = 0; kChecked && i < bytes; ++i) {
    if (!Written(source + i)) cells_[target + i].written.phase = kNoPhase;
  }
}

void GlobalMemory::Zero(std::byte* device, size_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(&mutex_);
  const size_t offset = OffsetInPiece(device, bytes, "of zeros");
  std::memset(twin_ + offset, 0, bytes);
  WrittenByHost(offset, bytes);
}

void* Allocate(size_t bytes) { return GlobalMemory::The().Allocate(bytes, false); }
void* AllocateZeros(size_t bytes) { return GlobalMemory::The().Allocate(bytes, true); }
void Free(void* memory) noexcept { GlobalMemory::The().Free(static_cast<std::byte*>(memory)); }
void CopyIn(const void* host, void* device, size_t bytes) {
  GlobalMemory::The().CopyIn(host, static_cast<std::byte*>(device), bytes);
}
void CopyOut(const void* device, void* host, size_t bytes) {
  GlobalMemory::The().CopyOut(static_cast<const std::byte*>(device), host, bytes);
}

void Copy(const void* from, void* to, size_t bytes) {
  GlobalMemory::The().Copy(static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes);
}
void Zero(void* device, size_t bytes) { GlobalMemory::The().Zero(static_cast<std::byte*>(device), bytes); }

}  // namespace gyre::simt
