// An etcd for one test, in a temporary folder, on ports that the system picks.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/standby/etcd_client.h"
#include "tests/testing/process.h"

namespace gyre::testing {

class Etcd {
 public:
  static bool Installed() { return std::filesystem::exists(kProgram); }
  Etcd() {
    char name[] = "/tmp/gyre-etcd-XXXXXX";
    folder_ = mkdtemp(name);
    host_ = "127.0.0.1:" + std::to_string(FreePort());
    const std::string url = "http://" + host_;
    process_ = std::make_unique<Process>(std::vector<std::string>{
        kProgram, "--data-dir", folder_ + "/data", "--listen-client-urls", url, "--advertise-client-urls", url,
        "--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "warn"});
  }
  ~Etcd() {
    process_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  // Waits until it answers.
  bool Serves() {
    auto options = ParseEtcdUrl(url());
    auto client = options.ok() ? EtcdClient::Make(*options) : options.status();
    for (int i = 0; client.ok() && i < 500; ++i) {
      if ((*client)->Get("a", After(std::chrono::milliseconds(500))).ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  std::string url() const { return "etcd://" + host_; }
  std::string output() const { return process_->output(); }
  void Kill(int signal) { process_->Kill(signal); }

 private:
  static constexpr const char* kProgram = "/usr/bin/etcd";
  // etcd takes no port 0 for clients, so a port that was free a moment ago is used.
  static int FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at);
    getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
    close(fd);
    return ntohs(at.sin_port);
  }

  std::string folder_, host_;
  std::unique_ptr<Process> process_;
};

}  // namespace gyre::testing
