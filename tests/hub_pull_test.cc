// From a name to files, against a hub in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "hub/pull.h"
#include "tests/testing/local_hub.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LocalHub;
using testing::NoiseBytes;

constexpr char kRepo[] = "org/Model";

class PullTest : public ::testing::Test {
 protected:
  PullTest() {
    char folder[] = "/tmp/gyre-pull-XXXXXX";
    root_ = mkdtemp(folder);
    cache_ = std::make_unique<Cache>(root_);
    options_.hub.endpoint = hub_.endpoint();
    options_.download.first_pause = std::chrono::milliseconds(1);
    options_.download.attempts = 3;
    options_.say = [this](const std::string& line) { said_.push_back(line); };
  }
  ~PullTest() override { fs::remove_all(root_); }

  ModelReference Name(const std::string& text) const {
    return ParseModelName(text, false, options_.hub.endpoint).value();
  }
  StatusOr<CachedModel> PullName(const std::string& text) {
    const StatusOr<PullPlan> plan = PlanPull(Name(text), *cache_, options_);
    if (!plan.ok()) return plan.status();
    plan_ = *plan;
    return Pull(*plan, cache_.get(), options_);
  }
  static std::string Content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void AddFolder() {
    hub_.AddFile(kRepo, "config.json", "{}", false);
    hub_.AddFile(kRepo, "tokenizer.json", "{\"t\":1}", false);
    hub_.AddFile(kRepo, "model.safetensors", NoiseBytes(100000));
  }

  LocalHub hub_;
  std::string root_;
  std::unique_ptr<Cache> cache_;
  PullOptions options_;
  PullPlan plan_;
  std::vector<std::string> said_;
};

TEST_F(PullTest, AGgufFile) {
  const std::string content = NoiseBytes(3000000);
  hub_.AddFile(kRepo, "m-Q4_K_M.gguf", content);
  hub_.AddFile(kRepo, "m-Q8_0.gguf", NoiseBytes(10));
  DownloadProgress last;
  options_.on_progress = [&](const DownloadProgress& p) { last = p; };
  const auto model = PullName(kRepo);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, "org/Model:Q4_K_M");
  EXPECT_EQ(model->commit, LocalHub::commit());
  EXPECT_THAT(model->path, HasSubstr("/Model/m-Q4_K_M.gguf"));
  EXPECT_EQ(Content(model->path), content);
  EXPECT_EQ(plan_.missing, content.size());
  EXPECT_EQ(last.total, content.size());
  // The second time nothing is fetched but the listing.
  const int ranges = hub_.counts().ranges;
  ASSERT_TRUE(PullName(kRepo).ok());
  EXPECT_TRUE(plan_.here);
  EXPECT_EQ(hub_.counts().ranges, ranges);
}

TEST_F(PullTest, AFolderOfSafetensors) {
  AddFolder();
  const auto model = PullName(kRepo);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(fs::path(model->path).filename(), "Model");
  EXPECT_EQ(Content(model->path + "/config.json"), "{}");
  EXPECT_EQ(Content(model->path + "/model.safetensors"), NoiseBytes(100000));
  EXPECT_EQ(model->name, "org/Model");
  for (const CachedFile& f : model->files) EXPECT_EQ(f.sha256.size(), 64u) << f.path;
}

