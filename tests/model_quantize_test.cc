// Quantizing: the error of each type against that of the field's usual tool, and files that come out whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "model/quantize.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

// Bell-shaped as weights are, from a generator that is the same everywhere.
std::vector<float> Bell(size_t n) {
  uint64_t state = 12345;
  std::vector<float> out(n);
  for (float& v : out) {
    double sum = 0;
    for (int k = 0; k < 12; ++k) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<double>(state >> 33) / 2147483648.0;
    }
    v = static_cast<float>(sum - 6) * 0.02f;
  }
  return out;
}

double RelativeError(DType type, const std::vector<float>& x) {
  std::vector<std::byte> bytes(x.size() / Info(type).block_elems * Info(type).block_bytes);
  EXPECT_TRUE(Quantize(type, x.data(), bytes.data(), x.size()));
  std::vector<float> y(x.size());
  Dequantize(type, bytes.data(), y.data(), y.size());
  double error = 0, values = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    values += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / values);
}

// ggml's reference quantizers (d99724f2, without an importance matrix) on the same 65,536 numbers.
TEST(QuantizeTest, ErrorsAreWithinTwoPercentOfTheUsualTools) {
  const std::vector<float> x = Bell(256 * 256);
  const std::map<DType, double> reference = {
      {DType::kQ8_0, 0.0052647}, {DType::kQ4_0, 0.0847705}, {DType::kQ4_1, 0.0774693}, {DType::kQ5_0, 0.0420271},
      {DType::kQ5_1, 0.0375099}, {DType::kQ4_K, 0.070722},  {DType::kQ5_K, 0.0358269}, {DType::kQ6_K, 0.0175553}};
  for (const auto& [type, theirs] : reference) {
    const double ours = RelativeError(type, x);
    RecordProperty(Info(type).name, std::to_string(ours));
    EXPECT_LE(ours, 1.02 * theirs) << Info(type).name;
    EXPECT_GE(ours, 0.5 * theirs) << Info(type).name;
  }
}

TEST(QuantizeTest, OddBlocksSurvive) {
  std::vector<std::vector<float>> blocks{std::vector<float>(256, 0.0f), std::vector<float>(256, 1.0f),
                                         std::vector<float>(256, -2.5f), std::vector<float>(256, 1e-30f)};
  blocks.push_back(std::vector<float>(256, 0.0f));
  blocks.back()[17] = -3;
  blocks.push_back(Bell(256));
  for (float& v : blocks.back()) v = std::fabs(v) + 1;
  for (const auto& x : blocks) {
    // Beside each type the largest error as a part of the largest value.
    for (const auto& [type, part] : std::map<DType, double>{{DType::kQ2_K, 0.5},
                                                            {DType::kQ3_K, 0.3},
                                                            {DType::kQ4_K, 0.12},
                                                            {DType::kQ5_K, 0.12},
                                                            {DType::kQ6_K, 0.12},
                                                            {DType::kIQ4_NL, 0.15},
                                                            {DType::kIQ4_XS, 0.2},
                                                            {DType::kMXFP4, 0.34},
                                                            {DType::kTQ2_0, 1.01},
                                                            {DType::kQ1_0, 1.01},
                                                            {DType::kQ2_0, 1.01}}) {
      std::vector<std::byte> bytes(256 / Info(type).block_elems * Info(type).block_bytes);
      ASSERT_TRUE(Quantize(type, x.data(), bytes.data(), 256));
      std::vector<float> y(256);
      Dequantize(type, bytes.data(), y.data(), 256);
      float largest = 0;
      for (float v : x) largest = std::max(largest, std::fabs(v));
      for (size_t i = 0; i < 256; ++i) {
        EXPECT_TRUE(std::isfinite(y[i]));
        EXPECT_NEAR(y[i], x[i], part * static_cast<double>(largest) + 1e-7) << Info(type).name << " " << i;
      }
    }
  }
}

