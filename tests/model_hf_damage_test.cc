// Files of Hugging Face folders that are damaged or not what they should be, each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/hf/safetensors.h"
#include "model/hf/tokenizer_json.h"
#include "tests/testing/safetensors_writer.h"

namespace gyre {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using testing::Shard;

TEST(SafetensorsTest, DamagedFilesAreErrors) {
  Shard shard;
  shard.AddFloats("a", {2, 3}, std::vector<float>(6, 1.0f));
  shard.AddFloats("b", {1}, {2.0f});
  const std::string good = shard.Bytes();
  auto parse = [](const std::string& s) { return ParseSafetensors(std::as_bytes(std::span(s))); };
  ASSERT_TRUE(parse(good).ok());
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(parse(good.substr(0, n)).ok()) << n;
  for (size_t bit = 0; bit < good.size() * 8; bit += 3) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    (void)parse(bad);
  }
  auto with = [&](const std::string& header) {
    const uint64_t n = header.size();
    return Message(parse(std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(64, 'x')).status());
  };
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,12]}})"),
              HasSubstr("12 bytes, the shape takes 16"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})"),
              HasSubstr("overflows"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[-1,16]}})"), HasSubstr("below zero"));
  EXPECT_THAT(with(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[60,76]}})"), HasSubstr("of the 64"));
  EXPECT_THAT(with(R"({"a":{"dtype":"Q7","shape":[4],"data_offsets":[0,16]}})"), HasSubstr("Q7"));
  EXPECT_THAT(
      with(
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})"),
      HasSubstr("over each other"));
}

TEST(TokenizerJsonTest, BadOnesSayWhy) {
  auto error = [](const char* text) {
    return Message(ReadTokenizerJson(json::parse(text).as_object(), {}, 0).status());
  };
  EXPECT_THAT(error("{}"), HasSubstr("\"model\" is missing"));
  EXPECT_THAT(error(R"({"model": {"type": "WordPiece"}})"), HasSubstr("WordPiece"));
  const std::string level = R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false})";
  EXPECT_THAT(
      error(("{" + level + R"(, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}})").c_str()),
      HasSubstr("\"ab\""));
  EXPECT_THAT(error(("{" + level + R"(, "model": {"type": "BPE", "vocab": {"a": -3}, "merges": []}})").c_str()),
              HasSubstr("is -3"));
  EXPECT_THAT(error(("{" + level + R"(, "model": {"type": "BPE", "vocab": {"a": 16000000}, "merges": []}})").c_str()),
              HasSubstr("16000000"));
  EXPECT_THAT(
      error(("{" + level +
             R"(, "normalizer": {"type": "BertNormalizer"}, "model": {"type": "BPE", "vocab": {}, "merges": []}})")
                .c_str()),
      HasSubstr("BertNormalizer"));
}

}  // namespace
}  // namespace gyre
