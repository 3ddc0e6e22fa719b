// The memory of a machine and of a container.
#include "base/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gyre {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(MemoryTest, WhatThisProcessKeepsIsItsOwn) {
  const uint64_t before = PrivateBytes();
  EXPECT_GT(before, 0u);
  const std::vector<char> kept(64 * kMiB, 'x');
  EXPECT_GE(PrivateBytes() + kMiB, before + kept.size());
  EXPECT_GT(AvailableMemory(), 0u);
}

// A tree of control groups in a folder.
class GroupsTest : public ::testing::Test {
 protected:
  GroupsTest() {
    char folder[] = "/tmp/gyre-groups-XXXXXX";
    root_ = mkdtemp(folder);
  }
  ~GroupsTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(root_) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  uint64_t Room(const std::string& own) const {
    Write("own", own);
    return RoomInGroups(root_, root_ + "/own");
  }
  std::string root_;
};

TEST_F(GroupsTest, TheTightestGroupCounts) {
  EXPECT_EQ(Room("0::/"), UINT64_MAX);
  Write("a/b/memory.max", "max");
  Write("a/b/memory.current", "5000");
  EXPECT_EQ(Room("0::/a/b"), UINT64_MAX);
  Write("a/memory.max", "10000");
  Write("a/memory.current", "6000");
  EXPECT_EQ(Room("0::/a/b"), 4000u);
  // Pages of files give way.
  Write("a/memory.stat", "anon 3500\nfile 2500\ninactive_file 1000\nactive_file 500\nfile_mapped 700");
  EXPECT_EQ(Room("0::/a/b"), 5500u);
  Write("a/b/memory.max", "5100");
  EXPECT_EQ(Room("0::/a/b"), 100u);
  Write("a/b/memory.current", "9000");
  EXPECT_EQ(Room("0::/a/b"), 1u) << "nothing is left, which is not unknown";
  EXPECT_EQ(Room("0::/other"), UINT64_MAX);
}

TEST_F(GroupsTest, AContainerShowsItsGroupAsTheRoot) {
  Write("memory.max", "10000");
  Write("memory.current", "4000");
  EXPECT_EQ(Room("0::/"), 6000u);
  EXPECT_EQ(Room("0::/kubepods/pod1/container1"), 6000u) << "the path is the host's";
}

TEST_F(GroupsTest, Version1HasAHierarchyOfItsOwn) {
  Write("memory/a/memory.limit_in_bytes", "10000");
  Write("memory/a/memory.usage_in_bytes", "4000");
  Write("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 1000");
  Write("memory/memory.limit_in_bytes", "9223372036854771712");
  Write("memory/memory.usage_in_bytes", "4000");
  EXPECT_EQ(Room("9:cpu,cpuacct:/x\n4:memory:/a/b\n0::/"), 7000u);
}

}  // namespace
}  // namespace gyre
