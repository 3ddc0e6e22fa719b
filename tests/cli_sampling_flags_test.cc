// Every row of the sampling options is a flag of the commands that generate, and a field of what --url sends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "coordinator/engine/sampling_options.h"
#include "fmt/core.h"
#include "tests/testing/command.h"
#include "tests/testing/openai_peer.h"

namespace gyre {
namespace {

using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using testing::OpenAiPeer;

TEST(SamplingFlagsTest, EachRowIsAFlagWithItsRange) {
  const OpenAiPeer peer{testing::OpenAiBehaviour{}};
  const std::string help = Gyre({"run", "--help"}).text;
  std::vector<std::string> all = {"run", "--url", peer.url(), "-p", "x", "-q"};
  for (const SamplingOption& option : SamplingOptions()) {
    EXPECT_THAT(help, HasSubstr(fmt::format("--{} {}", option.flag, option.flag_value)));
    if (option.openai) all.push_back(fmt::format("--{}=1", option.flag));
    for (const char* value : {"-3", "99999999999", "x", "nan"}) {
      const Ended refused = Gyre({"run", "m.gguf", "-p", "x", fmt::format("--{}={}", option.flag, value)});
      EXPECT_EQ(refused.code, 2) << option.flag << " " << value;
      EXPECT_THAT(refused.text, HasSubstr(std::string(option.flag)));
    }
    if (option.openai) continue;
    const Ended here_only = Gyre({"run", "--url", peer.url(), "-p", "x", fmt::format("--{}=1", option.flag)});
    EXPECT_EQ(here_only.code, 2) << here_only.text;
    EXPECT_THAT(here_only.text, HasSubstr(fmt::format("--{} can't go with --url", option.flag)));
  }
  Gyre(all);
  ASSERT_EQ(peer.bodies().size(), 1u);
  for (const SamplingOption& option : SamplingOptions()) {
    if (!option.openai) continue;
    ASSERT_TRUE(peer.bodies()[0].contains(option.name)) << option.name;
    EXPECT_EQ(peer.bodies()[0].at(option.name).to_number<double>(), 1) << option.name;
  }
}

}  // namespace
}  // namespace gyre
