#include "coordinator/service/status_reply.h"

#include "base/ring_address.h"
#include "gyre/v1/admin.pb.h"
#include "model/quoted.h"

namespace gyre {
namespace {

double Millis(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

void Set(v1::LayerRange* out, LayerRange layers) {
  out->set_begin(layers.begin);
  out->set_end(layers.end);
}

std::string LinkTransport(Transport transport) {
  return transport == Transport::kAuto ? "" : std::string(TransportName(transport));
}

void FillRecord(const gyre::PlanRecord& r, v1::PlanRecord* out) {
  out->set_number(r.number);
  out->set_ranges(r.ranges);
  out->set_at(std::chrono::duration<double>(r.at.time_since_epoch()).count());
  out->set_took_ms(Millis(r.took));
  out->set_pages_moved(r.pages_moved);
  out->set_result(PrintableSentence(r.result));
  out->set_paused_ms(Millis(r.paused));
}

void FillMemory(const ClusterStatus& c, const SchedulerStats& s, v1::StatusReply* out) {
  for (size_t group = 0; group < kKvKinds.size(); ++group) {
    const UnitStats& of = s.memory[group];
    if (of.units == 0) continue;
    v1::MemoryStatus* memory = out->add_memory();
    memory->set_kind(std::string(kKvKinds[group].name));
    memory->set_units(of.units);
    memory->set_available(of.available);
    memory->set_cached(of.kept);
    memory->set_window(kKvKinds[group].moves_on ? s.window : 0);
    memory->set_unit_bytes(c.unit_bytes[group]);
  }
}

void FillEvent(const gyre::ClusterEvent& e, v1::ClusterEvent* out) {
  out->set_number(e.number);
  out->set_at(std::chrono::duration<double>(e.at.time_since_epoch()).count());
  out->set_kind(EventKindName(e.kind));
  out->set_member(e.member);
  out->set_plan(e.plan);
  out->set_took_ms(Millis(e.took));
  out->set_text(PrintableSentence(e.text));
}

}  // namespace

void FillMember(const gyre::MemberStatus& m, v1::MemberStatus* out) {
  out->set_name(m.info.name);
  out->set_address(TcpPart(m.info.address));
  out->set_host(m.info.host);
  out->set_local(m.info.local);
  out->set_isa(m.info.isa);
  out->set_threads(static_cast<uint32_t>(m.info.threads));
  out->set_memory_bytes(m.info.memory);
  if (m.layers) Set(out->mutable_layers(), *m.layers);
  out->set_weight_bytes(m.weight_bytes);
  out->set_kv_bytes(m.kv_bytes);
  out->set_busy(m.load.busy);
  out->set_steps(m.load.steps);
  out->set_busy_us(m.load.busy_us);
  out->set_rows_sent(m.load.rows_sent);
  out->set_row_bytes_sent(m.load.row_bytes_sent);
  out->set_answers_sent(m.load.answers_sent);
  out->set_answer_bytes_sent(m.load.answer_bytes_sent);
  out->set_drained(m.drained);
  out->set_left_out(PrintableSentence(m.left_out));
  out->set_step_ms(m.rates.step_ms);
  out->set_rows_per_second(m.rates.rows_per_second);
  out->set_bytes_per_second(m.rates.bytes_per_second);
  out->set_round_trip_us(m.load.round_trip_us);
  if (m.layers) out->set_transport(LinkTransport(m.load.transport));
  out->set_leaving(m.leaving);
  out->set_detached(m.detached);
  out->set_fetches(m.info.fetches);
  out->set_weights_room(m.info.disk);
  out->set_packed(m.loading.done);
  out->set_to_pack(m.loading.total);
  out->set_fetched(m.loading.fetched);
  out->set_to_fetch(m.loading.to_fetch);
  out->set_memory_bytes_per_second(m.info.speed.memory_bytes_per_second);
  out->set_operations_per_second(m.info.speed.operations_per_second);
  out->set_disk_bytes_per_second(m.info.speed.disk_bytes_per_second);
  for (const gyre::LinkSpeed& l : m.links) {
    v1::MeasuredLink* link = out->add_links();
    link->set_to(l.to);
    link->set_failure(PrintableSentence(l.failure));
    link->set_round_trip_us(l.round_trip_us);
    link->set_bytes_per_second(l.bytes_per_second);
  }
  out->set_slowdown(m.slowdown);
  out->set_stage_ms(m.stage_seconds * 1e3);
  out->set_why(PrintableSentence(m.why));
  if (!m.replica) return;
  out->mutable_replica()->set_of(m.replica->of);
  out->mutable_replica()->set_pages(m.replica->pages);
  out->mutable_replica()->set_bytes(m.replica->bytes);
  out->mutable_replica()->set_whole(m.replica->behind.has_value());
  out->mutable_replica()->set_behind(m.replica->behind.value_or(0));
}

void FillStatusReply(const ServedModel& of, const ClusterStatus& c, const EngineStats& e, v1::StatusReply* reply) {
  FillStatus(c, e, reply);
  reply->set_version(of.version);
  reply->set_model(PrintableSentence(of.model.path()));
  reply->set_num_layers(static_cast<int>(of.model.spec().layers.size()));
  reply->set_context(of.context);
}

void FillStatus(const ClusterStatus& c, const EngineStats& e, v1::StatusReply* reply) {
  reply->set_state(PrintableSentence(c.state));
  if (c.plan) {
    reply->mutable_epoch()->set_term(c.plan->epoch.term);
    reply->mutable_epoch()->set_number(c.plan->epoch.number);
    reply->set_ranges(FormatRanges(*c.plan));
    reply->set_named_ranges(FormatNamedRanges(*c.plan));
  }
  for (const gyre::MemberStatus& m : c.members) FillMember(m, reply->add_members());
  for (const gyre::PlanRecord& r : c.history) FillRecord(r, reply->add_history());
  for (const gyre::ClusterEvent& e : c.events) FillEvent(e, reply->add_events());
  reply->set_tokens_per_second(c.tokens_per_second);
  if (c.first_hop) {
    reply->set_first_hop_us(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(*c.first_hop).count()));
  }
  if (c.plan) reply->set_first_hop_transport(LinkTransport(c.first_hop_transport));
  reply->set_transport(std::string(TransportName(c.transport)));
  reply->set_plans(c.plans);
  reply->set_aborted(c.aborted);
  reply->set_lost(c.lost);
  reply->set_requests(e.requests);
  reply->set_finished(e.finished);
  reply->set_failed(e.failed);
  reply->set_cancelled(e.cancelled);
  reply->set_tokens_generated(e.tokens_generated);
  const SchedulerStats& scheduler = e.scheduler;
  reply->set_waiting(scheduler.waiting);
  reply->set_prefill(scheduler.prefill);
  reply->set_decode(scheduler.decode);
  reply->set_held(scheduler.held);
  reply->set_preemptions(scheduler.preemptions);
  reply->set_cached_positions(scheduler.cached_positions);
  reply->set_computed_rows(scheduler.computed_rows);
  reply->set_rows_replayed(scheduler.replayed_rows);
  reply->set_steps(scheduler.steps);
  reply->set_block_size(static_cast<uint32_t>(c.block_size));
  FillMemory(c, scheduler, reply);
  reply->set_pauses(e.pauses);
  reply->set_last_pause_ms(Millis(e.last_pause));
  reply->set_longest_pause_ms(Millis(e.longest_pause));
  reply->set_held_in_prefill(e.held_in_prefill);
  reply->set_held_in_partial_block(e.held_in_partial_block);
  reply->set_wire(WireTypeName(c.wire));
  reply->set_rings_lost(e.rings_lost);
  reply->set_last_wait_ms(Millis(e.last_wait));
  reply->set_longest_wait_ms(Millis(e.longest_wait));
  reply->set_poison_requests(e.poison_requests);
  reply->set_replay_note(c.replay_note);
  reply->set_rebalance(RebalanceName(c.rebalance));
  reply->set_step_ms(c.step_seconds * 1e3);
  if (c.proposal) {
    reply->mutable_proposal()->set_ranges(c.proposal->ranges);
    reply->mutable_proposal()->set_gain(c.proposal->gain);
    reply->mutable_proposal()->set_step_ms(c.proposal->step_seconds * 1e3);
    reply->mutable_proposal()->set_step_ms_now(c.proposal->step_seconds_now * 1e3);
    reply->mutable_proposal()->set_why(PrintableSentence(c.proposal->why));
  }
  for (const SequenceStats& s : e.sequences) {
    v1::SequenceStatus* out = reply->add_sequences();
    out->set_id(static_cast<uint64_t>(s.id));
    out->set_state(s.state == SeqState::kWaiting ? "waiting" : s.state == SeqState::kPrefill ? "prefill" : "decode");
    out->set_prompt(s.prompt);
    out->set_generated(s.generated);
  }
}

void FillChangeReply(const ChangeReport& report, v1::ChangeReply* reply) {
  if (report.epoch != Epoch{}) {
    reply->mutable_epoch()->set_term(report.epoch.term);
    reply->mutable_epoch()->set_number(report.epoch.number);
  }
  reply->set_ranges(report.ranges);
  reply->set_named_ranges(report.named_ranges);
  reply->set_dry_run(report.dry_run);
  for (const gyre::LayerMove& m : report.moves) {
    v1::LayerMove* out = reply->add_moves();
    Set(out->mutable_layers(), m.layers);
    out->set_from(m.from);
    out->set_to(m.to);
    out->set_weight_bytes(m.weight_bytes);
    out->set_kv_bytes(m.kv_bytes);
  }
  for (const gyre::MemberShare& m : report.members) {
    v1::MemberShare* out = reply->add_members();
    out->set_name(m.name);
    if (m.layers) Set(out->mutable_layers(), *m.layers);
    out->set_weight_bytes(m.weight_bytes);
    out->set_kv_bytes(m.kv_bytes);
    out->set_peak_bytes(m.peak_bytes);
    out->set_memory_bytes(m.memory_bytes);
  }
  reply->set_pages_moved(report.pages_moved);
  reply->set_last_pages(report.last_pages);
  reply->set_took_ms(Millis(report.took));
  reply->set_kv_tokens(report.kv_tokens);
}

}  // namespace gyre
