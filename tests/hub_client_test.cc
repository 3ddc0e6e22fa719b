// Listings of a hub, and its errors as sentences.
#include "hub/hub_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/testing/local_hub.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::HubFaults;
using testing::LocalHub;
using testing::Never;

StatusOr<RepoListing> ListOf(const HubOptions& options, const std::string& repo, const std::string& revision = "main") {
  StatusOr<std::unique_ptr<HubClient>> client = HubClient::Make(options);
  GYRE_RETURN_IF_ERROR(client.status());
  return (*client)->List(repo, revision, Never);
}

TEST(HubClientTest, ListsFilesWithSizesAndHashes) {
  for (const bool tls : {false, true}) {
    LocalHub hub({.tls = tls, .token = "hf_secret", .tree_page = 2});
    for (const char* name : {"a b+%.gguf", "deep/er/model.gguf", "x"}) hub.AddFile("org/repo", name, name);
    hub.AddFile("org/repo", "config.json", "{}", false);
    HubOptions options{.endpoint = hub.endpoint(), .token = "hf_secret", .ca_file = hub.ca_file()};
    for (const bool sizes : {true, false}) {
      hub.Fault([&](HubFaults& f) { f.no_sizes = !sizes; });
      for (const std::string& revision : {std::string("main"), LocalHub::commit()}) {
        const StatusOr<RepoListing> listing = ListOf(options, "org/repo", revision);
        ASSERT_TRUE(listing.ok()) << listing.status();
        EXPECT_EQ(listing->commit, LocalHub::commit());
        std::map<std::string, RepoFile> files;
        for (const RepoFile& f : listing->files) files[f.path] = f;
        ASSERT_EQ(files.size(), 4u);
        EXPECT_EQ(files["deep/er/model.gguf"].size, 18u);
        EXPECT_EQ(files["deep/er/model.gguf"].sha256, testing::HexDigest("deep/er/model.gguf"));
        EXPECT_EQ(files["a b+%.gguf"].url, hub.FileUrl("org/repo", "a%20b%2B%25.gguf"));
        EXPECT_EQ(files["config.json"].sha256, "");
        EXPECT_EQ(files["config.json"].git_sha1, "9e26dfeeb6e641a33dae4961196235bdb965b21b");  // git hash-object
      }
    }
  }
}

}  // namespace
}  // namespace gyre
