// /v1/responses and /v1/embeddings over a real ring.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "absl/strings/escaping.h"
#include "coordinator/state/response_store.h"
#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

constexpr char kResponses[] = "/v1/responses", kEmbeddings[] = "/v1/embeddings";

using OpenAiResponsesTest = OpenAiRig;

TEST_F(OpenAiResponsesTest, AnswersWhatTheEngineSays) {
  const Said said = Ask(Greedy("What is Gyre?"));
  for (const char* input :
       {R"("What is Gyre?")", R"([{"role":"user","content":"What is Gyre?"}])",
        R"([{"type":"message","role":"user","content":[{"type":"input_text","text":"What is Gyre?"}]}])"}) {
    const json::value answer =
        api_.Get(kResponses, std::string(R"({"model":"demo","temperature":0,"store":false,"input":)") + input + "}");
    EXPECT_EQ(At(answer, "/object"), "response");
    EXPECT_EQ(At(answer, "/status"), "completed");
    EXPECT_EQ(At(answer, "/output/0/type"), "message");
    EXPECT_EQ(At(answer, "/output/0/role"), "assistant");
    EXPECT_EQ(At(answer, "/output/0/status"), "completed");
    EXPECT_EQ(At(answer, "/output/0/content/0/type"), "output_text");
    EXPECT_EQ(At(answer, "/output/0/content/0/text"), said.text);
    EXPECT_EQ(At(answer, "/output/0/content/0/annotations"), "[]");
    EXPECT_EQ(At(answer, "/store"), "false");
    EXPECT_EQ(At(answer, "/usage/input_tokens"), std::to_string(said.prompt.size()));
    EXPECT_EQ(At(answer, "/usage/output_tokens"), std::to_string(said.ids.size()));
  }
  const json::value cut = api_.Get(kResponses, R"({"temperature":0,"input":"What is Gyre?","max_output_tokens":3})");
  EXPECT_EQ(At(cut, "/status"), "incomplete");
  EXPECT_EQ(At(cut, "/incomplete_details/reason"), "max_output_tokens");
  EXPECT_EQ(At(cut, "/usage/output_tokens"), "3");
  const auto tokens = [&](const char* body) { return At(api_.Get(kResponses, body), "/usage/input_tokens"); };
  EXPECT_EQ(tokens(R"({"input":"Hi","instructions":"Be brief.","max_output_tokens":1})"),
            tokens(R"({"input":[{"role":"developer","content":"Be brief."},{"type":"reasoning","id":"x","summary":[]},
                                {"role":"user","content":"Hi"}],"max_output_tokens":1})"));
}

TEST_F(OpenAiResponsesTest, AStreamHasAllItsEvents) {
  const Said said = Ask(Greedy("What is Gyre?"));
  const auto exchange = api_.Post(kResponses, R"({"temperature":0,"input":"What is Gyre?","stream":true})");
  const std::vector<SseMessage> events = Events(exchange->answer.body);
  std::vector<std::string> types;
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    const json::value event = Json(events[i].data);
    EXPECT_EQ(At(event, "/type"), events[i].event);
    EXPECT_EQ(At(event, "/sequence_number"), std::to_string(i));
    if (types.empty() || types.back() != events[i].event) types.push_back(events[i].event);
    if (events[i].event == "response.output_text.delta") {
      text += At(event, "/delta");
      EXPECT_EQ(At(event, "/output_index"), "0");
      EXPECT_EQ(At(event, "/item_id"), "msg_r1");
    }
    if (events[i].event == "response.output_text.done") EXPECT_EQ(At(event, "/text"), said.text);
    if (events[i].event == "response.created") EXPECT_EQ(At(event, "/response/status"), "in_progress");
  }
  EXPECT_EQ(text, said.text);
  EXPECT_EQ(types, (std::vector<std::string>{"response.created", "response.in_progress", "response.output_item.added",
                                             "response.content_part.added", "response.output_text.delta",
                                             "response.output_text.done", "response.content_part.done",
                                             "response.output_item.done", "response.completed"}));
  const json::value whole = Json(events.back().data);
  EXPECT_EQ(At(whole, "/response/output/0/content/0/text"), said.text);
  EXPECT_EQ(At(whole, "/response/usage/output_tokens"), std::to_string(said.ids.size()));
}

