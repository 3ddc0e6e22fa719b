// The manifest of a model's files.
#include "weights/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "model/mapped_file.h"
#include "model/quantize.h"
#include "model/tensor_table.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/weights_fixture.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

TEST(ManifestTest, PiecesTileTheFileAndEveryTensorIsThere) {
  const testing::TinyModelFile file;
  const auto model = testing::Opened(file.path());
  const auto manifest = testing::ManifestOf(model);
  ASSERT_EQ(manifest->files.size(), 1u);
  EXPECT_EQ(manifest->files[0].name, "model.gguf");
  uint64_t at = 0;
  std::set<uint32_t> tensors;
  for (const Piece& p : manifest->pieces) {
    EXPECT_EQ(p.at.offset, at);
    EXPECT_GT(p.at.bytes, 0u);
    EXPECT_LE(p.at.bytes, kPieceBytes);
    if (p.tensor != kHeaderPiece) tensors.insert(p.tensor);
    at += p.at.bytes;
  }
  EXPECT_EQ(at, manifest->files[0].size);
  size_t matrices = 0;
  for (const auto& [name, tensor] : model->tensors().all()) matrices += tensor.dims.size() > 1;
  EXPECT_EQ(tensors.size(), matrices) << "vectors come with the header, as opening may read them";
  EXPECT_LT(manifest->HeaderBytes(), manifest->files[0].size / 2);
}

// A scale of NVFP4 is read with its weight, wherever in the file it lies: here behind another layer's.
TEST(ManifestTest, SecondScalesBelongToTheirWeights) {
  const testing::TinyModelFile tiny;
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/nv.gguf";
  ASSERT_TRUE(QuantizeFile(tiny.path(), path, {.type = "NVFP4", .threads = 1}).ok());
  const auto model = testing::Opened(path);
  const auto manifest = testing::ManifestOf(model);
  const auto files = BytesOf(model);
  ASSERT_TRUE(files.ok());
  const auto bytes = files->bytes[0];
  size_t scaled = 0;
  for (const ManifestTensor& t : manifest->tensors) {
    const TensorView* view = model->tensors().Find(t.name);
    if (view->scales == nullptr) continue;
    ++scaled;
    const auto offset = static_cast<uint64_t>(view->scales - bytes.data());
    ASSERT_EQ(t.extents.size(), 2u) << t.name;
    EXPECT_EQ(t.extents[1].offset, offset);
    EXPECT_EQ(t.extents[1].bytes, 4u);
    bool owned = false;
    for (const Piece& p : manifest->pieces) {
      if (p.at.offset <= offset && offset < p.at.offset + p.at.bytes)
        owned = p.tensor != kHeaderPiece && manifest->tensors[p.tensor].name == t.name;
    }
    EXPECT_TRUE(owned) << t.name;
  }
  EXPECT_GT(scaled, 4u);
}

TEST(ManifestTest, IsTheSameWhateverTheFileIsCalled) {
  const testing::TinyModelFile a, b;
  ASSERT_NE(a.path(), b.path());
  EXPECT_EQ(testing::ManifestOf(testing::Opened(a.path()))->root, testing::ManifestOf(testing::Opened(b.path()))->root);
}

// The sampled hash can't see every change, but any bit of the file makes another root, and its piece is known.
TEST(ManifestTest, OneBitMakesAnotherRoot) {
  const testing::TinyModelFile a, b;
  const auto before = testing::ManifestOf(testing::Opened(a.path()));
  std::mt19937 random(3);
  for (int i = 0; i < 10; ++i) {
    const std::vector<uint32_t> pieces = testing::TensorPieces(*before);
    const uint32_t piece = pieces[random() % pieces.size()];
    const Extent at = before->pieces[piece].at;
    const uint64_t offset = at.offset + random() % at.bytes;
    testing::FlipBit(b.path(), offset);
    const auto after = testing::ManifestOf(testing::Opened(b.path()));
    EXPECT_NE(after->root, before->root);
    for (uint32_t p = 0; p < before->pieces.size(); ++p) {
      EXPECT_EQ(before->pieces[p].hash == after->pieces[p].hash, p != piece) << p;
    }
    testing::FlipBit(b.path(), offset);
  }
}

