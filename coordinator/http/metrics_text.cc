#include "coordinator/http/metrics_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/service/status_reply.h"
#include "fmt/format.h"
#include "model/quoted.h"
#include "proto/status_json.h"

namespace gyre::http {
namespace {

enum class MetricType { kCounter, kGauge, kHistogram };

struct Label {
  std::string name;
  std::string value;
};
using Labels = std::vector<Label>;

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

std::string_view NameOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter: return "counter";
    case MetricType::kGauge: return "gauge";
    case MetricType::kHistogram: return "histogram";
  }
  return "untyped";
}

// As Prometheus' text format writes numbers.
std::string Written(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// Writes families of samples in Prometheus' text format, in the order in which they come.
class Families {
 public:
  // The samples that follow belong to this family.
  Families& Begin(MetricType type, std::string name, std::string_view help) {
    name_ = std::move(name);
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help, NameOf(type));
    return *this;
  }
  Families& Sample(double value, const Labels& labels = {}) {
    Line("", labels, Written(value));
    return *this;
  }
  void Counter(std::string name, std::string_view help, double value) {
    Begin(MetricType::kCounter, std::move(name), help).Sample(value);
  }
  void Gauge(std::string name, std::string_view help, double value) {
    Begin(MetricType::kGauge, std::move(name), help).Sample(value);
  }
  void Histogram(std::string name, std::string_view help, const LatencyHistogram& h) {
    Begin(MetricType::kHistogram, std::move(name), help).Sample(h);
  }
  void Sample(const LatencyHistogram& h, Labels labels = {}) {
    Line("_count", labels, fmt::to_string(h.count));
    Line("_sum", labels, Written(h.sum));
    uint64_t below = 0;
    labels.push_back({.name = "le", .value = {}});
    for (size_t i = 0; i < h.buckets.size(); ++i) {
      below += h.buckets[i];
      labels.back().value = Written(LatencyHistogram::kBounds[i]);
      Line("_bucket", labels, fmt::to_string(below));
    }
    labels.back().value = "+Inf";
    Line("_bucket", labels, fmt::to_string(h.count));
  }
  std::string Text() && { return std::move(text_); }

 private:
  void Line(std::string_view suffix, const Labels& labels, std::string_view value) {
    text_.append(name_).append(suffix);
    char before = '{';
    for (const Label& label : labels) {
      text_.append(1, before).append(label.name).append("=\"");
      for (const char c : label.value) {
        if (c == '\n') {
          text_.append("\\n");
          continue;
        }
        if (c == '\\' || c == '"') text_.push_back('\\');
        text_.push_back(c);
      }
      text_.push_back('"');
      before = ',';
    }
    if (!labels.empty()) text_.push_back('}');
    text_.append(1, ' ').append(value).append(1, '\n');
  }

  std::string name_;
  std::string text_;
};

double Number(uint64_t n) { return static_cast<double>(n); }

void AddRequestCounts(const EngineStats& e, Families* f) {
  f->Counter("gyre_requests_total", "Requests that the engine took.", Number(e.requests));
  f->Begin(MetricType::kCounter, "gyre_requests_ended_total", "Requests that ended, by their outcome.")
      .Sample(Number(e.finished), {{"outcome", "finished"}})
      .Sample(Number(e.failed), {{"outcome", "failed"}})
      .Sample(Number(e.cancelled), {{"outcome", "cancelled"}});
  f->Counter("gyre_tokens_generated_total", "Tokens that were generated.", Number(e.tokens_generated));
  f->Begin(MetricType::kCounter, "gyre_draft_tokens_total",
           "Guesses of the next tokens whose rows were computed, by whether the token was drawn.")
      .Sample(Number(e.accepted_drafts), {{"accepted", "true"}})
      .Sample(Number(e.drafted_tokens - e.accepted_drafts), {{"accepted", "false"}});
  f->Counter("gyre_forced_tokens_total", "Generated tokens that a grammar forced, and that took no answer.",
             Number(e.forced_tokens));
  f->Counter("gyre_mask_bytes_total", "Bytes of grammars' masks that went into the ring.", Number(e.mask_bytes_sent));
  f->Histogram("gyre_mask_seconds", "Time that texts waited for a mask which was not known yet.", e.mask_time);
  f->Counter("gyre_prompt_tokens_total", "Tokens of the prompts of all requests.", Number(e.prompt_tokens));
  f->Counter("gyre_prompt_tokens_computed_total",
             "Prompt tokens that were computed; a token that is computed again counts again.", Number(e.prompt_rows));
  f->Counter("gyre_prompt_tokens_cached_total", "Prompt tokens that the prefix cache had.",
             Number(e.scheduler.cached_positions));
  f->Histogram("gyre_time_to_first_token_seconds", "Time from a request's arrival to its first token.",
               e.to_first_token);
  f->Histogram("gyre_inter_token_seconds", "Time between two tokens of a request.", e.between_tokens);
  f->Histogram("gyre_queue_seconds", "Time that requests waited before they first got a place.",
               e.scheduler.queue_wait);
  f->Histogram("gyre_request_seconds", "Time from a request's arrival to its end, of requests that finished.",
               e.request_time);
}

