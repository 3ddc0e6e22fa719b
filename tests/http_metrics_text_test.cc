// The text of /metrics for a made-up state, and how latencies are counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/http/metrics_text.h"

namespace gyre::http {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

MemberStatus Member(std::string name, int begin, int end) {
  MemberStatus m;
  m.info.name = std::move(name);
  m.info.memory = 4000;
  m.info.disk = 9000;
  m.layers = LayerRange{begin, end};
  m.load = {.busy = 0.25,
            .steps = 7,
            .resident_bytes = 5000,
            .busy_us = 1500000,
            .rows_sent = 70,
            .row_bytes_sent = 28000,
            .round_trip_us = 250,
            .answers_sent = 30,
            .answer_bytes_sent = 900};
  m.load.step_times.Add(milliseconds(20));
  m.rates.step_ms = 12.5;
  m.weight_bytes = 1000;
  m.kv_bytes = 2000;
  return m;
}

MetricsInput MadeUp() {
  MetricsInput in{.version = "9.9", .model = "demo"};
  EngineStats& e = in.engine;
  e.scheduler = {.waiting = 1, .prefill = 2, .decode = 3, .held = 1, .in_flight = 2};
  e.scheduler.memory[kPageGroup].units = 100;
  e.scheduler.memory[kPageGroup].available = 60;
  e.scheduler.memory[kPageGroup].kept = 20;
  e.scheduler.preemptions = 4;
  e.scheduler.cached_positions = 50;
  e.scheduler.computed_rows = 350;
  e.scheduler.replayed_rows = 9;
  e.scheduler.steps = 77;
  e.scheduler.cache_lookups = 10;
  e.scheduler.cache_lookup_tokens = 320;
  e.scheduler.cache_hits = 6;
  e.scheduler.longest_decode_gap = 5;
  e.scheduler.leaked_blocks = 1;
  e.scheduler.queue_wait.Add(milliseconds(1));
  e.scheduler.queue_wait.Add(std::chrono::hours(1));
  e.requests = 12;
  e.finished = 8;
  e.failed = 1;
  e.cancelled = 2;
  e.tokens_generated = 80;
  e.drafted_tokens = 50;
  e.accepted_drafts = 30;
  e.forced_tokens = 21;
  e.mask_bytes_sent = 4096;
  e.mask_time.Add(milliseconds(3));
  e.prompt_tokens = 300;
  e.prompt_rows = 270;
  e.step_errors = 3;
  e.rings_lost = 4;
  e.last_wait = std::chrono::milliseconds(250);
  e.longest_wait = std::chrono::milliseconds(1500);
  e.poison_requests = 2;
  e.context_shifts = 2;
  e.step_bytes_sent = 1400;
  e.pauses = 2;
  e.last_pause = milliseconds(250);
  e.longest_pause = milliseconds(1500);
  e.integrity_checks = 6;
  e.integrity_faults = 1;
  e.to_first_token.Add(milliseconds(400));
  e.between_tokens.Add(milliseconds(20));
  e.request_time.Add(milliseconds(2250));
  ClusterStatus c;
  c.plan.emplace();
  c.plan->epoch.number = 3;
  c.plan->stages = {{.layers = {0, 2}, .first = true, .members = {{.worker = "a"}}},
                    {.layers = {2, 6}, .last = true, .members = {{.worker = "b"}}}};
  c.members = {Member("a", 0, 2), Member("b", 2, 6)};
  c.members[1].load.round_trip_us = 0;
  c.plans = 3;
  c.aborted = 2;
  c.lost = 1;
  c.first_hop = milliseconds(2);
  in.cluster = std::move(c);
  in.streams = 3;
  in.queued_bytes = 4096;
  in.server = {.connections = 5, .accepted = 20, .refused = 1, .active = 2, .requests = 30, .bytes_sent = 9999};
  in.requests = {{{"", 404}, 2}, {{"/health", 200}, 9}, {{"/v1/completions", 0}, 1}};
  in.process = {.cpu_seconds = 1.5,
                .start_seconds = 1764000000.25,
                .resident_bytes = 1 << 20,
                .virtual_bytes = 1 << 21,
                .open_fds = 17,
                .max_fds = 1024};
  return in;
}

constexpr char kMadeUpText[] = R"(# HELP gyre_info The version and the model; always 1.
# TYPE gyre_info gauge
gyre_info{version="9.9",model="demo"} 1
# HELP gyre_requests_total Requests that the engine took.
# TYPE gyre_requests_total counter
gyre_requests_total 12
# HELP gyre_requests_ended_total Requests that ended, by their outcome.
# TYPE gyre_requests_ended_total counter
gyre_requests_ended_total{outcome="finished"} 8
gyre_requests_ended_total{outcome="failed"} 1
gyre_requests_ended_total{outcome="cancelled"} 2
# HELP gyre_tokens_generated_total Tokens that were generated.
# TYPE gyre_tokens_generated_total counter
gyre_tokens_generated_total 80
# HELP gyre_draft_tokens_total Guesses of the next tokens whose rows were computed, by whether the token was drawn.
# TYPE gyre_draft_tokens_total counter
gyre_draft_tokens_total{accepted="true"} 30
gyre_draft_tokens_total{accepted="false"} 20
# HELP gyre_forced_tokens_total Generated tokens that a grammar forced, and that took no answer.
# TYPE gyre_forced_tokens_total counter
gyre_forced_tokens_total 21
# HELP gyre_mask_bytes_total Bytes of grammars' masks that went into the ring.
# TYPE gyre_mask_bytes_total counter
gyre_mask_bytes_total 4096
# HELP gyre_mask_seconds Time that texts waited for a mask which was not known yet.
# TYPE gyre_mask_seconds histogram
gyre_mask_seconds_count 1
gyre_mask_seconds_sum 0.003
gyre_mask_seconds_bucket{le="0.001"} 0
gyre_mask_seconds_bucket{le="0.0025"} 0
gyre_mask_seconds_bucket{le="0.005"} 1
gyre_mask_seconds_bucket{le="0.01"} 1
gyre_mask_seconds_bucket{le="0.025"} 1
gyre_mask_seconds_bucket{le="0.05"} 1
gyre_mask_seconds_bucket{le="0.1"} 1
gyre_mask_seconds_bucket{le="0.25"} 1
gyre_mask_seconds_bucket{le="0.5"} 1
gyre_mask_seconds_bucket{le="1"} 1
gyre_mask_seconds_bucket{le="2.5"} 1
gyre_mask_seconds_bucket{le="5"} 1
gyre_mask_seconds_bucket{le="10"} 1
gyre_mask_seconds_bucket{le="30"} 1
gyre_mask_seconds_bucket{le="60"} 1
gyre_mask_seconds_bucket{le="120"} 1
gyre_mask_seconds_bucket{le="300"} 1
gyre_mask_seconds_bucket{le="600"} 1
gyre_mask_seconds_bucket{le="+Inf"} 1
# HELP gyre_prompt_tokens_total Tokens of the prompts of all requests.
# TYPE gyre_prompt_tokens_total counter
gyre_prompt_tokens_total 300
# HELP gyre_prompt_tokens_computed_total Prompt tokens that were computed; a token that is computed again counts again.
# TYPE gyre_prompt_tokens_computed_total counter
gyre_prompt_tokens_computed_total 270
# HELP gyre_prompt_tokens_cached_total Prompt tokens that the prefix cache had.
# TYPE gyre_prompt_tokens_cached_total counter
gyre_prompt_tokens_cached_total 50
# HELP gyre_time_to_first_token_seconds Time from a request's arrival to its first token.
# TYPE gyre_time_to_first_token_seconds histogram
gyre_time_to_first_token_seconds_count 1
gyre_time_to_first_token_seconds_sum 0.4
gyre_time_to_first_token_seconds_bucket{le="0.001"} 0
gyre_time_to_first_token_seconds_bucket{le="0.0025"} 0
gyre_time_to_first_token_seconds_bucket{le="0.005"} 0
gyre_time_to_first_token_seconds_bucket{le="0.01"} 0
gyre_time_to_first_token_seconds_bucket{le="0.025"} 0
gyre_time_to_first_token_seconds_bucket{le="0.05"} 0
gyre_time_to_first_token_seconds_bucket{le="0.1"} 0
gyre_time_to_first_token_seconds_bucket{le="0.25"} 0
gyre_time_to_first_token_seconds_bucket{le="0.5"} 1
gyre_time_to_first_token_seconds_bucket{le="1"} 1
gyre_time_to_first_token_seconds_bucket{le="2.5"} 1
gyre_time_to_first_token_seconds_bucket{le="5"} 1
gyre_time_to_first_token_seconds_bucket{le="10"} 1
gyre_time_to_first_token_seconds_bucket{le="30"} 1
gyre_time_to_first_token_seconds_bucket{le="60"} 1
gyre_time_to_first_token_seconds_bucket{le="120"} 1
gyre_time_to_first_token_seconds_bucket{le="300"} 1
gyre_time_to_first_token_seconds_bucket{le="600"} 1
gyre_time_to_first_token_seconds_bucket{le="+Inf"} 1
# HELP gyre_inter_token_seconds Time between two tokens of a request.
# TYPE gyre_inter_token_seconds histogram
gyre_inter_token_seconds_count 1
gyre_inter_token_seconds_sum 0.02
gyre_inter_token_seconds_bucket{le="0.001"} 0
gyre_inter_token_seconds_bucket{le="0.0025"} 0
gyre_inter_token_seconds_bucket{le="0.005"} 0
gyre_inter_token_seconds_bucket{le="0.01"} 0
gyre_inter_token_seconds_bucket{le="0.025"} 1
gyre_inter_token_seconds_bucket{le="0.05"} 1
gyre_inter_token_seconds_bucket{le="0.1"} 1
gyre_inter_token_seconds_bucket{le="0.25"} 1
gyre_inter_token_seconds_bucket{le="0.5"} 1
gyre_inter_token_seconds_bucket{le="1"} 1
gyre_inter_token_seconds_bucket{le="2.5"} 1
gyre_inter_token_seconds_bucket{le="5"} 1
gyre_inter_token_seconds_bucket{le="10"} 1
gyre_inter_token_seconds_bucket{le="30"} 1
gyre_inter_token_seconds_bucket{le="60"} 1
gyre_inter_token_seconds_bucket{le="120"} 1
gyre_inter_token_seconds_bucket{le="300"} 1
gyre_inter_token_seconds_bucket{le="600"} 1
gyre_inter_token_seconds_bucket{le="+Inf"} 1
# HELP gyre_queue_seconds Time that requests waited before they first got a place.
# TYPE gyre_queue_seconds histogram
gyre_queue_seconds_count 2
gyre_queue_seconds_sum 3600.001
gyre_queue_seconds_bucket{le="0.001"} 1
gyre_queue_seconds_bucket{le="0.0025"} 1
gyre_queue_seconds_bucket{le="0.005"} 1
gyre_queue_seconds_bucket{le="0.01"} 1
gyre_queue_seconds_bucket{le="0.025"} 1
gyre_queue_seconds_bucket{le="0.05"} 1
gyre_queue_seconds_bucket{le="0.1"} 1
gyre_queue_seconds_bucket{le="0.25"} 1
gyre_queue_seconds_bucket{le="0.5"} 1
gyre_queue_seconds_bucket{le="1"} 1
gyre_queue_seconds_bucket{le="2.5"} 1
gyre_queue_seconds_bucket{le="5"} 1
gyre_queue_seconds_bucket{le="10"} 1
gyre_queue_seconds_bucket{le="30"} 1
gyre_queue_seconds_bucket{le="60"} 1
gyre_queue_seconds_bucket{le="120"} 1
gyre_queue_seconds_bucket{le="300"} 1
gyre_queue_seconds_bucket{le="600"} 1
gyre_queue_seconds_bucket{le="+Inf"} 2
# HELP gyre_request_seconds Time from a request's arrival to its end, of requests that finished.
# TYPE gyre_request_seconds histogram
gyre_request_seconds_count 1
gyre_request_seconds_sum 2.25
gyre_request_seconds_bucket{le="0.001"} 0
gyre_request_seconds_bucket{le="0.0025"} 0
gyre_request_seconds_bucket{le="0.005"} 0
gyre_request_seconds_bucket{le="0.01"} 0
gyre_request_seconds_bucket{le="0.025"} 0
gyre_request_seconds_bucket{le="0.05"} 0
gyre_request_seconds_bucket{le="0.1"} 0
gyre_request_seconds_bucket{le="0.25"} 0
gyre_request_seconds_bucket{le="0.5"} 0
gyre_request_seconds_bucket{le="1"} 0
gyre_request_seconds_bucket{le="2.5"} 1
gyre_request_seconds_bucket{le="5"} 1
gyre_request_seconds_bucket{le="10"} 1
gyre_request_seconds_bucket{le="30"} 1
gyre_request_seconds_bucket{le="60"} 1
gyre_request_seconds_bucket{le="120"} 1
gyre_request_seconds_bucket{le="300"} 1
gyre_request_seconds_bucket{le="600"} 1
gyre_request_seconds_bucket{le="+Inf"} 1
# HELP gyre_sequences Sequences by their state; held ones are counted in prefill or decode too.
# TYPE gyre_sequences gauge
gyre_sequences{state="waiting"} 1
gyre_sequences{state="prefill"} 2
gyre_sequences{state="decode"} 3
gyre_sequences{state="held"} 1
# HELP gyre_kv_blocks KV blocks by their state. Cached blocks hold no running sequence, and are given away when they are needed.
# TYPE gyre_kv_blocks gauge
gyre_kv_blocks{state="used"} 40
gyre_kv_blocks{state="cached"} 20
gyre_kv_blocks{state="free"} 40
# HELP gyre_preemptions_total Sequences that lost their KV blocks to others and began again.
# TYPE gyre_preemptions_total counter
gyre_preemptions_total 4
# HELP gyre_context_shifts_total Full contexts that lost their older tokens, with --context-shift.
# TYPE gyre_context_shifts_total counter
gyre_context_shifts_total 2
# HELP gyre_steps_total Steps that were launched.
# TYPE gyre_steps_total counter
gyre_steps_total 77
# HELP gyre_steps_in_flight Steps that are on their way round the ring.
# TYPE gyre_steps_in_flight gauge
gyre_steps_in_flight 2
# HELP gyre_rows_total Rows that were computed, of prompts and of generated tokens.
# TYPE gyre_rows_total counter
gyre_rows_total 350
# HELP gyre_rows_replayed_total Rows that were computed again after a preemption.
# TYPE gyre_rows_replayed_total counter
gyre_rows_replayed_total 9
# HELP gyre_step_errors_total Steps that a stage could not compute.
# TYPE gyre_step_errors_total counter
gyre_step_errors_total 3
# HELP gyre_rings_lost_total Rings that were lost with a member: all that ran was computed again.
# TYPE gyre_rings_lost_total counter
gyre_rings_lost_total 4
# HELP gyre_last_wait_seconds The time from the last sign of a ring that was lost to the next ring, at the last loss.
# TYPE gyre_last_wait_seconds gauge
gyre_last_wait_seconds 0.25
# HELP gyre_longest_wait_seconds The longest of these times.
# TYPE gyre_longest_wait_seconds gauge
gyre_longest_wait_seconds 1.5
# HELP gyre_poison_requests_total Requests that failed as they were taken to be the cause of lost rings.
# TYPE gyre_poison_requests_total counter
gyre_poison_requests_total 2
# HELP gyre_pauses_total Pauses of the engine while a plan changed.
# TYPE gyre_pauses_total counter
gyre_pauses_total 2
# HELP gyre_last_pause_seconds How long the last pause took.
# TYPE gyre_last_pause_seconds gauge
gyre_last_pause_seconds 0.25
# HELP gyre_longest_pause_seconds How long the longest pause took.
# TYPE gyre_longest_pause_seconds gauge
gyre_longest_pause_seconds 1.5
# HELP gyre_prefix_cache_lookups_total Requests that looked for their prompt in the prefix cache.
# TYPE gyre_prefix_cache_lookups_total counter
gyre_prefix_cache_lookups_total 10
# HELP gyre_prefix_cache_hits_total Requests that found a part of their prompt there.
# TYPE gyre_prefix_cache_hits_total counter
gyre_prefix_cache_hits_total 6
# HELP gyre_prefix_cache_lookup_tokens_total Tokens that were looked for in the prefix cache.
# TYPE gyre_prefix_cache_lookup_tokens_total counter
gyre_prefix_cache_lookup_tokens_total 320
# HELP gyre_longest_decode_gap_steps Most steps for which a decoding sequence that was ready got no row: how far starvation went.
# TYPE gyre_longest_decode_gap_steps gauge
gyre_longest_decode_gap_steps 5
# HELP gyre_integrity_checks_total Checks of the KV bookkeeping.
# TYPE gyre_integrity_checks_total counter
gyre_integrity_checks_total 6
# HELP gyre_integrity_faults_total Checks of the KV bookkeeping that found a fault.
# TYPE gyre_integrity_faults_total counter
gyre_integrity_faults_total 1
# HELP gyre_kv_blocks_leaked_total KV blocks that had leaked and were given back.
# TYPE gyre_kv_blocks_leaked_total counter
gyre_kv_blocks_leaked_total 1
# HELP gyre_serving 1 while a plan serves, else 0.
# TYPE gyre_serving gauge
gyre_serving 1
# HELP gyre_plan_number Number of the plan that serves; 0 = none does.
# TYPE gyre_plan_number gauge
gyre_plan_number 3
# HELP gyre_plans_made_total Plan changes that succeeded.
# TYPE gyre_plans_made_total counter
gyre_plans_made_total 3
# HELP gyre_plans_aborted_total Plan changes that were given up.
# TYPE gyre_plans_aborted_total counter
gyre_plans_aborted_total 2
# HELP gyre_plans_lost_total Plans that were lost with the KV cache of running requests.
# TYPE gyre_plans_lost_total counter
gyre_plans_lost_total 1
# HELP gyre_workers Members of the cluster by their state, this process among them.
# TYPE gyre_workers gauge
gyre_workers{state="serving"} 2
gyre_workers{state="idle"} 0
gyre_workers{state="drained"} 0
gyre_workers{state="left_out"} 0
# HELP gyre_worker_layers Layers that a worker runs.
# TYPE gyre_worker_layers gauge
gyre_worker_layers{worker="a"} 2
gyre_worker_layers{worker="b"} 4
# HELP gyre_worker_busy_ratio Share of the last moments that a worker computed, 0 to 1.
# TYPE gyre_worker_busy_ratio gauge
gyre_worker_busy_ratio{worker="a"} 0.25
gyre_worker_busy_ratio{worker="b"} 0.25
# HELP gyre_worker_steps_total Steps that a worker computed.
# TYPE gyre_worker_steps_total counter
gyre_worker_steps_total{worker="a"} 7
gyre_worker_steps_total{worker="b"} 7
# HELP gyre_worker_busy_seconds_total Time that a worker spent in steps.
# TYPE gyre_worker_busy_seconds_total counter
gyre_worker_busy_seconds_total{worker="a"} 1.5
gyre_worker_busy_seconds_total{worker="b"} 1.5
# HELP gyre_worker_step_seconds Mean time of a worker's last steps; 0 where it ran none.
# TYPE gyre_worker_step_seconds gauge
gyre_worker_step_seconds{worker="a"} 0.0125
gyre_worker_step_seconds{worker="b"} 0.0125
# HELP gyre_worker_step_duration_seconds Time that a worker's steps took to compute.
# TYPE gyre_worker_step_duration_seconds histogram
gyre_worker_step_duration_seconds_count{worker="a"} 1
gyre_worker_step_duration_seconds_sum{worker="a"} 0.02
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.001"} 0
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.0025"} 0
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.005"} 0
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.01"} 0
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.025"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.05"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.1"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.25"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="0.5"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="1"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="2.5"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="5"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="10"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="30"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="60"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="120"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="300"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="600"} 1
gyre_worker_step_duration_seconds_bucket{worker="a",le="+Inf"} 1
gyre_worker_step_duration_seconds_count{worker="b"} 1
gyre_worker_step_duration_seconds_sum{worker="b"} 0.02
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.001"} 0
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.0025"} 0
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.005"} 0
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.01"} 0
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.025"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.05"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.1"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.25"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="0.5"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="1"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="2.5"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="5"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="10"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="30"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="60"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="120"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="300"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="600"} 1
gyre_worker_step_duration_seconds_bucket{worker="b",le="+Inf"} 1
# HELP gyre_worker_weight_bytes Bytes of the weights that a worker has.
# TYPE gyre_worker_weight_bytes gauge
gyre_worker_weight_bytes{worker="a"} 1000
gyre_worker_weight_bytes{worker="b"} 1000
# HELP gyre_worker_kv_bytes Bytes of the KV cache that a worker has.
# TYPE gyre_worker_kv_bytes gauge
gyre_worker_kv_bytes{worker="a"} 2000
gyre_worker_kv_bytes{worker="b"} 2000
# HELP gyre_worker_memory_bytes Bytes that a worker offers for both; 0 = unknown.
# TYPE gyre_worker_memory_bytes gauge
gyre_worker_memory_bytes{worker="a"} 4000
gyre_worker_memory_bytes{worker="b"} 4000
# HELP gyre_worker_weights_room_bytes Room for weights on a worker's disk, in bytes; 0 where it fetches none.
# TYPE gyre_worker_weights_room_bytes gauge
gyre_worker_weights_room_bytes{worker="a"} 9000
gyre_worker_weights_room_bytes{worker="b"} 9000
# HELP gyre_worker_resident_bytes Bytes of a worker's process in physical memory.
# TYPE gyre_worker_resident_bytes gauge
gyre_worker_resident_bytes{worker="a"} 5000
gyre_worker_resident_bytes{worker="b"} 5000
# HELP gyre_worker_replica_bytes Bytes of the replica that a worker keeps of another's KV cache.
# TYPE gyre_worker_replica_bytes gauge
gyre_worker_replica_bytes{worker="a"} 0
gyre_worker_replica_bytes{worker="b"} 0
# HELP gyre_link_rows_total Rows that were sent over a link: token ids to the first stage, activations between stages, answers of the last one.
# TYPE gyre_link_rows_total counter
gyre_link_rows_total{from="coordinator",to="a"} 350
gyre_link_rows_total{from="a",to="b"} 70
gyre_link_rows_total{from="b",to="coordinator"} 30
# HELP gyre_link_bytes_total Bytes of the frames that carried them, and of the last stage's answers.
# TYPE gyre_link_bytes_total counter
gyre_link_bytes_total{from="coordinator",to="a"} 1400
gyre_link_bytes_total{from="a",to="b"} 28000
gyre_link_bytes_total{from="b",to="coordinator"} 900
# HELP gyre_link_round_trip_seconds Round trip of a link between two processes, where it is known.
# TYPE gyre_link_round_trip_seconds gauge
gyre_link_round_trip_seconds{from="coordinator",to="a"} 0.002
gyre_link_round_trip_seconds{from="a",to="b"} 0.00025
# HELP gyre_http_requests_total HTTP requests that ended, by route and status; the status is "none" where the client had gone.
# TYPE gyre_http_requests_total counter
gyre_http_requests_total{route="none",status="404"} 2
gyre_http_requests_total{route="/health",status="200"} 9
gyre_http_requests_total{route="/v1/completions",status="none"} 1
# HELP gyre_http_requests_active HTTP requests without their whole answer.
# TYPE gyre_http_requests_active gauge
gyre_http_requests_active 2
# HELP gyre_http_connections Open HTTP connections.
# TYPE gyre_http_connections gauge
gyre_http_connections 5
# HELP gyre_http_connections_accepted_total HTTP connections that were accepted.
# TYPE gyre_http_connections_accepted_total counter
gyre_http_connections_accepted_total 20
# HELP gyre_http_connections_refused_total HTTP connections that were refused, as there were too many.
# TYPE gyre_http_connections_refused_total counter
gyre_http_connections_refused_total 1
# HELP gyre_http_sent_bytes_total Bytes of answers over HTTP.
# TYPE gyre_http_sent_bytes_total counter
gyre_http_sent_bytes_total 9999
# HELP gyre_streams Streams of events to clients of any kind.
# TYPE gyre_streams gauge
gyre_streams 3
# HELP gyre_stream_queued_bytes Bytes of events that no client has read yet.
# TYPE gyre_stream_queued_bytes gauge
gyre_stream_queued_bytes 4096
# HELP process_cpu_seconds_total CPU time of this process, user and system.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
# HELP process_start_time_seconds When this process started, in seconds since 1970.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1764000000.25
# HELP process_resident_memory_bytes Bytes of this process in physical memory.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1048576
# HELP process_virtual_memory_bytes Bytes of this process's address space.
# TYPE process_virtual_memory_bytes gauge
process_virtual_memory_bytes 2097152
# HELP process_open_fds Open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 17
# HELP process_max_fds File descriptors that may be open.
# TYPE process_max_fds gauge
process_max_fds 1024
)";

