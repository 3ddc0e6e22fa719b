// gyre-gpu-check: what a GPU computes and how fast, in one run (docs/cuda.md). No model file and no network are needed.
//
//   gyre-gpu-check [--device cuda:0] [--out FILE]
//   gyre-gpu-check --small               shapes that an emulated GPU manages
//   gyre-gpu-check --write-golden FILE   the hashes of this device's results, to compare others with
//
// The exit code is not 0 where results differ: from the emulator's bits, or of a row alone from those among others.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "base/describe_bytes.h"
#include "bench/gpu_ops.h"
#include "fmt/core.h"
#include "runtime/devices.h"
#include "runtime/measure.h"
#include "runtime/runtime.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/ring_runner.h"

namespace gyre::bench {
namespace {

namespace json = boost::json;

struct Flags {
  std::string device = "cuda", out, golden, write_golden;
  bool small = false, no_steps = false, no_sanitizer = false, only_ops = false;
  uint64_t memory = 0;
};

uint64_t HashOf(const std::vector<std::byte>& bytes) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

// Hashes by the names of ops: lines of a hash and a name.
using Golden = std::map<std::string, uint64_t>;

#if defined(GYRE_GPU_GOLDEN)
constexpr const char kBuiltIn[] =
#include GYRE_GPU_GOLDEN
    ;
#else
constexpr const char kBuiltIn[] = "";
#endif

Golden ReadGolden(std::istream& in) {
  Golden golden;
  uint64_t hash = 0;
  for (std::string name; in >> std::hex >> hash && in.get() == ' ' && std::getline(in, name);) golden[name] = hash;
  return golden;
}

double Seconds(const std::function<void()>& work) {
  const auto began = Clock::now();
  work();
  return bench::Seconds(Clock::now() - began);
}

class Check {
 public:
  Check(const Flags& flags, std::shared_ptr<Device> device) : flags_(flags), device_(std::move(device)) {}

  // Whether nothing was wrong.
  bool Run() {
    Describe();
    if (!flags_.only_ops) Speeds();
    GoldenBits();
    Rows();
    if (!flags_.only_ops) {
      Times();
      device_.reset();  // its memory goes to the whole steps
      if (!flags_.no_steps) Steps();
      if (!flags_.no_sanitizer) Sanitizer();
    }
    report_["wrong"] = wrong_;
    return wrong_ == 0;
  }
  const json::object& report() const { return report_; }

 private:
  std::unique_ptr<Backend> Queue() { return device_->NewBackend(); }
  void Title(const char* text) const { fmt::print("\n== {}\n", text); }

  void Describe() {
    Title("device");
    const DeviceRoom room = device_->room().value_or(DeviceRoom{});
    fmt::print("{}: {}, {}, {} reserved\n", device_->name(), device_->hardware(), device_->isa(),
               DescribeBytes(room.total));
    report_["device"] = {{"name", device_->name()},
                         {"hardware", device_->hardware()},
                         {"isa", device_->isa()},
                         {"reserved", room.total}};
    for (const DeviceKind& kind : DeviceKinds()) {
      if (kind.built.empty()) continue;
      fmt::print("built with {}; the driver knows {}\n", kind.built, kind.find().driver);
      report_["built"] = kind.built;
    }
  }

  void Speeds() {
    Title("speeds");
    speed_ = device_->Measure();
    fmt::print("reads its memory with {:.1f} GB/s, multiplies {:.2f} T int8/s\n", speed_.bytes_per_second / 1e9,
               speed_.operations_per_second / 1e12);
    const size_t bytes = flags_.small ? size_t{1} << 16 : size_t{256} << 20;
    std::vector<std::byte> host(bytes);
    const DeviceMemory memory = device_->Allocate(bytes);
    const auto queue = Queue();
    double up = 1e9, down = 1e9;
    for (int i = 0; i < 4; ++i) {
      up = std::min(up, Seconds([&] { queue->CopyIn(host.data(), memory.data(), bytes), queue->Finish(); }));
      down = std::min(down, Seconds([&] { queue->CopyOut(memory.data(), host.data(), bytes), queue->Finish(); }));
    }
    const double gb = static_cast<double>(bytes) / 1e9;
    fmt::print("copies {:.1f} GB/s to the device, {:.1f} GB/s from it (memory that is not pinned)\n", gb / up,
               gb / down);
    report_["speeds"] = {{"read_bytes_per_s", speed_.bytes_per_second},
                         {"int8_per_s", speed_.operations_per_second},
                         {"up_bytes_per_s", gb / up * 1e9},
                         {"down_bytes_per_s", gb / down * 1e9}};
  }

