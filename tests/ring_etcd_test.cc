// The way to etcd: TLS and what can be wrong with it, members that fail, clocks that jump. Tests with a real etcd are
// skipped where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>

#include "base/log.h"
#include "coordinator/state/election.h"
#include "coordinator/state/etcd_client.h"
#include "tests/testing/certificates.h"
#include "tests/testing/etcd.h"
#include "tests/testing/http_peer.h"
#include "tests/testing/process_ring.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::Certificate;
using testing::Etcd;
using ::testing::HasSubstr;
using testing::HttpPeer;
using testing::MakeCertificate;
using testing::Process;

std::string Said(const Status& status) { return Message(status); }

class EtcdTlsTest : public testing::ProcessesTest {
 protected:
  void SetUp() override {
    if (!Etcd::Installed()) GTEST_SKIP() << "etcd is not installed (scripts/setup --deploy)";
    Write("ca", ca_);
    Write("other_ca", other_ca_);
    Write("server", MakeCertificate("DNS:localhost,IP:127.0.0.1", &ca_));
    Write("client", MakeCertificate("DNS:client", &ca_));
    Write("unauthenticated", MakeCertificate("DNS:client", &other_ca_));
    Write("ended", MakeCertificate("DNS:client", &ca_, -60));
    etcd_ = std::make_unique<Etcd>(
        testing::EtcdSettings{.cert = Cert("server"), .key = Key("server"), .clients_ca = Cert("ca")});
    ASSERT_TRUE(etcd_->Serves(Cert("ca"), Cert("client"), Key("client"))) << etcd_->output();
  }
  void Write(const std::string& name, const Certificate& made) {
    std::ofstream(Cert(name)) << made.certificate;
    std::ofstream(Key(name)) << made.key;
  }
  std::string Cert(const std::string& name) const { return folder_ / (name + ".pem"); }
  std::string Key(const std::string& name) const { return folder_ / (name + ".key"); }
  // Makes a call with the CA and the certificate of these names; "" = none. Returns how it ended.
  Status Ask(const std::string& ca, const std::string& client) {
    GYRE_ASSIGN_OR_RETURN(EtcdOptions options, ParseEtcdUrl(etcd_->url()));
    if (!ca.empty()) options.ca = Cert(ca);
    if (!client.empty()) options.cert = Cert(client), options.key = Key(client);
    GYRE_ASSIGN_OR_RETURN(const auto made, EtcdClient::Make(options));
    return made->Get("a", After(seconds(5))).status();
  }
  // A coordinator, with more flags.
  std::unique_ptr<Process> Coordinator(std::vector<std::string> flags) {
    std::vector<std::string> command{GYRE_BINARY,  "serve",     model_.path(), "--cluster", "127.0.0.1:0", "--standby",
                                     etcd_->url(), "--kv-type", "f32",         "--etcd-ca", Cert("ca")};
    command.insert(command.end(), flags.begin(), flags.end());
    return std::make_unique<Process>(command);
  }

  const Certificate ca_ = MakeCertificate(""), other_ca_ = MakeCertificate("");
  testing::Folder folder_;
  std::unique_ptr<Etcd> etcd_;
};

TEST_F(EtcdTlsTest, ACoordinatorLeadsByAnEtcdThatAsksForCertificates) {
  const auto one = Coordinator({"--etcd-cert", Cert("client"), "--etcd-key", Key("client")});
  ASSERT_TRUE(one->WaitFor("listening ")) << one->output();
  // Without a certificate the other one stands by, and says what is missing.
  const auto other = Coordinator({});
  const auto why = other->WaitFor("etcd fails: ");
  ASSERT_TRUE(why.has_value()) << other->output();
  EXPECT_THAT(*why, HasSubstr("the server asks for a certificate of this side (--etcd-cert)"));
  const auto third = Coordinator({"--etcd-cert", Cert("ended"), "--etcd-key", Key("ended")});
  EXPECT_EQ(third->Wait(seconds(10)), 1);
  EXPECT_THAT(third->output(), HasSubstr("ended.pem: the certificate ended on "));
}

TEST_F(EtcdTlsTest, WhatIsWrongWithACertificateIsSaid) {
  EXPECT_TRUE(Ask("ca", "client").ok());
  EXPECT_THAT(Said(Ask("other_ca", "client")),
              AllOf(HasSubstr("certificate verify failed"), HasSubstr("--etcd-ca FILE")));
  EXPECT_THAT(Said(Ask("", "client")), HasSubstr("--etcd-ca FILE"));
  EXPECT_THAT(Said(Ask("ca", "")), HasSubstr("the server asks for a certificate of this side (--etcd-cert)"));
  EXPECT_THAT(Said(Ask("ca", "unauthenticated")),
              HasSubstr("the server refuses the certificate " + Cert("unauthenticated")));
  EXPECT_THAT(Said(Ask("ca", "ended")), HasSubstr("the certificate ended on "));
  EXPECT_THAT(Said(Ask("nowhere", "client")), HasSubstr("nowhere.pem"));
}

