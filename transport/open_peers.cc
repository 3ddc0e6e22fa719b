#include "transport/open_peers.h"

#include <vector>

#include "base/log.h"

namespace gyre {
namespace {

// Another thread may close the link while its owner destroys it.
class WatchedLink : public Link {
 public:
  explicit WatchedLink(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) override {
    return link_->Send(header, parts, deadline);
  }
  size_t Room() const override { return link_->Room(); }
  StatusOr<Frame> Recv(Deadline deadline) override { return link_->Recv(deadline); }
  void GiveBack(std::vector<std::byte> payload) override { link_->GiveBack(std::move(payload)); }
  void Wake() override { link_->Wake(); }
  uint64_t received() const override { return link_->received(); }
  std::optional<Duration> RoundTrip() const override { return link_->RoundTrip(); }
  Transport transport() const override { return link_->transport(); }
  void Close() override { link_->Close(); }

 private:
  const std::shared_ptr<Link> link_;
};

}  // namespace

std::unique_ptr<Link> OpenPeers::Watch(std::unique_ptr<Link> link, std::string member, std::string serial) {
  const std::shared_ptr<Link> shared(std::move(link));
  auto watched = std::make_unique<WatchedLink>(shared);
  MutexLock lock(&mutex_);
  std::erase_if(peers_, [](const Peer& peer) { return peer.link.expired(); });
  peers_.push_back({.link = shared, .member = std::move(member), .serial = std::move(serial)});
  return watched;
}

void OpenPeers::EndRevoked(const Identity& now) {
  std::vector<std::pair<std::shared_ptr<Link>, std::string>> revoked;
  {
    MutexLock lock(&mutex_);
    std::erase_if(peers_, [&](const Peer& peer) {
      std::shared_ptr<Link> link = peer.link.lock();
      if (link == nullptr) return true;
      if (!now.IsRevoked(peer.serial)) return false;
      revoked.emplace_back(std::move(link), peer.member);
      return true;
    });
  }
  for (const auto& [link, member] : revoked) {
    Log(LogLevel::kWarn, "a link to {} ends: its certificate was revoked", member);
    link->Close();
  }
}

}  // namespace gyre
