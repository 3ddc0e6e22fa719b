// POST /v1/rerank, and the poolings of embeddings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "coordinator/http/rerank.h"
#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;

constexpr char kRerank[] = "/v1/rerank";

class HttpRerankTest : public OpenAiRig {
 protected:
  HttpRerankTest() { AddRerankRoutes(api_.router, api_.context); }

  // From all logits of the conversation's last row.
  static double Relevance(const std::string& document) {
    Service& service = runtime_->service();
    ChatInput chat;
    chat.conversation.messages.push_back(json::object{
        {"role", "system"},
        {"content",
         "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that "
         "the answer can only be \"yes\" or \"no\"."}});
    chat.conversation.messages.push_back(
        json::object{{"role", "user"}, {"content", "<Instruct>: Find it\n<Query>: a ring\n<Document>: " + document}});
    chat.conversation.extra["enable_thinking"] = false;
    Question question;
    question.input = service.Prompt(std::move(chat))->ids;
    question.prompt_logits = true;
    std::vector<float> last;
    EXPECT_TRUE(service
                    .Run(*service.MakeRequest(std::move(question)),
                         [&](const Event& e) {
                           if (const auto* row = std::get_if<LogitsEvent>(&e)) last = row->logits;
                         },
                         {})
                    .ok());
    const auto of = [&](const char* word) {
      const TokenId id = service.Tokenize(word, {.add_special = false})->front();
      return std::exp(static_cast<double>(last[static_cast<size_t>(id)]));
    };
    return of("yes") / (of("yes") + of("no"));
  }
};

TEST_F(HttpRerankTest, RanksByTheChanceOfYes) {
  const std::vector<std::string> documents = {"Lily went home.", "Gyre joins its stages into a ring.", "no",
                                              "A model."};
  std::vector<double> expected;
  json::array texts;
  for (const std::string& d : documents) {
    expected.push_back(Relevance(d));
    texts.push_back(json::string(d));
  }
  texts[2] = json::object{{"text", documents[2]}};
  json::object body{{"query", "a ring"}, {"documents", texts}, {"instruction", "Find it"}, {"return_documents", true}};
  const json::value all = api_.Get(kRerank, json::serialize(body));
  const json::array& results = all.at("results").as_array();
  ASSERT_EQ(results.size(), 4u);
  double before = 1;
  for (const json::value& r : results) {
    const auto i = static_cast<size_t>(r.at("index").as_int64());
    EXPECT_NEAR(r.at("relevance_score").to_number<double>(), expected[i], 1e-6);
    EXPECT_LE(r.at("relevance_score").to_number<double>(), before);
    before = r.at("relevance_score").to_number<double>();
    EXPECT_EQ(At(r, "/document/text"), documents[i]);
  }
  body["top_n"] = 2;
  body["return_documents"] = false;
  const json::value best = api_.Get("/v1/rerank", json::serialize(body));
  ASSERT_EQ(best.at("results").as_array().size(), 2u);
  EXPECT_EQ(At(best, "/results/0/index"), At(all, "/results/0/index"));
  EXPECT_EQ(At(best, "/results/0/document"), "(absent)");
}

TEST_F(HttpRerankTest, WrongRequestsHaveTheirSentence) {
  const auto refused = [this](const std::string& body) {
    const auto exchange = api_.Post(kRerank, body);
    EXPECT_EQ(exchange->answer.status, 400) << body;
    return At(Json(exchange->answer.body), "/error/message");
  };
  EXPECT_THAT(refused(R"({"documents":["a"]})"), HasSubstr("query"));
  EXPECT_THAT(refused(R"({"query":"a","documents":[]})"), HasSubstr("1 to 1024"));
  EXPECT_THAT(refused(R"({"query":"a","documents":[1]})"), HasSubstr("documents[0] must be a text"));
  EXPECT_THAT(refused(R"({"query":"a","documents":["a"],"what":1})"), HasSubstr("what"));
}

TEST_F(HttpRerankTest, EmbeddingsHaveAllPoolings) {
  const auto vector = [this](const std::string& fields) {
    const json::value answer = api_.Get("/v1/embeddings", R"({"input":"Lily and Tom went home.")" + fields + "}");
    std::vector<double> out;
    for (const json::value& v : answer.at("data").at(0).at("embedding").as_array())
      out.push_back(v.to_number<double>());
    return out;
  };
  const auto length = [](const std::vector<double>& v) {
    double sum = 0;
    for (double x : v) sum += x * x;
    return std::sqrt(sum);
  };
  const std::vector<double> raw = vector(R"(,"pooling":"cls","normalize":false)"), cls = vector(R"(,"pooling":"cls")");
  EXPECT_NEAR(length(cls), 1, 1e-5);
  EXPECT_GT(std::abs(length(raw) - 1), 1e-3);
  for (size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(raw[i] / length(raw), cls[i], 1e-6);
  // The first row knows the first token only.
  const TokenId first = runtime_->service().Tokenize("Lily and Tom went home.", {.add_special = true})->front();
  Question question;
  question.input = IdsInput{first};
  question.embedding = Pooling::kLast;
  const std::vector<float> alone = Ask(std::move(question)).embedding;
  ASSERT_EQ(alone.size(), raw.size());
  for (size_t i = 0; i < raw.size(); ++i) EXPECT_NEAR(raw[i], static_cast<double>(alone[i]), 1e-6);
  EXPECT_NE(vector(R"(,"pooling":"last")"), cls);
  EXPECT_NE(vector(R"(,"pooling":"mean")"), cls);
}

}  // namespace
}  // namespace gyre::http
