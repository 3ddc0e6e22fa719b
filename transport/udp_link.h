// One UDP link of a process with its socket. The socket is read by the thread that waits for the link's bytes, so
// that they pass no other thread, or else by the host's thread (udp_host.h). The policy is in
// udp_core.h.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/byte_stream.h"
#include "transport/fd.h"
#include "transport/udp_core.h"
#include "transport/udp_host.h"
#include "transport/udp_wire.h"

namespace gyre {

struct UdpLink;

// The shared data of a host's links: the socket at which they are dialed, the thread's alarm, and this host's facts.
struct UdpWire {
  UdpSocket listening;
  Fd wake, epoll;
  // The time at which the thread will check the links again, in ticks of the clock.
  std::atomic<Duration::rep> sleeps_until{0};

  mutable Mutex mutex;
  std::map<uint64_t, std::shared_ptr<UdpLink>> links GYRE_GUARDED_BY(mutex);

  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake.get(), &one, sizeof one);
  }
  std::shared_ptr<UdpLink> Find(uint64_t id) const {
    MutexLock lock(&mutex);
    const auto it = links.find(id);
    return it == links.end() ? nullptr : it->second;
  }
};

struct UdpLink {
  // `event` wakes the reader. `tag`: the connection's id in the wire's epoll; the socket's is the next number.
  UdpLink(const UdpCoreOptions& options, UdpLinkFacts facts, Fd event, uint64_t tag,
          const std::optional<UdpAddress>& to)
      : id(facts.link),
        tag(tag),
        dials(to.has_value()),
        local(facts.local),
        keeps_open(std::move(facts.keeps_open)),
        line(std::move(facts.connection)),
        event(std::move(event)),
        core(options, facts.keys, facts.peer_link, to, Clock::now()) {}

  // Called with the lock. Tells waiting threads about changes.
  void Tell() GYRE_REQUIRES(mutex);
  // Sets the socket, once the peer's address is known: the host's thread reads it from now on.
  void UseSocket(const UdpWire& wire, UdpSocket socket) GYRE_REQUIRES(mutex);
  // Chooses whether the reader or the host's thread reads the socket.
  void ReadByReader(const UdpWire& wire, bool reader) GYRE_REQUIRES(mutex);

  const uint64_t id, tag;
  const bool dials;
  const UdpAddress local;
  const std::unique_ptr<Link> keeps_open;
  const Fd line, event;
  std::atomic<Duration::rep> timer{Duration::max().count()};      // the core's
  std::atomic<bool> can_read{false}, can_write{true};             // hints for a waiter that spins
  std::atomic<bool> waits{false}, sleeps{false};                  // the reader does
  std::atomic<Duration::rep> waited_at{Duration::min().count()};  // when the reader waited last

  Mutex mutex;
  CondVar readable, writable;
  UdpCore core GYRE_GUARDED_BY(mutex);
  std::shared_ptr<const UdpSocket> socket GYRE_GUARDED_BY(mutex);  // connected to core.peer(); null: the wire's serves
  UdpAddress connected GYRE_GUARDED_BY(mutex);
  bool by_reader GYRE_GUARDED_BY(mutex) = false;
  bool woken GYRE_GUARDED_BY(mutex) = false;
  bool flushing GYRE_GUARDED_BY(mutex) = false, again GYRE_GUARDED_BY(mutex) = false;
  bool told GYRE_GUARDED_BY(mutex) = false;       // that the peer was heard
  bool orphan GYRE_GUARDED_BY(mutex) = false;     // its port has ended
  bool abandoned GYRE_GUARDED_BY(mutex) = false;  // its stream has ended
};

// Sends all datagrams that the link has now. One thread at a time does it for a link, so that the datagrams stay in
// order; the lock is not held while they are sent.
void FlushUdpLink(const UdpWire& wire, UdpLink& link);

// Takes the datagrams that a socket has now, for any links, up to a batch. Adds these links to `touched`.
// Returns false if there were none.
bool TakeDatagrams(const UdpWire& wire, const UdpSocket& socket, UdpReceiver& receiver,
                   std::vector<std::shared_ptr<UdpLink>>* touched);

// The byte stream for a link's user.
std::unique_ptr<ByteStream> MakeUdpStream(std::shared_ptr<UdpWire> wire, std::shared_ptr<UdpLink> link);

}  // namespace gyre
