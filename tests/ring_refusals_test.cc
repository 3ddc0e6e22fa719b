// Real processes on loopback and those that do not belong to them: other models, other settings, unauthenticated peers,
// garbage.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "gyre/v1/admin.grpc.pb.h"
#include "gyre/v1/cluster.grpc.pb.h"
#include "gyre/v1/inference.grpc.pb.h"
#include "kernels/isa.h"
#include "proto/control_codec.h"
#include "proto/convert.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"
#include "transport/frame.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using testing::OpenFiles;
using testing::Process;
using testing::Ring;

class RefusalsTest : public testing::ProcessesTest {};

// A worker that no ring needs, over a connection of its own.
struct UnauthenticatedPeer {
  explicit UnauthenticatedPeer(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub = v1::Cluster::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    stream = stub->Attach(&context);
  }
  // All that is asked of a worker.
  void Hello(uint64_t model_hash) {
    v1::WorkerHello* h = event.mutable_hello();
    h->set_protocol(kControlProtocol);
    h->set_name("mallory");
    h->set_ring_address("127.0.0.1:1");
    h->set_model_hash(model_hash);
    h->set_threads(1);
  }
  // The sentence that ends the stream.
  std::string Refused() {
    stream->Write(event);
    v1::Command command;
    EXPECT_FALSE(stream->Read(&command)) << command.DebugString();
    return Message(FromGrpc(stream->Finish()));
  }
  std::unique_ptr<v1::Cluster::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerEvent, v1::Command>> stream;
  v1::WorkerEvent event;
};

TEST_F(RefusalsTest, RefusalsHaveTheirSentence) {
  const std::string isa = IsaName(DetectIsa());
  if (isa == "ref") GTEST_SKIP() << "this processor has no instruction set beside the scalar code";
  testing::TinyModelFile other{testing::TinyOptions{.seed = 9, .layers = 6}};
  Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--bit-equal", "--isa", isa});
  Process& unauthenticated = ring.AddWorker("unauthenticated", {"--model", other.path(), "--isa", isa});
  EXPECT_EQ(unauthenticated.Wait(seconds(10)), 1);
  EXPECT_THAT(unauthenticated.output(), HasSubstr("is another model file"));
  Process& lost = ring.AddWorker("lost", {"--model", "/nowhere.gguf", "--isa", isa});
  EXPECT_EQ(lost.Wait(seconds(10)), 1);
  EXPECT_THAT(lost.output(), HasSubstr("/nowhere.gguf"));
  Process& ref = ring.AddWorker("plain", {"--isa", "ref"});
  EXPECT_EQ(ref.Wait(seconds(10)), 1);
  EXPECT_THAT(ref.output(), HasSubstr("computes with ref, the cluster asks for " + isa));
  ring.AddWorker("small", {"--isa", isa, "--memory", "1k"});
  std::string state;
  for (int i = 0; i < 1000 && state.find("needs") == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    auto target = OpenRemote(ring.address());
    if (target.ok()) state = Message((*target)->Run(Ask(1, 96, 5), [](const Event&) {}));
  }
  EXPECT_THAT(state, HasSubstr("small needs"));
  EXPECT_THAT(state, HasSubstr("and has 1.0 KiB"));
}

