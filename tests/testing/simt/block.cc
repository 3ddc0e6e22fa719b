#include "tests/testing/simt/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/testing/simt/global_memory.h"
#include "tests/testing/simt/source_line.h"

namespace gyre::simt {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr uint32_t kLastPhase = 0xF0000000;

thread_local Block* running = nullptr;

// GlobalMemory's mutex guards it: one launch runs at a time.
Block& TheBlock() {
  static auto* const kBlock = new Block;
  return *kBlock;
}

std::byte* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("emulated GPU: no address space for the stacks of a block");
    std::abort();
  }
  return static_cast<std::byte*>(memory);
}

bool Within(const void* address, size_t bytes, const void* begin, size_t size) {
  const size_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(begin);
  return offset < size && bytes <= size - offset;
}

}  // namespace

Block::Block() : shared_cells_(kChecked ? kSharedBytes : 0) {
  stacks_ = Map(kStackBytes * kMaxThreads);
  for (size_t i = 0; i < kMaxThreads; ++i) mprotect(stacks_ + i * kStackBytes, 4096, PROT_NONE);
  shared_ = Map(kSharedBytes);
  for (unsigned i = 0; i < kMaxThreads; ++i) threads_[i].number = i;
  SetOrder(Order::kRising, 0);
}
Block::~Block() {
  munmap(stacks_, kStackBytes * kMaxThreads);
  munmap(shared_, kSharedBytes);
}

Block* Block::Running() { return running; }

void Block::SetOrder(Order order, uint64_t seed) {
  order_ = order;
  random_.seed(seed);
  std::iota(warp_order_.begin(), warp_order_.end(), 0u);
  std::iota(lane_order_.begin(), lane_order_.end(), 0u);
  if (order != Order::kFalling) return;
  std::reverse(warp_order_.begin(), warp_order_.end());
  std::reverse(lane_order_.begin(), lane_order_.end());
}

void Block::Launch(const Size3& grid, unsigned threads, const Kernel& kernel) {
  kernel_ = &kernel;
  count_ = threads;
  fault_.clear();
  main_.UseThisThread();
  launch_phase_ = phase_ + 1;
  running = this;
  const auto blocks = static_cast<uint32_t>(uint64_t{grid.x} * grid.y * grid.z);
  for (uint32_t b = 0; b < blocks && fault_.empty(); ++b) RunBlock(grid, b);
  running = nullptr;
  if (!fault_.empty()) throw Fault(fault_);
}

void Block::RunBlock(const Size3& grid, uint32_t number) {
  place_ = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  Begin(number);
  for (;;) {
    RunWarps();
    if (!fault_.empty()) return;
    for (unsigned w = 0; w * 32 < count_; ++w) BookWarp(w);
    if (alive_ == 0) return;
    OpenBarrier();
    if (!fault_.empty()) return;
  }
}

void Block::Begin(uint32_t number) {
  number_ = number;
  if (phase_ > kLastPhase) {
    std::fprintf(stderr, "emulated GPU: too many barriers in one process\n");
    std::abort();
  }
  block_phase_ = ++phase_;
  std::memset(shared_, kGarbage, shared_used_);
  shared_used_ = 0;
  alive_ = count_;
  for (unsigned i = 0; i < count_; ++i) {
    Thread& t = threads_[i];
    t.state = State::kReady;
    t.warp_barriers = 0;
    t.groups = 0;
    t.copies.clear();
    t.requests.clear();
    t.context.Begin(stacks_ + i * kStackBytes + 4096, kStackBytes - 4096, &Entry);
  }
}

void Block::Entry() {
  Block& block = *running;
  Arrive(&block.now_->context);
  block.kernel_->call(block.kernel_->arguments);
  --block.alive_;
  block.Wait(State::kReturned);
}

