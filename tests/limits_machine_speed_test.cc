// The measured speeds of a machine, and how long they are kept.
#include "limits/machine_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/files.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MachineSpeedTest : public ::testing::Test {
 protected:
  MachineSpeedTest() { std::filesystem::remove_all(folder_); }
  ~MachineSpeedTest() override { std::filesystem::remove_all(folder_); }
  MeasureOptions Options() const { return {.isa = DetectIsa(), .threads = 1, .file = "", .kept = kept_}; }
  static std::string Boot() {
    const std::string text = ReadSmallFile("/proc/sys/kernel/random/boot_id").value_or("");
    return text.substr(0, text.find('\n'));
  }
  void Keep(const std::string& text) const {
    ASSERT_TRUE(MakeFolder(folder_).ok());
    ASSERT_TRUE(ReplaceFile(kept_, text, 0644).ok());
  }

  const std::string folder_ =
      (std::filesystem::temp_directory_path() / fmt::format("gyre-speed-{}", getpid())).string();
  const std::string kept_ = folder_ + "/in/machine-speeds";
};

TEST_F(MachineSpeedTest, IsMeasuredOnceAndKept) {
  const MachineSpeed first = MeasureMachine(Options());
  EXPECT_GT(first.memory_bytes_per_second, 1e7);
  EXPECT_EQ(first.disk_bytes_per_second, 0) << "no file was named";
  EXPECT_EQ(MeasureMachine(Options()), first);
  EXPECT_THAT(*ReadSmallFile(kept_), HasSubstr(Boot() + " "));
  // Without a place for it, it is measured again.
  MeasureOptions options = Options();
  options.kept = "/proc/no/such/folder";
  EXPECT_GT(MeasureMachine(options).memory_bytes_per_second, 1e7);
}

TEST_F(MachineSpeedTest, NumbersHoldForThisStartAndTheseThreads) {
  std::filesystem::create_directories(folder_ + "/in");
  const std::string key = fmt::format("{} {} 1", Boot(), IsaName(DetectIsa()));
  Keep(fmt::format(
      "{0} memory 123\n{0} operations 456\n{0} disk-1 rubbish\nno line\nanother-boot x 1 memory 9\n{1} other 7 "
      "memory 5\n",
      key, Boot()));
  const MachineSpeed known = MeasureMachine(Options());
  EXPECT_EQ(known.memory_bytes_per_second, 123);
  EXPECT_EQ(known.operations_per_second, 456);
  // Something new is measured: what is of another start goes, what is of other threads stays.
  MeasureOptions options = Options();
  options.file = folder_ + "/model";
  ASSERT_TRUE(ReplaceFile(options.file, std::string(4 << 20, 'x'), 0644).ok());
  EXPECT_GT(MeasureMachine(options).disk_bytes_per_second, 0);
  const std::string text = *ReadSmallFile(kept_);
  EXPECT_THAT(text, HasSubstr(key + " memory 123"));
  EXPECT_THAT(text, HasSubstr(" other 7 memory 5"));
  EXPECT_THAT(text, HasSubstr(" disk-"));
  EXPECT_THAT(text, Not(HasSubstr("another-boot")));
}

TEST_F(MachineSpeedTest, TwoThatBeginAtOnceHaveTheSameNumbers) {
  MachineSpeed one, other;
  std::thread beside([&] { other = MeasureMachine(Options()); });
  one = MeasureMachine(Options());
  beside.join();
  EXPECT_EQ(one, other);
}

TEST_F(MachineSpeedTest, AFileThatCantBeReadHasNoSpeed) {
  EXPECT_EQ(ReadRateOfDisk(folder_ + "/nothing"), 0);
  ASSERT_TRUE(MakeFolder(folder_).ok());
  EXPECT_EQ(ReadRateOfDisk(folder_), 0);
  ASSERT_TRUE(ReplaceFile(folder_ + "/small", "x", 0644).ok());
  EXPECT_EQ(ReadRateOfDisk(folder_ + "/small"), 0) << "too little to say anything";
}

}  // namespace
}  // namespace gyre
