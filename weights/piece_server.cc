#include "weights/piece_server.h"

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "transport/pieces.h"
#include "transport/probe.h"

namespace gyre {
namespace {

constexpr auto kIdle = std::chrono::minutes(2);
constexpr auto kTimeout = std::chrono::seconds(60);

}  // namespace

void PieceServer::SetKey(const RingKey& key) {
  port_->SetWeightsHandler(key, [this](std::unique_ptr<Link> link) { OnLink(std::move(link)); });
}

PieceServer::~PieceServer() {
  port_->SetWeightsHandler({}, {});
  stopping_ = true;
  threads_.Close();
  threads_.Join();
}

void PieceServer::SetStore(std::shared_ptr<PieceStore> store) {
  MutexLock lock(&mutex_);
  store_.swap(store);
}

void PieceServer::OnLink(std::unique_ptr<Link> link) {
  const Status started = threads_.Add(std::move(link), [this](Link& served) {
    Status status;
    try {
      status = Serve(served);
    } catch (const std::exception& e) {
      status = ResourceExhausted("{}", e.what());
    }
    if (!status.ok()) Log(LogLevel::kWarn, "a link for weights ends: {}", Message(status));
  });
  if (!started.ok()) Log(LogLevel::kWarn, "no thread for a link for weights: {}", Message(started));
}

Status PieceServer::Serve(Link& link) {
  std::vector<std::byte> buffer;
  while (!stopping_) {
    const StatusOr<Frame> frame = link.Recv(After(kIdle));
    if (!frame.ok()) return absl::IsDataLoss(frame.status()) ? frame.status() : absl::OkStatus();
    const Status status = Answer(link, *frame, &buffer);
    if (absl::IsUnavailable(status)) return absl::OkStatus();  // the peer has what it wanted, or is gone
    GYRE_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

void PieceServer::WaitForTurn(uint64_t bytes) {
  const uint64_t rate = rate_;
  if (rate == 0) return;
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / static_cast<double>(rate));
  Deadline turn;
  {
    MutexLock lock(&mutex_);
    free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Duration>(takes);
    turn = free_at_;
  }
  while (!stopping_ && Clock::now() < turn) {
    std::this_thread::sleep_until(std::min(turn, After(std::chrono::milliseconds(50))));
  }
}

Status PieceServer::Answer(Link& link, const Frame& frame, std::vector<std::byte>* buffer) {
  if (frame.header.kind == FrameKind::kProbe) return AnswerProbe(link, frame, After(kTimeout));
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
  } else if (const Status read = store->Read(request.piece, buffer); !read.ok()) {
    why = Message(read);
  }
  Encoder head;
  head.Put(request.piece);
  FrameHeader header{.kind = why.empty() ? FrameKind::kPiece : FrameKind::kNoPiece, .epoch = frame.header.epoch};
  if (!why.empty()) {
    const ByteSpan parts[] = {head.bytes(), std::as_bytes(std::span(why))};
    return link.Send(header, parts, After(kTimeout));
  }
  WaitForTurn(buffer->size());
  if (flip_) (*buffer)[0] ^= std::byte{1};
  const ByteSpan parts[] = {head.bytes(), *buffer};
  GYRE_RETURN_IF_ERROR(link.Send(header, parts, After(kTimeout)));
  bytes_sent_ += buffer->size();
  return absl::OkStatus();
}

}  // namespace gyre
