#include "kernels/cuda/cuda_device.h"

#include <set>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_backend.h"

namespace gyre::cuda {

std::shared_ptr<Device> MakeCudaDevice(std::unique_ptr<Runtime> runtime) {
  return std::make_shared<CudaDevice>(std::move(runtime));
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

std::byte* CudaDevice::Take(size_t bytes) { return static_cast<std::byte*>(runtime_->Allocate(bytes)); }

void CudaDevice::GiveBack(std::byte* data, size_t) noexcept {
  {
    const std::lock_guard lock(mutex_);  // a stream lives until it is waited for
    for (const Stream stream : streams_) runtime_->Idle(stream);
  }
  runtime_->Free(data);
}

}  // namespace gyre::cuda
