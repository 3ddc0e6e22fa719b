// Pieces over real links: several sources, sources that die, lie or lack something, and a worker's stock on top.
#include "weights/fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/sha256_pair.h"
#include "model/tensor_table.h"
#include "tests/testing/ring_ports.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/weights_fixture.h"
#include "transport/pieces.h"
#include "weights/piece_server.h"
#include "weights/remote_weights.h"
#include "weights/weight_offer.h"
#include "weights/weight_stock.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::TensorPieces;

constexpr RingKey kKey = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// A process that has the whole file.
struct Source {
  Source(const std::shared_ptr<const Model>& model, const std::shared_ptr<const Manifest>& manifest)
      : port(testing::OpenPortWithoutKey()), server(std::make_unique<PieceServer>(port.get())) {
    server->SetKey(kKey);
    server->SetStore(*WeightCache("", 0).OverFiles(manifest, *BytesOf(model), true));
  }
  WeightSource at(const std::string& name) const { return {name, port->address()}; }
  std::unique_ptr<RingPort> port;
  std::unique_ptr<PieceServer> server;
};

class FetchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { made_ = new Made; }
  static void TearDownTestSuite() {
    delete made_;
    made_ = nullptr;
  }
  FetchTest()
      : store_(*WeightCache(cache_.path(), 0).Open(manifest_, testing::HeaderOf(*manifest_, *BytesOf(model_)))),
        port_(testing::OpenPortWithoutKey()) {}

  FetchOptions Options() {
    FetchOptions o;
    o.port = port_.get();
    o.key = kKey;
    o.from = "w1";
    return o;
  }
  void ExpectAllThere() {
    for (uint32_t p : TensorPieces(*manifest_)) {
      ASSERT_EQ(store_->state(p), PieceState::kThere);
      EXPECT_EQ(Sha256OfHalves(store_->bytes(p)), manifest_->pieces[p].hash);
    }
  }

  // Made once, as making it takes longer than most of the tests; nobody writes to it.
  struct Made {
    const testing::TinyModelFile file{testing::TinyOptions{.dim = 256, .layers = 6, .ffn = 1024}};
    const std::shared_ptr<const Model> model = testing::Opened(file.path());
    const std::shared_ptr<const Manifest> manifest = testing::ManifestOf(model);
  };
  static inline const Made* made_ = nullptr;
  const testing::TinyModelFile& file_ = made_->file;
  const std::shared_ptr<const Model> model_ = made_->model;
  const std::shared_ptr<const Manifest> manifest_ = made_->manifest;
  const testing::TempFolder cache_;
  const std::shared_ptr<PieceStore> store_;
  const std::unique_ptr<RingPort> port_;
};

TEST(PieceFramesTest, RoundTripAndRefuseCuts) {
  PullPiece request{.root = {}, .piece = 77};
  request.root[3] = std::byte{9};
  Encoder out;
  EncodePullPiece(request, &out);
  EXPECT_EQ(*DecodePullPiece(out.bytes()), request);
  for (size_t n = 0; n < out.size(); ++n) EXPECT_FALSE(DecodePullPiece(out.bytes().first(n)).ok()) << n;
  for (size_t n = 0; n < 4; ++n) EXPECT_FALSE(DecodePiece(out.bytes().first(n)).ok()) << n;
  Encoder text;
  text.Put(uint32_t{5});
  text.PutBytes("no\nsuch", 7);
  const auto answer = DecodePiece(text.bytes());
  EXPECT_EQ(answer->piece, 5u);
  EXPECT_EQ(NoPieceText(*answer), "no?such");
}

TEST_F(FetchTest, SeveralSourcesGiveOneModel) {
  const Source a(model_, manifest_), b(model_, manifest_);
  // As slow as lines are, so that each has its part.
  a.server->SetRate(20 << 20);
  b.server->SetRate(20 << 20);
  Fetch fetch(store_, TensorPieces(*manifest_), {a.at("a"), b.at("b")}, Options());
  ASSERT_TRUE(fetch.Wait(TensorPieces(*manifest_), testing::Never).ok());
  ExpectAllThere();
  EXPECT_EQ(fetch.done_bytes(), fetch.total_bytes());
  EXPECT_GT(a.server->bytes_sent(), fetch.total_bytes() / 5);
  EXPECT_GT(b.server->bytes_sent(), fetch.total_bytes() / 5);
}

