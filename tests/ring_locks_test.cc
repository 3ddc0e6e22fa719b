// A ring of real processes with identities: it serves its members, and nobody else gets anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "gyre/v1/admin.grpc.pb.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "identity/tls_context.h"
#include "proto/channel.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "proto/credentials.h"
#include "tests/testing/identities.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/recording_relay.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace testing;
using testing::Ring;

class LocksTest : public ProcessesTest {
 protected:
  std::shared_ptr<const Identity> As(Role role, const std::string& name) {
    return authority_.IssueOpen(role, name)->current();
  }
  // A coordinator, to which `flags` are added.
  std::unique_ptr<Ring> Serve(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--identity", authority_.Issue(Role::kCoordinator, "head"), "--transport", "tcp"});
    auto ring = std::make_unique<Ring>(model_.path(), flags);
    ring->UseIdentity(As(Role::kAdmin, "alice"));
    return ring;
  }
  void AddWorkers(Ring& ring, const std::vector<std::string>& names) {
    for (const std::string& name : names) ring.AddNamelessWorker({"--identity", authority_.Issue(Role::kWorker, name)});
  }
  static Status Generate(const ClusterAddress& as, std::vector<TokenId>* tokens) {
    auto target = OpenRemote(as);
    GYRE_RETURN_IF_ERROR(target.status());
    return (*target)->Run(Ask(2, 96, 20), [&](const Event& event) {
      if (auto* t = std::get_if<TokenEvent>(&event)) tokens->push_back(t->token);
    });
  }
  TestAuthority authority_;
};

TEST_F(LocksTest, ASecuredRingServesAndMovesLayers) {
  std::vector<TokenId> plain, secured, moved;
  {
    Ring alone(model_.path());
    ASSERT_TRUE(Generate(alone.address(), &plain).ok());
  }
  auto ring = Serve({"--no-local", "--min-workers", "2"});
  AddWorkers(*ring, {"w1", "w2"});
  ASSERT_TRUE(ring->Serves(2));
  const ClusterAddress client(ring->address(), As(Role::kClient, "bob"));
  ASSERT_TRUE(Generate(client, &secured).ok());
  EXPECT_EQ(secured, plain);
  Clients clients(client, 96, 100);
  clients.WaitUntilTokens(50);
  const auto changed = AskResize(ring->at(), "w2=0-4,w1=5-5");
  EXPECT_TRUE(changed.ok()) << changed.status();
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
  ASSERT_TRUE(Generate(client, &moved).ok());
  EXPECT_EQ(moved, plain);
  // As a user asks.
  Process layers(
      {GYRE_BINARY, "layers", "--cluster", ring->address(), "--identity", authority_.path() + "/../admin-alice"});
  EXPECT_EQ(layers.Wait(seconds(10)), 0) << layers.output();
  EXPECT_THAT(layers.output(), HasSubstr("w2"));
}

