// All faults that break rings, in a random order, under load: no text changes, no request hangs, nothing is leaked.
// GYRE_CHAOS_SEED replays a run; GYRE_CHAOS_SECONDS or GYRE_CHAOS_FAULTS say how long it is.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "tests/testing/cut_connection.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/weights_fixture.h"

namespace gyre::chaos_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Clients;
using testing::Process;
using testing::Ring;
using testing::SmallDisk;
using testing::TcpEnds;

constexpr int kVocab = 96;

uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

// The open files of a process, and its resident memory.
struct Footprint {
  size_t files = 0, kilobytes = 0;
};
Footprint FootprintOf(const Process& process) {
  size_t pages = 0;
  std::ifstream statm("/proc/" + std::to_string(process.pid()) + "/statm");
  statm >> pages >> pages;
  return {testing::OpenFiles(process.pid()), pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024};
}

class Chaos {
 public:
  Chaos(Ring& ring, const SmallDisk& disk, uint32_t seed) : ring_(ring), disk_(disk), random_(seed) {}

  void Add(bool fetches) { AddWith(fetches ? fmt::format("{}/w{}", disk_.folder(), made_) : ""); }
  size_t Draw(size_t n) { return random_() % n; }
  const std::vector<size_t>& alive() const { return alive_; }
  const std::map<std::string, int>& acts() const { return acts_; }

