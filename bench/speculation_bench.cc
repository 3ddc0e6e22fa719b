// What speculation gains: texts with it and without it in turn, on a ring in this process. Each line has the medians of
// the seconds (and of the processor's seconds) of both and their ratio; the texts are compared, too.
//
//   speculation_bench MODEL [--stages N] [--threads N] [--tokens N] [--runs N] [--only WORDS] [--draft-model FILE]
//
// "text" has what comes from texts alone. In the other measurements an oracle is right with a chance of 0.8: a draft
// model of that quality on a machine of its own.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "coordinator/engine/drafter.h"
#include "fmt/core.h"
#include "runtime/measure.h"
#include "runtime/runtime.h"
#include "tests/testing/delayed_port.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_mtp.h"

namespace gyre {
namespace {

struct Flags {
  std::string model, draft_model, only;
  int stages = 1, threads = 0, runs = 3;
  uint32_t tokens = 128;
};

double ProcessorSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Knows the texts, and is right with a given chance: a draft model of that quality, on a machine of its own, that takes
// a given time for each guess.
class Oracle : public Drafter {
 public:
  explicit Oracle(int vocab) : vocab_(static_cast<uint32_t>(vocab)), thread_([this] { Loop(); }) {}
  ~Oracle() override { Stop(); }
  void Set(double chance, Duration each, std::vector<std::vector<TokenId>> known) {
    const std::lock_guard lock(mutex_);
    chance_ = chance;
    each_ = each.count();
    known_ = std::move(known);
  }
  void Draft(DraftQuestion q, std::function<void(std::vector<TokenId>)> answer) override {
    {
      const std::lock_guard lock(mutex_);
      asked_.emplace_back(std::move(q), std::move(answer));
    }
    changed_.notify_all();
  }
  void End(SeqId seq) override {
    const std::lock_guard lock(mutex_);
    texts_.erase(seq);
  }
  void Stop() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Duration each() const override { return Duration(each_.load()); }

 private:
  // The questions that came while it was busy are answered in one batch, as a model does.
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !asked_.empty(); });
      if (stopping_) return;
      const auto asked = std::exchange(asked_, {});
      uint32_t rounds = 0;
      for (const auto& [q, answer] : asked) rounds = std::max(rounds, q.most);
      lock.unlock();
      std::this_thread::sleep_for(rounds * each());
      lock.lock();
      std::vector<std::vector<TokenId>> drafts;
      for (const auto& [q, answer] : asked) drafts.push_back(Guess(q));
      lock.unlock();
      for (size_t i = 0; i < asked.size(); ++i) asked[i].second(std::move(drafts[i]));
      lock.lock();
    }
  }
  std::vector<TokenId> Guess(const DraftQuestion& q) {
    std::vector<TokenId> drafts;
    std::vector<TokenId>& text = texts_[q.seq];
    text.resize(q.first);
    text.insert(text.end(), q.tokens.begin(), q.tokens.end());
    // A guess that went wrong is not gone on from as if it had been right.
    for (const std::vector<TokenId>& known : known_) {
      if (known.size() < text.size() || !std::equal(text.begin(), text.end(), known.begin())) continue;
      for (size_t at = text.size(); at < std::min(known.size(), text.size() + q.most); ++at) {
        const bool right = std::uniform_real_distribution<>()(random_) < chance_;
        drafts.push_back(right ? known[at] : static_cast<TokenId>(random_() % vocab_));
      }
      return drafts;
    }
    // Behind a wrong guess it guesses on.
    for (uint32_t i = 0; i < q.most; ++i) drafts.push_back(static_cast<TokenId>(random_() % vocab_));
    return drafts;
  }

  const uint32_t vocab_;
  std::mutex mutex_;
  std::condition_variable changed_;
  double chance_ = 0;
  std::atomic<int64_t> each_{0};
  std::vector<std::vector<TokenId>> known_;
  std::map<SeqId, std::vector<TokenId>> texts_;
  std::deque<std::pair<DraftQuestion, std::function<void(std::vector<TokenId>)>>> asked_;
  std::mt19937 random_{1};
  bool stopping_ = false;
  std::thread thread_;
};

std::vector<Request> Texts(const Flags& flags, int streams, float temperature, int vocab) {
  std::vector<Request> requests;
  for (int i = 0; i < streams; ++i) {
    Request r;
    std::mt19937 random(static_cast<uint32_t>(i) + 1);
    for (int n = 0; n < 32; ++n) r.prompt.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(vocab)));
    r.max_new_tokens = flags.tokens;
    r.sampling = {.temperature = temperature, .top_k = 40, .seed = static_cast<uint64_t>(i)};
    r.ignore_end = true;
    requests.push_back(std::move(r));
  }
  return requests;
}

