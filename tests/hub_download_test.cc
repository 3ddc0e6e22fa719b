// Downloads from a hub that stands in the test's process and does what a test lets it do wrong.
#include "hub/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>

#include "hub/partial_file.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http_proxy.h"
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

TEST_F(HubDownloadTest, ASmallFileIsCheckedByGitsHash) {
  hub_.AddFile("org/repo", "config.json", "{}", false);
  for (const bool wrong : {false, true}) {
    DownloadRequest request{.url = hub_.FileUrl("org/repo", "config.json"), .path = folder_ / "config.json", .size = 2};
    request.git_sha1 = wrong ? std::string(40, '0') : "9e26dfeeb6e641a33dae4961196235bdb965b21b";
    const StatusOr<DownloadResult> result = Run(request);
    EXPECT_EQ(result.status().code(), wrong ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk) << result.status();
    if (result.ok()) EXPECT_EQ(result->sha256, testing::HexDigest("{}"));
  }
}

TEST_F(HubDownloadTest, AnEmptyFileAndOneOfUnknownSize) {
  hub_.AddFile("org/repo", "empty", "");
  StatusOr<DownloadResult> result =
      Run({.url = hub_.FileUrl("org/repo", "empty"), .path = folder_ / "empty", .size = 0});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sha256, testing::HexDigest(""));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "empty"));
  // Chunks tell no size before the last has come.
  testing::HttpPeer peer([&](testing::HttpPeer::Call& call) {
    call.BeginStream();
    for (size_t at = 0; at < kSize; at += 100000) call.Chunk(content_.substr(at, 100000));
    call.EndStream();
  });
  ExpectWhole(Run({.url = peer.url() + "/x?y=z", .path = path_, .sha256 = sha256_}));
  ExpectWhole(Run({.url = peer.url() + "/x?y=z", .path = path_, .size = kSize}));
  result = Run({.url = peer.url(), .path = path_, .size = kSize - 1});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
}

TEST_F(HubDownloadTest, CutsAndStallsAndBusyHostsAreOutlasted) {
  options_.idle_timeout = milliseconds(300);
  const struct {
    const char* what;
    std::function<void(HubFaults&)> set;
  } kFaults[] = {
      {"cuts", [](HubFaults& f) { f.cut_after = 100000, f.cuts = 40; }},
      {"cuts before the first byte", [](HubFaults& f) { f.cut_after = 1, f.cuts = 10; }},
      {"stalls", [](HubFaults& f) { f.stall_after = 200000, f.stalls = 5; }},
      {"429", [](HubFaults& f) { f.bytes = {.code = 429, .headers = "Retry-After: 0\r\n", .times = 5}; }},
      {"503", [](HubFaults& f) { f.bytes = {.code = 503, .times = 4}; }},
      {"500", [](HubFaults& f) { f.bytes = {.code = 500, .times = 2}; }},
      {"416", [](HubFaults& f) { f.bytes = {.code = 416, .times = 2}; }},
      {"the hub itself", [](HubFaults& f) { f.resolve = {.code = 502, .times = 2}; }},
      {"links that expire", [](HubFaults& f) { f.links_last = 3; }},
      {"no ranges", [](HubFaults& f) { f.no_ranges = true; }},
      {"no ranges, cut", [](HubFaults& f) { f.no_ranges = true, f.cut_after = 3 << 20, f.cuts = 2; }},
      {"longer ranges", [](HubFaults& f) { f.too_many_bytes = true; }},
      {"shorter ranges", [](HubFaults& f) { f.too_few_bytes = true; }},
  };
  for (const auto& fault : kFaults) {
    SCOPED_TRACE(fault.what);
    hub_.Fault([&](HubFaults& f) { f = {}, fault.set(f); });
    std::filesystem::remove(path_);
    ExpectWhole(Run(Request()));
  }
}

