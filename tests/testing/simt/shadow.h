// What is known of each byte of memory: who wrote it last, and who read it. Two accesses of one byte, at least one of
// them a write, are a race unless something orders them: a barrier of the block, or within a warp a barrier of the
// warp. Nothing orders two blocks of one launch. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gyre::simt {

// The bytes of memory that nobody has written: as f32 a huge negative number, as f16 no number.
inline constexpr int kGarbage = 0xFB;

// Each stretch between two barriers of a block is a phase with a number of its own, rising over all blocks and
// launches.
inline constexpr uint32_t kNoPhase = 0, kHostPhase = 1, kFirstPhase = 2;

// The running thread, in time.
struct Now {
  uint32_t launch = kFirstPhase;  // first phase of the launch
  uint32_t block = kFirstPhase;   // of the block
  uint32_t phase = kFirstPhase;
  uint16_t thread = 0;
  uint16_t warp_barriers = 0;  // that it has passed
};

enum class Who : uint32_t {
  kThread,
  kWarp,
  kBlock,
  kBlocks
};  // a thread, or several of one warp, of one block, of blocks

struct Record {
  uint32_t phase = kNoPhase;
  uint32_t thread : 10 = 0;  // one of them
  uint32_t warp_barriers : 16 = 0;
  Who who : 2 = Who::kThread;
  uint32_t atomic : 1 = 0;
  uint32_t in_flight : 1 = 0;  // written by an asynchronous copy that nobody has waited for

  // Whether what is recorded came before, by an order that the program asks for.
  bool OrderedBefore(const Now& now) const {
    if (phase < now.launch) return true;
    if (phase < now.block || who == Who::kBlocks) return false;
    if (phase < now.phase) return true;
    if (who == Who::kThread && thread == now.thread) return true;
    return who <= Who::kWarp && thread / 32 == now.thread / 32 && warp_barriers != now.warp_barriers;
  }
  void Replace(const Now& now, bool is_atomic) {
    phase = now.phase;
    thread = now.thread & 1023u;
    warp_barriers = now.warp_barriers;
    who = Who::kThread;
    atomic = is_atomic ? 1 : 0;
    in_flight = 0;
  }
  // Keeps of several unordered accesses what a later one needs to know.
  void Add(const Now& now, bool is_atomic) {
    if (OrderedBefore(now)) return Replace(now, is_atomic);
    Who now_of = Who::kBlocks;
    if (phase >= now.block && who != Who::kBlocks) {
      now_of = who <= Who::kWarp && thread / 32 == now.thread / 32 ? Who::kWarp : Who::kBlock;
    }
    Replace(now, is_atomic);
    who = now_of;
  }
};
static_assert(sizeof(Record) == 8);

struct Cell {
  Record written, read;
  uint32_t written_at = 0, read_at = 0;  // lines of code
};

enum class Access : uint8_t { kRead, kWrite, kAtomic, kBeginCopy };  // the last: a copy will write here

// The record that the access races with, or null. Notes the access if there is none.
inline const Record* NoteAccess(Cell& cell, const Now& now, Access access, uint32_t code) {
  const bool atomic = access == Access::kAtomic;
  if (!cell.written.OrderedBefore(now) && !(atomic && cell.written.atomic != 0)) return &cell.written;
  if (access == Access::kRead) {
    cell.read.Add(now, false);
    cell.read_at = code;
    return nullptr;
  }
  if (!cell.read.OrderedBefore(now)) return &cell.read;
  cell.written.Add(now, atomic);
  cell.written.in_flight = access == Access::kBeginCopy ? 1 : 0;
  cell.written_at = code;
  return nullptr;
}

}  // namespace gyre::simt