TEST_F(RefusalsTest, AnotherTypeOfActivationsIsRefused) {
  Process serve({GYRE_BINARY, "serve", model_.path(), "--cluster", "127.0.0.1:0", "--bit-equal", "--wire", "f16"});
  EXPECT_EQ(serve.Wait(seconds(10)), 2);
  EXPECT_THAT(serve.output(), HasSubstr("--bit-equal with --wire f16: it rounds at every hop"));
  {
    Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--bit-equal"});
    Process& other = ring.AddWorker("other", {"--wire", "q8"});
    EXPECT_EQ(other.Wait(seconds(10)), 1);
    EXPECT_THAT(other.output(), HasSubstr("other sends activations as q8, the cluster asks for f32 (--bit-equal)"));
    ring.AddWorker("same", {"--wire", "f32"});
    EXPECT_TRUE(ring.Serves(1));
  }
  Ring ring(model_.path(), {"--no-local", "--min-workers", "1", "--wire", "q8"});
  Process& exact = ring.AddWorker("exact", {"--wire", "f32"});
  EXPECT_EQ(exact.Wait(seconds(10)), 1);
  EXPECT_THAT(exact.output(), HasSubstr("exact sends activations as f32, the cluster asks for q8 (--wire)"));
  // A version that knows no types says nothing of them, and would send f32.
  auto attach = [&](uint32_t types) {
    UnauthenticatedPeer unauthenticated(ring.address());
    unauthenticated.Hello((*OpenModel(model_.path()))->content_hash());
    unauthenticated.event.mutable_hello()->set_name("old");
    unauthenticated.event.mutable_hello()->set_wire_types(types);
    return unauthenticated.Refused();
  };
  EXPECT_THAT(attach(0), HasSubstr("old sends activations as f32, the cluster asks for q8 (--wire)"));
  EXPECT_THAT(attach(4 + 8), HasSubstr("old sends activations as f32 or f16, the cluster asks for q8 (--wire)"));
  EXPECT_THAT(attach(1u << 31), HasSubstr("old sends activations as nothing known, the cluster asks for q8"));
  ring.AddWorker("fine");
  EXPECT_TRUE(ring.Serves(1));
}

TEST_F(RefusalsTest, NothingButLoopbackWithoutInsecure) {
  Process serve({GYRE_BINARY, "serve", model_.path(), "--cluster", "0.0.0.0:0"});
  EXPECT_EQ(serve.Wait(seconds(10)), 2);
  EXPECT_THAT(serve.output(), HasSubstr("--insecure"));
}

TEST_F(RefusalsTest, AHostilePeerOnTheRingPortChangesNothing) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  Clients clients(ring.address(), 96, 200);
  std::mt19937 random(1);
  std::vector<int> silent;
  for (int i = 0; i < 120; ++i) {
    const auto& member = status->members(static_cast<int>(random() % 2));
    auto fd = ConnectTcp(member.address(), After(seconds(2)));
    if (!fd.ok()) continue;  // its queue of connections is full for a moment
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (i % 3 == 0) {  // a right header with a huge length, or cut
      const auto header = EncodeHeader({.kind = FrameKind::kHello, .length = uint64_t{1} << (random() % 40)});
      bytes.assign(header.begin(), header.begin() + 1 + static_cast<int>(random() % 64));
    }
    (void)!write(*fd, bytes.data(), bytes.size());
    if (i % 2 == 0) {
      close(*fd);
    } else {
      silent.push_back(*fd);
    }
  }
  const uint64_t from = clients.tokens();
  clients.WaitUntilTokens(from + 200);
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
  EXPECT_TRUE(AskResize(ring.address(), "w2=0-2,w1=3-5").ok());
  for (int fd : silent) close(fd);
  for (size_t i = 0; i < 2; ++i) {  // one line, not a hundred
    const std::string text = ring.worker(i).output();
    size_t refused = 0;
    for (size_t at = 0; (at = text.find("refused", at)) != std::string::npos; ++at) ++refused;
    EXPECT_LE(refused, 2u) << text;
    EXPECT_GE(refused, 1u) << text;
  }
}

TEST_F(RefusalsTest, AbsurdAttachesAreRefusedAndLoggedOnce) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), 96, 200);
  const uint64_t hash = (*OpenModel(model_.path()))->content_hash();
  auto attach = [&](const std::function<void(v1::WorkerEvent&)>& change) {
    UnauthenticatedPeer unauthenticated(ring.address());
    unauthenticated.Hello(hash);
    change(unauthenticated.event);
    return unauthenticated.Refused();
  };
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_protocol(99); }), HasSubstr("protocol 99"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_name(std::string(100000, 'x')); }),
              HasSubstr("1 to 64 letters"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_name("a\nb"); }), HasSubstr("letters"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_name("local"); }), HasSubstr("own"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_ring_address("nowhere"); }), HasSubstr("HOST:PORT"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_threads(4000000000u); }), HasSubstr("threads"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->set_model_hash(1); }), HasSubstr("another model"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_hello()->mutable_preference()->set_end(1 << 30); }),
              HasSubstr("wants layers"));
  EXPECT_THAT(attach([](auto& e) { e.mutable_done()->set_verb(1); }), HasSubstr("not a hello"));
  const size_t files = OpenFiles(ring.serve().pid());
  for (int i = 0; i < 60; ++i) attach([](auto& e) { e.mutable_hello()->set_name(""); });
  for (int i = 0; i < 200 && OpenFiles(ring.serve().pid()) > files; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LE(OpenFiles(ring.serve().pid()), files + 2);
  const std::string text = ring.serve().output();
  size_t refused = 0;
  for (size_t at = 0; (at = text.find("refused a worker", at)) != std::string::npos; ++at) ++refused;
  EXPECT_EQ(refused, 1u) << text;
  const uint64_t from = clients.tokens();
  clients.WaitUntilTokens(from + 100);
  for (const auto& t : clients.Stop()) EXPECT_TRUE(t.status.ok()) << t.status;
}

