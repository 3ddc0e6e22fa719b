// gyre perplexity, eval and batch, as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "fmt/core.h"
#include "tests/testing/command.h"
#include "tests/testing/free_port.h"
#include "tests/testing/temp_folder.h"

namespace gyre {
namespace {

namespace json = boost::json;
using testing::Ended;
using testing::Gyre;
using ::testing::HasSubstr;
using testing::Process;

constexpr char kText[] =
    "Gyre cuts a model into stages, contiguous ranges of layers, and joins them into a ring. The coordinator "
    "tokenizes, "
    "schedules and samples. A member owns one stage, its weights and its pages of the cache. Layers can move from one "
    "worker to another while text is being generated, and the text does not change.";

class CliScoreTest : public testing::FolderTest {
 protected:
  CliScoreTest() { Write("text.txt", kText); }
  static json::value Json(const Ended& ended) {
    EXPECT_EQ(ended.code, 0) << ended.text;
    boost::system::error_code error;
    json::value value = json::parse(ended.text, error);
    EXPECT_FALSE(error) << ended.text;
    return value;
  }
  json::value Perplexity(std::vector<std::string> more) const {
    std::vector<std::string> words{"perplexity", GYRE_DEMO_MODEL, Path("text.txt"), "--window", "64", "-q", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json(Gyre(words));
  }
};

TEST_F(CliScoreTest, PerplexityComparesRuns) {
  const json::value first = Perplexity({"--save", Path("run.npy")});
  const double nats = first.at("nats_per_token").to_number<double>();
  EXPECT_GT(nats, 0.5);
  EXPECT_NEAR(first.at("perplexity").to_number<double>(), std::exp(nats), 1e-6);
  EXPECT_NEAR(first.at("bits_per_byte").to_number<double>(),
              nats * first.at("tokens").to_number<double>() / std::log(2) / static_cast<double>(sizeof kText - 1),
              1e-9);
  // The same on three stages: nothing differs.
  const json::value same = Perplexity({"--stages", "3", "--against", Path("run.npy")});
  EXPECT_EQ(same.at("nats_per_token").to_number<double>(), nats);
  EXPECT_EQ(same.at("against").at("top1_agreement").to_number<double>(), 1);
  EXPECT_LT(std::abs(same.at("against").at("forward_kl").to_number<double>()), 1e-6);
  EXPECT_EQ(same.at("against").at("mean_rank").to_number<double>(), 1);
  // With a coarse KV cache something does.
  const json::value coarse = Perplexity({"--kv-type", "q4_0", "--against", Path("run.npy")});
  EXPECT_GT(coarse.at("against").at("forward_kl").to_number<double>(), 1e-5);
  EXPECT_LE(coarse.at("against").at("top1_agreement").to_number<double>(), 1);
  // Another cut of the text can't be compared.
  const Ended other =
      Gyre({"perplexity", GYRE_DEMO_MODEL, Path("text.txt"), "--window", "32", "-q", "--against", Path("run.npy")});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.text, HasSubstr("run.npy"));
  EXPECT_EQ(Gyre({"perplexity", GYRE_DEMO_MODEL, Path("text.txt"), "--save", Path("run.npy"), "-q"}).code, 1)
      << "no --force";
  EXPECT_EQ(Gyre({"perplexity", GYRE_DEMO_MODEL, Path("text.txt"), "--window", "8", "--stride", "8"}).code, 2);
}

TEST_F(CliScoreTest, EvalCountsChoicesAndFreeAnswers) {
  Write("questions.jsonl",
        R"({"task":"ring","context":"Gyre joins the workers into a","choices":["ring","zzqx"],"answer":0}
{"task":"ring","context":"Gyre joins the workers into a","choices":["zzqx","ring"],"answer":1}

{"task":"ring","context":"Gyre joins the workers into a","choices":["zzqx","ring"],"answer":0}
{"task":"free","prompt":"Gyre","answer":"nothing that it says","max_tokens":4}
{"task":"free","prompt":"Gyre","answer":"x","regex":"zzqx","max_tokens":4}
)");
  const json::value result =
      Json(Gyre({"eval", GYRE_DEMO_MODEL, Path("questions.jsonl"), "-q", "--json", "-o", Path("out.jsonl")}));
  const json::value& ring = result.at("tasks").at("ring");
  for (const char* measure : {"acc", "acc_mean", "acc_norm"}) {
    EXPECT_NEAR(ring.at(measure).at("value").to_number<double>(), 2.0 / 3, 1e-9) << measure;
    EXPECT_EQ(ring.at(measure).at("items").as_int64(), 3);
  }
  EXPECT_EQ(result.at("tasks").at("free").at("exact_match").at("value").to_number<double>(), 0);
  std::istringstream lines(Read("out.jsonl"));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) EXPECT_TRUE(json::parse(line).is_object());
  EXPECT_EQ(n, 5);
  Write("wrong.jsonl", "{\"context\":\"a\"}\n");
  const Ended wrong = Gyre({"eval", GYRE_DEMO_MODEL, Path("wrong.jsonl"), "-q"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.text, HasSubstr("wrong.jsonl:1: "));
}

// 401 is the answer to all of its requests, so it is none of theirs: the command ends, and goes on with the right key.
TEST_F(CliScoreTest, ABatchEndsWithAKeyThatIsNotTaken) {
  const auto keys = [this](const std::string& key) {
    Write("keys", "ann " + key + "\n");
    std::filesystem::permissions(Path("keys"),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  };
  keys("some-long-key-of-ann");
  Process server(
      {GYRE_BINARY, "serve", GYRE_DEMO_MODEL, "--http", "127.0.0.1:0", "-t", "1", "--api-keys", Path("keys")});
  const auto url = server.WaitFor("listening ", std::chrono::seconds(60));
  ASSERT_TRUE(url.has_value()) << server.output();
  constexpr int kRequests = 100;
  std::string lines;
  for (int i = 0; i < kRequests; ++i) {
    lines += fmt::format(
        R"({{"custom_id":"r{0}","method":"POST","url":"/v1/completions","body":{{"prompt":"Number {0}","max_tokens":8}}}})"
        "\n",
        i);
  }
  Write("requests.jsonl", lines);
  const auto words = [&](const std::string& key) {
    std::vector<std::string> out{GYRE_BINARY, "batch", Path("requests.jsonl"), "-o", Path("out.jsonl"), "--url",
                                 *url,        "-q",    "--concurrency",        "2"};
    if (!key.empty()) out.insert(out.end(), {"--api-key", key});
    return out;
  };
  const auto answered = [this] {
    const std::string text = Read("out.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  };
  for (const char* key : {"", "some-long-key-of-bob"}) {
    const Ended refused = testing::RunToEnd(words(key));
    EXPECT_EQ(refused.code, 1) << refused.text;
    EXPECT_THAT(refused.text, HasSubstr("401"));
    EXPECT_EQ(Read("out.jsonl"), "");
  }
  // A key that is taken back while it runs.
  Process batch(words("some-long-key-of-ann"));
  while (answered() < 4 && !batch.Wait(std::chrono::milliseconds(0))) {
  }
  keys("another-key-of-ann");
  server.Kill(SIGHUP);
  EXPECT_EQ(batch.Wait(std::chrono::seconds(60)), 1) << batch.output();
  EXPECT_THAT(batch.output(), HasSubstr("401"));
  EXPECT_GE(answered(), 4);
  EXPECT_LT(answered(), kRequests);
  const Ended end = testing::RunToEnd(words("another-key-of-ann"));
  EXPECT_EQ(end.code, 0) << end.text;
  std::istringstream in(Read("out.jsonl"));
  std::set<std::string> ids;
  for (std::string line; std::getline(in, line);) {
    const json::value value = json::parse(line);
    EXPECT_EQ(value.at("response").at("status_code").as_int64(), 200) << line;
    EXPECT_TRUE(ids.emplace(value.at("custom_id").as_string()).second) << line;
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kRequests));
}

// Killed again and again: every request has exactly one answer, and it is the one of an undisturbed run.
TEST_F(CliScoreTest, ABatchThatIsKilledGoesOn) {
  const std::string address = "127.0.0.1:" + std::to_string(testing::FreePort());
  Process server({GYRE_BINARY, "serve", GYRE_DEMO_MODEL, "--http", address, "-q"});
  constexpr int kRequests = 60;
  std::string lines;
  for (int i = 0; i < kRequests; ++i) {
    lines +=
        json::serialize(json::object{
            {"custom_id", "r" + std::to_string(i)},
            {"method", "POST"},
            {"url", "/v1/completions"},
            {"body", json::object{{"prompt", "Number " + std::to_string(i)}, {"temperature", 0}, {"max_tokens", 8}}}}) +
        "\n";
  }
  Write("requests.jsonl", lines);
  const auto words = [&](const std::string& out) {
    return std::vector<std::string>{GYRE_BINARY,         "batch", Path("requests.jsonl"), "-o", Path(out), "--url",
                                    "http://" + address, "-q",    "--concurrency",        "2"};
  };
  int kills = 0;
  const auto count = [&] {
    const std::string text = Read("out.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  };
  for (; kills < 5; ++kills) {
    const auto before = count();
    Process batch(words("out.jsonl"));
    for (int i = 0; i < 2000 && count() < before + 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(count(), before + 3);
    batch.Kill(SIGKILL);
    batch.Wait(std::chrono::seconds(10));
  }
  const Ended end = testing::RunToEnd(words("out.jsonl"));
  EXPECT_EQ(end.code, 0) << end.text;
  EXPECT_EQ(testing::RunToEnd(words("whole.jsonl")).code, 0);
  const auto texts = [&](const std::string& name) {
    std::map<std::string, std::string> out;
    std::istringstream in(Read(name));
    for (std::string line; std::getline(in, line);) {
      const json::value value = json::parse(line);
      const std::string id(value.at("custom_id").as_string());
      EXPECT_TRUE(out.emplace(id, value.at("response").at("body").at("choices").at(0).at("text").as_string()).second)
          << id;
    }
    return out;
  };
  const auto resumed = texts("out.jsonl");
  EXPECT_EQ(resumed.size(), static_cast<size_t>(kRequests));
  EXPECT_EQ(resumed, texts("whole.jsonl"));
}

}  // namespace
}  // namespace gyre