  // Does something to the cluster and returns it in words. At least two workers stay unhurt.
  std::string Act() {
    Forget();
    const size_t what = Draw(100);
    if (alive_.size() < 3 || (what < 10 && alive_.size() < 5)) {
      const bool fetches = Draw(2) == 0;
      Add(fetches);
      return Done("join", fmt::format("w{} joins{}", made_ - 1, fetches ? " without the file" : ""));
    }
    const size_t at = Draw(alive_.size());
    const size_t who = alive_[at];
    const std::string name = fmt::format("w{}", who);
    Process& worker = ring_.worker(who);
    if (what < 22) {
      worker.Kill(SIGKILL);
      Gone(at);
      return Done("kill", name + " is killed");
    }
    if (what < 29) {
      worker.Kill(SIGTERM);
      left_.push_back(who);
      alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(at));
      return Done("leave", name + " gets SIGTERM");
    }
    if (what < 35) {
      const auto time = milliseconds(100 + Draw(2500));
      worker.Kill(SIGSTOP);
      std::this_thread::sleep_for(time);
      worker.Kill(SIGCONT);
      return Done("stop", fmt::format("{} stands still for {} ms", name, time.count()));
    }
    if (what < 48) {
      const bool control = Draw(2) == 0;
      testing::CutConnections(worker.pid(), [&](TcpEnds ends) { return IsControl(ends) == control; });
      return Done("cut", fmt::format("the {} of {} are cut", control ? "control connections" : "links", name));
    }
    if (what < 60) {
      const bool more = Draw(2) == 0;
      const size_t bytes = 1 + Draw(64);
      const auto links = Links();
      const int done = more ? testing::CorruptConnections(worker.pid(), links, bytes)
                            : testing::StealFromConnections(worker.pid(), links, bytes);
      return Done("corrupt",
                  fmt::format("{} bytes {} on {} links of {}", bytes, more ? "too many" : "missing", done, name));
    }
    if (what < 67) {
      const auto time = milliseconds(200 + Draw(800));
      const auto rate = static_cast<uint32_t>(10'000 + Draw(200'000));
      const auto links = Links();
      testing::SlowConnections(worker.pid(), links, rate);
      std::this_thread::sleep_for(time);
      testing::SlowConnections(worker.pid(), links, UINT32_MAX);
      return Done("slow", fmt::format("{} sends {} bytes a second for {} ms", name, rate, time.count()));
    }
    if (what < 75) {
      const auto resized = AskResize(ring_.at(), fmt::format("{}", 1 + Draw(5)));
      return Done("resize", fmt::format("a resize: {}", resized.ok() ? "done" : Message(resized.status())));
    }
    if (what < 82) {
      const auto drained = AskDrain(ring_.at(), name);
      const auto undrained = AskUndrain(ring_.at(), name);
      return Done("drain", fmt::format("{} is drained ({}), and free again ({})", name,
                                       drained.ok() ? "done" : Message(drained.status()),
                                       undrained.ok() ? "done" : Message(undrained.status())));
    }
    if (what < 91) {
      const auto time = milliseconds(200 + Draw(600));
      const size_t boundary = 1 + Draw(5);
      disk_.Fill();
      const auto resized = AskResize(ring_.at(), fmt::format("{}", boundary));
      std::this_thread::sleep_for(time);
      disk_.Empty();
      return Done("full disk", fmt::format("the disk is full for {} ms; a resize: {}", time.count(),
                                           resized.ok() ? "done" : Message(resized.status())));
    }
    if (const auto cache = caches_.find(who); what < 95 && cache != caches_.end()) {
      const std::string folder = cache->second;
      caches_.erase(cache);
      worker.Kill(SIGKILL);
      Gone(at);
      const int damaged = Damage(folder);
      AddWith(folder);
      return Done("damaged disk",
                  fmt::format("{} is killed, {} of its cached files are damaged, and w{} takes its cache", name,
                              damaged, made_ - 1));
    }
    Restarting();
    ring_.Restart();
    return Done("restart", "the coordinator is killed and started again");
  }

  // The caches of those that have left go: the disk is small.
  void Forget() {
    for (size_t& who : left_) {
      if (!ring_.worker(who).Wait(milliseconds(0))) continue;
      DropCache(who);
      who = SIZE_MAX;
    }
    left_.erase(std::remove(left_.begin(), left_.end(), SIZE_MAX), left_.end());
  }
  // Takes the process's counters, before it ends.
  void Restarting() {
    const auto status = FetchStatus(ring_.at());
    EXPECT_TRUE(status.ok()) << status.status();
    if (status.ok()) failed_ += status->failed(), lost_ += status->rings_lost();
    integrity_faults_ += Metric("gyre_integrity_faults_total");
  }
  double Metric(const std::string& name) const {
    testing::HttpClient client(ring_.http());
    if (!client.Request("GET", "/metrics")) return -1;
    const std::string body = "\n" + client.Answer().body;
    const size_t at = body.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(body.substr(at + name.size() + 2));
  }
  uint64_t failed() const { return failed_; }
  uint64_t lost() const { return lost_; }
  double integrity_faults() const { return integrity_faults_; }

 private:
  std::string Done(const std::string& kind, std::string words) {
    ++acts_[kind];
    return words;
  }
  // `cache`: the folder of a worker that fetches its weights, "" if it has the file. It has room for this worker alone,
  // and goes with it.
  void AddWith(const std::string& cache) {
    alive_.push_back(made_);
    const std::string name = fmt::format("w{}", made_);
    if (cache.empty()) {
      ring_.AddWorker(name);
    } else {
      ring_.AddWorker(name, {"--weights", "fetch", "--cache", cache});
      caches_[made_] = cache;
    }
    ++made_;
  }
  void DropCache(size_t who) {
    const auto cache = caches_.find(who);
    if (cache == caches_.end()) return;
    std::error_code error;
    std::filesystem::remove_all(cache->second, error);
    caches_.erase(cache);
  }
  // Changes a bit in up to three of the files below a folder, and returns the number of files. A worker that was killed
  // early has not made its folder.
  int Damage(const std::string& folder) {
    std::vector<std::filesystem::path> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
      if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());  // a seed names the same files again
    std::shuffle(files.begin(), files.end(), random_);
    files.resize(std::min<size_t>(files.size(), 1 + Draw(3)));
    for (const auto& file : files) testing::FlipBit(file, Draw(std::filesystem::file_size(file)));
    return static_cast<int>(files.size());
  }
  void Gone(size_t at) {
    ring_.worker(alive_[at]).Wait(seconds(5));
    DropCache(alive_[at]);
    alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  bool IsControl(TcpEnds ends) const { return ends.remote == PortOf(ring_.address()); }
  // Those of the ring, and those on which pages and weights travel: between workers, as their ports tell.
  std::function<bool(TcpEnds)> Links() const {
    std::set<uint16_t> ports;
    if (const auto status = FetchStatus(ring_.at()); status.ok()) {
      for (const auto& m : status->members()) ports.insert(PortOf(m.address()));
    }
    return [ports](TcpEnds ends) { return ports.count(ends.local) > 0 || ports.count(ends.remote) > 0; };
  }

  Ring& ring_;
  const SmallDisk& disk_;
  std::mt19937 random_;
  std::vector<size_t> alive_, left_;      // those that work, and those that were told to leave
  std::map<size_t, std::string> caches_;  // of workers that fetch
  std::map<std::string, int> acts_;
  size_t made_ = 0;
  uint64_t failed_ = 0, lost_ = 0;
  double integrity_faults_ = 0;
};

int FromEnvironment(const char* name, int otherwise) {
  const char* const given = std::getenv(name);
  return given != nullptr ? std::stoi(given) : otherwise;
}

class SurvivingChaosTest : public testing::ProcessesTest {};

