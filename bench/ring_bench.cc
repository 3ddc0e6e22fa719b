// A ring in one process: what a token costs outside the stages, how busy the stages are, and what share of the memory
// bandwidth decode reaches. Prints medians as one JSON object on stdout.
//
//   ring_bench overhead MODEL                     1 and 3 stages, one stream
//   ring_bench busy MODEL [--streams 8]           2 stages with one thread each
//   ring_bench decode MODEL [--threads N]         one stage, one stream
//   ring_bench beside MODEL [--streams 8] [--prompt 4000]   texts while a long prompt is computed beside them
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/cpus.h"
#include "fmt/core.h"
#include "runtime/measure.h"
#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"

namespace gyre {
namespace {

using bench::Continue;
using bench::Median;
using bench::Seconds;

struct Flags {
  std::string model;
  int streams = 8;
  int threads = 0;
  int tokens = 64;
  int prompt = 4000;
  int runs = 5;
  std::string policy = "fcfs";
  uint32_t step_tokens = 0;
  bool processor_time = false;
};

// The processor time of this process so far, on all processors.
Deadline ProcessorTime() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return Deadline(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

std::unique_ptr<Runtime> OpenRing(const Flags& flags, int stages, int threads) {
  RuntimeOptions o;
  o.model = flags.model;
  o.stages = stages;
  o.threads = threads;
  o.ctx = 1024 + static_cast<uint32_t>(flags.prompt);
  o.policy = flags.policy;
  o.step_tokens = flags.step_tokens;
  if (flags.processor_time) o.now = ProcessorTime;
  o.parallel = static_cast<uint32_t>(flags.streams);
  o.no_prefix_cache = true;
  o.quiet = true;
  auto ring = Runtime::Open(o);
  if (!ring.ok()) {
    fmt::print(stderr, "ring_bench: {}\n", Message(ring.status()));
    std::exit(1);
  }
  return *std::move(ring);
}

// Seconds that n tokens of one stream take, and seconds of them in which stages computed.
struct Decode {
  double wall = 0, busy = 0;
};
Decode DecodeOnce(Runtime& ring, uint32_t n) {
  testing::Runner runner(ring.engine());
  double busy_before = 0;
  Deadline start{};
  runner.Add(Continue(8, n + 1, ring.model().spec().vocab, 1), [&](SeqId, size_t tokens) {
    if (tokens != 1) return;
    for (const auto& w : ring.workers()) busy_before += Seconds(w->busy_time());
    start = Clock::now();
  });
  runner.Wait();
  Decode d{.wall = Seconds(Clock::now() - start), .busy = -busy_before};
  for (const auto& w : ring.workers()) d.busy += Seconds(w->busy_time());
  return d;
}

std::string Overhead(const Flags& flags) {
  std::string out;
  for (int stages : {1, 3}) {
    auto ring = OpenRing(flags, stages, stages);
    std::vector<double> outside, total;
    DecodeOnce(*ring, 256);
    for (int run = 0; run < std::max(flags.runs, 5); ++run) {
      const uint32_t n = 400;
      const Decode d = DecodeOnce(*ring, n);
      outside.push_back((d.wall - d.busy) / n * 1e6);
      total.push_back(d.wall / n * 1e6);
    }
    out += fmt::format("{}{{\"stages\": {}, \"us_per_token\": {:.1f}, \"us_outside_stages\": {:.1f}}}",
                       out.empty() ? "" : ", ", stages, Median(total), Median(outside));
  }
  return "\"overhead\": [" + out + "]";
}

std::string Busy(const Flags& flags) {
  auto ring = OpenRing(flags, 2, 2);
  std::vector<double> first, second, rate;
  for (int run = 0; run < flags.runs; ++run) {
    testing::Runner runner(ring->engine());
    const int vocab = ring->model().spec().vocab;
    // The busy share is measured while every stream decodes: from the moment all have their first token until one has
    // its last.
    std::vector<size_t> got(static_cast<size_t>(flags.streams), 0);
    size_t started = 0;
    bool measuring = false, done = false;
    Deadline begin{}, end{};
    std::vector<double> busy(2, 0);
    size_t tokens_between = 0;
    for (int s = 0; s < flags.streams; ++s) {
      runner.Add(Continue(8, static_cast<uint32_t>(flags.tokens), vocab, s), [&](SeqId, size_t tokens) {
        if (tokens == 1 && ++started == got.size()) {
          measuring = true;
          begin = Clock::now();
          for (size_t i = 0; i < 2; ++i) busy[i] = -Seconds(ring->workers()[i]->busy_time());
        }
        if (measuring && !done) ++tokens_between;
        if (!done && tokens == static_cast<size_t>(flags.tokens)) {
          done = true;
          end = Clock::now();
          for (size_t i = 0; i < 2; ++i) busy[i] += Seconds(ring->workers()[i]->busy_time());
        }
      });
    }
    runner.Wait();
    const double wall = Seconds(end - begin);
    first.push_back(busy[0] / wall);
    second.push_back(busy[1] / wall);
    rate.push_back(static_cast<double>(tokens_between) / wall);
  }
  return fmt::format(
      "\"busy\": {{\"streams\": {}, \"stage_0\": {:.3f}, \"stage_1\": {:.3f}, \"tokens_per_s\": {:.1f}}}",
      flags.streams, Median(first), Median(second), Median(rate));
}

std::string DecodeShare(const Flags& flags) {
  const int threads = flags.threads > 0 ? flags.threads : DefaultThreads();
  auto ring = OpenRing(flags, 1, threads);
  const double bytes = static_cast<double>(ring->workers()[0]->weight_bytes());
  DecodeOnce(*ring, 8);
  // Bandwidth and decode are measured alternately, so that other load on a shared host affects both.
  std::vector<double> share, rate, limit;
  for (int run = 0; run < flags.runs; ++run) {
    const double bandwidth = bench::ReadBandwidth(threads);
    const Decode d = DecodeOnce(*ring, static_cast<uint32_t>(flags.tokens));
    const double per_token = d.wall / flags.tokens;
    rate.push_back(1 / per_token);
    limit.push_back(bandwidth);
    share.push_back(bytes / per_token / bandwidth);
  }
  return fmt::format(
      "\"decode\": {{\"threads\": {}, \"weight_bytes\": {:.0f}, \"tokens_per_s\": {:.2f}, \"read_gb_per_s\": {:.1f}, "
      "\"share_of_bandwidth\": {:.3f}}}",
      threads, bytes, Median(rate), Median(limit) / 1e9, Median(share));
}

// The q-quantile; 0 if there are no values.
double Quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
}

// Seconds between the tokens of streams before a long prompt comes, and while it is computed. With --processor-time and
// one thread they are what the process computes meanwhile, whatever else the machine does.
std::string Beside(const Flags& flags) {
  auto ring = OpenRing(flags, 1, flags.threads > 0 ? flags.threads : DefaultThreads());
  const int vocab = ring->model().spec().vocab;
  const uint32_t most = 900;
  const auto clock = [&flags] { return flags.processor_time ? ProcessorTime() : Clock::now(); };
  std::vector<double> ratios, quiet_ms, loaded_ms, first_ms, rows;
  for (int run = 0; run < flags.runs; ++run) {
    testing::Runner runner(ring->engine());
    // The engine's thread writes these; this thread only reads them, when the prompt comes in.
    std::vector<double> quiet, loaded;
    std::vector<Deadline> last(static_cast<size_t>(flags.streams));
    std::atomic<bool> begins{false}, computed{false}, over{false};
    for (int s = 0; s < flags.streams; ++s) {
      runner.Add(Continue(32, most, vocab, run * 100 + s), [&, s](SeqId seq, size_t tokens) {
        const Deadline now = clock();
        Deadline& before = last[static_cast<size_t>(s)];
        // The first tokens come while others still have prompts.
        if (tokens > 4) (begins ? loaded : quiet).push_back(Seconds(now - before));
        before = now;
        if (tokens >= static_cast<size_t>(flags.tokens)) over = true;
        if (computed) ring->engine().Cancel(seq);
      });
    }
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    begins = true;
    const Deadline start = clock();
    double first = 0;
    runner.Add(Continue(flags.prompt, 1, vocab, 77 + run), [&](SeqId, size_t) {
      first = Seconds(clock() - start);
      rows.push_back(ring->engine().stats().scheduler.step_tokens);
      computed = true;
    });
    runner.Wait();
    quiet_ms.push_back(1e3 * Median(quiet));
    loaded_ms.push_back(1e3 * Quantile(loaded, 0.99));
    first_ms.push_back(1e3 * first);
    ratios.push_back(Quantile(loaded, 0.99) / Median(quiet));
  }
  return fmt::format(
      "\"beside\": {{\"streams\": {}, \"prompt\": {}, \"policy\": \"{}\", \"median_ms_without\": {:.1f}, "
      "\"p99_ms_with\": {:.1f}, \"ratio\": {:.2f}, \"prompt_ms\": {:.0f}, \"prompt_rows_of_a_step\": {:.0f}}}",
      flags.streams, flags.prompt, flags.policy, Median(quiet_ms), Median(loaded_ms), Median(ratios), Median(first_ms),
      Median(rows));
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  using namespace gyre;
  Flags flags;
  CLI::App app{"What the ring costs and reaches on this machine"};
  app.require_subcommand(1);
  std::string (*what)(const Flags&) = nullptr;
  auto add = [&](const char* name, const char* help, std::string (*run)(const Flags&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->add_option("MODEL", flags.model)->required();
    sub->add_option("--streams", flags.streams)->check(CLI::PositiveNumber);
    sub->add_option("--threads", flags.threads)->check(CLI::PositiveNumber);
    sub->add_option("--tokens", flags.tokens)->check(CLI::Range(4, 900));
    sub->add_option("--runs", flags.runs)->check(CLI::PositiveNumber);
    sub->add_option("--prompt", flags.prompt)->check(CLI::PositiveNumber);
    sub->add_option("--policy", flags.policy);
    sub->add_flag("--processor-time", flags.processor_time);
    sub->add_option("--step-tokens", flags.step_tokens);
    sub->callback([&what, run] { what = run; });
  };
  add("overhead", "microseconds a token outside the stages, 1 and 3 stages", Overhead);
  add("busy", "share of time that 2 one-thread stages compute", Busy);
  add("decode", "decode speed as a share of the memory bandwidth", DecodeShare);
  add("beside", "time between tokens while a long prompt is computed beside them", Beside);
  CLI11_PARSE(app, argc, argv);
  bench::PrintResult(flags.model, flags.runs, what(flags));
}