TEST(ManifestTest, RoundTripsAndRefusesWhatIsDamaged) {
  const testing::TinyModelFile file;
  const auto manifest = testing::ManifestOf(testing::Opened(file.path()));
  const auto bytes = EncodeManifest(*manifest);
  const auto again = DecodeManifest(bytes);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->root, manifest->root);
  EXPECT_EQ(EncodeManifest(*again), bytes);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeManifest(std::span(bytes).first(n)).ok()) << n;
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodeManifest(longer).ok());
  // A flipped bit is refused, or it is another manifest.
  for (size_t n = 0; n < bytes.size(); ++n) {
    auto flipped = bytes;
    flipped[n] ^= std::byte{4};
    const auto read = DecodeManifest(flipped);
    if (read.ok()) EXPECT_NE(read->root, manifest->root) << n;
  }
}

TEST(ManifestTest, NamesThatLeaveTheFolderAreRefused) {
  for (const std::string name : {"../x", "a/b", ".hidden", "", "a\nb", "x y"}) {
    Manifest m;
    m.files = {{name, 8}};
    m.open = name;
    m.pieces.resize(1);
    EXPECT_FALSE(DecodeManifest(EncodeManifest(m)).ok()) << name;
  }
  Manifest m;
  m.files = {{"model.gguf", 8}};
  m.open = "model.gguf";
  m.pieces.resize(1);
  EXPECT_TRUE(DecodeManifest(EncodeManifest(m)).ok());
  m.open = "/etc/passwd";
  EXPECT_FALSE(DecodeManifest(EncodeManifest(m)).ok());
  // Sizes that nothing backs.
  m.open = "model.gguf";
  m.files[0].size = uint64_t{1} << 49;
  EXPECT_THAT(Message(DecodeManifest(EncodeManifest(m)).status()), HasSubstr("1 pieces"));
  m.files[0].size = 8;
  m.tensors = {{.name = "t", .type = 0, .dims = {1}, .extents = {{0, 4, 8}}}};
  EXPECT_FALSE(DecodeManifest(EncodeManifest(m)).ok()) << "it ends behind the file";
  m.tensors = {{.name = "t", .type = 0, .dims = {1}, .extents = {{0, 0, 4}}},
               {.name = "u", .type = 0, .dims = {1}, .extents = {{0, 2, 4}}}};
  m.pieces.resize(3);
  EXPECT_THAT(Message(DecodeManifest(EncodeManifest(m)).status()), HasSubstr("overlaps"));
}

TEST(ManifestTest, AStageNeedsItsLayersAndItsEnds) {
  const testing::TinyModelFile file{testing::TinyOptions{.layers = 4}};
  const auto model = testing::Opened(file.path());
  const auto manifest = testing::ManifestOf(model);
  auto names = [&](const std::vector<uint32_t>& pieces) {
    std::set<std::string> out;
    for (uint32_t p : pieces) out.insert(manifest->tensors[manifest->pieces[p].tensor].name);
    return out;
  };
  const bool tied = model->spec().tied_head;
  const NeededPieces middle = PiecesOf(*manifest, {1, 3}, false, false, tied);
  ASSERT_EQ(middle.layers.size(), 2u);
  EXPECT_TRUE(middle.ends.empty());
  for (const std::string& name : names(middle.layers[1])) EXPECT_EQ(name.rfind("blk.2.", 0), 0u) << name;
  EXPECT_EQ(names(middle.layers[1]).size(), 7u);
  const NeededPieces first = PiecesOf(*manifest, {0, 1}, true, false, tied);
  EXPECT_EQ(names(first.ends), std::set<std::string>{"token_embd.weight"});
  const NeededPieces last = PiecesOf(*manifest, {3, 4}, false, true, tied);
  EXPECT_EQ(names(last.ends).count(tied ? "token_embd.weight" : "output.weight"), 1u);
  // All stages together need all.
  const NeededPieces all = PiecesOf(*manifest, {0, 4}, true, true, tied);
  size_t count = all.ends.size();
  for (const auto& layer : all.layers) count += layer.size();
  EXPECT_EQ(count, testing::TensorPieces(*manifest).size());
  // In this file two layers share one block's tensors.
  const NeededPieces twos = PiecesOf(*manifest, {2, 6}, false, false, tied, false, 2);
  ASSERT_EQ(twos.layers.size(), 4u);
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(twos.layers[2 * i], middle.layers[i]);
    EXPECT_TRUE(twos.layers[2 * i + 1].empty());
  }
}

TEST(ManifestTest, OnlyTheFirstStageNeedsTheTableOfPositions) {
  Manifest m;
  m.tensors = {{.name = "position_embd.weight", .type = 0, .dims = {1}, .extents = {}}};
  m.pieces.resize(1);
  m.pieces[0].tensor = 0;
  EXPECT_EQ(PiecesOf(m, {0, 1}, true, false, false).ends.size(), 1u);
  EXPECT_TRUE(PiecesOf(m, {1, 2}, false, false, false).ends.empty());
  EXPECT_TRUE(PiecesOf(m, {2, 3}, false, true, true).ends.empty());
}

