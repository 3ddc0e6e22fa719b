// Real processes: workers without the model's file fetch their layers, resume, give them on, and refuse what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "hub/file_lock.h"
#include "runtime/runtime.h"
#include "tests/testing/llama2c_writer.h"
#include "tests/testing/lora_writer.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/weights_fixture.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using ::testing::HasSubstr;
using testing::Process;
using testing::Ring;

constexpr int kWeightsLayers = 9, kWeightsVocab = 96;

// As a flag takes it.
std::string SizeFlag(uint64_t bytes) { return fmt::format("{}K", bytes >> 10); }

uint64_t BytesOnDisk(const std::string& folder) {
  uint64_t sum = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    struct stat s {};
    if (stat(entry.path().c_str(), &s) == 0 && S_ISREG(s.st_mode)) sum += static_cast<uint64_t>(s.st_blocks) * 512;
  }
  return sum;
}

class RingWeightsTest : public ::testing::Test {
 protected:
  std::vector<std::string> Fetches(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> flags{"--weights", "fetch", "--cache", Cache(name)};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  std::string Cache(const std::string& name) const { return folder_.path() + "/" + name; }
  std::vector<std::string> Serve(std::vector<std::string> more) {
    more.insert(more.end(), {"--cache", Cache("coordinator")});
    return more;
  }
  std::vector<TokenId> TextAlone(int seed) {
    auto alone = Runtime::Open(testing::OneProcess(model_.path()));
    EXPECT_TRUE(alone.ok()) << alone.status();
    return testing::RunOne((*alone)->engine(), Ask(seed, kWeightsVocab, 20)).tokens;
  }
  // One text over the ring.
  std::vector<TokenId> TextOf(const Ring& ring, int seed) { return TextOf(ring, Ask(seed, kWeightsVocab, 20)); }
  std::vector<TokenId> TextOf(const Ring& ring, const Request& request) {
    auto target = OpenRemote(ring.address());
    EXPECT_TRUE(target.ok()) << target.status();
    std::vector<TokenId> tokens;
    const Status status = (*target)->Run(request, [&](const Event& event) {
      if (const auto* t = std::get_if<TokenEvent>(&event)) tokens.push_back(t->token);
    });
    EXPECT_TRUE(status.ok()) << status;
    return tokens;
  }
  std::optional<v1::MemberStatus> Member(const Ring& ring, const std::string& name) {
    const auto status = FetchStatus(ring.address());
    if (!status.ok()) return std::nullopt;
    for (const auto& m : status->members()) {
      if (m.name() == name) return m;
    }
    return std::nullopt;
  }

  // Waits until it holds.
  static bool Eventually(const std::function<bool()>& holds, seconds time = seconds(40)) {
    for (const Deadline end = After(time); Clock::now() < end; std::this_thread::sleep_for(milliseconds(5))) {
      if (holds()) return true;
    }
    return false;
  }
  bool Fetched(const Ring& ring, const std::string& name, uint64_t bytes) {
    return Eventually([&] {
      const auto m = Member(ring, name);
      return m && m->fetched() >= bytes;
    });
  }

  const testing::TempFolder folder_;
  const testing::TinyModelFile model_{testing::TinyOptions{.dim = 192, .layers = kWeightsLayers, .ffn = 1024}};
  const uint64_t bytes_ = std::filesystem::file_size(model_.path());
};

// No machine can hold the model; its file is on the coordinator, which runs no layers.
TEST_F(RingWeightsTest, WorkersThatCanNotHoldTheModelServeIt) {
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "3"}));
  const std::string limit = SizeFlag(bytes_ * 6 / 10);
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name, Fetches(name, {"--cache-limit", limit}));
  ASSERT_TRUE(ring.Serves(3));
  for (int seed : {1, 2, 3}) EXPECT_EQ(TextOf(ring, seed), TextAlone(seed));
  uint64_t all = 0;
  for (const char* name : {"w1", "w2", "w3"}) {
    const uint64_t here = BytesOnDisk(Cache(name));
    EXPECT_LT(here, bytes_ * 6 / 10) << name;
    all += here;
  }
  EXPECT_LT(all, bytes_ * 13 / 10) << "something was fetched twice";
  // Each of them begins again with what it has.
  for (size_t i = 0; i < 3; ++i) {
    ring.worker(i).Kill(SIGINT);
    EXPECT_EQ(ring.worker(i).Wait(seconds(10)), 0) << ring.worker(i).output();
  }
}