// The memory of a process in bytes: the least of a second, as what a call took may come back a little later.
uint64_t ResidentBytes(pid_t pid) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 20; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmRSS:", 0) == 0) least = std::min<uint64_t>(least, std::stoull(line.substr(6)) << 10);
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return least;
}

// Calls that nobody should make, each with a message of `bytes`: every one is refused, cut off or given up by its
// caller.
class HostileCaller {
 public:
  HostileCaller(std::string address, uint64_t model_hash, size_t bytes)
      : address_(std::move(address)), model_hash_(model_hash), big_(bytes, 'x'), ids_(bytes, 5) {}

  // An unauthenticated peer's hello with an endless name, over a connection of its own.
  void AttachWithEndlessName() {
    UnauthenticatedPeer unauthenticated(address_);
    unauthenticated.event.mutable_hello()->set_protocol(kControlProtocol);
    unauthenticated.event.mutable_hello()->set_name(big_);
    EXPECT_THAT(unauthenticated.Refused(), HasSubstr("1 to 64 letters"));
  }
  // The stream's first event is no hello.
  void AttachWithoutHello() {
    UnauthenticatedPeer unauthenticated(address_);
    unauthenticated.event.mutable_fault()->set_message(big_);
    EXPECT_THAT(unauthenticated.Refused(), HasSubstr("not a hello"));
  }
  // Opened, and never a word.
  void AttachAndSayNothing() {
    UnauthenticatedPeer unauthenticated(address_);
    unauthenticated.context.TryCancel();
    EXPECT_FALSE(unauthenticated.stream->Finish().ok());
  }
  // A member that joins, tells long stories and vanishes.
  void JoinAndTellStories(int stories) {
    UnauthenticatedPeer unauthenticated(address_);
    unauthenticated.Hello(model_hash_);
    v1::Command command;
    ASSERT_TRUE(unauthenticated.stream->Write(unauthenticated.event) && unauthenticated.stream->Read(&command))
        << Message(FromGrpc(unauthenticated.stream->Finish()));
    unauthenticated.event.mutable_epoch()->set_number(1 << 20);
    unauthenticated.event.mutable_fault()->set_message(big_);
    for (int i = 0; i < stories; ++i) EXPECT_TRUE(unauthenticated.stream->Write(unauthenticated.event));
    unauthenticated.context.TryCancel();
    EXPECT_FALSE(unauthenticated.stream->Finish().ok());
  }
  void GenerateFromAnEndlessPrompt() {
    v1::GenerateRequest request;
    request.mutable_ids()->Add(ids_.begin(), ids_.end());
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::OUT_OF_RANGE);
  }
  // A request that runs, whose caller goes away.
  void GenerateAndLeave() {
    v1::GenerateRequest request;
    request.mutable_ids()->Add(5);
    request.set_max_new_tokens(400);
    request.set_ignore_end(true);
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_TRUE(reader->Read(&event));
    context.TryCancel();
    EXPECT_FALSE(reader->Finish().ok());
  }
  void GenerateWithAnEndlessStop() {
    v1::GenerateRequest request;
    request.mutable_ids()->Add(5);
    request.add_stops(big_);
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    v1::GenerateEvent event;
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  void ScoreAnEndlessPrompt() {
    v1::ScoreRequest request;
    request.mutable_ids()->Add(ids_.begin(), ids_.end());
    grpc::ClientContext context;
    const auto reader = inference_->Score(&context, request);
    v1::ScoreEvent event;
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::OUT_OF_RANGE);
  }
  void ResizeToNonsense() {
    v1::ResizeRequest request;
    request.set_ranges(big_);
    v1::ChangeReply reply;
    grpc::ClientContext context;
    EXPECT_FALSE(admin_->Resize(&context, request, &reply).ok());
  }
  // Past the limit of a message.
  void SendTooMuch() {
    v1::ResizeRequest request;
    request.set_ranges(std::string(size_t{17} << 20, 'x'));
    v1::ChangeReply reply;
    grpc::ClientContext context;
    EXPECT_EQ(admin_->Resize(&context, request, &reply).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  // No HTTP/2 at all, or half a call: the preface, settings and the beginning of a frame of `big_`. It stays open until
  // Hang up.
  void SpeakGarbage() {
    auto fd = ConnectTcp(address_, After(seconds(2)));
    ASSERT_TRUE(fd.ok()) << fd.status();
    const bool half = open_.size() % 2 == 0;
    std::string bytes = half ? std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9) +
                                   std::string("\0\x40\0\1\4\0\0\0\1", 9)
                             : std::string();
    bytes += big_.substr(0, half ? 8000 : big_.size());
    (void)!send(*fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // it may be closed meanwhile
    open_.push_back(*fd);
  }
  void HangUp() {
    for (int fd : open_) close(fd);
    open_.clear();
  }

 private:
  const std::string address_;
  const uint64_t model_hash_;
  const std::string big_;
  const std::vector<int32_t> ids_;
  const std::shared_ptr<grpc::Channel> channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  const std::unique_ptr<v1::Inference::Stub> inference_ = v1::Inference::NewStub(channel_);
  const std::unique_ptr<v1::Admin::Stub> admin_ = v1::Admin::NewStub(channel_);
  std::vector<int> open_;
};

TEST_F(RefusalsTest, HostileCallsLeaveNoMemoryBehind) {
  // With glibc's own habits freed messages stay in pools, 15 MiB more or less by chance; so, what is freed goes back at
  // once, and every kind of call was seen to leave the same memory behind to a tenth of a MiB, SendTooMuch to one.
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"},
            {"/usr/bin/env", "MALLOC_ARENA_MAX=1", "MALLOC_MMAP_THRESHOLD_=65536"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  constexpr size_t kBytes = size_t{256} << 10;
  constexpr int kCalls = 6;  // of each kind in a round
  HostileCaller caller(ring.address(), (*OpenModel(model_.path()))->content_hash(), kBytes);
  auto round = [&] {
    for (int i = 0; i < kCalls; ++i) {
      caller.AttachWithEndlessName();
      caller.AttachWithoutHello();
      caller.AttachAndSayNothing();
      caller.GenerateFromAnEndlessPrompt();
      caller.GenerateAndLeave();
      caller.GenerateWithAnEndlessStop();
      caller.ScoreAnEndlessPrompt();
      caller.ResizeToNonsense();
      caller.SpeakGarbage();
    }
    caller.JoinAndTellStories(kCalls);
    caller.SendTooMuch();
    caller.HangUp();
  };
  constexpr int kWarm = 2, kRounds = testing::kSanitized ? 1 : 5;
  for (int i = 0; i < kWarm; ++i) round();
  const size_t files = OpenFiles(ring.serve().pid());
  const uint64_t before = ResidentBytes(ring.serve().pid());
  for (int i = 0; i < kRounds; ++i) round();
  const uint64_t after = ResidentBytes(ring.serve().pid());
  for (int i = 0; i < 200 && OpenFiles(ring.serve().pid()) > files; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_LE(OpenFiles(ring.serve().pid()), files + 2);
  // A message kept by each call of one kind would be 7.5 MiB. A sanitizer keeps what is freed, on purpose.
  if (!testing::kSanitized) {
    EXPECT_LT(after, before + kBytes * kCalls * kRounds / 2) << "from " << before << " to " << after;
  }
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 20), [](const Event&) {}).ok());
  EXPECT_EQ(FetchStatus(ring.address())->state(), "serving");
}

}  // namespace
}  // namespace gyre