TEST_F(OpenAiResponsesTest, LogprobsComeWhereTheyAreAskedFor) {
  const json::value answer = api_.Get(kResponses, R"({"temperature":0,"input":"What is Gyre?","top_logprobs":2,
      "include":["message.output_text.logprobs"]})");
  const json::array& scores = answer.at("output").at(0).at("content").at(0).at("logprobs").as_array();
  EXPECT_EQ(scores.size() + 1, static_cast<size_t>(answer.at("usage").at("output_tokens").as_int64()));
  EXPECT_EQ(scores[0].at("top_logprobs").as_array().size(), 2u);
}

TEST_F(OpenAiResponsesTest, WhatNeedsAMemoryIsRefused) {
  struct Case {
    const char* body;
    int status;
    const char* param;
  };
  const Case cases[] = {
      {R"({})", 400, "input"},
      {R"({"input":7})", 400, "input"},
      {R"({"input":[]})", 400, "input"},
      {R"({"input":[{"type":"function_call_output"}]})", 400, "input[0].call_id"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})", 400, "input[0].content[0].type"},
      {R"({"input":"a","store":true})", 400, "store"},
      {R"({"input":"a","previous_response_id":"resp_1"})", 400, "previous_response_id"},
      {R"({"input":"a","conversation":"c"})", 400, "conversation"},
      {R"({"input":"a","background":true})", 400, "background"},
      {R"({"input":"a","truncation":"auto"})", 400, "truncation"},
      {R"({"input":"a","text":{"format":{"type":"json_schema"}}})", 400, "text.format.schema"},
      {R"({"input":"a","tools":[{"type":"web_search"}]})", 422, "tools[0].type"},
      {R"({"input":"a","include":["everything"]})", 400, "include"},
      {R"({"input":"a","model":"nobody"})", 404, "model"},
  };
  for (const Case& c : cases) {
    const auto exchange = api_.Post(kResponses, c.body);
    EXPECT_EQ(exchange->answer.status, c.status) << c.body << exchange->answer.body;
    EXPECT_EQ(At(Json(exchange->answer.body), "/error/param"), c.param) << c.body;
  }
}

// The routes with a store. Callers have tenants.
class KeptResponsesTest : public OpenAiRig {
 protected:
  KeptResponsesTest() { api_.context.responses = &store_; }
  json::value Ask(const std::string& fields) {
    return api_.Get(kResponses, R"({"temperature":0,"max_output_tokens":12,)" + fields + "}");
  }
  std::unique_ptr<FakeExchange> Of(const char* method, const std::string& id) {
    return api_.Call(method, std::string(kResponses) + "/" + id, "");
  }
  ResponseStore store_;
};

TEST_F(KeptResponsesTest, AConversationGoesOnFromAResponse) {
  const json::value first = Ask(R"("input":"What is Gyre?","instructions":"Be brief.")");
  EXPECT_EQ(At(first, "/store"), "true");
  EXPECT_EQ(At(first, "/previous_response_id"), "null");
  const std::string id = At(first, "/id"), said = json::serialize(first.at("output").at(0));
  const json::value second = Ask(R"("input":"And a ring?","previous_response_id":")" + id + "\"");
  EXPECT_EQ(At(second, "/previous_response_id"), id);
  // As if the client had sent it all; the instructions are the first request's own.
  const std::string all =
      R"([{"role":"user","content":"What is Gyre?"},)" + said + R"(,{"role":"user","content":"And a ring?"})";
  const json::value whole = Ask(R"("store":false,"input":)" + all + "]");
  EXPECT_EQ(At(second, "/output/0/content/0/text"), At(whole, "/output/0/content/0/text"));
  EXPECT_EQ(At(second, "/usage/input_tokens"), At(whole, "/usage/input_tokens"));
  // A stream goes on from both, and is kept too.
  const auto exchange = api_.Post(
      kResponses, R"({"temperature":0,"max_output_tokens":5,"stream":true,"input":"Why?","previous_response_id":")" +
                      At(second, "/id") + "\"}");
  const json::value streamed = Json(Events(exchange->answer.body).back().data).at("response");
  const json::value third = Json(Of("GET", At(streamed, "/id"))->answer.body);
  EXPECT_EQ(third, streamed);
  const std::string longer =
      all + "," + json::serialize(second.at("output").at(0)) + R"(,{"role":"user","content":"Why?"}])";
  EXPECT_EQ(At(third, "/usage/input_tokens"), At(Ask(R"("store":false,"input":)" + longer), "/usage/input_tokens"));
}