TEST_F(PullTest, AUrlAndTheSizeThatItsServerTells) {
  hub_.AddFile(kRepo, "m-Q4_0-00001-of-00002.gguf", "first");
  hub_.AddFile(kRepo, "m-Q4_0-00002-of-00002.gguf", "second");
  options_.hub.endpoint = "http://127.0.0.1:1";  // no hub is asked
  const auto model = PullName(hub_.FileUrl(kRepo, "m-Q4_0-00002-of-00002.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(plan_.missing, 11u);
  EXPECT_EQ(model->type, "Q4_0");
  EXPECT_EQ(Content(model->path), "first");
  EXPECT_EQ(Content(fs::path(model->path).parent_path() / "m-Q4_0-00002-of-00002.gguf"), "second");
  ASSERT_TRUE(PullName(hub_.FileUrl(kRepo, "m-Q4_0-00002-of-00002.gguf")).ok());
  EXPECT_TRUE(plan_.here);
}

TEST_F(PullTest, ASmallFileThatLiesIsRefused) {
  AddFolder();
  hub_.Fault([](auto& f) { f.flipped_byte = 0; });
  EXPECT_TRUE(absl::IsDataLoss(PullName(kRepo).status()));
  EXPECT_FALSE(cache_->Find(Name(kRepo)).has_value());
  hub_.Fault([](auto& f) { f.flipped_byte.reset(); });
  EXPECT_TRUE(PullName(kRepo).ok());
}

TEST_F(PullTest, GoesOnWhereItWasInterrupted) {
  AddFolder();
  hub_.AddFile(kRepo, "model.safetensors", NoiseBytes(8 << 20));
  options_.download.range_bytes = 1 << 20;
  hub_.Fault([](auto& f) { f.bytes_per_second = 4 << 20; });
  bool stop = false;
  options_.on_progress = [&](const DownloadProgress& p) { stop = stop || p.bytes > (4 << 20); };
  options_.interrupted = [&] { return stop; };
  EXPECT_TRUE(absl::IsCancelled(PullName(kRepo).status()));
  ASSERT_EQ(cache_->List().size(), 1u);
  EXPECT_FALSE(cache_->List()[0].complete);
  options_.interrupted = nullptr;
  hub_.Fault([](auto& f) { f.bytes_per_second = 0; });
  const uint64_t before = hub_.counts().bytes;
  const auto model = PullName(kRepo);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_LT(hub_.counts().bytes - before, 6u << 20);
  EXPECT_EQ(Content(model->path + "/model.safetensors"), NoiseBytes(8 << 20));
}

TEST_F(PullTest, TwoAtOnceFetchItOnce) {
  AddFolder();
  const std::string content = NoiseBytes(4 << 20);
  hub_.AddFile(kRepo, "model.safetensors", content);
  hub_.Fault([](auto& f) { f.bytes_per_second = 2 << 20; });
  StatusOr<CachedModel> other = absl::UnknownError("");
  std::vector<std::string> other_said;
  std::thread second([&] {
    PullOptions options = options_;
    options.say = [&](const std::string& line) { other_said.push_back(line); };
    Cache cache(root_);
    const auto plan = PlanPull(Name(kRepo), cache, options);
    other = plan.ok() ? Pull(*plan, &cache, options) : plan.status();
  });
  const auto model = PullName(kRepo);
  second.join();
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(Content(model->path + "/model.safetensors"), content);
  EXPECT_LT(hub_.counts().bytes, content.size() + (1 << 20));
  said_.insert(said_.end(), other_said.begin(), other_said.end());
  EXPECT_THAT(said_, Contains(HasSubstr("another process downloads")));
}

TEST_F(PullTest, MakesRoomWithinTheLimit) {
  hub_.AddFile("org/a", "a-Q4_0.gguf", NoiseBytes(1000, 1));
  hub_.AddFile("org/b", "b-Q4_0.gguf", NoiseBytes(1000, 2));
  ASSERT_TRUE(PullName("org/a").ok());
  options_.cache_limit = 1500;
  ASSERT_TRUE(PullName("org/b").ok());
  EXPECT_THAT(said_, ElementsAre(HasSubstr("removed org/a:Q4_0 (1000 bytes)")));
  ASSERT_EQ(cache_->List().size(), 1u);
  EXPECT_EQ(cache_->List()[0].name, "org/b:Q4_0");
  options_.cache_limit = 500;
  EXPECT_TRUE(absl::IsResourceExhausted(PullName("org/a").status()));
  EXPECT_TRUE(cache_->Find(Name("org/b")).has_value());
}

TEST_F(PullTest, WhatIsNotThereIsSaid) {
  EXPECT_TRUE(absl::IsNotFound(PullName(kRepo).status()));
  hub_.AddFile(kRepo, "m-Q8_0.gguf", "x");
  EXPECT_THAT(Message(PullName("org/Model:Q4_0").status()), HasSubstr("the nearest is org/Model:Q8_0"));
  ASSERT_TRUE(PullName(kRepo).ok());
  EXPECT_THAT(plan_.notes, ElementsAre(HasSubstr("Q8_0 is all that is there")));
}

}  // namespace
}  // namespace gyre