// Ternary weights survive, and a bell's error is what its bits allow.
TEST(QuantizeTest, FewLevelsKeepWhatTheyCan) {
  std::vector<float> x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.5f * static_cast<float>(static_cast<int>(i * 7 % 3) - 1);
  for (const DType type : {DType::kTQ2_0, DType::kQ2_0}) EXPECT_EQ(RelativeError(type, x), 0) << Info(type).name;
  const std::vector<float> bell = Bell(256 * 64);
  // The best quantizers of a normal distribution (Lloyd, Max) have errors of 0.603, 0.436 and 0.343 with 2, 3 and 4
  // levels.
  EXPECT_NEAR(RelativeError(DType::kQ1_0, bell), 0.603, 0.02);
  EXPECT_NEAR(RelativeError(DType::kTQ2_0, bell), 0.436, 0.02);
  EXPECT_LT(RelativeError(DType::kQ2_K, bell), 0.343);
  EXPECT_LT(RelativeError(DType::kQ3_K, bell), 0.18);
  EXPECT_LT(RelativeError(DType::kIQ4_XS, bell), 0.085);
  EXPECT_LT(RelativeError(DType::kIQ4_NL, bell), 0.085);
  EXPECT_LT(RelativeError(DType::kMXFP4, bell), 0.125);
}

// Columns with a greater importance have a smaller error.
TEST(QuantizeTest, ImportanceMovesTheError) {
  const std::vector<float> x = Bell(256);
  std::vector<float> importance(256, 1.0f);
  for (size_t i = 0; i < 256; i += 4) importance[i] = 100;
  const auto error = [&](DType type, const float* weights) {
    std::vector<std::byte> bytes(256 / Info(type).block_elems * Info(type).block_bytes);
    EXPECT_TRUE(Quantize(type, x.data(), bytes.data(), 256, weights));
    std::vector<float> y(256);
    Dequantize(type, bytes.data(), y.data(), 256);
    double sum = 0;
    for (size_t i = 0; i < 256; ++i)
      sum += static_cast<double>(importance[i]) * std::pow(static_cast<double>(y[i] - x[i]), 2);
    return sum;
  };
  for (const DType type : {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kIQ4_XS, DType::kIQ4_NL, DType::kQ2_0})
    EXPECT_LT(error(type, importance.data()), 0.99 * error(type, nullptr)) << Info(type).name;
}

class QuantizeFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gyre-quantize-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    testing::TinyOptions o;
    o.dim = 256;
    o.ffn = 512;
    o.layers = 8;
    o.type = DType::kF16;
    Write("in.gguf", testing::BuildTinyModel(o));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string Read(const std::string& name) const {
    std::ifstream in(Path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void Write(const std::string& name, const std::vector<std::byte>& bytes) const {
    std::ofstream(Path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::string folder_;
};

TEST_F(QuantizeFileTest, ATensorsTypeAndAnImportanceMatrix) {
  ImportanceSums sums;
  std::vector<float> x(256, 0.1f);
  x[3] = 5;
  sums.Add("blk.0.attn_q.weight", 0, 1, x.data(), 1, 256);
  ASSERT_TRUE(sums.Write(Path("matrix.gguf"), {}, "text", 512, 1).ok());
  const StatusOr<Importance> importance = Importance::Load(Path("matrix.gguf"));
  ASSERT_TRUE(importance.ok()) << importance.status();
  ASSERT_EQ(importance->Find("blk.0.attn_q.weight").size(), 256u);
  EXPECT_FLOAT_EQ(importance->Find("blk.0.attn_q.weight")[3], 25);
  EXPECT_TRUE(importance->Find("blk.1.attn_q.weight").empty());
  const auto report = QuantizeFile(Path("in.gguf"), Path("out.gguf"),
                                   {.type = "Q2_K",
                                    .threads = 2,
                                    .tensor_types = {"blk\\.0\\.ffn_(up|gate)=q8_0", "ffn_up=Q5_K"},
                                    .importance = *importance});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->with_importance, 1);
  const auto model = OpenModel(Path("out.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kUp).type, DType::kQ8_0);
  EXPECT_EQ((*model)->Layer(1)->matrix(Slot::kUp).type, DType::kQ5_K);
  EXPECT_EQ((*model)->Layer(1)->matrix(Slot::kGate).type, DType::kQ2_K);
  for (const char* wrong : {"ffn_up", "ffn_up=Q9_K", "=Q8_0", "(=Q8_0", "ffn_up=IQ2_XS"}) {
    const auto refused = QuantizeFile(Path("in.gguf"), Path("out2.gguf"), {.type = "Q2_K", .tensor_types = {wrong}});
    EXPECT_THAT(refused.status().message(), HasSubstr("--tensor-type")) << wrong;
  }
  // A matrix of another model.
  ImportanceSums other;
  other.Add("blk.0.attn_q.weight", 0, 1, x.data(), 1, 128);
  ASSERT_TRUE(other.Write(Path("other.gguf"), {}, "text", 512, 1).ok());
  const auto refused = QuantizeFile(Path("in.gguf"), Path("out2.gguf"),
                                    {.type = "Q2_K", .importance = *Importance::Load(Path("other.gguf"))});
  EXPECT_THAT(refused.status().message(), HasSubstr("expected 256"));
}

TEST_F(QuantizeFileTest, TheOlderFormOfImportanceMatrices) {
  std::string dat;
  const auto number = [&](int32_t v) { dat.append(reinterpret_cast<const char*>(&v), sizeof v); };
  const std::string name = "blk.0.attn_q.weight";
  number(1);
  number(static_cast<int32_t>(name.size()));
  dat += name;
  number(4);  // times
  number(2);
  for (const float v : {8.0f, 2.0f}) dat.append(reinterpret_cast<const char*>(&v), sizeof v);
  std::ofstream(Path("old.dat"), std::ios::binary) << dat;
  const StatusOr<Importance> importance = Importance::Load(Path("old.dat"));
  ASSERT_TRUE(importance.ok()) << importance.status();
  EXPECT_THAT(importance->Find(name), ::testing::ElementsAre(2.0f, 0.5f));
  for (size_t cut = 0; cut < dat.size(); ++cut) {
    std::ofstream(Path("cut.dat"), std::ios::binary) << dat.substr(0, cut);
    EXPECT_FALSE(Importance::Load(Path("cut.dat")).ok()) << cut;
  }
}

TEST_F(QuantizeFileTest, EveryTypeGivesAModelOfThatType) {
  for (const std::string& type : QuantizeTypes()) {
    if (testing::kSanitized && type != "Q8_0" && type != "Q4_K_M") continue;
    uint64_t last = 0;
    const auto report = QuantizeFile(
        Path("in.gguf"), Path("out.gguf"),
        {.type = type, .threads = 3, .overwrite = true, .progress = [&](uint64_t done, uint64_t total) -> Status {
           EXPECT_GE(done, last);
           EXPECT_LE(done, total);
           last = done;
           return absl::OkStatus();
         }});
    ASSERT_TRUE(report.ok()) << type << ": " << report.status();
    EXPECT_EQ(Files(), (std::vector<std::string>{"in.gguf", "out.gguf"}));
    const auto model = OpenModel(Path("out.gguf"));
    ASSERT_TRUE(model.ok()) << type << ": " << model.status();
    const std::string base = Info((*model)->Layer(2)->matrix(Slot::kQ).type).name;
    EXPECT_EQ(type.substr(0, base.size()), base);
    if (type == "Q4_K_M") {
      EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kV).type, DType::kQ6_K);
      EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kDown).type, DType::kQ6_K);
      EXPECT_EQ((*model)->Layer(1)->matrix(Slot::kV).type, DType::kQ4_K);
      EXPECT_EQ((*model)->Head()->output.type, DType::kQ6_K);
      EXPECT_LT(report->relative_error, 0.072);
    }
    if (type == "NVFP4") {
      EXPECT_TRUE((*model)->tensors().Has("blk.2.attn_q.scale"));
      EXPECT_LT(report->relative_error, 0.1);
    }
    if (type == "F32") EXPECT_EQ(report->relative_error, 0);
  }
}