void Block::RunWarps() {
  const unsigned warps = (count_ + 31) / 32;
  if (order_ == Order::kRandom) std::shuffle(warp_order_.begin(), warp_order_.end(), random_);
  for (const unsigned warp : warp_order_) {
    for (bool any = warp < warps; any;) {
      any = false;
      if (order_ == Order::kRandom) std::shuffle(lane_order_.begin(), lane_order_.end(), random_);
      for (const unsigned lane : lane_order_) {
        const unsigned i = warp * 32 + lane;
        if (i >= count_ || threads_[i].state != State::kReady) continue;
        Resume(threads_[i]);
        if (!fault_.empty()) return;
        any = true;
      }
    }
  }
}

void Block::Resume(Thread& thread) {
  now_ = &thread;
  Switch(&main_, &thread.context);
  now_ = nullptr;
}

void Block::Wait(State state) {
  now_->state = state;
  Switch(&now_->context, &main_);
}

void Block::OpenBarrier() {
  const auto all = std::span(threads_).first(count_);
  const auto lone = std::find_if(all.begin(), all.end(), [](const Thread& t) { return t.state == State::kMeets; });
  if (lone != all.end()) {
    const auto warp = all.subspan(lone->number / 32 * 32, std::min<size_t>(32, count_ - lone->number / 32 * 32));
    const auto other = std::find_if(warp.begin(), warp.end(), [&](const Thread& t) {
      return t.state != State::kMeets || t.meeting != lone->meeting;
    });
    fault_ = "thread " + std::to_string(lone->number) + " of block " + std::to_string(number_) +
             " waits for its warp at " + SourceLine(lone->code) + ", but thread " + std::to_string(other->number) +
             (other->state == State::kReturned ? " has returned" : " waits at " + SourceLine(other->code));
    return;
  }
  if (alive_ < count_) {
    const auto at = std::find_if(all.begin(), all.end(), [](const Thread& t) { return t.state == State::kAtBarrier; });
    fault_ = "only " + std::to_string(alive_) + " of the " + std::to_string(count_) + " threads of block " +
             std::to_string(number_) + " reach the barrier at " + SourceLine(at->code) + "; the others have returned";
    return;
  }
  ++phase_;
  for (Thread& t : all) t.state = State::kReady;
}

void Block::Barrier(uint32_t code) {
  now_->code = code;
  Wait(State::kAtBarrier);
}

void Block::Meet(Meeting meeting, const void* in, void* out, Exchange exchange, uint32_t code) {
  Thread& me = *now_;
  me.meeting = meeting;
  me.in = in;
  me.out = out;
  me.code = code;
  const unsigned first = me.number / 32 * 32;
  if (first + 32 > count_) {
    fault_ = Me() + " meets its warp at " + SourceLine(code) + ", which has fewer than 32 threads";
    Stop();
  }
  const auto warp = std::span(threads_).subspan(first, 32);
  const auto here = std::count_if(warp.begin(), warp.end(), [&](const Thread& t) {
    return &t == &me || (t.state == State::kMeets && t.meeting == meeting);
  });
  if (here < 32) return Wait(State::kMeets);
  BookWarp(first / 32);
  if (exchange != nullptr) {
    const void* ins[32];
    void* outs[32];
    for (size_t lane = 0; lane < 32; ++lane) {
      ins[lane] = warp[lane].in;
      outs[lane] = warp[lane].out;
    }
    exchange(ins, outs);
  }
  for (Thread& t : warp) {
    t.state = State::kReady;
    if (meeting == Meeting::kBarrier) ++t.warp_barriers;
  }
}

void* Block::Shared(size_t bytes, uint32_t code) {
  if (bytes > kSharedBytes) {
    fault_ = Me() + " has " + std::to_string(bytes) + " bytes of shared memory at " + SourceLine(code) +
             ", more than " + std::to_string(kSharedBytes);
    Stop();
  }
  shared_used_ = std::max(shared_used_, bytes);
  return shared_;
}