  void GoldenBits() {
    Title("golden bits");
    Golden golden;
    if (!flags_.golden.empty()) {
      std::ifstream in(flags_.golden);
      if (!in) throw std::runtime_error(fmt::format("{} can't be read", flags_.golden));
      golden = ReadGolden(in);
    } else {
      std::istringstream in(kBuiltIn);
      golden = ReadGolden(in);
    }
    if (golden.empty()) fmt::print("there is nothing to compare with: the hashes are only written\n");
    const auto queue = Queue();
    json::array list;
    std::string lines;
    int equal = 0, differ = 0, unknown = 0;
    for (const GoldenOp& op : GoldenOps()) {
      const uint64_t hash = HashOf(op.run(*queue));
      const auto expected = golden.find(op.name);
      const char* verdict = "not known";
      if (expected == golden.end()) {
        ++unknown;
      } else if (expected->second == hash) {
        ++equal;
        verdict = "equal";
      } else {
        ++differ;
        verdict = "DIFFERS";
        fmt::print("{:<40} {:016x}, the emulator has {:016x}\n", op.name, hash, expected->second);
      }
      list.push_back({{"op", op.name}, {"hash", fmt::format("{:016x}", hash)}, {"verdict", verdict}});
      lines += fmt::format("{:016x} {}\n", hash, op.name);
    }
    fmt::print("{} ops have the emulator's bits, {} have others, {} are not known\n", equal, differ, unknown);
    wrong_ += differ;
    if (!golden.empty()) wrong_ += unknown;
    report_["golden"] = std::move(list);
    if (!flags_.write_golden.empty()) std::ofstream(flags_.write_golden) << lines;
  }

  void Rows() {
    Title("a row alone and among others");
    const std::vector<size_t> counts = flags_.small ? std::vector<size_t>{8, 21} : std::vector<size_t>{8, 64, 512};
    const auto queue = Queue();
    json::array list;
    int different = 0, compared = 0;
    for (const RowOp& op : RowOps(flags_.small)) {
      for (const size_t rows : counts) {
        const bool same = op.run(*queue, rows, rows / 2, true) == op.run(*queue, rows, rows / 2, false);
        ++compared;
        if (same) continue;
        ++different;
        fmt::print("{:<40} DIFFERS among {} rows\n", op.name, rows);
        list.push_back({{"op", op.name}, {"rows", rows}});
      }
    }
    fmt::print("{} of {} have the bits of the row alone\n", compared - different, compared);
    wrong_ += different;
    report_["rows_that_differ"] = std::move(list);
  }

  void Times() {
    Title("kernels");
    fmt::print("{:<20} {:<34} {:>10} {:>10} {:>8} {:>8}\n", "op", "shape", "us", "GB/s", "memory", "int8");
    const auto queue = Queue();
    json::array list;
    for (const TimedOp& op : TimedOps(flags_.small)) {
      const std::function<void()> launch = op.make(*queue);
      launch();
      queue->Finish();
      size_t times = 1;
      double took = 0;
      const double enough = flags_.small ? 0.001 : 0.02;
      for (;; times *= 2) {
        took = Seconds([&] {
          for (size_t i = 0; i < times; ++i) launch();
          queue->Finish();
        });
        if (took > enough || times > 10000) break;
      }
      const double each = took / static_cast<double>(times);
      const double memory = speed_.bytes_per_second > 0 ? op.bytes / each / speed_.bytes_per_second : 0;
      const double multiplied =
          speed_.operations_per_second > 0 ? op.operations / each / speed_.operations_per_second : 0;
      const double share = std::max(memory, multiplied);
      fmt::print("{:<20} {:<34} {:>10.1f} {:>10.1f} {:>7.0f}% {:>7.0f}%{}\n", op.name, op.shape, each * 1e6,
                 op.bytes / each / 1e9, 100 * memory, 100 * multiplied, share < 0.6 ? "  < 60%" : "");
      list.push_back({{"op", op.name},
                      {"shape", op.shape},
                      {"us", each * 1e6},
                      {"bytes_per_s", op.bytes / each},
                      {"share_of_memory", memory},
                      {"share_of_int8", multiplied}});
    }
    report_["kernels"] = std::move(list);
  }