struct Timed {
  double wall = 0, processor = 0;
  std::vector<std::vector<TokenId>> texts;
  uint64_t drafted = 0, accepted = 0;
};

Timed Run(Runtime& ring, const std::vector<Request>& requests) {
  Timed out;
  const double processor = ProcessorSeconds();
  const Deadline began = Clock::now();
  testing::Runner runner(ring.engine());
  for (const Request& r : requests) runner.Add(r);
  for (const testing::Outcome& o : runner.Wait()) {
    out.texts.push_back(o.tokens);
    out.drafted += o.usage.drafted_tokens;
    out.accepted += o.usage.accepted_drafts;
  }
  out.wall = bench::Seconds(Clock::now() - began);
  out.processor = ProcessorSeconds() - processor;
  return out;
}

// With and without, in turn. `with` are the same texts with what speculation has for them.
void Compare(const std::string& name, Runtime& ring, std::vector<Request> with, const Flags& flags) {
  std::vector<Request> without = with;
  for (Request& r : without) r.speculation.n_max = 0, r.prediction.clear();
  std::vector<double> wall_off, wall_on, processor_off, processor_on;
  uint64_t drafted = 0, accepted = 0;
  bool same = true;
  for (int run = 0; run <= flags.runs; ++run) {
    const Timed off = Run(ring, without), on = Run(ring, with);
    same = same && off.texts == on.texts;
    if (run == 0) continue;  // the times of rows are learned
    wall_off.push_back(off.wall), wall_on.push_back(on.wall);
    processor_off.push_back(off.processor), processor_on.push_back(on.processor);
    drafted += on.drafted, accepted += on.accepted;
  }
  const double off = bench::Median(wall_off), on = bench::Median(wall_on);
  const double of_off = bench::Median(processor_off), of_on = bench::Median(processor_on);
  fmt::print("{:50} {:7.2f} s {:7.2f} s  {:5.2f} x   processor {:7.2f} s {:7.2f} s  {:5.2f} x   {}/{} drafts{}\n", name,
             off, on, off / on, of_off, of_on, of_off / of_on, accepted, drafted, same ? "" : "  OTHER TEXTS");
  std::fflush(stdout);
}

std::vector<std::vector<TokenId>> Whole(const std::vector<Request>& requests, const Timed& timed) {
  std::vector<std::vector<TokenId>> whole;
  for (size_t i = 0; i < requests.size(); ++i) {
    whole.push_back(requests[i].prompt);
    whole.back().insert(whole.back().end(), timed.texts[i].begin(), timed.texts[i].end());
  }
  return whole;
}

RuntimeOptions OptionsOf(const Flags& flags) {
  RuntimeOptions o;
  o.model = flags.model;
  o.stages = flags.stages;
  o.threads = flags.threads;
  o.ctx = 64 + 2 * flags.tokens;
  o.parallel = 16;
  o.no_prefix_cache = true;
  o.quiet = true;
  return o;
}

std::unique_ptr<Runtime> Open(const RuntimeOptions& options) {
  auto ring = Runtime::Open(options);
  if (!ring.ok()) {
    fmt::print(stderr, "speculation_bench: {}\n", Message(ring.status()));
    std::exit(1);
  }
  return *std::move(ring);
}

// A ring with a drafter that is right at a given rate.
struct Case {
  std::string name;
  int stages = 1;
  double chance = 0.8;
  double share = 0.1;  // of the stages' time for one row, which a guess takes
  int hop_ms = 0;      // how long frames are on their way to the next stage, and to the coordinator
  bool tcp = false;
  uint32_t steps_in_flight = 0;  // 0: the program chooses; 1: one step a lap
  int streams = 1;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases{
      {.name = "one stage, a draft of a tenth", .share = 0.1},
      {.name = "one stage, guesses that cost nothing (as heads)", .share = 0},
      {.name = "one stage, 16 streams", .streams = 16},
      {.name = "one stage, nothing comes true", .chance = 0},
      {.name = "two stages over TCP", .stages = 2, .tcp = true},
      {.name = "two hops of 20 ms, one step a lap", .hop_ms = 20, .steps_in_flight = 1},
      {.name = "two hops of 20 ms", .hop_ms = 20},
      {.name = "8 stages, hops of 20 ms, one step a lap", .stages = 8, .hop_ms = 20, .steps_in_flight = 1},
      {.name = "8 stages, hops of 20 ms", .stages = 8, .hop_ms = 20},
      {.name = "3 stages, hops of 100 ms", .stages = 3, .hop_ms = 100}};
  return cases;
}