TEST(HttpMetricsText, AMadeUpStateAsText) { EXPECT_EQ(MetricsText(MadeUp()), kMadeUpText); }

TEST(HttpMetricsText, NamesFromOutsideStayLabels) {
  MetricsInput in = MadeUp();
  in.model = "a\"b\\\n# HELP x";
  std::vector<MemberStatus>& members = in.cluster->members;
  const std::string lengthy(500, 'x');
  members = {Member("a\"} 1\nb", 0, 2), Member(lengthy + "1", 2, 4), Member(lengthy + "2", 4, 6)};
  const std::string text = MetricsText(in);
  EXPECT_THAT(text, Not(HasSubstr("\nb")));
  EXPECT_THAT(text, Not(HasSubstr("\n# HELP x")));
  EXPECT_THAT(text, HasSubstr("gyre_worker_layers{worker=\"a\\\\x22} 1\\\\x0ab\"} 2"));
  const size_t first = text.find("gyre_worker_layers{worker=\"xxx"),
               second = text.find("gyre_worker_layers{worker=\"xxx", first + 1);
  ASSERT_NE(second, std::string::npos);
  const std::string one = text.substr(first, text.find('\n', first) - first),
                    two = text.substr(second, text.find('\n', second) - second);
  EXPECT_NE(one, two) << "a series that occurs twice makes Prometheus refuse all of them";
  EXPECT_LT(one.size(), 120u);
}