TEST_F(FetchTest, ASourceThatDiesInTheMiddleIsReplaced) {
  auto a = std::make_unique<Source>(model_, manifest_);
  const Source b(model_, manifest_);
  a->server->SetRate(4 << 20);
  b.server->SetRate(4 << 20);
  Fetch fetch(store_, TensorPieces(*manifest_), {a->at("a"), b.at("b")}, Options());
  while (a->server->bytes_sent() == 0) std::this_thread::sleep_for(milliseconds(1));
  a.reset();
  const Status status = fetch.Wait(TensorPieces(*manifest_), testing::Never);
  EXPECT_TRUE(status.ok()) << status;
  ExpectAllThere();
}

TEST_F(FetchTest, ASourceThatLiesIsFoundOutAndTheOthersGiveTheRest) {
  const Source liar(model_, manifest_), honest(model_, manifest_);
  liar.server->FlipBitsForTest(true);
  honest.server->SetRate(20 << 20);
  Fetch fetch(store_, TensorPieces(*manifest_), {liar.at("liar"), honest.at("honest")}, Options());
  ASSERT_TRUE(fetch.Wait(TensorPieces(*manifest_), testing::Never).ok());
  ExpectAllThere();
}

TEST_F(FetchTest, WithoutAnHonestSourceItFailsByName) {
  const Source liar(model_, manifest_);
  liar.server->FlipBitsForTest(true);
  Fetch fetch(store_, TensorPieces(*manifest_), {liar.at("liar")}, Options());
  const Status status = fetch.Wait(TensorPieces(*manifest_), testing::Never);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("liar sends wrong bytes: tensor "));
  for (uint32_t p : TensorPieces(*manifest_)) EXPECT_EQ(store_->state(p), PieceState::kAbsent);
}

TEST_F(FetchTest, ASourceThatHasOnlySomeGivesThose) {
  // b is another worker that fetched layers 0 to 2.
  const testing::TempFolder other;
  const auto partial = *WeightCache(other.path(), 0).Open(manifest_, testing::HeaderOf(*manifest_, *BytesOf(model_)));
  const NeededPieces some = PiecesOf(*manifest_, {0, 3}, true, false, false);
  const auto bytes = *BytesOf(model_);
  for (const auto& layer : some.layers) {
    for (uint32_t p : layer) {
      const Extent& at = manifest_->pieces[p].at;
      ASSERT_TRUE(partial->Put(p, bytes.bytes[0].subspan(at.offset, at.bytes)).ok());
    }
  }
  const Source a(model_, manifest_), b(model_, manifest_);
  b.server->SetStore(partial);
  a.server->SetRate(2 << 20);
  Fetch fetch(store_, TensorPieces(*manifest_), {a.at("a"), b.at("b")}, Options());
  ASSERT_TRUE(fetch.Wait(TensorPieces(*manifest_), testing::Never).ok());
  ExpectAllThere();
  EXPECT_GT(b.server->bytes_sent(), 0u);
}

TEST_F(FetchTest, WrongKeysAndOtherModelsGetNothing) {
  const Source a(model_, manifest_);
  FetchOptions wrong = Options();
  wrong.key[0] = 99;
  {
    Fetch fetch(store_, TensorPieces(*manifest_), {a.at("a")}, wrong);
    const Status status = fetch.Wait(TensorPieces(*manifest_), testing::Never);
    EXPECT_THAT(Message(status), HasSubstr("no weights to links with this key"));
  }
  const testing::TinyModelFile other;
  const auto model = testing::Opened(other.path());
  const auto manifest = testing::ManifestOf(model);
  const Source b(model, manifest);
  Fetch fetch(store_, TensorPieces(*manifest_), {b.at("b")}, Options());
  EXPECT_THAT(Message(fetch.Wait(TensorPieces(*manifest_), testing::Never)),
              HasSubstr("b: this source knows no such model"));
  EXPECT_EQ(a.server->bytes_sent() + b.server->bytes_sent(), 0u);
}

