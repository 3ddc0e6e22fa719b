// A UDP link without its socket: a reliable stream of bytes in both directions over datagrams that get lost, come twice
// or in another order, and change their path (docs/wire.md, "UDP"). A pure state machine: datagrams, bytes and times go
// in, datagrams come out. Loss and probes are RFC 9002's.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/interval_set.h"
#include "base/status.h"
#include "transport/udp_packet.h"
#include "transport/udp_rate.h"
#include "transport/udp_seal.h"
#include "transport/udp_size.h"

namespace gyre {

// The time after the last progress for which a closed link still sends its remaining bytes.
inline constexpr auto kUdpLinger = std::chrono::seconds(30);
// The time without a packet from the peer after which a link is broken.
inline constexpr auto kUdpSilence = std::chrono::seconds(35);
// The longest time that an acknowledgement waits for others.
inline constexpr auto kUdpAckDelay = std::chrono::milliseconds(5);

// The facts that both ends of a link have agreed on.
struct UdpKeys {
  Hash256 send{}, receive{};  // the first secret of each direction
};

struct UdpCoreOptions {
  size_t send_buffer = 4 << 20, receive_buffer = 4 << 20;  // bytes
  size_t largest_datagram = kUdpLargest;                   // at least kUdpBaseSize
  uint64_t packets_a_key = uint64_t{1} << 22;              // RFC 9001 allows 2^23
  Duration key_life = std::chrono::hours(1);               // of a key that seals; then the next packet has another
  bool copies = true;  // sends the last packets twice where packets are lost and the link is half used
};

struct UdpCoreStats {
  uint64_t sent = 0, received = 0;  // packets
  uint64_t lost = 0, late = 0;      // of those sent: counted as lost; acknowledged after that
  uint64_t copies = 0, probes = 0;
  uint64_t dropped = 0;  // datagrams that did not open, or came again
  uint16_t phase = 0;    // of the key that seals
};

// The bytes of a stream by offset; a window of `capacity` bytes is kept. Memory is allocated with the first byte.
class ByteRing {
 public:
  explicit ByteRing(size_t capacity) : capacity_(capacity) {}
  size_t capacity() const { return capacity_; }
  void Put(uint64_t offset, ByteSpan bytes);
  void Get(uint64_t offset, std::span<std::byte> out) const;

 private:
  const size_t capacity_;
  std::unique_ptr<std::byte[]> bytes_;
};

// The numbers of received packets, for acknowledgements and to detect copies.
class ReceivedPackets {
 public:
  // False: the packet came before, or its number is too old to know.
  bool IsNew(uint64_t number) const { return number >= floor_ && !numbers_.Contains(number); }
  void Add(uint64_t number) { AddRange(number, number + 1); }
  void AddRange(uint64_t begin, uint64_t end);
  // Drops the numbers up to this one, as the peer has seen an acknowledgement of them.
  void Forget(uint64_t number);
  uint64_t largest() const { return largest_; }
  AckFrame Ack() const;
  // Whether an acknowledgement would have more than `than` ranges.
  bool HasMoreRanges(size_t than) const;

 private:
  static constexpr size_t kMostRanges = 512;
  IntervalSet numbers_;
  uint64_t floor_ = 1, largest_ = 0;
  uint64_t seen_ = 0;  // acknowledgements need not go below it
};

class UdpCore : private PacketVisitor {
 public:
  // The dialer knows the peer's address and keeps it. An acceptor passes none: it learns the address from the
  // first packet, sends nothing before that, and follows the dialer to other addresses.
  UdpCore(const UdpCoreOptions& options, const UdpKeys& keys, uint64_t peer_link, const std::optional<UdpAddress>& peer,
          Deadline now);

  // The user's side; the functions work as ByteStream's.
  StatusOr<size_t> Write(std::span<const iovec> parts, Deadline now);
  StatusOr<std::optional<size_t>> Read(std::span<std::byte> into);
  void Close(Deadline now);
  bool Readable() const;
  bool Writable() const;
  size_t Room() const;  // the bytes that Write takes

  // The network's side. `datagram` is overwritten. Returns true if it is the peer's and new.
  bool OnDatagram(std::span<std::byte> datagram, const UdpAddress& from, Deadline now);
  struct Outgoing {
    size_t size = 0;  // 0: nothing leaves now
    UdpAddress to;
  };
  // Returns one datagram after the other, until there is none. REQUIRES: room for options.largest_datagram.
  Outgoing Next(std::span<std::byte> room, Deadline now);
  // The time at which Next must be called again, even if nothing happens.
  Deadline NextTimer(Deadline now) const;
  // Called when a datagram of Next was larger than the interface allows.
  void OnTooLarge(size_t size, Deadline now);

  // Called when the peer's process has ended: its last datagrams may still arrive for a moment.
  void OnPeerGone(Deadline now);

  // The link can be dropped: both ends are done with it, or it is broken and its user has closed it.
  bool done() const { return done_ || (closed_ && broken_); }
  bool heard() const { return stats_.received > 0; }
  const UdpAddress& peer() const { return peer_; }
  std::optional<Duration> RoundTrip() const { return round_trip_; }
  const UdpRate& rate() const { return rate_; }
  size_t datagram_size() const { return size_.size(); }
  const UdpCoreStats& stats() const { return stats_; }

