// Chooses the packets that a UDP link sends, and their times.
#include <algorithm>

#include "transport/udp_core.h"

namespace gyre {
namespace {

constexpr double kCopiesFrom = 0.01;  // of the packets are lost
constexpr auto kCopyDelay = std::chrono::milliseconds(1), kCopyRoundTrip = std::chrono::milliseconds(2);
constexpr int kChallenges = 3;
// A receiver that only acknowledges must ask now and then which acknowledgements arrived, or its gaps would never end.
constexpr size_t kManyGaps = 4;
// A shorter piece of a chunk is left for the next packet.
constexpr size_t kLeastPiece = 64;

}  // namespace

bool UdpCore::MaySend(Deadline now) const {
  return in_flight_ < rate_.Window() && rate_.NextSend(now, in_flight_) <= now;
}

Deadline UdpCore::NextTimer(Deadline now) const {
  if (reset_due_ && peer_.size > 0) return now;
  if (done()) return kNoDeadline;
  Deadline next = done_at_;
  if (broken_) return next;
  if (!end_) next = std::min(next, gone_at_);
  if (peer_.size == 0) return std::min(next, heard_at_ + kUdpSilence);
  next = std::min({next, heard_at_ + kUdpSilence, ping_at_, ack_at_, loss_at_, ProbeAt()});
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
  // An acknowledgement goes along with any packet.
  if (unacked_ > 0) {
    AckFrame ack = received_.Ack();
    ack.delay_us = static_cast<uint32_t>(std::clamp<int64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now - largest_at_).count(), 0, 1 << 24));
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
  // If the buffer is full, the user has more bytes: then the path or the reader sets the rate.
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
                     now >= last_asked_ + round_trip_.value_or(kUdpAckDelay);
  if (!d.asks && (probes || ping_due_ || prune)) d.asks = w.Put(UdpFrameType::kPing);
  if (!d.asks && now < ack_at_) return {};
  if (probes && d.asks) --probes_due_;
  return Leave(d, room, peer_, now);
}

// A frame that answers or asks about an address. It is not sent again by itself.
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

// Puts lost bytes, then those that were never sent. Returns whether there were any.
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

// Puts the part of an earlier packet that is not delivered yet. Returns false if there is none.
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

// The next packet to be sent a second time; 0 = none now.
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
  const bool worn = sealer_.sealed() >= options_.packets_a_key || now >= key_since_ + options_.key_life;
  if (worn && phase_acked_) {
    key_since_ = now;
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
