#include "limits/machine_speed.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/memory.h"
#include "fmt/core.h"
#include "limits/machine_limits.h"

namespace gyre {
namespace {

bool HasOwnSpeed(const MeasureOptions& o) { return o.device != nullptr && !o.device->hardware().empty(); }

// The key of the kept numbers: this start of the machine, and the number of threads and the instruction set, or the
// device.
std::string KeyOf(const MeasureOptions& options) {
  const StatusOr<std::string> boot = ReadSmallFile("/proc/sys/kernel/random/boot_id");
  if (!boot.ok()) return "";
  const std::string start = boot->substr(0, boot->find('\n'));
  if (HasOwnSpeed(options)) return fmt::format("{} {} 0", start, options.device->hardware());
  return fmt::format("{} {} {}", start, IsaName(options.isa), options.threads);
}

// The name, in the kept numbers, of the disk that a file lies on; "" = there is no such file.
std::string DiskOf(const std::string& file) {
  struct stat found {};
  if (file.empty() || stat(file.c_str(), &found) != 0) return "";
  return std::to_string(found.st_dev);
}

// A kept file has lines "BOOT ISA THREADS NAME VALUE", with NAME "memory", "operations" or a disk's; a device has its
// hardware and 0 in place of ISA and THREADS. Lines of another start of the machine are dropped.
struct Kept {
  std::string key;  // "" = nothing is kept
  std::vector<std::string> others;
  std::vector<std::pair<std::string, double>> values;

  static Kept Read(const MeasureOptions& options) {
    Kept kept;
    if (options.kept.empty()) return kept;
    kept.key = KeyOf(options);
    const std::string boot = kept.key.substr(0, kept.key.find(' '));
    std::istringstream text(ReadSmallFile(options.kept).value_or(""));
    for (std::string line; std::getline(text, line) && kept.others.size() < 256;) {
      if (line.rfind(kept.key + " ", 0) == 0) {
        std::istringstream rest(line.substr(kept.key.size()));
        std::string name;
        double value = 0;
        if (rest >> name >> value && value > 0) kept.values.emplace_back(name, value);
      } else if (line.rfind(boot + " ", 0) == 0) {
        kept.others.push_back(line);
      }
    }
    return kept;
  }
  double Find(const std::string& name) const {
    for (const auto& [known, value] : values) {
      if (known == name) return value;
    }
    return 0;
  }
  void Write(const std::string& path) const {
    std::string text;
    for (const std::string& line : others) text += line + "\n";
    for (const auto& [name, value] : values) text += fmt::format("{} {} {:.0f}\n", key, name, value);
    // If the folder can't be written, the next process only has to measure again, for half a second.
    ReplaceFile(path, text, 0644).IgnoreError();
  }
};

// Processes of one machine measure one after the other, as they would slow each other down. Those that waited then find
// the numbers.
class OneAtATime {
 public:
  explicit OneAtATime(const std::string& kept) {
    if (kept.empty()) return;
    const size_t slash = kept.rfind('/');
    if (slash != std::string::npos) MakeFolder(kept.substr(0, slash)).IgnoreError();
    fd_ = open((kept + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    // A process that holds the lock for longer than a measurement takes may be stopped: then two measure at once.
    const Deadline give_up = After(std::chrono::seconds(5));
    while (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && Clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~OneAtATime() {
    if (fd_ >= 0) close(fd_);  // and the lock is gone
  }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

 private:
  int fd_ = -1;
};

// A device that fails has no speed; what is wrong with it is told by the layers that it gets.
DeviceSpeed TryMeasure(Device& device) {
  try {
    return device.Measure();
  } catch (const std::exception&) {
    return {};
  }
}

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

double ReadRateOfDisk(const std::string& file) {
  constexpr size_t kPart = size_t{1} << 20, kMost = 64;
  int fd = open(file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(4096, kPart), std::free);
  size_t bytes = 0;
  const Deadline began = Clock::now();
  for (size_t i = 0; buffer != nullptr && i < kMost && Clock::now() - began < std::chrono::milliseconds(200); ++i) {
    const ssize_t n = pread(fd, buffer.get(), kPart, static_cast<off_t>(bytes));
    if (n <= 0) break;
    bytes += static_cast<size_t>(n);
    if (static_cast<size_t>(n) < kPart) break;
  }
  const double took = Seconds(Clock::now() - began);
  close(fd);
  return bytes < kPart || took <= 0 ? 0 : static_cast<double>(bytes) / took;
}

MachineSpeed MeasureMachine(const MeasureOptions& options) {
  const OneAtATime lock(options.kept);
  Kept kept = Kept::Read(options);
  bool measured = false;
  const auto take = [&](const std::string& name, const auto& measure) -> double {
    if (const double known = kept.Find(name); known > 0) return known;
    const double value = std::round(measure());  // as it is kept, so that all processes have the same number
    if (value > 0) kept.values.emplace_back(name, value);
    measured |= value > 0;
    return value;
  };
  MachineSpeed speed;
  const bool own_speed = HasOwnSpeed(options);
  std::optional<DeviceSpeed> of_device;  // measured once for both numbers
  const auto device_speed = [&] {
    if (!of_device) of_device = TryMeasure(*options.device);
    return *of_device;
  };
  speed.operations_per_second = take("operations", [&] {
    return own_speed ? device_speed().operations_per_second
                     : bench::PeakOps(options.isa, bench::Unit::kInteger, options.threads);
  });
  speed.memory_bytes_per_second = take("memory", [&]() -> double {
    if (own_speed) return device_speed().bytes_per_second;
    constexpr uint64_t kWanted = uint64_t{192} << 20, kLeast = uint64_t{32} << 20;
    const uint64_t free = AvailableMemory();
    const uint64_t bytes = free == 0 ? kWanted : std::min(kWanted, free / 8);
    return bytes < kLeast ? 0 : bench::ReadBandwidth(options.threads, bytes, 3);
  });
  if (const std::string disk = DiskOf(options.file); !disk.empty()) {
    speed.disk_bytes_per_second = take("disk-" + disk, [&] { return ReadRateOfDisk(options.file); });
  }
  if (measured && !kept.key.empty()) kept.Write(options.kept);
  return speed;
}

}  // namespace gyre
