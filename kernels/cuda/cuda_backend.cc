#include "kernels/cuda/cuda_backend.h"

#include <algorithm>

namespace gyre::cuda {

CudaBackend::CudaBackend(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)), stream_(device_->NewStream()) {}
CudaBackend::~CudaBackend() {
  runtime().Idle(stream_);
  device_->EndStream(stream_);
}

void CudaBackend::Finish() { runtime().Finish(stream_); }

void CudaBackend::Recycle() {
  // Ops and copies that have not ended may still read and write these buffers.
  runtime().Idle(stream_);
  downloads_.clear();
  kept_.clear();
  for (Chunk& chunk : uploads_) chunk.used = 0;
}

void CudaBackend::CopyIn(const void* host, void* device, size_t bytes) {
  if (bytes > 0) runtime().CopyIn(stream_, host, device, bytes);
}
void CudaBackend::CopyOut(const void* device, void* host, size_t bytes) {
  if (bytes > 0) runtime().CopyOut(stream_, device, host, bytes);
}
void CudaBackend::Copy(const void* from, void* to, size_t bytes) {
  if (bytes > 0) runtime().Copy(stream_, from, to, bytes);
}
void CudaBackend::Zero(void* device, size_t bytes) {
  if (bytes > 0) runtime().Zero(stream_, device, bytes);
}

const void* CudaBackend::UploadBytes(const void* host, size_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr size_t kChunk = size_t{1} << 18, kAlignment = 64;
  const size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto found =
      std::find_if(uploads_.begin(), uploads_.end(), [&](const Chunk& c) { return c.memory.bytes() - c.used >= room; });
  Chunk& chunk =
      found != uploads_.end() ? *found : uploads_.emplace_back(Chunk{device_->Allocate(std::max(kChunk, room))});
  std::byte* to = chunk.memory.data() + chunk.used;
  chunk.used += room;
  runtime().CopyIn(stream_, host, to, bytes);
  return to;
}

const void* CudaBackend::DownloadBytes(const void* device, size_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* to = downloads_.emplace_back(bytes).data();
  runtime().CopyOut(stream_, device, to, bytes);
  return to;
}

}  // namespace gyre::cuda