TEST(HttpMetricsText, ManyWorkersHaveNoSamplesOfTheirOwn) {
  MetricsInput in = MadeUp();
  in.cluster->plan.reset();
  in.cluster->members.clear();
  for (size_t i = 0; i < kMetricWorkers + 5; ++i) in.cluster->members.push_back(Member("w" + std::to_string(i), 0, 1));
  const std::string text = MetricsText(in);
  EXPECT_THAT(text, HasSubstr("gyre_workers{state=\"serving\"} 1029\n"));
  EXPECT_THAT(text, HasSubstr("{worker=\"w1023\"}"));
  EXPECT_THAT(text, Not(HasSubstr("{worker=\"w1024\"}")));
  EXPECT_THAT(text, HasSubstr("\ngyre_serving 0\n"));
}

TEST(LatencyHistogramTest, BoundsAreInclusiveAndLongTimesCountInTheSumOnly) {
  LatencyHistogram h;
  h.Add(milliseconds(1));
  h.Add(milliseconds(1) + std::chrono::nanoseconds(1));
  h.Add(-milliseconds(5));  // a clock that went back
  h.Add(std::chrono::seconds(600));
  h.Add(std::chrono::seconds(601));
  EXPECT_EQ(h.buckets.front(), 2u);
  EXPECT_EQ(h.buckets[1], 1u);
  EXPECT_EQ(h.buckets.back(), 1u);
  EXPECT_EQ(h.count, 5u);
  EXPECT_NEAR(h.sum, 1201.002, 1e-6);
}

}  // namespace
}  // namespace gyre::http
