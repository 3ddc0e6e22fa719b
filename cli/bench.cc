// gyre bench: a model's speed here, beside this machine's measured limits.
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>

#include "base/cpus.h"
#include "base/inbox.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/libraries.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "limits/machine_limits.h"
#include "model/tensor_table.h"
#include "runtime/devices.h"
#include "runtime/measure.h"
#include "runtime/runtime.h"

namespace gyre {
namespace {

namespace json = boost::json;
using bench::Median;
using bench::Seconds;

// The test of one line.
struct Point {
  std::string test;  // "prefill" or "decode"
  uint32_t tokens = 0, streams = 1, depth = 0;
};

struct Result {
  Point point;
  std::vector<double> rates;   // tokens/s, one a run
  std::vector<double> shares;  // of the limit measured in the same round
  double bytes = 0;            // of weights and KV cache that a decode step reads
};

// The multiplications and additions with the layers' weights for one row.
double OpsPerRow(const ModelSpec& spec) {
  double ops = 0;
  for (const LayerSpec& l : spec.layers) {
    for (const TensorRow& t : LayerTensors(l, spec.dim)) {
      if (t.form == TensorForm::kVector) continue;
      const double times = t.form == TensorForm::kExperts ? l.experts()->used : 1;
      ops += 2.0 * times * static_cast<double>(t.dims[0]) * static_cast<double>(t.dims[1]);
    }
  }
  return ops;
}

struct Times {
  double first = 0;     // seconds until every stream had its first token
  double window = 0;    // from then until the first stream ended
  uint64_t tokens = 0;  // of all streams within it
};

// Runs `streams` requests at once, to their ends.
StatusOr<Times> Measure(Engine& engine, uint32_t streams, int prompt, uint32_t n, int vocab, int salt) {
  struct Arrival {
    SeqId seq;
    Deadline at;
    Event event;
  };
  auto events = std::make_shared<Inbox<Arrival>>();
  const Deadline begin = Clock::now();
  std::vector<SeqId> running;
  Status failed;
  auto cancel = [&] {
    for (SeqId seq : running) engine.Cancel(seq);
  };
  for (uint32_t s = 0; s < streams; ++s) {
    auto seq = engine.Submit(bench::Continue(prompt, n, vocab, salt + static_cast<int>(s)),
                             [events](SeqId id, const Event& e) {
                               events->Push({id, Clock::now(), e});
                             });
    if (!seq.ok()) {
      failed = seq.status();
      break;
    }
    running.push_back(*seq);
  }
  if (!failed.ok()) cancel();
  std::vector<SeqId> begun;
  Deadline all_begun{}, first_end{};
  Times t;
  bool interrupted = false;
  for (size_t left = running.size(); left > 0;) {
    std::optional<Arrival> a = events->Pop(After(std::chrono::milliseconds(50)));
    if (InterruptGuard::Interrupted() && !interrupted) {
      interrupted = true;
      cancel();
    }
    if (!a) continue;
    if (std::holds_alternative<TokenEvent>(a->event)) {
      if (begun.size() == streams && first_end == Deadline{}) ++t.tokens;
      if (std::find(begun.begin(), begun.end(), a->seq) == begun.end()) {
        begun.push_back(a->seq);
        all_begun = a->at;
      }
      continue;
    }
    if (std::holds_alternative<LogitsEvent>(a->event)) continue;
    if (const auto* f = std::get_if<Failed>(&a->event); f != nullptr && failed.ok()) {
      failed = f->status;
      cancel();
    }
    if (first_end == Deadline{}) first_end = a->at;
    --left;
  }
  if (interrupted) return InterruptGuard::Stopped();
  GYRE_RETURN_IF_ERROR(failed);
  t.first = Seconds(all_begun - begin);
  t.window = Seconds(first_end - all_begun);
  return t;
}

class ModelBench {
 public:
  ModelBench(const BenchOptions& options, const std::string& model) : options_(options), ring_options_(options.ring) {
    ring_options_.model = model;
    uint32_t longest = options.prompt, streams = 1;
    for (uint32_t d : options.depths) longest = std::max(longest, std::max(d, kShort));
    for (uint32_t s : options.streams) streams = std::max(streams, s);
    if (ring_options_.ctx == 0) ring_options_.ctx = longest + options.tokens + 1;
    // No request may have to wait for a place.
    if (ring_options_.max_sequences == 0) ring_options_.max_sequences = std::max(64u, streams);
    // Each stream gets whole blocks and one to spare, so that none is preempted.
    const uint64_t block = ring_options_.block_size;
    if (ring_options_.kv_tokens == 0)
      ring_options_.kv_tokens = streams * ((ring_options_.ctx + block - 1) / block + 1) * block;
  }

