// A device that behaves like a GPU, around the ops of any other device: docs/device.md. Its memory has addresses that
// nobody may access; a thread of each queue does the work, later, on a second mapping of that memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/device.h"

namespace gyre::testing {

class FarQueue;
class FarWork;

class FarDevice : public Device {
 public:
  // lag: the delay of an op that nobody waits for.
  explicit FarDevice(std::shared_ptr<Device> inner, Duration lag = std::chrono::milliseconds(2))
      : inner_(std::move(inner)), lag_(lag) {}

  std::string name() const override { return "far"; }
  std::string isa() const override { return inner_->isa(); }
  bool prefill_matches_decode() const override { return inner_->prefill_matches_decode(); }
  std::unique_ptr<Backend> NewBackend() override;

  // The place where a queue's thread finds `bytes` bytes at an address of the device. Ends the process with a sentence
  // if they are not all in one piece of this device's memory. Null stays null.
  std::byte* Find(const void* address, size_t bytes) const;
  // Ends the process with a sentence: a call that a GPU does not forgive.
  [[noreturn]] static void Die(const char* what);

  // Faults for tests: a limit of memory; ops that fail from now on; a lost device.
  void SetLimit(size_t bytes) { limit_ = bytes; }
  void FailNextOp() { fails_ = true; }
  void Lose() { lost_ = true; }
  size_t used() const { return used_; }

 protected:
  std::byte* Take(size_t bytes) override;
  void GiveBack(std::byte* data, size_t bytes) noexcept override;

 private:
  friend class FarQueue;
  struct Piece {
    size_t bytes = 0;
    std::byte* twin = nullptr;
  };

  const std::shared_ptr<Device> inner_;
  const Duration lag_;
  std::atomic<size_t> limit_{SIZE_MAX}, used_{0};
  std::atomic<bool> fails_{false}, lost_{false};
  mutable Mutex mutex_;
  std::map<const std::byte*, Piece> pieces_ GYRE_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<FarWork>> queues_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre::testing
