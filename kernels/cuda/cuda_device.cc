#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/measure/measure.h"

namespace gyre::cuda {

std::shared_ptr<Device> MakeCudaDevice(std::unique_ptr<Runtime> runtime, const CudaOptions& options) {
  return std::make_shared<CudaDevice>(std::move(runtime), options);
}

std::unique_ptr<Backend> CudaDevice::NewBackend() {
  return std::make_unique<CudaBackend>(std::static_pointer_cast<CudaDevice>(shared_from_this()));
}

Stream CudaDevice::NewStream() {
  const Stream stream = runtime_->NewStream();
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void CudaDevice::EndStream(Stream stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  runtime_->EndStream(stream);
}

// Each measurement takes longer and longer until it lasts a while, so that it fits a GPU as well as an emulated one;
// the best of three then counts.
DeviceSpeed CudaDevice::Measure() {
  using Clock = std::chrono::steady_clock;
  constexpr double kLong = 0.01;  // seconds
  const std::unique_ptr<Backend> queue = NewBackend();
  const Stream stream = static_cast<CudaBackend&>(*queue).stream();
  const auto seconds = [&](const auto& launch) {
    const auto began = Clock::now();
    launch();
    queue->Finish();
    return std::chrono::duration<double>(Clock::now() - began).count();
  };
  DeviceSpeed speed;
  {
    constexpr size_t kMost = size_t{1} << 30, kLeast = 4 * kReadBlock;
    const size_t room = std::clamp(runtime_->room().free / 4, kLeast, kMost) / kReadBlock * kReadBlock;
    const DeviceMemory x = Allocate(room), out = Allocate(room / kReadBlock * sizeof(uint32_t));
    size_t bytes = kLeast, times = 1;
    const auto read = [&] {
      for (size_t i = 0; i < times; ++i) ReadAll(stream, x.data(), bytes, reinterpret_cast<uint32_t*>(out.data()));
      runtime_->CheckLaunch("ReadAll");
    };
    double took = seconds(read);
    for (took = seconds(read); took < kLong && times < 1024; took = seconds(read)) {
      if (bytes * 2 <= room)
        bytes *= 2;
      else
        times *= 2;
    }
    for (int i = 0; i < 2; ++i) took = std::min(took, seconds(read));
    speed.bytes_per_second = static_cast<double>(bytes * times) / took;
  }
  constexpr size_t kBlocks = 1024;  // more than any GPU runs at once
  const DeviceMemory out = Allocate(kBlocks * kMmaWarps * sizeof(uint32_t));
  size_t blocks = 4, rounds = 1;
  const auto multiply = [&] {
    MultiplyTiles(stream, true, blocks, rounds, reinterpret_cast<uint32_t*>(out.data()));
    runtime_->CheckLaunch("MultiplyTiles");
  };
  double took = seconds(multiply);
  for (took = seconds(multiply); took < kLong && rounds < (size_t{1} << 20); took = seconds(multiply)) {
    if (blocks < kBlocks)
      blocks *= 2;
    else
      rounds *= 2;
  }
  for (int i = 0; i < 2; ++i) took = std::min(took, seconds(multiply));
  constexpr double kOfTile = 2.0 * 16 * 8 * 32;  // multiplications and additions
  speed.operations_per_second = kOfTile * 8 * static_cast<double>(kMmaWarps * blocks * rounds) / took;
  return speed;
}

std::byte* CudaDevice::Take(size_t bytes) { return static_cast<std::byte*>(runtime_->Allocate(bytes)); }

void CudaDevice::GiveBack(std::byte* data, size_t) noexcept {
  StepLog::FlushCurrent();  // ops that were called, and are put off, may use it
  {
    const std::scoped_lock lock(capturing_, mutex_);  // a stream lives until it is waited for
    for (const Stream stream : streams_) runtime_->Idle(stream);
  }
  runtime_->Free(data);
}

}  // namespace gyre::cuda
