// Real processes on loopback and the connections to their ports: silent ones, more than there are descriptors, a port
// that is taken, a coordinator that is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/testing/process_ring.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using ::testing::HasSubstr;
using testing::OpenFiles;
using testing::Process;
using testing::Ring;

class ConnectionsTest : public testing::ProcessesTest {};

// More connections than the coordinator may open descriptors, none of which says a word; then a plan change, which
// needs some itself.
TEST_F(ConnectionsTest, SilentConnectionsLeaveDescriptorsForAResize) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"},
            {"/bin/sh", "-c", "ulimit -n 256 && exec \"$0\" \"$@\""});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  std::vector<int> silent, speaking;
  for (int i = 0; i < 300; ++i) {
    if (auto fd = ConnectTcp(ring.address(), After(seconds(2))); fd.ok()) silent.push_back(*fd);
  }
  // HTTP/2's preface and empty settings: connections that gRPC keeps.
  const std::string hello = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);
  for (int i = 0; i < 300; ++i) {
    auto fd = ConnectTcp(ring.address(), After(seconds(2)));
    if (!fd.ok()) continue;
    (void)!send(*fd, hello.data(), hello.size(), MSG_NOSIGNAL);
    speaking.push_back(*fd);
  }
  for (int i = 0; i < 1000 && OpenFiles(ring.serve().pid()) < 180; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(OpenFiles(ring.serve().pid()), 180u);
  EXPECT_LE(OpenFiles(ring.serve().pid()), 200u);
  for (int fd : silent) close(fd);
  // The operator's own call needs a descriptor too: some of the crowd leave.
  for (size_t i = 0; i < 20; ++i) close(speaking[i]);
  StatusOr<v1::ChangeReply> change = Unavailable("not asked");
  for (int i = 0; i < 200 && !change.ok(); ++i) {
    change = AskResize(ring.address(), "w2=0-2,w1=3-5");
    if (!change.ok()) std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(change.ok()) << change.status() << ring.serve().output();
  EXPECT_FALSE(ring.serve().Wait(milliseconds(0)).has_value()) << ring.serve().output();
  for (size_t i = 20; i < speaking.size(); ++i) close(speaking[i]);
  EXPECT_THAT(ring.serve().output(), HasSubstr("refused a connection from 127.0.0.1"));
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 20), [](const Event&) {}).ok());
}

TEST_F(ConnectionsTest, ATakenPortAndADeadCoordinatorHaveTheirSentence) {
  Ring ring(model_.path());
  Process second({GYRE_BINARY, "serve", model_.path(), "--cluster", ring.address()});
  EXPECT_EQ(second.Wait(seconds(20)), 1);
  EXPECT_THAT(second.output(), HasSubstr("cannot listen at " + ring.address() + ": another program has the port"));
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  Request endless = Ask(1, 96, 100'000);
  std::thread killer;
  const Status status = (*target)->Run(std::move(endless), [&](const Event&) {
    if (!killer.joinable()) killer = std::thread([&] { ring.serve().Kill(SIGKILL); });
  });
  killer.join();
  EXPECT_EQ(Message(status), "the coordinator at " + ring.address() + " is gone");
}

}  // namespace
}  // namespace gyre
