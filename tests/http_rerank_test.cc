// POST /v1/rerank, and the poolings of embeddings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "coordinator/http/rerank.h"
#include "model/gguf_writer.h"
#include "model/mapped_file.h"
#include "tests/testing/golden.h"
#include "tests/testing/openai_rig.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/temp_folder.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;

constexpr char kRerank[] = "/v1/rerank";

class HttpRerankTest : public OpenAiRig {
 protected:
  HttpRerankTest() { AddRerankRoutes(api_.router, api_.context); }

  static std::unique_ptr<Runtime> Opened(const std::string& model) {
    RuntimeOptions options;
    options.model = model;
    options.threads = 1;
    options.quiet = true;
    auto runtime = Runtime::Open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return *std::move(runtime);
  }

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

// The demo model with a classifier, whose rows are the output matrix's for two words.
void WriteClassified(const Model& demo, const std::vector<TokenId>& ids, const std::vector<std::string>& labels,
                     const std::string& path) {
  const std::shared_ptr<const MappedFile> file = *MappedFile::Open(GYRE_DEMO_MODEL);
  const Gguf source = *Gguf::Parse(file->bytes());
  GgufWriter w = *GgufWriter::Create(path, {});
  for (const auto& [key, value] : source.metadata()) w.Add(key, value);
  w.Add("llama.pooling_type", 4u);
  std::string texts;
  for (const std::string& label : labels) {
    const uint64_t size = label.size();
    texts.append(reinterpret_cast<const char*>(&size), sizeof size).append(label);
  }
  w.Add("llama.classifier.output_labels", {.type = GgufType::kArray,
                                           .element = GgufType::kString,
                                           .count = labels.size(),
                                           .bytes = std::as_bytes(std::span(texts))});
  const auto tensors = source.tensors().InFileOrder();
  for (const auto& [name, t] : tensors) w.AddTensor(name, t->type, t->dims);
  const WeightView output = demo.Head()->output;
  w.AddTensor("cls.output.weight", output.type, {output.k, ids.size()});
  ASSERT_TRUE(w.Begin().ok());
  for (const auto& [name, t] : tensors) ASSERT_TRUE(w.Write({t->data, t->bytes}).ok());
  for (const TokenId id : ids) {
    const WeightView row = RowsOf(output, static_cast<size_t>(id), 1);
    ASSERT_TRUE(w.Write({row.data, row.bytes()}).ok());
  }
  ASSERT_TRUE(w.Finish().ok());
}

// It says what the words' chances say, as its rows are theirs.
TEST_F(HttpRerankTest, AClassifierJudgesInPlaceOfWords) {
  const gyre::testing::TempFolder folder;
  const auto id = [](const char* word) { return runtime_->service().Tokenize(word, {.add_special = false})->front(); };
  const std::string path = folder.path() + "/classified.gguf", other = folder.path() + "/other.gguf";
  WriteClassified(runtime_->model(), {id("no"), id("yes")}, {"no", "yes"}, path);
  WriteClassified(runtime_->model(), {id("no"), id("yes")}, {"good", "bad"}, other);
  const std::string body =
      R"({"query":"a ring","instruction":"Find it","documents":["Lily went home.","Gyre joins its stages into a ring."]})";
  const auto runtime = Opened(path);
  ApiCaller api(runtime->service());
  AddRerankRoutes(api.router, api.context);
  const json::value list = api.Get(kRerank, body);
  ASSERT_EQ(list.at("results").as_array().size(), 2u);
  for (const json::value& r : list.at("results").as_array()) {
    const char* document = r.at("index") == 0 ? "Lily went home." : "Gyre joins its stages into a ring.";
    EXPECT_NEAR(r.at("relevance_score").to_number<double>(), Relevance(document), 1e-4);
  }
  const auto unlabelled = Opened(other);
  ApiCaller of_other(unlabelled->service());
  AddRerankRoutes(of_other.router, of_other.context);
  const auto refused = of_other.Post(kRerank, body);
  EXPECT_EQ(refused->answer.status, 422);
  EXPECT_THAT(At(Json(refused->answer.body), "/error/message"), HasSubstr("none of the labels"));
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

// Its file says that the first token's row is the vector.
TEST_F(HttpRerankTest, AnEncoderMakesVectorsAndNothingElse) {
  if (!gyre::testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: there is no encoder";
  const std::string name = gyre::testing::SharedData("golden-wave2/attention/") + "tiny-bert-s0-f16";
  const std::unique_ptr<Runtime> runtime = Opened(name + ".gguf");
  ApiCaller api(runtime->service());
  AddOpenAiRoutes(api.router, api.context);
  const std::vector<TokenId> ids =
      gyre::testing::ReadNumbers<TokenId>(gyre::testing::SharedData("golden-wave2/attention/") + "ids.txt");
  const std::vector<float> expected = gyre::testing::ReadFloats(name + ".pooled.f32");
  const json::value answer = api.Get("/v1/embeddings", R"({"normalize":false,"input":)" + Ids(ids) + "}");
  const json::array& vector = answer.at("data").at(0).at("embedding").as_array();
  ASSERT_EQ(vector.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(vector[i].to_number<double>(), static_cast<double>(expected[i]), 0.02);
  for (const auto& [path, body] : {std::pair{"/v1/completions", R"({"prompt":[1,2,3],"max_tokens":4})"},
                                   {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hello"}]})"}}) {
    const auto refused = api.Post(path, body);
    EXPECT_EQ(refused->answer.status, 400) << path;
    EXPECT_THAT(At(Json(refused->answer.body), "/error/message"), HasSubstr("this model is an encoder")) << path;
  }
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