TEST_F(HubDownloadTest, WhatAnInterruptedRunHasBroughtStays) {
  options_.range_bytes = 100000;
  uint64_t before = 0;
  int runs = 0;
  for (;; ++runs) {
    ASSERT_LT(runs, 100);
    uint64_t there = 0;
    options_.on_progress = [&](const DownloadProgress& p) { there = p.bytes; };
    hub_.Fault([&](HubFaults& f) { f.bytes_per_second = 3 << 20; });
    const Deadline end = After(milliseconds(150));
    options_.interrupted = [&] { return Clock::now() > end; };
    const StatusOr<DownloadResult> result = Run(Request());
    if (result.ok()) {
      EXPECT_EQ(result->resumed, before);
      ExpectWhole(result);
      break;
    }
    ASSERT_EQ(result.status().code(), absl::StatusCode::kCancelled) << result.status();
    const std::string note = ContentOf(StatePath(path_));
    const std::optional<PartialState> state = DecodePartialState(note);
    ASSERT_TRUE(state.has_value()) << note;
    EXPECT_GE(state->done.total(), before);
    EXPECT_GE(state->done.total(), there);
    EXPECT_FALSE(std::filesystem::exists(path_));
    before = state->done.total();
  }
  EXPECT_GT(runs, 0);
  EXPECT_LT(hub_.counts().bytes, kSize + kSize / 2) << "what was there is not fetched again";
}

