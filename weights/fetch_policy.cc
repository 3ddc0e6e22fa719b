#include "weights/fetch_policy.h"

#include <algorithm>

namespace gyre {

FetchPolicy::FetchPolicy(std::vector<uint32_t> wanted, size_t sources, FetchRules rules, Deadline now)
    : rules_(rules), queue_(wanted.begin(), wanted.end()), sources_(sources), last_arrival_(now) {
  for (uint32_t piece : wanted) wanted_.emplace(piece, Want{});
}

bool FetchPolicy::MayAsk(const Link& link, const Want& want) const { return want.refused.count(link.source) == 0; }

std::optional<uint32_t> FetchPolicy::Next(FetchLinkId id, Deadline now) {
  const auto it = links_.find(id);
  if (it == links_.end() || sources_[it->second.source].out) return std::nullopt;
  Link& link = it->second;
  const size_t most = link.last_took > rules_.slow_piece ? 1 : rules_.requests_per_link;
  if (link.owes.size() >= most) return std::nullopt;
  std::optional<uint32_t> piece;
  for (auto at = queue_.begin(); at != queue_.end(); ++at) {
    if (!MayAsk(link, wanted_.at(*at))) continue;
    piece = *at;
    queue_.erase(at);
    break;
  }
  if (!piece && link.owes.empty()) {
    // Takes, from other links, the piece that was asked for the longest time ago.
    Deadline oldest = now - std::max(rules_.steal_after, 3 * link.last_took);
    for (const auto& [candidate, want] : wanted_) {
      if (want.asked.empty() || want.asked.size() >= rules_.asked_at_once || want.asked.count(id) > 0) continue;
      if (!MayAsk(link, want)) continue;
      Deadline asked = Deadline::max();
      for (const auto& [other, when] : want.asked) asked = std::min(asked, when);
      if (asked > oldest) continue;
      oldest = asked;
      piece = candidate;
    }
    if (piece) ++steals_;
  }
  if (!piece) return std::nullopt;
  wanted_.at(*piece).asked[id] = now;
  link.owes.insert(*piece);
  return piece;
}

void FetchPolicy::Linked(FetchLinkId link, SourceId source, Deadline) {
  links_[link] = Link{.source = source, .owes = {}};
  ++sources_[source].links;
}

bool FetchPolicy::Arrived(FetchLinkId id, uint32_t piece, Deadline now) {
  last_arrival_ = now;
  const auto want = wanted_.find(piece);
  if (const auto it = links_.find(id); it != links_.end()) {
    Link& link = it->second;
    link.owes.erase(piece);
    sources_[link.source].pause = {};
    if (want != wanted_.end() && want->second.asked.count(id) > 0) {
      link.last_took = now - std::max(want->second.asked.at(id), link.last_came);
    }
    link.last_came = now;
  }
  if (want == wanted_.end()) return false;
  // Other links that were asked for it still send it; that costs nothing but bytes.
  if (want->second.asked.empty()) std::erase(queue_, piece);
  wanted_.erase(want);
  return true;
}

// If no other link was asked for the piece, it is the next one to ask for.
void FetchPolicy::Unask(FetchLinkId id, uint32_t piece) {
  const auto link = links_.find(id);
  if (link != links_.end()) link->second.owes.erase(piece);
  const auto want = wanted_.find(piece);
  if (want == wanted_.end() || want->second.asked.erase(id) == 0) return;
  if (want->second.asked.empty()) queue_.push_front(piece);
}

void FetchPolicy::Refused(FetchLinkId id, uint32_t piece, const std::string& why, Deadline) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  last_error_ = NotFound("{}", why);
  const auto want = wanted_.find(piece);
  if (want != wanted_.end()) want->second.refused.insert(link->second.source);
  Unask(id, piece);
}

void FetchPolicy::Wrong(FetchLinkId id, uint32_t piece, const std::string& why, Deadline) {
  const auto link = links_.find(id);
  if (link == links_.end()) return;
  last_error_ = DataLoss("{}", why);
  Unask(id, piece);
  if (++sources_[link->second.source].wrongs < 2) return;
  GiveUp(link->second.source, last_error_);
}

void FetchPolicy::GiveUp(SourceId id, const Status& why) {
  sources_[id].out = true;
  last_error_ = why;
  for (auto& [link, l] : links_) {
    if (l.source != id) continue;
    const std::set<uint32_t> owes = l.owes;
    for (auto it = owes.rbegin(); it != owes.rend(); ++it) Unask(link, *it);
  }
}

void FetchPolicy::Broken(FetchLinkId id, SourceId from, const Status& why, Deadline now) {
  Source& source = sources_[from];
  if (const auto link = links_.find(id); link != links_.end()) {
    const std::set<uint32_t> owes = link->second.owes;
    // The pieces are put back in front, the largest number first, so that the smallest is in front as before.
    for (auto it = owes.rbegin(); it != owes.rend(); ++it) Unask(id, *it);
    links_.erase(id);
    --source.links;
  }
  last_error_ = why;
  source.pause = source.pause == Duration{} ? rules_.redial : std::min(2 * source.pause, rules_.longest_redial);
  source.dial_at = now + source.pause;
}

std::optional<bool> FetchPolicy::MayDial(SourceId id, Deadline now) const {
  const Source& source = sources_[id];
  if (source.out) return std::nullopt;
  return now >= source.dial_at;
}

Status FetchPolicy::Failure(Deadline now) const {
  if (done()) return absl::OkStatus();
  const std::string last = last_error_.ok() ? "" : fmt::format(" ({})", Message(last_error_));
  for (const auto& [piece, want] : wanted_) {
    bool possible = false;
    for (SourceId s = 0; s < sources_.size() && !possible; ++s)
      possible = !sources_[s].out && want.refused.count(s) == 0;
    if (!possible) return NotFound("none of {} sources gives piece {}{}", sources_.size(), piece, last);
  }
  if (now - last_arrival_ >= rules_.silence) {
    return Unavailable("nothing came for {} s{}",
                       std::chrono::duration_cast<std::chrono::seconds>(rules_.silence).count(), last);
  }
  return absl::OkStatus();
}

std::string FetchPolicy::CheckForTest() const {
  const std::set<uint32_t> queued(queue_.begin(), queue_.end());
  if (queued.size() != queue_.size()) return "a piece stands in the queue twice";
  for (const auto& [piece, want] : wanted_) {
    if ((queued.count(piece) > 0) != want.asked.empty())
      return fmt::format("piece {} is queued and asked, or neither", piece);
    for (const auto& [link, when] : want.asked) {
      const auto it = links_.find(link);
      if (it == links_.end() || it->second.owes.count(piece) == 0)
        return fmt::format("link {} does not owe {}", link, piece);
    }
    if (want.asked.size() > rules_.asked_at_once) return fmt::format("piece {} is asked of too many", piece);
  }
  for (uint32_t piece : queue_) {
    if (wanted_.count(piece) == 0) return fmt::format("piece {} is queued and not wanted", piece);
  }
  for (const auto& [id, link] : links_) {
    if (link.owes.size() > rules_.requests_per_link) return fmt::format("link {} owes too much", id);
  }
  return "";
}

}  // namespace gyre