TEST_F(FetchTest, CancellingEndsTheWaitAndWhatCameStays) {
  const Source a(model_, manifest_);
  a.server->SetRate(1 << 20);
  {
    Fetch fetch(store_, TensorPieces(*manifest_), {a.at("a")}, Options());
    const Status status = fetch.Wait(TensorPieces(*manifest_), [&] { return fetch.done_bytes() > 0; });
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
  size_t here = 0;
  for (uint32_t p : TensorPieces(*manifest_)) here += store_->state(p) == PieceState::kThere;
  EXPECT_GT(here, 0u);
  a.server->SetRate(0);
  std::vector<uint32_t> missing = CheckPieces(*store_, TensorPieces(*manifest_), 1, testing::Never);
  EXPECT_EQ(missing.size() + here, TensorPieces(*manifest_).size());
  Fetch rest(store_, missing, {a.at("a")}, Options());
  ASSERT_TRUE(rest.Wait(missing, testing::Never).ok());
  ExpectAllThere();
}

// From the coordinator's offer to a stage's layers, as processes do it.
TEST_F(FetchTest, AStockGetsAStagesLayersFromAnOffer) {
  const testing::TempFolder coordinator, worker;
  const auto port = testing::OpenPortWithoutKey();
  WeightStock offered(WeightCache(coordinator.path(), 0), port.get());
  WeightOffer offer(model_, &offered);
  WeightStock stock(WeightCache(worker.path(), 0), port_.get());
  stock.SetKey(offer.key());
  const auto waiting = [](uint64_t, uint64_t, bool) { return false; };
  int asked = 0;
  const AskForPart ask = [&](uint64_t offset) {
    ++asked;
    return offer.Part(offset);
  };
  auto store = OpenRemote(ask, stock.cache(), waiting);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->manifest().root, manifest_->root);
  stock.SetStore(*store);
  LoadingRequest request{.range = {2, 4}, .layers = {2, 3}, .ends = true, .name = "w1"};
  request.sources = {{"coordinator", port->address()}};
  auto loading = stock.Begin(request);
  ASSERT_TRUE(loading.ok()) << loading.status();
  for (int layer : {2, 3}) ASSERT_TRUE((*loading)->WaitForLayer(layer, testing::Never).ok());
  ASSERT_TRUE((*loading)->WaitForEnds(testing::Never).ok());
  OpenOptions open;
  open.known_hash = model_->content_hash();
  const auto opened = testing::Opened((*store)->ModelPath(), open);
  for (int layer : {2, 3}) {
    for (const auto& [name, there] : model_->tensors().all()) {
      if (name.rfind(fmt::format("blk.{}.", layer), 0) != 0) continue;
      EXPECT_EQ(std::memcmp(opened->tensors().Find(name)->data, there.data, there.bytes), 0) << name;
    }
  }
  const NeededPieces first = PiecesOf(*manifest_, {0, 1}, false, false, false);
  for (uint32_t p : first.layers[0]) {
    EXPECT_EQ((*store)->state(p), PieceState::kAbsent) << "nobody asked for layer 0";
  }
  // A worker passes on the pieces that it fetched.
  const auto third = testing::OpenPortWithoutKey();
  const testing::TempFolder cache;
  WeightStock other(WeightCache(cache.path(), 0), third.get());
  other.SetKey(offer.key());
  other.SetStore(*OpenRemote(ask, other.cache(), waiting));
  request.sources = {{"w1", port_->address()}};
  request.name = "w2";
  auto from_worker = other.Begin(request);
  ASSERT_TRUE((*from_worker)->WaitForLayer(3, testing::Never).ok());
  EXPECT_GT(stock.server().bytes_sent(), 0u);
  // A second start of the process asks for the manifest's root and nothing else.
  asked = 0;
  ASSERT_TRUE(OpenRemote(ask, stock.cache(), waiting).ok());
  EXPECT_EQ(asked, 1);
  // The user's own file: `gyre run` on what is in the cache is refused.
  EXPECT_THAT(Message(OpenModel((*store)->ModelPath()).status()), HasSubstr("only the layers that a worker fetched"));
}

// What may happen to an entry of the cache: by `path` within it.
struct Damage {
  const char* what;
  std::function<void(const std::string& entry)> act;
};

void Cut(const std::string& path, uint64_t size) { std::filesystem::resize_file(path, size); }
void Write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
void MakeFolderOf(const std::string& path) {
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path + "/inside");
}
void MakeFileOf(const std::string& path) {
  std::filesystem::remove_all(path);
  Write(path, "x");
}
void Zero(const std::string& path, uint64_t offset, uint64_t bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << std::string(bytes, '\0');
}

