// Lines of batches, and a file of answers that is cut at every byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "batch/batch_lines.h"
#include "batch/batch_store.h"
#include "batch/results_file.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

std::string Line(const std::string& id) {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":{"prompt":"a"}})";
}

TEST(BatchLinesTest, AreReadStrictly) {
  const auto read = ReadBatch(Line("a") + "\n\n" + Line("b"), BatchPaths());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[1].custom_id, "b");
  EXPECT_EQ((*read)[1].path, "/v1/completions");
  EXPECT_EQ((*read)[1].body, R"({"prompt":"a"})");
  const auto refused = [](const std::string& text) { return Message(ReadBatch(text, BatchPaths()).status()); };
  EXPECT_THAT(refused(Line("a") + "\n" + Line("a")), HasSubstr("line 2: the custom_id a stands twice"));
  EXPECT_THAT(refused("\n{"), HasSubstr("line 2: not JSON"));
  EXPECT_THAT(refused(""), HasSubstr("no request"));
  EXPECT_THAT(refused(R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})"), HasSubstr("POST"));
  EXPECT_THAT(refused(R"({"custom_id":"a","method":"POST","url":"/health","body":{}})"), HasSubstr("/v1/score"));
  EXPECT_THAT(refused(R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"stream":true}})"),
              HasSubstr("whole answers"));
}

TEST(BatchLinesTest, AnswersNameTheirRequest) {
  const BatchRequest request = *ReadBatchRequest(Line("a\\\"b"), BatchPaths());
  const std::string line = BatchAnswer(request, 200, "r1", R"({"x":1})").line;
  EXPECT_EQ(AnsweredId(line), "a\"b");
  const auto value = boost::json::parse(line);
  EXPECT_EQ(value.at("response").at("body").at("x").as_int64(), 1);
  EXPECT_EQ(value.at("response").at("status_code").as_int64(), 200);
  EXPECT_TRUE(value.at("error").is_null());
  EXPECT_EQ(AnsweredId(BatchFailure(request, "cancelled", "m")), "a\"b");
  EXPECT_EQ(boost::json::parse(BatchAnswer(request, 502, "", "no JSON").line).at("response").at("body").as_string(),
            "no JSON");
  EXPECT_EQ(AnsweredId(Line("a")), "");
  const BatchResult bytes = BatchAnswer(request, 200, "r1", "\xff");
  EXPECT_FALSE(bytes.succeeded);
  EXPECT_EQ(boost::json::parse(bytes.line).at("error").at("code").as_string(), "invalid_answer");
  EXPECT_EQ(AnsweredId(bytes.line), "a\"b");
}

TEST(BatchLinesTest, StandWhereTheyAreFound) {
  const std::string text = "\r\n" + Line("a") + "\n\n" + Line("b") + "\r\n" + Line("c");
  const auto found = FindRequests(text, BatchPaths());
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 3u);
  for (const BatchLine& line : *found)
    EXPECT_EQ(ReadBatchRequest(text.substr(line.at, line.bytes), BatchPaths())->custom_id, line.custom_id);
}

class ResultsFileTest : public ::testing::Test {
 protected:
  ResultsFileTest() {
    char name[] = "/tmp/gyre-results-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/out.jsonl";
  }
  ~ResultsFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Bytes() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  static BatchRequest Named(const std::string& id) { return *ReadBatchRequest(Line(id), BatchPaths()); }
  std::string folder_, path_;
};

TEST_F(ResultsFileTest, GoesOnBehindEveryCut) {
  std::string whole;
  for (const char* id : {"a", "b", "c"}) whole += BatchAnswer(Named(id), 200, "r", R"({"text":"x"})").line;
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << whole.substr(0, cut);
    auto file = ResultsFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status() << " cut at " << cut;
    for (const char* id : {"a", "b", "c"}) {
      if ((*file)->Has(id)) continue;
      ASSERT_TRUE((*file)->Add(id, BatchAnswer(Named(id), 200, "r", R"({"text":"x"})").line).ok());
    }
    EXPECT_TRUE((*file)->Sync().ok());
    EXPECT_EQ(Bytes(), whole) << "cut at " << cut;
  }
}

TEST_F(ResultsFileTest, LeavesOtherFilesAlone) {
  for (const std::string text : {"some text\n", "some text", "{\"a\":1}\n", "{\"a\":1}"}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    EXPECT_FALSE(ResultsFile::Open(path_).ok()) << text;
    EXPECT_EQ(Bytes(), text);
  }
  const std::string twice = BatchAnswer(Named("a"), 200, "r", "{}").line + BatchAnswer(Named("a"), 200, "r", "{}").line;
  std::ofstream(path_, std::ios::binary | std::ios::trunc) << twice;
  EXPECT_THAT(Message(ResultsFile::Open(path_).status()), HasSubstr("second time"));
}

TEST_F(ResultsFileTest, HasOneWriter) {
  auto first = ResultsFile::Open(path_);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(Message(ResultsFile::Open(path_).status()), HasSubstr("another process"));
  ASSERT_TRUE((*first)->Add("a", BatchAnswer(Named("a"), 200, "r", "{}").line).ok());
  EXPECT_TRUE(absl::IsInternal((*first)->Add("a", "")));
  first->reset();
  EXPECT_TRUE(ResultsFile::Open(path_).ok());
}

