// Workers that get their identity with a token, from a coordinator of processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "coordinator/grpc/join_server.h"
#include "identity/join_message.h"
#include "identity/join_token.h"
#include "identity/tls_context.h"
#include "tests/testing/identities.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/recording_relay.h"
#include "tests/testing/tcp_pair.h"
#include "transport/tls_stream.h"
#include "worker/join.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace testing;
using testing::Ring;

class JoinTest : public ProcessesTest {
 protected:
  std::unique_ptr<Ring> Serve(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(),
                 {"--identity", authority_.Issue(Role::kCoordinator, "head"), "--cluster-ca", authority_.path()});
    auto ring = std::make_unique<Ring>(model_.path(), flags);
    ring->UseIdentity(authority_.IssueOpen(Role::kAdmin, "alice")->current());
    return ring;
  }
  std::string Token(const std::string& ttl = "1h", const std::string& name = "") {
    std::vector<std::string> command{GYRE_BINARY, "ca", "token", authority_.path(), "--ttl", ttl};
    if (!name.empty()) command.insert(command.end(), {"--name", name});
    Process token(command);
    EXPECT_EQ(token.Wait(seconds(10)), 0) << token.output();
    std::string text = token.output();
    text.pop_back();
    return text;
  }
  TestAuthority authority_;
  Folder folder_;
};

TEST_F(JoinTest, ATokenIsGoodForOneWorkerAndItsRestarts) {
  auto ring = Serve({"--no-local", "--min-workers", "2"});
  const std::string token = Token();
  const std::vector<std::string> first{"--token", token, "--identity", folder_ / "w1"};
  {
    Process& w1 = ring->AddWorker("w1", first);
    ASSERT_TRUE(w1.WaitFor("joined ").has_value()) << w1.output();
    Process& late = ring->AddWorker("w2", {"--token", token, "--identity", folder_ / "w2"});
    EXPECT_EQ(late.Wait(seconds(20)), 1);
    EXPECT_THAT(late.output(), HasSubstr("the token is not known, expired, or used"));
    w1.Kill(SIGTERM);
    EXPECT_TRUE(w1.Wait(seconds(10)).has_value());
  }
  // A unit file keeps its token.
  Process& again = ring->AddWorker("w1", first);
  EXPECT_TRUE(again.WaitFor("joined ").has_value()) << again.output();
  Process& w2 = ring->AddWorker("w2", {"--token", Token("1h", "w2"), "--identity", folder_ / "w2"});
  EXPECT_TRUE(w2.WaitFor("joined ").has_value()) << w2.output();
  EXPECT_TRUE(ring->Serves(2));
  // Nobody takes a name that is somebody's.
  Process& thief = ring->AddWorker("w1", {"--token", Token(), "--identity", folder_ / "thief"});
  EXPECT_EQ(thief.Wait(seconds(20)), 1);
  EXPECT_THAT(thief.output(), HasSubstr("worker w1 has a valid certificate"));
  const std::string short_lived = Token("1s");
  std::this_thread::sleep_for(milliseconds(1100));
  Process& late = ring->AddWorker("w3", {"--token", short_lived, "--identity", folder_ / "w3"});
  EXPECT_EQ(late.Wait(seconds(20)), 1);
  EXPECT_THAT(late.output(), HasSubstr("expired"));
  Process& nonsense = ring->AddWorker("w4", {"--token", "hf_whatever"});
  EXPECT_EQ(nonsense.Wait(seconds(20)), 2);
}

// The identity that a token got is found by later starts, which name neither.
TEST_F(JoinTest, ALaterStartFindsTheIdentityThatATokenGot) {
  auto ring = Serve({"--no-local", "--min-workers", "2"});
  const std::string home = "XDG_CONFIG_HOME=" + (folder_ / "config");
  const auto worker = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"/usr/bin/env", home, GYRE_BINARY, "worker", "--join", ring->address(), "-t", "1"});
    return std::make_unique<Process>(flags);
  };
  {
    auto first = worker({"--token", Token(), "--name", "w1"});
    ASSERT_TRUE(first->WaitFor("joined ").has_value()) << first->output();
    first->Kill(SIGINT);
    EXPECT_TRUE(first->Wait(seconds(20)).has_value());
  }
  // By its name, or as the only one that there is.
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--name", "w1"}, {}}) {
    auto again = worker(flags);
    EXPECT_TRUE(again->WaitFor("joined ").has_value()) << again->output();
    EXPECT_THAT(again->output(), HasSubstr("the identity that a token got is used"));
    again->Kill(SIGINT);
    EXPECT_TRUE(again->Wait(seconds(20)).has_value());
  }
  // An administrator's GYRE_IDENTITY in the same shell is no worker's.
  std::vector<std::string> shell{"/usr/bin/env",  home,     "GYRE_IDENTITY=" + authority_.Issue(Role::kAdmin, "ann"),
                                 GYRE_BINARY,     "worker", "--join",
                                 ring->address(), "-t",     "1"};
  Process beside(shell);
  EXPECT_TRUE(beside.WaitFor("joined ").has_value()) << beside.output();
  Process wrong(
      {GYRE_BINARY, "worker", "--join", ring->address(), "--identity", authority_.Issue(Role::kAdmin, "bob")});
  EXPECT_EQ(wrong.Wait(seconds(20)), 2);
  EXPECT_THAT(wrong.output(), HasSubstr("it is the identity of admin bob, expected one of the role worker"));
}

