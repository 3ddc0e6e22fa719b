// Names of models, and which files of a repository they mean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hub/choose_files.h"
#include "hub/model_name.h"
#include "hub/quant_name.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kHub[] = "https://hub.test";

ModelReference Parsed(const std::string& text, bool is_path = false) {
  const StatusOr<ModelReference> name = ParseModelName(text, is_path, kHub);
  EXPECT_TRUE(name.ok()) << text << ": " << name.status();
  return name.value_or(ModelReference{});
}

ModelReference Repo(const std::string& quant = "", const std::string& revision = "", const std::string& file = "") {
  return {
      .kind = ModelReference::Kind::kRepo, .repo = "org/Model-7B", .quant = quant, .file = file, .revision = revision};
}

TEST(ModelNameTest, ARepositoryAQuantizationARevision) {
  EXPECT_EQ(Parsed("org/Model-7B"), Repo());
  EXPECT_EQ(Parsed("org/Model-7B:Q4_K_M"), Repo("Q4_K_M"));
  EXPECT_EQ(Parsed("org/Model-7B@v1.0"), Repo("", "v1.0"));
  EXPECT_EQ(Parsed("org/Model-7B:q8_0@refs/pr/1"), Repo("q8_0", "refs/pr/1"));
  EXPECT_EQ(Parsed("org/Model-7B:sub/a-Q4_0.gguf@main"), Repo("", "main", "sub/a-Q4_0.gguf"));
  EXPECT_EQ(FormatModelName(Repo("Q4_0", "main")), "org/Model-7B:Q4_0@main");
  EXPECT_EQ(FormatModelName(Repo("", "", "a.gguf")), "org/Model-7B:a.gguf");
}

TEST(ModelNameTest, APathWinsAndWhatIsNoNameIsAPath) {
  const ModelReference path{};
  EXPECT_EQ(Parsed("org/Model-7B", true), path);
  EXPECT_EQ(Parsed("https://hub.test/org/model", true), path);
  for (const char* text : {"model.gguf", "models/demo.gguf", "./org/model", "/org/model", "a/b/c", "", "org/", "/model",
                           "~/model", "../model", "org/..", "or g/model", "a\\b/c", "stories/15M.bin"}) {
    EXPECT_EQ(Parsed(text), path) << text;
  }
}

TEST(ModelNameTest, ANameWithAMistakeIsNoPath) {
  for (const char* text : {"org/model:", "org/model@", "org/model:Q4_K_M@", "org/model:a b", "org/model:../x.gguf",
                           "org/model@../main", "org/model:Q4/K", "org/model:-Q4"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseModelName(text, false, kHub).status())) << text;
  }
}

TEST(ModelNameTest, UrlsOfTheHubAndOfOthers) {
  EXPECT_EQ(Parsed("https://hub.test/org/Model-7B"), Repo());
  EXPECT_EQ(Parsed("https://hub.test/org/Model-7B/tree/main"), Repo("", "main"));
  EXPECT_EQ(Parsed("https://hub.test/org/Model-7B/blob/v2/sub/a.gguf?download=true"), Repo("", "v2", "sub/a.gguf"));
  EXPECT_EQ(Parsed("https://hub.test/org/Model-7B/resolve/v2/a.gguf"), Repo("", "v2", "a.gguf"));
  for (const char* url :
       {"https://other.test/org/Model-7B/resolve/v2/a.gguf", "http://127.0.0.1:99/a.gguf?token=1",
        "https://hub.test/org/Model-7B/resolve/v2/model.safetensors", "https://hub.test.evil/org/m"}) {
    const ModelReference name = Parsed(url);
    EXPECT_EQ(name.kind, ModelReference::Kind::kUrl) << url;
    EXPECT_EQ(name.url, url);
  }
  EXPECT_EQ(FileOfUrl("http://127.0.0.1:99/x/a.gguf?token=1/2"), "a.gguf");
  EXPECT_TRUE(absl::IsInvalidArgument(ParseModelName("https://other.test", false, kHub).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseModelName("https://other.test/", false, kHub).status()));
}

