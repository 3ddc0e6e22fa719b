// Runs the blocks of a launch one after the other, and the threads of a block as fibers: one runs until it waits for
// others or returns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/testing/simt/fiber.h"
#include "tests/testing/simt/shadow.h"
#include "tests/testing/simt/simt.h"
#include "tests/testing/simt/traffic.h"

namespace gyre::simt {

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};
// What a thread of the grid does. The arguments may lie on the host's stack.
struct Kernel {
  void (*call)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  size_t bytes = 0;
};

// What the lanes of a warp wait for together. Lane l gives ins[l] and gets outs[l].
enum class Meeting : uint8_t { kBarrier, kShuffle, kBallot, kLoadMatrix, kMultiply };
using Exchange = void (*)(const void* const* ins, void* const* outs);

class Block {
 public:
  // Of a static variable `__shared__`; more needs launches of another form.
  static constexpr size_t kSharedBytes = size_t{48} << 10;
  static constexpr unsigned kMaxThreads = 1024;

  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // The block that runs on this thread of the system, or null.
  static Block* Running();
  // Throws Fault.
  void Launch(const Size3& grid, unsigned threads, const Kernel& kernel);
  void SetOrder(Order order, uint64_t seed);
  void CountIn(TrafficBook* book) { book_ = book; }

  // The rest is called by the running thread of the block; `code` is the caller's place (CodeAt).
  unsigned thread() const { return now_->number; }
  const Size3& block() const { return place_; }
  void Barrier(uint32_t code);
  // exchange may be null.
  void Meet(Meeting meeting, const void* in, void* out, Exchange exchange, uint32_t code);
  void* Shared(size_t bytes, uint32_t code);
  // Before the access is done. Switches away for ever if it must not be done.
  void Touch(const void* address, size_t bytes, Access access, bool aligned, uint32_t code);
  // With `zeros` it reads nothing.
  void CopyAsync(void* shared, const void* global, size_t bytes, bool zeros, uint32_t code);
  void CommitAsync() { ++now_->groups; }
  void WaitAsync(int groups_left, uint32_t code);

 private:
  enum class State : uint8_t { kReady, kAtBarrier, kMeets, kReturned };
  struct Copy {
    std::byte* to;
    const std::byte* from;  // null: zeros
    size_t bytes;
    int group;
  };
  struct Thread {
    unsigned number = 0;
    State state = State::kReturned;
    Meeting meeting{};
    uint16_t warp_barriers = 0;
    int groups = 0;  // of copies, committed
    uint32_t code = 0;
    const void* in = nullptr;
    void* out = nullptr;
    Context context;
    std::vector<Copy> copies;
    std::vector<Request> requests;
  };

  void RunBlock(const Size3& grid, uint32_t number);
  void Begin(uint32_t number);
  // Runs the threads of each warp until all wait for another warp or have returned.
  void RunWarps();
  void Resume(Thread& thread);
  // All threads wait or have returned: the barrier opens, or the kernel is wrong.
  void OpenBarrier();
  void Wait(State state);
  static void Entry();

  void TouchGlobal(size_t offset, size_t bytes, Access access, bool aligned, uint32_t code);
  void TouchShared(size_t offset, size_t bytes, Access access, bool aligned, uint32_t code);
  void NoteBytes(Cell* cells, size_t offset, size_t bytes, Access access, bool global, uint32_t code);
  void NoteRequest(const void* address, size_t bytes, Access access, bool shared, uint32_t code);
  void BookWarp(unsigned warp);
  bool OnStack(const void* address) const;
  Now TheMoment(bool global) const;

  // After fault_ is set. The fiber never goes on, so nothing on its stack may own memory.
  [[noreturn]] void Stop();
  [[noreturn]] void FailAccess(size_t bytes, Access access, const char* what, uint32_t code);
  [[noreturn]] void FailRace(const Record& other, bool other_wrote, uint32_t other_code, size_t offset, Access access,
                             bool global, uint32_t code);
  std::string Me() const;

  std::byte* stacks_ = nullptr;
  std::byte* shared_ = nullptr;
  std::vector<Cell> shared_cells_;
  size_t shared_used_ = 0;
  std::array<Thread, kMaxThreads> threads_;
  std::array<unsigned, kMaxThreads / 32> warp_order_;
  std::array<unsigned, 32> lane_order_;
  Order order_ = Order::kRising;
  std::mt19937_64 random_;

  Context main_;
  const Kernel* kernel_ = nullptr;
  unsigned count_ = 0, alive_ = 0;  // threads of the block
  Size3 place_;
  uint32_t number_ = 0;
  uint32_t launch_phase_ = kFirstPhase, block_phase_ = kFirstPhase, phase_ = kFirstPhase;
  Thread* now_ = nullptr;
  std::string fault_;
  TrafficBook* book_ = nullptr;
};

// Runs a launch: checks its form, opens the memory. Throws Fault.
void Run(const Size3& grid, unsigned threads, const Kernel& kernel);

}  // namespace gyre::simt
