// A device: where tensors live and ops run. docs/device.md.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/isa.h"

namespace gyre {

class Backend;

// Memory of a device ran out; the text says what was needed and what there was.
class OutOfDeviceMemory : public std::bad_alloc {
 public:
  explicit OutOfDeviceMemory(const std::string& text) : text_(text) {}
  const char* what() const noexcept override { return text_.what(); }

 private:
  std::runtime_error text_;  // copies without throwing
};
// An op could not be launched, or failed while it ran; the text says which of the two.
class DeviceFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The device answers no more: nothing on it can be used again.
class DeviceLost : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Device;

// Owns memory of a device. Movable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory();

  std::byte* data() const { return data_; }  // an address of the device, aligned to 64 bytes
  size_t bytes() const { return bytes_; }

 private:
  friend class Device;
  DeviceMemory(std::shared_ptr<Device> device, std::byte* data, size_t bytes)
      : device_(std::move(device)), data_(data), bytes_(bytes) {}

  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The memory that only a device has, in bytes. It is taken when tensors are allocated, not when they are touched.
struct DeviceRoom {
  size_t total = 0;  // for tensors of this process
  size_t free = 0;
};
// The speeds of a device; 0 = not known.
struct DeviceSpeed {
  double bytes_per_second = 0;       // read from the device's memory
  double operations_per_second = 0;  // multiplications and additions of int8
};

// Thread-safe. Lives as long as any of its memory and queues.
class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu", "cuda:0"
  // Devices with the same word here compute the same bits.
  virtual std::string isa() const = 0;
  // Whether rows of prompts and generated rows get the same bits (Arithmetic::kPrefill, kDecode).
  virtual bool prefill_matches_decode() const = 0;
  // The memory that it does not share with the host. nullopt: its tensors lie in the host's memory, and cost nothing
  // until they are touched.
  virtual std::optional<DeviceRoom> room() const { return std::nullopt; }
  // One word for what computes, for numbers that are kept: a GPU's name and number. "" = the host's processors.
  virtual std::string hardware() const { return ""; }
  // Measures for some 0.2 s, while nothing else runs on it. All 0 where the host's processors compute. Throws what ops
  // throw.
  virtual DeviceSpeed Measure() { return {}; }
  // A queue of its own. Throws std::bad_alloc.
  virtual std::unique_ptr<Backend> NewBackend() = 0;
  // Memory that holds zeros. Throws OutOfDeviceMemory.
  DeviceMemory Allocate(size_t bytes) {
    return bytes == 0 ? DeviceMemory() : DeviceMemory(shared_from_this(), Take(bytes), bytes);
  }

 protected:
  friend class DeviceMemory;
  // bytes > 0.
  virtual std::byte* Take(size_t bytes) = 0;
  // Waits for ops that use the memory.
  virtual void GiveBack(std::byte* data, size_t bytes) noexcept = 0;
};

inline DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) device_->GiveBack(data_, bytes_);
}

// A tensor on a device that only grows, as buffers of a forward pass do.
template <typename T>
class DeviceBuffer {
 public:
  // At least n elements. Contents are lost when it grows. Throws OutOfDeviceMemory.
  T* EnsureCapacity(Device& device, size_t n) {
    if (n > size()) {
      if (n > std::numeric_limits<size_t>::max() / sizeof(T)) throw OutOfDeviceMemory("a tensor of too many elements");
      memory_ = {};  // before the new one comes
      memory_ = device.Allocate(n * sizeof(T));
    }
    return data();
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return memory_.bytes() / sizeof(T); }

 private:
  DeviceMemory memory_;
};

// The processors of this machine, with `threads` threads for each queue. `cpus`: the processor of each thread; empty =
// the system schedules them. Ops are done when they return, and addresses are those of the host. REQUIRES:
// IsaMissing(isa) is empty, threads >= 1.
std::shared_ptr<Device> MakeCpuDevice(Isa isa, int threads, std::vector<int> cpus = {});

}  // namespace gyre