// Of each adapter a worker gets the part of its layers; one that has the files uses them; layers move with them.
TEST_F(RingWeightsTest, AdaptersComeWithTheLayersThatTheyBelongTo) {
  const auto model = *OpenModel(model_.path());
  const testing::LoraOptions of_gguf{.seed = 4, .rank = 32}, of_peft{.seed = 5, .rank = 16};
  const testing::TinyModelFile gguf(testing::LoraGguf(*model, of_gguf));
  const testing::TempFolder peft;
  testing::WritePeft(*model, of_peft, peft.path(), {4, 2});
  const uint64_t adapters =
      std::filesystem::file_size(gguf.path()) + std::filesystem::file_size(peft.path() + "/adapter_model.safetensors");
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "3", "--lora", "law=" + gguf.path(), "--lora",
                                  "pirate=" + peft.path()}));
  ring.AddWorker("w1", Fetches("w1"));
  ring.AddWorker("w2", Fetches("w2"));
  ring.AddWorker("w3");
  ASSERT_TRUE(ring.Serves(3));
  RuntimeOptions options = testing::OneProcess(model_.path());
  options.open.adapters = {{"law", gguf.path()}, {"pirate", peft.path()}};
  auto alone = Runtime::Open(options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto check = [&] {
    std::vector<std::vector<TokenId>> texts;
    for (uint32_t adapter = 0; adapter <= 2; ++adapter) {
      Request r = Ask(3, kWeightsVocab, 20);
      r.adapter = adapter;
      texts.push_back(testing::RunOne((*alone)->engine(), r).tokens);
      EXPECT_EQ(TextOf(ring, r), texts.back()) << adapter;
    }
    EXPECT_NE(texts[0], texts[1]);
    EXPECT_NE(texts[1], texts[2]);
  };
  check();
  for (const char* name : {"w1", "w2"}) EXPECT_LT(BytesOnDisk(Cache(name)), (bytes_ + adapters) * 6 / 10) << name;
  ASSERT_TRUE(ring.AsksFor("w1=0-1,w2=2-7,w3=8-8"));
  check();
}

