#include "transport/udp_core.h"

#include <algorithm>
#include <cstring>

namespace gyre {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kKeepalive = seconds(15), kKeepaliveEvery = seconds(5), kSilence = seconds(35);
constexpr auto kAckDelay = milliseconds(5);
constexpr int kAckEvery = 2;
constexpr double kCopiesFrom = 0.01;  // of the packets are lost
constexpr auto kCopyDelay = milliseconds(1), kCopyRoundTrip = milliseconds(2);
constexpr auto kUnheard = seconds(5);  // a closed link waits so long for the first packet of its peer
constexpr int kChallenges = 3;
constexpr size_t kMostResponses = 4;
constexpr auto kGrace = seconds(1);  // for what a process sent before it ended
// A receiver that only acknowledges asks now and then what arrived of that, or its gaps would stand in it for ever.
constexpr size_t kManyGaps = 4;
constexpr uint8_t kResetProtocol = 1;
// A shorter piece of a chunk is left for the next packet.
constexpr size_t kLeastPiece = 64;

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
  size_t room = out_.capacity() - (written_ - base_), taken = 0;
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

bool UdpCore::Writable() const {
  return broken_ || closed_ || end_ || out_.capacity() - (written_ - base_) >= out_.capacity() / 4;
}

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
    ack_at_ = std::min(ack_at_, at_once ? now : now + kAckDelay);
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
  // The peer reads no more.
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
  // It is still where it was, whichever way its answer took: somebody may copy packets and be faster.
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
  if (now >= heard_at_ + kSilence) {
    return Break(fmt::format("nothing came for {} s", std::chrono::duration_cast<seconds>(kSilence).count()));
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

bool UdpCore::MaySend(Deadline now) const {
  return in_flight_ < rate_.Window() && rate_.NextSend(now, in_flight_) <= now;
}

Deadline UdpCore::NextTimer(Deadline now) const {
  if (reset_due_ && peer_.size > 0) return now;
  if (done()) return kNoDeadline;
  Deadline next = done_at_;
  if (broken_) return next;
  if (!end_) next = std::min(next, gone_at_);
  if (peer_.size == 0) return std::min(next, heard_at_ + kSilence);
  next = std::min({next, heard_at_ + kSilence, ping_at_, ack_at_, loss_at_, ProbeAt()});
  if (window_due_ || end_due_ || ping_due_ || !responses_due_.empty()) return now;
  if (candidate_) next = std::min(next, candidate_->ask_at);
  if (round_trip_ && !closed_ && !end_) next = std::min(next, size_.NextProbe());
  const bool bytes = HasBytes();
  if ((bytes || copies_at_ != kNoDeadline) && in_flight_ < rate_.Window()) {
    const Deadline send = rate_.NextSend(now, in_flight_);
    next = std::min(next, bytes ? send : std::max(send, copies_at_));
  }
  return next;
}

UdpCore::Outgoing UdpCore::Next(std::span<std::byte> room, Deadline now) {
  OnTime(now);
  if (peer_.size == 0) return {};
  if (broken_ || done_) {
    if (!reset_due_) return {};
    Draft d{.writer = PacketWriter(room.subspan(kUdpHeader, 16))};
    d.writer.Put(UdpFrameType::kReset, *reset_due_);
    reset_due_.reset();
    return Leave(d, room, peer_, now);
  }
  if (const Outgoing out = NextUncounted(room, now); out.size > 0) return out;
  if (const Outgoing out = NextSizeProbe(room, now); out.size > 0) return out;

  const bool probes = probes_due_ > 0;
  const bool may = probes || MaySend(now);
  Draft d{.writer = PacketWriter(room.subspan(kUdpHeader, size_.size() - kUdpHeader - kSealTag))};
  PacketWriter& w = d.writer;
  // An acknowledgement goes along with whatever leaves.
  if (unacked_ > 0) {
    AckFrame ack = received_.Ack();
    ack.delay_us = static_cast<uint32_t>(
        std::clamp<int64_t>(std::chrono::duration_cast<microseconds>(now - largest_at_).count(), 0, 1 << 24));
    if (w.PutAck(ack)) d.packet.acked = ack.ranges.front().last;
  }
  if (window_due_ && w.Put(UdpFrameType::kWindow, WindowNow())) {
    window_due_ = false;
    granted_ = std::max(granted_, WindowNow());
    d.packet.window = granted_;
    d.asks = true;
  }
  if (end_due_ && w.Put(UdpFrameType::kEnd, written_)) {
    end_due_ = false;
    d.packet.end = d.asks = true;
  }
  if (may && PutBytes(d)) d.asks = true;
  if (may && !d.asks && probes) {
    uint64_t oldest = first_number_;
    while (oldest < next_number_ && Find(oldest)->state != PacketState::kInFlight) ++oldest;
    if (oldest < next_number_) d.asks = PutOld(d, oldest);
  }
  // With a full buffer the user has more: then it is the path, or the reader, that sets the rate.
  const bool half_used = !HasBytes() && out_.capacity() - (written_ - base_) >= out_.capacity() / 8;
  if (now >= copies_at_ && !HasBytes() && !half_used) {
    copies_from_ = next_number_;
    copies_at_ = kNoDeadline;
  }
  if (may && !d.asks && half_used) {
    rate_.OnIdle(in_flight_);
    while (const uint64_t copy = NextCopy(now)) {
      if (!PutOld(d, copy)) continue;
      ++stats_.copies;
      d.asks = true;
      break;
    }
  }
  const bool prune = d.packet.acked > 0 && now >= ack_at_ && received_.HasMoreRanges(kManyGaps) &&
                     now >= last_asked_ + round_trip_.value_or(kAckDelay);
  if (!d.asks && (probes || ping_due_ || prune)) d.asks = w.Put(UdpFrameType::kPing);
  if (!d.asks && now < ack_at_) return {};
  if (probes && d.asks) --probes_due_;
  return Leave(d, room, peer_, now);
}

// What answers or asks about an address. It is not sent again by itself.
UdpCore::Outgoing UdpCore::NextUncounted(std::span<std::byte> room, Deadline now) {
  Draft d{.writer = PacketWriter(room.subspan(kUdpHeader, 64))};
  if (!responses_due_.empty()) {
    const Response response = responses_due_.back();
    responses_due_.pop_back();
    d.writer.Put(UdpFrameType::kResponse, response.token);
    return Leave(d, room, response.to, now);
  }
  if (!candidate_ || now < candidate_->ask_at) return {};
  if (candidate_->asked == kChallenges) {
    if (candidate_->answered) {
      Move();
    } else {
      candidate_.reset();
    }
    return {};
  }
  Candidate& c = *candidate_;
  d.writer.Put(UdpFrameType::kChallenge, c.token + (c.ask_old ? 1 : 0));
  const UdpAddress to = c.ask_old ? peer_ : c.at;
  if (c.ask_old) {
    ++c.asked;
    c.ask_at = now + ProbeTimeout();
  }
  c.ask_old = !c.ask_old;
  return Leave(d, room, to, now);
}

UdpCore::Outgoing UdpCore::NextSizeProbe(std::span<std::byte> room, Deadline now) {
  if (!round_trip_ || closed_ || end_) return {};
  const size_t size = size_.Probe(now);
  if (size == 0) return {};
  Draft d{.writer = PacketWriter(room.subspan(kUdpHeader, size - kUdpHeader - kSealTag))};
  d.writer.Put(UdpFrameType::kPing);
  d.writer.PadTo(size - kUdpHeader - kSealTag);
  d.packet.size_probe = d.asks = true;
  size_.OnProbeSent();
  return Leave(d, room, peer_, now);
}

// Bytes that were lost, then those that were never sent. Whether there were any.
bool UdpCore::PutBytes(Draft& d) {
  SentPacket& p = d.packet;
  const auto put = [&](uint64_t begin, uint64_t end) {
    const size_t fits = d.writer.left() - PacketWriter::kChunkHead;
    const auto n = static_cast<uint16_t>(std::min<uint64_t>(end - begin, fits));
    out_.Get(begin, d.writer.PutChunk(begin, n));
    p.chunk[p.chunks++] = {.offset = begin, .length = n};
    return begin + n;
  };
  const auto has_room = [&] {
    return p.chunks < p.chunk.size() && d.writer.left() >= PacketWriter::kChunkHead + kLeastPiece;
  };
  while (!lost_.empty() && has_room()) {
    const auto [begin, end] = *lost_.ranges().begin();
    lost_.Remove(begin, put(begin, end));
  }
  const uint64_t end = std::min(written_, limit_);
  if (lost_.empty() && next_ < end && has_room()) next_ = put(next_, end);
  return p.chunks > 0;
}

// What of an earlier packet is not delivered yet. False: nothing.
bool UdpCore::PutOld(Draft& d, uint64_t number) {
  SentPacket& old = *Find(number);
  SentPacket& p = d.packet;
  bool all = true;
  for (uint8_t i = 0; i < old.chunks; ++i) {
    const Chunk& c = old.chunk[i];
    delivered_.ForEachGap(std::max(c.offset, base_), c.offset + c.length, [&](uint64_t begin, uint64_t end) {
      if (p.chunks == p.chunk.size() || d.writer.left() < PacketWriter::kChunkHead + (end - begin)) {
        all = false;
        return;
      }
      const auto n = static_cast<uint16_t>(end - begin);
      out_.Get(begin, d.writer.PutChunk(begin, n));
      p.chunk[p.chunks++] = {.offset = begin, .length = n};
    });
  }
  if (old.end && !end_ && d.writer.Put(UdpFrameType::kEnd, written_)) p.end = true;
  if (p.chunks == 0 && !p.end) return false;
  if (all) {
    p.twin = number;
    old.twin = next_number_;
  }
  return true;
}

// The next packet that is to be sent a second time; 0 = none now.
uint64_t UdpCore::NextCopy(Deadline now) {
  if (now < copies_at_) return 0;
  if (in_flight_ < rate_.Window() / 2) {
    for (copies_from_ = std::max(copies_from_, first_number_); copies_from_ < next_number_;) {
      const SentPacket& p = *Find(copies_from_++);
      if (p.state == PacketState::kInFlight && p.chunks > 0 && p.twin == 0) return copies_from_ - 1;
    }
  }
  copies_from_ = next_number_;
  copies_at_ = kNoDeadline;
  return 0;
}

UdpCore::Outgoing UdpCore::Leave(Draft& d, std::span<std::byte> room, const UdpAddress& to, Deadline now) {
  if (sealer_.sealed() >= options_.packets_a_key && phase_acked_) {
    sealer_.Renew();
    phase_began_ = next_number_;
    phase_acked_ = false;
    stats_.phase = sealer_.phase();
  }
  if (sealer_.sealed() >= 2 * options_.packets_a_key) {
    Break("its key is worn out and the peer acknowledges nothing");
    return {};
  }
  const uint64_t number = next_number_++;
  const auto datagram = room.first(kUdpHeader + d.writer.size() + kSealTag);
  PutUdpHeader({.phase = sealer_.phase(), .link = peer_link_, .number = number}, datagram);
  sealer_.Seal(number, datagram, kUdpHeader);
  ++stats_.sent;

  SentPacket& p = d.packet;
  p.bytes = static_cast<uint32_t>(datagram.size());
  p.at = now;
  if (d.asks) {
    p.state = PacketState::kInFlight;
    p.mark = rate_.OnSent(now, p.bytes, in_flight_);
    in_flight_ += p.bytes;
    ++in_flight_packets_;
    last_asked_ = now;
    ping_due_ = false;
    const bool lossy = options_.copies && rate_.own_loss() >= kCopiesFrom && round_trip_ >= kCopyRoundTrip;
    if (p.chunks > 0 && p.twin == 0 && lossy) copies_at_ = now + std::min<Duration>(kCopyDelay, *round_trip_ / 8);
  }
  if (p.acked > 0) {
    unacked_ = 0;
    ack_at_ = kNoDeadline;
  }
  sent_.push_back(p);
  return {.size = datagram.size(), .to = to};
}

}  // namespace gyre