// A tensor that leaves NVFP4 takes its second scale along.
TEST_F(QuantizeFileTest, SecondScalesGoWithTheirTensors) {
  ASSERT_TRUE(QuantizeFile(Path("in.gguf"), Path("nv.gguf"), {.type = "NVFP4", .threads = 2}).ok());
  const auto report =
      QuantizeFile(Path("nv.gguf"), Path("out.gguf"),
                   {.type = "Q8_0", .threads = 2, .tensor_types = {"attn_k=NVFP4"}, .requantize = true});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_LT(report->relative_error, 0.01);
  const auto before = OpenModel(Path("nv.gguf")), after = OpenModel(Path("out.gguf"));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_FALSE((*after)->tensors().Has("blk.0.attn_q.scale"));
  EXPECT_TRUE((*after)->tensors().Has("blk.0.attn_k.scale"));
  const auto old_layer = (*before)->Layer(0), new_layer = (*after)->Layer(0);
  for (const auto& [slot, most] : {std::pair(Slot::kQ, 0.01f), {Slot::kK, 0.0f}}) {
    const WeightView &a = old_layer->matrix(slot), &b = new_layer->matrix(slot);
    std::vector<float> x(a.k), y(a.k);
    float largest = 0;
    for (size_t r = 0; r < a.n; ++r) {
      DequantizeRow(a, r, x.data());
      DequantizeRow(b, r, y.data());
      for (size_t i = 0; i < a.k; ++i) largest = std::max(largest, std::fabs(x[i]));
      for (size_t i = 0; i < a.k; ++i) ASSERT_NEAR(x[i], y[i], most * largest);
    }
    EXPECT_GT(largest, 0);
  }
}

