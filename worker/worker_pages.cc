// KV pages between workers: those that the prepared stage's loader pulls, and those that the running stage gives.
#include <algorithm>
#include <future>

#include "base/log.h"
#include "worker/settle.h"
#include "worker/worker_state.h"

namespace gyre {

using std::chrono::milliseconds;

Status Worker::Impl::StartCopying(const PrepareRequest& request, const Prepared& prepared) {
  copying_ = {.epoch = request.plan.epoch, .queue = options_.device->NewBackend(), .pullers = {}};
  next_word_ = After(std::chrono::seconds(1));
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
                      .to = source.worker,
                      .transport = request.plan.transport};
    StatusOr<std::unique_ptr<Link>> link = options_.port->Dial(source.address, hello, kNoDeadline);
    if (!link.ok()) return Annotate(link.status(), fmt::format("the bulk link to {}", source.worker));
    std::vector<std::shared_ptr<Layer>> layers;
    for (int i = source.layers.begin; i < source.layers.end; ++i) {
      const auto& layer = parts.layers[static_cast<size_t>(i - parts.range.begin)];
      if (layer->pages != nullptr) layers.push_back(layer);
    }
    copying_.pullers.push_back(std::make_unique<PagePuller>(*std::move(link), source.worker, *copying_.queue,
                                                            std::move(layers), request.num_blocks, request.num_slots));
  }
  // The stage is ready when little is left to copy, or when pages are written as fast as they are copied.
  for (int round = 0; round < 8 && !copying_.pullers.empty(); ++round) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t pages, CopyRound(nullptr));
    if (pages <= 64) break;
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> Worker::Impl::CopyRound(const std::vector<BlockId>* blocks) {
  uint64_t pages = 0;
  // A long round is no silence for the coordinator.
  auto cancelled = [this] {
    if (Clock::now() >= next_word_) {
      next_word_ = After(std::chrono::seconds(1));
      Say(copying_.epoch, progress_);
    }
    return Aborted(copying_.epoch);
  };
  for (auto& puller : copying_.pullers) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, puller->Round(copying_.epoch, blocks, options_.bulk_silence, cancelled));
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
  StatusOr<uint64_t> last = CatchExhausted([&] { return CopyRound(&blocks); });
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
      try {
        server.thread = std::thread([this, &server] {
          Guarded("bulk", [&] {
            const Status status = CatchExhausted([&] { return ServePulls(*server.link); });
            if (!status.ok()) Log(LogLevel::kWarn, "{}: a bulk link ends: {}", options_.name, Message(status));
          });
          server.link->Close();
          MutexLock done(&mutex_);
          server.done = true;
        });
      } catch (const std::system_error& e) {
        Log(LogLevel::kWarn, "{}: no thread for a bulk link: {}", options_.name, e.what());
        bulk_.pop_back();
      }
    }
  }
  for (BulkServer& b : finished) b.thread.join();
}

// One request's pages on their way from the stage's thread to the link.
struct Worker::Impl::Export {
  struct Answer {
    Pages pages;
    std::vector<std::byte> data;
  };
  Epoch epoch;
  PullPages request;
  std::vector<Answer> answers;
  std::promise<Status> done;
  std::future<Status> ready = done.get_future();
};

