#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace gyre::testing {

// A small disk, where the system allows to mount one; else a folder.
class SmallDisk {
 public:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directory(folder_);
    // Seen by this process and those that it starts, and gone with them.
    mounted_ = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               mount("none", folder_.c_str(), "tmpfs", 0, "size=48m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  const std::string& folder() const { return folder_; }
  // Leaves no room on it. False: it has no limit.
  bool Fill() const {
    if (!mounted_) return false;
    const int fd = open(Filler().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const std::vector<char> bytes(64 << 10);
    size_t step = bytes.size();
    while (step > 0) {
      if (write(fd, bytes.data(), step) <= 0) step /= 2;
    }
    close(fd);
    return true;
  }
  void Empty() const { std::filesystem::remove(Filler()); }

 private:
  std::string Filler() const { return folder_ + "/filler"; }
  const std::string folder_;
  bool mounted_ = false;
};

}  // namespace gyre::testing
