// A cluster of real processes on loopback, started as a user starts them, and its clients. Tests that include it are
// built with GYRE_BINARY.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/remote.h"
#include "client/target.h"
#include "runtime/runtime.h"
#include "tests/testing/free_port.h"
#include "tests/testing/process.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"

namespace gyre::testing {

// One cluster of processes.
class Ring {
 public:
  // `before`: words in front of the coordinator's command.
  explicit Ring(std::string model, std::vector<std::string> serve_flags = {}, std::vector<std::string> before = {})
      : model_(std::move(model)) {
    std::vector<std::string> command = std::move(before);
    const std::string words[] = {GYRE_BINARY,    "serve", model_,    "--cluster", "127.0.0.1:0", "--kv-type", "f32",
                                 "--block-size", "4",     "--chunk", "8"};
    command.insert(command.end(), std::begin(words), std::end(words));
    command.insert(command.end(), serve_flags.begin(), serve_flags.end());
    // One with a state may be started again at the same addresses.
    if (std::find(command.begin(), command.end(), "--state") != command.end()) {
      for (std::string& word : command) {
        if (word == "127.0.0.1:0") word = "127.0.0.1:" + std::to_string(FreePort());
      }
    }
    Serve(std::move(command));
  }
  void Serve(std::vector<std::string> command) {
    command_ = command;
    serve_ = std::make_unique<Process>(std::move(command));
    const auto at = serve_->WaitFor("listening ");
    EXPECT_TRUE(at.has_value()) << serve_->output();
    address_ = at.value_or("");
  }
  // Kills the coordinator, and starts it again at the same addresses.
  void Restart() {
    const std::string http = serve_->WaitFor("listening http://", std::chrono::milliseconds(0)).value_or("");
    serve_->Kill(SIGKILL);
    serve_->Wait(std::chrono::seconds(10));
    std::vector<std::string> command = command_;
    for (size_t i = 1; i < command.size(); ++i) {
      if (command[i - 1] == "--cluster") command[i] = address_;
      if (command[i - 1] == "--http") command[i] = http;
    }
    Serve(std::move(command));
  }
  Process& AddWorker(const std::string& name, std::vector<std::string> flags = {}) {
    std::vector<std::string> command{GYRE_BINARY, "worker", "--join", address_, "--name", name, "-t", "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    return *workers_.emplace_back(std::make_unique<Process>(std::move(command)));
  }
  // Starts another program that joins.
  Process& AddProgram(std::vector<std::string> command) {
    return *workers_.emplace_back(std::make_unique<Process>(std::move(command)));
  }
  // Starts a worker whose name comes from its identity.
  Process& AddNamelessWorker(const std::vector<std::string>& flags) {
    std::vector<std::string> command{GYRE_BINARY, "worker", "--join", address_, "-t", "1"};
    command.insert(command.end(), flags.begin(), flags.end());
    return *workers_.emplace_back(std::make_unique<Process>(std::move(command)));
  }
  // Sets the identity with which this object asks.
  void UseIdentity(std::shared_ptr<const Identity> identity) { identity_ = std::move(identity); }
  ClusterAddress at() const { return {address_, identity_}; }
  std::string http() const { return serve_->WaitFor("listening http://").value_or(""); }
  // Asks for a resize to `ranges` until the workers are there.
  bool AsksFor(const std::string& ranges) {
    Status status;
    for (int i = 0; i < 2000; ++i) {
      const auto reply = AskResize(at(), ranges);
      status = reply.status();
      if (status.ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << status << serve_->output();
    return false;
  }
  // Waits until a plan of `stages` stages serves.
  bool Serves(int stages) {
    for (int i = 0; i < 4000; ++i) {
      auto status = FetchStatus(at());
      if (status.ok() && status->state() == "serving" && status->has_epoch()) {
        int owners = 0;
        for (const auto& m : status->members()) owners += m.has_layers();
        if (owners == stages) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::string said = serve_->output();
    for (const auto& worker : workers_) said += "\na worker said:\n" + worker->output();
    ADD_FAILURE() << said;
    return false;
  }
  Process& serve() { return *serve_; }
  Process& worker(size_t i) { return *workers_[i]; }
  const std::string& address() const { return address_; }

 private:
  const std::string model_;
  std::vector<std::string> command_;  // of the coordinator
  std::unique_ptr<Process> serve_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::string address_;
  std::shared_ptr<const Identity> identity_;
};

// Waits until every member's replica is whole up to its source's last step.
inline bool Replicated(const Ring& ring, int members) {
  for (int i = 0; i < 4000; ++i) {
    const auto status = FetchStatus(ring.address());
    int whole = 0;
    for (int m = 0; status.ok() && m < status->members_size(); ++m)
      whole += status->members(m).has_replica() && status->members(m).replica().whole() &&
               status->members(m).replica().behind() == 0 && status->members(m).replica().pages() > 0;
    if (whole == members) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "the replicas are not whole";
  return false;
}

// Waits until so many workers were lost.
inline bool Lost(const Ring& ring, uint64_t times) {
  for (int i = 0; i < 4000; ++i) {
    const auto status = FetchStatus(ring.address());
    if (status.ok() && status->lost() >= times) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

struct Answer {
  std::vector<TokenId> tokens;
  uint32_t cached = 0;  // of the prompt
};
inline Answer RunOver(const ClusterAddress& address, const Request& request) {
  Answer out;
  auto target = OpenRemote(address);
  EXPECT_TRUE(target.ok()) << target.status();
  if (!target.ok()) return out;
  const Status status = (*target)->Run(request, [&out](const Event& event) {
    if (const auto* t = std::get_if<TokenEvent>(&event)) out.tokens.push_back(t->token);
    if (const auto* f = std::get_if<Finished>(&event)) out.cached = f->usage.cached_tokens;
  });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

inline Request Ask(int seed, int vocab, uint32_t tokens) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  Request r;
  const size_t length = 3 + random() % 120;
  for (size_t i = 0; i < length; ++i)
    r.prompt.push_back(static_cast<TokenId>(3 + random() % static_cast<uint32_t>(vocab - 3)));
  r.max_new_tokens = tokens;
  r.sampling.temperature = seed % 2 == 0 ? 0 : 0.8f;
  r.sampling.seed = static_cast<uint64_t>(seed);
  r.ignore_end = true;
  return r;
}

// Eight clients that ask again and again.
class Clients {
 public:
  struct Text {
    int seed;
    std::vector<TokenId> tokens;
    Status status;
    int finished = 0;
  };
  Clients(const ClusterAddress& address, int vocab, uint32_t tokens) {
    for (int c = 0; c < 8; ++c) {
      ++running_;
      threads_.emplace_back([this, address, vocab, tokens, c] {
        AskOnAndOn(address, vocab, tokens, c);
        --running_;
      });
    }
  }
  ~Clients() { Stop(); }
  // Waits for what is being asked. A request that hangs for longer than a minute is given up: it has not finished.
  std::vector<Text> Stop() {
    stop_ = true;
    const Deadline late = After(std::chrono::minutes(1));
    while (running_ > 0 && Clock::now() < late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    given_up_ = true;
    for (auto& t : threads_) t.join();
    threads_.clear();
    return texts_;
  }
  void WaitForTokens(uint64_t more) const { WaitUntilTokens(tokens() + more); }
  // Gives up where nobody asks any more, or where nothing has come for two minutes.
  void WaitUntilTokens(uint64_t total) const {
    uint64_t seen = tokens();
    for (Deadline late = After(std::chrono::minutes(2)); seen < total;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (tokens() > seen) late = After(std::chrono::minutes(2));
      seen = tokens();
      if (seen >= total || (running_ > 0 && Clock::now() < late)) continue;
      ADD_FAILURE() << seen << " tokens came, expected " << total;
      return;
    }
  }
  // Whether all have ended by themselves, as they do after an error.
  bool Ended(size_t n) {
    std::lock_guard lock(mutex_);
    size_t failed = 0;
    for (const Text& t : texts_) failed += !t.status.ok();
    return failed == n;
  }
  uint64_t tokens() const { return tokens_; }
  size_t ended() {
    std::lock_guard lock(mutex_);
    return texts_.size();
  }
  static constexpr int kTexts = 16;

 private:
  void AskOnAndOn(const ClusterAddress& address, int vocab, uint32_t tokens, int client) {
    auto target = OpenRemote(address);
    if (!target.ok()) return;
    for (int i = 0; !stop_; ++i) {
      Text text{.seed = (client + 8 * i) % kTexts, .tokens = {}, .status = {}};
      text.status = (*target)->Run(
          Ask(text.seed, vocab, tokens),
          [&](const Event& event) {
            if (auto* t = std::get_if<TokenEvent>(&event)) {
              text.tokens.push_back(t->token);
              ++tokens_;
            }
            text.finished += std::holds_alternative<Finished>(event) ? 1 : 0;
          },
          [this] { return given_up_.load(); });
      const bool failed = !text.status.ok();
      {
        std::lock_guard lock(mutex_);
        texts_.push_back(std::move(text));
      }
      if (failed) return;
    }
  }

  std::atomic<bool> stop_{false}, given_up_{false};
  std::atomic<int> running_{0};
  std::atomic<uint64_t> tokens_{0};
  std::mutex mutex_;
  std::vector<Text> texts_;
  std::vector<std::thread> threads_;
};

// One process with one stage, and the same options as the processes of a Ring.
inline RuntimeOptions OneProcess(const std::string& model) {
  RuntimeOptions o;
  o.model = model;
  o.threads = 1;
  o.kv_type = "f32";
  o.block_size = 4;
  o.quiet = true;
  return o;
}

// The texts of Clients in such a process.
inline std::vector<std::vector<TokenId>> TextsOfOneProcess(const std::string& model, int vocab, uint32_t tokens) {
  RuntimeOptions options = OneProcess(model);
  options.speculation = "off";
  auto alone = Runtime::Open(options);
  EXPECT_TRUE(alone.ok()) << alone.status();
  std::vector<std::vector<TokenId>> out;
  for (int i = 0; alone.ok() && i < Clients::kTexts; ++i)
    out.push_back(RunOne((*alone)->engine(), Ask(i, vocab, tokens)).tokens);
  return out;
}

class ProcessesTest : public ::testing::Test {
 protected:
  TinyModelFile model_{TinyOptions{.layers = 6}};
};

}  // namespace gyre::testing
