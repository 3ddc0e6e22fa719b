// An etcd for one test, in a temporary folder. It takes no port 0 for clients.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/state/etcd_client.h"
#include "tests/testing/free_port.h"
#include "tests/testing/process.h"

namespace gyre::testing {

// The settings of an etcd that is not on loopback, or has TLS.
struct EtcdSettings {
  std::string host;                   // HOST:PORT of another network; "" = loopback, any port
  std::vector<std::string> before;    // words in front of the command, which run it on that network
  std::string cert, key, clients_ca;  // PEM files for TLS: clients need a certificate of that CA; "" = none
};

class Etcd {
 public:
  static bool Installed() { return std::filesystem::exists(kProgram); }
  explicit Etcd(const EtcdSettings& settings = {}) : tls_(!settings.cert.empty()) {
    char name[] = "/tmp/gyre-etcd-XXXXXX";
    folder_ = mkdtemp(name);
    host_ = settings.host.empty() ? "127.0.0.1:" + std::to_string(FreePort()) : settings.host;
    const std::string url = (tls_ ? "https://" : "http://") + host_;
    std::vector<std::string> command = settings.before;
    const std::string words[] = {
        kProgram, "--data-dir",         folder_ + "/data",    "--listen-client-urls", url,   "--advertise-client-urls",
        url,      "--listen-peer-urls", "http://127.0.0.1:0", "--log-level",          "warn"};
    command.insert(command.end(), std::begin(words), std::end(words));
    if (tls_) {
      for (const std::string& word :
           {std::string("--cert-file"), settings.cert, std::string("--key-file"), settings.key,
            std::string("--client-cert-auth"), std::string("--trusted-ca-file"), settings.clients_ca}) {
        command.push_back(word);
      }
    }
    process_ = std::make_unique<Process>(std::move(command));
  }
  ~Etcd() {
    process_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  // Waits until it answers. With TLS: whoever has these files.
  bool Serves(const std::string& ca = "", const std::string& cert = "", const std::string& key = "") {
    auto options = ParseEtcdUrl(url());
    if (options.ok()) options->ca = ca, options->cert = cert, options->key = key;
    auto client = options.ok() ? EtcdClient::Make(*options) : options.status();
    for (int i = 0; client.ok() && i < 500; ++i) {
      if ((*client)->Get("a", After(std::chrono::milliseconds(500))).ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  std::string url() const { return (tls_ ? "etcds://" : "etcd://") + host_; }
  const std::string& host() const { return host_; }
  std::string output() const { return process_->output(); }
  void Kill(int signal) { process_->Kill(signal); }

 private:
  static constexpr const char* kProgram = "/usr/bin/etcd";

  const bool tls_;
  std::string folder_, host_;
  std::unique_ptr<Process> process_;
};

}  // namespace gyre::testing