TEST_F(JoinTest, WhoIsNotAServersGrpcPortEndsTheWait) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof any;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&any), size), 0);
  ASSERT_EQ(listen(fd, 5), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&any), &size);
  std::thread web([fd] {
    for (int peer; (peer = accept(fd, nullptr, nullptr)) >= 0; close(peer)) {
      const std::string answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
      send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  });
  Process worker({GYRE_BINARY, "worker", "--join", fmt::format("127.0.0.1:{}", ntohs(any.sin_port))});
  EXPECT_EQ(worker.Wait(seconds(20)), 1);
  EXPECT_THAT(worker.output(), HasSubstr("it is an HTTP server's port"));
  shutdown(fd, SHUT_RDWR);
  web.join();
  close(fd);
}

TEST_F(JoinTest, AFalseCoordinatorGetsNoToken) {
  TestAuthority other;
  auto ring = Serve();
  const JoinToken token = *ParseToken(Token());
  // One of another CA, and one that has a certificate of this CA but is a worker.
  const auto false_head = [&](TestAuthority& authority, Role role) {
    auto listener_options =
        JoinServerOptions{.identity = authority.IssueOpen(role, "false-head"), .authority = authority.path()};
    auto server = JoinServer::Start(listener_options);
    EXPECT_TRUE(server.ok()) << server.status();
    const auto [client, accepted] = ConnectedSockets();
    fcntl(accepted, F_SETFL, fcntl(accepted, F_GETFL) | O_NONBLOCK);
    (*server)->Take(accepted, "127.0.0.1", "127.0.0.1:1");
    // These are the steps of a worker after its preface.
    std::unique_ptr<ByteStream> stream = *MakeTcpStream(Fd(client));
    const SslContextPtr context = *MakeTlsContext(TlsSide::kClient, kJoinProtocol);
    TrustFingerprint(context.get(), &token.fingerprint);
    auto session =
        *TlsSession::Make(context.get(), TlsSide::kClient, kJoinProtocol, [](X509* peer) -> StatusOr<Principal> {
          GYRE_ASSIGN_OR_RETURN(Principal p, PrincipalOf(peer));
          if (p.role != Role::kCoordinator) return FailedPrecondition("there is {}", Describe(p));
          return p;
        });
    return Message(DoHandshake(*stream, *session, After(seconds(10))));
  };
  EXPECT_EQ(false_head(authority_, Role::kCoordinator), "") << "what the others are compared with";
  EXPECT_THAT(false_head(other, Role::kCoordinator), HasSubstr("its certificate is by another CA"));
  EXPECT_THAT(false_head(authority_, Role::kWorker), HasSubstr("there is worker false-head"));
  // The worker's own code, against a whole coordinator of another CA.
  auto theirs = std::make_unique<Ring>(
      model_.path(),
      std::vector<std::string>{"--identity", other.Issue(Role::kCoordinator, "head"), "--cluster-ca", other.path()});
  RecordingRelay relay(theirs->address());
  const auto joined = JoinWithToken(relay.address(), token, "w1", After(seconds(10)));
  EXPECT_THAT(Message(joined.status()),
              HasSubstr(": its certificate is by another CA than that of this side's --identity or --token"));
  EXPECT_THAT(relay.Recorded(), Not(HasSubstr(token.secret)));
  EXPECT_THAT(relay.Recorded(), Not(HasSubstr(token.id)));
  // Nor does somebody see it who listens while the right one is asked.
  RecordingRelay right(ring->address());
  const auto files = JoinWithToken(right.address(), token, "w1", After(seconds(10)));
  ASSERT_TRUE(files.ok()) << files.status();
  for (const std::string& secret : {token.secret, token.id, token.fingerprint, std::string("gyre://gyre/worker")}) {
    EXPECT_THAT(right.Recorded(), Not(HasSubstr(secret)));
  }
}

TEST_F(JoinTest, UnauthenticatedPeersWhoHoldTheJoinOpenStopNobody) {
  auto ring = Serve();
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) {
    auto fd = ConnectTcp(ring->address(), After(seconds(5)));
    if (!fd.ok()) continue;
    send(*fd, kJoinPreface.data(), kJoinPreface.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) send(*fd, "\x16\x03\x01\x02\x00garbage", 12, MSG_NOSIGNAL);
    silent.push_back(*fd);
  }
  const auto files = JoinWithToken(ring->address(), *ParseToken(Token()), "w1", After(seconds(20)));
  EXPECT_TRUE(files.ok()) << files.status();
  for (int fd : silent) close(fd);
  EXPECT_TRUE(FetchStatus(ring->at()).ok());
}

}  // namespace
}  // namespace gyre
