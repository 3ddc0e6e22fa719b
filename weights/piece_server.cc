#include "weights/piece_server.h"

#include <system_error>

#include "base/log.h"
#include "transport/pieces.h"

namespace gyre {
namespace {

constexpr size_t kMaxServers = 256;  // links at a time
constexpr auto kIdle = std::chrono::minutes(2);
constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

PieceServer::PieceServer(RingPort* port) : port_(port) {
  port_->SetBulkHandler(kPieceServerName, [this](std::unique_ptr<Link> link) { OnLink(std::move(link)); });
}

PieceServer::~PieceServer() {
  port_->SetBulkHandler(kPieceServerName, {});
  stopping_ = true;
  std::list<Server> servers;
  {
    MutexLock lock(&mutex_);
    for (Server& s : servers_) s.link->Close();
  }
  // The threads still take the lock when they end; none is added any more.
  for (;;) {
    std::thread thread;
    {
      MutexLock lock(&mutex_);
      if (servers_.empty()) break;
      if (!servers_.front().done) {
        servers_.front().link->Close();
      }
      thread = std::move(servers_.front().thread);
    }
    if (thread.joinable()) thread.join();
    MutexLock lock(&mutex_);
    servers_.pop_front();
  }
}

void PieceServer::SetStore(std::shared_ptr<PieceStore> store) {
  MutexLock lock(&mutex_);
  store_.swap(store);
}

void PieceServer::OnLink(std::unique_ptr<Link> link) {
  std::list<Server> finished;
  {
    MutexLock lock(&mutex_);
    for (auto it = servers_.begin(); it != servers_.end();) {
      const auto next = std::next(it);
      if (it->done) finished.splice(finished.end(), servers_, it);
      it = next;
    }
    if (stopping_ || servers_.size() >= kMaxServers) {
      link->Close();
    } else {
      Server& server = servers_.emplace_back();
      server.link = std::move(link);
      try {
        server.thread = std::thread([this, &server] {
          Status status;
          try {
            status = Serve(*server.link);
          } catch (const std::exception& e) {
            status = ResourceExhausted("{}", e.what());
          }
          if (!status.ok()) Log(LogLevel::kWarn, "a link for weights ends: {}", Message(status));
          server.link->Close();
          MutexLock done(&mutex_);
          server.done = true;
        });
      } catch (const std::system_error& e) {
        Log(LogLevel::kWarn, "no thread for a link for weights: {}", e.what());
        servers_.pop_back();
      }
    }
  }
  for (Server& s : finished) s.thread.join();
}

Status PieceServer::Serve(Link& link) {
  while (!stopping_) {
    const StatusOr<Frame> frame = link.Recv(After(kIdle));
    if (!frame.ok()) return absl::IsDataLoss(frame.status()) ? frame.status() : absl::OkStatus();
    const Deadline began = Clock::now();
    const uint64_t before = bytes_sent_;
    const Status status = Answer(link, *frame);
    if (absl::IsUnavailable(status)) return absl::OkStatus();  // the peer has what it wanted, or is gone
    GYRE_RETURN_IF_ERROR(status);
    if (const uint64_t limit = limit_; limit > 0) {
      const double seconds = static_cast<double>(bytes_sent_ - before) / static_cast<double>(limit);
      std::this_thread::sleep_until(began +
                                    std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
    }
  }
  return absl::OkStatus();
}

Status PieceServer::Answer(Link& link, const Frame& frame) {
  if (frame.header.kind != FrameKind::kPullPiece) {
    return DataLoss("a frame of kind {} came, expected a request for a piece", static_cast<int>(frame.header.kind));
  }
  GYRE_ASSIGN_OR_RETURN(const PullPiece request, DecodePullPiece(frame.payload));
  std::shared_ptr<PieceStore> store;
  {
    MutexLock lock(&mutex_);
    store = store_;
  }
  std::string why;
  if (store == nullptr || store->manifest().root != request.root) {
    why = "this source knows no such model";
  } else if (request.piece >= store->manifest().pieces.size()) {
    why = fmt::format("piece {} of {}", request.piece, store->manifest().pieces.size());
  } else if (!store->Check(request.piece)) {
    why = fmt::format("this source does not have {}", store->manifest().Describe(request.piece));
  }
  Encoder head;
  head.Put(request.piece);
  FrameHeader header{.kind = why.empty() ? FrameKind::kPiece : FrameKind::kNoPiece, .epoch = frame.header.epoch};
  if (!why.empty()) {
    const ByteSpan parts[] = {head.bytes(), std::as_bytes(std::span(why))};
    return link.Send(header, parts, After(kPatience));
  }
  const std::span<const std::byte> bytes = store->bytes(request.piece);
  std::byte flipped = bytes[0];
  if (flip_) flipped ^= std::byte{1};
  const ByteSpan parts[] = {head.bytes(), std::span(&flipped, 1), bytes.subspan(1)};
  GYRE_RETURN_IF_ERROR(link.Send(header, parts, After(kPatience)));
  bytes_sent_ += bytes.size();
  return absl::OkStatus();
}

}  // namespace gyre
