#include "worker/page_server.h"

#include <chrono>
#include <deque>
#include <utility>

#include "base/coding.h"
#include "base/log.h"
#include "worker/catch_exhausted.h"
#include "worker/migration.h"

namespace gyre {

using std::chrono::milliseconds;

void PageServer::Serve(std::unique_ptr<Link> link) {
  const Status started = threads_.Add(std::move(link), [this](Link& served) {
    calls_.guard([&] {
      const Status status = CatchExhausted([&] { return ServePulls(served); });
      if (!status.ok()) Log(LogLevel::kWarn, "{}: a bulk link ends: {}", options_.name, Message(status));
    });
  });
  if (!started.ok()) Log(LogLevel::kWarn, "{}: no thread for a bulk link: {}", options_.name, Message(started));
}

// Several requests at a time, so that the stage's thread finds more than one between two long steps. An error is the
// answer to its request.
Status PageServer::ServePulls(Link& link) {
  std::deque<std::shared_ptr<PageExport>> posted;
  while (!closed_) {
    if (posted.size() < kPullsAtOnce) {
      StatusOr<Frame> frame = link.Recv(posted.empty() ? After(std::chrono::minutes(5)) : Clock::now());
      if (!frame.ok() && !(absl::IsDeadlineExceeded(frame.status()) && !posted.empty())) return absl::OkStatus();
      if (frame.ok()) {
        StatusOr<std::shared_ptr<PageExport>> e = CatchExhausted([&] { return Post(*frame, link.certified_peer()); });
        posted.push_back(e.ok() ? *std::move(e) : std::make_shared<PageExport>());
        if (!e.ok()) {  // in its place among the others
          posted.back()->epoch = frame->header.epoch;
          posted.back()->done.set_value(e.status());
        }
        continue;
      }
    }
    const std::shared_ptr<PageExport> e = std::move(posted.front());
    posted.pop_front();
    while (e->ready.wait_for(milliseconds(200)) != std::future_status::ready) {
      if (closed_) return absl::OkStatus();  // the stage's thread has ended and will not run the job
    }
    Status status = e->ready.get();
    if (status.ok()) status = Send(link, *e);
    if (status.ok()) continue;
    const std::string text = Message(status);
    const ByteSpan parts[] = {std::as_bytes(std::span(text))};
    GYRE_RETURN_IF_ERROR(
        link.Send({.kind = FrameKind::kPullError, .epoch = e->epoch}, parts, After(milliseconds(1000))));
  }
  return absl::OkStatus();
}

// Pages are read where they are written: on the stage's thread, between steps. What the job needs outlives the link's
// thread, should the worker stop meanwhile.
StatusOr<std::shared_ptr<PageExport>> PageServer::Post(const Frame& frame, const std::string& peer) {
  if (frame.header.kind != FrameKind::kPullPages) {
    return DataLoss("a frame of kind {} came, expected a request for pages", static_cast<int>(frame.header.kind));
  }
  auto e = std::make_shared<PageExport>();
  e->epoch = frame.header.epoch;
  GYRE_ASSIGN_OR_RETURN(e->request, DecodePullPages(frame.payload));
  if (!peer.empty()) GYRE_RETURN_IF_ERROR(calls_.check(peer, e->epoch, e->request));
  if (e->request.kind == PullKind::kReplicated) {
    e->done.set_value(CatchExhausted([&] { return calls_.read_replica(*e); }));
    return e;
  }
  calls_.post([read = calls_.read, e] { e->done.set_value(CatchExhausted([&] { return read(*e); })); });
  return e;
}

Status PageServer::Send(Link& link, PageExport& e) {
  for (PageExport::Answer& answer : e.answers) {
    pages_sent_ += answer.pages.ids.size();
    Encoder head;
    EncodePagesHead(answer.pages, &head);
    const ByteSpan parts[] = {head.bytes(), answer.data};
    GYRE_RETURN_IF_ERROR(link.Send({.kind = FrameKind::kPages, .epoch = e.epoch}, parts, After(options_.bulk_silence)));
    answer.data = {};
  }
  return absl::OkStatus();
}

void PageServer::Close() {
  closed_ = true;
  threads_.Close();
}

}  // namespace gyre
