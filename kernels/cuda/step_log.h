// The launches and copies of a step, put off until all of them are known: docs/cuda.md, "Steps and graphs". A step
// whose calls are those of an earlier one is then one launch of a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/stream.h"

namespace gyre::cuda {

// Not thread-safe: one thread calls all ops of a step.
class StepLog {
 public:
  StepLog() = default;
  ~StepLog() { Clear(); }
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // The log of the calling thread, if it puts off calls on this stream; null: they are done at once.
  static StepLog* Of(Stream stream) { return current_stream_ == stream ? current_ : nullptr; }
  // Flushes the log of the calling thread, if it has one.
  static void FlushCurrent() {
    if (current_ != nullptr) current_->flush_();
  }

  // From now on the calling thread's calls on this stream are put off. `flush`: does them, when memory is about to be
  // freed that they may use; then calls are done at once.
  void Begin(Stream stream, std::function<void()> flush) {
    Clear();
    flush_ = std::move(flush);
    current_ = this;
    current_stream_ = stream;
  }
  // The thread's calls are done at once again. What was put off stays here.
  void End() {
    if (current_ == this) current_ = nullptr, current_stream_ = nullptr;
  }

  // Does `work()` later. What tells the call from others has to be told besides.
  template <typename Work>
  void Add(Work work) {
    void* room = Room(sizeof(Work), alignof(Work));
    new (room) Work(std::move(work));
    void (*destroy)(void*) = nullptr;
    if constexpr (!std::is_trivially_destructible_v<Work>) destroy = [](void* w) { static_cast<Work*>(w)->~Work(); };
    calls_.push_back({room, [](void* w) { (*static_cast<Work*>(w))(); }, destroy});
  }
  // Bytes that tell the calls of this step from those of another one. A struct is told member by member, as its padding
  // differs between equal ones.
  template <typename T>
  void Tell(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    constexpr size_t kMembers = MembersOf<T>();
    if constexpr (kMembers == 1) {
      const auto& [a] = value;
      TellAll(a);
    } else if constexpr (kMembers == 2) {
      const auto& [a, b] = value;
      TellAll(a, b);
    } else if constexpr (kMembers == 3) {
      const auto& [a, b, c] = value;
      TellAll(a, b, c);
    } else if constexpr (kMembers == 4) {
      const auto& [a, b, c, d] = value;
      TellAll(a, b, c, d);
    } else if constexpr (kMembers == 5) {
      const auto& [a, b, c, d, e] = value;
      TellAll(a, b, c, d, e);
    } else if constexpr (kMembers == 6) {
      const auto& [a, b, c, d, e, f] = value;
      TellAll(a, b, c, d, e, f);
    } else if constexpr (kMembers == 7) {
      const auto& [a, b, c, d, e, f, g] = value;
      TellAll(a, b, c, d, e, f, g);
    } else if constexpr (kMembers == 8) {
      const auto& [a, b, c, d, e, f, g, h] = value;
      TellAll(a, b, c, d, e, f, g, h);
    } else if constexpr (kMembers == 9) {
      const auto& [a, b, c, d, e, f, g, h, i] = value;
      TellAll(a, b, c, d, e, f, g, h, i);
    } else if constexpr (kMembers == 10) {
      const auto& [a, b, c, d, e, f, g, h, i, j] = value;
      TellAll(a, b, c, d, e, f, g, h, i, j);
    } else if constexpr (kMembers == 11) {
      const auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
      TellAll(a, b, c, d, e, f, g, h, i, j, k);
    } else if constexpr (kMembers == 12) {
      const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
      TellAll(a, b, c, d, e, f, g, h, i, j, k, l);
    } else {
      const size_t at = key_.size();
      key_.resize(at + sizeof(T));
      std::memcpy(key_.data() + at, &value, sizeof(T));
    }
  }
  std::span<const std::byte> key() const { return key_; }
  bool empty() const { return calls_.empty(); }

  // Does all that was put off, in its order. Throws what the calls throw.
  void Run() const {
    for (const Call& call : calls_) call.run(call.work);
  }
  void Clear() {
    for (const Call& call : calls_) {
      if (call.destroy != nullptr) call.destroy(call.work);
    }
    calls_.clear();
    key_.clear();
    chunk_ = used_ = 0;
  }

 private:
  // The number of members of an aggregate; 0: it is none.
  struct Anything {
    template <typename T>
    operator T() const;  // NOLINT: as any member is initialized
  };
  template <typename T, typename... Before>
  static constexpr size_t MembersOf() {
    if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T>)
      return 0;
    else if constexpr (requires { T{{Before()}..., {Anything()}}; })  // braces: an array is one member
      return MembersOf<T, Before..., Anything>();
    else
      return sizeof...(Before);
  }
  template <typename... T>
  void TellAll(const T&... values) {
    (Tell(values), ...);
  }

  static constexpr size_t kChunk = size_t{1} << 16;
  struct Call {
    void* work;
    void (*run)(void* work);
    void (*destroy)(void* work);
  };

  // Memory that stays where it is until Clear.
  void* Room(size_t bytes, size_t alignment) {
    size_t at = (used_ + alignment - 1) / alignment * alignment;
    while (chunk_ < chunks_.size() && at + bytes > chunks_[chunk_].size) ++chunk_, at = 0;
    if (chunk_ == chunks_.size()) {
      const size_t size = std::max(kChunk, bytes);
      chunks_.push_back({std::make_unique<std::max_align_t[]>(size / sizeof(std::max_align_t) + 1), size});
      at = 0;
    }
    used_ = at + bytes;
    return reinterpret_cast<std::byte*>(chunks_[chunk_].memory.get()) + at;
  }

  static inline thread_local StepLog* current_ = nullptr;
  static inline thread_local Stream current_stream_ = nullptr;

  struct Chunk {
    std::unique_ptr<std::max_align_t[]> memory;
    size_t size;
  };
  std::function<void()> flush_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0, used_ = 0;
  std::vector<Call> calls_;
  std::vector<std::byte> key_;
};

}  // namespace gyre::cuda