// The client of etcd is made once and keeps its connections, as in a coordinator.
TEST_F(EtcdTlsTest, ACertificateThatIsReplacedIsUsedByTheNextConnection) {
  const Certificate good = MakeCertificate("DNS:client", &ca_),
                    unauthenticated = MakeCertificate("DNS:client", &other_ca_);
  Write("own", good);
  const EtcdOptions options = *ParseEtcdUrl(etcd_->url());
  const auto client = HttpClient::Make(*ParseUrl("https://" + options.hosts[0]),
                                       {.ca_file = Cert("ca"), .cert_file = Cert("own"), .key_file = Key("own")});
  ASSERT_TRUE(client.ok()) << client.status();
  // The first request of a pool makes a new connection.
  const auto ask = [&](int pool) {
    return (*client)->Fetch({.target = "/version", .pool = pool}, testing::Never).status();
  };
  EXPECT_TRUE(ask(0).ok());
  std::ofstream(Cert("own")) << unauthenticated.certificate;  // its key is not there yet
  EXPECT_TRUE(ask(1).ok());
  Write("own", MakeCertificate("DNS:client", &ca_, -60));
  EXPECT_TRUE(ask(2).ok()) << "one that has ended is not taken";
  Write("own", unauthenticated);
  EXPECT_THAT(Said(ask(3)), HasSubstr("the server refuses the certificate " + Cert("own")));
  EXPECT_TRUE(ask(0).ok()) << "an open connection goes on";
  Write("own", good);
  EXPECT_TRUE(ask(3).ok());

  // A coordinator's client, which was refused.
  Write("own", unauthenticated);
  EtcdOptions own = options;
  own.ca = Cert("ca"), own.cert = Cert("own"), own.key = Key("own");
  const auto etcd = EtcdClient::Make(own);
  ASSERT_TRUE(etcd.ok()) << etcd.status();
  EXPECT_FALSE((*etcd)->Get("a", After(seconds(5))).ok());
  Write("own", good);
  EXPECT_TRUE((*etcd)->Get("a", After(seconds(5))).ok());
}

std::string Options(const std::vector<const HttpPeer*>& members) {
  std::string out = "etcd://";
  for (const HttpPeer* m : members)
    out += (out.size() > 7 ? "," : "") + std::to_string(m->port()).insert(0, "127.0.0.1:");
  return out;
}

// A member's answers may be those of a proxy before it, or of one that ends.
TEST(EtcdMembersTest, OneThatFailsGivesWayToTheNext) {
  std::atomic<int> good_calls{0};
  HttpPeer good([&](HttpPeer::Call& call) {
    ++good_calls;
    call.Respond(200, R"({"header":{"revision":"7"},"kvs":[]})");
  });
  const std::pair<int, const char*> failures[] = {
      {503, "no healthy upstream"},
      {500, R"({"error":"etcdserver: no leader","code":14})"},
      {502, "<html>"},
      {504, R"({"error":"etcdserver: request timed out","code":4})"},
  };
  for (const auto& [code, text] : failures) {
    HttpPeer bad([code = code, text = text](HttpPeer::Call& call) { call.Respond(code, text); });
    auto client = EtcdClient::Make(*ParseEtcdUrl(Options({&bad, &good})));
    ASSERT_TRUE(client.ok());
    const int before = good_calls;
    EXPECT_TRUE((*client)->Get("a", After(seconds(5))).ok()) << code;
    EXPECT_TRUE((*client)->Get("a", After(seconds(5))).ok()) << code;
    EXPECT_EQ(good_calls, before + 2) << code << ": the one that answered is asked first";
    EXPECT_EQ(bad.connections(), 1) << code;
  }
  // One that says nothing costs an attempt's time.
  HttpPeer silent([](HttpPeer::Call& call) {
    while (!call.Gone()) std::this_thread::sleep_for(milliseconds(5));
    call.close = true;
  });
  auto options = ParseEtcdUrl(Options({&silent, &good}));
  options->attempt = milliseconds(100);
  auto client = EtcdClient::Make(*options);
  EXPECT_TRUE((*client)->Get("a", After(seconds(5))).ok());
  // All of them fail: the last one's words.
  HttpPeer bad([](HttpPeer::Call& call) { call.Respond(503, "no healthy upstream"); });
  auto none = EtcdClient::Make(*ParseEtcdUrl(Options({&bad})));
  const Status status = (*none)->Get("a", After(seconds(5))).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(EtcdMembersTest, ARefusalIsAnAnswer) {
  HttpPeer refuses(
      [](HttpPeer::Call& call) { call.Respond(400, R"({"error":"etcdserver: requested lease not found","code":5})"); });
  HttpPeer other([](HttpPeer::Call& call) { call.Respond(200, "{}"); });
  auto client = EtcdClient::Make(*ParseEtcdUrl(Options({&refuses, &other})));
  EXPECT_TRUE(absl::IsFailedPrecondition((*client)->Get("a", After(seconds(5))).status()));
  EXPECT_EQ(other.connections(), 0);
}

// A log whose reader stands still: each line waits in this hook.
class StuckLog {
 public:
  StuckLog() { SetBeforeLogLine(&StuckLog::Wait); }
  ~StuckLog() {
    {
      const std::lock_guard lock(mutex);
      go_on = true;
    }
    changed.notify_all();
    SetBeforeLogLine(nullptr);
  }
  static bool Reached(Duration time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [] { return reached; });
  }

 private:
  static void Wait() {
    std::unique_lock lock(mutex);
    reached = true;
    changed.notify_all();
    changed.wait(lock, [] { return go_on; });
  }
  static inline std::mutex mutex;
  static inline std::condition_variable changed;
  static inline bool reached = false, go_on = false;
};

class ElectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Etcd::Installed()) GTEST_SKIP() << "etcd is not installed (scripts/setup --deploy)";
    etcd_ = std::make_unique<Etcd>();
    ASSERT_TRUE(etcd_->Serves()) << etcd_->output();
  }
  // Leads by now.
  std::unique_ptr<Election> Leader(Duration lease) {
    ElectionOptions options{.etcd = *ParseEtcdUrl(etcd_->url()), .leadership = {}, .address = "127.0.0.1:7"};
    options.leadership.lease = lease;
    options.on_lost = [this] { lost_ = true; };
    options.now = [this] { return BootNow() + milliseconds(jump_ms_); };
    auto election = Election::Start(options);
    EXPECT_TRUE(election.ok()) << election.status();
    EXPECT_TRUE((*election)->WaitToLead([] { return false; }).ok());
    return *std::move(election);
  }
  bool Lost(Duration within) {
    for (const Deadline until = After(within); !lost_ && Clock::now() < until;)
      std::this_thread::sleep_for(milliseconds(5));
    return lost_;
  }
  std::unique_ptr<Etcd> etcd_;
  std::atomic<int64_t> jump_ms_{0};
  std::atomic<bool> lost_{false};
};

// The steady clock stands still in that time, and the lease's clock does not.
TEST_F(ElectionTest, AMachineThatWasSuspendedLeadsNoMore) {
  const auto election = Leader(seconds(60));
  EXPECT_FALSE(Lost(milliseconds(300)));
  jump_ms_ = 70'000;
  EXPECT_TRUE(Lost(milliseconds(1000)));
}

TEST_F(ElectionTest, ALogThatStandsStillKeepsNobodyLeading) {
  const auto election = Leader(seconds(2));
  {
    const StuckLog log;
    etcd_->Kill(SIGKILL);
    ASSERT_TRUE(StuckLog::Reached(seconds(5))) << "nothing was logged";
    EXPECT_TRUE(Lost(seconds(4)));
  }
}

TEST(BootClockTest, ItGoesOnWithTheClockOfTheMachine) {
  timespec first{};
  clock_gettime(CLOCK_BOOTTIME, &first);
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(BootNow().time_since_epoch()).count();
  const int64_t before = int64_t{first.tv_sec} * 1'000'000'000 + first.tv_nsec;
  EXPECT_GE(now, before);
  EXPECT_LT(now, before + 5'000'000'000);
}

// A name that can't be looked up, as its label is too long for DNS: no server is asked.
TEST(CoordinatorNamesTest, OneThatIsNotFoundGivesWayToTheNext) {
  testing::TinyModelFile model{testing::TinyOptions{.layers = 2}};
  testing::Ring ring(model.path());
  const std::string list = std::string(70, 'x') + ".invalid:7700," + ring.address();
  const auto status = FetchStatus(ClusterAddress(list));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->state(), "serving");
  Process worker({GYRE_BINARY, "worker", "--join", list, "--name", "w1", "-t", "1"});
  EXPECT_TRUE(worker.WaitFor("joined " + ring.address())) << worker.output();
  // Alone it is an error that names it.
  const Status alone = FetchStatus(ClusterAddress(std::string(70, 'x') + ".invalid:7700")).status();
  EXPECT_THAT(Said(alone), HasSubstr("no coordinator answers at xxx"));
}

}  // namespace
}  // namespace gyre