  // A model of the shape of Llama 3.1 8B whose weights are zeros, in a file that is a hole: it takes no room on the
  // disk.
  class MadeModel {
   public:
    MadeModel(DType type, bool small) {
      const uint32_t dim = small ? 256 : 4096, layers = small ? 2 : 32, ffn = small ? 512 : 14336;
      const uint32_t vocab = small ? 512 : 128256, heads = small ? 4 : 32, kv_heads = small ? 2 : 8;
      testing::GgufWriter w;
      w.String("general.architecture", "llama");
      w.Uint("llama.block_count", layers);
      w.Uint("llama.embedding_length", dim);
      w.Uint("llama.feed_forward_length", ffn);
      w.Uint("llama.attention.head_count", heads);
      w.Uint("llama.attention.head_count_kv", kv_heads);
      w.Uint("llama.context_length", small ? 512 : 8192);
      w.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
      w.Float("llama.rope.freq_base", 500000.0f);
      w.String("tokenizer.ggml.model", "none");
      w.Hole("token_embd.weight", type, {dim, vocab});
      w.Hole("output_norm.weight", DType::kF32, {dim});
      w.Hole("output.weight", type, {dim, vocab});
      const uint64_t kv = dim / heads * kv_heads;
      for (uint32_t i = 0; i < layers; ++i) {
        const std::string b = fmt::format("blk.{}.", i);
        w.Hole(b + "attn_norm.weight", DType::kF32, {dim});
        w.Hole(b + "ffn_norm.weight", DType::kF32, {dim});
        w.Hole(b + "attn_q.weight", type, {dim, dim});
        w.Hole(b + "attn_k.weight", type, {dim, kv});
        w.Hole(b + "attn_v.weight", type, {dim, kv});
        w.Hole(b + "attn_output.weight", type, {dim, dim});
        w.Hole(b + "ffn_gate.weight", type, {dim, ffn});
        w.Hole(b + "ffn_up.weight", type, {dim, ffn});
        w.Hole(b + "ffn_down.weight", type, {ffn, dim});
      }
      const std::vector<std::byte> header = w.Finish();
      char path[] = "/tmp/gyre-gpu-check-XXXXXX";
      const int fd = mkstemp(path);
      path_ = path;
      if (write(fd, header.data(), header.size()) != static_cast<ssize_t>(header.size()) ||
          ftruncate(fd, static_cast<off_t>(header.size() + w.HoleBytes())) != 0)
        std::perror("the made model");
      close(fd);
    }
    ~MadeModel() { unlink(path_.c_str()); }
    MadeModel(const MadeModel&) = delete;
    MadeModel& operator=(const MadeModel&) = delete;
    const std::string& path() const { return path_; }

   private:
    std::string path_;
  };

  // Tokens a second of `streams` requests that decode at once; and of a prompt.
  struct Rates {
    double prompt = 0, decode = 0;
  };
  static Rates Measure(Runtime& ring, int streams, int prompt, uint32_t tokens) {
    testing::Runner runner(ring.engine());
    std::mutex mutex;
    size_t first = 0, all = 0;
    Deadline began = Clock::now(), decodes{}, ended{};
    for (int s = 0; s < streams; ++s) {
      runner.Add(Continue(prompt, tokens, ring.model().spec().vocab, s), [&](SeqId, size_t got) {
        const std::lock_guard lock(mutex);
        if (got == 1 && ++first == static_cast<size_t>(streams)) decodes = Clock::now(), all = 0;
        ++all;
        ended = Clock::now();
      });
    }
    runner.Wait();
    return {.prompt = streams * prompt / bench::Seconds(decodes - began),
            .decode = static_cast<double>(all) / std::max(bench::Seconds(ended - decodes), 1e-9)};
  }

