// The cache of models: what it knows, who may remove what, and what goes when room is needed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "hub/cache.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Hash(const std::string& content) { return Hex(Sha256(content)); }

// A model of org/REPO at a commit of equal digits, with files of the given contents.
CachedModel Model(const std::string& type, char commit, const std::vector<std::pair<std::string, std::string>>& files) {
  CachedModel m{.name = "org/m:" + type,
                .repo = "org/m",
                .revision = "main",
                .commit = std::string(40, commit),
                .type = type,
                .open = files[0].first};
  for (const auto& [path, content] : files) {
    m.files.push_back({.path = path, .size = content.size(), .sha256 = Hash(content)});
  }
  m.id = ModelId(m, "");
  return m;
}

ModelReference Named(const std::string& text) { return ParseModelName(text, false, "https://hub.test").value(); }

class CacheTest : public ::testing::Test {
 protected:
  CacheTest() {
    char folder[] = "/tmp/gyre-cache-XXXXXX";
    root_ = mkdtemp(folder);
    cache_ = std::make_unique<Cache>(root_ + "/gyre");
  }
  ~CacheTest() override { fs::remove_all(root_); }

  void WriteBlob(const std::string& content) const { std::ofstream(cache_->BlobPath(Hash(content))) << content; }
  // As a pull does it. Seconds since 1970 when it was used last.
  CachedModel Add(CachedModel model, const std::vector<std::string>& contents, int64_t used = 0) {
    model = cache_->Begin(std::move(model)).value();
    for (const std::string& content : contents) WriteBlob(content);
    const StatusOr<CachedModel> done = cache_->Finish(model);
    EXPECT_TRUE(done.ok()) << done.status();
    if (used != 0) SetUsed(model, used);
    return done.value_or(model);
  }
  void SetUsed(const CachedModel& model, int64_t used) const {
    const timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    utimensat(AT_FDCWD, (cache_->root() + "/models/" + model.id + "/used").c_str(), times, 0);
  }
  size_t Blobs() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(cache_->root() + "/blobs"), fs::directory_iterator()));
  }
  static std::string Content(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string root_;
  std::unique_ptr<Cache> cache_;
};

TEST(DefaultCacheRootTest, ByTheEnvironment) {
  const auto root = [](const std::map<std::string, std::string>& variables) {
    return DefaultCacheRoot([&](const std::string& name) {
      const auto it = variables.find(name);
      return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
    });
  };
  EXPECT_EQ(root({{"HOME", "/home/me"}}).value(), "/home/me/.cache/gyre");
  EXPECT_EQ(root({{"HOME", "/home/me"}, {"XDG_CACHE_HOME", "/fast"}}).value(), "/fast/gyre");
  EXPECT_EQ(root({{"HOME", "/home/me"}, {"XDG_CACHE_HOME", "relative"}}).value(), "/home/me/.cache/gyre");
  EXPECT_TRUE(absl::IsFailedPrecondition(root({}).status()));
}

TEST_F(CacheTest, ACacheThatIsNotThereIsEmpty) {
  EXPECT_THAT(cache_->List(), IsEmpty());
  EXPECT_FALSE(cache_->Find(Named("org/m")).has_value());
  EXPECT_FALSE(fs::exists(cache_->root()));
}

