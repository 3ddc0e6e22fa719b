// Downloads from a hub that stands in the test's process and does what a test lets it do wrong.
#include "hub/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/testing/certificates.h"
#include "tests/testing/local_hub.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::HubFaults;
using testing::LocalHub;

constexpr size_t kSize = (size_t{5} << 20) + 123;

std::string ContentOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class HubDownloadTest : public ::testing::Test {
 protected:
  explicit HubDownloadTest(const LocalHub::Options& options = {}) : hub_(options) {
    hub_.AddFile("org/repo", "model.gguf", content_);
    hub_options_ = {.endpoint = hub_.endpoint(), .ca_file = hub_.ca_file()};
    options_ = {.connections = 4,
                .range_bytes = 512 << 10,
                .idle_timeout = seconds(20),
                .first_pause = milliseconds(5),
                .longest_pause = milliseconds(40),
                .save_every = milliseconds(20)};
  }
  DownloadRequest Request() const {
    return {.url = hub_.FileUrl("org/repo", "model.gguf"), .path = path_, .size = kSize, .sha256 = sha256_};
  }
  StatusOr<DownloadResult> Run(const DownloadRequest& request) { return Download(request, hub_options_, options_); }
  void ExpectWhole(const StatusOr<DownloadResult>& result) const {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->size, kSize);
    EXPECT_EQ(result->sha256, sha256_);
    EXPECT_TRUE(ContentOf(path_) == content_);
    ExpectNoRest();
  }
  void ExpectNoRest() const {
    for (const std::string& rest : {PartialPath(path_), StatePath(path_), StatePath(path_) + ".new"}) {
      EXPECT_FALSE(std::filesystem::exists(rest)) << rest;
    }
  }

  const std::string content_ = testing::NoiseBytes(kSize);
  const std::string sha256_ = testing::HexDigest(content_);
  testing::Folder folder_;
  const std::string path_ = folder_ / "model.gguf";
  LocalHub hub_;
  HubOptions hub_options_;
  DownloadOptions options_;
};

TEST_F(HubDownloadTest, AFileComesWholeOverSeveralConnections) {
  ExpectWhole(Run(Request()));
  const testing::HubCounts counts = hub_.counts();
  EXPECT_GE(counts.ranges, 11);
  EXPECT_LE(counts.connections, 5);
  EXPECT_LE(counts.bytes, kSize + kSize / 4);  // little comes twice
}

}  // namespace
}  // namespace gyre
