// That OpenMP's threads wait actively between a stage's products, and not for long after them.
#include "cli/active_waiting.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "runtime/runtime.h"
#include "tests/testing/threads.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

TEST(ActiveWaitingTest, ALoaderKeepsNoThreadsOfItsTeam) {
#ifdef __clang__
  GTEST_SKIP() << "libgomp only";
#endif
  testing::TinyOptions tiny;
  tiny.type = DType::kQ8_0;
  tiny.dim = 256;
  tiny.ffn = 1024;  // so that packing is worth more than one thread
  testing::TinyModelFile model(tiny);
  RuntimeOptions options;
  options.model = model.path();
  options.threads = 4;
  options.quiet = true;
  const auto ring = Runtime::Open(options);
  ASSERT_TRUE(ring.ok()) << ring.status();
  for (int i = 0; i < 1000 && testing::ThreadsCalled("loader") != 1; ++i) usleep(5000);  // they end by themselves
  EXPECT_EQ(testing::ThreadsCalled("loader"), 1);
}

// Runs in the program that the test below starts.
TEST(ActiveWaitingTest, DISABLED_IsLimited) {
  const char* looks = std::getenv("GOMP_SPINCOUNT");
  ASSERT_NE(looks, nullptr);
  EXPECT_GE(std::atoi(looks), 500);
  EXPECT_LE(std::atoi(looks), 20'000);
}

TEST(ActiveWaitingTest, TheProgramStartsAnewWithALimit) {
#ifdef __clang__
  GTEST_SKIP() << "libgomp only";
#endif
  const std::string path = std::filesystem::read_symlink("/proc/self/exe").string();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    std::string words[] = {path, "--gtest_filter=ActiveWaitingTest.DISABLED_IsLimited",
                           "--gtest_also_run_disabled_tests"};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    LimitActiveWaiting(argv);
    _exit(99);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ActiveWaitingTest, WhoeverSetsItIsLeftAlone) {
  const std::array<const char*, 2> names{"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"};
  std::array<std::optional<std::string>, 2> kept;
  for (size_t i = 0; i < names.size(); ++i) {
    if (const char* before = std::getenv(names[i])) kept[i] = before;
    unsetenv(names[i]);
  }
  for (const char* name : names) {
    setenv(name, "passive", 1);
    LimitActiveWaiting(nullptr);  // comes back, and looks at nothing
    EXPECT_STREQ(std::getenv(name), "passive");
    unsetenv(name);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (kept[i]) setenv(names[i], kept[i]->c_str(), 1);
  }
}

}  // namespace
}  // namespace gyre
