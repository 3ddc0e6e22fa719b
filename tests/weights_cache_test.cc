// Entries of the cache: holes that become tensors, what survives, and what goes.
#include "weights/weight_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <new>
#include <thread>

#include "base/sha256_pair.h"
#include "model/mapped_file.h"
#include "model/tensor_table.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/weights_fixture.h"
#include "weights/room_watch.h"
#include "weights/weight_stock.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::TensorPieces;

// A model's file, its manifest, and an empty cache.
class WeightCacheTest : public ::testing::Test {
 protected:
  WeightCacheTest()
      : file_(testing::TinyOptions{.dim = 64, .layers = 3, .ffn = 256}),
        model_(testing::Opened(file_.path())),
        manifest_(testing::ManifestOf(model_)),
        bytes_(*BytesOf(model_)),
        header_(testing::HeaderOf(*manifest_, bytes_)) {}

  std::span<const std::byte> PieceOf(uint32_t piece) const {
    const Extent& at = manifest_->pieces[piece].at;
    return bytes_.bytes[at.file].subspan(at.offset, at.bytes);
  }
  std::shared_ptr<PieceStore> Open(const WeightCache& cache) {
    auto store = cache.Open(manifest_, header_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *store : nullptr;
  }
  void PutAll(PieceStore& store) {
    for (uint32_t p : TensorPieces(*manifest_)) EXPECT_TRUE(store.Put(p, PieceOf(p)).ok());
  }
  std::string Folder() const { return cache_.path() + "/weights/" + Hex(manifest_->root); }

  const testing::TinyModelFile file_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Manifest> manifest_;
  const ModelBytes bytes_;
  const std::vector<std::byte> header_;
  const testing::TempFolder cache_;
};

TEST_F(WeightCacheTest, AModelOpensWithoutItsLayersAndGetsThemLater) {
  const WeightCache cache(cache_.path(), 0);
  EXPECT_FALSE(cache.Find(manifest_->root).has_value());
  const auto store = Open(cache);
  EXPECT_TRUE(cache.Find(manifest_->root).has_value());
  OpenOptions open;
  open.known_hash = model_->content_hash();
  const auto model = testing::Opened(store->ModelPath(), open);
  EXPECT_EQ(model->content_hash(), model_->content_hash());
  EXPECT_EQ(model->spec().layers.size(), 3u);
  ASSERT_TRUE(model->Layer(1).ok());
  const TensorView* absent = model->tensors().Find("blk.1.attn_q.weight");
  for (uint64_t i = 0; i < absent->bytes; ++i) ASSERT_EQ(absent->data[i], std::byte{0});
  PutAll(*store);
  for (const auto& [name, t] : model_->tensors().all()) {
    const TensorView* here = model->tensors().Find(name);
    ASSERT_NE(here, nullptr) << name;
    ASSERT_EQ(here->bytes, t.bytes);
    EXPECT_EQ(std::memcmp(here->data, t.data, t.bytes), 0) << name;
  }
}

TEST_F(WeightCacheTest, AnEntryTakesNoSpaceForWhatIsAbsent) {
  const testing::TinyModelFile big{testing::TinyOptions{.dim = 256, .layers = 12, .ffn = 1024}};
  const auto model = testing::Opened(big.path());
  const auto manifest = testing::ManifestOf(model);
  const auto bytes = BytesOf(model);
  const WeightCache cache(cache_.path(), 0);
  const auto store = cache.Open(manifest, testing::HeaderOf(*manifest, *bytes));
  ASSERT_TRUE(store.ok()) << store.status();
  struct stat s {};
  ASSERT_EQ(stat((*store)->ModelPath().c_str(), &s), 0);
  EXPECT_EQ(static_cast<uint64_t>(s.st_size), manifest->files[0].size);
  EXPECT_LT(static_cast<uint64_t>(s.st_blocks) * 512, manifest->files[0].size / 10);
}

TEST_F(WeightCacheTest, WrongBytesAreRefusedAndNotWritten) {
  const auto store = Open(WeightCache(cache_.path(), 0));
  const uint32_t piece = TensorPieces(*manifest_)[2];
  std::vector<std::byte> wrong(PieceOf(piece).begin(), PieceOf(piece).end());
  wrong[5] ^= std::byte{1};
  const Status status = store->Put(piece, wrong);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(Message(status), HasSubstr("tensor "));
  EXPECT_EQ(store->state(piece), PieceState::kAbsent);
  EXPECT_TRUE(absl::IsDataLoss(store->Put(piece, PieceOf(piece).first(PieceOf(piece).size() - 1))));
  EXPECT_TRUE(store->Put(piece, PieceOf(piece)).ok());
  EXPECT_EQ(store->state(piece), PieceState::kThere);
}

TEST_F(WeightCacheTest, AHeaderThatIsWrongMakesNoEntry) {
  auto wrong = header_;
  wrong[100] ^= std::byte{1};
  const WeightCache cache(cache_.path(), 0);
  EXPECT_TRUE(absl::IsDataLoss(cache.Open(manifest_, wrong).status()));
  EXPECT_TRUE(absl::IsDataLoss(cache.Open(manifest_, {}).status()));
  EXPECT_FALSE(cache.Find(manifest_->root).has_value());
}

// A process that is killed loses nothing of what it had written.
TEST_F(WeightCacheTest, AKillKeepsWhatIsThere) {
  const std::vector<uint32_t> pieces = TensorPieces(*manifest_);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto store = WeightCache(cache_.path(), 0).Open(manifest_, header_);
    if (!store.ok()) _exit(1);
    for (size_t i = 0; i < 5; ++i) {
      if (!(*store)->Put(pieces[i], PieceOf(pieces[i])).ok()) _exit(1);
    }
    (void)!write(ready[1], "x", 1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  int how = 0;
  waitpid(child, &how, 0);
  const auto store = Open(WeightCache(cache_.path(), 0));
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(store->state(pieces[i]), i < 5 ? PieceState::kThere : PieceState::kAbsent) << i;
  }
}

// After the machine's next start nothing is believed before it is hashed.
TEST_F(WeightCacheTest, AfterTheMachinesStartEveryPieceIsHashedAgain) {
  PutAll(*Open(WeightCache(cache_.path(), 0)));
  const std::vector<uint32_t> pieces = TensorPieces(*manifest_);
  const Extent lost = manifest_->pieces[pieces[3]].at;
  testing::FlipBit(Folder() + "/files/model.gguf", lost.offset + 1);
  for (uint64_t i = 0; i < 16; ++i) testing::FlipBit(Folder() + "/have", 40 + i);  // another boot's id
  const auto store = Open(WeightCache(cache_.path(), 0));
  for (uint32_t p : pieces) EXPECT_EQ(store->state(p), PieceState::kUnchecked);
  EXPECT_EQ(CheckPieces(*store, pieces, 2, testing::Never), std::vector<uint32_t>{pieces[3]});
  EXPECT_EQ(store->state(pieces[3]), PieceState::kAbsent);
  EXPECT_EQ(store->state(pieces[4]), PieceState::kThere);
}

TEST_F(WeightCacheTest, BytesThatChangedAreFoundBeforeTheMachinesNextStart) {
  PutAll(*Open(WeightCache(cache_.path(), 0)));
  const std::vector<uint32_t> pieces = TensorPieces(*manifest_);
  const Extent changed = manifest_->pieces[pieces[2]].at;
  testing::FlipBit(Folder() + "/files/model.gguf", changed.offset + changed.bytes - 1);
  // A sum that is wrong itself makes nobody fetch.
  testing::FlipBit(Folder() + "/have", std::filesystem::file_size(Folder() + "/have") - 16);
  const auto store = Open(WeightCache(cache_.path(), 0));
  for (uint32_t p : pieces) EXPECT_EQ(store->state(p), PieceState::kThere) << "no time has passed";
  EXPECT_EQ(CheckPieces(*store, pieces, 2, testing::Never), std::vector<uint32_t>{pieces[2]});
  EXPECT_EQ(store->state(pieces[2]), PieceState::kAbsent);
}

TEST_F(WeightCacheTest, TheUsersOwnFileIsComparedOnce) {
  const testing::TempFolder folder;
  const std::string copy = folder.path() + "/copy.gguf";
  std::filesystem::copy_file(file_.path(), copy);
  const std::vector<uint32_t> pieces = TensorPieces(*manifest_);
  const Extent at = manifest_->pieces[pieces[4]].at;
  const WeightCache cache(cache_.path(), 0);
  {
    const auto store = cache.OverFiles(manifest_, *BytesOf(testing::Opened(copy)), false);
    ASSERT_TRUE(store.ok());
    EXPECT_TRUE(CheckPieces(**store, pieces, 2, testing::Never).empty());
  }
  {
    const auto store = cache.OverFiles(manifest_, *BytesOf(testing::Opened(copy)), false);
    EXPECT_EQ((*store)->state(pieces[0]), PieceState::kThere) << "it was hashed before";
  }
  // Its time of modification changes, so it is another file.
  testing::FlipBit(copy, at.offset + at.bytes - 1);
  const auto store = cache.OverFiles(manifest_, *BytesOf(testing::Opened(copy)), false);
  EXPECT_EQ((*store)->state(pieces[0]), PieceState::kUnchecked);
  EXPECT_EQ(CheckPieces(**store, pieces, 2, testing::Never), std::vector<uint32_t>{pieces[4]});
  EXPECT_TRUE(absl::IsInternal((*store)->Put(pieces[4], PieceOf(pieces[4])))) << "a user's file is never written";
}

// A file that is removed while its model is in use stays readable: it is still mapped.
TEST_F(WeightCacheTest, AFileThatLostItsNameIsCheckedAndRead) {
  const testing::TempFolder folder;
  const std::string copy = folder.path() + "/copy.gguf";
  std::filesystem::copy_file(file_.path(), copy);
  const auto bytes = BytesOf(testing::Opened(copy));
  std::filesystem::remove(copy);
  const auto store = WeightCache(cache_.path(), 0).OverFiles(manifest_, *bytes, false);
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<uint32_t> pieces = TensorPieces(*manifest_);
  EXPECT_TRUE(CheckPieces(**store, pieces, 2, testing::Never).empty());
  std::vector<std::byte> out;
  ASSERT_TRUE((*store)->Read(pieces[4], &out).ok());
  EXPECT_TRUE(std::ranges::equal(out, PieceOf(pieces[4])));
}

// The model is what was mapped, whatever its path leads to by the time of the store.
TEST_F(WeightCacheTest, AFileThatReplacedTheMappedOneIsNeverRead) {
  const testing::TempFolder folder;
  const std::string copy = folder.path() + "/copy.gguf", other = folder.path() + "/other.gguf";
  std::filesystem::copy_file(file_.path(), copy);
  std::filesystem::copy_file(file_.path(), other);
  const std::vector<uint32_t> pieces = TensorPieces(*manifest_);
  testing::FlipBit(other, manifest_->pieces[pieces[4]].at.offset);
  const auto bytes = BytesOf(testing::Opened(copy));
  std::filesystem::rename(other, copy);
  const auto store = WeightCache("", 0).OverFiles(manifest_, *bytes, true);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<std::byte> out;
  ASSERT_TRUE((*store)->Read(pieces[4], &out).ok());
  EXPECT_TRUE(std::ranges::equal(out, PieceOf(pieces[4])));
}

TEST_F(WeightCacheTest, AManifestIsKeptUntilItsFileChanges) {
  const testing::TempFolder folder;
  const std::string copy = folder.path() + "/copy.gguf";
  std::filesystem::copy_file(file_.path(), copy);
  const WeightCache cache(cache_.path(), 0);
  const ModelBytes bytes = *BytesOf(testing::Opened(copy));
  EXPECT_FALSE(cache.FindManifest(bytes).has_value());
  ASSERT_TRUE(cache.KeepManifest(bytes, *manifest_).ok());
  EXPECT_EQ(cache.FindManifest(bytes)->root, manifest_->root);
  testing::FlipBit(copy, 5000);
  EXPECT_FALSE(cache.FindManifest(bytes).has_value());
}

TEST_F(WeightCacheTest, EntriesThatNobodyUsesGoFirst) {
  const testing::TinyModelFile other{testing::TinyOptions{.dim = 64, .layers = 6, .ffn = 512}};
  const auto model = testing::Opened(other.path());
  const auto manifest = testing::ManifestOf(model);
  const auto header = testing::HeaderOf(*manifest, *BytesOf(model));
  uint64_t bytes = 0;
  for (uint32_t p : TensorPieces(*manifest_)) bytes += manifest_->pieces[p].at.bytes;
  const WeightCache cache(cache_.path(), bytes + bytes / 2 + (300 << 10));
  auto older = cache.Open(manifest, header);
  ASSERT_TRUE(older.ok());
  for (uint32_t p : TensorPieces(*manifest)) {
    const Extent& at = manifest->pieces[p].at;
    ASSERT_TRUE((*older)->Put(p, BytesOf(model)->bytes[0].subspan(at.offset, at.bytes)).ok());
  }
  const auto store = Open(cache);
  const Status used = cache.MakeRoom(*store, TensorPieces(*manifest_), {});
  EXPECT_TRUE(absl::IsResourceExhausted(used)) << used;
  EXPECT_THAT(Message(used), HasSubstr("--cache-limit"));
  EXPECT_TRUE(cache.Find(manifest->root).has_value()) << "it is in use";
  older->reset();
  EXPECT_TRUE(cache.MakeRoom(*store, TensorPieces(*manifest_), {}).ok());
  EXPECT_FALSE(cache.Find(manifest->root).has_value());
  EXPECT_TRUE(cache.Find(manifest_->root).has_value());
}

TEST_F(WeightCacheTest, ThenPiecesOfTheOwnEntryThatNobodyNeeds) {
  const testing::TinyModelFile big{testing::TinyOptions{.dim = 256, .layers = 4, .ffn = 1024}};
  const auto model = testing::Opened(big.path());
  const auto manifest = testing::ManifestOf(model);
  const ModelBytes bytes = *BytesOf(model);
  const NeededPieces all = PiecesOf(*manifest, {0, 4}, true, true, model->spec().tied_head);
  uint64_t layer = 0;
  for (uint32_t p : all.layers[0]) layer += manifest->pieces[p].at.bytes;
  const WeightCache cache(cache_.path(), 2 * layer + layer / 2);
  auto store = *cache.Open(manifest, testing::HeaderOf(*manifest, bytes));
  auto put = [&](int i) {
    for (uint32_t p : all.layers[static_cast<size_t>(i)]) {
      const Extent& at = manifest->pieces[p].at;
      ASSERT_TRUE(store->Put(p, bytes.bytes[0].subspan(at.offset, at.bytes)).ok());
    }
  };
  put(0);
  put(1);
  std::vector<uint32_t> keep = all.layers[1];
  keep.insert(keep.end(), all.layers[2].begin(), all.layers[2].end());
  {
    const auto another = *cache.Open(manifest, {});  // as another process would
    EXPECT_TRUE(absl::IsResourceExhausted(cache.MakeRoom(*store, all.layers[2], keep)));
    EXPECT_EQ(store->state(all.layers[0][0]), PieceState::kThere);
  }
  const Status room = cache.MakeRoom(*store, all.layers[2], keep);
  EXPECT_TRUE(room.ok()) << room;
  EXPECT_EQ(store->state(all.layers[0][0]), PieceState::kAbsent);
  EXPECT_EQ(store->state(all.layers[1][0]), PieceState::kThere);
  EXPECT_TRUE(CheckPieces(*store, all.layers[1], 1, testing::Never).empty());
  for (uint32_t p : all.layers[1])
    EXPECT_EQ(Sha256OfHalves(store->bytes(p)), manifest->pieces[p].hash) << "a hole is too large";
  put(2);
}

// What can't be measured once is measured again, and what was known stays meanwhile.
TEST(RoomWatchTest, LooksAgainAndAgain) {
  std::atomic<uint64_t> room{7}, looks{0};
  RoomWatch watch(
      [&]() -> uint64_t {
        if (++looks == 2) throw std::bad_alloc();
        return room;
      },
      std::chrono::milliseconds(5));
  const auto until = [](const std::function<bool()>& holds) {
    for (const Deadline end = After(std::chrono::seconds(20)); !holds() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return holds();
  };
  EXPECT_TRUE(until([&] { return watch.bytes() == 7; }));
  EXPECT_TRUE(until([&] { return looks >= 3; }));
  EXPECT_EQ(watch.bytes(), 7u);
  room = 9;
  EXPECT_TRUE(until([&] { return watch.bytes() == 9; }));
}

}  // namespace
}  // namespace gyre