// A worker with an entry that was damaged in any way since its last start gets the coordinator's weights.
TEST_F(FetchTest, ADamagedEntryIsMended) {
  const uint64_t size = std::filesystem::file_size(file_.path());
  const uint64_t tensor = manifest_->pieces[TensorPieces(*manifest_)[4]].at.offset;
  const std::string file = "/files/model.gguf";
  const std::vector<Damage> damages = {
      {"a flipped bit of a tensor", [&](const std::string& e) { testing::FlipBit(e + file, tensor + 7); }},
      {"200 flipped bits",
       [&](const std::string& e) {
         for (uint64_t i = 0; i < 200; ++i) testing::FlipBit(e + file, (i * 7919 * 131) % size);
       }},
      {"zeros", [&](const std::string& e) { Zero(e + file, size / 2, size / 4); }},
      {"a wrong magic", [&](const std::string& e) { testing::FlipBit(e + file, 0); }},
      {"a wrong header", [&](const std::string& e) { Zero(e + file, 8, 64); }},
      {"no bytes", [&](const std::string& e) { Cut(e + file, 0); }},
      {"a cut magic", [&](const std::string& e) { Cut(e + file, 3); }},
      {"a cut header", [&](const std::string& e) { Cut(e + file, 200); }},
      {"a cut tensor", [&](const std::string& e) { Cut(e + file, tensor + 100); }},
      {"a byte less", [&](const std::string& e) { Cut(e + file, size - 1); }},
      {"a byte more", [&](const std::string& e) { Cut(e + file, size + 1); }},
      {"no file", [&](const std::string& e) { std::filesystem::remove(e + file); }},
      {"a folder in place of the file", [&](const std::string& e) { MakeFolderOf(e + file); }},
      {"no folder of files", [&](const std::string& e) { std::filesystem::remove_all(e + "/files"); }},
      {"a file in place of the folder", [&](const std::string& e) { MakeFileOf(e + "/files"); }},
      {"no states", [&](const std::string& e) { std::filesystem::remove(e + "/have"); }},
      {"empty states", [&](const std::string& e) { Cut(e + "/have", 0); }},
      {"cut states", [&](const std::string& e) { Cut(e + "/have", 70); }},
      {"states that claim too much",
       [&](const std::string& e) {
         Zero(e + file, tensor, 5000);
         const std::string head = [&] {
           std::ifstream in(e + "/have", std::ios::binary);
           std::string bytes(64, '\0');
           in.read(bytes.data(), 64);
           return bytes;
         }();
         const size_t rest = std::filesystem::file_size(e + "/have") - 64;
         Write(e + "/have", head + std::string(rest, '\1'));
       }},
      {"a folder in place of the states", [&](const std::string& e) { MakeFolderOf(e + "/have"); }},
      {"no manifest", [&](const std::string& e) { std::filesystem::remove(e + "/manifest"); }},
      {"a cut manifest", [&](const std::string& e) { Cut(e + "/manifest", 1000); }},
      {"a flipped bit of the manifest", [&](const std::string& e) { testing::FlipBit(e + "/manifest", 500); }},
      {"a folder in place of the manifest", [&](const std::string& e) { MakeFolderOf(e + "/manifest"); }},
      {"no marker", [&](const std::string& e) { std::filesystem::remove(e + "/files/.partial-model"); }},
      {"no users", [&](const std::string& e) { std::filesystem::remove_all(e + "/users"); }},
      {"a file in place of the users", [&](const std::string& e) { MakeFileOf(e + "/users"); }},
      {"an empty entry",
       [&](const std::string& e) {
         std::filesystem::remove_all(e);
         std::filesystem::create_directories(e);
       }},
      {"a file in place of the entry", [&](const std::string& e) { MakeFileOf(e); }},
  };
  const testing::TempFolder coordinator, worker;
  const auto port = testing::OpenPortWithoutKey();
  WeightStock offered(WeightCache(coordinator.path(), 0), port.get());
  WeightOffer offer(model_, &offered);
  const AskForPart ask = [&](uint64_t offset) { return offer.Part(offset); };
  const auto waiting = [](uint64_t, uint64_t, bool) { return false; };
  LoadingRequest request{.range = {0, 6}, .layers = {0, 1, 2, 3, 4, 5}, .first = true, .last = true, .ends = true};
  request.name = "w1";
  request.sources = {{"coordinator", port->address()}};
  const auto load = [&] {
    WeightStock stock(WeightCache(worker.path(), 0), port_.get());
    stock.SetKey(offer.key());
    auto store = OpenRemote(ask, stock.cache(), waiting);
    ASSERT_TRUE(store.ok()) << store.status();
    stock.SetStore(*store);
    auto loading = stock.Begin(request);
    ASSERT_TRUE(loading.ok()) << loading.status();
    for (int layer : request.layers) {
      const Status status = (*loading)->WaitForLayer(layer, testing::Never);
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE((*loading)->WaitForEnds(testing::Never).ok());
    for (uint32_t p = 0; p < manifest_->pieces.size(); ++p) {
      ASSERT_EQ(Sha256OfHalves((*store)->bytes(p)), manifest_->pieces[p].hash) << manifest_->Describe(p);
    }
    OpenOptions open;
    open.known_hash = model_->content_hash();
    EXPECT_TRUE(OpenModel((*store)->ModelPath(), open).ok());
    EXPECT_FALSE(OpenModel((*store)->ModelPath()).ok()) << "it is only a part of a model";
  };
  load();
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    damage.act(worker.path() + "/weights/" + Hex(manifest_->root));
    load();
    if (HasFatalFailure()) return;
  }
}

