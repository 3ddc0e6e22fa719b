// The processors that a process may use, pinned threads, and how a team divides work.
#include "base/cpus.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/affinity.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"
#include "tests/testing/threads.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string List(const std::vector<int>& cpus) {
  std::string out;
  for (const int cpu : cpus) out += (out.empty() ? "" : ",") + std::to_string(cpu);
  return out;
}

TEST(CpusTest, CoresAreOfTheAffinityMask) {
  const std::vector<int> mask = AffinityMask(), cores = UsableCores();
  ASSERT_FALSE(cores.empty());
  EXPECT_EQ(std::set<int>(cores.begin(), cores.end()).size(), cores.size());
  for (const int cpu : cores) EXPECT_THAT(mask, ::testing::Contains(cpu));
  EXPECT_LE(DefaultThreads(), static_cast<int>(cores.size()));
  EXPECT_GE(DefaultThreads(), 1);
  // The mask belongs to a thread: one that may use a single processor sees a single core.
  std::thread([&] {
    ASSERT_TRUE(PinThread({&mask.back(), 1}));
    EXPECT_THAT(UsableCores(), ElementsAre(mask.back()));
    EXPECT_EQ(DefaultThreads(), 1);
  }).join();
}

TEST(CpusTest, ListsAreReadAndRefused) {
  const std::vector<int> mask = AffinityMask();
  EXPECT_EQ(ParseCpuList(List(mask)).value(), mask);
  EXPECT_THAT(ParseCpuList(List({mask[0]}) + "-" + List({mask[0]})).value(), ElementsAre(mask[0]));
  const std::string twice = List({mask[0], mask[0]});
  EXPECT_THAT(Message(ParseCpuList(twice).status()), HasSubstr("is there twice"));
  EXPECT_THAT(Message(ParseCpuList("4095").status()), HasSubstr("this process may not use processor 4095"));
  EXPECT_THAT(Message(ParseCpuList("3-1").status()), HasSubstr("the range 3-1 is empty"));
  EXPECT_THAT(Message(ParseCpuList("0-2147483647").status()), HasSubstr("there is no processor 2147483647"));
  for (const char* bad : {"", "a", "0,", ",0", "0-", "-1", "0 1", "99999999999", "0-1-2"}) {
    EXPECT_THAT(Message(ParseCpuList(bad).status()), HasSubstr("expected processors as 0-3,8")) << bad;
  }
}

TEST(CpusTest, ThreadsAndProcessorsAgree) {
  const std::vector<int> mask = AffinityMask();
  EXPECT_EQ(ChooseCpus(3, "").value().threads, 3);
  EXPECT_TRUE(ChooseCpus(3, "").value().cpus.empty());
  EXPECT_EQ(ChooseCpus(0, "").value().threads, DefaultThreads());
  EXPECT_EQ(ChooseCpus(0, List(mask)).value().threads, static_cast<int>(mask.size()));
  EXPECT_THAT(ChooseCpus(1, List(mask)).value().cpus, ElementsAre(mask[0]));
  EXPECT_THAT(Message(ChooseCpus(static_cast<int>(mask.size()) + 1, List(mask)).status()),
              HasSubstr("--cpus " + List(mask) + " has"));
}

TEST(CpusTest, ATeamsThreadsStayOnTheirProcessors) {
  const std::vector<int> mask = AffinityMask();
  if (mask.size() < 2) GTEST_SKIP() << "one processor only";
  std::thread([&] {
    const std::vector<int> cpus{mask[1], mask[0]};
    const cpu::Team team(2, cpus);
    std::vector<std::vector<int>> seen(2);
    team.ForStatic(2, 1, 1e9, [&](size_t begin, size_t) { seen[begin] = AffinityMask(); });
    EXPECT_THAT(seen[0], ElementsAre(mask[0], mask[1]));
    EXPECT_THAT(seen[1], ElementsAre(cpus[1]));
  }).join();
  std::thread([&] {
    const cpu::Team alone(1, {mask[1]});
    alone.For(5, 1, 1, [](size_t, size_t) {});
    EXPECT_THAT(AffinityMask(), ElementsAre(mask[1]));
  }).join();
}

TEST(CpusTest, ASmallerRegionEndsNoThread) {
  const cpu::Team team(4);
  const auto threads = [&](size_t items) {
    std::vector<pid_t> ids(items);
    team.ForStatic(items, 1, 1e9, [&](size_t begin, size_t) { ids[begin] = gettid(); });
    return std::set<pid_t>(ids.begin(), ids.end());
  };
  const std::set<pid_t> before = threads(4);
  EXPECT_EQ(before.size(), 4u);
  EXPECT_EQ(threads(2).size(), 2u);
  EXPECT_EQ(threads(4), before);
}

// The thread with the first item waits until all others are done, so the rest of its range must be stolen.
TEST(CpusTest, ASlowThreadsWorkIsTakenOver) {
  const cpu::Team team(3);
  constexpr size_t kItems = 100;
  std::vector<std::atomic<int>> times(kItems);
  std::atomic<size_t> done{0};
  size_t before = 0;
  team.For(kItems, 1, 1e9, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) ++times[i];
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begin == 0 && done + end < kItems && std::chrono::steady_clock::now() < late) std::this_thread::yield();
    if (begin == 0) before = done;
    done += end - begin;
  });
  EXPECT_GT(before, kItems * 9 / 10);
  for (size_t i = 0; i < kItems; ++i) EXPECT_EQ(times[i], 1) << i;
}

// For any number of threads and any grain.
TEST(CpusTest, EveryItemIsDoneOnce) {
  for (const int threads : {1, 2, 3, 8, 70}) {
    const cpu::Team team(threads);
    for (const size_t grain : {1, 4, 7}) {
      for (const size_t items : {0, 1, 5, 64, 129, 1000}) {
        std::vector<std::atomic<int>> times(items);
        auto once = [&](size_t begin, size_t end) {
          EXPECT_EQ(begin % grain, 0u);
          for (size_t i = begin; i < end; ++i) ++times[i];
        };
        team.For(items, grain, 1e9, once);
        team.ForStatic(items, grain, 1e9, once);
        for (size_t i = 0; i < items; ++i)
          ASSERT_EQ(times[i], 2) << threads << " " << grain << " " << items << " " << i;
      }
    }
  }
}

// The threads with which the loader packed must not keep a stage's threads from spinning.
TEST(TeamTest, EndTeamThreadsEndsThem) {
#ifdef __clang__
  GTEST_SKIP() << "libgomp only";
#endif
  constexpr char kName[] = "team thread";
  auto threads = [&] { return testing::ThreadsCalled(kName); };
  std::thread([&] {
    pthread_setname_np(pthread_self(), kName);
    const cpu::Team team(4);
    team.For(4, 1, 1e9, [](size_t, size_t) {});
    EXPECT_EQ(threads(), 4);
    EndTeamThreads();
    for (int i = 0; i < 1000 && threads() != 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(threads(), 1);
    std::atomic<size_t> all = 0;
    team.For(4, 1, 1e9, [&](size_t begin, size_t end) { all += end - begin; });
    EXPECT_EQ(all, 4u);
  }).join();
}

}  // namespace
}  // namespace gyre
