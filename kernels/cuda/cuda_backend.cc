#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gyre::cuda {
namespace {

constexpr size_t kChunk = size_t{1} << 18;
constexpr int kNothing = 0xFF;  // no block has this number: a kernel that reads beyond an upload goes astray

// Room for so many bytes: in steps of a quarter, so that tables that grow leave a step's addresses as they are mostly.
size_t RoomFor(size_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t step = std::max(kAlignment, std::bit_floor(bytes) / 4);
  return (bytes + step - 1) / step * step;
}

}  // namespace

CudaBackend::CudaBackend(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)), stream_(device_->NewStream()), graphs_(runtime(), device_->capturing()) {}
CudaBackend::~CudaBackend() {
  log_.End();
  runtime().Idle(stream_);
  device_->EndStream(stream_);
}

void CudaBackend::Flush() {
  log_.End();
  if (log_.empty()) {
    SendUploads();
    return MarkSent();
  }
  for (const Image& image : uploads_) {
    if (image.used == image.sent) continue;
    log_.Tell(image.host.data() + image.sent);
    log_.Tell(image.used - image.sent);
  }
  try {
    graphs_.Run(stream_, log_.key(), [this] {
      SendUploads();
      log_.Run();
    });
  } catch (...) {
    log_.Clear();
    throw;
  }
  log_.Clear();
  MarkSent();
}

void CudaBackend::SendUploads() {
  for (const Image& image : uploads_) {
    if (image.used == image.sent) continue;
    runtime().CopyIn(stream_, image.host.data() + image.sent, image.device.data() + image.sent,
                     image.used - image.sent);
  }
}

void CudaBackend::Finish() {
  if (rehearses_) return;
  if (failed_ != nullptr) {
    log_.End();
    log_.Clear();
    landings_.clear();
    runtime().Idle(stream_);
    std::rethrow_exception(std::exchange(failed_, nullptr));
  }
  Flush();
  runtime().Finish(stream_);
  for (const Landing& l : landings_) std::memcpy(l.to, l.from, l.bytes);
  landings_.clear();
}

void CudaBackend::Recycle() {
  log_.End();
  // Ops and copies that have not ended may still read and write these buffers.
  runtime().Idle(stream_);
  landings_.clear();
  failed_ = nullptr;
  for (Image& image : uploads_) image.used = image.sent = 0;
  for (Area& area : downloads_) area.used = 0;
  if (!device_->options().graphs) return log_.Clear();
  log_.Begin(stream_, [this] {
    try {
      Flush();
    } catch (...) {
      failed_ = std::current_exception();
    }
  });
}

void CudaBackend::Rehearse(const std::function<void()>& ops) {
  Recycle();
  rehearses_ = true;
  log_.Begin(stream_, [] {});
  const auto end = [this] {
    log_.End();
    log_.Clear();
    rehearses_ = false;
    landings_.clear();
    for (Image& image : uploads_) image.used = image.sent = 0;
    for (Area& area : downloads_) area.used = 0;
  };
  try {
    ops();
  } catch (...) {
    end();
    throw;
  }
  end();
  runtime().Finish(stream_);
}

void CudaBackend::CopyIn(const void* host, void* device, size_t bytes) {
  if (bytes == 0) return;
  if (rehearses_) return runtime().CopyIn(stream_, host, device, bytes);
  Do([=, this] { runtime().CopyIn(stream_, host, device, bytes); }, host, device, bytes);
}
void CudaBackend::CopyOut(const void* device, void* host, size_t bytes) {
  if (bytes == 0) return;
  if (StepLog::Of(stream_) == nullptr) return runtime().CopyOut(stream_, device, host, bytes);
  const auto* landed = static_cast<const std::byte*>(DownloadBytes(device, bytes));
  landings_.push_back({landed, host, bytes});
}
void CudaBackend::Copy(const void* from, void* to, size_t bytes) {
  if (bytes == 0) return;
  Do([=, this] { runtime().Copy(stream_, from, to, bytes); }, from, to, bytes);
}
void CudaBackend::Zero(void* device, size_t bytes) {
  if (bytes == 0) return;
  Do([=, this] { runtime().Zero(stream_, device, bytes); }, device, bytes);
}

const void* CudaBackend::UploadBytes(const void* host, size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t room = RoomFor(bytes);
  auto found =
      std::find_if(uploads_.begin(), uploads_.end(), [&](const Image& i) { return i.host.bytes() - i.used >= room; });
  if (found == uploads_.end()) {
    const size_t size = std::max(kChunk, room);
    DeviceMemory memory = device_->Allocate(size);
    found = uploads_.insert(uploads_.end(), Image{HostMemory(runtime(), size), std::move(memory)});
  }
  std::byte* const to = found->device.data() + found->used;
  std::byte* const staged = found->host.data() + found->used;
  std::memcpy(staged, host, bytes);
  std::memset(staged + bytes, kNothing, room - bytes);
  found->used += room;
  if (StepLog::Of(stream_) == nullptr) {
    SendUploads();
    MarkSent();
  }
  return to;
}

std::byte* CudaBackend::DownloadRoom(size_t bytes) {
  const size_t room = RoomFor(bytes);
  auto found = std::find_if(downloads_.begin(), downloads_.end(),
                            [&](const Area& a) { return a.host.bytes() - a.used >= room; });
  if (found == downloads_.end())
    found = downloads_.insert(downloads_.end(), Area{HostMemory(runtime(), std::max(kChunk, room))});
  std::byte* const to = found->host.data() + found->used;
  found->used += room;
  return to;
}

const void* CudaBackend::DownloadBytes(const void* device, size_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* const to = DownloadRoom(bytes);
  Do([=, this] { runtime().CopyOut(stream_, device, to, bytes); }, device, to, bytes);
  return to;
}

}  // namespace gyre::cuda
