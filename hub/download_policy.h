// What a download does next: which bytes on which connection, when again after a failure, and when it gives up. Pure:
// events and a clock's value in, actions out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "hub/byte_ranges.h"

namespace gyre {

// The head of an answer to a request for a range, read already.
struct RangeAnswer {
  int code = 0;
  std::optional<ByteRange> range;  // what Content-Range says
  std::optional<uint64_t> total;   // the whole file's size, where the head tells it
  std::string etag;                // "" = not told
  std::optional<Duration> retry_after;
  Status refusal;  // what to say where the code is an error's and no attempt is left
};

// What a first request has found out about the file.
struct LocatedFile {
  std::optional<uint64_t> size;  // nullopt: it is known when the last byte is there
  bool ranges = false;           // the server gives ranges
  std::string etag;              // that every answer has to have; "" = any
};

struct DownloadPolicyOptions {
  int connections = 8;
  uint64_t range_bytes = uint64_t{16} << 20;
  uint64_t least_split = uint64_t{256} << 10;   // the half of a range that another connection takes over has more
  Duration patience = std::chrono::seconds(5);  // then an idle connection takes over from one that gives nothing
  Duration first_pause = std::chrono::milliseconds(500), longest_pause = std::chrono::seconds(30);
  Duration longest_retry_after = std::chrono::minutes(10);
  int attempts = 8;        // failures one after the other without a new byte
  int first_attempts = 3;  // the same before the first byte, unless the server says that it is busy
};

struct DownloadAction {
  enum Kind {
    kLocate,  // find out where the bytes are; OnLocated or OnLocateFailed answers
    kFetch,   // ask for `range` on connection `slot`, or for the whole file where `whole`
    kCancel,  // the answer that runs on `slot` is no longer wanted; nothing about it is told any more
  };
  Kind kind = kLocate;
  int slot = 0;
  ByteRange range;
  bool whole = false;
  bool operator==(const DownloadAction&) const = default;
};

class DownloadPolicy {
 public:
  explicit DownloadPolicy(const DownloadPolicyOptions& options);

  // What to do at this time; each action is told once. Empty where there is nothing to do before wake().
  std::vector<DownloadAction> Next(Deadline now);
  // When to call Next again, if nothing happens before.
  Deadline wake() const { return wake_; }

  // `done`: what is there from an earlier run; looked at the first time only.
  void OnLocated(const LocatedFile& file, const ByteRanges& done, Deadline now);
  // The bytes are on another server now: what runs is asked for anew.
  void OnMoved();
  // Whether another attempt may help. kBusy: the server has too much to do, and says so.
  enum class Again { kNo, kYes, kBusy };
  void OnLocateFailed(const Status& status, Again again, std::optional<Duration> retry_after, Deadline now);
  void OnHead(int slot, const RangeAnswer& answer, Deadline now);
  // `count` bytes came. Returns where they belong; the range may be shorter than they are, and what is over is not
  // wanted.
  ByteRange OnBytes(int slot, uint64_t count, Deadline now);
  // The answer came to its end, or its connection broke.
  void OnEnd(int slot, const Status& status, Deadline now);

  const ByteRanges& done() const { return done_; }
  std::optional<uint64_t> size() const { return size_; }
  bool finished() const { return size_.has_value() && done_.total() == *size_; }
  // The last failure since a byte came; OK: there was none.
  const Status& trouble() const { return trouble_; }
  // Why there is no going on; OK: there is. kDataLoss: what is there is of no use either.
  const Status& failure() const { return failure_; }

 private:
  struct Slot {
    bool running = false, whole = false;
    uint64_t begin = 0, at = 0, end = 0, asked_end = 0;
    Deadline started{}, active{}, not_before{};
    int failures = 0;
  };

  uint64_t limit() const;  // no byte lies beyond
  int running() const;     // connections
  std::optional<ByteRange> Unassigned() const;
  bool Split(Slot* idle);
  bool TakeOver(Slot* idle, Deadline now);
  void Assign(Slot* slot, ByteRange range, Deadline now);
  void Stop(Slot* slot);
  void Failed(Slot* slot, const Status& status, Deadline now);
  bool CountFailure(const Status& status, Deadline started, Deadline now, bool busy = false);
  Duration Pause(int failures) const;
  void OnWholeFile(Slot* slot, const RangeAnswer& answer);
  void OnRefused(Slot* slot, const RangeAnswer& answer, Deadline now);

  const DownloadPolicyOptions options_;
  std::vector<Slot> slots_;
  std::vector<DownloadAction> cancels_;
  ByteRanges done_;
  std::optional<uint64_t> size_;
  std::string etag_;
  bool located_ = false, locating_ = false, known_ = false, ranges_ = true;
  int allowed_;  // connections at once
  int failures_ = 0, refusals_ = 0, good_ranges_ = 0;
  bool any_byte_ = false;
  Deadline not_before_{}, counted_{}, locate_started_{}, located_at_{}, wake_ = kNoDeadline;
  Status failure_, trouble_;
};

}  // namespace gyre
