// Families of 2025 and 2026 with quantized weights: what rounding activations costs, beside what it costs a peer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/quantize.h"
#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

// The relative error of the middle row, as ik_llama.cpp 8337e4cd3 has it for the same files with the same instruction
// set and an f16 KV cache. Other families are none that it computes at these shapes: its f16 logits are wrong, too.
struct QuantizedCase {
  const char* name;
  bool experts;
  double q8_0, q4_0, q4_k_m;
};
constexpr QuantizedCase kQuantized[] = {
    {"tiny-gemma4-s0", false, 5.76e-2, 5.53e-2, 5.09e-2},   {"tiny-gemma4-e-s0", false, 6.27e-2, 6.68e-2, 5.13e-2},
    {"tiny-seed-oss-s0", false, 4.53e-2, 4.43e-2, 4.66e-2}, {"tiny-smollm3-s0", false, 4.31e-2, 3.76e-2, 4.25e-2},
    {"tiny-glm4moe-s0", true, 3.17e-2, 3.33e-2, 3.23e-2},   {"tiny-minimax-m2-s0", true, 3.39e-2, 3.28e-2, 8.47e-2},
};

using LogitRows = std::vector<std::vector<float>>;

LogitRows LogitsOf(const std::string& model, const std::vector<TokenId>& ids, Isa isa, bool exact) {
  RuntimeOptions o;
  o.model = model;
  o.stages = 2;
  o.threads = 2;
  o.ctx = 256;
  o.kv_type = exact ? "f32" : "f16";
  o.isa = IsaName(isa);
  o.quiet = true;
  o.chunk = 17;
  o.exact = exact;
  auto ring = Runtime::Open(o);
  EXPECT_TRUE(ring.ok()) << ring.status();
  if (!ring.ok()) return {};
  Request rows;
  rows.prompt = ids;
  rows.prompt_logits = true;
  return testing::RunOne((*ring)->engine(), rows).logits;
}

double MiddleRowError(const LogitRows& got, const LogitRows& expected) {
  std::vector<double> errors;
  for (size_t r = 0; r < got.size(); ++r) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < got[r].size(); ++i) {
      error += std::pow(static_cast<double>(got[r][i]) - static_cast<double>(expected[r][i]), 2);
      norm += std::pow(static_cast<double>(expected[r][i]), 2);
    }
    errors.push_back(std::sqrt(error / norm));
  }
  std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2), errors.end());
  return errors[errors.size() / 2];
}

class QuantizedGolden : public ::testing::TestWithParam<Isa> {};

// A single small file's error depends on where the roundings fall, by a fifth up or down; all together they tell.
TEST_P(QuantizedGolden, RoundsNoMoreThanAPeer) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the models are not there";
  if (!IsaMissing(GetParam()).empty()) GTEST_SKIP() << IsaMissing(GetParam());
  if (testing::kSanitized) GTEST_SKIP() << "sanitized: worker_golden_test has the same code paths";
  if (GetParam() == Isa::kRef) GTEST_SKIP() << "the reference rounds no activations";
  if (!PrefillMatchesDecode(GetParam())) GTEST_SKIP() << "bf16 rounds prompts more than the peer does";
  const std::string dir = testing::SharedData("golden2026/");
  const auto ids = testing::ReadNumbers<TokenId>(dir + "ids.txt");
  double logs = 0;
  int count = 0;
  for (const QuantizedCase& c : kQuantized) {
    for (const auto& [type, peer] :
         {std::pair<const char*, double>{"Q8_0", c.q8_0}, {"Q4_0", c.q4_0}, {"Q4_K_M", c.q4_k_m}}) {
      SCOPED_TRACE(std::string(c.name) + " " + type);
      const std::string file = ::testing::TempDir() + c.name + "-" + type + IsaName(GetParam()) + ".gguf";
      const auto report =
          QuantizeFile(dir + c.name + "-f16.gguf", file, {.type = type, .overwrite = true, .progress = {}});
      ASSERT_TRUE(report.ok()) << report.status();
      const LogitRows got = LogitsOf(file, ids, GetParam(), false), expected = LogitsOf(file, ids, GetParam(), true);
      std::remove(file.c_str());
      ASSERT_EQ(got.size(), ids.size());
      ASSERT_EQ(expected.size(), ids.size());
      const double ratio = MiddleRowError(got, expected) / peer;
      EXPECT_LE(ratio, c.experts ? 1.5 : 1.3);
      EXPECT_GE(ratio, 0.2) << "activations were not rounded";
      logs += std::log(ratio);
      ++count;
    }
  }
  const double mean = std::exp(logs / count);
  RecordProperty("ratio", std::to_string(mean));
  EXPECT_LE(mean, 1.10);
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizedGolden, ::testing::ValuesIn(BuiltIsas().begin(), BuiltIsas().end()),
                         [](const auto& info) {
                           std::string name = IsaName(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace gyre