  StatusOr<std::vector<Result>> Run() {
    GYRE_RETURN_IF_ERROR(UseOneAdapter(&ring_options_));
    LoadingBar bar(ring_options_.quiet);
    ring_options_.on_load = bar.callback();
    auto opened = Runtime::Open(ring_options_);
    bar.Finish();
    GYRE_ASSIGN_OR_RETURN(ring_, std::move(opened));
    InterruptGuard::Begin();
    GYRE_ASSIGN_OR_RETURN(isa_, ParseIsa(ring_options_.isa));
    GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(ring_options_.threads, ring_options_.cpus));
    threads_ = team.threads;
    std::vector<Result> results;
    if (options_.prompt > 0) results.push_back({.point = {"prefill", options_.prompt}});
    for (uint32_t depth : options_.depths) {
      for (uint32_t streams : options_.streams) {
        if (options_.tokens > 0) results.push_back({.point = {"decode", options_.tokens, streams, depth}});
      }
    }
    // Each round measures all points, so that other load on this machine does not affect one alone; the first warms up.
    for (int run = 0; run <= options_.runs; ++run) {
      if (run > 0 && options_.tokens > 0) bandwidth_ = bench::ReadBandwidth(threads_);
      for (Result& r : results) GYRE_RETURN_IF_ERROR(r.point.test == "prefill" ? Prefill(run, &r) : Decode(run, &r));
    }
    return results;
  }

  const Runtime& ring() const { return *ring_; }
  Isa isa() const { return isa_; }
  int threads() const { return threads_; }
  uint32_t max_sequences() const { return ring_options_.max_sequences; }

 private:
  static constexpr uint32_t kShort = 8;  // prompt of a decode at depth 0

  Status Prefill(int run, Result* r) {
    // Each run has another prompt, so that none is in the prefix cache.
    GYRE_ASSIGN_OR_RETURN(const Times t, Measure(ring_->engine(), 1, static_cast<int>(r->point.tokens), 1,
                                                 ring_->model().spec().vocab, 100000 + run));
    if (run == 0) return absl::OkStatus();
    const double limit =
        bench::PeakOps(isa_,
                       bench::UnitOf(isa_, ring_options_.exact ? Arithmetic::kExact : Arithmetic::kPrefill,
                                     ring_->model().float_weights()),
                       threads_);
    const double rate = r->point.tokens / t.first;
    r->rates.push_back(rate);
    r->shares.push_back(limit > 0 ? rate * OpsPerRow(ring_->model().spec()) / limit : 0);
    return absl::OkStatus();
  }

  Status Decode(int run, Result* r) {
    const Point& p = r->point;
    const uint32_t prompt = std::max(p.depth, kShort);
    // Each run has the same prompts: from the second run on they come from the prefix cache, where it is on.
    Times t;
    // On a busy machine the thread that submits may be delayed until short streams have ended: then the run repeats.
    for (int attempt = 0; attempt < 10 && !(t.window > 0 && t.tokens > 0); ++attempt) {
      GYRE_ASSIGN_OR_RETURN(t, Measure(ring_->engine(), p.streams, static_cast<int>(prompt), p.tokens + 1,
                                       ring_->model().spec().vocab, static_cast<int>(p.depth)));
      if (run == 0) return absl::OkStatus();
    }
    if (!(t.window > 0) || t.tokens == 0) {
      return FailedPrecondition(
          "{} streams of {} tokens after {} positions never decode all at once: the first ends before the last begins; "
          "more -n, more --max-sequences, or the prefix cache",
          p.streams, p.tokens, prompt);
    }
    const double rate = static_cast<double>(t.tokens) / t.window;
    double bytes = WeightBytesPerStep(p.streams);
    double kv = 0;
    for (const LayerSpec& l : ring_->model().spec().layers) {
      const AttentionSpec* a = l.attention();
      const double seen = a != nullptr && a->window > 0 ? std::min<double>(a->window, prompt) : prompt;
      kv += static_cast<double>(
                KvBytes(ParseKvType(ring_options_.kv_type).value_or(KvType::kF16), ModelSpec::KvElems(l))) *
            seen;
      // Recurrent state; what is written back does not count.
      kv += static_cast<double>(ModelSpec::StateOf(l, ring_->model().spec().dim).floats() * sizeof(float));
    }
    bytes += kv * p.streams;
    r->bytes = bytes;
    r->rates.push_back(rate);
    r->shares.push_back(rate / p.streams * bytes / bandwidth_);
    return absl::OkStatus();
  }

  // Each row reads at most `used` experts; together the rows read no more than there are.
  double WeightBytesPerStep(uint32_t rows) const {
    double bytes = 0, experts = 0, read = 0;
    for (const auto& w : ring_->workers()) bytes += static_cast<double>(w->weight_bytes());
    for (const auto& [name, tensor] : ring_->model().tensors().all()) {
      if (name.find("_exps.") != std::string::npos) experts += static_cast<double>(tensor.bytes);
    }
    for (const LayerSpec& l : ring_->model().spec().layers) {
      if (const ExpertSpec* e = l.experts()) read = std::min(1.0, static_cast<double>(e->used) * rows / e->count);
    }
    return bytes - experts * (1 - read);
  }

