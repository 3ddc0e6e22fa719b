// The choice of the source for each piece. Pure: events and a clock value in, requests out. docs/weights.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace gyre {

// Each source has links; each link carries some requests at a time.
using SourceId = uint32_t;
using FetchLinkId = uint32_t;

struct FetchRules {
  size_t requests_per_link = 2;                   // one is on the way while another one is read
  Duration slow_piece = std::chrono::seconds(5);  // a link whose last piece took longer has one request at a time
  // When nothing else is left, a piece that another link has owed for this time is asked for again, but not before
  // three times the time that a piece takes over this link.
  Duration steal_after = std::chrono::milliseconds(300);
  size_t asked_at_once = 2;  // links that a piece may be asked of at a time
  // A source that failed is dialed again after this time, which doubles each time up to the second.
  Duration redial = std::chrono::milliseconds(250), longest_redial = std::chrono::seconds(8);
  // If no byte comes for this time, the fetch fails.
  Duration silence = std::chrono::minutes(2);
};

class FetchPolicy {
 public:
  // `wanted`: the pieces in the order of need; none twice.
  FetchPolicy(std::vector<uint32_t> wanted, size_t sources, FetchRules rules, Deadline now);

  // The piece to ask for over this link next; nullopt: none now, call again at the next event or after retry_after. The
  // returned piece counts as asked.
  std::optional<uint32_t> Next(FetchLinkId link, Deadline now);

  // Events. A link is known from Linked to Broken.
  void Linked(FetchLinkId link, SourceId source, Deadline now);
  // True: it is the first right copy, and the piece is no longer wanted. False: another link was faster.
  bool Arrived(FetchLinkId link, uint32_t piece, Deadline now);
  // The source does not have the piece.
  void Refused(FetchLinkId link, uint32_t piece, const std::string& why, Deadline now);
  // Bytes of an incomplete piece came.
  void Heard(Deadline now) { last_arrival_ = now; }
  // The source sent wrong bytes. After the second time it is asked for nothing any more.
  void Wrong(FetchLinkId link, uint32_t piece, const std::string& why, Deadline now);
  // A link ended, or could not be made (then it was never Linked). Its pieces are asked of others.
  void Broken(FetchLinkId link, SourceId source, const Status& why, Deadline now);
  // The source refuses links: it is not dialed again.
  void GiveUp(SourceId source, const Status& why);

  // Whether this source may be dialed now; nullopt: never again.
  std::optional<bool> MayDial(SourceId source, Deadline now) const;
  // Whether the piece is still wanted and has not come.
  bool Wants(uint32_t piece) const { return wanted_.count(piece) > 0; }
  bool done() const { return wanted_.empty(); }
  // The reason why the fetch can't succeed: no source is left that may have a piece, or nothing came for too long.
  Status Failure(Deadline now) const;
  // The number of times that a link was asked for a piece that another link owed.
  uint64_t steals() const { return steals_; }
  // Checks the invariants; returns "" or the violated one (tests).
  std::string CheckForTest() const;

 private:
  struct Want {
    std::map<FetchLinkId, Deadline> asked;  // of whom, and when
    std::set<SourceId> refused;             // sources that have no such piece
  };
  struct Link {
    SourceId source = 0;
    std::set<uint32_t> owes;
    Duration last_took{};  // of its last piece, from the request or the piece before it
    Deadline last_came = Deadline::min();
  };
  struct Source {
    bool out = false;  // asked for nothing any more
    Duration pause{};  // before the next dial, of the last failure
    Deadline dial_at = Deadline::min();
    size_t links = 0;
    int wrongs = 0;
  };
  bool MayAsk(const Link& link, const Want& want) const;
  void Unask(FetchLinkId link, uint32_t piece);

  const FetchRules rules_;
  std::map<uint32_t, Want> wanted_;
  std::deque<uint32_t> queue_;  // wanted and asked of nobody
  std::map<FetchLinkId, Link> links_;
  std::vector<Source> sources_;
  Deadline last_arrival_;
  uint64_t steals_ = 0;
  Status last_error_;
};

}  // namespace gyre
