// gyre certify, as a user starts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

#include "tests/testing/command.h"
#include "tests/testing/golden.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/temp_folder.h"

namespace gyre {
namespace {

namespace json = boost::json;
using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;

class CliCertifyTest : public testing::FolderTest {
 protected:
  // The file that another program would write.
  void WriteReference(const std::vector<int64_t>& ids, const std::vector<float>& logits, uint64_t vocab) const {
    testing::Shard shard;
    shard.Add("ids", "I64", {ids.size()}, std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 8));
    shard.AddFloats("logits", {ids.size(), vocab}, logits);
    std::ofstream(Path("reference"), std::ios::binary) << shard.Bytes();
  }
  Ended Certify(const std::string& model, std::vector<std::string> more) const {
    more.insert(more.begin(), {"certify", model, "--reference", Path("reference"), "-q", "-t", "1"});
    return Gyre(more);
  }
};

constexpr uint64_t kDemoVocab = 1024;

TEST_F(CliCertifyTest, TellsEqualFromFar) {
  std::vector<int64_t> ids;
  std::string text;
  for (int64_t i = 0; i < 20; ++i) {
    ids.push_back((i * 37 + 300) % 1024);
    text += std::to_string(ids.back()) + " ";
  }
  std::ofstream(Path("ids.txt")) << text;
  ASSERT_EQ(
      Gyre({"logits", GYRE_DEMO_MODEL, "--ids", Path("ids.txt"), "--out", Path("logits"), "--isa", "ref", "-q"}).code,
      0);
  std::vector<float> logits = testing::ReadFloats(Path("logits"));
  ASSERT_EQ(logits.size(), 20 * kDemoVocab);
  WriteReference(ids, logits, kDemoVocab);
  const Ended equal = Certify(GYRE_DEMO_MODEL, {});
  EXPECT_EQ(equal.code, 0) << equal.text;
  EXPECT_THAT(equal.text, HasSubstr("| llama | gyre-demo F16 "));
  EXPECT_THAT(equal.text, HasSubstr("| not named | 20 |"));
  // One row of 20 that is 1% larger is a relative distance of about 0.01 / sqrt(20).
  for (uint64_t i = 7 * kDemoVocab; i < 8 * kDemoVocab; ++i) logits[i] *= 1.01f;
  WriteReference(ids, logits, kDemoVocab);
  const Ended far = Certify(GYRE_DEMO_MODEL, {"--json"});
  EXPECT_EQ(far.code, 1);
  const json::value figures = json::parse(far.text.substr(0, far.text.find('\n')));
  EXPECT_NEAR(figures.at("relative").to_number<double>(), 0.01 / std::sqrt(20.0), 0.001);
  EXPECT_NEAR(figures.at("worst").to_number<double>(), 0.01 / 1.01, 1e-4);
  EXPECT_EQ(figures.at("worst_row").as_int64(), 7);
  EXPECT_EQ(figures.at("first_far_row").as_int64(), 7);
  EXPECT_EQ(figures.at("passes"), json::value(false));
  EXPECT_EQ(Certify(GYRE_DEMO_MODEL, {"--most", "0.01"}).code, 0);
  EXPECT_EQ(Certify(GYRE_DEMO_MODEL, {}).text.find("| llama"), std::string::npos) << "a row of a model that fails";
  // A value that is no number passes nothing.
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  WriteReference(ids, logits, kDemoVocab);
  EXPECT_EQ(Certify(GYRE_DEMO_MODEL, {"--most", "1000"}).code, 1);
}

TEST_F(CliCertifyTest, SaysWhatIsWrongWithAReference) {
  WriteReference({1, 2}, std::vector<float>(20), 10);
  EXPECT_THAT(Certify(GYRE_DEMO_MODEL, {}).text, HasSubstr("10 logits a token, the model 1024"));
  testing::Shard shard;
  shard.AddFloats("logits", {1, 2}, {1, 2});
  std::ofstream(Path("reference"), std::ios::binary) << shard.Bytes();
  EXPECT_THAT(Certify(GYRE_DEMO_MODEL, {}).text, HasSubstr("`ids`"));
  std::ofstream(Path("reference"), std::ios::binary) << "no such file";
  EXPECT_THAT(Certify(GYRE_DEMO_MODEL, {}).text, HasSubstr("reference"));
  WriteReference({-1}, std::vector<float>(kDemoVocab), kDemoVocab);
  EXPECT_THAT(Certify(GYRE_DEMO_MODEL, {}).text, HasSubstr("id -1"));
}

// Logits in float64 from somebody else's forward pass.
TEST_F(CliCertifyTest, PassesExactLogits) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no golden models";
  const auto ids = testing::ReadNumbers<int64_t>(testing::SharedData("golden/ids.txt"));
  for (const char* name : {"tiny-llama-s0-f16", "tiny-gemma3-s0-f16"}) {
    const std::string base = testing::SharedData(std::string("golden/") + name);
    const std::vector<float> logits = testing::ReadFloats(base + ".logits.f32");
    WriteReference(ids, logits, logits.size() / ids.size());
    const Ended ended = Certify(base + ".gguf", {"--most", "3e-5"});
    EXPECT_EQ(ended.code, 0) << name << ": " << ended.text;
  }
}

}  // namespace
}  // namespace gyre
