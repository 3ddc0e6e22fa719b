#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/ops.h"

namespace gyre::cpu {
namespace {

// From here on memory is mapped: the system gives zeros, and a page when it is first touched.
constexpr size_t kMapped = size_t{256} << 10;
// Huge pages save walks of the page table. Here only large memory has them, as small memory may never be touched.
constexpr size_t kHuge = size_t{16} << 20;
constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 64;

}  // namespace

std::unique_ptr<Backend> CpuDevice::NewBackend() { return make_(shared_from_this()); }

std::byte* CpuDevice::Take(size_t bytes) {
  const auto fail = [bytes] {
    return OutOfDeviceMemory("no " + std::to_string((bytes + (size_t{1} << 20) - 1) >> 20) +
                             " MiB of memory: " + std::strerror(errno));
  };
  if (bytes < kMapped) {
    void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (memory == nullptr) throw fail();
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }
  // From the size of a huge page on memory begins at one: what is mapped beyond it is given back at both ends.
  const size_t whole = (bytes + kPage - 1) / kPage * kPage, slack = bytes >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, whole + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw fail();
  auto* memory = static_cast<std::byte*>(mapped);
  if (slack > 0) {
    const size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePage;
    if (before > 0) munmap(memory, before);
    memory += before;
    munmap(memory + whole, slack - before);
  }
  if (bytes >= kHuge) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void CpuDevice::GiveBack(std::byte* data, size_t bytes) noexcept {
  if (bytes < kMapped)
    std::free(data);
  else
    munmap(data, bytes);
}

}  // namespace gyre::cpu