// Files of this process may have so many bytes at most, as on a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(ResultsFileTest, AFailedWriteLeavesNoTrace) {
  auto file = ResultsFile::Open(path_);
  ASSERT_TRUE(file.ok());
  const std::string a = BatchAnswer(Named("a"), 200, "r", "{}").line, b = BatchAnswer(Named("b"), 200, "r", "{}").line;
  ASSERT_TRUE((*file)->Add("a", a).ok());
  {
    FullDisk full(a.size() + 10);
    EXPECT_FALSE((*file)->Add("b", b).ok());
  }
  EXPECT_EQ(Bytes(), a);
  EXPECT_FALSE((*file)->Has("b"));
  EXPECT_TRUE((*file)->Add("b", b).ok());
  EXPECT_EQ(Bytes(), a + b);
}

class BatchStoreTest : public ResultsFileTest {
 protected:
  BatchStoreTest() { Open(); }
  void Open(const BatchLimits& limits = {}) {
    store_.reset();
    auto store = BatchStore::Open(folder_, limits);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  StoredBatch Make(const std::string& lines, const std::string& name = "in") {
    const auto file = store_->AddFile(1, name, "batch", lines);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto batch = store_->Create(1, file->id, "/v1/completions", "{}");
    EXPECT_TRUE(batch.ok()) << batch.status();
    return *batch;
  }
  std::unique_ptr<BatchStore> store_;
};

TEST_F(BatchStoreTest, NothingThatAClientSendsStopsTheNextStart) {
  const StoredBatch batch = Make(Line("a") + "\n" + Line("b"), "\xff" + std::string(2000000, 'x'));
  const std::string metadata = R"({"a":")" + std::string(2000000, 'x') + "\"}";
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Create(1, batch.input, "/v1/completions", metadata).status()));
  std::string deep;
  for (int i = 0; i < 31; ++i) deep += R"({"a":)";
  deep += "1" + std::string(31, '}');
  ASSERT_TRUE(store_->Answer(*store_->Take(), 200, "r", "\xff\xfe").ok());
  ASSERT_TRUE(store_->Answer(*store_->Take(), 200, "r", deep).ok());
  Open();
  const auto found = store_->Find(1, batch.id);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->completed, 1u);
  EXPECT_EQ(found->failed, 1u);
  EXPECT_EQ(found->state, BatchState::kCompleted);
  EXPECT_EQ(store_->FindFile(1, batch.input)->name, "?" + std::string(254, 'x'));
  // One batch that is spoiled, and a file that is no JSON, are left aside.
  std::ofstream(folder_ + "/" + batch.output + ".jsonl", std::ios::trunc) << "spoiled\n";
  std::ofstream(folder_ + "/wrong.json") << "{";
  Open();
  EXPECT_TRUE(absl::IsNotFound(store_->Find(1, batch.id).status()));
  EXPECT_TRUE(store_->FindFile(1, batch.input).ok());
}

TEST_F(BatchStoreTest, AFullDiskLosesNoRequest) {
  const StoredBatch batch = Make(Line("a"));
  const auto job = store_->Take();
  ASSERT_TRUE(job);
  {
    FullDisk full(10);
    EXPECT_FALSE(store_->Answer(*job, 200, "r", "{}").ok());
  }
  EXPECT_EQ(store_->Find(1, batch.id)->state, BatchState::kInProgress);
  const auto again = store_->Take();
  ASSERT_TRUE(again);
  EXPECT_TRUE(store_->Answer(*again, 200, "r", "{}").ok());
  EXPECT_EQ(store_->Find(1, batch.id)->state, BatchState::kCompleted);
}

TEST_F(BatchStoreTest, ARequestThatCanNotBeReadAnyMoreFails) {
  const StoredBatch batch = Make(Line("a") + "\n" + Line("b"));
  const auto first = store_->Take();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->request.body, R"({"prompt":"a"})");
  std::filesystem::resize_file(folder_ + "/" + batch.input + ".jsonl", Line("a").size());
  EXPECT_FALSE(store_->Take());
  EXPECT_EQ(store_->Find(1, batch.id)->failed, 1u);
  EXPECT_TRUE(store_->Answer(*first, 200, "r", "{}").ok());
  EXPECT_EQ(store_->Find(1, batch.id)->state, BatchState::kCompleted);
  const auto errors = store_->Content(1, batch.errors);
  ASSERT_TRUE(errors.ok());
  EXPECT_EQ(AnsweredId(*errors), "b");
}