TEST(QuantNameTest, FoundInFileNames) {
  EXPECT_EQ(QuantOf("Model-7B-Q4_K_M.gguf"), "Q4_K_M");
  EXPECT_EQ(QuantOf("model.q5_k_s.gguf"), "Q5_K_S");
  EXPECT_EQ(QuantOf("model_iq4_xs.gguf"), "IQ4_XS");
  EXPECT_EQ(QuantOf("Model-UD-Q4_K_XL.gguf"), "UD-Q4_K_XL");
  EXPECT_EQ(QuantOf("Model-Q8_0-00001-of-00003.gguf"), "Q8_0");
  EXPECT_EQ(QuantOf("BF16/Model-00001-of-00003.gguf"), "BF16");
  EXPECT_EQ(QuantOf("Q8_0/Model-Q4_0.gguf"), "Q4_0");
  EXPECT_EQ(QuantOf("Model-MXFP4_MOE.gguf"), "MXFP4_MOE");
  EXPECT_EQ(QuantOf("Model-NVFP4.gguf"), "NVFP4");
  EXPECT_EQ(QuantOf("Model-F16-Q4_0.gguf"), "Q4_0");
  EXPECT_EQ(QuantOf("Q2-Model.gguf"), "Q2");
  EXPECT_EQ(QuantOf("Model-q8_0_v2.gguf"), "Q8_0");
  for (const char* none : {"Model-7B.gguf", "Qwen3-8B.gguf", "Q.gguf", "MQ4_0.gguf", "a/b.gguf"}) {
    EXPECT_EQ(QuantOf(none), "") << none;
  }
}

TEST(QuantNameTest, NearestByBits) {
  const auto nearest = [](const std::vector<std::string>& quants, const char* wanted = kDefaultQuant) {
    const size_t i = NearestQuant(quants, wanted);
    return i < quants.size() ? quants[i] : "none";
  };
  EXPECT_EQ(nearest({"Q2_K", "Q4_K_M", "Q8_0"}), "Q4_K_M");
  EXPECT_EQ(nearest({"Q2_K", "q4_k_m", "UD-Q4_K_M"}), "q4_k_m");
  EXPECT_EQ(nearest({"Q4_0", "Q4_K_S", "Q5_K_M"}), "Q4_K_S");
  EXPECT_EQ(nearest({"Q8_0", "F16", "F32"}), "Q8_0");
  EXPECT_EQ(nearest({"F16", "BF16"}), "F16");  // the first of equals
  EXPECT_EQ(nearest({"Model", "F16"}), "F16");
  EXPECT_EQ(nearest({"Model"}), "none");
  EXPECT_EQ(nearest({}), "none");
}

// A listing of files of 100 bytes each.
RepoListing Listing(const std::vector<std::string>& paths) {
  RepoListing out{.commit = std::string(40, 'a')};
  for (const std::string& path : paths) out.files.push_back({.path = path, .size = 100});
  return out;
}

std::vector<std::string> Paths(const FileChoice& choice) {
  std::vector<std::string> out;
  for (const RepoFile& f : choice.files) out.push_back(f.path);
  return out;
}

FileChoice Chosen(const std::vector<std::string>& paths, const ModelReference& name = Repo()) {
  const StatusOr<FileChoice> choice = ChooseFiles(Listing(paths), name);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.value_or(FileChoice{});
}

Status Refused(const std::vector<std::string>& paths, const ModelReference& name = Repo()) {
  return ChooseFiles(Listing(paths), name).status();
}

TEST(ChooseFilesTest, TheQuantizationThatIsNamed) {
  const std::vector<std::string> files{"README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf"};
  EXPECT_EQ(Chosen(files).open, "m-Q4_K_M.gguf");
  EXPECT_THAT(Chosen(files).notes, IsEmpty());
  EXPECT_EQ(Chosen(files, Repo("q8_0")).open, "m-Q8_0.gguf");
  EXPECT_EQ(Chosen(files, Repo("q8_0")).type, "Q8_0");
  EXPECT_EQ(Chosen(files, Repo("Q4_K_XL")).open, "m-UD-Q4_K_XL.gguf");
  EXPECT_EQ(Chosen(files, Repo("", "", "m-Q8_0.gguf")).open, "m-Q8_0.gguf");
  const Status none = Refused(files, Repo("Q5_K_M"));
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(Message(none), HasSubstr("has no Q5_K_M; there are Q4_K_M, UD-Q4_K_XL, Q8_0"));
  EXPECT_THAT(Message(none), HasSubstr("the nearest is org/Model-7B:UD-Q4_K_XL"));
  EXPECT_THAT(Message(Refused(files, Repo("", "", "m.gguf"))),
              HasSubstr("has no file m.gguf; there are m-Q4_K_M.gguf"));
}

TEST(ChooseFilesTest, TheNearestIsTakenAndSaid) {
  const FileChoice choice = Chosen({"m-Q2_K.gguf", "m-Q5_K_M.gguf", "m-F16.gguf"});
  EXPECT_EQ(choice.open, "m-Q5_K_M.gguf");
  EXPECT_THAT(choice.notes, ElementsAre("org/Model-7B has no Q4_K_M: Q5_K_M is the nearest of Q2_K, Q5_K_M, F16"));
  EXPECT_THAT(Chosen({"m-F16.gguf"}).notes, ElementsAre("org/Model-7B has no Q4_K_M: F16 is all that is there"));
  EXPECT_THAT(Chosen({"m.gguf"}).notes, IsEmpty());
  EXPECT_EQ(Chosen({"m.gguf"}).type, "");
}