 private:
  enum class PacketState : uint8_t { kInFlight, kAcked, kLost, kUncounted };
  struct Chunk {
    uint64_t offset = 0;
    uint16_t length = 0;
  };
  struct SentPacket {
    PacketState state = PacketState::kUncounted;
    bool size_probe = false, end = false;
    uint8_t chunks = 0;
    uint32_t bytes = 0;
    Deadline at{};
    uint64_t twin = 0;    // the packet with the same bytes; 0 = none
    uint64_t acked = 0;   // the largest packet that it acknowledges
    uint64_t window = 0;  // what it grants
    std::array<Chunk, 4> chunk{};
    UdpRate::Mark mark;
  };
  // A packet that is being written.
  struct Draft {
    PacketWriter writer;
    SentPacket packet;
    bool asks = false;  // for an acknowledgement
  };
  // An address to which the peer may have moved. Both addresses are asked: if somebody only forwards packets, the old
  // address still answers.
  struct Candidate {
    UdpAddress at;
    uint64_t token = 0;  // for the new address; the next number is for the old one
    Deadline ask_at{};
    int asked = 0;         // how often both were asked
    bool ask_old = false;  // is next
    bool answered = false;
  };

  // Handlers of frames in the peer's packets.
  bool OnPing() override;
  bool OnAck(const AckFrame& ack) override;
  bool OnChunk(uint64_t offset, ByteSpan bytes) override;
  bool OnWindow(uint64_t limit) override;
  bool OnEnd(uint64_t length) override;
  bool OnReset(uint8_t reason) override;
  bool OnChallenge(uint64_t token) override;
  bool OnResponse(uint64_t token) override;

  // Loss (udp_recovery.cc).
  SentPacket* Find(uint64_t number);
  void OnPacketAcked(uint64_t number, SentPacket& p);
  void OnPacketLost(uint64_t number, SentPacket& p);
  void FindLost();
  void Forget();
  void OnRoundTrip(Duration sample, Duration peer_delay);
  Duration TimeThreshold() const;
  Duration ProbeTimeout() const;
  Deadline ProbeAt() const;
  void Delivered(uint64_t begin, uint64_t end);

  // Packets.
  void OnTime(Deadline now);
  Outgoing NextUncounted(std::span<std::byte> room, Deadline now);
  Outgoing NextSizeProbe(std::span<std::byte> room, Deadline now);
  bool PutBytes(Draft& d);
  bool PutOld(Draft& d, uint64_t number);
  uint64_t NextCopy(Deadline now);
  Outgoing Leave(Draft& d, std::span<std::byte> room, const UdpAddress& to, Deadline now);
  bool HasBytes() const { return !lost_.empty() || next_ < std::min(written_, limit_); }
  bool MaySend(Deadline now) const;
  void Break(std::string why);
  void Move();  // to the candidate
  uint64_t WindowNow() const { return read_ + in_.capacity(); }
  void NoteRead();

  const UdpCoreOptions options_;
  const uint64_t peer_link_;
  const bool follows_;
  UdpAddress peer_;  // without a size: unknown
  PacketSealer sealer_;
  PacketOpener opener_;
  UdpCoreStats stats_;
  Deadline now_;  // of the event under way

  // Sending.
  ByteRing out_;
  uint64_t base_ = 0, next_ = 0, written_ = 0;  // all before base_ was delivered; bytes from next_ on were never sent
  uint64_t limit_ = kUdpFirstWindow;            // the peer's window
  IntervalSet delivered_;                       // beyond base_
  IntervalSet lost_;                            // to be sent again
  std::deque<SentPacket> sent_;
  uint64_t first_number_ = 1, next_number_ = 1;  // of sent_, and after it
  size_t in_flight_ = 0;                         // bytes
  size_t in_flight_packets_ = 0;
  uint64_t phase_began_ = 1;
  Deadline key_since_;
  bool phase_acked_ = false;

  uint64_t largest_acked_ = 0;
  std::optional<Duration> round_trip_;
  Duration latest_{}, deviation_{}, least_{};
  uint64_t packet_threshold_ = 3;
  double time_factor_ = 1.125;
  Deadline loss_at_ = kNoDeadline;
  Deadline last_asked_{};  // when the last packet left that asks for an acknowledgement
  int probe_count_ = 0;    // without an answer, in a row
  int probes_due_ = 0;
  uint64_t copies_from_ = 1;
  Deadline copies_at_ = kNoDeadline;
  UdpRate rate_;
  UdpSize size_;

  // Receiving.
  ByteRing in_;
  uint64_t read_ = 0, whole_ = 0;  // bytes before whole_ are there
  IntervalSet beyond_;             // what is there beyond whole_
  uint64_t granted_ = kUdpFirstWindow;
  std::optional<uint64_t> end_;  // the length of the peer's stream
  ReceivedPackets received_;
  Deadline largest_at_{};
  int unacked_ = 0;  // packets that ask for an acknowledgement
  Deadline ack_at_ = kNoDeadline;
  bool asks_ = false;  // the packet under way
  bool newest_ = false;
  UdpAddress from_;

  // Frames that are due.
  bool window_due_ = true;
  bool ping_due_ = false, end_due_ = false;
  std::optional<uint8_t> reset_due_;
  struct Response {
    uint64_t token;
    UdpAddress to;
  };
  std::vector<Response> responses_due_;
  std::optional<Candidate> candidate_;
  uint64_t last_token_ = 0;

  // The end.
  bool closed_ = false, end_acked_ = false, broken_ = false, done_ = false;
  std::string why_;  // broken
  Deadline heard_at_, ping_at_;
  Deadline done_at_ = kNoDeadline, gone_at_ = kNoDeadline;
};

}  // namespace gyre
