// Lines of batches, and a file of answers that is cut at every byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "batch/batch_lines.h"
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
  const std::string line = BatchAnswer(request, 200, "r1", R"({"x":1})");
  EXPECT_EQ(AnsweredId(line), "a\"b");
  const auto value = boost::json::parse(line);
  EXPECT_EQ(value.at("response").at("body").at("x").as_int64(), 1);
  EXPECT_EQ(value.at("response").at("status_code").as_int64(), 200);
  EXPECT_TRUE(value.at("error").is_null());
  EXPECT_EQ(AnsweredId(BatchFailure(request, "cancelled", "m")), "a\"b");
  EXPECT_EQ(boost::json::parse(BatchAnswer(request, 502, "", "no JSON")).at("response").at("body").as_string(),
            "no JSON");
  EXPECT_EQ(AnsweredId(Line("a")), "");
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
  for (const char* id : {"a", "b", "c"}) whole += BatchAnswer(Named(id), 200, "r", R"({"text":"x"})");
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << whole.substr(0, cut);
    auto file = ResultsFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status() << " cut at " << cut;
    for (const char* id : {"a", "b", "c"}) {
      if ((*file)->Has(id)) continue;
      ASSERT_TRUE((*file)->Add(id, BatchAnswer(Named(id), 200, "r", R"({"text":"x"})")).ok());
    }
    EXPECT_TRUE((*file)->Sync().ok());
    EXPECT_EQ(Bytes(), whole) << "cut at " << cut;
  }
}

TEST_F(ResultsFileTest, LeavesOtherFilesAlone) {
  for (const std::string text : {"some text\n", "some text", "{\"a\":1}\n"}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << text;
    EXPECT_FALSE(ResultsFile::Open(path_).ok()) << text;
    EXPECT_EQ(Bytes(), text);
  }
  const std::string twice = BatchAnswer(Named("a"), 200, "r", "{}") + BatchAnswer(Named("a"), 200, "r", "{}");
  std::ofstream(path_, std::ios::binary | std::ios::trunc) << twice;
  EXPECT_THAT(Message(ResultsFile::Open(path_).status()), HasSubstr("second time"));
}

TEST_F(ResultsFileTest, HasOneWriter) {
  auto first = ResultsFile::Open(path_);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(Message(ResultsFile::Open(path_).status()), HasSubstr("another process"));
  ASSERT_TRUE((*first)->Add("a", BatchAnswer(Named("a"), 200, "r", "{}")).ok());
  EXPECT_TRUE(absl::IsInternal((*first)->Add("a", "")));
  first->reset();
  EXPECT_TRUE(ResultsFile::Open(path_).ok());
}

}  // namespace
}  // namespace gyre
