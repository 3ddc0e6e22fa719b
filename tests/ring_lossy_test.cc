// A ring over a network that loses, swaps and doubles packets: coordinator and workers on hosts of their own, links
// over UDP. The text is that of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/testing/lossy_network.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::LossyNetwork;
using testing::Process;

// 20 ms are a round trip between two hosts.
TEST(RingLossyTest, TheTextOverALossyNetworkIsThatOfOneProcess) {
  const char* const asked = std::getenv("GYRE_LOSSY_TOKENS");
  const std::string tokens = asked != nullptr ? asked : "20";
  LossyNetwork net(3, {.bytes_per_second = 200 * 125e3,  // 200 Mbit/s
                       .delay = milliseconds(10),
                       .loss = 0.05,
                       .duplicate = 0.02,
                       .reorder = 0.05,
                       .late = milliseconds(3)});
  if (!net.why_not().empty()) GTEST_SKIP() << "no network of our own can be made here: " << net.why_not();
  const testing::TinyModelFile model;
  char path[] = "/tmp/gyre-ids-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << "3 4 5 6 7 8";
  const std::string at = LossyNetwork::Address(1) + ":7070";
  Process serve(net.On(1, {GYRE_BINARY, "serve", model.path(), "--cluster", at, "--insecure", "--no-local",
                           "--min-workers", "2", "--block-size", "4", "--kv-type", "f32", "--transport", "udp"}));
  ASSERT_TRUE(serve.WaitFor("listening ")) << serve.output();
  std::vector<std::unique_ptr<Process>> workers;
  for (int host : {2, 3}) {
    workers.push_back(std::make_unique<Process>(net.On(
        host, {GYRE_BINARY, "worker", "--join", at, "--insecure", "--name", fmt::format("h{}", host), "-t", "1"})));
  }
  std::string status;
  for (int i = 0; i < 300 && status.find("\"state\":\"serving\"") == std::string::npos; ++i) {
    Process p(net.On(1, {GYRE_BINARY, "status", "--cluster", at, "--json"}));
    p.Wait(seconds(20));
    status = p.output();
    std::this_thread::sleep_for(milliseconds(50));
  }
  ASSERT_THAT(status, HasSubstr("\"state\":\"serving\"")) << serve.output();
  std::string texts[2];
  const std::vector<std::string> asks[2] = {net.On(1, {GYRE_BINARY, "run", "--cluster", at, "--ids", path, "-n", tokens,
                                                       "--temp", "0", "--ignore-eos", "-q"}),
                                            {GYRE_BINARY, "run", model.path(), "--ids", path, "-n", tokens, "--temp",
                                             "0", "--ignore-eos", "-q", "--kv-type", "f32", "--block-size", "4"}};
  for (int i : {0, 1}) {
    Process run(asks[i]);
    EXPECT_EQ(run.Wait(seconds(300)), 0) << run.output();
    texts[i] = run.output();
    EXPECT_GT(texts[i].size(), 30u) << run.output();
  }
  EXPECT_EQ(texts[0], texts[1]);
  Process layers(net.On(1, {GYRE_BINARY, "layers", "--cluster", at}));
  EXPECT_EQ(layers.Wait(seconds(20)), 0);
  EXPECT_THAT(layers.output(), HasSubstr("link from the coordinator: udp (--transport udp)"));
  EXPECT_GT(net.lost(), 3u);
  unlink(path);
}

}  // namespace
}  // namespace gyre
