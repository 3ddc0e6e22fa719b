// KV pages between workers: those that the prepared stage's loader pulls, and those that the running stage gives.
#include <future>

#include "worker/worker_state.h"

namespace gyre {

using std::chrono::milliseconds;

Status Worker::Impl::StartCopying(const PrepareRequest& request, const Prepared& prepared) {
  copying_ = {.epoch = request.plan.epoch, .pullers = {}};
  const StageParts& parts = prepared.stage->parts();
  for (const LayerSource& source : request.sources) {
    if (skip_copying_) break;
    if (source.layers.begin < parts.range.begin || source.layers.end > parts.range.end || source.layers.size() <= 0) {
      return InvalidArgument("pages of layers {} are to be copied, the stage has {}", FormatRange(source.layers),
                             FormatRange(parts.range));
    }
    const Hello hello{.role = LinkRole::kBulk,
                      .epoch = request.plan.epoch,
                      .model_hash = request.plan.model_hash,
                      .key = request.plan.key,
                      .from = options_.name,
                      .to = source.worker};
    StatusOr<std::unique_ptr<Link>> link = options_.port->Dial(source.address, hello, After(options_.wire_timeout));
    if (!link.ok()) return Annotate(link.status(), fmt::format("the bulk link to {}", source.worker));
    std::vector<std::shared_ptr<Layer>> layers;
    for (int i = source.layers.begin; i < source.layers.end; ++i) {
      layers.push_back(parts.layers[static_cast<size_t>(i - parts.range.begin)]);
    }
    copying_.pullers.push_back(std::make_unique<PagePuller>(*std::move(link), std::move(layers)));
  }
  // Ready when little is left to copy, or little by little comes in as fast as it goes out.
  for (int round = 0; round < 8 && !copying_.pullers.empty(); ++round) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t pages, CopyRound(nullptr));
    if (pages <= 64) break;
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> Worker::Impl::CopyRound(const std::vector<BlockId>* blocks) {
  uint64_t pages = 0;
  for (auto& puller : copying_.pullers) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, puller->Round(copying_.epoch, blocks, After(std::chrono::seconds(60)),
                                                          [this] { return Aborted(copying_.epoch); }));
    pages += n;
  }
  return pages;
}

void Worker::Impl::OnMove(Epoch epoch, const std::vector<BlockId>& blocks) {
  {
    MutexLock lock(&mutex_);
    if (prepared_ == nullptr || prepared_->epoch != epoch) return;
  }
  StageMoved moved;
  StatusOr<uint64_t> last = CopyRound(&blocks);
  if (!last.ok()) {
    copying_ = {};
    return Say(epoch, StageFault{last.status()});
  }
  moved.last_pages = *last;
  for (auto& puller : copying_.pullers) {
    moved.pages += puller->pages();
    moved.bytes += puller->bytes();
  }
  copying_ = {};
  Say(epoch, moved);
}

void Worker::Impl::ServeBulk(std::unique_ptr<Link> link) {
  constexpr size_t kMaxServers = 32;
  std::list<BulkServer> finished;
  {
    MutexLock lock(&mutex_);
    for (auto it = bulk_.begin(); it != bulk_.end();) {
      const auto next = std::next(it);
      if (it->done) finished.splice(finished.end(), bulk_, it);
      it = next;
    }
    if (stopping_ || bulk_.size() >= kMaxServers) {
      link->Close();
    } else {
      BulkServer& server = bulk_.emplace_back();
      server.link = std::move(link);
      server.thread = std::thread([this, &server] {
        Guarded("bulk", [&] { ServePulls(*server.link); });
        server.link->Close();
        MutexLock done(&mutex_);
        server.done = true;
      });
    }
  }
  for (BulkServer& b : finished) b.thread.join();
}

void Worker::Impl::ServePulls(Link& link) {
  while (!stopping_) {
    StatusOr<Frame> frame = link.Recv(After(std::chrono::minutes(5)));
    if (!frame.ok()) return;
    const Status status = AnswerPull(link, *frame);
    if (status.ok()) continue;
    const std::string text = Message(status);
    const ByteSpan parts[] = {std::as_bytes(std::span(text))};
    if (!link.Send({.kind = FrameKind::kPullError, .epoch = frame->header.epoch}, parts, After(milliseconds(1000)))
             .ok()) {
      return;
    }
  }
}

Status Worker::Impl::AnswerPull(Link& link, const Frame& frame) {
  if (frame.header.kind != FrameKind::kPullPages) {
    return DataLoss("a frame of kind {} came, expected a request for pages", static_cast<int>(frame.header.kind));
  }
  GYRE_ASSIGN_OR_RETURN(const PullPages request, DecodePullPages(frame.payload));
  // Pages are read where they are written: on the stage's thread, between steps. What the job needs outlives this call,
  // should the worker stop meanwhile.
  struct Export {
    PullPages request;
    std::vector<std::byte> data;
    std::promise<StatusOr<Pages>> pages;
  };
  auto job = std::make_shared<Export>();
  job->request = request;
  auto future = job->pages.get_future();
  Post([this, job] {
    const auto layer = static_cast<int>(job->request.layer);
    if (running_ == nullptr || running_->stage == nullptr || layer < running_->stage->parts().range.begin ||
        layer >= running_->stage->parts().range.end) {
      return job->pages.set_value(FailedPrecondition("{} does not run layer {}", options_.name, layer));
    }
    const StageParts& parts = running_->stage->parts();
    job->pages.set_value(ExportPages(*parts.layers[static_cast<size_t>(layer - parts.range.begin)], job->request,
                                     step_count_, &job->data));
  });
  while (future.wait_for(milliseconds(200)) != std::future_status::ready) {
    // The stage's thread has ended and will not run the job.
    if (stopping_) return Unavailable("{} stops", options_.name);
  }
  GYRE_ASSIGN_OR_RETURN(const Pages pages, future.get());
  pages_sent_ += pages.ids.size();
  Encoder head;
  EncodePagesHead(pages, &head);
  const ByteSpan parts[] = {head.bytes(), job->data};
  return link.Send({.kind = FrameKind::kPages, .epoch = frame.header.epoch}, parts, After(std::chrono::seconds(30)));
}

}  // namespace gyre
