#include "tests/testing/far_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/testing/far_queue.h"

namespace gyre::testing {
namespace {

size_t WholePages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

void FarDevice::Die(const char* what) {
  std::fprintf(stderr, "far device: %s\n", what);
  std::abort();
}

std::unique_ptr<Backend> FarDevice::NewBackend() {
  return std::make_unique<FarQueue>(std::static_pointer_cast<FarDevice>(shared_from_this()), inner_->NewBackend());
}

std::byte* FarDevice::Find(const void* address, size_t bytes) const {
  if (address == nullptr) return nullptr;
  const auto* at = static_cast<const std::byte*>(address);
  MutexLock lock(&mutex_);
  auto it = pieces_.upper_bound(at);
  if (it == pieces_.begin()) Die("an op got an address that is not the device's");
  --it;
  const auto offset = static_cast<size_t>(at - it->first);
  if (offset > it->second.bytes) Die("an op got an address that is not the device's");
  if (bytes > 1 && bytes > it->second.bytes - offset) Die("an op got a tensor that its memory does not hold");
  return it->second.twin + offset;
}

std::byte* FarDevice::Take(size_t bytes) {
  if (lost_) throw DeviceLost("the far device is lost");
  const size_t whole = WholePages(bytes);
  if (used_ + bytes > limit_)
    throw OutOfDeviceMemory("the far device has " + std::to_string(limit_ - std::min<size_t>(limit_, used_)) +
                            " bytes free, " + std::to_string(bytes) + " are needed");
  const int file = memfd_create("far", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(whole)) != 0) Die("no memory file");
  void* seen = mmap(nullptr, whole, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void* twin = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (seen == MAP_FAILED || twin == MAP_FAILED) Die("no address space");
  used_ += bytes;
  MutexLock lock(&mutex_);
  pieces_[static_cast<std::byte*>(seen)] = {bytes, static_cast<std::byte*>(twin)};
  return static_cast<std::byte*>(seen);
}

void FarDevice::GiveBack(std::byte* data, size_t bytes) noexcept {
  std::set<std::shared_ptr<FarWork>> queues;
  {
    MutexLock lock(&mutex_);
    queues = queues_;
  }
  for (const auto& queue : queues) queue->Idle();
  Piece piece;
  {
    MutexLock lock(&mutex_);
    piece = pieces_.at(data);
    pieces_.erase(data);
  }
  used_ -= bytes;
  munmap(data, WholePages(bytes));
  munmap(piece.twin, WholePages(bytes));
}

}  // namespace gyre::testing