// The same while the process runs: it has loaded the layers once, and gets them again in a later plan.
TEST_F(FetchTest, PiecesThatChangeUnderARunningProcessAreFetchedAgain) {
  const Source a(model_, manifest_);
  WeightStock stock(WeightCache(cache_.path(), 0), port_.get());
  stock.SetKey(kKey);
  stock.SetStore(store_);
  LoadingRequest request{.range = {0, 2}, .layers = {0, 1}, .name = "w1"};
  request.sources = {a.at("a")};
  const auto load = [&] {
    auto loading = stock.Begin(request);
    ASSERT_TRUE(loading.ok()) << loading.status();
    for (int layer : request.layers) ASSERT_TRUE((*loading)->WaitForLayer(layer, testing::Never).ok());
    const NeededPieces needed = PiecesOf(*manifest_, request.range, false, false, false);
    for (const auto& layer : needed.layers) {
      for (uint32_t p : layer) ASSERT_EQ(Sha256OfHalves(store_->bytes(p)), manifest_->pieces[p].hash);
    }
  };
  load();
  const NeededPieces needed = PiecesOf(*manifest_, request.range, false, false, false);
  const uint64_t at = manifest_->pieces[needed.layers[1][0]].at.offset;
  testing::FlipBit(store_->ModelPath(), at);
  load();
  Cut(store_->ModelPath(), at);  // what is mapped behind it would end the process
  load();
  Cut(store_->ModelPath(), 0);
  load();
  // It gives a peer nothing that is wrong.
  testing::FlipBit(store_->ModelPath(), at + 5);
  std::vector<std::byte> bytes;
  EXPECT_TRUE(absl::IsNotFound(store_->Read(needed.layers[1][0], &bytes)));
  load();
}

TEST_F(FetchTest, AFileThatDiffersInOneBitIsNamedWithTheTensor) {
  const testing::TempFolder folder, cache;
  const std::string copy = folder.path() + "/copy.gguf";
  std::filesystem::copy_file(file_.path(), copy);
  const NeededPieces all = PiecesOf(*manifest_, {0, 6}, true, true, model_->spec().tied_head);
  const uint32_t piece = all.layers[3][2];
  const Extent& at = manifest_->pieces[piece].at;
  // Behind what the sampled hash looks at.
  ASSERT_GT(at.bytes, 65536u + 100);
  testing::FlipBit(copy, at.offset + at.bytes - 50);
  const auto model = testing::Opened(copy);
  EXPECT_EQ(model->content_hash(), model_->content_hash()) << "the sampled hash does not see it";
  WeightStock stock(WeightCache(cache.path(), 0), port_.get());
  stock.SetStore(*stock.cache().OverFiles(manifest_, *BytesOf(model), false));
  LoadingRequest request{.range = {2, 4}, .layers = {2, 3}, .name = "w1"};
  auto loading = stock.Begin(request);
  ASSERT_TRUE(loading.ok());
  EXPECT_TRUE((*loading)->WaitForLayer(2, testing::Never).ok());
  const Status status = (*loading)->WaitForLayer(3, testing::Never);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(Message(status), HasSubstr(manifest_->Describe(piece)));
  EXPECT_THAT(Message(status), HasSubstr(copy));
}

TEST_F(FetchTest, PiecesThatAreReadAreNotDropped) {
  const Source a(model_, manifest_);
  Fetch fetch(store_, TensorPieces(*manifest_), {a.at("a")}, Options());
  ASSERT_TRUE(fetch.Wait(TensorPieces(*manifest_), testing::Never).ok());
  const uint32_t piece = TensorPieces(*manifest_)[1];
  std::atomic<bool> ends{false};
  std::thread reader([&] {
    std::vector<std::byte> bytes;
    while (!ends) {
      const Status status = store_->Read(piece, &bytes);
      if (status.ok()) EXPECT_EQ(Sha256OfHalves(bytes), manifest_->pieces[piece].hash);
      if (!status.ok()) EXPECT_TRUE(absl::IsNotFound(status)) << status;
    }
  });
  const auto bytes = *BytesOf(model_);
  const Extent& at = manifest_->pieces[piece].at;
  for (int i = 0; i < 300; ++i) {
    store_->Drop({piece});
    ASSERT_TRUE(store_->Put(piece, bytes.bytes[0].subspan(at.offset, at.bytes)).ok());
  }
  ends = true;
  reader.join();
}

}  // namespace
}  // namespace gyre
