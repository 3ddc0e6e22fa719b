// gyre export, as a user starts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/hf/safetensors.h"
#include "model/tensor_table.h"
#include "model/weights.h"
#include "tests/testing/command.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/temp_folder.h"

namespace gyre {
namespace {

using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;

class CliExportTest : public testing::FolderTest {
 protected:
  CliExportTest() {
    Write("model.gguf", testing::BuildTinyModel({.type = DType::kQ8_0}));
    model_ = *OpenModel(Path("model.gguf"));
  }
  Ended Export(const std::string& out, std::vector<std::string> more) const {
    more.insert(more.begin(), {"export", Path("model.gguf"), "--out", Path(out), "-q"});
    return Gyre(more);
  }
  // What the kernels read of a tensor.
  std::vector<float> Numbers(const TensorView& t) const {
    uint64_t n = 1;
    for (const uint64_t d : t.dims) n *= d;
    std::vector<float> out(n);
    Dequantize(t.type, t.data, out.data(), n);
    return out;
  }
  static std::string Bytes(const std::vector<float>& v) {
    return {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float)};
  }
  std::shared_ptr<const Model> model_;
};

// The bytes behind a .npy header, which has to say `type` and `shape`.
std::string NpyData(const std::string& file, const std::string& type, const std::string& shape) {
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = 10 + static_cast<unsigned char>(file[8]) + 256 * static_cast<unsigned char>(file[9]);
  EXPECT_EQ(header % 64, 0u);
  EXPECT_EQ(
      file.substr(10, header - 10).find("{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + "}"),
      0u)
      << file.substr(10, header - 10);
  EXPECT_EQ(file[header - 1], '\n');
  return file.substr(header);
}

TEST_F(CliExportTest, WritesSafetensorsOfAllTensors) {
  ASSERT_EQ(Export("all.safetensors", {}).code, 0);
  const std::string file = Read("all.safetensors");
  const auto tensors = ParseSafetensors(std::as_bytes(std::span(file)));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), model_->tensors().all().size());
  for (const auto& [name, t] : model_->tensors().all()) {
    const SafeTensor& got = tensors->at(name);
    EXPECT_EQ(got.dtype, "F32");
    EXPECT_EQ(got.shape, std::vector<uint64_t>(t.dims.rbegin(), t.dims.rend())) << name;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.bytes.data()), got.bytes.size()), Bytes(Numbers(t)))
        << name;
  }
  // As they are: bytes of blocks, and floats.
  ASSERT_EQ(Export("raw.safetensors", {"--raw"}).code, 0);
  const std::string raw = Read("raw.safetensors");
  EXPECT_THAT(raw, HasSubstr("\"blk.0.ffn_down.weight\":\"Q8_0 [32 x 64]\""));
  const auto as_they_are = ParseSafetensors(std::as_bytes(std::span(raw)));
  ASSERT_TRUE(as_they_are.ok()) << as_they_are.status();
  for (const auto& [name, t] : model_->tensors().all()) {
    const SafeTensor& got = as_they_are->at(name);
    EXPECT_EQ(got.dtype, t.type == DType::kF32 ? "F32" : "U8") << name;
    ASSERT_EQ(got.bytes.size(), t.bytes) << name;
    EXPECT_EQ(std::memcmp(got.bytes.data(), t.data, t.bytes), 0) << name;
  }
}

TEST_F(CliExportTest, WritesNpyByPattern) {
  const std::string name = "blk.1.ffn_down.weight";
  const std::vector<float> numbers = Numbers(*model_->tensors().Find(name));
  ASSERT_EQ(Export("one.npy", {"--tensors", "blk\\.1\\.ffn_down"}).code, 0);
  EXPECT_EQ(NpyData(Read("one.npy"), "<f4", "(32, 64)"), Bytes(numbers));
  ASSERT_EQ(Export("half.npy", {"--tensors", "blk\\.1\\.ffn_down", "--type", "f16"}).code, 0);
  const std::string halves = NpyData(Read("half.npy"), "<f2", "(32, 64)");
  ASSERT_EQ(halves.size(), numbers.size() * 2);
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, halves.data() + 2 * i, 2);
    EXPECT_EQ(half, FloatToHalf(numbers[i])) << i;
  }
  ASSERT_EQ(Export("raw.npy", {"--tensors", "blk\\.1\\.ffn_down", "--raw"}).code, 0);
  EXPECT_EQ(NpyData(Read("raw.npy"), "|u1", "(32, 68)").size(), 32u * 68);
  // Several into a folder.
  ASSERT_EQ(Export("layer", {"--tensors", "^blk\\.0\\.attn", "--tensors", "output_norm"}).code, 0);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(Path("layer"))) files.push_back(entry.path().filename());
  EXPECT_THAT(files, ::testing::UnorderedElementsAre("blk.0.attn_norm.weight.npy", "blk.0.attn_q.weight.npy",
                                                     "blk.0.attn_k.weight.npy", "blk.0.attn_v.weight.npy",
                                                     "blk.0.attn_output.weight.npy", "output_norm.weight.npy"));
  EXPECT_EQ(NpyData(Read("layer/output_norm.weight.npy"), "<f4", "(32,)"),
            Bytes(Numbers(*model_->tensors().Find("output_norm.weight"))));
}

