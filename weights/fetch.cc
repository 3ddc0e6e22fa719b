#include "weights/fetch.h"

#include <algorithm>

#include "base/log.h"
#include "base/thread.h"
#include "transport/pieces.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr auto kDialTimeout = std::chrono::seconds(5);
constexpr auto kSendTimeout = std::chrono::seconds(30);

}  // namespace

Fetch::Fetch(std::shared_ptr<PieceStore> store, const std::vector<uint32_t>& wanted, std::vector<WeightSource> sources,
             FetchOptions options)
    : store_(std::move(store)),
      sources_(std::move(sources)),
      options_(std::move(options)),
      policy_(wanted, sources_.size(), options_.rules, Clock::now()) {
  for (uint32_t piece : wanted) total_bytes_ += store_->manifest().pieces[piece].at.bytes;
  if (wanted.empty()) return;
  const size_t links = std::min(options_.most_links, options_.links_per_source * sources_.size());
  threads_.reserve(links);
  // Each source gets its first link before any gets another: if there are many sources, each gets one.
  while (threads_.size() < links) {
    const auto id = static_cast<FetchLinkId>(threads_.size());
    StatusOr<std::thread> started =
        StartThread("fetch", [this, source = threads_.size() % sources_.size(), id] { Run(source, id); });
    if (!started.ok()) {
      MutexLock lock(&mutex_);
      if (threads_.empty()) fatal_ = started.status();
      return;
    }
    threads_.push_back(*std::move(started));
  }
}

Fetch::~Fetch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& t : threads_) t.join();
}

bool Fetch::Ends() {
  MutexLock lock(&mutex_);
  return stopping_ || policy_.done() || !fatal_.ok();
}

void Fetch::Run(SourceId source, FetchLinkId id) {
  while (!Ends()) {
    {
      MutexLock lock(&mutex_);
      const std::optional<bool> dial = policy_.MayDial(source, Clock::now());
      if (!dial) return;
      if (!*dial) {
        changed_.WaitUntil(&mutex_, After(milliseconds(50)));
        continue;
      }
    }
    const Hello hello{.role = LinkRole::kWeights,
                      .epoch = kWeightsEpoch,
                      .key = options_.key,
                      .from = options_.from,
                      .to = sources_[source].name,
                      .transport = options_.transport};
    StatusOr<std::unique_ptr<Link>> link = options_.port->Dial(sources_[source].address, hello, After(kDialTimeout));
    Status status = link.status();
    if (link.ok()) {
      {
        MutexLock lock(&mutex_);
        policy_.Linked(id, source, Clock::now());
      }
      try {
        status = Pull(**link, source, id);
      } catch (const std::bad_alloc&) {
        status = ResourceExhausted("no memory is left");
      }
      (*link)->Close();
    }
    if (status.ok()) return;
    MutexLock lock(&mutex_);
    if (stopping_ || policy_.done()) return;
    status = Annotate(status, fmt::format("weights from {}", sources_[source].name));
    Log(LogLevel::kInfo, "{}", Message(status));
    if (!link.ok() && absl::IsFailedPrecondition(status)) {
      policy_.GiveUp(source, status);
    } else {
      policy_.Broken(id, source, status, Clock::now());
    }
    changed_.SignalAll();
  }
}