void Block::CopyAsync(void* shared, const void* global, size_t bytes, bool zeros, uint32_t code) {
  if (kChecked) {
    if (!zeros) Touch(global, bytes, Access::kRead, true, code);
    Touch(shared, bytes, Access::kBeginCopy, true, code);
  }
  std::memset(shared, kGarbage, bytes);  // until its thread has waited
  now_->copies.push_back(
      {static_cast<std::byte*>(shared), zeros ? nullptr : static_cast<const std::byte*>(global), bytes, now_->groups});
}

void Block::WaitAsync(int groups_left, uint32_t code) {
  Thread& me = *now_;
  std::erase_if(me.copies, [&](const Copy& copy) {
    if (copy.group >= me.groups - groups_left) return false;
    if (kChecked) Touch(copy.to, copy.bytes, Access::kWrite, true, code);
    if (copy.from == nullptr)
      std::memset(copy.to, 0, copy.bytes);
    else
      std::memcpy(copy.to, copy.from, copy.bytes);
    return true;
  });
}

bool Block::OnStack(const void* address) const { return Within(address, 1, stacks_, kStackBytes * kMaxThreads); }

Now Block::TheMoment(bool global) const {
  // Shared memory begins anew with each block.
  return {global ? launch_phase_ : block_phase_, block_phase_, phase_, static_cast<uint16_t>(now_->number),
          now_->warp_barriers};
}

void Block::Touch(const void* address, size_t bytes, Access access, bool aligned, uint32_t code) {
  if (now_ == nullptr || OnStack(address)) return;
  const size_t offset = GlobalMemory::The().OffsetOf(reinterpret_cast<uintptr_t>(address));
  if (offset < GlobalMemory::kBytes) return TouchGlobal(offset, bytes, access, aligned, code);
  const size_t in_shared = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(shared_);
  if (in_shared < kSharedBytes) return TouchShared(in_shared, bytes, access, aligned, code);
  if (access == Access::kRead &&
      (Within(address, bytes, kernel_->arguments, kernel_->bytes) || IsConstant(address, bytes)))
    return;
  FailAccess(bytes, access, "of the host's memory", code);
}

void Block::TouchGlobal(size_t offset, size_t bytes, Access access, bool aligned, uint32_t code) {
  GlobalMemory& memory = GlobalMemory::The();
  if (aligned && offset % bytes != 0)
    FailAccess(bytes, access, "of global memory at an address that is not a multiple of them", code);
  if (offset + bytes > GlobalMemory::kBytes || !memory.Allocated(offset, bytes))
    FailAccess(bytes, access, "outside of all pieces of global memory", code);
  NoteBytes(memory.cells(offset), offset, bytes, access, true, code);
}

void Block::TouchShared(size_t offset, size_t bytes, Access access, bool aligned, uint32_t code) {
  if (aligned && offset % bytes != 0)
    FailAccess(bytes, access, "of shared memory at an address that is not a multiple of them", code);
  if (offset + bytes > shared_used_) FailAccess(bytes, access, "beyond the block's shared memory", code);
  NoteBytes(&shared_cells_[offset], offset, bytes, access, false, code);
}

void Block::NoteBytes(Cell* cells, size_t offset, size_t bytes, Access access, bool global, uint32_t code) {
  const Now now = TheMoment(global);
  const uint32_t first_valid = global ? kHostPhase : block_phase_;
  for (size_t i = 0; i < bytes; ++i) {
    Cell& cell = cells[i];
    if (access == Access::kRead || access == Access::kAtomic) {
      const bool in_flight = cell.written.phase >= first_valid && cell.written.in_flight != 0;
      const bool zeros = global && GlobalMemory::The().BeganAsZeros(offset + i);
      if ((cell.written.phase < first_valid && !zeros) || in_flight) {
        fault_ = Me() + " reads byte " + std::to_string(offset + i) + " of " + (global ? "global" : "shared") +
                 " memory, " + (in_flight ? "which an asynchronous copy has not brought yet" : "which nobody wrote") +
                 ", at " + SourceLine(code);
        Stop();
      }
    }
    if (const Record* other = NoteAccess(cell, now, access, code)) {
      const bool wrote = other == &cell.written;
      FailRace(*other, wrote, wrote ? cell.written_at : cell.read_at, offset + i, access, global, code);
    }
  }
  if (book_ != nullptr) {
    const std::byte* base = global ? reinterpret_cast<std::byte*>(offset) : shared_ + offset;
    NoteRequest(base, bytes, access, !global, code);
  }
}