void RunCase(const Case& c, const Flags& flags) {
  RuntimeOptions o = OptionsOf(flags);
  o.stages = c.stages;
  // A thread for each stage, which is a machine's core.
  if (c.stages > 1) o.threads = c.stages;
  o.tcp = c.tcp;
  o.steps_in_flight = c.steps_in_flight;
  if (c.hop_ms > 0) o.wrap_port = testing::Delays(std::chrono::milliseconds(c.hop_ms));
  const auto model = OpenModel(o.model, {});
  const auto oracle = std::make_shared<Oracle>((*model)->spec().vocab);
  o.drafter = oracle;
  const auto ring = Open(o);
  const std::vector<Request> texts = Texts(flags, c.streams, 1.5f, ring->model().spec().vocab);
  std::vector<Request> without = texts;
  for (Request& r : without) r.speculation.n_max = 0;
  const Timed plain = Run(*ring, without);
  const double way = (c.stages + 1) * c.hop_ms * 1e-3;
  const double row = std::max(0.0, plain.wall / flags.tokens - way);
  const auto each = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(c.share * row));
  oracle->Set(c.chance, each, Whole(texts, plain));
  Compare(c.name, *ring, texts, flags);
}

// A model whose layer for drafts is right with a chance of 0.8: a token follows from the one before it alone, and of
// every fifth the layer knows another one.
void RunMtp(const Flags& flags) {
  const char* const name = "the model's own layer for drafts, right with 0.8";
  if (std::string_view(name).find(flags.only) == std::string_view::npos) return;
  const testing::TinyModelFile file(testing::BuildTinyMtp({.dim = 1024,
                                                           .layers = 16,
                                                           .heads = 16,
                                                           .kv_heads = 4,
                                                           .ffn = 4096,
                                                           .vocab = 32768,
                                                           .own_head = true,
                                                           .wrong = 0.2f,
                                                           .type = DType::kQ8_0}));
  RuntimeOptions o = OptionsOf(flags);
  o.model = file.path();
  o.speculation = "mtp";
  const auto ring = Open(o);
  Compare(name, *ring, Texts(flags, 1, 0, 32768), flags);
  Compare("the same, 16 streams", *ring, Texts(flags, 16, 0, 32768), flags);
}

int Main(const Flags& flags) {
  fmt::print("{:50} {:>9} {:>9}\n", "", "without", "with");
  const auto wanted = [&flags](std::string_view name) { return name.find(flags.only) != std::string_view::npos; };
  if (wanted("text")) {
    const auto ring = Open(OptionsOf(flags));
    const int vocab = ring->model().spec().vocab;
    // Random numbers draw, so that nothing repeats by itself.
    std::vector<Request> one = Texts(flags, 1, 1.5f, vocab), many = Texts(flags, 16, 1.5f, vocab);
    Compare("text without repeats, 1 stream", *ring, one, flags);
    Compare("text without repeats, 16 streams", *ring, many, flags);
    for (std::vector<Request>* requests : {&one, &many}) {
      const Timed texts = Run(*ring, *requests);
      std::mt19937 random(5);
      for (size_t i = 0; i < requests->size(); ++i) {
        (*requests)[i].prediction = texts.texts[i];
        for (TokenId& token : (*requests)[i].prediction) {
          if (random() % 20 == 0) token = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
        }
      }
    }
    Compare("predicted text, 19 of 20 right, 1 stream", *ring, one, flags);
    Compare("predicted text, 19 of 20 right, 16 streams", *ring, many, flags);
    Compare("greedy text of its own, 1 stream", *ring, Texts(flags, 1, 0, vocab), flags);
  }
  for (const Case& c : Cases()) {
    if (wanted(c.name)) RunCase(c, flags);
  }
  RunMtp(flags);
  if (!flags.draft_model.empty()) {
    RuntimeOptions o = OptionsOf(flags);
    o.draft_model = flags.draft_model;
    const auto ring = Open(o);
    const int vocab = ring->model().spec().vocab;
    Compare("a draft model, greedy, 1 stream", *ring, Texts(flags, 1, 0, vocab), flags);
    Compare("a draft model, temperature 1.5, 1 stream", *ring, Texts(flags, 1, 1.5f, vocab), flags);
  }
  return 0;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  gyre::Flags flags;
  CLI::App app("What speculation gains.");
  app.add_option("model", flags.model)->required();
  app.add_option("--stages", flags.stages, "of the rings without a delay");
  app.add_option("--threads", flags.threads, "of a ring with one stage");
  app.add_option("--tokens", flags.tokens);
  app.add_option("--runs", flags.runs);
  app.add_option("--only", flags.only, "what the names of the measurements contain; \"text\": those without an oracle");
  app.add_option("--draft-model", flags.draft_model);
  CLI11_PARSE(app, argc, argv);
  return gyre::Main(flags);
}
