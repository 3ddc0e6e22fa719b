// The policy of a download: the bytes for each connection, the time of a retry, and when to give up. Pure:
// events and a clock value in, actions out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "hub/byte_ranges.h"

namespace gyre {

// The head of an answer to a request for a range, already parsed.
struct RangeAnswer {
  int code = 0;
  std::optional<ByteRange> range;  // what Content-Range says
  std::optional<uint64_t> total;   // the whole file's size, where the head tells it
  std::string etag;                // "" = not told
  std::optional<Duration> retry_after;
  Status refusal;  // what to say where the code is an error's and no attempt is left
};

// The facts about the file from the first request.
struct LocatedFile {
  std::optional<uint64_t> size;  // nullopt: it is known when the last byte is there
  bool ranges = false;           // the server gives ranges
  std::string etag;              // that every answer has to have; "" = any
};

struct DownloadPolicyOptions {
  int connections = 8;
  uint64_t range_bytes = uint64_t{16} << 20;
  uint64_t least_split = uint64_t{256} << 10;       // the half of a range that another connection takes over has more
  Duration idle_timeout = std::chrono::seconds(5);  // then an idle connection takes over from one that gives nothing
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

  // The actions due now; each is returned once. Empty if nothing is due before wake().
  std::vector<DownloadAction> Next(Deadline now);
  // The time of the next call of Next, if no event comes before.
  Deadline wake() const { return wake_; }

  // `done`: the bytes from an earlier run; used by the first call only.
  void OnLocated(const LocatedFile& file, const ByteRanges& done, Deadline now);
  // The bytes are on another server now: running requests are made again.
  void OnMoved();
  // Whether another attempt may help. kBusy: the server is overloaded, and says so.
  enum class Again { kNo, kYes, kBusy };
  void OnLocateFailed(const Status& status, Again again, std::optional<Duration> retry_after, Deadline now);
  void OnHead(int slot, const RangeAnswer& answer, Deadline now);
  // `count` bytes came. Returns the range that they fill; it may be shorter than `count`, and then the rest is to be
  // dropped.
  ByteRange OnBytes(int slot, uint64_t count, Deadline now);
  // The answer is complete, or its connection broke.
  void OnEnd(int slot, const Status& status, Deadline now);

  const ByteRanges& done() const { return done_; }
  std::optional<uint64_t> size() const { return size_; }
  bool finished() const { return size_.has_value() && done_.total() == *size_; }
  // The last failure since a byte came; OK: there was none.
  const Status& trouble() const { return trouble_; }
  // Why the download can't go on; OK: it can. kDataLoss: the bytes so far are useless too.
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