TEST_F(LocksTest, RolesMayDoTheirOwn) {
  auto ring = Serve();
  const std::string& address = ring->address();
  const ClusterAddress client(address, As(Role::kClient, "bob")), worker(address, As(Role::kWorker, "w1")),
      admin = ring->at();
  std::vector<TokenId> tokens;
  EXPECT_TRUE(Generate(client, &tokens).ok());
  EXPECT_TRUE(Generate(admin, &tokens).ok());
  EXPECT_TRUE(FetchStatus(admin).ok());
  const auto denied = [](const Status& s) { return s.code() == absl::StatusCode::kPermissionDenied; };
  EXPECT_TRUE(denied(Generate(worker, &tokens)));
  const Status status = FetchStatus(client).status();
  EXPECT_TRUE(denied(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("the identity of client bob may not call /gyre.v1.Admin/Status"));
  EXPECT_TRUE(denied(FetchStatus(worker).status()));
  EXPECT_TRUE(denied(AskResize(client, "3").status()));
  EXPECT_TRUE(denied(AskDrain(worker, "local").status()));
  for (const auto& as : {client, admin}) {
    const auto stub = v1::Cluster::NewStub(*MakeChannel(address, {.own_connection = true, .identity = as.identity}));
    grpc::ClientContext context;
    v1::InfoRequest request;
    v1::ClusterInfo info;
    EXPECT_EQ(stub->Info(&context, request, &info).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
}

TEST_F(LocksTest, ClientsLearnNothingOfEachOthersPrompts) {
  auto ring = Serve();
  const auto cached = [&](const std::shared_ptr<const Identity>& who, uint64_t salt) -> uint32_t {
    auto target = OpenRemote({ring->address(), who});
    EXPECT_TRUE(target.ok()) << target.status();
    Request r = Ask(2, 96, 3);
    r.prompt.resize(40, 7);
    r.cache_salt = salt;
    uint32_t tokens = 0;
    EXPECT_TRUE((*target)
                    ->Run(std::move(r),
                          [&](const Event& event) {
                            if (const auto* f = std::get_if<Finished>(&event)) tokens = f->usage.cached_tokens;
                          })
                    .ok());
    return tokens;
  };
  const auto bob = As(Role::kClient, "bob"), eve = As(Role::kClient, "eve");
  EXPECT_EQ(cached(bob, 0), 0u);
  EXPECT_GT(cached(bob, 0), 0u);
  EXPECT_EQ(cached(eve, 0), 0u) << "whether somebody else's prompt begins so";
  EXPECT_EQ(cached(bob, 5), 0u) << "what a client asks for holds within its own part";
}

TEST(MayCallTest, WhatIsGivenToNobodyIsClosed) {
  for (const Role role : {Role::kCoordinator, Role::kWorker, Role::kClient, Role::kAdmin}) {
    for (const char* method :
         {"", "/", "/gyre.v1.Other/Do", "/gyre.v1.Admin", "/grpc.reflection.v1.ServerReflection/Info"}) {
      EXPECT_FALSE(MayCall(role, method)) << method;
    }
  }
  EXPECT_FALSE(MayCall(Role::kCoordinator, "/gyre.v1.Admin/Status"));
}

TEST_F(LocksTest, UnauthenticatedPeersGetNothing) {
  auto ring = Serve({"--no-local", "--min-workers", "1"});
  AddWorkers(*ring, {"w1"});
  ASSERT_TRUE(ring->Serves(1));
  TestAuthority other;
  const std::string& address = ring->address();
  const auto none = FetchStatus(address);
  EXPECT_FALSE(none.ok());
  EXPECT_THAT(Message(none.status()), HasSubstr("--identity"));
  EXPECT_FALSE(FetchStatus({address, other.IssueOpen(Role::kAdmin, "alice")->current()}).ok());
  Process unauthenticated({GYRE_BINARY, "status", "--cluster", address});
  EXPECT_EQ(unauthenticated.Wait(seconds(20)), 1);
  // A worker of another CA waits for a coordinator of its own.
  Process& worker = ring->AddNamelessWorker({"--identity", other.Issue(Role::kWorker, "w2")});
  EXPECT_TRUE(worker.WaitFor("waiting for the coordinator").has_value()) << worker.output();
  EXPECT_TRUE(worker.WaitFor("its certificate is by another CA than that of this side's --identity").has_value())
      << worker.output();
  Process& plain = ring->AddWorker("w3");
  EXPECT_TRUE(plain.WaitFor("waiting for the coordinator").has_value()) << plain.output();
  std::vector<TokenId> tokens;
  EXPECT_TRUE(Generate(ring->at(), &tokens).ok());
  EXPECT_EQ(FetchStatus(ring->at())->members_size(), 1);
}

TEST_F(LocksTest, AWorkerIsWhoItsCertificateSays) {
  auto ring = Serve();
  const std::string w1 = authority_.Issue(Role::kWorker, "w1");
  Process& renamed = ring->AddWorker("w2", {"--identity", w1});
  EXPECT_EQ(renamed.Wait(seconds(10)), 1);
  EXPECT_THAT(renamed.output(), HasSubstr("is the identity of worker w1"));
  Process& admin = ring->AddNamelessWorker({"--identity", authority_.Issue(Role::kAdmin, "carol")});
  EXPECT_EQ(admin.Wait(seconds(10)), 2);
  EXPECT_THAT(admin.output(), HasSubstr("it is the identity of admin carol, expected one of the role worker"));
  // A program that says another name.
  const auto channel =
      *MakeChannel(ring->address(), {.own_connection = true, .identity = (*IdentityFolder::Open(w1))->current()});
  grpc::ClientContext context;
  const auto stream = v1::Cluster::NewStub(channel)->Attach(&context);
  WorkerHello hello{.name = "w9", .ring_address = "127.0.0.1:9", .isa = "ref", .threads = 1, .version = "x"};
  hello.model_hash = (*OpenModel(model_.path()))->content_hash();
  stream->Write(Encode(hello));
  v1::Command command;
  EXPECT_FALSE(stream->Read(&command));
  EXPECT_THAT(stream->Finish().error_message(), HasSubstr("it calls itself w9, its certificate is that of worker w1"));
  // Two processes with one identity: the second waits for the first one's end.
  Process& first = ring->AddNamelessWorker({"--identity", w1});
  ASSERT_TRUE(first.WaitFor("joined ").has_value()) << first.output();
  Process& second = ring->AddNamelessWorker({"--identity", w1});
  EXPECT_TRUE(second.WaitFor("another process is attached as w1").has_value()) << second.output();
  first.Kill(SIGTERM);
  EXPECT_TRUE(second.WaitFor("joined ").has_value()) << second.output();
}

TEST_F(LocksTest, AWorkerIsNoCoordinator) {
  Process serve({GYRE_BINARY, "serve", model_.path(), "--cluster", "127.0.0.1:0", "--identity",
                 authority_.Issue(Role::kWorker, "w1")});
  EXPECT_EQ(serve.Wait(seconds(10)), 2);
  EXPECT_THAT(serve.output(), HasSubstr("expected one of the role coordinator"));
  // A server that a worker's owner wrote.
  const auto identity = *ServerIdentity::Make(authority_.IssueOpen(Role::kWorker, "w2"));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", identity->credentials(), &port);
  v1::Admin::Service service;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const Status status = FetchStatus({fmt::format("127.0.0.1:{}", port), As(Role::kAdmin, "alice")}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("there is worker w2, expected a coordinator"));
  server->Shutdown();
}

TEST_F(LocksTest, ARevokedWorkerIsOut) {
  auto ring = Serve({"--cluster-ca", authority_.path()});
  AddWorkers(*ring, {"w1", "w2"});
  const ClusterAddress admin = ring->at();
  ASSERT_TRUE(ring->AsksFor("w1=0-1,w2=2-3,local=4-5"));
  Process revoke({GYRE_BINARY, "ca", "revoke", authority_.path(), "w2"});
  EXPECT_EQ(revoke.Wait(seconds(10)), 0) << revoke.output();
  const auto members = [&] {
    std::vector<std::string> names;
    const auto status = FetchStatus(admin);
    for (int i = 0; status.ok() && i < status->members_size(); ++i) names.push_back(status->members(i).name());
    return names;
  };
  for (int i = 0; i < 2000 && members().size() != 2; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_THAT(members(), Not(::testing::Contains("w2")));
  ASSERT_TRUE(ring->Serves(2)) << "the others have its layers";
  std::vector<TokenId> tokens;
  EXPECT_TRUE(Generate(admin, &tokens).ok());
  EXPECT_TRUE(ring->worker(1).WaitFor("waiting for the coordinator").has_value()) << ring->worker(1).output();
  EXPECT_THAT(ring->serve().output(), HasSubstr("the certificate of worker w2 was revoked"));
  // Its list reached the other worker.
  EXPECT_TRUE(ring->worker(0).WaitFor("certificates that the CA revoked").has_value()) << ring->worker(0).output();
}

// The ring is whole again in much less time than a worker may be silent or a step may take.
TEST_F(LocksTest, LinksOfARevokedWorkerEndAtOnce) {
  auto ring = Serve({"--cluster-ca", authority_.path(), "--no-local", "--min-workers", "1"});
  AddWorkers(*ring, {"w1", "w2"});
  ASSERT_TRUE(ring->AsksFor("w1=0-2,w2=3-5"));
  Clients clients(ring->at(), 96, 100);
  clients.WaitUntilTokens(50);
  // A process that takes no word from the coordinator, as one whose owner changed it.
  ring->worker(1).Kill(SIGSTOP);
  Authority ca = authority_.Open();
  ASSERT_TRUE(ca.Revoke("w2", std::nullopt).ok());
  // The coordinator's own ends go with the plan that lost a worker.
  EXPECT_TRUE(ring->worker(0).WaitFor("a link to w2 ends: its certificate was revoked").has_value())
      << ring->worker(0).output();
  EXPECT_TRUE(ring->Serves(1)) << "the other one has its layers";
  ring->worker(1).Kill(SIGCONT);
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
}

TEST_F(LocksTest, WorkersLeaveARevokedCoordinator) {
  auto ring = Serve();
  AddWorkers(*ring, {"w1"});
  ASSERT_TRUE(ring->AsksFor("w1=0-2,local=3-5"));
  Authority ca = authority_.Open();
  ASSERT_TRUE(ca.Revoke("head", std::nullopt).ok());
  // The coordinator itself does not know; an operator copies the list to the worker.
  ASSERT_TRUE(ReplaceFile(authority_.path() + "/../worker-w1/crl.pem", *ca.RevokedPem(), 0644).ok());
  Process& worker = ring->worker(0);
  EXPECT_TRUE(worker.WaitFor("is left: the certificate of coordinator head was revoked").has_value())
      << worker.output();
  EXPECT_TRUE(worker.WaitFor("a link to coordinator ends: its certificate was revoked").has_value()) << worker.output();
  EXPECT_TRUE(worker.WaitFor("waiting for the coordinator").has_value()) << worker.output();
}

TEST_F(LocksTest, ARenewedIdentityIsTakenWithoutARestart) {
  auto ring = Serve({"--no-local", "--min-workers", "1"});
  AddWorkers(*ring, {"w1"});
  ASSERT_TRUE(ring->Serves(1));
  Authority ca = authority_.Open();
  const auto serial = [&] {
    SslContextPtr context = *MakeTlsContext(TlsSide::kClient, "h2");
    SslPtr ssl(SSL_new(context.get()));
    auto fd = ConnectTcp(ring->address(), After(seconds(5)));
    const int flags = fcntl(*fd, F_GETFL);
    fcntl(*fd, F_SETFL, flags & ~O_NONBLOCK);
    SSL_set_fd(ssl.get(), *fd);
    SSL_connect(ssl.get());
    const X509Ptr certificate(SSL_get1_peer_certificate(ssl.get()));
    close(*fd);
    return certificate != nullptr ? SerialOf(certificate.get()) : "";
  };
  const std::string before = serial();
  EXPECT_NE(before, "");
  for (const auto& [role, name] : {std::pair(Role::kCoordinator, "head"), std::pair(Role::kWorker, "w1")}) {
    const std::string folder = fmt::format("{}/../{}-{}", authority_.path(), RoleName(role), name);
    ASSERT_TRUE(ca.Issue({.role = role, .name = name, .renew = true}, KeyType::kP256, folder).ok());
  }
  for (int i = 0; i < 1000 && serial() == before; ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_NE(serial(), before);
  EXPECT_TRUE(ring->worker(0).WaitFor("the identity of worker w1 was read again").has_value())
      << ring->worker(0).output();
  AddWorkers(*ring, {"w2"});
  EXPECT_TRUE(ring->AsksFor("w1=0-2,w2=3-5"));
  std::vector<TokenId> tokens;
  EXPECT_TRUE(Generate(ring->at(), &tokens).ok());
}

TEST_F(LocksTest, AWorkerRenewsItsCertificateItself) {
  auto ring = Serve({"--cluster-ca", authority_.path(), "--no-local", "--min-workers", "1"});
  const std::string folder = authority_.path() + "/../aging";
  // In the last third of its life.
  ASSERT_TRUE(
      WriteIdentity(folder, authority_.FilesOf(authority_.Forge("URI:gyre://gyre/worker/w1", -9000, 3600)), false)
          .ok());
  const std::string before = *ReadSmallFile(folder + "/identity.pem");
  Process& worker = ring->AddNamelessWorker({"--identity", folder});
  ASSERT_TRUE(worker.WaitFor("the certificate of w1 is renewed").has_value()) << worker.output();
  const auto identity = *IdentityFolder::Open(folder);
  EXPECT_NE(identity->current()->files().identity, before);
  EXPECT_EQ(identity->current()->self().name, "w1");
  EXPECT_GT(identity->current()->ends(), std::time(nullptr) + 300 * 86400);
  EXPECT_TRUE(ring->Serves(1));
}

TEST_F(LocksTest, NothingReadableCrossesTheNetwork) {
  const std::string needle = "what nobody but the ring shall read";
  const auto ask = [&](const ClusterAddress& as) {
    auto target = OpenRemote(as);
    ASSERT_TRUE(target.ok()) << target.status();
    // A tokenizer may not know the letters; the text has left all the same.
    (*target)->Encode(needle, {}).status().IgnoreError();
    EXPECT_TRUE((*target)->Run(Ask(2, 96, 5), [](const Event&) {}).ok());
  };
  {  // The relay sees it where there is no TLS.
    Ring plain(model_.path());
    RecordingRelay relay(plain.address());
    ask(relay.address());
    EXPECT_THAT(relay.Recorded(), HasSubstr(needle));
    EXPECT_THAT(relay.Recorded(), HasSubstr("gyre.v1.Inference"));
  }
  auto ring = Serve();
  RecordingRelay relay(ring->address());
  ask({relay.address(), As(Role::kClient, "bob")});
  const std::string recorded = relay.Recorded();
  EXPECT_GT(recorded.size(), 2000u);
  EXPECT_THAT(recorded, Not(HasSubstr(needle)));
  EXPECT_THAT(recorded, Not(HasSubstr("gyre.v1")));
}

}  // namespace
}  // namespace gyre
