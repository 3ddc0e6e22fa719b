#include "coordinator/remote_stage.h"

#include <utility>

namespace gyre {
namespace {

v1::Command CommandFor(Epoch epoch) {
  v1::Command c;
  c.mutable_epoch()->set_term(epoch.term);
  c.mutable_epoch()->set_number(epoch.number);
  return c;
}

void Set(v1::LayerRange* out, LayerRange range) {
  out->set_begin(range.begin);
  out->set_end(range.end);
}

}  // namespace

void RemoteStage::SetEventSink(EventSink sink) {
  MutexLock lock(&mutex_);
  sink_ = std::move(sink);
}

void RemoteStage::Prepare(const PrepareRequest& request) {
  v1::Command c = CommandFor(request.plan.epoch);
  v1::Prepare* p = c.mutable_prepare();
  const Plan& plan = request.plan;
  p->mutable_plan()->set_model(plan.model);
  p->mutable_plan()->set_model_hash(plan.model_hash);
  p->mutable_plan()->set_num_layers(plan.num_layers);
  p->mutable_plan()->set_coordinator_address(plan.coordinator_address);
  p->mutable_plan()->set_key(plan.key.data(), plan.key.size());
  for (const StagePlan& s : plan.stages) {
    v1::Stage* stage = p->mutable_plan()->add_stages();
    Set(stage->mutable_layers(), s.layers);
    stage->set_worker(s.worker());
    stage->set_address(s.members[0].address);
  }
  p->mutable_plan()->set_wire(static_cast<uint32_t>(plan.wire));
  p->set_stage(request.stage);
  p->set_block_size(request.block_size);
  p->set_num_blocks(request.num_blocks);
  p->set_kv_type(static_cast<uint32_t>(request.kv_type));
  for (const LayerSource& s : request.sources) {
    v1::LayerSource* source = p->add_sources();
    Set(source->mutable_layers(), s.layers);
    source->set_worker(s.worker);
    source->set_address(s.address);
  }
  Send(std::move(c));
}

void RemoteStage::Move(Epoch epoch, const std::vector<BlockId>& blocks) {
  v1::Command c = CommandFor(epoch);
  c.mutable_move()->mutable_blocks()->Add(blocks.begin(), blocks.end());
  Send(std::move(c));
}

void RemoteStage::Commit(Epoch epoch) {
  v1::Command c = CommandFor(epoch);
  c.mutable_commit();
  Send(std::move(c));
}

void RemoteStage::Release(Epoch epoch) {
  v1::Command c = CommandFor(epoch);
  c.mutable_release();
  Send(std::move(c));
}

void RemoteStage::Abort(Epoch epoch) {
  v1::Command c = CommandFor(epoch);
  c.mutable_abort();
  Send(std::move(c));
}

void RemoteStage::Open(std::function<void(const v1::Command*)> write, v1::Command welcome) {
  MutexLock lock(&mutex_);
  if (closed_) return;
  write_ = std::move(write);
  commands_.push_front(std::move(welcome));
  write_(&commands_.front());
}

void RemoteStage::Send(v1::Command command) {
  MutexLock lock(&mutex_);
  if (closed_) return;
  commands_.push_back(std::move(command));
  if (write_ && commands_.size() == 1) write_(&commands_.front());
}

void RemoteStage::Written() {
  MutexLock lock(&mutex_);
  if (!commands_.empty()) commands_.pop_front();
  if (write_ && !commands_.empty()) write_(&commands_.front());
}

void RemoteStage::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  write_ = {};
}

void RemoteStage::OnEvent(const v1::WorkerEvent& event) {
  StageEvent out{.worker = name_, .epoch = {event.epoch().term(), event.epoch().number()}, .what = StageAborted{}};
  switch (event.what_case()) {
    case v1::WorkerEvent::kProgress: out.what = StageProgress{event.progress().done(), event.progress().total()}; break;
    case v1::WorkerEvent::kReady: out.what = StageReady{}; break;
    case v1::WorkerEvent::kMoved:
      out.what = StageMoved{event.moved().pages(), event.moved().bytes(), event.moved().last_pages()};
      break;
    case v1::WorkerEvent::kCommitted: out.what = StageCommitted{}; break;
    case v1::WorkerEvent::kAborted: out.what = StageAborted{}; break;
    case v1::WorkerEvent::kFault: {
      const int code = event.fault().code();
      const std::string text = event.fault().message().substr(0, 1000);
      out.what =
          StageFault{Status(code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                            absl::string_view(text.data(), text.size()))};
      break;
    }
    default: return;
  }
  EventSink sink;
  {
    MutexLock lock(&mutex_);
    sink = sink_;
  }
  if (sink) sink(std::move(out));
}

}  // namespace gyre