// An item of a response that is kept may be named by its id, as Vercel's client does.
TEST_F(KeptResponsesTest, AnItemIsNamedByItsId) {
  const json::value first = Ask(R"("input":"What is Gyre?")");
  const json::value item = first.at("output").at(0);
  const auto asks = [](const std::string& said) {
    return R"("input":[{"role":"user","content":"What is Gyre?"},)" + said + R"(,{"role":"user","content":"Why?"}])";
  };
  const std::string reference = R"({"type":"item_reference","id":")" + At(item, "/id") + "\"}";
  const json::value named = Ask(asks(reference)), whole = Ask(asks(json::serialize(item)));
  EXPECT_EQ(At(named, "/output/0/content/0/text"), At(whole, "/output/0/content/0/text"));
  EXPECT_EQ(At(named, "/usage/input_tokens"), At(whole, "/usage/input_tokens"));
  // The item itself is kept as a part of the input.
  EXPECT_EQ(At(Json(Of("GET", At(named, "/id") + "/input_items")->answer.body), "/data/1/content/0/text"),
            At(item, "/content/0/text"));
  for (const std::string& id : {std::string("msg_none"), At(first, "/id"), std::string(), At(item, "/id") + "_7"}) {
    const auto wrong = api_.Post(kResponses, "{" + asks(R"({"type":"item_reference","id":")" + id + "\"}") + "}");
    EXPECT_EQ(wrong->answer.status, 400) << id;
    EXPECT_EQ(At(Json(wrong->answer.body), "/error/message"), "Item with id '" + id + "' not found.");
  }
}

TEST_F(KeptResponsesTest, AResponseIsReadAndDeleted) {
  const json::value made = Ask(R"("input":"What is Gyre?")");
  const std::string id = At(made, "/id");
  EXPECT_EQ(Json(Of("GET", id)->answer.body), made);
  const json::value items = Json(Of("GET", id + "/input_items")->answer.body);
  EXPECT_EQ(At(items, "/object"), "list");
  EXPECT_EQ(At(items, "/data/0/content"), "What is Gyre?");
  const json::value later = Ask(R"("input":"Why?","previous_response_id":")" + id + "\"");
  EXPECT_EQ(At(Json(Of("DELETE", id)->answer.body), ""),
            R"({"id":")" + id + R"(","object":"response","deleted":true})");
  for (const char* method : {"GET", "DELETE"}) {
    const auto gone = Of(method, id);
    EXPECT_EQ(gone->answer.status, 404);
    const json::value error = Json(gone->answer.body);
    EXPECT_EQ(At(error, "/error/message"), "Response with id '" + id + "' not found.");
    EXPECT_EQ(At(error, "/error/type"), "invalid_request_error");
  }
  Ask(R"("input":"And?","previous_response_id":")" + At(later, "/id") + "\"");  // needs it still
  EXPECT_EQ(Of("GET", id + "/other")->answer.status, 404);
}

