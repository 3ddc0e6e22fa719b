#include "tests/testing/simt/vocabulary.h"

#include <memory>

#include "kernels/quant.h"
#include "tests/testing/simt/block.h"
#include "tests/testing/simt/source_line.h"
#include "tests/testing/simt/stream.h"

// Where the kernel is, as it calls one of these functions.
#define GYRE_HERE simt::CodeAt(__builtin_return_address(0))

namespace gyre::gpu {
namespace {

simt::Block& Running() { return *simt::Block::Running(); }

template <typename Word>
struct Wanted {
  Word v;
  unsigned lane;
};
template <typename Word>
void Shuffle(const void* const* ins, void* const* outs) {
  for (int i = 0; i < 32; ++i) {
    const unsigned lane = static_cast<const Wanted<Word>*>(ins[i])->lane % 32;
    *static_cast<Word*>(outs[i]) = static_cast<const Wanted<Word>*>(ins[lane])->v;
  }
}
void Vote(const void* const* ins, void* const* outs) {
  uint32_t votes = 0;
  for (int i = 0; i < 32; ++i) votes |= uint32_t{*static_cast<const bool*>(ins[i])} << i;
  for (int i = 0; i < 32; ++i) *static_cast<uint32_t*>(outs[i]) = votes;
}
template <typename Word, typename Fn>
Word Atomic(Word* p, uint32_t code, Fn change) {
  if (simt::kChecked) Running().Touch(p, sizeof(Word), simt::Access::kAtomic, true, code);
  const Word before = *p;
  *p = change(before);
  return before;
}

}  // namespace

unsigned Thread() { return Running().thread(); }
unsigned BlockX() { return Running().block().x; }
unsigned BlockY() { return Running().block().y; }
unsigned BlockZ() { return Running().block().z; }

void SyncBlock() { Running().Barrier(GYRE_HERE); }
void SyncWarp() { Running().Meet(simt::Meeting::kBarrier, nullptr, nullptr, nullptr, GYRE_HERE); }
uint32_t ShflBits(uint32_t v, unsigned lane) {
  const Wanted<uint32_t> in{v, lane};
  Running().Meet(simt::Meeting::kShuffle, &in, &v, Shuffle<uint32_t>, GYRE_HERE);
  return v;
}
uint64_t ShflBits(uint64_t v, unsigned lane) {
  const Wanted<uint64_t> in{v, lane};
  Running().Meet(simt::Meeting::kShuffle, &in, &v, Shuffle<uint64_t>, GYRE_HERE);
  return v;
}
uint32_t Ballot(bool v) {
  uint32_t votes = 0;
  Running().Meet(simt::Meeting::kBallot, &v, &votes, Vote, GYRE_HERE);
  return votes;
}

int Nearest(float a) {
  // Beyond the numbers of an int a GPU takes the nearest of them, and 0 for NaN.
  if (std::isnan(a)) return 0;
  if (a >= 2147483648.0f) return 2147483647;
  if (a < -2147483648.0f) return -2147483647 - 1;
  return static_cast<int>(std::nearbyint(a));
}
float OfHalf(uint16_t h) { return HalfToFloat(h); }
uint16_t ToHalf(float f) { return std::isnan(f) ? uint16_t{0x7FFF} : FloatToHalf(f); }
float OfBf16(uint16_t h) { return Bf16ToFloat(h); }
uint16_t ToBf16(float f) { return std::isnan(f) ? uint16_t{0x7FFF} : FloatToBf16(f); }

void Announce([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes, [[maybe_unused]] Kind kind) {
  constexpr simt::Access kAccesses[] = {simt::Access::kRead, simt::Access::kWrite, simt::Access::kAtomic};
  if (simt::kChecked) Running().Touch(p, bytes, kAccesses[static_cast<size_t>(kind)], true, GYRE_HERE);
}
void Move(const void* from, void* to, size_t bytes) { std::memcpy(to, from, bytes); }

uint32_t AtomicAdd(uint32_t* p, uint32_t v) {
  return Atomic(p, GYRE_HERE, [v](uint32_t before) { return before + v; });
}
uint64_t AtomicAdd(uint64_t* p, uint64_t v) {
  return Atomic(p, GYRE_HERE, [v](uint64_t before) { return before + v; });
}
uint32_t AtomicMax(uint32_t* p, uint32_t v) {
  return Atomic(p, GYRE_HERE, [v](uint32_t before) { return before < v ? v : before; });
}

void CopyAsync16(void* shared, const void* global, bool zeros) {
  Running().CopyAsync(shared, global, 16, zeros, GYRE_HERE);
}
void CommitAsync() { Running().CommitAsync(); }
void WaitAsyncGroups(int left) { Running().WaitAsync(left, GYRE_HERE); }

void* SharedMemory(size_t bytes) { return Running().Shared(bytes, GYRE_HERE); }
void Run(const Grid& grid, unsigned threads, CUstream_st* stream, const Call& call) {
  const simt::Size3 size{grid.x, grid.y, grid.z};
  if (stream == nullptr) return simt::Run(size, threads, {call.run, call.arguments, call.bytes});
  const std::shared_ptr<const void> copy(call.copy(call.arguments), call.free);
  const auto run = [=] { simt::Run(size, threads, {call.run, copy.get(), call.bytes}); };
  if (cuda::StepLog* const log = cuda::StepLog::Of(stream)) {
    log->Add([=] { stream->Enqueue(run); });
  } else {
    stream->Enqueue(run);
  }
}

}  // namespace gyre::gpu
