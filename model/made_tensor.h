// A tensor that a file has in another order: its bytes are made when somebody reads them, and go when nobody does.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace gyre {

// Thread-safe.
class MadeTensor {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  // `sources`: the parts of the files that `make` reads.
  MadeTensor(std::vector<std::span<const std::byte>> sources, std::function<std::vector<std::byte>()> make)
      : sources_(std::move(sources)), make_(std::move(make)) {}

  // The same bytes as somebody else still holds, or new ones.
  Bytes Make() const {
    {
      const MutexLock lock(&mutex_);
      if (Bytes there = made_.lock()) return there;
    }
    auto made = std::make_shared<const std::vector<std::byte>>(make_());  // it reads files: without the lock
    const MutexLock lock(&mutex_);
    made_ = made;
    return made;
  }
  const std::vector<std::span<const std::byte>>& sources() const { return sources_; }

 private:
  const std::vector<std::span<const std::byte>> sources_;
  const std::function<std::vector<std::byte>()> make_;
  mutable Mutex mutex_;
  mutable std::weak_ptr<const std::vector<std::byte>> made_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
