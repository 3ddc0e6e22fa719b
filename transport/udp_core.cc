#include "transport/udp_core.h"

#include <algorithm>
#include <cstring>

namespace gyre {
namespace {

using std::chrono::seconds;

constexpr auto kKeepalive = seconds(15), kKeepaliveEvery = seconds(5);
constexpr int kAckEvery = 2;
constexpr auto kUnheard = seconds(5);  // a closed link waits so long for the first packet of its peer
constexpr size_t kMostResponses = 4;
constexpr auto kGrace = seconds(1);  // for what a process sent before it ended
constexpr uint8_t kResetProtocol = 1;

}  // namespace

void ByteRing::Put(uint64_t offset, ByteSpan bytes) {
  if (bytes.empty()) return;
  if (!bytes_) bytes_ = std::make_unique_for_overwrite<std::byte[]>(capacity_);
  const size_t at = offset % capacity_, first = std::min(bytes.size(), capacity_ - at);
  std::memcpy(bytes_.get() + at, bytes.data(), first);
  std::memcpy(bytes_.get(), bytes.data() + first, bytes.size() - first);
}

void ByteRing::Get(uint64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  const size_t at = offset % capacity_, first = std::min(out.size(), capacity_ - at);
  std::memcpy(out.data(), bytes_.get() + at, first);
  std::memcpy(out.data() + first, bytes_.get(), out.size() - first);
}

void ReceivedPackets::AddRange(uint64_t begin, uint64_t end) {
  numbers_.Add(begin, end);
  largest_ = std::max(largest_, end - 1);
  while (numbers_.size() > kMostRanges) {
    const auto [begin, end] = *numbers_.ranges().begin();
    floor_ = end;
    numbers_.Remove(begin, end);
  }
}

void ReceivedPackets::Forget(uint64_t number) { seen_ = std::max(seen_, number + 1); }

bool ReceivedPackets::HasMoreRanges(size_t than) const {
  const auto& ranges = numbers_.ranges();
  if (ranges.size() <= than) return false;
  return std::prev(ranges.end(), static_cast<std::ptrdiff_t>(than + 1))->second > seen_;
}

AckFrame ReceivedPackets::Ack() const {
  AckFrame ack;
  const auto& ranges = numbers_.ranges();
  for (auto it = ranges.rbegin(); it != ranges.rend() && ack.ranges.size() < kMostAckRanges; ++it) {
    if (it->second <= seen_ && !ack.ranges.empty()) break;
    const uint64_t longest = uint64_t{1} << 31;
    ack.ranges.push_back(
        {.first = std::max(it->first, it->second - std::min(it->second, longest)), .last = it->second - 1});
    if (it->second - it->first > longest) break;
  }
  return ack;
}

UdpCore::UdpCore(const UdpCoreOptions& options, const UdpKeys& keys, uint64_t peer_link,
                 const std::optional<UdpAddress>& peer, Deadline now)
    : options_(options),
      peer_link_(peer_link),
      follows_(!peer),
      peer_(peer.value_or(UdpAddress{})),
      sealer_(keys.send),
      opener_(keys.receive),
      now_(now),
      out_(options.send_buffer),
      key_since_(now),
      rate_(now, kUdpBaseSize),
      size_(options.largest_datagram, now),
      in_(options.receive_buffer),
      heard_at_(now),
      ping_at_(now + kKeepalive) {}

void UdpCore::Break(std::string why) {
  if (broken_) return;
  broken_ = true;
  why_ = std::move(why);
}

StatusOr<size_t> UdpCore::Write(std::span<const iovec> parts, Deadline now) {
  if (broken_) return Unavailable("{}", why_);
  if (closed_ || end_) return Unavailable("{} closed the link", closed_ ? "this end" : "the peer");
  now_ = now;
  size_t room = Room(), taken = 0;
  for (const iovec& part : parts) {
    const size_t n = std::min(part.iov_len, room);
    out_.Put(written_, {static_cast<const std::byte*>(part.iov_base), n});
    written_ += n;
    taken += n;
    room -= n;
    if (room == 0) break;
  }
  return taken;
}

size_t UdpCore::Room() const { return out_.capacity() - (written_ - base_); }

bool UdpCore::Writable() const { return broken_ || closed_ || end_ || Room() >= out_.capacity() / 4; }

bool UdpCore::Readable() const { return whole_ > read_ || broken_ || closed_ || (end_ && whole_ == *end_); }

StatusOr<std::optional<size_t>> UdpCore::Read(std::span<std::byte> into) {
  if (closed_) return std::optional<size_t>(0);  // what came since is not kept
  if (const size_t n = std::min<uint64_t>(whole_ - read_, into.size()); n > 0) {
    in_.Get(read_, into.first(n));
    read_ += n;
    NoteRead();
    return std::optional<size_t>(n);
  }
  if (end_ && whole_ == *end_) return std::optional<size_t>(0);
  if (broken_) return Unavailable("{}", why_);
  return std::optional<size_t>();
}

void UdpCore::NoteRead() {
  const bool more = !end_ || whole_ < *end_;
  if (more && granted_ - read_ <= in_.capacity() * 3 / 4 && WindowNow() > granted_) window_due_ = true;
}

void UdpCore::Close(Deadline now) {
  if (closed_) return;
  now_ = now;
  closed_ = true;
  read_ = whole_;  // nobody reads what is there
  NoteRead();
  end_due_ = !end_ && !broken_;
  done_at_ = now + (end_ ? Duration(3 * ProbeTimeout()) : heard() ? Duration(kUdpLinger) : Duration(kUnheard));
}

bool UdpCore::OnDatagram(std::span<std::byte> datagram, const UdpAddress& from, Deadline now) {
  now_ = now;
  const auto header = ReadUdpHeader(datagram);
  const auto text = header && received_.IsNew(header->number)
                        ? opener_.Open(header->phase, header->number, datagram, kUdpHeader)
                        : std::nullopt;
  if (!text) {
    ++stats_.dropped;
    return false;
  }
  ++stats_.received;
  heard_at_ = now;
  ping_at_ = now + kKeepalive;
  const bool gap = header->number > received_.largest() + 1;
  newest_ = header->number > received_.largest();
  received_.Add(header->number);
  asks_ = false;
  from_ = from;
  if (broken_) return true;
  if (!VisitPacket(*text, *this)) {
    if (!broken_) reset_due_ = kResetProtocol;
    Break("the peer broke the protocol of UDP links");
  }
  if (asks_) {
    if (newest_) largest_at_ = now;
    const bool at_once = ++unacked_ >= kAckEvery || gap || !newest_;
    ack_at_ = std::min(ack_at_, at_once ? now : now + kUdpAckDelay);
  }
  if (peer_.size == 0) peer_ = from;
  if (follows_ && newest_ && from != peer_ && !candidate_) {
    candidate_ = {.at = from, .token = last_token_ + 1, .ask_at = now};
    last_token_ += 2;
  }
  return true;
}

bool UdpCore::OnPing() { return asks_ = true; }

bool UdpCore::OnChunk(uint64_t offset, ByteSpan bytes) {
  asks_ = true;
  const uint64_t end = offset + bytes.size();
  if (bytes.empty() || end < offset || end > WindowNow() || (end_ && end > *end_)) return false;
  if (end <= whole_) return true;
  const uint64_t begin = std::max(offset, whole_);
  if (!closed_) in_.Put(begin, bytes.subspan(begin - offset));
  if (begin == whole_ && beyond_.empty()) {
    whole_ = end;
  } else {
    beyond_.Add(begin, end);
    const auto first = *beyond_.ranges().begin();
    if (first.first <= whole_) {
      whole_ = first.second;
      beyond_.Remove(first.first, first.second);
    }
  }
  if (closed_) {
    read_ = whole_;
    NoteRead();
  }
  return true;
}

bool UdpCore::OnWindow(uint64_t limit) {
  asks_ = true;
  limit_ = std::max(limit_, limit);
  return true;
}

bool UdpCore::OnEnd(uint64_t length) {
  asks_ = true;
  const uint64_t known = beyond_.empty() ? whole_ : beyond_.ranges().rbegin()->second;
  if (length < known || (end_ && *end_ != length)) return false;
  if (end_) return true;
  end_ = length;
  // The peer no longer reads.
  base_ = next_ = written_;
  lost_.clear();
  delivered_.clear();
  end_due_ = false;
  if (closed_) done_at_ = now_ + 3 * ProbeTimeout();
  return true;
}

bool UdpCore::OnReset(uint8_t reason) {
  Break(fmt::format("the peer gave the link up, reason {}", reason));
  return true;
}

bool UdpCore::OnChallenge(uint64_t token) {
  if (responses_due_.size() < kMostResponses) responses_due_.push_back({.token = token, .to = from_});
  return true;
}

bool UdpCore::OnResponse(uint64_t token) {
  if (!candidate_) return true;
  // The peer is still at its old address, whichever way its answer took: somebody may copy packets and be faster.
  if (token == candidate_->token + 1) candidate_.reset();
  if (candidate_ && token == candidate_->token && from_ == candidate_->at) candidate_->answered = true;
  return true;
}

void UdpCore::Move() {
  peer_ = candidate_->at;
  candidate_.reset();
  rate_ = UdpRate(now_, kUdpBaseSize);
  size_ = UdpSize(options_.largest_datagram, now_);
  round_trip_.reset();
  probe_count_ = 0;
}

void UdpCore::OnTooLarge(size_t size, Deadline now) {
  size_.OnTooLarge(size, now);
  rate_.SetDatagram(size_.size());
}

void UdpCore::OnPeerGone(Deadline now) { gone_at_ = std::min(gone_at_, now + kGrace); }

void UdpCore::OnTime(Deadline now) {
  now_ = now;
  if (now >= done_at_) done_ = true;
  if (broken_ || done_) return;
  if (now >= gone_at_ && !end_) return Break("the peer's process has ended");
  if (now >= heard_at_ + kUdpSilence) {
    return Break(fmt::format("nothing came for {} s", std::chrono::duration_cast<seconds>(kUdpSilence).count()));
  }
  if (now >= ping_at_) {
    ping_due_ = true;
    ping_at_ = now + kKeepaliveEvery;
  }
  if (now >= loss_at_) FindLost();
  if (now >= ProbeAt()) {
    ++stats_.probes;
    probes_due_ = 2;
    if (++probe_count_ >= 2) size_.OnBlackHole(now);
    last_asked_ = now;
  }
}

}  // namespace gyre