TEST_F(SurvivingChaosTest, NoTextNoticesAnything) {
  const char* const given = std::getenv("GYRE_CHAOS_SEED");
  const auto seed = given != nullptr ? static_cast<uint32_t>(std::stoul(given)) : std::random_device()();
  const int faults = FromEnvironment("GYRE_CHAOS_FAULTS", 0);
  const auto time = seconds(FromEnvironment("GYRE_CHAOS_SECONDS", faults > 0 ? 7200 : 12));
  const std::string replay =
      fmt::format("GYRE_CHAOS_SEED={} GYRE_CHAOS_{}", seed,
                  faults > 0 ? fmt::format("FAULTS={}", faults) : fmt::format("SECONDS={}", time.count()));
  fmt::print("{}\n", replay);
  SCOPED_TRACE(replay);
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 200);
  const testing::TempFolder folder;
  const SmallDisk disk(folder.path() + "/disk");
  std::vector<std::string> flags{"--no-local",
                                 "--min-workers",
                                 "3",
                                 "--transport",
                                 "tcp",
                                 "--http",
                                 "127.0.0.1:0",
                                 "--state",
                                 disk.folder() + "/state",
                                 "--resume-timeout",
                                 "5",
                                 "--cache",
                                 folder.path() + "/cache"};
  if (seed % 2 == 1) flags.push_back("--replicate-kv");
  Ring ring(model_.path(), flags);
  Chaos chaos(ring, disk, seed);
  for (int i = 0; i < 3; ++i) chaos.Add(i == 0);
  ASSERT_TRUE(ring.Serves(3));
  ClusterAddress address = ring.at();
  address.reconnect = seconds(60);
  Clients clients(address, kVocab, 200);
  // Longer than requests are kept that have ended.
  for (const Deadline warm = After(seconds(6)); Clock::now() < warm;) clients.WaitForTokens(200);
  Footprint coordinator = FootprintOf(ring.serve()), worker;
  for (size_t w : chaos.alive()) {
    const Footprint f = FootprintOf(ring.worker(w));
    worker = {std::max(worker.files, f.files), std::max(worker.kilobytes, f.kilobytes)};
  }

  std::string story;
  const auto begun = std::chrono::steady_clock::now(), end = begun + time;
  int acts = 0;
  for (; std::chrono::steady_clock::now() < end && (faults == 0 || acts < faults); ++acts) {
    story += fmt::format("{:.1f} s: ", std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    story += chaos.Act() + "\n";
    if (given != nullptr) {
      fmt::print("{}", story.substr(story.rfind('\n', story.size() - 2) + 1));
      std::fflush(stdout);
    }
    // It goes on, whatever was done.
    const auto stuck = std::chrono::steady_clock::now() + seconds(60);
    for (const uint64_t until = clients.tokens() + 200 + chaos.Draw(200); clients.tokens() < until;) {
      ASSERT_LT(std::chrono::steady_clock::now(), stuck) << story << ring.serve().output();
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  const double checks = chaos.Metric("gyre_integrity_checks_total");
  const auto texts = clients.Stop();
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status << '\n' << story << ring.serve().output();
    EXPECT_EQ(text.finished, 1) << "text " << text.seed << '\n' << story;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed << '\n' << story;
  }
  EXPECT_GE(texts.size(), 8u);
  EXPECT_GE(acts, 3);
  // The engine checks its bookkeeping when it has nothing to do.
  for (int i = 0; i < 240 && chaos.Metric("gyre_integrity_checks_total") <= checks; ++i)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_GT(chaos.Metric("gyre_integrity_checks_total"), checks);
  chaos.Restarting();
  EXPECT_EQ(chaos.integrity_faults(), 0) << story << ring.serve().output();
  EXPECT_EQ(chaos.failed(), 0u);
  std::string kinds;
  for (const auto& [kind, n] : chaos.acts()) kinds += fmt::format("{}{} x {}", kinds.empty() ? "" : ", ", n, kind);
  fmt::print("{} acts ({}), {} texts; {} rings lost\n", acts, kinds, texts.size(), chaos.lost());

  // All that was open is closed again, and memory is as it was.
  const auto flat = [&](const Process& process, const Footprint& before) {
    const Footprint now = FootprintOf(process);
    return now.files <= before.files + 8 && (testing::kSanitized || now.kilobytes <= before.kilobytes * 3 / 2);
  };
  const auto told = [&](const std::string& name, const Process& process, const Footprint& before) {
    for (int i = 0; i < 100 && !flat(process, before); ++i) std::this_thread::sleep_for(milliseconds(50));
    const Footprint now = FootprintOf(process);
    const std::string words = fmt::format("{}: {} files and {} KiB at the beginning, {} and {} now", name, before.files,
                                          before.kilobytes, now.files, now.kilobytes);
    fmt::print("{}\n", words);
    EXPECT_TRUE(flat(process, before)) << words << '\n' << story;
  };
  told("the coordinator", ring.serve(), coordinator);
  for (size_t w : chaos.alive()) {
    const auto code = ring.worker(w).Wait(milliseconds(0));
    // A worker that can't write its cache says so and ends.
    if (code && ring.worker(w).output().find("No space left on device") != std::string::npos) continue;
    EXPECT_FALSE(code.has_value()) << "w" << w << " ended with " << *code << '\n' << story << ring.worker(w).output();
    if (!code) told(fmt::format("w{}", w), ring.worker(w), worker);
  }
}

}  // namespace
}  // namespace gyre::chaos_test