  void Steps() {
    Title("whole steps of a made model");
    json::array list;
    for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
      const MadeModel model(type, flags_.small);
      for (const bool graphs : {true, false}) {
        RuntimeOptions o;
        o.model = model.path();
        o.device = flags_.device;
        o.device_memory = flags_.memory;
        o.no_graphs = !graphs;
        o.no_prefix_cache = true;
        o.quiet = true;
        const int streams = flags_.small ? 3 : 64;
        o.parallel = static_cast<uint32_t>(streams);
        o.ctx = flags_.small ? 128 : 4608;
        o.kv_tokens = flags_.small ? 512 : 40000;
        const auto ring = Runtime::Open(o);
        if (!ring.ok()) {
          fmt::print("{}: {}\n", Info(type).name, Message(ring.status()));
          list.push_back({{"type", Info(type).name}, {"graphs", graphs}, {"error", Message(ring.status())}});
          ++wrong_;
          continue;
        }
        const uint32_t tokens = flags_.small ? 8 : 128;
        Measure(**ring, 1, 16, tokens);
        const Rates one = Measure(**ring, 1, 16, tokens), many = Measure(**ring, streams, 16, tokens);
        const Rates prompt = Measure(**ring, 1, flags_.small ? 64 : 4096, 2);
        fmt::print(
            "{:<6} graphs {:<3} 1 stream {:>8.1f} tokens/s, {} streams {:>9.1f} tokens/s, prompt {:>9.1f} tokens/s\n",
            Info(type).name, graphs ? "on" : "off", one.decode, streams, many.decode, prompt.prompt);
        list.push_back({{"type", Info(type).name},
                        {"graphs", graphs},
                        {"one_stream", one.decode},
                        {"streams", streams},
                        {"many_streams", many.decode},
                        {"prompt", prompt.prompt}});
      }
    }
    report_["steps"] = std::move(list);
  }

  // The small shapes once more, under each tool of compute-sanitizer, if that is on the path.
  void Sanitizer() {
    Title("compute-sanitizer");
    if (std::system("command -v compute-sanitizer >/dev/null 2>&1") != 0) {
      fmt::print("it is not on this machine\n");
      report_["sanitizer"] = "not on this machine";
      return;
    }
    json::object results;
    for (const char* tool : {"memcheck", "racecheck", "synccheck"}) {
      const std::string command = fmt::format(
          "compute-sanitizer --error-exitcode 9 --tool {} /proc/{}/exe --device {} --device-memory {} --small "
          "--only-ops "
          ">/dev/null 2>&1",
          tool, getpid(), flags_.device, flags_.memory);
      const int status = std::system(command.c_str());
      const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      fmt::print("{}: {}\n", tool, fine ? "nothing found" : "FOUND SOMETHING; run it by hand to read it");
      results[tool] = fine;
      wrong_ += fine ? 0 : 1;
    }
    report_["sanitizer"] = std::move(results);
  }

  const Flags& flags_;
  std::shared_ptr<Device> device_;
  DeviceSpeed speed_;
  int wrong_ = 0;
  json::object report_;
};

int Main(const Flags& flags) {
  auto device = OpenDevice({.name = flags.device, .isa = "", .threads = 1, .cpus = {}, .memory = flags.memory});
  if (!device.ok()) {
    fmt::print(stderr, "gyre-gpu-check: {}\n", Message(device.status()));
    return 2;
  }
  Check check(flags, *std::move(device));  // nobody else holds the device, so that it can be given back
  bool fine = false;
  try {
    fine = check.Run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "gyre-gpu-check: {}\n", e.what());
  }
  if (!flags.out.empty()) std::ofstream(flags.out) << json::serialize(check.report()) << "\n";
  fmt::print("\n{}\n", fine ? "nothing is wrong" : "something is wrong");
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace gyre::bench

int main(int argc, char** argv) {
  gyre::bench::Flags flags;
  CLI::App app{"What a GPU computes and how fast."};
  app.add_option("--device", flags.device, "as for gyre run");
  app.add_option("--device-memory", flags.memory, "bytes to reserve (default: nine tenths of what is free)");
  app.add_option("--out", flags.out, "a JSON file for all results");
  app.add_option("--golden", flags.golden, "compare with the hashes in this file, not with those that are built in");
  app.add_option("--write-golden", flags.write_golden, "write the hashes into this file");
  app.add_flag("--small", flags.small, "shapes that an emulated GPU manages");
  app.add_flag("--only-ops", flags.only_ops, "only what is right or wrong, no times");
  app.add_flag("--no-steps", flags.no_steps, "no whole steps of a model");
  app.add_flag("--no-sanitizer", flags.no_sanitizer, "no run under compute-sanitizer");
  CLI11_PARSE(app, argc, argv);
  return gyre::bench::Main(flags);
}
