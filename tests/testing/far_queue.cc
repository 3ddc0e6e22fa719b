#include "tests/testing/far_queue.h"

#include <algorithm>
#include <cstring>

namespace gyre::testing {
namespace {

uint64_t Sum(const std::byte* bytes, size_t n) {  // FNV-1a
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i < n; ++i) sum = (sum ^ static_cast<uint64_t>(bytes[i])) * 1099511628211u;
  return sum;
}

// The bytes that the host reads before a download is done.
constexpr int kGarbage = 0xA5;

}  // namespace

FarQueue::FarQueue(std::shared_ptr<FarDevice> device, std::unique_ptr<Backend> inner)
    : device_(std::move(device)),
      inner_(std::move(inner)),
      work_(std::make_shared<FarWork>(device_->lag_)),
      thread_([this] { work_->Loop([this](const std::function<void()>& work, bool) { Run(work); }); }) {
  MutexLock lock(&device_->mutex_);
  device_->queues_.insert(work_);
}

FarQueue::~FarQueue() {
  work_->Stop();
  thread_.join();
  MutexLock lock(&device_->mutex_);
  device_->queues_.erase(work_);
}

void FarQueue::Finish() {
  work_->Idle();
  work_->Rethrow();
}

void FarQueue::Recycle() {
  // Memory that ops still use is freed when they are done.
  Call([old = std::make_shared<std::list<std::vector<std::byte>>>(std::move(downloads_))] { old->clear(); });
  downloads_.clear();
  for (Chunk& chunk : uploads_) {
    Call([=, this, to = chunk.memory.data(), used = chunk.used] { std::memset(At(to, used), kGarbage, used); });
    chunk.used = 0;
  }
}

void FarQueue::CopyIn(const void* host, void* device, size_t bytes) {
  if (bytes == 0) return;
  const auto* from = static_cast<const std::byte*>(host);
  Check(device, bytes);
  Call([=, this, sum = Sum(from, bytes)] {
    if (Sum(from, bytes) != sum)
      FarDevice::Die("the host changed what it had called a copy of, before the copy was done");
    std::memcpy(At(device, bytes), from, bytes);
  });
}

void FarQueue::CopyOut(const void* device, void* host, size_t bytes) {
  if (bytes == 0) return;
  Check(device, bytes);
  std::memset(host, kGarbage, bytes);
  Call([=, this] { std::memcpy(host, At(device, bytes), bytes); });
}

void FarQueue::Copy(const void* from, void* to, size_t bytes) {
  if (bytes == 0) return;
  Check(from, bytes);
  Check(to, bytes);
  Call([=, this] { inner_->Copy(At(from, bytes), At(to, bytes), bytes); });
}

void FarQueue::Zero(void* device, size_t bytes) {
  if (bytes == 0) return;
  Check(device, bytes);
  Call([=, this] { inner_->Zero(At(device, bytes), bytes); });
}

std::shared_ptr<const PackedWeight> FarQueue::Pack(const WeightView& w, const std::function<void(size_t)>& progress) {
  std::shared_ptr<const PackedWeight> packed;
  Call([&] { packed = inner_->Pack(w, progress); });
  Finish();
  return packed;
}

const void* FarQueue::UploadBytes(const void* host, size_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr size_t kChunk = size_t{1} << 18, kAlignment = 64;
  const size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Chunk* chunk = nullptr;
  for (Chunk& c : uploads_) {
    if (c.memory.bytes() - c.used >= room) chunk = &c;
  }
  if (chunk == nullptr) chunk = &uploads_.emplace_back(Chunk{device_->Allocate(std::max(kChunk, room))});
  std::byte* to = chunk->memory.data() + chunk->used;
  chunk->used += room;
  CopyIn(host, to, bytes);
  return to;
}

const void* FarQueue::DownloadBytes(const void* device, size_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* to = downloads_.emplace_back(bytes).data();
  CopyOut(device, to, bytes);
  return to;
}

void FarQueue::Call(std::function<void()> work) {
  if (device_->lost_) throw DeviceLost("the far device is lost");
  work_->Call(std::move(work));
}

void FarQueue::Run(const std::function<void()>& work) {
  if (device_->lost_) throw DeviceLost("the far device is lost");
  if (device_->fails_.exchange(false)) throw DeviceFailed("an op of the far device failed while it ran");
  work();
}

}  // namespace gyre::testing
