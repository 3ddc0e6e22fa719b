// Listings of a hub, its errors as sentences, where its settings come from, and parts of its files.
#include "hub/hub_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hub/remote_file.h"
#include "tests/testing/certificates.h"
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

TEST(HubClientTest, ErrorsSayWhatToDo) {
  LocalHub hub;
  hub.AddFile("org/repo", "x", "x");
  const HubOptions anonymous{.endpoint = hub.endpoint()};
  HubOptions known = anonymous;
  known.token = "hf_x", known.token_source = "HF_TOKEN";
  const struct {
    const HubOptions& options;
    int code;
    std::string headers;
    absl::StatusCode status;
    std::vector<std::string> says;
  } kCases[] = {
      {anonymous,
       401,
       "X-Error-Code: RepoNotFound\r\n",
       absl::StatusCode::kUnauthenticated,
       {"check the name", "HF_TOKEN"}},
      {known, 401, "", absl::StatusCode::kUnauthenticated, {"token from HF_TOKEN", "make a new token"}},
      {anonymous,
       401,
       "X-Error-Code: GatedRepo\r\n",
       absl::StatusCode::kUnauthenticated,
       {"accept the conditions", "--token"}},
      {known,
       403,
       "X-Error-Code: GatedRepo\r\n",
       absl::StatusCode::kPermissionDenied,
       {"accept the conditions", "HF_TOKEN"}},
      {known, 403, "", absl::StatusCode::kPermissionDenied, {"may not read it", "the hub says: X"}},
      {anonymous, 403, "", absl::StatusCode::kPermissionDenied, {"--token"}},
      {known, 404, "X-Error-Code: RepoNotFound\r\n", absl::StatusCode::kNotFound, {"check the name"}},
      {known, 404, "X-Error-Code: RevisionNotFound\r\n", absl::StatusCode::kNotFound, {"branch, tag or commit"}},
      {anonymous, 429, "Retry-After: 30\r\n", absl::StatusCode::kResourceExhausted, {"in 30 s", "with a token"}},
      {known, 429, "RateLimit: \"api\";r=0;t=55\r\n", absl::StatusCode::kResourceExhausted, {"in 55 s"}},
      {known, 500, "", absl::StatusCode::kUnavailable, {"500", "later"}},
      {known, 302, "", absl::StatusCode::kDataLoss, {"302"}},
  };
  for (const auto& c : kCases) {
    hub.Fault([&](HubFaults& f) { f.listing = {.code = c.code, .headers = c.headers}; });
    const Status status = ListOf(c.options, "org/repo").status();
    EXPECT_EQ(status.code(), c.status) << status;
    for (const std::string& words : c.says) EXPECT_THAT(Message(status), HasSubstr(words));
    EXPECT_THAT(Message(status), HasSubstr("org/repo"));
    EXPECT_THAT(Message(status), ::testing::Not(HasSubstr("hf_x")));
  }
  hub.Fault([](HubFaults& f) { f = {}; });
  EXPECT_THAT(Message(ListOf(known, "org/repo", "v9").status()), HasSubstr("org/repo@v9"));
  EXPECT_EQ(ListOf(known, "org/other").status().code(), absl::StatusCode::kNotFound);
}