TEST_F(HubDownloadTest, AFileThatChangedMeanwhileIsNotMixed) {
  for (const bool hashed : {true, false}) {
    SCOPED_TRACE(hashed);
    hub_.Fault([&](HubFaults& f) { f.bytes_per_second = 1 << 20; });
    hub_.AddFile("org/repo", "model.gguf", testing::NoiseBytes(kSize, 2));
    bool enough = false;
    options_.on_progress = [&](const DownloadProgress& p) { enough = p.bytes > 300000; };
    options_.interrupted = [&] { return enough; };
    DownloadRequest old = Request();
    old.sha256 = hashed ? testing::HexDigest(testing::NoiseBytes(kSize, 2)) : "";
    EXPECT_EQ(Run(old).status().code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(std::filesystem::exists(PartialPath(path_)));
    hub_.Fault([&](HubFaults& f) { f = {}; });
    hub_.AddFile("org/repo", "model.gguf", content_);
    options_.interrupted = nullptr;
    DownloadRequest fresh = Request();
    if (!hashed) fresh.sha256 = "";
    const StatusOr<DownloadResult> result = Run(fresh);
    ExpectWhole(result);
    EXPECT_EQ(result->resumed, 0u);
  }
}

TEST_F(HubDownloadTest, DamagedBytesAreNotKept) {
  hub_.Fault([&](HubFaults& f) { f.flipped_byte = 3000000; });
  const StatusOr<DownloadResult> result = Run(Request());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
  EXPECT_THAT(Message(result.status()), HasSubstr(sha256_));
  EXPECT_FALSE(std::filesystem::exists(path_));
  ExpectNoRest();
}

TEST_F(HubDownloadTest, DamageOfAnEarlierRunIsMendedByAnother) {
  hub_.Fault([&](HubFaults& f) { f.bytes_per_second = 1 << 20; });
  bool enough = false;
  options_.on_progress = [&](const DownloadProgress& p) { enough = p.bytes > 300000; };
  options_.interrupted = [&] { return enough; };
  EXPECT_EQ(Run(Request()).status().code(), absl::StatusCode::kCancelled);
  const std::optional<PartialState> state = DecodePartialState(ContentOf(StatePath(path_)));
  ASSERT_TRUE(state.has_value());
  {
    std::fstream damaged(PartialPath(path_), std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(static_cast<std::streamoff>(state->done.ranges().begin()->first));
    damaged << "not what was there";
  }
  hub_.Fault([&](HubFaults& f) { f = {}; });
  options_.interrupted = nullptr;
  ExpectWhole(Run(Request()));
}

TEST_F(HubDownloadTest, LiesAboutSizesAreErrors) {
  hub_.Fault([&](HubFaults& f) { f.told_size_more = 7; });
  StatusOr<DownloadResult> result = Run(Request());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
  EXPECT_THAT(Message(result.status()), HasSubstr(fmt::format("{} bytes, expected {}", kSize + 7, kSize)));
  // Without a listing's size the lie comes out at the end.
  DownloadRequest request = Request();
  request.size.reset();
  result = Run(request);
  EXPECT_FALSE(result.ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  hub_.Fault([&](HubFaults& f) { f = {}, f.no_ranges = true; });
  request.size = kSize + 1;
  EXPECT_EQ(Run(request).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(HubDownloadTest, AnAnswerThatRefusesIsTheEnd) {
  const struct {
    int code;
    absl::StatusCode status;
    const char* says;
  } kCases[] = {{403, absl::StatusCode::kPermissionDenied, "refuses access"},
                {404, absl::StatusCode::kNotFound, "does not have it"},
                {429, absl::StatusCode::kResourceExhausted, "try again in 1 s"},
                {418, absl::StatusCode::kDataLoss, "418"}};
  options_.attempts = 2;
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.code);
    for (const bool at_hub : {true, false}) {
      hub_.Fault([&](HubFaults& f) {
        f = {};
        (at_hub ? f.resolve : f.bytes) = {.code = c.code, .headers = c.code == 429 ? "Retry-After: 1\r\n" : ""};
      });
      const StatusOr<DownloadResult> result = Run(Request());
      EXPECT_EQ(result.status().code(), c.status) << result.status();
      EXPECT_THAT(Message(result.status()), HasSubstr(c.says));
      EXPECT_THAT(Message(result.status()), HasSubstr("model.gguf"));
      ExpectNoRest();
    }
  }
}

TEST_F(HubDownloadTest, RedirectsGoFarAndNotInCircles) {
  hub_.Fault([&](HubFaults& f) { f.redirect_to = hub_.FileUrl("org/repo", "model.gguf"); });
  EXPECT_EQ(Run(Request()).status().code(), absl::StatusCode::kDataLoss);
  testing::HttpPeer hops([&](testing::HttpPeer::Call& call) {
    const int n = std::stoi(call.target.substr(1));
    call.Respond(307, "",
                 n < 5 ? fmt::format("Location: {}\r\n", n + 1)
                       : fmt::format("Location: {}\r\n", hub_.FileUrl("org/repo", "model.gguf")));
  });
  hub_.Fault([&](HubFaults& f) { f = {}; });
  DownloadRequest request = Request();
  request.url = hops.url() + "/0";
  ExpectWhole(Run(request));
}

TEST_F(HubDownloadTest, NobodyAnswers) {
  DownloadRequest request = Request();
  {
    testing::HttpPeer peer([](testing::HttpPeer::Call&) {});
    request.url = peer.url();
  }
  const StatusOr<DownloadResult> result = Run(request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  ExpectNoRest();
}

TEST_F(HubDownloadTest, WhoeverWaitsIsToldWhy) {
  hub_.Fault([](HubFaults& f) { f.bytes = {.code = 429, .headers = "Retry-After: 1\r\n", .times = 1}; });
  Duration longest{};
  std::string trouble;
  options_.on_progress = [&](const DownloadProgress& p) {
    longest = std::max(longest, p.waiting);
    if (p.waiting > Duration{}) trouble = p.trouble;
  };
  ExpectWhole(Run(Request()));
  EXPECT_GT(longest, milliseconds(100));
  EXPECT_LE(longest, seconds(1));
  EXPECT_THAT(trouble, HasSubstr("try again in 1 s"));
}

TEST_F(HubDownloadTest, TwoDownloadsToOnePathExcludeEachOther) {
  hub_.Fault([&](HubFaults& f) { f.bytes_per_second = 1 << 20; });
  std::optional<Status> other, removed;
  options_.on_progress = [&](const DownloadProgress& p) {
    if (p.bytes == 0 || other.has_value()) return;
    DownloadOptions quiet = options_;
    quiet.on_progress = nullptr;
    other = Download(Request(), hub_options_, quiet).status();
    removed = RemovePartial(path_);
    hub_.Fault([&](HubFaults& f) { f = {}; });
  };
  ExpectWhole(Run(Request()));
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->code(), absl::StatusCode::kFailedPrecondition) << *other;
  EXPECT_EQ(removed->code(), absl::StatusCode::kFailedPrecondition) << *removed;
}

TEST_F(HubDownloadTest, TheRestOfAnUnfinishedOneCanBeRemoved) {
  EXPECT_TRUE(RemovePartial(path_).ok());
  hub_.Fault([&](HubFaults& f) { f.bytes_per_second = 1 << 20; });
  bool enough = false;
  options_.on_progress = [&](const DownloadProgress& p) { enough = p.bytes > 300000; };
  options_.interrupted = [&] { return enough; };
  EXPECT_EQ(Run(Request()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(std::filesystem::exists(PartialPath(path_)));
  EXPECT_TRUE(RemovePartial(path_).ok());
  ExpectNoRest();
}

TEST_F(HubDownloadTest, AFolderThatIsNotThere) {
  DownloadRequest request = Request();
  request.path = folder_ / "no/model.gguf";
  EXPECT_EQ(Run(request).status().code(), absl::StatusCode::kNotFound);
}

class SecretHubDownloadTest : public HubDownloadTest {
 protected:
  SecretHubDownloadTest() : HubDownloadTest({.tls = true, .token = "hf_secret"}) {}
};

TEST_F(SecretHubDownloadTest, TheTokenStaysWithTheHub) {
  hub_options_.token = "hf_secret", hub_options_.token_source = "HF_TOKEN";
  ExpectWhole(Run(Request()));
  EXPECT_EQ(hub_.counts().tokens_at_bytes_host, 0);
  // Neither does another host get it that a user's URL names, on whatever port.
  std::string seen = "none";
  testing::HttpPeer unauthenticated([&](testing::HttpPeer::Call& call) {
    seen = call.authorization;
    call.Respond(404, "");
  });
  EXPECT_EQ(Run({.url = unauthenticated.url(), .path = path_}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(seen, "");
}

TEST_F(SecretHubDownloadTest, AProxyCarriesIt) {
  testing::HttpProxy proxy("user:word");
  const StatusOr<ProxySettings> proxies = ParseProxies([&](const std::string& name) -> std::optional<std::string> {
    if (name != "https_proxy") return std::nullopt;
    return "http://user:word@" + proxy.address();
  });
  ASSERT_TRUE(proxies.ok()) << proxies.status();
  hub_options_.token = "hf_secret";
  hub_options_.proxies = *proxies;
  ExpectWhole(Run(Request()));
  EXPECT_GE(proxy.requests(), 3) << "a tunnel to the hub, and some to the host with the bytes";
}

TEST_F(SecretHubDownloadTest, NoRedirectLeavesTls) {
  hub_options_.token = "hf_secret";
  testing::HttpPeer plain([&](testing::HttpPeer::Call& call) { call.Respond(200, content_); });
  hub_.Fault([&](HubFaults& f) { f.redirect_to = plain.url(); });
  const StatusOr<DownloadResult> result = Run(Request());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(result.status()), HasSubstr("https"));
  EXPECT_EQ(plain.connections(), 0);
}

TEST_F(SecretHubDownloadTest, AUnauthenticatedPeersCertificate) {
  hub_options_.ca_file.clear();
  const StatusOr<DownloadResult> result = Run(Request());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(result.status()), HasSubstr("--ca FILE"));
}

}  // namespace
}  // namespace gyre
