#include "coordinator/http/cluster_json.h"

#include <cstdint>

#include "boost/json/array.hpp"
#include "coordinator/http/json_text.h"
#include "coordinator/service/status_reply.h"
#include "model/quoted.h"
#include "proto/status_json.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

double Millis(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

json::value LayersJson(const std::optional<LayerRange>& layers) {
  if (!layers) return nullptr;
  return json::object{{"first", layers->begin}, {"last", layers->end - 1}};
}

json::value PlanJson(const std::optional<Plan>& plan) {
  if (!plan) return nullptr;
  return json::object{{"number", plan->epoch.number}, {"ranges", FormatNamedRanges(*plan)}};
}

json::value LinkTransport(Transport transport) {
  if (transport == Transport::kAuto) return nullptr;
  return json::string(TransportName(transport));
}

// To whom the member's stage sends; "" = it has none.
std::string NextOf(const MemberStatus& m, const std::optional<Plan>& plan) {
  const int stage = plan ? plan->StageOf(m.info.name) : -1;
  if (stage < 0) return "";
  const auto next = static_cast<size_t>(stage) + 1;
  return next < plan->stages.size() ? plan->stages[next].worker() : "coordinator";
}

// The link from the coordinator to the first stage; null if no plan serves.
json::value FirstHopJson(const ClusterStatus& c) {
  if (!c.plan || c.plan->stages.empty()) return nullptr;
  json::object out{{"to", c.plan->stages.front().worker()},
                   {"latency_ms", nullptr},
                   {"transport", LinkTransport(c.first_hop_transport)}};
  if (c.first_hop) out["latency_ms"] = Millis(*c.first_hop);
  return out;
}

double MillisOf(double seconds) { return seconds * 1e3; }

// A better plan; null if none is known.
json::value ProposalJson(const std::optional<Proposal>& p) {
  if (!p) return nullptr;
  return json::object{{"ranges", p->ranges},
                      {"gain", p->gain},
                      {"step_ms", MillisOf(p->step_seconds)},
                      {"step_ms_now", MillisOf(p->step_seconds_now)},
                      {"why", PrintableSentence(p->why)}};
}

json::object EngineJson(const ClusterStatus& c, const EngineStats& e) {
  const SchedulerStats& s = e.scheduler;
  return {{"waiting", s.waiting},
          {"prefill", s.prefill},
          {"decode", s.decode},
          {"held", s.held},
          {"blocks", s.num_blocks},
          {"blocks_available", s.blocks_available},
          {"blocks_cached", s.blocks_cached},
          {"window_blocks", s.window_blocks},
          {"window_blocks_available", s.window_blocks_available},
          {"window_blocks_cached", s.window_blocks_cached},
          {"block_size", c.block_size},
          {"requests", e.requests},
          {"finished", e.finished},
          {"failed", e.failed},
          {"cancelled", e.cancelled},
          {"tokens_generated", e.tokens_generated},
          {"tokens_per_second", c.tokens_per_second},
          {"preemptions", s.preemptions},
          {"cached_positions", s.cached_positions},
          {"computed_rows", s.computed_rows},
          {"replayed_rows", s.replayed_rows},
          {"steps", s.steps},
          {"rings_lost", e.rings_lost},
          {"last_wait_ms", Millis(e.last_wait)},
          {"longest_wait_ms", Millis(e.longest_wait)},
          {"poison_requests", e.poison_requests},
          {"pauses", e.pauses},
          {"last_pause_ms", Millis(e.last_pause)},
          {"longest_pause_ms", Millis(e.longest_pause)}};
}

json::object RecordJson(const PlanRecord& r) {
  return {{"plan", r.number},
          {"ranges", r.ranges},
          {"at", std::chrono::duration<double>(r.at.time_since_epoch()).count()},
          {"took_ms", Millis(r.took)},
          {"paused_ms", Millis(r.paused)},
          {"pages_moved", r.pages_moved},
          {"result", PrintableSentence(r.result)}};
}

json::object EventJson(const ClusterEvent& e) {
  json::object out{{"number", e.number},
                   {"at", std::chrono::duration<double>(e.at.time_since_epoch()).count()},
                   {"kind", EventKindName(e.kind)},
                   {"member", nullptr},
                   {"plan", nullptr},
                   {"took_ms", nullptr},
                   {"text", PrintableSentence(e.text)}};
  if (!e.member.empty()) out["member"] = e.member;
  if (e.plan != 0) out["plan"] = e.plan;
  if (e.took != Duration{}) out["took_ms"] = Millis(e.took);
  return out;
}

}  // namespace

json::object StatusJson(const ServedFacts& of, const ClusterStatus& c, const EngineStats& e) {
  json::array members, history, events;
  json::object flags;
  for (const auto& [name, value] : of.flags) flags[name] = PrintableSentence(value);
  for (const MemberStatus& m : c.members) {
    v1::MemberStatus member;
    FillMember(m, &member);
    members.push_back(MemberJson(member, NextOf(m, c.plan)));
  }
  for (const PlanRecord& r : c.history) history.push_back(RecordJson(r));
  for (const ClusterEvent& e : c.events) events.push_back(EventJson(e));
  return {{"object", "cluster"},
          {"version", of.version},
          {"flags", std::move(flags)},
          {"state", PrintableSentence(c.state)},
          {"plan", PlanJson(c.plan)},
          {"rebalance", RebalanceName(c.rebalance)},
          {"step_ms", MillisOf(c.step_seconds)},
          {"proposal", ProposalJson(c.proposal)},
          {"transport", TransportName(c.transport)},
          {"first_hop", FirstHopJson(c)},
          {"model", json::object{{"id", ValidUtf8(of.model)},
                                 {"architecture", PrintableSentence(of.architecture)},
                                 {"layers", of.layers},
                                 {"context", of.context},
                                 {"vocab", of.vocab},
                                 {"weights", of.weights},
                                 {"hash", of.hash},
                                 {"kv_type", KvTypeName(c.kv_type)},
                                 {"wire", WireTypeName(c.wire)}}},
          {"members", std::move(members)},
          {"engine", EngineJson(c, e)},
          {"plans", json::object{{"made", c.plans}, {"aborted", c.aborted}, {"lost", c.lost}}},
          {"history", std::move(history)},
          {"events", std::move(events)}};
}

json::object ChangeJson(const ChangeReport& report) {
  json::array moves, members;
  for (const LayerMove& m : report.moves) {
    moves.push_back(json::object{{"layers", LayersJson(m.layers)},
                                 {"from", m.from},
                                 {"to", m.to},
                                 {"weight_bytes", m.weight_bytes},
                                 {"kv_bytes", m.kv_bytes}});
  }
  for (const MemberShare& m : report.members) {
    members.push_back(json::object{{"name", m.name},
                                   {"layers", LayersJson(m.layers)},
                                   {"weight_bytes", m.weight_bytes},
                                   {"kv_bytes", m.kv_bytes},
                                   {"memory_bytes", m.memory_bytes},
                                   {"fits", m.fits()}});
  }
  json::object out{{"plan", nullptr},
                   {"ranges", report.named_ranges},
                   {"dry_run", report.dry_run},
                   {"moves", std::move(moves)},
                   {"members", std::move(members)},
                   {"took_ms", Millis(report.took)},
                   {"pages_moved", report.pages_moved},
                   {"kv_tokens", report.kv_tokens}};
  if (report.epoch != Epoch{}) out["plan"] = report.epoch.number;
  return out;
}

}  // namespace gyre::http