TEST_F(KeptResponsesTest, WhatIsNotThereIsSaidAsOpenAiSaysIt) {
  const std::string unkept = At(Ask(R"("input":"Hi","store":false)"), "/id");
  api_.caller.tenant = 7;
  const std::string anothers = At(Ask(R"("input":"Hi")"), "/id");
  api_.caller.tenant = 8;
  for (const std::string& id : {unkept, anothers, std::string("resp_nothing")}) {
    EXPECT_EQ(Of("GET", id)->answer.status, 404) << id;
    EXPECT_EQ(Of("DELETE", id)->answer.status, 404) << id;
    const auto exchange = api_.Post(kResponses, R"({"input":"Hi","previous_response_id":")" + id + "\"}");
    EXPECT_EQ(exchange->answer.status, 400);
    EXPECT_EQ(exchange->answer.body,
              R"({"error":{"message":"Previous response with id ')" + id +
                  R"(' not found.","type":"invalid_request_error","param":"previous_response_id",)"
                  R"("code":"previous_response_not_found"}})");
  }
  api_.caller.tenant = 7;
  EXPECT_EQ(Of("GET", anothers)->answer.status, 200);
}

std::vector<float> Floats(const json::value& list) {
  std::vector<float> out;
  for (const json::value& v : list.as_array()) out.push_back(v.to_number<float>());
  return out;
}

using OpenAiEmbeddingsTest = OpenAiRig;

TEST_F(OpenAiEmbeddingsTest, AreTheEnginesWithLengthOne) {
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    Question question;
    question.input = TextInput{.text = "Lily and Tom"};
    question.embedding = pooling;
    const Said said = Ask(question);
    double sum = 0;
    for (float v : said.embedding) sum += double{v} * v;
    const std::string name = pooling == Pooling::kMean ? "mean" : "last";
    const json::value answer =
        api_.Get(kEmbeddings, R"({"model":"demo","input":"Lily and Tom","pooling":")" + name + "\"}");
    EXPECT_EQ(At(answer, "/object"), "list");
    EXPECT_EQ(At(answer, "/data/0/object"), "embedding");
    EXPECT_EQ(At(answer, "/usage/prompt_tokens"), std::to_string(said.prompt.size()));
    const std::vector<float> vector = Floats(answer.at("data").at(0).at("embedding"));
    ASSERT_EQ(vector.size(), said.embedding.size());
    for (size_t i = 0; i < vector.size(); ++i) {
      EXPECT_FLOAT_EQ(vector[i], static_cast<float>(said.embedding[i] / std::sqrt(sum)));
    }
  }
}

TEST_F(OpenAiEmbeddingsTest, ComeInAnyFormAndNumber) {
  Question question;
  question.input = TextInput{.text = "Lily and Tom"};
  question.max_new_tokens = 1;
  const std::string ids = Ids(Ask(question).prompt);
  const json::value one = api_.Get(kEmbeddings, R"({"input":"Lily and Tom"})").at("data").at(0).at("embedding");
  EXPECT_EQ(api_.Get(kEmbeddings, "{\"input\":" + ids + "}").at("data").at(0).at("embedding"), one);
  EXPECT_EQ(api_.Get(kEmbeddings, "{\"input\":[" + ids + "]}").at("data").at(0).at("embedding"), one);
  // More than the engine gets at once.
  std::string many = R"({"input":["Lily and Tom")";
  for (int i = 1; i < 40; ++i) many += ",\"text " + std::to_string(i) + "\"";
  const json::value answer = api_.Get(kEmbeddings, many + ",\"Lily and Tom\"]}");
  const json::array& data = answer.at("data").as_array();
  ASSERT_EQ(data.size(), 41u);
  EXPECT_EQ(data[0].at("embedding"), one);
  EXPECT_EQ(data[40].at("embedding"), one);
  EXPECT_EQ(At(data[40], "/index"), "40");
  EXPECT_NE(data[39].at("embedding"), one);

  const std::vector<float> all = Floats(one);
  const json::value base64 = api_.Get(kEmbeddings, R"({"input":"Lily and Tom","encoding_format":"base64"})");
  std::string bytes;
  const std::string text = At(base64, "/data/0/embedding");
  ASSERT_TRUE(absl::Base64Unescape(absl::string_view(text.data(), text.size()), &bytes));
  ASSERT_EQ(bytes.size(), all.size() * 4);
  EXPECT_EQ(std::memcmp(bytes.data(), all.data(), bytes.size()), 0);  // this machine is little-endian

  const std::vector<float> few =
      Floats(api_.Get(kEmbeddings, R"({"input":"Lily and Tom","dimensions":10})").at("data").at(0).at("embedding"));
  ASSERT_EQ(few.size(), 10u);
  double length = 0, sum = 0;
  for (size_t i = 0; i < 10; ++i) {
    length += double{few[i]} * few[i];
    sum += double{all[i]} * all[i];
  }
  EXPECT_NEAR(length, 1, 1e-6);
  for (size_t i = 0; i < 10; ++i) EXPECT_NEAR(few[i], all[i] / std::sqrt(sum), 1e-6);
}

