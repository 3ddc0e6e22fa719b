#include "proto/control_codec.h"

#include <utility>

#include "proto/attach_codec.h"
#include "proto/codec_parts.h"
#include "proto/convert.h"
#include "proto/plan_codec.h"
#include "proto/report_codec.h"

namespace gyre {
namespace {

constexpr size_t kMaxFault = 1000;
constexpr int kLastStatusCode = 16;

struct EncodeCommand {
  v1::Command* out;
  void operator()(const UnknownCommand&) const {}
  void operator()(const Welcome& w) const { EncodeWelcome(w, out->mutable_welcome()); }
  void operator()(const Change& c) const { EncodeChange(c, out->mutable_change()); }
  void operator()(const TraceCommand& t) const { out->mutable_trace()->set_asked_ns(NanosOf(t.asked)); }
  void operator()(const RevokedCommand& r) const { out->mutable_revoked()->set_crl(r.crl); }
  void operator()(const DismissCommand&) const { out->mutable_dismiss(); }
  void operator()(const ProbeCommand& p) const {
    for (const WeightSource& peer : p.peers) EncodeSource(peer, out->mutable_probe()->add_peers());
    out->mutable_probe();
  }
};

StatusOr<ProbeCommand> DecodeProbe(const v1::Probe& p) {
  if (p.peers_size() > static_cast<int>(kMaxLinkSpeeds)) {
    return InvalidArgument("links to {} members are to be measured, at most {}", p.peers_size(), kMaxLinkSpeeds);
  }
  ProbeCommand out;
  for (const v1::WeightSource& peer : p.peers()) {
    GYRE_ASSIGN_OR_RETURN(WeightSource source, DecodeSource(peer));
    out.peers.push_back(std::move(source));
  }
  return out;
}

struct EncodeStageEvent {
  v1::WorkerEvent* out;
  void operator()(const StageProgress& p) const {
    out->mutable_progress()->set_done(p.done);
    out->mutable_progress()->set_total(p.total);
    out->mutable_progress()->set_fetched(p.fetched);
    out->mutable_progress()->set_to_fetch(p.to_fetch);
  }
  void operator()(const StageDone& d) const { EncodeDone(d, out->mutable_done()); }
  void operator()(const StageFault& f) const {
    out->mutable_fault()->set_code(f.status.raw_code());
    out->mutable_fault()->set_message(CutUtf8(Message(f.status), kMaxFault - 3));
  }
  void operator()(const StageTrace& t) const { EncodeTrace(t, out->mutable_traced()); }
  void operator()(const StageProbed& p) const { EncodeProbed(p, out->mutable_probed()); }
};

StageFault DecodeFault(const v1::Fault& fault) {
  const int code = fault.code();
  const std::string text = CutUtf8(fault.message(), kMaxFault);
  return {Status(code > 0 && code <= kLastStatusCode ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                 absl::string_view(text.data(), text.size()))};
}

}  // namespace

v1::WorkerEvent Encode(const WorkerHello& hello) {
  v1::WorkerEvent out;
  EncodeHello(hello, out.mutable_hello());
  return out;
}

v1::WorkerEvent Encode(const MemberLoad& load) {
  v1::WorkerEvent out;
  EncodeLoad(load, out.mutable_heartbeat());
  return out;
}

v1::WorkerEvent Encode(const StageEvent& event) {
  v1::WorkerEvent out;
  EncodeEpoch(event.epoch, out.mutable_epoch());
  std::visit(EncodeStageEvent{&out}, event.what);
  return out;
}

v1::WorkerEvent Encode(const LeavingEvent&) {
  v1::WorkerEvent out;
  out.mutable_leaving();
  return out;
}

StatusOr<WorkerMessage> Decode(const v1::WorkerEvent& event) {
  StageEvent out{.worker = {}, .epoch = EpochOf(event.epoch()), .what = StageDone{}};
  switch (event.what_case()) {
    case v1::WorkerEvent::kHello: {
      GYRE_ASSIGN_OR_RETURN(WorkerHello hello, DecodeHello(event.hello()));
      return WorkerMessage(std::move(hello));
    }
    case v1::WorkerEvent::kLeaving: return WorkerMessage(LeavingEvent{});
    case v1::WorkerEvent::kHeartbeat: return WorkerMessage(DecodeLoad(event.heartbeat()));
    case v1::WorkerEvent::kProgress:
      out.what = StageProgress{event.progress().done(), event.progress().total(), event.progress().fetched(),
                               event.progress().to_fetch()};
      break;
    case v1::WorkerEvent::kDone: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeDone(event.done()));
      break;
    }
    case v1::WorkerEvent::kFault: out.what = DecodeFault(event.fault()); break;
    case v1::WorkerEvent::kTraced: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeTrace(event.traced()));
      break;
    }
    case v1::WorkerEvent::kProbed: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeProbed(event.probed()));
      break;
    }
    default: return WorkerMessage();
  }
  return WorkerMessage(std::move(out));
}

v1::Command Encode(const WorkerCommand& command) {
  v1::Command out;
  out.set_number(command.number);
  std::visit(EncodeCommand{&out}, command.what);
  return out;
}

StatusOr<WorkerCommand> Decode(const v1::Command& command) {
  WorkerCommand out{.what = UnknownCommand{}, .number = command.number()};
  switch (command.what_case()) {
    case v1::Command::kWelcome: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeWelcome(command.welcome()));
      break;
    }
    case v1::Command::kChange: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeChange(command.change()));
      break;
    }
    case v1::Command::kRevoked: out.what = RevokedCommand{command.revoked().crl()}; break;
    case v1::Command::kDismiss: out.what = DismissCommand{}; break;
    case v1::Command::kProbe: {
      GYRE_ASSIGN_OR_RETURN(out.what, DecodeProbe(command.probe()));
      break;
    }
    case v1::Command::kTrace: out.what = TraceCommand{MomentOf(command.trace().asked_ns())}; break;
    default: break;
  }
  return out;
}

}  // namespace gyre