void AddScheduler(const EngineStats& e, Families* f) {
  const SchedulerStats& s = e.scheduler;
  f->Begin(MetricType::kGauge, "gyre_sequences",
           "Sequences by their state; held ones are counted in prefill or decode too.")
      .Sample(s.waiting, {{"state", "waiting"}})
      .Sample(s.prefill, {{"state", "prefill"}})
      .Sample(s.decode, {{"state", "decode"}})
      .Sample(s.held, {{"state", "held"}});
  for (size_t group = 0; group < kKvKinds.size(); ++group) {
    const UnitStats& of = s.memory[group];
    if (of.units == 0 && group != kPageGroup) continue;  // the model has none
    const uint32_t kept = std::min(of.kept, of.available);
    f->Begin(MetricType::kGauge, fmt::format("gyre_kv_{}", kKvKinds[group].name), kKvKinds[group].help)
        .Sample(of.units - std::min(of.available, of.units), {{"state", "used"}})
        .Sample(kept, {{"state", "cached"}})
        .Sample(of.available - kept, {{"state", "free"}});
  }
  f->Counter("gyre_preemptions_total", "Sequences that lost their KV blocks to others and began again.",
             Number(s.preemptions));
  f->Counter("gyre_context_shifts_total", "Full contexts that lost their older tokens, with --context-shift.",
             Number(e.context_shifts));
  f->Counter("gyre_steps_total", "Steps that were launched.", Number(s.steps));
  f->Gauge("gyre_steps_in_flight", "Steps that are on their way round the ring.", s.in_flight);
  f->Counter("gyre_rows_total", "Rows that were computed, of prompts and of generated tokens.",
             Number(s.computed_rows));
  f->Counter("gyre_rows_replayed_total", "Rows that were computed again after a preemption.", Number(s.replayed_rows));
  f->Counter("gyre_step_errors_total", "Steps that a stage could not compute.", Number(e.step_errors));
  f->Counter("gyre_rings_lost_total", "Rings that were lost with a member: all that ran was computed again.",
             Number(e.rings_lost));
  f->Gauge("gyre_last_wait_seconds",
           "The time from the last sign of a ring that was lost to the next ring, at the last loss.",
           Seconds(e.last_wait));
  f->Gauge("gyre_longest_wait_seconds", "The longest of these times.", Seconds(e.longest_wait));
  f->Counter("gyre_poison_requests_total", "Requests that failed as they were taken to be the cause of lost rings.",
             Number(e.poison_requests));
  f->Counter("gyre_pauses_total", "Pauses of the engine while a plan changed.", Number(e.pauses));
  f->Gauge("gyre_last_pause_seconds", "How long the last pause took.", Seconds(e.last_pause));
  f->Gauge("gyre_longest_pause_seconds", "How long the longest pause took.", Seconds(e.longest_pause));
  f->Counter("gyre_prefix_cache_lookups_total", "Requests that looked for their prompt in the prefix cache.",
             Number(s.cache_lookups));
  f->Counter("gyre_prefix_cache_hits_total", "Requests that found a part of their prompt there.", Number(s.cache_hits));
  f->Counter("gyre_prefix_cache_lookup_tokens_total", "Tokens that were looked for in the prefix cache.",
             Number(s.cache_lookup_tokens));
  f->Gauge("gyre_longest_decode_gap_steps",
           "Most steps for which a decoding sequence that was ready got no row: how far starvation went.",
           Number(s.longest_decode_gap));
  f->Counter("gyre_integrity_checks_total", "Checks of the KV bookkeeping.", Number(e.integrity_checks));
  f->Counter("gyre_integrity_faults_total", "Checks of the KV bookkeeping that found a fault.",
             Number(e.integrity_faults));
  f->Counter("gyre_kv_blocks_leaked_total", "KV blocks that had leaked and were given back.", Number(s.leaked_blocks));
}

// Label values for names from outside: printable, short, and different for different names.
class LabelValues {
 public:
  std::string Of(const std::string& name) {
    const std::string base = Printable(name);
    std::string value = base;
    for (int i = 2; !used_.insert(value).second; ++i) value = fmt::format("{}-{}", base, i);
    return value;
  }