TEST(ChooseFilesTest, SplitFilesComeWhole) {
  const std::vector<std::string> files{"Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf",
                                       "m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"};
  const FileChoice choice = Chosen(files);
  EXPECT_THAT(Paths(choice), ElementsAre("Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf"));
  EXPECT_EQ(choice.open, "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf");
  EXPECT_EQ(Paths(Chosen(files, Repo("", "", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf"))).size(), 2u);
  const Status missing = Refused(files, Repo("Q8_0"));
  EXPECT_TRUE(absl::IsFailedPrecondition(missing));
  EXPECT_THAT(Message(missing), HasSubstr("missing: m-Q8_0-00002-of-00003.gguf"));
  // 99999 parts that are not there cost no more than a few.
  EXPECT_THAT(Message(Refused({"m-99999-of-99999.gguf"})), HasSubstr(" and 1 more"));
}

TEST(ChooseFilesTest, PartsOfMultimodalModelsAreLeftOut) {
  const FileChoice choice = Chosen({"m-Q4_K_M.gguf", "mmproj-m-f16.gguf", "imatrix.gguf"});
  EXPECT_EQ(choice.open, "m-Q4_K_M.gguf");
  EXPECT_THAT(choice.notes, ElementsAre("left out: mmproj-m-f16.gguf, imatrix.gguf; Gyre reads text only"));
  EXPECT_THAT(Message(Refused({"mmproj-m-f16.gguf"})), HasSubstr("has only mmproj-m-f16.gguf"));
}

TEST(ChooseFilesTest, OnlyTheUserKnowsWhichOfTwoModels) {
  const Status two = Refused({"a-Q4_K_M.gguf", "b-Q4_K_M.gguf"});
  EXPECT_TRUE(absl::IsInvalidArgument(two));
  EXPECT_THAT(Message(two), HasSubstr("name the file, as org/Model-7B:a-Q4_K_M.gguf"));
  EXPECT_TRUE(absl::IsInvalidArgument(Refused({"a.gguf", "b.gguf"})));
  EXPECT_EQ(Chosen({"a-Q4_K_M.gguf", "b-Q4_K_M.gguf"}, Repo("", "", "b-Q4_K_M.gguf")).open, "b-Q4_K_M.gguf");
}

TEST(ChooseFilesTest, SafetensorsWithWhatGyreReads) {
  const FileChoice one = Chosen({".gitattributes", "README.md", "config.json", "model.safetensors", "tokenizer.json",
                                 "tokenizer_config.json", "chat_template.jinja", "pytorch_model.bin", "onnx/model.onnx",
                                 "consolidated.safetensors", "sub/model.safetensors", "generation_config.json",
                                 "special_tokens_map.json", "added_tokens.json", "chat_template.json",
                                 "additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja"});
  EXPECT_THAT(Paths(one),
              ElementsAre("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                          "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
                          "additional_chat_templates/tool_use.jinja", "model.safetensors"));
  EXPECT_EQ(one.open, "");
  EXPECT_EQ(one.type, "safetensors");
  const FileChoice shards = Chosen({"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors", "consolidated.safetensors"});
  EXPECT_THAT(Paths(shards), ElementsAre("config.json", "model.safetensors.index.json",
                                         "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(Chosen({"config.json", "model.safetensors", "m-Q4_K_M.gguf"}).open, "m-Q4_K_M.gguf");
}

TEST(ChooseFilesTest, WhatIsNoModelIsRefusedWithAReason) {
  EXPECT_THAT(Message(Refused({})), HasSubstr("no GGUF file and no model.safetensors"));
  EXPECT_THAT(Message(Refused({"config.json", "pytorch_model.bin"})), HasSubstr("GGUF in its name"));
  EXPECT_THAT(Message(Refused({"adapter_config.json", "adapter_model.safetensors"})), HasSubstr("is an adapter"));
  EXPECT_THAT(Message(Refused({"model.safetensors"})), HasSubstr("without a config.json"));
  EXPECT_THAT(Message(Refused({"config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"})),
              HasSubstr("has 1 of the 2 shards"));
  EXPECT_THAT(Message(Refused({"config.json", "model.safetensors"}, Repo("Q4_0"))), HasSubstr("org/Model-7B alone"));
  // A name that would move the cursor is not shown, nor taken.
  EXPECT_THAT(Message(Refused({"a\033[2J-Q4_0.gguf"})), HasSubstr("no GGUF file"));
}

TEST(ChooseFilesTest, SizesAddUpWithoutWrapping) {
  EXPECT_EQ(TotalBytes(Listing({"a", "b"}).files), 200u);
  EXPECT_EQ(TotalBytes({{.size = UINT64_MAX}, {.size = 2}}), UINT64_MAX);
}

}  // namespace
}  // namespace gyre