void Block::NoteRequest(const void* address, size_t bytes, Access access, bool shared, uint32_t code) {
  now_->requests.push_back(
      {code, static_cast<uint8_t>(bytes), access != Access::kRead, shared, reinterpret_cast<uintptr_t>(address)});
}

void Block::BookWarp(unsigned warp) {
  if (book_ == nullptr) return;
  std::vector<const std::vector<Request>*> lanes;
  const auto all = std::span(threads_).subspan(warp * 32, std::min(32u, count_ - warp * 32));
  for (const Thread& t : all) {
    if (!t.requests.empty()) lanes.push_back(&t.requests);
  }
  if (lanes.empty()) return;
  book_->AddWarp(lanes);
  for (Thread& t : all) t.requests.clear();
}

std::string Block::Me() const {
  return "thread " + std::to_string(now_->number) + " of block " + std::to_string(number_);
}

void Block::Stop() {
  Wait(State::kReturned);
  std::abort();
}

void Block::FailAccess(size_t bytes, Access access, const char* what, uint32_t code) {
  fault_ = Me() + (access == Access::kRead ? " reads " : " writes ") + std::to_string(bytes) + " bytes " + what +
           ", at " + SourceLine(code);
  Stop();
}

void Block::FailRace(const Record& other, bool other_wrote, uint32_t other_code, size_t offset, Access access,
                     bool global, uint32_t code) {
  const bool here = other.phase >= block_phase_ && other.who != Who::kBlocks;
  fault_ = "race on byte " + std::to_string(offset) + " of " + (global ? "global" : "shared") + " memory: " + Me() +
           (access == Access::kRead ? " reads" : " writes") + " it at " + SourceLine(code) + ", thread " +
           std::to_string(other.thread) + (here ? " of this block" : " of another block") +
           (other_wrote ? " wrote" : " read") + " it at " + SourceLine(other_code) + ", and nothing orders the two";
  Stop();
}

void Run(const Size3& grid, unsigned threads, const Kernel& kernel) {
  // The limits of CUDA's launches.
  const bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x < (1u << 31) && grid.y < (1u << 16) &&
                    grid.z < (1u << 16) && uint64_t{grid.x} * grid.y * grid.z < (uint64_t{1} << 32);
  if (!fits || threads == 0 || threads > Block::kMaxThreads) {
    throw Fault("a GPU refuses a launch of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                std::to_string(grid.z) + " blocks of " + std::to_string(threads) + " threads");
  }
  const GlobalMemory::Open open(GlobalMemory::The());
  TheBlock().Launch(grid, threads, kernel);
}

void SetOrder(Order order, uint64_t seed) {
  const GlobalMemory::Open open(GlobalMemory::The());
  TheBlock().SetOrder(order, seed);
}

namespace {
TrafficBook* book = nullptr;
}  // namespace
Count::Count() {
  const GlobalMemory::Open open(GlobalMemory::The());
  book = new TrafficBook;
  TheBlock().CountIn(book);
}
Count::~Count() {
  const GlobalMemory::Open open(GlobalMemory::The());
  TheBlock().CountIn(nullptr);
  delete book;
  book = nullptr;
}
Counts Count::counts() const { return book->counts(); }
std::string Count::Worst(size_t lines) const { return book->Worst(lines); }

}  // namespace gyre::simt