// Whatever opening reads is in the header, for every architecture: the spec of a model whose matrices are zeros is the
// same, and so is every vector.
TEST(ManifestTest, AModelOpensFromItsHeaderAlone) {
  for (const char* arch : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen2moe", "qwen3moe"}) {
    SCOPED_TRACE(arch);
    const testing::TinyModelFile file{testing::TinyOptions{.arch = arch}};
    const auto model = testing::Opened(file.path());
    const auto manifest = testing::ManifestOf(model);
    std::vector<std::byte> zeros(manifest->files[0].size);
    for (const Piece& p : manifest->pieces) {
      if (p.tensor != kHeaderPiece) continue;
      const auto from = model->files()[0]->bytes().subspan(p.at.offset, p.at.bytes);
      std::copy(from.begin(), from.end(), zeros.begin() + static_cast<std::ptrdiff_t>(p.at.offset));
    }
    const testing::TinyModelFile hollow(zeros);
    OpenOptions open;
    open.known_hash = model->content_hash();
    const auto opened = testing::Opened(hollow.path(), open);
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->content_hash(), model->content_hash());
    EXPECT_EQ(opened->spec().layers, model->spec().layers);
    EXPECT_EQ(opened->spec().final_norm_eps, model->spec().final_norm_eps);
    for (const auto& [name, t] : model->tensors().all()) {
      if (t.dims.size() > 1) continue;
      EXPECT_EQ(std::memcmp(opened->tensors().Find(name)->data, t.data, t.bytes), 0) << name;
    }
  }
}

// A folder of safetensors: its JSON files come with the header, the tokenizer's do not.
TEST(ManifestTest, AFolderOpensFromItsHeaderAlone) {
  const testing::TempFolder whole, hollow;
  auto write = [](const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; };
  constexpr uint64_t kDim = 32, kFfn = 64, kVocab = 96;
  write(whole.path() + "/config.json",
        R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
            "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 96, "tie_word_embeddings": false})");
  testing::Shard shards[2];
  boost::json::object map;
  std::mt19937 random(1);
  int next = 0;
  auto put = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(random() % 1000) / 1000;
    const int shard = next++ % 2;
    shards[shard].AddFloats(name, shape, values);
    map[name] = fmt::format("part{}.safetensors", shard);
  };
  put("model.embed_tokens.weight", {kVocab, kDim});
  put("lm_head.weight", {kVocab, kDim});
  put("model.norm.weight", {kDim});
  for (int l = 0; l < 2; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) put(layer + norm + ".weight", {kDim});
    for (const char* m : {"q", "k", "v", "o"}) put(fmt::format("{}self_attn.{}_proj.weight", layer, m), {kDim, kDim});
    for (const char* m : {"gate", "up"}) put(fmt::format("{}mlp.{}_proj.weight", layer, m), {kFfn, kDim});
    put(layer + "mlp.down_proj.weight", {kDim, kFfn});
  }
  for (int i = 0; i < 2; ++i) write(fmt::format("{}/part{}.safetensors", whole.path(), i), shards[i].Bytes());
  write(whole.path() + "/model.safetensors.index.json",
        boost::json::serialize(boost::json::object{{"weight_map", map}}));
  const auto model = testing::Opened(whole.path());
  ASSERT_NE(model, nullptr);
  const auto manifest = testing::ManifestOf(model);
  EXPECT_EQ(manifest->open, ".");
  ASSERT_EQ(manifest->files.size(), 4u);
  const ModelBytes bytes = *BytesOf(model);
  for (size_t f = 0; f < manifest->files.size(); ++f) {
    std::string text(manifest->files[f].size, '\0');
    for (const Piece& p : manifest->pieces) {
      if (p.at.file != f || p.tensor != kHeaderPiece) continue;
      std::memcpy(text.data() + p.at.offset, bytes.bytes[f].data() + p.at.offset, p.at.bytes);
    }
    write(hollow.path() + "/" + manifest->files[f].name, text);
  }
  OpenOptions open;
  open.known_hash = model->content_hash();
  const auto opened = testing::Opened(hollow.path(), open);
  ASSERT_NE(opened, nullptr);
  EXPECT_EQ(opened->content_hash(), model->content_hash());
  EXPECT_EQ(opened->spec().layers, model->spec().layers);
  EXPECT_EQ(testing::TensorPieces(*manifest).size(), 2u * 7 + 2);
}

}  // namespace
}  // namespace gyre