// Several requests at a time, so that the stage's thread finds more than one between two long steps. An error is the
// answer to its request.
Status Worker::Impl::ServePulls(Link& link) {
  std::deque<std::shared_ptr<Export>> posted;
  while (!stopping_) {
    if (posted.size() < kPullsAtOnce) {
      StatusOr<Frame> frame = link.Recv(posted.empty() ? After(std::chrono::minutes(5)) : Clock::now());
      if (!frame.ok() && !(absl::IsDeadlineExceeded(frame.status()) && !posted.empty())) return absl::OkStatus();
      if (frame.ok()) {
        StatusOr<std::shared_ptr<Export>> e = CatchExhausted([&] { return PostExport(*frame, link.certified_peer()); });
        posted.push_back(e.ok() ? *std::move(e) : std::make_shared<Export>());
        if (!e.ok()) {  // in its place among the others
          posted.back()->epoch = frame->header.epoch;
          posted.back()->done.set_value(e.status());
        }
        continue;
      }
    }
    const std::shared_ptr<Export> e = std::move(posted.front());
    posted.pop_front();
    while (e->ready.wait_for(milliseconds(200)) != std::future_status::ready) {
      if (stopping_) return absl::OkStatus();  // the stage's thread has ended and will not run the job
    }
    Status status = e->ready.get();
    if (status.ok()) status = SendExport(link, *e);
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
StatusOr<std::shared_ptr<Worker::Impl::Export>> Worker::Impl::PostExport(const Frame& frame, const std::string& peer) {
  if (frame.header.kind != FrameKind::kPullPages) {
    return DataLoss("a frame of kind {} came, expected a request for pages", static_cast<int>(frame.header.kind));
  }
  auto e = std::make_shared<Export>();
  e->epoch = frame.header.epoch;
  GYRE_ASSIGN_OR_RETURN(e->request, DecodePullPages(frame.payload));
  if (!peer.empty()) GYRE_RETURN_IF_ERROR(CheckPull(peer, e->epoch, static_cast<int>(e->request.layer)));
  Post([this, e] { e->done.set_value(CatchExhausted([&] { return RunExport(*e); })); });
  return e;
}

Status Worker::Impl::CheckPull(const std::string& peer, Epoch epoch, int layer) {
  MutexLock lock(&mutex_);
  if (asked_ == epoch && aborted_ != epoch) {
    for (const StagePlan& stage : asked_stages_) {
      if (stage.worker() == peer && layer >= stage.layers.begin && layer < stage.layers.end) return absl::OkStatus();
    }
  }
  return FailedPrecondition("plan {} does not give layer {} to {}", epoch.number, layer, peer);
}

// One answer at least, and more while there is time before the next step.
Status Worker::Impl::RunExport(Export& e) {
  const auto index = static_cast<int>(e.request.layer);
  if (running_ == nullptr || running_->stage == nullptr || index < running_->stage->parts().range.begin ||
      index >= running_->stage->parts().range.end) {
    return FailedPrecondition("{} does not run layer {}", options_.name, index);
  }
  const StageParts& parts = running_->stage->parts();
  const Layer& layer = *parts.layers[static_cast<size_t>(index - parts.range.begin)];
  if (layer.pages == nullptr) return FailedPrecondition("layer {} has no pages", index);
  const uint64_t most = std::min(e.request.max_bytes, kPullBytes);
  uint64_t bytes = 0;
  for (PullPages request = e.request;;) {
    Export::Answer answer;
    const SettleOnError settle(*running_->queue);
    GYRE_ASSIGN_OR_RETURN(answer.pages, ExportPages(layer, request, step_count_, &answer.data, *running_->queue));
    running_->queue->Finish();
    bytes += answer.data.size();
    const BlockId next = answer.pages.next;
    const bool more = next != kNoBlock && bytes < most && Clock::now() < slice_end_;
    if (more) answer.pages.next = kMoreFollows;
    e.answers.push_back(std::move(answer));
    if (!more) return absl::OkStatus();
    request.from = next;
    request.check.clear();
  }
}

Status Worker::Impl::SendExport(Link& link, Export& e) {
  for (Export::Answer& answer : e.answers) {
    pages_sent_ += answer.pages.ids.size();
    Encoder head;
    EncodePagesHead(answer.pages, &head);
    const ByteSpan parts[] = {head.bytes(), answer.data};
    GYRE_RETURN_IF_ERROR(link.Send({.kind = FrameKind::kPages, .epoch = e.epoch}, parts, After(options_.bulk_silence)));
    answer.data = {};
  }
  return absl::OkStatus();
}

}  // namespace gyre
