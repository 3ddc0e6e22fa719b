// What LoRA adapters cost: streams that decode with adapters and without, in turns, and a prompt likewise, on a ring in
// this process. The adapters are made for the model, in f16. Prints medians and ratios (docs/lora.md).
//
//   adapter_bench MODEL [--adapters N] [--rank N] [--streams N] [--tokens N] [--prompt N] [--runs N] [--threads N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "fmt/core.h"
#include "runtime/measure.h"
#include "runtime/runtime.h"
#include "tests/testing/lora_writer.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

struct Flags {
  std::string model;
  uint32_t adapters = 8, streams = 16, tokens = 32, prompt = 512;
  uint64_t rank = 16;
  int runs = 5, threads = 0;
};

double Seconds(Engine& engine, const std::vector<Request>& requests) {
  const auto begin = std::chrono::steady_clock::now();
  for (const testing::Outcome& o : testing::RunAll(engine, requests)) {
    if (!o.finished) std::fprintf(stderr, "adapter_bench: %s\n", o.status.ToString().c_str()), std::exit(1);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int Main(const Flags& flags) {
  RuntimeOptions options;
  options.model = flags.model;
  options.threads = flags.threads;
  options.quiet = true;
  options.ctx = std::max(flags.prompt + 2, flags.tokens + 8);
  options.parallel = flags.streams;
  options.no_prefix_cache = true;
  options.speculation = "off";
  const auto plain = OpenModel(flags.model);
  if (!plain.ok()) {
    fmt::print(stderr, "adapter_bench: {}\n", Message(plain.status()));
    return 1;
  }
  std::deque<testing::TinyModelFile> files;
  for (uint32_t i = 0; i < flags.adapters; ++i) {
    files.emplace_back(testing::LoraGguf(**plain, {.seed = i, .rank = flags.rank, .type = DType::kF16}));
    options.open.adapters.push_back({fmt::format("a{}", i), files.back().path()});
  }
  const auto runtime = Runtime::Open(options);
  if (!runtime.ok()) {
    fmt::print(stderr, "adapter_bench: {}\n", Message(runtime.status()));
    return 1;
  }
  const auto requests = [&](uint32_t count, uint32_t prompt, uint32_t tokens, uint32_t adapters) {
    std::vector<Request> out;
    for (uint32_t i = 0; i < count; ++i) {
      Request r;
      for (uint32_t k = 0; k < prompt; ++k) r.prompt.push_back(static_cast<TokenId>(100 + (i * 131 + k * 17) % 1000));
      r.max_new_tokens = tokens;
      r.ignore_end = true;
      r.sampling.temperature = 0;
      r.adapter = adapters == 0 ? 0 : 1 + i % adapters;
      out.push_back(std::move(r));
    }
    return out;
  };
  struct Case {
    std::string what;
    uint32_t count, prompt, tokens, adapters;
  };
  const Case cases[] = {{fmt::format("{} streams, one adapter", flags.streams), flags.streams, 4, flags.tokens, 1},
                        {fmt::format("{} streams, {} adapters", flags.streams, flags.adapters), flags.streams, 4,
                         flags.tokens, flags.adapters},
                        {"one stream", 1, 4, flags.tokens, 1},
                        {fmt::format("a prompt of {}", flags.prompt), 1, flags.prompt, 1, 1}};
  for (const Case& c : cases) {
    std::vector<double> with, without, ratios;
    for (int run = 0; run < flags.runs; ++run) {
      without.push_back(Seconds((*runtime)->engine(), requests(c.count, c.prompt, c.tokens, 0)));
      with.push_back(Seconds((*runtime)->engine(), requests(c.count, c.prompt, c.tokens, c.adapters)));
      ratios.push_back(without.back() / with.back());
    }
    fmt::print("{:28} without {:8.3f} s, with {:8.3f} s: {:.3f} of the speed\n", c.what, bench::Median(without),
               bench::Median(with), bench::Median(ratios));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  CLI::App app("What LoRA adapters cost");
  gyre::Flags flags;
  app.add_option("model", flags.model)->required();
  app.add_option("--adapters", flags.adapters)->check(CLI::Range(1, 200));
  app.add_option("--rank", flags.rank)->check(CLI::Range(1, 512));
  app.add_option("--streams", flags.streams)->check(CLI::Range(1, 256));
  app.add_option("--tokens", flags.tokens)->check(CLI::Range(1, 4096));
  app.add_option("--prompt", flags.prompt)->check(CLI::Range(1, 8192));
  app.add_option("--runs", flags.runs)->check(CLI::Range(1, 100));
  app.add_option("--threads", flags.threads)->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  return gyre::Main(flags);
}