TEST(HubClientTest, NamesThatNoRepositoryHas) {
  LocalHub hub;
  for (const char* bad : {"", "a/b/c", "../x", "a/..", "a b", "/a", "a/", "-a/b", "a/.b", "a?b", "a%2fb", "a/b\n"}) {
    EXPECT_EQ(ListOf({.endpoint = hub.endpoint()}, bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(hub.counts().listings, 0);
}

TEST(HubClientTest, WhatIsNoListingIsAnError) {
  const std::string sha(40, 'a');
  const struct {
    std::string body;
    const char* says;
  } kCases[] = {
      {"<html>", "JSON"},
      {"[]", "commit"},
      {R"({"sha":"main","siblings":[]})", "commit"},
      {R"({"sha":")" + sha + R"(","siblings":{}})", "commit"},
      {R"({"sha":")" + sha + R"(","siblings":[{"rfilename":"../x","size":1}]})", "path"},
      {R"({"sha":")" + sha + R"(","siblings":[{"rfilename":"/etc/x","size":1}]})", "path"},
      {R"({"sha":")" + sha + R"(","siblings":[{"rfilename":"a//b","size":1}]})", "path"},
      {R"({"sha":")" + sha + R"(","siblings":[{"rfilename":"a\\b","size":1}]})", "path"},
      {R"({"sha":")" + sha + R"(","siblings":[{"size":1}]})", "path"},
      {std::string(100, '['), "JSON"},
  };
  for (const auto& c : kCases) {
    testing::HttpPeer peer([&](testing::HttpPeer::Call& call) { call.Respond(200, c.body); });
    const Status status = ListOf({.endpoint = peer.url()}, "org/repo").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.body;
    EXPECT_THAT(Message(status), HasSubstr(c.says));
  }
  // Pages that lead back, and away with the token.
  for (const std::string& next :
       {std::string("/api/models/org/repo/tree/" + sha + "?recursive=true"), std::string("http://127.0.0.1:1/x")}) {
    testing::HttpPeer peer([&](testing::HttpPeer::Call& call) {
      const bool tree = call.target.find("/tree/") != std::string::npos;
      call.Respond(200, tree ? "[]" : R"({"sha":")" + sha + R"(","siblings":[{"rfilename":"a"}]})",
                   tree ? "Link: <" + next + ">; rel=\"next\"\r\n" : "");
    });
    EXPECT_EQ(ListOf({.endpoint = peer.url()}, "org/repo").status().code(), absl::StatusCode::kDataLoss) << next;
  }
}

class HubSettingsTest : public ::testing::Test {
 protected:
  StatusOr<HubOptions> Make(const std::map<std::string, std::string>& variables, const HubFlags& flags = {}) {
    return MakeHubOptions(flags, [&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
    });
  }
  // The path of a new file with a token.
  std::string TokenAt(const std::string& path, const std::string& token) {
    const std::string full = folder_ / path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    std::ofstream(full) << token;
    return full;
  }
  testing::Folder folder_;
};

TEST_F(HubSettingsTest, TheEndpoint) {
  EXPECT_EQ(Make({})->endpoint, "https://huggingface.co");
  EXPECT_EQ(Make({{"HF_ENDPOINT", "http://mirror:8080/hf//"}})->endpoint, "http://mirror:8080/hf");
  EXPECT_EQ(Make({{"HF_ENDPOINT", "http://mirror"}}, {.endpoint = "https://own"})->endpoint, "https://own");
  EXPECT_THAT(Message(Make({{"HF_ENDPOINT", "mirror"}}).status()), HasSubstr("HF_ENDPOINT"));
  EXPECT_THAT(Message(Make({{"https_proxy", "socks5://x"}}).status()), HasSubstr("https_proxy"));
}

TEST_F(HubSettingsTest, TheTokenComesFromTheNearestPlace) {
  const std::string named = TokenAt("named", "of_path\n"), home = folder_ / "home", cache = folder_ / "cache";
  TokenAt("hf/token", "  of_hf_home \n");
  TokenAt("cache/huggingface/token", "of_cache");
  TokenAt("home/.cache/huggingface/token", "of_home");
  std::map<std::string, std::string> variables{{"HOME", home}};
  EXPECT_EQ(Make(variables)->token, "of_home");
  EXPECT_EQ(Make(variables)->token_source, home + "/.cache/huggingface/token");
  const struct {
    const char* name;
    std::string value, token;
  } kNearer[] = {{"XDG_CACHE_HOME", cache, "of_cache"},
                 {"HF_HOME", folder_ / "hf", "of_hf_home"},
                 {"HF_TOKEN_PATH", named, "of_path"},
                 {"HUGGING_FACE_HUB_TOKEN", "of_old_name", "of_old_name"},
                 {"HF_TOKEN", " of_variable\n", "of_variable"}};
  for (const auto& c : kNearer) {
    variables[c.name] = c.value;
    EXPECT_EQ(Make(variables)->token, c.token);
  }
  EXPECT_EQ(Make(variables)->token_source, "HF_TOKEN");
  EXPECT_EQ(Make(variables, {.token = "of_flag"})->token, "of_flag");
  EXPECT_EQ(Make({})->token, "");
  EXPECT_EQ(Make({{"HOME", "/nonexistent"}})->token_source, "");
  const Status bad = Make({{"HF_TOKEN", "secret\r\nX: y"}}).status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(bad), ::testing::Not(HasSubstr("secret")));
}

TEST(RemoteFileTest, PartsComeWithoutTheRest) {
  for (const bool tls : {false, true}) {
    LocalHub hub({.tls = tls});
    const std::string content = testing::NoiseBytes(size_t{9} << 20);
    hub.AddFile("org/repo", "model.gguf", content);
    const HubOptions options{.endpoint = hub.endpoint(), .ca_file = hub.ca_file()};
    auto file = RemoteFile::Open(hub.FileUrl("org/repo", "model.gguf"), options, Never);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->size(), content.size());
    const std::pair<uint64_t, uint64_t> kParts[] = {{0, 100},           {1000, 0},      {1 << 20, 1},
                                                    {(1 << 20) - 3, 7}, {100, 3 << 20}, {(9 << 20) - 5, 5}};
    for (const auto& [offset, count] : kParts) {
      const StatusOr<std::string> part = (*file)->Read(offset, count);
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_TRUE(*part == content.substr(offset, count)) << offset;
    }
    EXPECT_EQ((*file)->fetched(), uint64_t{5} << 20);
    EXPECT_EQ(hub.counts().ranges, 4) << "blocks are kept, and those side by side come together";
    EXPECT_EQ((*file)->Read(content.size() - 1, 2).status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ((*file)->Read(UINT64_MAX, 2).status().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(RemoteFileTest, ErrorsAndSmallFiles) {
  LocalHub hub;
  hub.AddFile("org/repo", "big", testing::NoiseBytes(size_t{3} << 20));
  hub.AddFile("org/repo", "small", "little");
  hub.AddFile("org/repo", "empty", "");
  const HubOptions options{.endpoint = hub.endpoint()};
  auto open = [&](const std::string& name) { return RemoteFile::Open(hub.FileUrl("org/repo", name), options, Never); };
  EXPECT_EQ((*open("empty"))->size(), 0u);
  EXPECT_EQ(open("none").status().code(), absl::StatusCode::kNotFound);
  auto big = open("big");
  ASSERT_TRUE(big.ok());
  hub.AddFile("org/repo", "big", testing::NoiseBytes(size_t{4} << 20));
  EXPECT_EQ((*big)->Read(2 << 20, 5).status().code(), absl::StatusCode::kDataLoss) << "another file by now";
  hub.Fault([](HubFaults& f) { f.no_ranges = true; });
  EXPECT_EQ(*(*open("small"))->Read(2, 3), "ttl");
  EXPECT_EQ(open("big").status().code(), absl::StatusCode::kUnimplemented);
  hub.Fault([](HubFaults& f) { f = {}, f.cut_after = 1000; });
  EXPECT_EQ(open("big").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gyre