// A worker's own settings would change the bits, and the hash that it takes over would not show it.
TEST_F(RingWeightsTest, FetchedWeightsAreComputedWithTheCoordinatorsSettings) {
  const std::string path = folder_.path() + "/tiny.bin";
  {
    const auto bytes = testing::BuildTinyBin({.dim = 64, .vocab = kWeightsVocab, .seq_len = 256});
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  Ring ring(path, Serve({"--no-local"}));
  ring.AddWorker("w1", Fetches("w1", {"--rope-base", "3", "--norm-eps", "0.5"}));
  ASSERT_TRUE(ring.Serves(1));
  auto alone = Runtime::Open(testing::OneProcess(path));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(TextOf(ring, 1), testing::RunOne((*alone)->engine(), Ask(1, kWeightsVocab, 20)).tokens);
}

TEST_F(RingWeightsTest, AFullDiskIsWaitedFor) {
  const testing::SmallDisk disk(folder_.path() + "/disk");
  if (!disk.Fill()) GTEST_SKIP() << "no file system can be mounted here";
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1"}));
  Process& worker = ring.AddWorker("w1", {"--weights", "fetch", "--cache", disk.folder() + "/w1"});
  EXPECT_TRUE(worker.WaitFor("waiting for room on the disk: ").has_value()) << worker.output();
  disk.Empty();
  ASSERT_TRUE(ring.Serves(1)) << worker.output();
  EXPECT_EQ(TextOf(ring, 1), TextAlone(1));
}

TEST_F(RingWeightsTest, ADiskThatIsTooSmallIsSaidBeforeAnythingIsFetched) {
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1"}));
  ring.AddWorker("w1", Fetches("w1", {"--cache-limit", SizeFlag(bytes_ / 2)}));
  ASSERT_TRUE(Eventually([&] {
    const auto status = FetchStatus(ring.address());
    return status.ok() && status->state().find("its disk has room for") != std::string::npos;
  })) << ring.serve().output();
  EXPECT_LT(BytesOnDisk(Cache("w1")), bytes_ / 4);
}

// Another process's weights fill the cache at first. When it has gone, the worker says that there is room, without
// joining again, and the plan is made.
TEST_F(RingWeightsTest, RoomThatComesLaterIsHeardOf) {
  const std::string other = Cache("w1") + "/weights/" + std::string(64, 'a');
  std::filesystem::create_directories(other + "/files");
  std::filesystem::create_directories(other + "/users");
  std::ofstream(other + "/files/model.gguf") << std::string(bytes_, 'x');
  auto user = FileLock::Try(other + "/users/1", FileLock::Mode::kExclusive);
  ASSERT_TRUE(user.ok() && *user != nullptr);
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1"}));
  ring.AddWorker("w1", Fetches("w1", {"--cache-limit", SizeFlag(bytes_ * 13 / 10)}));
  ASSERT_TRUE(Eventually([&] {
    const auto status = FetchStatus(ring.address());
    return status.ok() && status->state().find("its disk has room for") != std::string::npos;
  })) << ring.serve().output();
  EXPECT_LT(Member(ring, "w1")->weights_room(), bytes_ / 2);
  EXPECT_THAT(Member(ring, "w1")->left_out(), HasSubstr("w1 fetches its weights: layers 0-8 take"));
  (*user).reset();
  ASSERT_TRUE(ring.Serves(1)) << ring.serve().output();
  EXPECT_GT(Member(ring, "w1")->weights_room(), bytes_);
  EXPECT_FALSE(std::filesystem::exists(other)) << "nobody uses it, and there is a limit";
  EXPECT_EQ(TextOf(ring, 1), TextAlone(1));
}

// Killed in the middle and started again, it asks only for what is missing.
TEST_F(RingWeightsTest, AKilledWorkerGoesOnWhereItWas) {
  const uint64_t rate = bytes_ / 3;
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1", "--weights-rate", SizeFlag(rate)}));
  Process& first = ring.AddWorker("w1", Fetches("w1"));
  ASSERT_TRUE(Fetched(ring, "w1", bytes_ / 4)) << ring.serve().output();
  const uint64_t all = Member(ring, "w1")->to_fetch();
  EXPECT_GT(all, bytes_ * 8 / 10);
  first.Kill(SIGKILL);
  ASSERT_TRUE(first.Wait(seconds(10)).has_value());
  ASSERT_TRUE(Eventually([&] { return !Member(ring, "w1").has_value(); }));
  ring.AddWorker("w1", Fetches("w1"));
  ASSERT_TRUE(Eventually([&] {
    const auto m = Member(ring, "w1");
    return m && m->to_fetch() > 0;
  }));
  EXPECT_LE(Member(ring, "w1")->to_fetch(), all - bytes_ / 5);
  ASSERT_TRUE(ring.Serves(1));
  EXPECT_EQ(TextOf(ring, 1), TextAlone(1));
}

// Layers move to a worker that has to fetch them, from the coordinator and from the worker that runs them. No text
// notices.
TEST_F(RingWeightsTest, AResizeToAWorkerWithoutTheFile) {
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1"}));
  ring.AddWorker("w1", Fetches("w1"));
  ASSERT_TRUE(ring.Serves(1));
  ring.AddWorker("w2", Fetches("w2"));
  ASSERT_TRUE(Eventually([&] { return Member(ring, "w2").has_value(); }));
  testing::Clients clients(ring.address(), kWeightsVocab, 20);
  clients.WaitUntilTokens(20);
  const auto change = AskResize(ring.address(), "w1=0-3,w2=4-8");
  ASSERT_TRUE(change.ok()) << change.status() << ring.serve().output();
  clients.WaitUntilTokens(400);
  for (const auto& text : clients.Stop()) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    if (text.seed < 3) EXPECT_EQ(text.tokens, TextAlone(text.seed));
  }
  EXPECT_LT(BytesOnDisk(Cache("w2")), bytes_ * 8 / 10);
}

