// The memory of a node's layers of 8-bit safetensors: about their bytes in the file, whatever else is in it. And how
// they come from the disk.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/testing/sanitized.h"
#include "worker/layer.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDim = 768, kLayers = 8;

// A folder of a llama with matrices of one 8-bit type.
class Folder {
 public:
  explicit Folder(bool fp8) {
    char path[] = "/tmp/gyre-resident-XXXXXX";
    path_ = mkdtemp(path);
    for (char& c : some_) c = static_cast<char>(random_() % 112);
    std::ofstream(path_ / "config.json")
        << R"({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 768, "num_attention_heads": 8,
              "intermediate_size": 768, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "vocab_size": 64})";
    Add("model.embed_tokens.weight", "F32", {64, kDim});
    Add("lm_head.weight", "F32", {64, kDim});
    Add("model.norm.weight", "F32", {kDim});
    for (uint64_t i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        Add(layer + norm, "F32", {kDim});
      for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
        AddMatrix(layer + name, fp8);
      }
    }
    header_.back() = '}';
    while (header_.size() % 8 != 0) header_ += ' ';
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    const uint64_t size = header_.size();
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << header_ << data_;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  void Add(const std::string& name, const char* type, const std::vector<uint64_t>& shape) {
    const bool one = type[1] == '8';
    uint64_t elems = 1;
    std::string dims;
    for (uint64_t d : shape) {
      elems *= d;
      dims += (dims.empty() ? "" : ",") + std::to_string(d);
    }
    const uint64_t begin = data_.size(), bytes = elems * (one ? 1 : 4);
    for (uint64_t i = 0; one && i < bytes; i += some_.size()) data_.append(some_, 0, bytes - i);
    const float value = 0.01f;
    for (uint64_t i = 0; !one && i < elems; ++i) data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    header_ += "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[" + dims + "],\"data_offsets\":[" +
               std::to_string(begin) + "," + std::to_string(begin + bytes) + "]},";
  }
  void AddMatrix(const std::string& name, bool fp8) {
    Add(name + ".weight", fp8 ? "F8_E4M3" : "I8", {kDim, kDim});
    if (fp8) Add(name + ".weight_scale_inv", "F32", {kDim / 128, kDim / 128});
    if (!fp8) Add(name + ".weight_scale", "F32", {kDim, 1});
  }
  fs::path path_;
  std::string header_ = "{", data_, some_ = std::string(4099, ' ');
  std::mt19937 random_{1};
};

// A line of /proc/self/status, in bytes.
uint64_t Memory(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// From now on VmHWM is the peak of what follows.
bool ResetPeak() {
  const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = write(fd, "5", 1) == 1;
  close(fd);
  return done;
}

// The share of the pages of `range` that the page cache holds.
double Cached(std::span<const std::byte> range) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(range.data()), begin = at / page * page;
  std::vector<unsigned char> pages((at + range.size() - begin + page - 1) / page);
  if (mincore(reinterpret_cast<void*>(begin), at + range.size() - begin, pages.data()) != 0) return -1;
  const auto held = std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  return static_cast<double>(held) / static_cast<double>(pages.size());
}

// Writes the file out and takes it from the page cache, as far as its file system has one beside its own memory.
void Forget(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0) << path;
  EXPECT_EQ(fsync(fd), 0);
  EXPECT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(fd);
}

TEST(LayerTest, IsReadAheadWhileItsFirstMatrixIsPacked) {
  const Folder folder(true);
  const auto backend = MakeBackend(DetectIsa(), 2);
  const auto model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  constexpr int kLayer = 3;
  const auto weights = (*model)->Layer(kLayer);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const WeightView& last = weights->matrix(Slot::kDown);
  const std::span<const std::byte> bytes(last.data, last.bytes());
  ASSERT_EQ(last.bytes(), kDim * kDim);
  Forget(folder.path() + "/model.safetensors");
  if (Cached(bytes) != 0) GTEST_SKIP() << "this file system does not forget what was written";
  std::optional<double> cached;
  const auto layer = LoadLayer(**model, kLayer, *backend, [&](size_t) {
    if (cached.has_value()) return;
    // Nothing but the hint reads the last matrix now.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while ((cached = Cached(bytes)) < 1 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  ASSERT_TRUE(layer.ok()) << layer.status();
  ASSERT_TRUE(cached.has_value());
  EXPECT_EQ(*cached, 1) << "the system did not read the last matrix while the first one was packed";
}

class ResidentTest : public ::testing::TestWithParam<bool> {};

TEST_P(ResidentTest, ANodeHoldsItsShareOfTheFile) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's own memory counts too";
  const Folder folder(GetParam());
  const auto backend = MakeBackend(DetectIsa(), 2);
  ASSERT_TRUE(ResetPeak()) << "/proc/self/clear_refs can't be written";
  const uint64_t before = Memory("VmRSS");
  const auto model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::shared_ptr<Layer>> layers;
  constexpr uint64_t share = 6 * 7 * kDim * kDim;
  for (int i = 1; i < 7; ++i) {
    auto layer = LoadLayer(**model, i, *backend, [](size_t) {});
    ASSERT_TRUE(layer.ok()) << layer.status();
    layers.push_back(*std::move(layer));
  }
  // Products read all of it.
  const std::vector<float> x(kDim, 0.5f);
  std::vector<float> out(kDim);
  for (const auto& layer : layers) {
    for (const auto& w : layer->packed) {
      if (w != nullptr) backend->MatMul(x.data(), 1, *w, out.data());
    }
  }
  const uint64_t peak = Memory("VmHWM") - before;
  // The system maps whole folios of the page cache, of up to 2 MiB, so what lies around is counted too: much of this
  // small file. Weights that were expanded, or counted twice, would take twice the share.
  constexpr double kFolios = 8 << 20;
  EXPECT_LE(static_cast<double>(peak), 1.15 * static_cast<double>(share) + kFolios)
      << peak << " of " << share << "; now " << Memory("RssAnon") << " anonymous, " << Memory("RssFile")
      << " of files, " << before << " before";
  EXPECT_GE(peak, share / 2) << "nothing was read";
  RecordProperty("peak_per_share", std::to_string(static_cast<double>(peak) / static_cast<double>(share)));
}

INSTANTIATE_TEST_SUITE_P(Types, ResidentTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "fp8" : "int8"); });

}  // namespace
}  // namespace gyre
