#include "worker/node_reports.h"

#include <utility>

#include "base/clock.h"
#include "base/member_load.h"
#include "base/thread.h"
#include "proto/control_codec.h"

namespace gyre {
namespace {

constexpr auto kHeartbeat = std::chrono::milliseconds(250);
constexpr auto kLooksAtDisk = std::chrono::seconds(3);

}  // namespace

NodeReports::NodeReports(Stream& stream, Sources sources) : stream_(stream), sources_(std::move(sources)) {
  if (sources_.room) room_.emplace(sources_.room, kLooksAtDisk);
  thread_ = MakeThread("reports", [this] { Run(); });
}

void NodeReports::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  sources_.events.Wake();
  thread_.join();
}

void NodeReports::Run() {
  Deadline beat = Clock::now();
  bool told = false;
  while (!stopping_) {
    if (const auto item = sources_.events.Next(beat)) {
      v1::WorkerEvent event = Encode(item->event);
      event.set_number(item->number);
      if (!stream_.Write(event)) break;
    }
    if (sources_.leaves() && !std::exchange(told, true)) {
      sources_.say("leaving: the others take its layers");
      if (!stream_.Write(Encode(LeavingEvent{}))) break;
    }
    if (Clock::now() < beat) continue;
    beat = After(kHeartbeat);
    MemberLoad load = sources_.worker.TakeLoad();
    if (room_) load.weights_room = room_->bytes();
    if (!stream_.Write(Encode(load))) break;
  }
}

}  // namespace gyre