// What passes, as too many open files, is no answer.
TEST_F(BatchStoreTest, ARequestWaitsUntilItsFileCanBeOpened) {
  const StoredBatch batch = Make(Line("a"));
  const std::string input = folder_ + "/" + batch.input + ".jsonl";
  std::filesystem::rename(input, input + "-away");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(store_->Take());
  std::filesystem::rename(input + "-away", input);
  const auto job = store_->Take();
  ASSERT_TRUE(job);
  store_->PutBack(*job);
  store_->PutBack(*job);  // it is not given out any more
  const auto again = store_->Take();
  ASSERT_TRUE(again);
  EXPECT_FALSE(store_->Take());
  EXPECT_TRUE(store_->Answer(*again, 200, "r", "{}").ok());
  store_->PutBack(*again);
  EXPECT_EQ(store_->Find(1, batch.id)->state, BatchState::kCompleted);
}

TEST_F(BatchStoreTest, OneStoreHasTheFolder) {
  EXPECT_TRUE(absl::IsFailedPrecondition(BatchStore::Open(folder_).status()));
  Open();
}

// A process that is killed leaves descriptions beside their places, and contents whose descriptions are not there yet
// or not any more.
TEST_F(BatchStoreTest, WhatAKilledProcessLeftIsRemoved) {
  const StoredBatch running = Make(Line("a") + "\n" + Line("b"));
  ASSERT_TRUE(store_->Answer(*store_->Take(), 200, "r", "{}").ok());
  const StoredBatch ended = [&] {
    const StoredBatch batch = Make(Line("c"));
    for (int i = 0; i < 2; ++i) {  // the other batch has one, too
      const auto job = store_->Take();
      if (job->batch == batch.id) EXPECT_TRUE(store_->Answer(*job, 200, "r", "{}").ok());
    }
    return *store_->Find(1, batch.id);
  }();
  EXPECT_EQ(ended.state, BatchState::kCompleted);
  // The results of a batch that has ended stay, without a name for clients.
  ASSERT_TRUE(store_->RemoveFile(1, ended.output).ok());
  const auto names = [this] {
    std::set<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) out.insert(entry.path().filename());
    return out;
  };
  Open();
  std::ofstream(folder_ + "/notes.jsonl.new") << "of somebody else";
  std::ofstream(folder_ + "/file-notes.jsonl") << "of somebody else";
  const std::set<std::string> whole = names();
  const std::string a(24, 'a'), b(24, 'b');
  for (const std::string& left : {"file-" + a + ".jsonl", "file-" + a + ".json.7-0.new",
                                  "batch_" + b + ".json.123-45.new", running.input + ".json.7-1.new"}) {
    std::ofstream(folder_ + "/" + left) << "{";
  }
  EXPECT_EQ(names().size(), whole.size() + 4);
  Open();
  EXPECT_EQ(names(), whole);
  EXPECT_EQ(store_->Find(1, running.id)->completed, 1u);
  EXPECT_EQ(store_->Find(1, ended.id)->completed, 1u);
  EXPECT_TRUE(store_->Content(1, running.input).ok());
  EXPECT_TRUE(store_->Take());
  // Where a description can't be read, its content may be needed again.
  std::ofstream(folder_ + "/file-" + a + ".jsonl") << Line("d");
  std::ofstream(folder_ + "/file-" + a + ".json") << "{";
  Open();
  EXPECT_EQ(names().size(), whole.size() + 2);
}

// Only what its client has deleted goes, and one tenant leaves room for the others.
TEST_F(BatchStoreTest, TooManyBatchesAreThoseOfOneTenant) {
  Open({.files = 8, .batches = 2});
  std::vector<StoredBatch> made;
  for (const char* id : {"a", "b"}) {
    made.push_back(Make(Line(id)));
    ASSERT_TRUE(store_->Answer(*store_->Take(), 200, "r", "{}").ok());
  }
  const auto refused = store_->Create(1, made[0].input, "/v1/completions", "{}");
  EXPECT_THAT(Message(refused.status()), HasSubstr("delete the result files"));
  const auto other = store_->AddFile(2, "in", "batch", Line("c"));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(store_->Create(2, other->id, "/v1/completions", "{}").ok());
  ASSERT_TRUE(store_->RemoveFile(1, made[1].output).ok());
  // A batch that is refused does not remove another one.
  EXPECT_FALSE(store_->Create(1, made[0].input, "/v1/embeddings", "{}").ok());
  EXPECT_TRUE(store_->Find(1, made[1].id).ok());
  const auto next = store_->Create(1, made[0].input, "/v1/completions", "{}");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(store_->Find(1, made[0].id).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Find(1, made[1].id).status()));
  Open({.files = 8, .batches = 2});
  EXPECT_EQ(store_->Batches(1).size(), 2u);
  size_t files = store_->Files(1).size();
  for (; files < 8; ++files) ASSERT_TRUE(store_->AddFile(1, "in", "batch", "x").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store_->AddFile(1, "in", "batch", "x").status()));
}

TEST(BatchLinesTest, AnswersThatNoLineHoldsAreRefused) {
  for (const char* body : {R"({"format":"npy"})", R"({"logits":"f16"})"}) {
    const std::string line = R"({"custom_id":"a","method":"POST","url":"/v1/score","body":)" + std::string(body) + "}";
    EXPECT_TRUE(absl::IsInvalidArgument(ReadBatchRequest(line, BatchPaths()).status())) << body;
  }
}

}  // namespace
}  // namespace gyre