TEST_F(CacheTest, APulledModelIsAFolderOfLinks) {
  const CachedModel m = Add(
      Model("Q4_0", 'a', {{"sub/m-00001-of-00002.gguf", "one"}, {"sub/m-00002-of-00002.gguf", "two"}}), {"one", "two"});
  EXPECT_TRUE(m.complete);
  EXPECT_THAT(m.path, HasSubstr("/m/sub/m-00001-of-00002.gguf"));
  EXPECT_EQ(Content(m.path), "one");
  EXPECT_EQ(Content(fs::path(m.path).parent_path() / "m-00002-of-00002.gguf"), "two");
  EXPECT_EQ(m.bytes(), 6u);
  EXPECT_EQ(m.bytes_here, 6u);
  struct stat s {};
  stat(m.path.c_str(), &s);
  EXPECT_EQ(s.st_mode & 0777, 0444u);
  // The cache may be moved.
  fs::rename(cache_->root(), root_ + "/elsewhere");
  const Cache moved(root_ + "/elsewhere");
  const auto found = moved.Find(Named("org/m:Q4_0"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(Content(found->path), "one");
}

TEST_F(CacheTest, AnUnfinishedModelIsListedAndNotFound) {
  const CachedModel m = cache_->Begin(Model("Q4_0", 'a', {{"m.gguf", "one"}})).value();
  ASSERT_THAT(cache_->List(), SizeIs(1));
  EXPECT_FALSE(cache_->List()[0].complete);
  EXPECT_FALSE(cache_->Find(Named("org/m")).has_value());
  EXPECT_TRUE(absl::IsUnavailable(cache_->Finish(m).status()));
  // A blob of another size than it should have is none.
  std::ofstream(cache_->BlobPath(Hash("one"))) << "o";
  EXPECT_TRUE(absl::IsUnavailable(cache_->Finish(m).status()));
  WriteBlob("one");
  EXPECT_TRUE(cache_->Finish(m).ok());
  EXPECT_TRUE(cache_->Find(Named("org/m")).has_value());
  // And a model that loses one is no longer complete.
  fs::remove(cache_->BlobPath(Hash("one")));
  EXPECT_FALSE(cache_->Find(Named("org/m")).has_value());
}

TEST_F(CacheTest, AHashThatIsKnownLaterGivesTheBlobItsName) {
  CachedModel m = Model("safetensors", 'a', {{"config.json", "{}"}});
  m.files[0] = {.path = "config.json", .size = 2, .git_sha1 = "git1"};
  m = cache_->Begin(m).value();
  std::ofstream(cache_->BlobPath(BlobName(m, m.files[0]))) << "{}";
  ASSERT_TRUE(cache_->AddBlob(&m, 0, Hash("{}"), 2).ok());
  ASSERT_TRUE(cache_->Finish(m).ok());
  EXPECT_EQ(Blobs(), 1u);
  // Another commit with the same file has it at once; with another file it has not.
  CachedModel next = m;
  next.commit = std::string(40, 'b');
  next.id = ModelId(next, "");
  next.files = {{.path = "config.json", .size = 2, .git_sha1 = "git1"},
                {.path = "tokenizer.json", .size = 2, .git_sha1 = "git2"}};
  next = cache_->Begin(next).value();
  EXPECT_TRUE(cache_->HasBlob(next.files[0]));
  EXPECT_EQ(next.files[1].sha256, "");
}

TEST_F(CacheTest, VersionsStandBesideEachOther) {
  CachedModel first = Model("Q4_0", 'a', {{"m.gguf", "one"}});
  CachedModel second = Model("Q4_0", 'b', {{"m.gguf", "two"}});
  first = Add(first, {"one"});
  std::vector<CachedModel> models{second, first};
  models[0].pulled = first.pulled + 10, models[0].complete = true;
  EXPECT_THAT(NamesToType(models), ElementsAre("org/m:Q4_0", "org/m:Q4_0@aaaaaaaaaaaa"));
  EXPECT_EQ(FindModel(models, Named("org/m")), &models[0]);
  EXPECT_EQ(FindModel(models, Named("org/m@aaaaaaaaaaaa")), &models[1]);
  EXPECT_EQ(FindModel(models, Named("org/m:q4_0@" + std::string(40, 'b'))), &models[0]);
  EXPECT_EQ(FindModel(models, Named("org/m@aaaaaa")), nullptr);  // too short to be a commit
  EXPECT_EQ(FindModel(models, Named("org/m@v1")), nullptr);
  EXPECT_EQ(FindModel(models, Named("org/other")), nullptr);
  models[0].revision = "v1";
  EXPECT_THAT(NamesToType(models), ElementsAre("org/m:Q4_0@v1", "org/m:Q4_0"));
  EXPECT_EQ(FindModel(models, Named("org/m")), &models[1]);
  EXPECT_EQ(FindModel(models, Named("org/m@v1")), &models[0]);
}

TEST_F(CacheTest, AmongQuantizationsTheRuleIsThatOfTheHub) {
  std::vector<CachedModel> models{Model("Q8_0", 'a', {{"8.gguf", "8"}}), Model("Q5_K_M", 'a', {{"5.gguf", "5"}}),
                                  Model("UD-Q5_K_M", 'a', {{"u.gguf", "u"}})};
  for (CachedModel& m : models) m.complete = true;
  EXPECT_EQ(FindModel(models, Named("org/m"))->type, "Q5_K_M");
  EXPECT_EQ(FindModel(models, Named("org/m:q8_0"))->type, "Q8_0");
  EXPECT_EQ(FindModel(models, Named("org/m:UD-Q5_K_M"))->type, "UD-Q5_K_M");
  EXPECT_EQ(FindModel(models, Named("org/m:8.gguf"))->type, "Q8_0");
  EXPECT_EQ(FindModel(models, Named("org/m:Q2_K")), nullptr);
  models[1].complete = false;
  EXPECT_EQ(FindModel(models, Named("org/m"))->type, "UD-Q5_K_M");
}

TEST_F(CacheTest, BlobsThatAreSharedStay) {
  const CachedModel first = Add(Model("Q4_0", 'a', {{"m.gguf", "one"}, {"t.json", "same"}}), {"one", "same"});
  const CachedModel second = Add(Model("Q4_0", 'b', {{"m.gguf", "two"}, {"t.json", "same"}}), {"two", "same"});
  EXPECT_EQ(Blobs(), 3u);
  ASSERT_TRUE(cache_->Remove(first).ok());
  EXPECT_EQ(Blobs(), 2u);
  EXPECT_EQ(Content(second.path), "two");
  // Files that an unfinished pull has already stay too.
  (void)cache_->Begin(Model("Q8_0", 'c', {{"m.gguf", "two"}, {"n.gguf", "more"}})).value();
  ASSERT_TRUE(cache_->Remove(second).ok());
  EXPECT_EQ(Blobs(), 1u);
}

TEST_F(CacheTest, AModelInUseIsNotRemoved) {
  const CachedModel m = Add(Model("Q4_0", 'a', {{"m.gguf", "one"}}), {"one"});
  {
    const auto use = cache_->Use(m), again = cache_->Use(m);
    ASSERT_TRUE(use.ok() && again.ok());
    const Status status = cache_->Remove(m);
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(Message(status), HasSubstr("org/m:Q4_0 is in use"));
    EXPECT_TRUE(absl::IsResourceExhausted(cache_->MakeRoom(Model("Q8_0", 'b', {{"m.gguf", "xyz"}}), 5).status()));
  }
  EXPECT_TRUE(cache_->Remove(m).ok());
  EXPECT_THAT(cache_->List(), IsEmpty());
  EXPECT_TRUE(absl::IsUnavailable(cache_->Use(m).status()));
}

TEST_F(CacheTest, ADiskThatIsTooSmallIsSaidBefore) {
  CachedModel m = Model("Q4_0", 'a', {{"m.gguf", "one"}});
  m = cache_->Begin(m).value();
  EXPECT_TRUE(cache_->CheckSpace(m).ok());
  m.files.push_back({.path = "n.gguf", .size = uint64_t{1} << 59});
  EXPECT_TRUE(absl::IsResourceExhausted(cache_->CheckSpace(m)));
}

TEST_F(CacheTest, TheOneNotUsedForTheLongestTimeGoes) {
  Add(Model("Q4_0", 'a', {{"a.gguf", "aaaa"}}), {"aaaa"}, 1000);
  const CachedModel b = Add(Model("Q4_0", 'b', {{"b.gguf", "bbbb"}}), {"bbbb"}, 2000);
  Add(Model("Q4_0", 'c', {{"c.gguf", "cccc"}}), {"cccc"}, 3000);
  const CachedModel wanted = Model("Q4_0", 'd', {{"d.gguf", "dddd"}});
  EXPECT_THAT(cache_->MakeRoom(wanted, 16).value(), IsEmpty());
  (void)cache_->Use(cache_->Find(Named("org/m@aaaaaaa")).value()).value();  // now it is the one used last
  const auto removed = cache_->MakeRoom(wanted, 12);
  ASSERT_TRUE(removed.ok()) << removed.status();
  ASSERT_THAT(*removed, SizeIs(1));
  EXPECT_EQ((*removed)[0].id, b.id);
  EXPECT_EQ(Blobs(), 2u);
  const Status no = cache_->MakeRoom(wanted, 3).status();
  EXPECT_TRUE(absl::IsResourceExhausted(no));
  EXPECT_THAT(Message(no), HasSubstr("--cache-limit: 4 bytes are needed"));
  EXPECT_EQ(Blobs(), 2u);  // where it can't be done, nothing is removed
}

TEST(ModelsToRemoveTest, WhatIsSharedGivesNoRoom) {
  CachedModel a = Model("Q4_0", 'a', {{"a", "aaaa"}, {"t", "same"}}),
              b = Model("Q4_0", 'b', {{"b", "bbbb"}, {"t", "same"}});
  a.used = 1, b.used = 2;
  const std::map<std::string, uint64_t> blobs{{Hash("aaaa"), 4}, {Hash("bbbb"), 4}, {Hash("same"), 4}};
  EXPECT_THAT(ModelsToRemove({a, b}, {false, false}, blobs, {}, 12).value(), IsEmpty());
  EXPECT_THAT(ModelsToRemove({a, b}, {false, false}, blobs, {}, 8).value(), ElementsAre(0));
  EXPECT_THAT(ModelsToRemove({a, b}, {false, false}, blobs, {}, 7).value(), ElementsAre(0, 1));
  EXPECT_THAT(ModelsToRemove({a, b}, {true, false}, blobs, {}, 8).value(), ElementsAre(1));
  EXPECT_TRUE(absl::IsResourceExhausted(ModelsToRemove({a, b}, {true, false}, blobs, {}, 7).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(ModelsToRemove({a, b}, {false, false}, blobs, {Hash("same")}, 3).status()));
}

TEST(CachedModelTest, SurvivesJsonAndNothingElseDoes) {
  CachedModel m = Model("Q4_0", 'a', {{"sub/m.gguf", "one"}});
  m.pulled = 12345, m.complete = true;
  const std::string text = EncodeModel(m);
  const auto read = DecodeModel(text);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(EncodeModel(*read), text);
  for (size_t n = 0; n + 2 < text.size(); ++n) EXPECT_FALSE(DecodeModel(text.substr(0, n)).has_value()) << n;
  for (const char* path : {"/etc/passwd", "../m.gguf", "a/../../m.gguf", "a//b", "./a", "a\\u000ab", ""}) {
    std::string evil = text;
    evil.replace(evil.find("\"sub/m.gguf\",\"size\""), 12, std::string("\"") + path + "\"");
    EXPECT_FALSE(DecodeModel(evil).has_value()) << path;
  }
}

// Runs `check` in a process that may write nothing here. True: it said so.
template <typename Fn>
bool AsNobody(Fn check) {
  const pid_t child = fork();
  if (child == 0) _exit((geteuid() != 0 || seteuid(65534) == 0) && check() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(CacheTest, AReadOnlyCacheServes) {
  const CachedModel m = Add(Model("Q4_0", 'a', {{"m.gguf", "one"}}), {"one"}, 1000);
  chmod(root_.c_str(), 0755);
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (entry.is_symlink()) continue;
    fs::permissions(entry.path(), fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write,
                    fs::perm_options::remove);
  }
  EXPECT_TRUE(AsNobody([&] {
    const auto found = cache_->Find(Named("org/m"));
    return found && cache_->Use(*found).ok() && Content(found->path) == "one";
  }));
  EXPECT_TRUE(AsNobody([&] {
    return absl::IsPermissionDenied(cache_->Begin(Model("Q8_0", 'b', {{"m.gguf", "two"}})).status()) &&
           absl::IsPermissionDenied(cache_->Remove(m));
  }));
  EXPECT_EQ(cache_->List()[0].used, 1000);
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (entry.is_directory() && !entry.is_symlink()) fs::permissions(entry.path(), fs::perms::owner_all);
  }
}

TEST(FileLockTest, SharedOrAlone) {
  char path[] = "/tmp/gyre-lock-XXXXXX";
  close(mkstemp(path));
  using Mode = FileLock::Mode;
  {
    const auto a = FileLock::Try(path, Mode::kShared), b = FileLock::Try(path, Mode::kShared);
    EXPECT_TRUE(*a != nullptr && *b != nullptr);
    EXPECT_EQ(*FileLock::Try(path, Mode::kExclusive), nullptr);
  }
  {
    const auto a = FileLock::Wait(path, Mode::kExclusive);
    EXPECT_EQ(*FileLock::Try(path, Mode::kShared), nullptr);
  }
  EXPECT_NE(*FileLock::Try(path, Mode::kExclusive), nullptr);
  unlink(path);
}

}  // namespace
}  // namespace gyre