  const BenchOptions& options_;
  RuntimeOptions ring_options_;
  std::unique_ptr<Runtime> ring_;
  Isa isa_ = Isa::kRef;
  int threads_ = 1;
  double bandwidth_ = 0;  // of this round, bytes/s
};

// The limit of the speed. "caches": a step's weights and KV cache fit into the last-level cache, or come faster than
// memory delivers them; then the share of memory reads says nothing.
std::string LimitOf(const Result& r, double share) {
  if (r.point.test == "prefill") return "arithmetic";
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return share > 1 || (cache > 0 && r.bytes < static_cast<double>(cache)) ? "caches" : "memory";
}

std::string DescribeShare(const std::string& limit, double share) {
  if (limit == "caches") return "reads from caches";
  if (!(share > 0)) return "";
  return fmt::format("{:3.0f}% of {:<12}", 100 * share, limit == "memory" ? "memory reads" : limit);
}

std::string BaseName(const std::string& path) {
  const std::string trimmed = path.substr(0, path.find_last_not_of('/') + 1);
  return trimmed.substr(trimmed.rfind('/') + 1);
}

// The rate of an earlier run at the same point; 0 = none.
double Before(const json::array& results, const std::string& model, const Point& p) {
  for (const json::value& v : results) {
    const json::object* o = v.if_object();
    auto text = [&](const char* key) {
      const json::value* at = o == nullptr ? nullptr : o->if_contains(key);
      return at != nullptr && at->is_string() ? std::string(at->get_string()) : std::string();
    };
    auto number = [&](const char* key) {
      const json::value* at = o == nullptr ? nullptr : o->if_contains(key);
      return at != nullptr && at->is_number() ? at->to_number<double>() : -1.0;
    };
    if (text("model") == model && text("test") == p.test && number("tokens") == p.tokens &&
        number("streams") == p.streams && number("depth") == p.depth) {
      return std::max(0.0, number("tokens_per_s"));
    }
  }
  return 0;
}

StatusOr<json::array> ReadBefore(const std::string& file) {
  if (file.empty()) return json::array();
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  boost::system::error_code error;
  const json::value v = json::parse(text, error);
  const json::value* results = error || !v.is_object() ? nullptr : v.get_object().if_contains("results");
  if (results == nullptr || !results->is_array()) {
    return InvalidArgument("{}: expected what `gyre bench --json` prints, an object with results", file);
  }
  return results->get_array();
}

}  // namespace

Status BenchCommand(const BenchOptions& options) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(const json::array before, ReadBefore(options.compare));
  json::array list;
  if (!options.json) {
    fmt::print("{:<28} {:<8} {:>6} {:>7} {:>6} {:>9} {:>9}  {}{}\n", "model", "test", "tokens", "streams", "depth",
               "tokens/s", "best", "share of the limit", before.empty() ? "" : "   ratio");
  }
  for (const std::string& path : options.models) {
    ModelBench bench(options, path);
    GYRE_ASSIGN_OR_RETURN(const std::vector<Result> results, bench.Run());
    const std::string model = BaseName(path);
    for (const Result& r : results) {
      const double rate = Median(r.rates), share = Median(r.shares), old = Before(before, model, r.point);
      const std::string limit = LimitOf(r, share);
      json::object o{{"model", model},
                     {"test", r.point.test},
                     {"tokens", r.point.tokens},
                     {"streams", r.point.streams},
                     {"depth", r.point.depth},
                     {"tokens_per_s", rate},
                     {"best_tokens_per_s", *std::max_element(r.rates.begin(), r.rates.end())},
                     {"share", share},
                     {"limit", limit},
                     {"policy", options.ring.policy},
                     {"step_tokens", options.ring.step_tokens},
                     {"max_sequences", bench.max_sequences()},
                     {"kv_reserve", options.ring.kv_reserve},
                     {"isa", IsaName(bench.isa())},
                     {"threads", bench.threads()}};
      if (old > 0) o["ratio"] = rate / old;
      if (!options.json) {
        fmt::print("{:<28} {:<8} {:>6} {:>7} {:>6} {:>9.1f} {:>9.1f}  {:<18}{}\n", model, r.point.test, r.point.tokens,
                   r.point.streams, r.point.depth, rate, o["best_tokens_per_s"].as_double(),
                   DescribeShare(limit, share), old > 0 ? fmt::format("{:>8.2f}", rate / old) : "");
      }
      list.push_back(std::move(o));
    }
    std::fflush(stdout);
  }
  if (options.json) {
    fmt::print("{}\n", json::serialize(json::object{{"machine", json::parse(bench::DescribeMachine())},
                                                    {"libraries", LibrariesJson()},
                                                    {"runs", options.runs},
                                                    {"results", std::move(list)}}));
  }
  return absl::OkStatus();
}

}  // namespace gyre
