// Accepts connections, does their TLS handshake and reads their first frame on its own thread. A connection without a
// complete hello costs a descriptor and a KiB (with TLS some tens of KiB), for a limited time, and their number is
// limited.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/admission.h"
#include "transport/fd.h"
#include "transport/hello.h"
#include "transport/rate_limit.h"
#include "transport/tls_receiver.h"

namespace gyre {

struct Caller {
  std::string address;           // the host, which limits count by
  std::string peer;              // "HOST:PORT", for messages
  bool local = false;            // it came over the Unix socket
  std::optional<Principal> who;  // by its certificate; nullopt: without TLS
};

// A connection whose hello is complete.
struct Connection {
  Fd socket;
  Caller caller;
  std::unique_ptr<TlsSession> tls;  // null: without
};

struct HelloReaderOptions {
  std::string listen;  // "HOST:PORT", port 0 for any free one
  Duration hello_timeout = std::chrono::seconds(5);
  AdmissionLimits limits;
  std::shared_ptr<IdentityFolder> identity;  // for TLS on TCP connections; null: without
  AddressLimits handshakes;
  // All of these are called on the reader's thread and must not block.
  std::function<void(Connection, Hello)> on_hello;
  std::function<void(const Caller&, const std::string& why)> on_refused;
  std::function<void()> on_tick;  // at least every quarter of a second
};

class HelloReader {
 public:
  // kUnavailable: the address can't be bound. kResourceExhausted: no descriptor is left.
  static StatusOr<std::unique_ptr<HelloReader>> Listen(HelloReaderOptions options);
  // Accepts from this listening Unix socket, too. Call it before Start.
  void ListenAlso(Fd local) { local_ = std::move(local); }
  // Callbacks come from now on. kResourceExhausted: no thread is left.
  Status Start();
  // Closes the waiting connections and joins the thread.
  ~HelloReader();

  uint16_t port() const { return port_; }
  bool any_address() const { return any_address_; }  // it listens at all of this machine's addresses

 private:
  // The limit keeps a flood of connections cheap; the others wait in the kernel's queue.
  static constexpr double kAcceptsASecond = 1000;

  // A connection whose hello is not complete.
  struct PendingConnection {
    Fd fd;
    Caller caller;
    Deadline until;
    std::unique_ptr<TlsReceiver> tls;
    HelloChallenge challenge{};
    bool waits = false;  // for its turn to begin the handshake
    FrameHeader header;
    std::array<std::byte, kFrameHeaderBytes + kMaxHello> bytes{};
    size_t have = 0, need = kFrameHeaderBytes;
  };

  explicit HelloReader(HelloReaderOptions options)
      : options_(std::move(options)), accepts_(kAcceptsASecond, kAcceptsASecond), handshakes_(options_.handshakes) {}
  Status Bind();
  void Loop();
  void Turn();
  void AcceptSome(int listener);
  void OnConnection(Fd fd, Caller caller);
  bool SpeaksTls(const Caller& caller) const { return options_.identity != nullptr && !caller.local; }
  // Returns true if the connection is done, with or without success.
  bool Read(PendingConnection& c);
  // Reads bytes of the hello into its place: their number; nullopt: there are none. kUnavailable: it ended.
  StatusOr<std::optional<size_t>> Receive(PendingConnection& c);
  StatusOr<std::optional<size_t>> ReceiveTls(PendingConnection& c, std::span<std::byte> into);
  bool OnHeader(PendingConnection& c);
  bool OnPayload(PendingConnection& c);
  bool Refuse(PendingConnection& c, const std::string& why);

  const HelloReaderOptions options_;
  uint16_t port_ = 0;
  bool any_address_ = false;
  Fd listener_, local_, wake_;  // local_ may be none

  // Only the thread uses these.
  std::list<PendingConnection> pending_;  // the oldest first
  TokenBucket accepts_;
  AddressBudget handshakes_;
  Deadline accept_after_ = Deadline::min();
  Deadline next_tick_ = Deadline::min();
  Deadline last_log_ = Deadline::min();

  std::thread thread_;
};

}  // namespace gyre