 private:
  std::set<std::string> used_;
};

struct Worker {
  const MemberStatus* status;
  std::string label;
};

void AddWorkers(const std::vector<Worker>& workers, Families* f) {
  auto each = [&](MetricType type, const char* name, const char* help, auto value) {
    f->Begin(type, name, help);
    for (const Worker& w : workers) f->Sample(value(*w.status), {{"worker", w.label}});
  };
  using M = const MemberStatus&;
  each(MetricType::kGauge, "gyre_worker_layers", "Layers that a worker runs.",
       [](M m) { return m.layers ? static_cast<double>(m.layers->end - m.layers->begin) : 0.0; });
  each(MetricType::kGauge, "gyre_worker_busy_ratio", "Share of the last moments that a worker computed, 0 to 1.",
       [](M m) { return m.load.busy; });
  each(MetricType::kCounter, "gyre_worker_steps_total", "Steps that a worker computed.",
       [](M m) { return Number(m.load.steps); });
  each(MetricType::kCounter, "gyre_worker_busy_seconds_total", "Time that a worker spent in steps.",
       [](M m) { return Number(m.load.busy_us) / 1e6; });
  each(MetricType::kGauge, "gyre_worker_step_seconds", "Mean time of a worker's last steps; 0 where it ran none.",
       [](M m) { return m.rates.step_ms / 1e3; });
  f->Begin(MetricType::kHistogram, "gyre_worker_step_duration_seconds", "Time that a worker's steps took to compute.");
  for (const Worker& w : workers) f->Sample(w.status->load.step_times, {{"worker", w.label}});
  each(MetricType::kGauge, "gyre_worker_weight_bytes", "Bytes of the weights that a worker has.",
       [](M m) { return Number(m.weight_bytes); });
  each(MetricType::kGauge, "gyre_worker_kv_bytes", "Bytes of the KV cache that a worker has.",
       [](M m) { return Number(m.kv_bytes); });
  each(MetricType::kGauge, "gyre_worker_memory_bytes", "Bytes that a worker offers for both; 0 = unknown.",
       [](M m) { return Number(m.info.memory); });
  each(MetricType::kGauge, "gyre_worker_weights_room_bytes",
       "Room for weights on a worker's disk, in bytes; 0 where it fetches none.",
       [](M m) { return Number(m.info.disk); });
  each(MetricType::kGauge, "gyre_worker_resident_bytes", "Bytes of a worker's process in physical memory.",
       [](M m) { return Number(m.load.resident_bytes); });
  each(MetricType::kGauge, "gyre_worker_replica_bytes",
       "Bytes of the replica that a worker keeps of another's KV cache.",
       [](M m) { return Number(m.load.replicated_bytes); });
}

void AddLinks(const ClusterStatus& c, const EngineStats& e, const std::vector<Worker>& workers, Families* f) {
  constexpr char kCoordinator[] = "coordinator";
  if (!c.plan) return;
  auto label = [&](const std::string& name) {
    for (const Worker& w : workers) {
      if (w.status->info.name == name) return w.label;
    }
    return Printable(name);
  };
  struct Sender {
    const MemberLoad* load;
    Labels labels;
    bool last = false;
  };
  Labels first_hop;
  if (!c.plan->stages.empty()) {
    first_hop = {{"from", kCoordinator}, {"to", label(c.plan->stages.front().worker())}};
  }
  std::vector<Sender> senders;
  for (const Worker& w : workers) {
    const int stage = c.plan->StageOf(w.status->info.name);
    if (stage < 0) continue;
    const auto next = static_cast<size_t>(stage) + 1;
    const bool last = next == c.plan->stages.size();
    const std::string to = last ? kCoordinator : label(c.plan->stages[next].worker());
    senders.push_back({&w.status->load, {{"from", w.label}, {"to", to}}, last});
  }
  f->Begin(MetricType::kCounter, "gyre_link_rows_total",
           "Rows that were sent over a link: token ids to the first stage, activations between stages, answers of the "
           "last one.");
  if (!first_hop.empty()) f->Sample(Number(e.scheduler.computed_rows), first_hop);
  for (const Sender& s : senders) {
    f->Sample(Number(s.last ? s.load->answers_sent : s.load->rows_sent), s.labels);
  }
  f->Begin(MetricType::kCounter, "gyre_link_bytes_total",
           "Bytes of the frames that carried them, and of the last stage's answers.");
  if (!first_hop.empty()) f->Sample(Number(e.step_bytes_sent), first_hop);
  for (const Sender& s : senders) {
    f->Sample(Number(s.last ? s.load->answer_bytes_sent : s.load->row_bytes_sent), s.labels);
  }
  f->Begin(MetricType::kGauge, "gyre_link_round_trip_seconds",
           "Round trip of a link between two processes, where it is known.");
  if (c.first_hop && !first_hop.empty()) f->Sample(Seconds(*c.first_hop), first_hop);
  for (const Sender& s : senders) {
    if (s.load->round_trip_us > 0) f->Sample(Number(s.load->round_trip_us) / 1e6, s.labels);
  }
}