// Weights of the cache that change while their worker is stopped: the text is right, and somebody is told.
TEST_F(RingWeightsTest, CachedWeightsThatChangedAreFetchedAgain) {
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1"}));
  ring.AddWorker("w1", Fetches("w1"));
  ASSERT_TRUE(ring.Serves(1));
  ring.worker(0).Kill(SIGKILL);
  ASSERT_TRUE(ring.worker(0).Wait(seconds(10)).has_value());
  ASSERT_TRUE(Eventually([&] { return !Member(ring, "w1").has_value(); }));
  const auto manifest = testing::ManifestOf(testing::Opened(model_.path()));
  const std::string file = Cache("w1") + "/weights/" + Hex(manifest->root) + "/files/model.gguf";
  for (const int layer : {2, 7}) {
    const NeededPieces needed = PiecesOf(*manifest, {layer, layer + 1}, false, false, false);
    const Extent& at = manifest->pieces[needed.layers[0][1]].at;
    for (uint64_t i = 0; i < 100; ++i) testing::FlipBit(file, at.offset + i * at.bytes / 100);
  }
  testing::FlipBit(file, 24);  // in the header
  Process& worker = ring.AddWorker("w1", Fetches("w1"));
  ASSERT_TRUE(ring.Serves(1)) << worker.output();
  EXPECT_EQ(TextOf(ring, 1), TextAlone(1));
  EXPECT_THAT(worker.output(), HasSubstr("they are fetched again"));
}

// The coordinator's own file changes after it was hashed: its member does not compute with what it finds there.
TEST_F(RingWeightsTest, AFileThatChangesUnderTheCoordinatorIsRefusedByItsTensor) {
  const std::string copy = folder_.path() + "/copy.gguf";
  std::filesystem::copy_file(model_.path(), copy);
  Ring ring(copy, Serve({"--min-workers", "1"}));
  ring.AddWorker("w1", Fetches("w1"));
  ASSERT_TRUE(ring.Serves(2));
  ASSERT_TRUE(AskResize(ring.address(), "w1=0-4,local=5-8").ok());
  const auto manifest = testing::ManifestOf(testing::Opened(model_.path()));
  const uint32_t piece = PiecesOf(*manifest, {2, 3}, false, false, false).layers[0][1];
  testing::FlipBit(copy, manifest->pieces[piece].at.offset + manifest->pieces[piece].at.bytes / 2);
  const auto change = AskResize(ring.address(), "w1=0-1,local=2-8");
  ASSERT_FALSE(change.ok());
  EXPECT_THAT(Message(change.status()), HasSubstr(manifest->Describe(piece)));
  EXPECT_THAT(Message(change.status()), HasSubstr("the file has changed"));
  EXPECT_EQ(TextOf(ring, 1), TextAlone(1));
}

// A file with one wrong bit, which the sampled hash does not see: the plan that needs it fails and says which tensor.
TEST_F(RingWeightsTest, AFileWithAFlippedBitIsRefusedByItsTensor) {
  const auto model = testing::Opened(model_.path());
  const auto manifest = testing::ManifestOf(model);
  const uint32_t piece = PiecesOf(*manifest, {5, 6}, false, false, false).layers[0][3];
  const Extent& at = manifest->pieces[piece].at;
  ASSERT_GT(at.bytes, 70'000u);
  const std::string copy = folder_.path() + "/copy.gguf";
  std::filesystem::copy_file(model_.path(), copy);
  testing::FlipBit(copy, at.offset + at.bytes - 40);
  Ring ring(model_.path(), Serve({"--no-local", "--min-workers", "1"}));
  ring.AddWorker("w1", {"--cache", Cache("w1")});
  ASSERT_TRUE(ring.Serves(1));
  ring.AddWorker("w2", {"--model", copy, "--cache", Cache("w2")});
  ASSERT_TRUE(Eventually([&] { return Member(ring, "w2").has_value(); }));
  const auto change = AskResize(ring.address(), "w1=0-3,w2=4-8");
  ASSERT_FALSE(change.ok());
  EXPECT_THAT(Message(change.status()), HasSubstr(manifest->Describe(piece)));
  // Layers that are alike in both files are fine.
  const auto fine = AskResize(ring.address(), "w2=0-3,w1=4-8");
  EXPECT_TRUE(fine.ok()) << fine.status();
  EXPECT_EQ(TextOf(ring, 2), TextAlone(2));
}

}  // namespace
}  // namespace gyre
