// The speed of a ring over a network that loses and reorders packets, by carrier: tokens a second of streams that
// decode at once. Coordinator and two workers are on hosts of their own (tests/testing/lossy_network.h); all cases have
// the same delay and rate. One JSON object per case on stdout. Needs root.
//
//   lossy_bench MODEL [--loss 0.05] [--reorder 0.02] [--delay-ms 10] [--mbit 1000] [--streams 8] [--tokens 100]
//               [--runs 3]
//   lossy_bench bytes ...               bytes through one connection instead of tokens
//   lossy_bench MODEL --switch          TCP and UDP without loss, over veth devices with tbf instead
//   lossy_bench MODEL --steps 0,1,2,... over TCP without loss, with so many steps in flight; 0: as many as are chosen
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "client/remote.h"
#include "client/target.h"
#include "fmt/core.h"
#include "runtime/measure.h"
#include "tests/testing/lossy_network.h"
#include "tests/testing/switched_network.h"
#include "transport/ring_port.h"

namespace gyre {
namespace {

using bench::Continue;
using bench::Median;
using testing::LossyNetwork;
using testing::PacketPath;
using testing::Process;
using testing::SwitchedNetwork;

struct Flags {
  std::string model;
  std::string self, gyre;
  std::string client;    // an address: this process is the client of a ring
  std::string transfer;  // an address: this process sends bytes there
  std::string listen;    // this process takes bytes
  std::string carrier;
  double loss = 0.05, reorder = 0.02, megabits = 1000;
  int delay_ms = 10;
  int streams = 8, runs = 3, prompt = 16;
  uint32_t tokens = 100;
  double seconds = 5;
  std::vector<int> steps;
  bool over_switch = false;
};

[[noreturn]] void Fail(const std::string& why) {
  fmt::print(stderr, "lossy_bench: {}\n", why);
  std::exit(1);
}

// Streams that decode at once; prints the rate while all of them do, and a hash of all texts.
void Client(const Flags& flags) {
  std::vector<std::thread> threads;
  std::atomic<int> started{0};
  std::atomic<bool> done{false};
  std::atomic<uint64_t> tokens{0};
  std::atomic<int64_t> all_started{0}, ended{0};
  std::vector<uint64_t> hashes(static_cast<size_t>(flags.streams), 14695981039346656037u);
  const Deadline begin = Clock::now();
  const auto now = [begin] { return (Clock::now() - begin).count(); };
  for (int s = 0; s < flags.streams; ++s) {
    threads.emplace_back([&, s] {
      auto target = OpenRemote(flags.client);
      if (!target.ok()) Fail(Message(target.status()));
      bool first = true;
      const Status status =
          (*target)->Run(Continue(flags.prompt, flags.tokens, (*target)->facts().vocab, s), [&](const Event& event) {
            if (std::holds_alternative<Finished>(event) && !done.exchange(true)) ended = now();
            const auto* token = std::get_if<TokenEvent>(&event);
            if (token == nullptr) return;
            uint64_t& hash = hashes[static_cast<size_t>(s)];
            hash = (hash ^ static_cast<uint64_t>(token->token)) * 1099511628211u;
            if (first && ++started == flags.streams) all_started = now();
            if (!first && started == flags.streams && !done) ++tokens;
            first = false;
          });
      if (!status.ok()) Fail(Message(status));
    });
  }
  for (auto& t : threads) t.join();
  uint64_t hash = 0;
  for (uint64_t h : hashes) hash = hash * 31 + h;
  fmt::print("rate {:.2f} {:016x}\n",
             static_cast<double>(tokens) / std::chrono::duration<double>(Duration(ended - all_started)).count(), hash);
}

struct Case {
  const char* carrier;
  bool lossy;
  int steps = 0;  // in flight; 0: the program chooses
};

std::string Word(const std::string& text, const std::string& after, int n) {
  std::istringstream in(text.substr(text.find(after)));
  std::string word;
  for (int i = 0; i <= n; ++i) in >> word;
  return word;
}

template <class Network>
void WaitServing(const Network& net, const Flags& flags, const std::string& address, const Process& serve) {
  for (int i = 0;; ++i) {
    Process status(net.On(1, {flags.gyre, "status", "--cluster", address, "--json"}));
    status.Wait(std::chrono::seconds(20));
    if (status.output().find("\"state\":\"serving\"") != std::string::npos) return;
    if (i > 600) Fail(serve.output());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// The speed of a ring on these hosts, as the fields of a JSON object.
template <class Network>
std::string TokensOn(const Network& net, const Flags& flags, const Case& c) {
  if (!net.why_not().empty()) Fail(net.why_not());
  const std::string address = Network::Address(1) + ":7070";
  std::vector<std::string> command{
      flags.gyre, "serve", flags.model, "--cluster",   address, "--insecure",        "--no-local",  "--min-workers",
      "2",        "--ctx", "2048",      "--kv-tokens", "36000", "--no-prefix-cache", "--transport", c.carrier};
  if (c.steps > 0) command.insert(command.end(), {"--steps-in-flight", std::to_string(c.steps)});
  Process serve(net.On(1, command));
  if (!serve.WaitFor("listening ")) Fail(serve.output());
  std::vector<std::unique_ptr<Process>> workers;
  for (int host : {2, 3}) {
    workers.push_back(std::make_unique<Process>(net.On(
        host, {flags.gyre, "worker", "--join", address, "--insecure", "--name", fmt::format("w{}", host), "-t", "1"})));
  }
  WaitServing(net, flags, address, serve);
  std::vector<double> rates;
  std::string text;
  for (int run = 0; run < flags.runs; ++run) {
    Process client(net.On(1, {flags.self, flags.model, "--client", address, "--streams", std::to_string(flags.streams),
                              "--tokens", std::to_string(flags.tokens)}));
    if (client.Wait(std::chrono::seconds(300)) != 0) Fail(client.output() + serve.output());
    rates.push_back(std::stod(Word(client.output(), "rate ", 1)));
    text = Word(client.output(), "rate ", 2);
  }
  Process layers(net.On(1, {flags.gyre, "layers", "--cluster", address}));
  layers.Wait(std::chrono::seconds(20));
  const bool over = layers.output().find(fmt::format(" {}  ", c.carrier)) != std::string::npos;
  const double most = *std::max_element(rates.begin(), rates.end()),
               least = *std::min_element(rates.begin(), rates.end());
  return fmt::format(
      "\"carrier\": \"{}\", \"steps\": {}, \"tokens_per_s\": {:.1f}, \"from\": {:.1f}, \"to\": {:.1f}, \"texts\": "
      "\"{}\"{}",
      c.carrier, c.steps, Median(rates), least, most, text, over ? "" : ", \"wrong_carrier\": true");
}

void Tokens(const Flags& flags, const PacketPath& path, const Case& c) {
  LossyNetwork net(3, path);
  const std::string fields = TokensOn(net, flags, c);
  fmt::print("{{{}, \"loss\": {}, \"reorder\": {}, \"packets\": {}, \"lost\": {}, \"queue_full\": {}}}\n", fields,
             path.loss, path.reorder, net.packets(), net.lost(), net.full());
  std::fflush(stdout);
}

void TokensOverSwitch(const Flags& flags, const Case& c) {
  const SwitchedNetwork net(3, flags.megabits);
  fmt::print("{{{}, \"switch\": true, \"mbit\": {}}}\n", TokensOn(net, flags, c), flags.megabits);
  std::fflush(stdout);
}

RingPortOptions PortOf(const Flags& flags, const std::string& listen) {
  RingPortOptions o;
  o.listen = listen;
  o.transport = *ParseTransport(flags.carrier);
  return o;
}

Hello TheHello(const Flags& flags) {
  return {.epoch = {.term = 1, .number = 1}, .hop = 1, .from = "a", .transport = *ParseTransport(flags.carrier)};
}

// Takes frames until an empty one, and prints their rate.
void Listen(const Flags& flags) {
  auto port = RingPort::Open(PortOf(flags, flags.listen));
  if (!port.ok()) Fail(Message(port.status()));
  fmt::print("at {}\n", (*port)->address());
  std::fflush(stdout);
  auto link = (*port)->Accept(TheHello(flags), After(std::chrono::seconds(60)));
  if (!link.ok()) Fail(Message(link.status()));
  uint64_t bytes = 0;
  Deadline start{};
  for (;;) {
    const auto frame = (*link)->Recv(After(std::chrono::seconds(60)));
    if (!frame.ok()) Fail(Message(frame.status()));
    if (frame->payload.empty()) break;
    if (start == Deadline{}) {
      start = Clock::now();
    } else {
      bytes += frame->payload.size();
    }
  }
  fmt::print("rate {:.2f} x\n",
             static_cast<double>(bytes) / 125000 / std::chrono::duration<double>(Clock::now() - start).count());
  std::fflush(stdout);
}

void Transfer(const Flags& flags) {
  auto port = RingPort::Open(PortOf(flags, "0.0.0.0:0"));
  if (!port.ok()) Fail(Message(port.status()));
  auto link = (*port)->Dial(flags.transfer, TheHello(flags), After(std::chrono::seconds(60)));
  if (!link.ok()) Fail(Message(link.status()));
  const std::vector<std::byte> payload(1 << 20, std::byte{7});
  const ByteSpan parts[] = {payload};
  for (const Deadline end = After(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(flags.seconds)));
       Clock::now() < end;) {
    if (const Status s = (*link)->Send({.kind = FrameKind::kHidden}, parts, kNoDeadline); !s.ok()) Fail(Message(s));
  }
  if (const Status s = (*link)->Send({.kind = FrameKind::kAnswer}, {}, kNoDeadline); !s.ok()) Fail(Message(s));
  (void)(*link)->Recv(After(std::chrono::seconds(60)));  // until the other end is done
}

void MegaBits(const Flags& flags, const PacketPath& path, const Case& c) {
  std::vector<double> rates;
  uint64_t full = 0;
  for (int run = 0; run < flags.runs; ++run) {
    LossyNetwork net(2, path);
    if (!net.why_not().empty()) Fail(net.why_not());
    Process listen(
        net.On(2, {flags.self, "bytes", "--carrier", c.carrier, "--listen", LossyNetwork::Address(2) + ":0"}));
    const auto at = listen.WaitFor("at ");
    if (!at) Fail(listen.output());
    Process transfer(net.On(1, {flags.self, "bytes", "--carrier", c.carrier, "--transfer", *at, "--seconds",
                                fmt::format("{}", flags.seconds)}));
    if (listen.Wait(std::chrono::seconds(300)) != 0) Fail(listen.output() + transfer.output());
    rates.push_back(std::stod(Word(listen.output(), "rate ", 1)));
    full += net.full();
  }
  fmt::print(
      "{{\"carrier\": \"{}\", \"loss\": {}, \"reorder\": {}, \"mbit\": {:.0f}, \"from\": {:.0f}, \"to\": {:.0f}, "
      "\"queue_full\": {}}}\n",
      c.carrier, path.loss, path.reorder, Median(rates), *std::min_element(rates.begin(), rates.end()),
      *std::max_element(rates.begin(), rates.end()), full);
  std::fflush(stdout);
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  using namespace gyre;
  Flags flags;
  std::error_code error;
  flags.self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  flags.gyre = (std::filesystem::path(flags.self).parent_path().parent_path() / "cli" / "gyre").string();
  CLI::App app{"A ring over a network that loses packets"};
  app.add_option("MODEL", flags.model, "or `bytes`: one connection")->required();
  app.add_option("--gyre", flags.gyre, "the program")->capture_default_str();
  app.add_option("--loss", flags.loss)->capture_default_str();
  app.add_option("--reorder", flags.reorder)->capture_default_str();
  app.add_option("--delay-ms", flags.delay_ms, "one way")->capture_default_str();
  app.add_option("--mbit", flags.megabits)->capture_default_str();
  app.add_option("--streams", flags.streams)->capture_default_str();
  app.add_option("--tokens", flags.tokens)->capture_default_str();
  app.add_option("--runs", flags.runs)->capture_default_str();
  app.add_option("--seconds", flags.seconds, "of a transfer")->capture_default_str();
  app.add_flag("--switch", flags.over_switch, "no loss and no delay: the kernel's own devices and tbf");
  app.add_option("--steps", flags.steps)->delimiter(',');
  app.add_option("--client", flags.client)->group("");
  app.add_option("--transfer", flags.transfer)->group("");
  app.add_option("--listen", flags.listen)->group("");
  app.add_option("--carrier", flags.carrier)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!flags.client.empty()) return Client(flags), 0;
  if (!flags.listen.empty()) return Listen(flags), 0;
  if (!flags.transfer.empty()) return Transfer(flags), 0;
  std::vector<Case> cases{{"tcp", false}, {"udp", false}, {"tcp", true}, {"udp", true}};
  if (!flags.steps.empty()) cases.clear();
  for (const int steps : flags.steps) cases.push_back({.carrier = "tcp", .lossy = false, .steps = steps});
  if (flags.over_switch) {
    for (const Case& c : cases) {
      if (!c.lossy) TokensOverSwitch(flags, c);
    }
    return 0;
  }
  for (const Case& c : cases) {
    PacketPath path{.bytes_per_second = flags.megabits * 125e3, .delay = std::chrono::milliseconds(flags.delay_ms)};
    if (c.lossy) {
      path.loss = flags.loss;
      path.reorder = flags.reorder;
    }
    (flags.model == "bytes" ? MegaBits : Tokens)(flags, path, c);
  }
}
