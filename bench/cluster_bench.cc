// A ring of processes on loopback: what a token costs outside the kernels, what two one-core workers reach compared
// with one process, and how long a resize pauses the engine. Prints medians as one JSON object on stdout.
//
//   cluster_bench overhead MODEL      3 workers, one stream
//   cluster_bench pair MODEL          2 workers with one core each, against one process on one core and on both
//   cluster_bench tls MODEL           3 workers over plain TCP against 3 over UDP, over TLS, and over UDP with an
//                                     identity each; with identities the client comes over TLS too
//   cluster_bench resize MODEL        8 sequences of 1,000 tokens, a quarter of the layers moved back and forth
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "client/remote.h"
#include "client/target.h"
#include "fmt/core.h"
#include "runtime/measure.h"
#include "tests/testing/identities.h"
#include "tests/testing/process.h"

namespace gyre {
namespace {

using bench::Continue;
using bench::Median;
using bench::Seconds;

using testing::Process;

struct Flags {
  std::string model;
  std::string gyre;
  int runs = 5;
};

std::atomic<bool> stopping{false};  // requests end with the ring, which is no failure then

[[noreturn]] void Fail(const std::string& why) {
  fmt::print(stderr, "cluster_bench: {}\n", why);
  std::exit(1);
}

class Ring {
 public:
  // `workers`: for each worker the core list for taskset ("" = all cores) and its number of threads.
  // `ca`: with identities by it, over TCP.
  Ring(const Flags& flags, const std::vector<std::pair<std::string, int>>& workers,
       testing::TestAuthority* ca = nullptr, const std::vector<std::string>& more = {}) {
    const std::string n = std::to_string(workers.size());
    std::vector<std::string> serve{flags.gyre,         "serve", flags.model, "--cluster", "127.0.0.1:0", "--no-local",
                                   "--min-workers",    n,       "--ctx",     "2048",      "--kv-tokens", "36000",
                                   "--no-prefix-cache"};
    // The benchmark measures what a step costs, not how many tokens are guessed in it.
    serve.insert(serve.end(), {"--speculation", "off"});
    serve.insert(serve.end(), more.begin(), more.end());
    if (ca != nullptr) {
      serve.insert(serve.end(), {"--identity", ca->Issue(Role::kCoordinator, "head")});
      at_.identity = ca->IssueOpen(Role::kAdmin, "bench")->current();
    }
    serve_ = std::make_unique<Process>(serve);
    const auto at = serve_->WaitFor("listening ");
    if (!at) Fail(serve_->output());
    at_.address = *at;
    for (const auto& [cores, threads] : workers) {
      std::vector<std::string> command;
      if (!cores.empty()) command = {"/usr/bin/taskset", "-c", cores};
      for (const std::string& word :
           {flags.gyre, std::string("worker"), std::string("--join"), at_.address, std::string("--name"),
            "w" + std::to_string(workers_.size() + 1), std::string("-t"), std::to_string(threads)}) {
        command.push_back(word);
      }
      if (ca != nullptr) {
        command.insert(command.end(),
                       {"--identity", ca->Issue(Role::kWorker, fmt::format("w{}", workers_.size() + 1))});
      }
      workers_.push_back(std::make_unique<Process>(command));
    }
    for (int i = 0;; ++i) {
      const auto status = FetchStatus(at_);
      if (status.ok() && status->state() == "serving") break;
      if (i > 12000) Fail(serve_->output());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const ClusterAddress& address() const { return at_; }
  v1::StatusReply status() const {
    auto status = FetchStatus(at_);
    if (!status.ok()) Fail(Message(status.status()));
    return *status;
  }

 private:
  std::unique_ptr<Process> serve_;
  std::vector<std::unique_ptr<Process>> workers_;
  ClusterAddress at_;
};

// Streams of equal length that run at the same time.
struct Rates {
  double prefill = 0;    // prompt tokens/s until the last stream's first token
  double decode = 0;     // tokens/s while all streams decode
  double per_token = 0;  // seconds per token of one stream
};
Rates Stream(const ClusterAddress& address, int streams, int prompt, uint32_t n) {
  std::vector<std::thread> threads;
  std::atomic<int> started{0};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> tokens{0};
  std::atomic<int64_t> all_started{0}, ended{0};
  const Deadline begin = Clock::now();
  auto now = [begin] { return (Clock::now() - begin).count(); };
  for (int s = 0; s < streams; ++s) {
    threads.emplace_back([&, s] {
      auto target = OpenRemote(address);
      if (!target.ok()) Fail(Message(target.status()));
      bool first = true;
      const Status status = (*target)->Run(Continue(prompt, n, (*target)->facts().vocab, s), [&](const Event& event) {
        if (std::holds_alternative<Finished>(event) && !done.exchange(true)) ended = now();
        if (!std::holds_alternative<TokenEvent>(event)) return;
        if (first && ++started == streams) all_started = now();
        if (!first && started == streams && !done) ++tokens;
        first = false;
      });
      if (!status.ok() && !stopping) Fail(Message(status));
    });
  }
  for (auto& t : threads) t.join();
  const double window = Seconds(Duration(ended - all_started));
  return {.prefill = static_cast<double>(prompt) * streams / Seconds(Duration(all_started.load())),
          .decode = static_cast<double>(tokens) / window,
          .per_token = window / static_cast<double>(n - 1)};
}

std::string Overhead(const Flags& flags) {
  Ring ring(flags, {{"", 1}, {"", 1}, {"", 1}});
  Stream(ring.address(), 1, 8, 400);
  std::vector<double> total, outside;
  for (int run = 0; run < flags.runs; ++run) {
    const v1::StatusReply before = ring.status();
    // Several sequences of equal length in succession, for longer than a few heartbeats.
    std::vector<double> wall;
    for (const Deadline end = After(std::chrono::seconds(2)); Clock::now() < end;) {
      wall.push_back(Stream(ring.address(), 1, 8, 400).per_token * 1e6);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const v1::StatusReply after = ring.status();
    double busy = 0;
    for (int i = 0; i < after.members_size(); ++i) {
      busy += static_cast<double>(after.members(i).busy_us() - before.members(i).busy_us()) /
              static_cast<double>(after.members(i).steps() - before.members(i).steps());
    }
    total.push_back(Median(wall));
    outside.push_back(Median(wall) - busy);
  }
  return fmt::format("\"overhead\": {{\"workers\": 3, \"us_per_token\": {:.1f}, \"us_outside_stages\": {:.1f}}}",
                     Median(total), Median(outside));
}

std::string Pair(const Flags& flags) {
  struct Result {
    std::vector<double> one, eight, many, prefill, busy_first, busy_last;
  };
  // With two stages each step has half of the streams, so one process gets half as many streams for the same rows.
  auto measure = [&](const std::vector<std::pair<std::string, int>>& workers, Result* r) {
    Ring ring(flags, workers);
    const int share = workers.size() == 2 ? 1 : 2;
    Stream(ring.address(), 1, 8, 8);
    r->one.push_back(Stream(ring.address(), 1, 8, 24).decode);
    r->prefill.push_back(Stream(ring.address(), 1, 512, 2).prefill);
    r->eight.push_back(Stream(ring.address(), 8 / share, 8, 48).decode);
    const v1::StatusReply status = ring.status();
    for (const v1::MemberStatus& m : status.members())
      (m.layers().begin() == 0 ? r->busy_first : r->busy_last).push_back(m.busy());
    r->many.push_back(Stream(ring.address(), 32 / share, 8, 48).decode);
  };
  Result pair, one_core, both_cores;
  for (int run = 0; run < flags.runs; ++run) {
    measure({{"0", 1}, {"1", 1}}, &pair);
    measure({{"0", 1}}, &one_core);
    measure({{"0,1", 2}}, &both_cores);
  }
  auto ratio = [](const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> out;
    for (size_t i = 0; i < a.size(); ++i) out.push_back(a[i] / b[i]);
    return Median(out);
  };
  return fmt::format(
      "\"pair\": {{\"decode_1\": {:.2f}, \"decode_1_against_one_core\": {:.3f}, \"decode_8\": {:.2f}, "
      "\"decode_8_against_both_cores\": {:.3f}, \"decode_32\": {:.2f}, \"decode_32_against_both_cores\": {:.3f}, "
      "\"prefill_512\": {:.1f}, \"prefill_512_against_one_core\": {:.3f}, \"prefill_512_against_both_cores\": {:.3f}, "
      "\"busy_first\": {:.3f}, \"busy_last\": {:.3f}}}",
      Median(pair.one), ratio(pair.one, one_core.one), Median(pair.eight), ratio(pair.eight, both_cores.eight),
      Median(pair.many), ratio(pair.many, both_cores.many), Median(pair.prefill), ratio(pair.prefill, one_core.prefill),
      ratio(pair.prefill, both_cores.prefill), Median(pair.busy_first), Median(pair.busy_last));
}

// The rings serve in turn, so that other work of the machine affects all of them.
std::string Tls(const Flags& flags) {
  const std::vector<std::pair<std::string, int>> workers{{"", 1}, {"", 1}, {"", 1}};
  testing::TestAuthority of_tls, of_udp;
  const std::vector<std::string> tcp{"--transport", "tcp"}, udp{"--transport", "udp"};
  Ring plain(flags, workers, nullptr, tcp), plain_udp(flags, workers, nullptr, udp),
      locked(flags, workers, &of_tls, tcp), locked_udp(flags, workers, &of_udp, udp);
  struct Result {
    std::vector<double> one, many, prefill;
  };
  constexpr size_t kRings = 4;
  std::array<Result, kRings> results;
  const std::array<Ring*, kRings> rings{&plain, &plain_udp, &locked, &locked_udp};
  for (Ring* ring : rings) Stream(ring->address(), 4, 64, 50);
  for (int run = 0; run < flags.runs; ++run) {
    for (size_t i = 0; i < kRings; ++i) {
      const size_t which = (static_cast<size_t>(run) + i) % kRings;
      Ring& ring = *rings[which];
      Result& r = results[which];
      r.one.push_back(Stream(ring.address(), 1, 8, 60).decode);
      r.many.push_back(Stream(ring.address(), 8, 8, 60).decode);
      r.prefill.push_back(Stream(ring.address(), 1, 1000, 2).prefill);
    }
  }
  const auto show = [&](const char* name, Result& r) {
    const auto against = [&](std::vector<double> Result::*what) { return Median(r.*what) / Median(results[0].*what); };
    return fmt::format(
        "\"{}\": {{\"decode_1\": {:.1f}, \"decode_1_against_plain\": {:.3f}, \"decode_8\": {:.1f}, "
        "\"decode_8_against_plain\": {:.3f}, \"prefill_1000\": {:.1f}, \"prefill_1000_against_plain\": {:.3f}}}",
        name, Median(r.one), against(&Result::one), Median(r.many), against(&Result::many), Median(r.prefill),
        against(&Result::prefill));
  };
  return fmt::format("{}, {}, {}, {}", show("tcp", results[0]), show("udp", results[1]), show("tls", results[2]),
                     show("udp_identities", results[3]));
}

std::string Resize(const Flags& flags) {
  auto owned = std::make_unique<Ring>(flags, std::vector<std::pair<std::string, int>>{{"", 1}, {"", 1}});
  Ring& ring = *owned;
  const int layers = ring.status().num_layers();
  const int quarter = std::max(1, layers / 4), half = layers / 2;
  std::atomic<bool> done{false};
  std::thread streams([&] {
    Stream(ring.address(), 8, 1000, 900);
    done = true;
  });
  auto decoding = [&] {
    const v1::StatusReply s = ring.status();
    return std::count_if(s.sequences().begin(), s.sequences().end(),
                         [](const auto& q) { return q.state() == "decode"; }) == 8;
  };
  while (!decoding() && !done) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::vector<double> pause, steps, took;
  double pages = 0;
  for (int i = 0; i < std::max(flags.runs, 20) && !done; ++i) {
    // Measures a decode step of all eight streams directly before the resize.
    const v1::StatusReply a = ring.status();
    const Deadline from = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    const v1::StatusReply b = ring.status();
    const double tokens = static_cast<double>(b.tokens_generated() - a.tokens_generated());
    const double step = Seconds(Clock::now() - from) / std::max(tokens / 8, 1.0) * 1e3;
    const auto change =
        AskResize(ring.address(), i % 2 == 0 ? fmt::format("{}", half - quarter) : fmt::format("{}", half));
    if (!change.ok()) Fail(Message(change.status()));
    pause.push_back(ring.status().last_pause_ms());
    steps.push_back(pause.back() / step);
    took.push_back(change->took_ms());
    pages = static_cast<double>(change->pages_moved());
  }
  const double longest = *std::max_element(steps.begin(), steps.end());
  stopping = true;  // the streams would run for minutes
  owned.reset();
  streams.join();
  return fmt::format(
      "\"resize\": {{\"layers_moved\": {}, \"resizes\": {}, \"pause_ms\": {:.1f}, \"pause_steps\": {:.2f}, "
      "\"longest_pause_steps\": {:.2f}, "
      "\"took_ms\": {:.0f}, \"pages\": {:.0f}}}",
      quarter, pause.size(), Median(pause), Median(steps), longest, Median(took), pages);
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  using namespace gyre;
  Flags flags;
  std::error_code error;
  flags.gyre =
      (std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "cli" / "gyre").string();
  CLI::App app{"What a ring of processes costs and reaches on this machine"};
  app.require_subcommand(1);
  std::string (*what)(const Flags&) = nullptr;
  auto add = [&](const char* name, const char* help, std::string (*run)(const Flags&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->add_option("MODEL", flags.model)->required()->check(CLI::ExistingFile);
    sub->add_option("--gyre", flags.gyre, "the program")->capture_default_str();
    sub->add_option("--runs", flags.runs)->check(CLI::PositiveNumber);
    sub->callback([&what, run] { what = run; });
  };
  add("overhead", "microseconds a token outside the stages, 3 workers", Overhead);
  add("pair", "two workers of a core each against one process", Pair);
  add("tls", "3 workers over TLS, and over sealed UDP, against 3 over plain TCP", Tls);
  add("resize", "how long a resize holds the engine", Resize);
  CLI11_PARSE(app, argc, argv);
  bench::PrintResult(flags.model, flags.runs, what(flags));
}