void AddCluster(const ClusterStatus& c, const EngineStats& e, Families* f) {
  f->Gauge("gyre_serving", "1 while a plan serves, else 0.", c.plan ? 1 : 0);
  f->Gauge("gyre_plan_number", "Number of the plan that serves; 0 = none does.",
           c.plan ? Number(c.plan->epoch.number) : 0);
  f->Counter("gyre_plans_made_total", "Plan changes that succeeded.", Number(c.plans));
  f->Counter("gyre_plans_aborted_total", "Plan changes that were given up.", Number(c.aborted));
  f->Counter("gyre_plans_lost_total", "Plans that were lost with the KV cache of running requests.", Number(c.lost));
  constexpr std::array<const char*, 4> kStates = {"serving", "idle", "drained", "left_out"};
  std::array<double, kStates.size()> counts{};
  std::vector<Worker> workers;
  LabelValues labels;
  for (const MemberStatus& m : c.members) {
    v1::MemberStatus filled;
    FillMember(m, &filled);
    const std::string_view state = MemberState(filled);
    for (size_t i = 0; i < kStates.size(); ++i) counts[i] += state == kStates[i] ? 1 : 0;
    if (workers.size() < kMetricWorkers) workers.push_back({&m, labels.Of(m.info.name)});
  }
  f->Begin(MetricType::kGauge, "gyre_workers", "Members of the cluster by their state, this process among them.");
  for (size_t i = 0; i < kStates.size(); ++i) f->Sample(counts[i], {{"state", kStates[i]}});
  AddWorkers(workers, f);
  AddLinks(c, e, workers, f);
}

void AddHttp(const MetricsInput& in, Families* f) {
  f->Begin(MetricType::kCounter, "gyre_http_requests_total",
           "HTTP requests that ended, by route and status; the status is \"none\" where the client had gone.");
  for (const auto& [key, count] : in.requests) {
    const auto& [route, status] = key;
    f->Sample(Number(count),
              {{"route", route.empty() ? "none" : route}, {"status", status == 0 ? "none" : std::to_string(status)}});
  }
  f->Gauge("gyre_http_requests_active", "HTTP requests without their whole answer.", Number(in.server.active));
  f->Gauge("gyre_http_connections", "Open HTTP connections.", Number(in.server.connections));
  f->Counter("gyre_http_connections_accepted_total", "HTTP connections that were accepted.",
             Number(in.server.accepted));
  f->Counter("gyre_http_connections_refused_total", "HTTP connections that were refused, as there were too many.",
             Number(in.server.refused));
  f->Counter("gyre_http_sent_bytes_total", "Bytes of answers over HTTP.", Number(in.server.bytes_sent));
  f->Gauge("gyre_streams", "Streams of events to clients of any kind.", Number(in.streams));
  f->Gauge("gyre_stream_queued_bytes", "Bytes of events that no client has read yet.", Number(in.queued_bytes));
}

void AddProcess(const ProcessStats& p, Families* f) {
  f->Counter("process_cpu_seconds_total", "CPU time of this process, user and system.", p.cpu_seconds);
  f->Gauge("process_start_time_seconds", "When this process started, in seconds since 1970.", p.start_seconds);
  f->Gauge("process_resident_memory_bytes", "Bytes of this process in physical memory.", Number(p.resident_bytes));
  f->Gauge("process_virtual_memory_bytes", "Bytes of this process's address space.", Number(p.virtual_bytes));
  f->Gauge("process_open_fds", "Open file descriptors.", Number(p.open_fds));
  f->Gauge("process_max_fds", "File descriptors that may be open.", Number(p.max_fds));
}

}  // namespace

std::string MetricsText(const MetricsInput& in) {
  Families f;
  f.Begin(MetricType::kGauge, "gyre_info", "The version and the model; always 1.")
      .Sample(1, {{"version", in.version}, {"model", Printable(in.model)}});
  AddRequestCounts(in.engine, &f);
  AddScheduler(in.engine, &f);
  if (in.cluster) AddCluster(*in.cluster, in.engine, &f);
  AddHttp(in, &f);
  AddProcess(in.process, &f);
  return std::move(f).Text();
}

}  // namespace gyre::http