Status Fetch::Pull(Link& link, SourceId source, FetchLinkId id) {
  std::vector<uint32_t> owed;
  Deadline heard = Clock::now();
  uint64_t received = link.received();
  for (;;) {
    std::vector<uint32_t> ask;
    const bool more = received != link.received();
    if (more) {
      heard_bytes_ += link.received() - received;
      received = link.received();
      heard = Clock::now();
    }
    {
      MutexLock lock(&mutex_);
      if (stopping_ || policy_.done() || !fatal_.ok()) return absl::OkStatus();
      if (more) policy_.Heard(heard);
      if (!policy_.MayDial(source, Deadline::max())) return absl::OkStatus();  // it sent something wrong
      while (const auto piece = policy_.Next(id, Clock::now())) ask.push_back(*piece);
      if (ask.empty() && owed.empty()) {
        changed_.WaitUntil(&mutex_, After(milliseconds(50)));
        continue;
      }
    }
    if (owed.empty()) heard = Clock::now();
    for (uint32_t piece : ask) {
      Encoder request;
      EncodePullPiece({.root = store_->manifest().root, .piece = piece}, &request);
      const ByteSpan parts[] = {request.bytes()};
      GYRE_RETURN_IF_ERROR(
          link.Send({.kind = FrameKind::kPullPiece, .epoch = kWeightsEpoch}, parts, After(kSendTimeout)));
      owed.push_back(piece);
    }
    StatusOr<Frame> frame = link.Recv(After(milliseconds(100)));
    if (absl::IsDeadlineExceeded(frame.status())) {
      if (Clock::now() - heard < options_.link_silence) continue;
      return DeadlineExceeded("nothing came for {} s",
                              std::chrono::duration_cast<std::chrono::seconds>(options_.link_silence).count());
    }
    GYRE_RETURN_IF_ERROR(frame.status());
    heard = Clock::now();
    GYRE_RETURN_IF_ERROR(Take(*frame, source, id, &owed));
    link.GiveBack(std::move(frame->payload));
  }
}

Status Fetch::Take(const Frame& frame, SourceId source, FetchLinkId id, std::vector<uint32_t>* owed) {
  const FrameKind kind = frame.header.kind;
  if (kind != FrameKind::kPiece && kind != FrameKind::kNoPiece) {
    return DataLoss("a frame of kind {} came, expected a piece", static_cast<int>(kind));
  }
  GYRE_ASSIGN_OR_RETURN(const PieceAnswer answer, DecodePiece(frame.payload));
  if (std::erase(*owed, answer.piece) == 0) return DataLoss("piece {} came, which was not asked for", answer.piece);
  const std::string& name = sources_[source].name;
  if (kind == FrameKind::kNoPiece) {
    MutexLock lock(&mutex_);
    policy_.Refused(id, answer.piece, fmt::format("{}: {}", name, NoPieceText(answer)), Clock::now());
    changed_.SignalAll();
    return absl::OkStatus();
  }
  bool wanted = false;
  {
    MutexLock lock(&mutex_);
    wanted = policy_.Wants(answer.piece);
  }
  const Status put = wanted ? store_->Put(answer.piece, answer.data) : absl::OkStatus();
  MutexLock lock(&mutex_);
  if (put.ok()) {
    if (policy_.Arrived(id, answer.piece, Clock::now())) done_bytes_ += answer.data.size();
  } else if (absl::IsDataLoss(put)) {
    const std::string why = fmt::format("{} sends wrong bytes: {}", name, Message(put));
    Log(LogLevel::kWarn, "{}", why);
    policy_.Wrong(id, answer.piece, why, Clock::now());
  } else {
    fatal_ = put;
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

Status Fetch::Wait(const std::vector<uint32_t>& pieces, const std::function<bool()>& cancelled) {
  for (size_t at = 0;;) {
    while (at < pieces.size() && store_->state(pieces[at]) == PieceState::kThere) ++at;
    if (cancelled()) return absl::CancelledError("the plan was given up");
    if (at == pieces.size()) return absl::OkStatus();
    MutexLock lock(&mutex_);
    GYRE_RETURN_IF_ERROR(fatal_);
    if (const Status failed = policy_.Failure(Clock::now()); !failed.ok()) {
      return Annotate(failed, store_->manifest().Describe(pieces[at]));
    }
    if (store_->state(pieces[at]) == PieceState::kThere) continue;
    if (policy_.done())
      return NotFound("{} is not here and was not asked for", store_->manifest().Describe(pieces[at]));
    changed_.WaitUntil(&mutex_, After(milliseconds(100)));
  }
}

}  // namespace gyre
