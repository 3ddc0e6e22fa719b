// The cores that gyre launch gives to the workers of one machine.
#include "cli/share_cores.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/affinity.h"

namespace gyre {
namespace {

using Commands = std::vector<std::vector<std::string>>;

Commands Shared(Commands commands, std::vector<int> cores, size_t most = 100) {
  std::vector<std::vector<std::string>*> pointers;
  for (auto& c : commands) pointers.push_back(&c);
  ShareCores(pointers, std::move(cores), most);
  return commands;
}

TEST(ShareCoresTest, EachGetsItsOwn) {
  EXPECT_EQ(Shared({{"worker"}, {"worker"}, {"worker"}}, {0, 2, 4, 6}),
            (Commands{{"worker", "--cpus", "0"}, {"worker", "--cpus", "2"}, {"worker", "--cpus", "4,6"}}));
  EXPECT_EQ(Shared({{"a"}, {"b"}}, {0, 1}), (Commands{{"a", "--cpus", "0"}, {"b", "--cpus", "1"}}));
}

TEST(ShareCoresTest, AThreadEachWhereThereAreTooFew) {
  EXPECT_EQ(Shared({{"a"}, {"b"}, {"c"}}, {0, 1}),
            (Commands{{"a", "--threads", "1"}, {"b", "--threads", "1"}, {"c", "--threads", "1"}}));
}

TEST(ShareCoresTest, OneAloneAndWhoSpeaksAreLeftAlone) {
  EXPECT_EQ(Shared({{"a"}}, {0, 1, 2}), (Commands{{"a"}}));
  for (const std::vector<std::string>& words :
       Commands{{"-t", "2"}, {"-t2"}, {"-t=2"}, {"--threads", "2"}, {"--threads=2"}}) {
    EXPECT_EQ(Shared({words, {"b"}}, {0, 1, 2, 3}), (Commands{words, {"b", "--cpus", "0,1"}})) << words[0];
  }
  EXPECT_EQ(Shared({{"--config", "a.toml"}, {"b"}}, {0, 1}),
            (Commands{{"--config", "a.toml"}, {"b", "--cpus", "0,1"}}));
  EXPECT_EQ(Shared({{"--threads", "9"}, {"b"}}, {0, 1}), (Commands{{"--threads", "9"}, {"b", "--threads", "1"}}));
}

TEST(ShareCoresTest, UnderAQuotaThreadsAreCountedOnly) {
  EXPECT_EQ(Shared({{"a"}, {"b"}, {"c"}}, {0, 1, 2, 3, 4, 5, 6, 7}, 4),
            (Commands{{"a", "--threads", "1"}, {"b", "--threads", "1"}, {"c", "--threads", "2"}}));
  EXPECT_EQ(Shared({{"a"}, {"b"}}, {0, 1, 2, 3}, 1), (Commands{{"a", "--threads", "1"}, {"b", "--threads", "1"}}));
}

TEST(ShareCoresTest, AnEmptyWordIsNoFlag) {
  EXPECT_EQ(Shared({{"--model", "", "--name", "a"}, {"b"}}, {0, 1}),
            (Commands{{"--model", "", "--name", "a", "--cpus", "0"}, {"b", "--cpus", "1"}}));
}

TEST(ShareCoresTest, NamedProcessorsAreNotGivenAgain) {
  const std::vector<int> mask = AffinityMask();
  const int mine = mask.front();
  std::vector<int> cores{mine, 5000, 5001};
  EXPECT_EQ(Shared({{"--cpus", std::to_string(mine)}, {"b"}, {"c"}}, cores),
            (Commands{{"--cpus", std::to_string(mine)}, {"b", "--cpus", "5000"}, {"c", "--cpus", "5001"}}));
}

}  // namespace
}  // namespace gyre