TEST_F(QuantizeFileTest, TheNumberOfThreadsChangesNothing) {
  std::vector<std::string> files;
  for (int threads : {1, 2, testing::kSanitized ? 2 : 5}) {
    ASSERT_TRUE(
        QuantizeFile(Path("in.gguf"), Path("out.gguf"), {.type = "Q5_K_M", .threads = threads, .overwrite = true})
            .ok());
    std::ifstream in(Path("out.gguf"), std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  EXPECT_TRUE(files[0] == files[1] && files[0] == files[2]);
}

TEST_F(QuantizeFileTest, WhatCannotBeDoneIsSaid) {
  EXPECT_THAT(Message(QuantizeFile(Path("in.gguf"), Path("o"), {.type = "Q9"}).status()), HasSubstr("known are F32"));
  EXPECT_TRUE(absl::IsNotFound(QuantizeFile(Path("none.gguf"), Path("o"), {.type = "Q8_0"}).status()));
  EXPECT_THAT(Message(QuantizeFile(Path("in.gguf"), Path("no/such/o"), {.type = "Q8_0"}).status()),
              HasSubstr("No such file"));
  ASSERT_TRUE(QuantizeFile(Path("in.gguf"), Path("q8.gguf"), {.type = "Q8_0"}).ok());
  EXPECT_THAT(Message(QuantizeFile(Path("q8.gguf"), Path("o"), {.type = "Q4_0"}).status()),
              HasSubstr("--requantize quantizes it again, and quality already lost is not recovered"));
  EXPECT_FALSE(std::filesystem::exists(Path("o")));
  EXPECT_TRUE(QuantizeFile(Path("q8.gguf"), Path("o"), {.type = "Q4_0", .requantize = true}).ok());
  // Rows of 64 don't divide into blocks of 256.
  testing::TinyOptions small;
  small.ffn = 64;
  Write("small.gguf", testing::BuildTinyModel(small));
  const auto report = QuantizeFile(Path("small.gguf"), Path("o"), {.type = "q4_k_m", .overwrite = true});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->fallbacks.at(DType::kQ5_0), 4);
  EXPECT_TRUE(OpenModel(Path("o")).ok()) << OpenModel(Path("o")).status();
}

TEST_F(QuantizeFileTest, TheSourceIsNeverOverwritten) {
  const std::string before = Read("in.gguf");
  std::filesystem::create_symlink("in.gguf", Path("symbolic.gguf"));
  std::filesystem::create_hard_link(Path("in.gguf"), Path("hard.gguf"));
  for (const std::string out : {"in.gguf", "symbolic.gguf", "hard.gguf", "./in.gguf"}) {
    for (const bool overwrite : {false, true}) {
      const Status status = QuantizeFile(Path("in.gguf"), Path(out), {.type = "Q8_0", .overwrite = overwrite}).status();
      EXPECT_THAT(Message(status), HasSubstr("this is the source itself")) << out;
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << out;
    }
  }
  // The source under the name of a link, and the link's target as the output.
  EXPECT_FALSE(QuantizeFile(Path("symbolic.gguf"), Path("in.gguf"), {.type = "Q8_0", .overwrite = true}).ok());
  EXPECT_EQ(Read("in.gguf"), before);
  EXPECT_EQ(Files(), (std::vector<std::string>{"hard.gguf", "in.gguf", "symbolic.gguf"}));
}

TEST_F(QuantizeFileTest, AnExistingFileIsOverwrittenOnlyWhereThatIsAskedFor) {
  std::ofstream(Path("out.gguf")) << "mine";
  const Status refused = QuantizeFile(Path("in.gguf"), Path("out.gguf"), {.type = "Q8_0"}).status();
  EXPECT_THAT(Message(refused), HasSubstr("out.gguf: the file exists already; --force overwrites it"));
  EXPECT_EQ(Read("out.gguf"), "mine");
  // A link to nowhere is a name that is taken, too.
  std::filesystem::create_symlink("nowhere.gguf", Path("dangling.gguf"));
  EXPECT_FALSE(QuantizeFile(Path("in.gguf"), Path("dangling.gguf"), {.type = "Q8_0"}).ok());
  EXPECT_THAT(Message(QuantizeFile(Path("in.gguf"), folder_, {.type = "Q8_0", .overwrite = true}).status()),
              HasSubstr("a folder, expected a file's name"));
  EXPECT_THAT(Message(QuantizeFile(Path("in.gguf"), "/dev/full", {.type = "Q8_0", .overwrite = true}).status()),
              HasSubstr("/dev/full: not a regular file"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  // It appears while the new one is written.
  const Status late = QuantizeFile(Path("in.gguf"), Path("late.gguf"),
                                   {.type = "Q8_0",
                                    .progress =
                                        [&](auto, auto) {
                                          std::ofstream(Path("late.gguf")) << "mine";
                                          return absl::OkStatus();
                                        }})
                          .status();
  EXPECT_THAT(Message(late), HasSubstr("exists already"));
  EXPECT_EQ(Read("late.gguf"), "mine");
  EXPECT_TRUE(QuantizeFile(Path("in.gguf"), Path("out.gguf"), {.type = "Q8_0", .overwrite = true}).ok());
  EXPECT_TRUE(OpenModel(Path("out.gguf")).ok());
  EXPECT_EQ(Files(), (std::vector<std::string>{"dangling.gguf", "in.gguf", "late.gguf", "out.gguf"}));
}

TEST_F(QuantizeFileTest, AWriteThatFailsOrIsStoppedLeavesNothingBehind) {
  const Status stopped =
      QuantizeFile(Path("in.gguf"), Path("out.gguf"),
                   {.type = "Q8_0", .progress = [](auto, auto) { return absl::CancelledError("stopped"); }})
          .status();
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_EQ(Files(), (std::vector<std::string>{"in.gguf"}));
  // As a full disk does, a limit on file sizes makes writes fail.
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = limit.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status full = QuantizeFile(Path("in.gguf"), Path("out.gguf"), {.type = "F32"}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
  EXPECT_THAT(Message(full), HasSubstr("out.gguf: can't write: File too large"));
  EXPECT_EQ(Files(), (std::vector<std::string>{"in.gguf"}));
}

TEST_F(QuantizeFileTest, ANewFileHasTheRightsThatTheUmaskLeaves) {
  const mode_t mask = umask(027);
  EXPECT_TRUE(QuantizeFile(Path("in.gguf"), Path("out.gguf"), {.type = "Q8_0"}).ok());
  umask(mask);
  EXPECT_EQ(static_cast<unsigned>(std::filesystem::status(Path("out.gguf")).permissions()), 0640u);
}

}  // namespace
}  // namespace gyre
