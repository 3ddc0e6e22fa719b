// Downloads in a process that is killed, or onto a disk that is full: a wrong byte never gets
// the file's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "hub/download.h"
#include "hub/partial_file.h"
#include "tests/testing/certificates.h"
#include "tests/testing/local_hub.h"
#include "tests/testing/process.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::HubFaults;
using testing::LocalHub;

constexpr size_t kKillSize = (size_t{3} << 20) + 17;

DownloadOptions QuickOptions() {
  return {.connections = 4,
          .range_bytes = 200000,
          .idle_timeout = seconds(20),
          .first_pause = milliseconds(5),
          .longest_pause = milliseconds(40),
          .save_every = milliseconds(5)};
}

std::string BytesOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Checks that the bytes in the note are on the disk.
void ExpectTrueNote(const std::string& path, const std::string& content) {
  const std::string note = BytesOf(StatePath(path));
  if (note.empty()) return;
  const std::optional<PartialState> state = DecodePartialState(note);
  ASSERT_TRUE(state.has_value()) << note;
  const std::string there = BytesOf(std::filesystem::exists(path) ? path : PartialPath(path));
  for (const auto& [begin, end] : state->done.ranges()) {
    ASSERT_TRUE(there.substr(begin, end - begin) == content.substr(begin, end - begin)) << note;
  }
}

// The process that is killed: this program again, told by its environment what to download.
TEST(HubKilledProcess, Downloads) {
  const char* url = std::getenv("GYRE_TEST_URL");
  if (url == nullptr) GTEST_SKIP() << "part of HubKillTest";
  const HubOptions hub{.endpoint = std::getenv("GYRE_TEST_ENDPOINT")};
  const StatusOr<DownloadResult> result = Download(
      {.url = url, .path = std::getenv("GYRE_TEST_PATH"), .size = kKillSize, .sha256 = std::getenv("GYRE_TEST_SHA256")},
      hub, QuickOptions());
  ASSERT_TRUE(result.ok()) << result.status();
  fmt::print("resumed {}\n", result->resumed);
}

TEST(HubKillTest, AnyMomentMayBeTheLast) {
  const char* told = std::getenv("GYRE_HUB_KILLS");
  const int runs = told == nullptr ? 5 : std::atoi(told);
  const std::string content = testing::NoiseBytes(kKillSize);
  testing::Folder folder;
  LocalHub hub;
  hub.AddFile("org/repo", "model.gguf", content);
  hub.Fault([](HubFaults& f) { f.bytes_per_second = 3 << 20, f.links_last = 20; });
  const std::string path = folder / "model.gguf";
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"GYRE_TEST_URL", hub.FileUrl("org/repo", "model.gguf")},
                                          {"GYRE_TEST_ENDPOINT", hub.endpoint()},
                                          {"GYRE_TEST_PATH", path},
                                          {"GYRE_TEST_SHA256", testing::HexDigest(content)}}) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::mt19937 random(static_cast<unsigned>(runs));
  int killed = 0, resumed = 0;
  for (int run = 0; run < runs; ++run) {
    SCOPED_TRACE(run);
    for (unsigned kills = 0;; ++kills) {
      testing::Process child({self, "--gtest_filter=HubKilledProcess.*"});
      // On a busy machine a process needs longer to begin: the later ones live longer, so that the download gets on.
      std::optional<int> code = child.Wait(milliseconds(20 + random() % (500 + 50 * kills)));
      if (!code.has_value()) {
        child.Kill(SIGKILL);
        code = child.Wait(seconds(20));
      }
      if (code == 128 + SIGKILL) {
        ++killed;
        ExpectTrueNote(path, content);
        // A name that is there means that it is whole.
        if (std::filesystem::exists(path)) ASSERT_TRUE(BytesOf(path) == content);
        continue;
      }
      ASSERT_EQ(code, 0) << child.output();
      resumed += child.output().find("resumed 0\n") == std::string::npos;
      break;
    }
    ASSERT_TRUE(BytesOf(path) == content);
    ASSERT_FALSE(std::filesystem::exists(PartialPath(path)));
    ASSERT_FALSE(std::filesystem::exists(StatePath(path)));
    std::filesystem::remove(path);
  }
  unsetenv("GYRE_TEST_URL");
  EXPECT_GT(killed, 0);
  EXPECT_GT(resumed, 0);
  fmt::print("{} runs, {} killed, {} went on from what was there\n", runs, killed, resumed);
}

class HubFullDiskTest : public ::testing::Test {
 protected:
  HubFullDiskTest() { hub_.AddFile("org/repo", "model.gguf", content_); }
  StatusOr<DownloadResult> Run(const std::string& url, const std::string& path, std::optional<uint64_t> size) {
    const HubOptions hub{.endpoint = hub_.endpoint()};
    return Download({.url = url, .path = path, .size = size, .sha256 = testing::HexDigest(content_)}, hub,
                    QuickOptions());
  }
  const std::string content_ = testing::NoiseBytes(kKillSize);
  testing::Folder folder_;
  LocalHub hub_;
  const std::string url_ = hub_.FileUrl("org/repo", "model.gguf");
};

TEST_F(HubFullDiskTest, IsSeenBeforeAndOutlastedAfter) {
  // Chunks tell no size: the disk's end comes as a surprise.
  testing::HttpPeer peer([&](testing::HttpPeer::Call& call) {
    call.BeginStream();
    for (size_t at = 0; at < content_.size(); at += 100000) call.Chunk(content_.substr(at, 100000));
    call.EndStream();
  });
  bool mounted = false;
  // The mount is that thread's alone.
  std::thread other([&] {
    mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              mkdir((folder_ / "disk").c_str(), 0700) == 0 &&
              mount("none", (folder_ / "disk").c_str(), "tmpfs", 0, "size=2m") == 0;
    if (!mounted) return;
    const std::string path = folder_ / "disk/model.gguf";
    Status status = Run(url_, path, kKillSize).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(Message(status), HasSubstr("free"));
    EXPECT_LE(hub_.counts().bytes, 1u) << "it is known before the bytes come";
    status = Run(peer.url(), path, std::nullopt).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "disk")) << "nothing is left that nobody could use";
    // The file fits, to the last page; its note does not.
    EXPECT_EQ(mount("none", (folder_ / "disk").c_str(), "tmpfs", MS_REMOUNT, "size=3076k"), 0);
    status = Run(url_, path, kKillSize).status();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(BytesOf(path) == content_);
  });
  other.join();
  if (!mounted) GTEST_SKIP() << "no mounts here";
}

TEST_F(HubFullDiskTest, ALimitOfTheProcessIsSeenBefore) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &small);
  const Status status = Run(url_, folder_ / "model.gguf", kKillSize).status();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Message(status), HasSubstr("ulimit -f"));
}

}  // namespace
}  // namespace gyre
