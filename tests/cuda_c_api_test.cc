// include/gyre.h on the emulated GPU: texts, and the numbers of errors that the specification of a CUDA worker names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "gyre.h"
#include "tests/testing/cuda_emulated.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

struct FreeModel {
  void operator()(gyre_model* model) const { gyre_model_free(model); }
};
using OwnedModel = std::unique_ptr<gyre_model, FreeModel>;

gyre_options OnGpu(uint64_t memory = 0) {
  gyre_options options{};
  options.struct_size = sizeof options;
  options.context = 128;
  options.device = "cuda-emulated";
  options.device_memory = memory;
  return options;
}

// The text of a session with at most `tokens` tokens; *error is that of the call that ended it.
std::string TextOf(gyre_model* model, int tokens, float temperature, uint64_t seed, int* error) {
  gyre_session* session = gyre_start(model, "What is Gyre?", tokens, temperature, 0, 0, seed, error);
  EXPECT_NE(session, nullptr) << gyre_error_message();
  std::string text;
  char piece[64];
  int index = -1, last = -1;
  while (gyre_next_token(session, piece, sizeof piece, &index, error)) {
    EXPECT_GE(index, last);
    last = index;
    text += piece;
  }
  gyre_free(session);
  gyre_free(nullptr);
  return text;
}

TEST(CudaCApiTest, TwoSessionsGiveOneTextAndASeedGivesItsOwn) {
  const gyre_options options = OnGpu();
  int error = -1;
  const OwnedModel model(gyre_load(GYRE_DEMO_MODEL, &options, &error));
  ASSERT_NE(model, nullptr) << gyre_error_message();
  EXPECT_EQ(error, GYRE_OK);
  const std::string greedy = TextOf(model.get(), 6, 0, 1, &error);
  EXPECT_EQ(error, GYRE_OK);
  EXPECT_FALSE(greedy.empty());
  EXPECT_EQ(TextOf(model.get(), 6, 0, 2, &error), greedy) << "temperature 0 draws nothing";
  const std::string drawn = TextOf(model.get(), 6, 0.7f, 42, &error);
  EXPECT_EQ(TextOf(model.get(), 6, 0.7f, 42, &error), drawn);
  std::set<std::string> others;
  for (uint64_t seed = 43; seed < 47; ++seed) others.insert(TextOf(model.get(), 6, 0.7f, seed, &error));
  EXPECT_GT(others.size(), 1u) << "the seed decides";
}

TEST(CudaCApiTest, MemoryThatDoesNotSufficeIsTwo) {
  const gyre_options options = OnGpu(100000);
  int error = -1;
  const OwnedModel model(gyre_load(GYRE_DEMO_MODEL, &options, &error));
  EXPECT_EQ(model, nullptr);
  EXPECT_EQ(error, GYRE_OUT_OF_MEMORY);
  EXPECT_EQ(error, 2);
  EXPECT_THAT(gyre_error_message(), HasSubstr("--device-memory"));
}

TEST(CudaCApiTest, AnOpThatFailsAgainAndAgainIsFive) {
  const gyre_options options = OnGpu();
  int error = -1;
  const OwnedModel model(gyre_load(GYRE_DEMO_MODEL, &options, &error));
  ASSERT_NE(model, nullptr) << gyre_error_message();
  const auto faults = testing::LastFaults();
  ASSERT_NE(faults, nullptr);
  faults->refuses_all = true;
  EXPECT_EQ(TextOf(model.get(), 6, 0, 1, &error), "");
  EXPECT_EQ(error, GYRE_INFERENCE_FAILED);
  EXPECT_EQ(error, 5);
  EXPECT_THAT(gyre_error_message(), HasSubstr("could not be launched"));
  faults->refuses_all = false;
  EXPECT_FALSE(TextOf(model.get(), 2, 0, 1, &error).empty()) << "the next session goes on";
  EXPECT_EQ(error, GYRE_OK);
}

TEST(CudaCApiTest, AMissingGpuIsASentence) {
  gyre_options options = OnGpu();
  options.device = "cuda:9";
  int error = GYRE_OK;
  EXPECT_EQ(gyre_load(GYRE_DEMO_MODEL, &options, &error), nullptr);
  EXPECT_EQ(error, GYRE_INVALID_ARGUMENT);
  EXPECT_THAT(gyre_error_message(), HasSubstr("no CUDA"));
}

}  // namespace
}  // namespace gyre
