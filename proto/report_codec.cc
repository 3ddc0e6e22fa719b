#include "proto/report_codec.h"

#include <algorithm>
#include <cmath>

#include "base/transport.h"
#include "identity/principal.h"
#include "proto/codec_parts.h"
#include "proto/convert.h"

namespace gyre {
namespace {

uint64_t NanosOf(Duration d) { return static_cast<uint64_t>(std::chrono::nanoseconds(d).count()); }

// No histogram at all where the counts are not valid: too many buckets, or a sum that is no finite number.
LatencyHistogram DecodeStepTimes(const v1::Heartbeat& h) {
  constexpr uint64_t kMost = uint64_t{1} << 53;  // of a bucket; Prometheus counts in doubles
  LatencyHistogram out;
  if (h.step_buckets_size() > static_cast<int>(out.buckets.size()) + 1 || !std::isfinite(h.step_seconds())) return {};
  for (int i = 0; i < h.step_buckets_size(); ++i) {
    const uint64_t n = std::min(h.step_buckets(i), kMost);
    if (i < static_cast<int>(out.buckets.size())) out.buckets[static_cast<size_t>(i)] = n;
    out.count += n;
  }
  out.sum = std::max(0.0, h.step_seconds());
  return out;
}

void EncodeStepTimes(const LatencyHistogram& times, v1::Heartbeat* out) {
  uint64_t longer = times.count;
  for (uint64_t n : times.buckets) {
    out->add_step_buckets(n);
    longer -= n;
  }
  out->add_step_buckets(longer);
  int used = out->step_buckets_size();
  while (used > 0 && out->step_buckets(used - 1) == 0) --used;
  out->mutable_step_buckets()->Truncate(used);
  out->set_step_seconds(times.sum);
}

}  // namespace

constexpr size_t kMaxFailure = 500;
constexpr uint64_t kMaxMicros = uint64_t{1} << 46;  // years: a longer time would not fit a Duration

void EncodeLoad(const MemberLoad& load, v1::Heartbeat* out) {
  out->set_busy(load.busy);
  out->set_steps(load.steps);
  out->set_resident_bytes(load.resident_bytes);
  out->set_busy_us(load.busy_us);
  out->set_rows_sent(load.rows_sent);
  out->set_row_bytes_sent(load.row_bytes_sent);
  out->set_round_trip_us(load.round_trip_us);
  out->set_transport(static_cast<uint32_t>(load.transport));
  out->set_answers_sent(load.answers_sent);
  out->set_answer_bytes_sent(load.answer_bytes_sent);
  out->set_in_layer_us(load.in_layer_us);
  out->set_layer_estimate_us(load.layer_estimate_us);
  out->set_plan(load.plan);
  out->set_step_taken(load.step_taken);
  out->set_bytes_received(load.bytes_received);
  out->set_in_step(load.in_step);
  out->set_sending(load.sending);
  out->set_unanswered_us(load.unanswered_us);
  out->set_replicated_plan(load.replicated_plan);
  if (load.replicated_step) out->set_replicated_step(*load.replicated_step);
  out->set_replicated_pages(load.replicated_pages);
  out->set_replicated_bytes(load.replicated_bytes);
  out->set_disk_bytes(load.weights_room);
  EncodeStepTimes(load.step_times, out);
}

MemberLoad DecodeLoad(const v1::Heartbeat& h) {
  return {.busy = h.busy() > 0 ? std::min(h.busy(), 1.0) : 0,  // not a number counts as 0
          .steps = h.steps(),
          .resident_bytes = h.resident_bytes(),
          .busy_us = h.busy_us(),
          .rows_sent = h.rows_sent(),
          .row_bytes_sent = h.row_bytes_sent(),
          .round_trip_us = h.round_trip_us(),
          .answers_sent = h.answers_sent(),
          .answer_bytes_sent = h.answer_bytes_sent(),
          .step_times = DecodeStepTimes(h),
          .transport = h.transport() <= 0xFF && IsTransport(static_cast<Transport>(h.transport()))
                           ? static_cast<Transport>(h.transport())
                           : Transport::kAuto,
          .in_layer_us = std::min<uint64_t>(h.in_layer_us(), kMaxMicros),
          .layer_estimate_us = std::min<uint64_t>(h.layer_estimate_us(), kMaxMicros),
          .plan = h.plan(),
          .step_taken = h.step_taken(),
          .bytes_received = h.bytes_received(),
          .in_step = h.in_step(),
          .sending = h.sending(),
          .unanswered_us = std::min<uint64_t>(h.unanswered_us(), kMaxMicros),
          .replicated_plan = h.replicated_plan(),
          .replicated_step = h.has_replicated_step() ? std::optional(h.replicated_step()) : std::nullopt,
          .replicated_pages = h.replicated_pages(),
          .replicated_bytes = h.replicated_bytes(),
          .weights_room = h.disk_bytes()};
}

void EncodeTrace(const StageTrace& t, v1::Traced* out) {
  out->set_asked_ns(NanosOf(t.asked));
  out->set_answered_ns(NanosOf(t.answered));
  for (const StageSpan& s : t.spans) {
    v1::StageSpan* span = out->add_spans();
    span->set_step(s.step);
    span->set_stage(s.stage);
    span->set_last(s.last);
    span->set_rows(s.rows);
    span->set_began_ns(NanosOf(t.answered - s.began));
    span->set_computed_ns(NanosOf(s.computed));
    span->set_sent_ns(NanosOf(s.sent));
  }
}

StatusOr<StageTrace> DecodeTrace(const v1::Traced& t) {
  if (t.spans_size() > static_cast<int>(kMaxTraceSpans)) {
    return InvalidArgument("a trace of {} steps, at most {} are taken", t.spans_size(), kMaxTraceSpans);
  }
  // This is longer than any process runs, and no sum of such times overflows.
  static constexpr uint64_t kLongest = uint64_t{1} << 61;
  const auto time = [](uint64_t ns) { return std::chrono::nanoseconds(static_cast<int64_t>(std::min(ns, kLongest))); };
  StageTrace out{.asked = Deadline(time(t.asked_ns())), .answered = Deadline(time(t.answered_ns())), .spans = {}};
  for (const v1::StageSpan& s : t.spans()) {
    out.spans.push_back({.step = s.step(),
                         .stage = s.stage(),
                         .rows = s.rows(),
                         .last = s.last(),
                         .began = out.answered - time(s.began_ns()),
                         .computed = time(s.computed_ns()),
                         .sent = time(s.sent_ns())});
  }
  return out;
}

void EncodeProbed(const StageProbed& probed, v1::Probed* out) {
  for (const LinkSpeed& l : probed.links) {
    v1::LinkSpeed* link = out->add_links();
    link->set_to(l.to);
    link->set_failure(CutUtf8(l.failure, kMaxFailure - 3));
    link->set_round_trip_us(l.round_trip_us);
    link->set_bytes_per_second(l.bytes_per_second);
  }
}

StatusOr<StageProbed> DecodeProbed(const v1::Probed& probed) {
  if (probed.links_size() > static_cast<int>(kMaxLinkSpeeds)) {
    return InvalidArgument("the speeds of {} links, at most {} are taken", probed.links_size(), kMaxLinkSpeeds);
  }
  StageProbed out;
  for (const v1::LinkSpeed& l : probed.links()) {
    GYRE_RETURN_IF_ERROR(CheckName(l.to()));
    out.links.push_back({.to = l.to(),
                         .failure = CutUtf8(l.failure(), kMaxFailure),
                         .round_trip_us = std::min(l.round_trip_us(), kMaxMicros),
                         .bytes_per_second = Rate(l.bytes_per_second())});
  }
  return out;
}

}  // namespace gyre