TEST_F(CliExportTest, RefusesWhatItCannotWrite) {
  EXPECT_EQ(Export("two.npy", {"--tensors", "ffn_down"}).code, 2);
  EXPECT_EQ(Export("none.npy", {"--tensors", "zzqx"}).code, 1);
  EXPECT_EQ(Export("none.npy", {"--tensors", "("}).code, 2);
  ASSERT_EQ(Export("norm.npy", {"--tensors", "output_norm"}).code, 0);
  EXPECT_EQ(Export("norm.npy", {"--tensors", "output_norm"}).code, 1) << "no --force";
  EXPECT_EQ(Export("norm.npy", {"--tensors", "output_norm", "--force"}).code, 0);
  std::filesystem::create_symlink("model.gguf", Path("trap.npy"));
  EXPECT_EQ(Export("trap.npy", {"--tensors", "output_norm", "--force"}).code, 1) << "the model is never overwritten";
}

// Where numpy is there it reads the same; else this says that it skips.
TEST_F(CliExportTest, NumpyReadsIt) {
  const std::string name = "blk.2.attn_q.weight";
  ASSERT_EQ(Export("one.npy", {"--tensors", "blk\\.2\\.attn_q"}).code, 0);
  std::ofstream(Path("expected"), std::ios::binary) << Bytes(Numbers(*model_->tensors().Find(name)));
  const std::string check =
      "import numpy, sys\n"
      "a = numpy.load(sys.argv[1])\n"
      "b = numpy.fromfile(sys.argv[2], '<f4').reshape(32, 32)\n"
      "print('equal' if a.dtype == b.dtype and a.shape == b.shape and (a == b).all() else 'different')\n";
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    if (testing::RunToEnd({"/usr/bin/env", python, "-c", "import numpy"}).code != 0) continue;
    const Ended ended = testing::RunToEnd({"/usr/bin/env", python, "-c", check, Path("one.npy"), Path("expected")});
    EXPECT_EQ(ended.text, "equal\n");
    return;
  }
  GTEST_SKIP() << "numpy is missing";
}

// A tensor of 256 MiB, a hole in its file, takes some MiB.
TEST_F(CliExportTest, StreamsInBoundedMemory) {
  constexpr uint64_t kWide = 4096, kRows = 16384;
  testing::GgufWriter w;
  w.String("general.architecture", "llama");
  w.Uint("llama.context_length", 64);
  w.Uint("llama.embedding_length", kWide);
  w.Uint("llama.block_count", 1);
  w.Uint("llama.feed_forward_length", kRows);
  w.Uint("llama.attention.head_count", 32);
  w.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::vector<float> ones(kWide, 1.0f);
  for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"})
    w.Tensor(std::string(norm) + ".weight", DType::kF32, {kWide}, ones);
  w.Hole("token_embd.weight", DType::kF32, {kWide, 96});
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
    w.Hole(std::string("blk.0.") + name + ".weight", DType::kQ8_0, {kWide, kWide});
  for (const char* name : {"ffn_gate", "ffn_up"})
    w.Hole(std::string("blk.0.") + name + ".weight", DType::kF32, {kWide, kRows});
  w.Hole("blk.0.ffn_down.weight", DType::kQ8_0, {kRows, kWide});
  const std::vector<std::byte> bytes = w.Finish();
  const auto peak = [] {
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    return static_cast<uint64_t>(usage.ru_maxrss) << 10;
  };
  ASSERT_EQ(Export("small.npy", {"--tensors", "output_norm"}).code, 0);
  const uint64_t small = peak();
  Write("model.gguf", bytes);
  std::filesystem::resize_file(Path("model.gguf"), bytes.size() + w.HoleBytes());
  for (const char* tensor : {"ffn_up", "ffn_down"}) {
    const Ended ended = Export("large.npy", {"--tensors", tensor, "--force"});
    ASSERT_EQ(ended.code, 0) << ended.text;
    EXPECT_EQ(std::filesystem::file_size(Path("large.npy")), 128 + kWide * kRows * sizeof(float));
    EXPECT_LT(peak() - small, uint64_t{24} << 20) << tensor;
  }
  RecordProperty("peak_bytes", std::to_string(peak() - small));
}

}  // namespace
}  // namespace gyre