TEST_F(OpenAiEmbeddingsTest, WhatAsksForNothingChangesNothing) {
  const json::value plain = api_.Get(kEmbeddings, R"({"input":"a"})");
  for (const char* more :
       {R"("encoding_format":"")", R"("encoding_format":"float")", R"("pooling":"","dimensions":null)",
        R"("normalize":true,"add_special_tokens":true,"embd_normalize":2)",
        R"("truncate":false,"truncate_prompt_tokens":null,"input_type":"","task":null,"stream":false,"user":"")"}) {
    EXPECT_EQ(api_.Get(kEmbeddings, std::string(R"({"input":["a"],)") + more + "}"), plain) << more;
  }
}

TEST_F(OpenAiEmbeddingsTest, RefusalsNameTheField) {
  struct Case {
    const char* body;
    int status;
    const char* param;
  };
  const Case cases[] = {
      {R"({})", 400, "input"},
      {R"({"input":[]})", 400, "input"},
      {R"({"input":"a","dimensions":0})", 400, "dimensions"},
      {R"({"input":"a","dimensions":129})", 400, "dimensions"},
      {R"({"input":"a","encoding_format":"int8"})", 400, "encoding_format"},
      {R"({"input":"a","pooling":"max"})", 400, "pooling"},
      {R"({"input":"a","temperature":1})", 400, "temperature"},
      {R"({"input":""})", 400, "input"},
      {R"({"input":["a",""]})", 400, "input"},
      {R"({"input":[[1],[]]})", 400, "input"},
      {R"({"input":"a","normalize":1})", 400, "normalize"},
      {R"({"input":"a","add_special_tokens":false})", 400, "add_special_tokens"},
      {R"({"input":"a","embd_normalize":0})", 400, "embd_normalize"},
      {R"({"input":"a","truncate":true})", 400, "truncate"},
      {R"({"input":"a","input_type":"query"})", 400, "input_type"},
      {R"({"input":"a","stream":true})", 400, "stream"},
  };
  for (const Case& c : cases) {
    const auto exchange = api_.Post(kEmbeddings, c.body);
    EXPECT_EQ(exchange->answer.status, c.status) << c.body << exchange->answer.body;
    EXPECT_EQ(At(Json(exchange->answer.body), "/error/param"), c.param) << c.body;
  }
  EXPECT_EQ(At(Json(api_.Post(kEmbeddings, R"({"input":["a",""]})")->answer.body), "/error/message"),
            "input[1] is empty; expected a text or token ids");
  std::string ids = "1";
  for (int i = 0; i < 1024; ++i) ids += ",1";
  const auto exchange = api_.Post(kEmbeddings, "{\"input\":[[1],[" + ids + "]]}");
  EXPECT_EQ(exchange->answer.status, 400);
  EXPECT_EQ(At(Json(exchange->answer.body), "/error/code"), "context_length_exceeded");
}

}  // namespace
}  // namespace gyre::http
