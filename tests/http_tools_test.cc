// Calls of tools in all APIs: from the request to the template, and from the answer to the client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "coordinator/http/anthropic.h"
#include "coordinator/http/llama.h"
#include "coordinator/http/ollama.h"
#include "coordinator/http/openai.h"
#include "model/weights.h"
#include "tests/testing/demo_model.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"
#include "tests/testing/tiny_model.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToolTemplate[] =
    "{%if tools%}T{{tools|tojson}}{%endif%}{%for m in messages%}[{{m.role}}:{{m.content}}{{m.name}}"
    "{%if m.tool_calls%}<tool_call>{{m.tool_calls[0].function|tojson}}{%endif%}]{%endfor%}";
constexpr char kResponsesRoute[] = "/v1/responses", kMessagesRoute[] = "/v1/messages";
constexpr char kOllamaRoute[] = "/api/chat";

class ToolsTest : public ::testing::Test {
 protected:
  explicit ToolsTest(const char* chat_template = kToolTemplate)
      : file_(gyre::testing::DemoModelWithTemplate(chat_template)), model_(*OpenModel(file_.path())) {
    AddOpenAiRoutes(api_.router, api_.context);
    AddAnthropicRoutes(api_.router, api_.context);
    AddOllamaRoutes(api_.router, api_.context);
    AddLlamaRoutes(api_.router, api_.context);
  }
  // The client's view of an answer with these tokens.
  std::string Call(const char* path, const std::string& body, const std::vector<std::string>& says,
                   FinishReason reason = FinishReason::kStop) {
    const uint64_t n = engine_.requests().size() + 1;
    std::thread thread([&] {
      while (engine_.requests().size() < n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const std::string& text : says) engine_.Send(n, TokenEvent{.token = 65, .text = text, .logprob = -1});
      const auto count = static_cast<uint32_t>(says.size());
      engine_.Send(
          n, Finished{.reason = reason, .usage = {.prompt_tokens = 4, .cached_tokens = 0, .generated_tokens = count}});
    });
    const auto exchange = api_.Post(path, body);
    if (exchange->answer.status != 200) {
      engine_.Send(n, Finished{});
      ADD_FAILURE() << exchange->answer.body;
      std::abort();
    }
    thread.join();
    return exchange->answer.body;
  }
  void Refused(const char* path, const std::string& body, int status, const std::string& says) {
    const auto exchange = api_.Post(path, body);
    EXPECT_EQ(exchange->answer.status, status) << body << exchange->answer.body;
    EXPECT_THAT(exchange->answer.body, HasSubstr(says));
  }
  std::string Prompt() { return model_->tokenizer()->Decode(engine_.requests().back().prompt); }

  gyre::testing::TinyModelFile file_;
  std::shared_ptr<const Model> model_;
  gyre::testing::FakeEngine engine_;
  Service service_{*model_, engine_.Calls(), 2000};
  ApiCaller api_{service_};
};

const std::string kChatTools =
    R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":)"
    R"({"a":{"type":"integer"}}}}},{"type":"function","function":{"name":"g"}}])";
const std::string kChatBody = R"({"messages":[{"role":"user","content":"Hi"}],)" + kChatTools;
const std::string kFlatTools =
    R"("tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}},)"
    R"({"type":"function","name":"g"}])";
const std::string kMessageBody =
    R"({"model":"demo","max_tokens":50,"messages":[{"role":"user","content":"Hi"}],"tools":[{"name":"f","input_schema":)"
    R"({"type":"object","properties":{"a":{"type":"integer"}}}},{"name":"g","input_schema":{"type":"object"}}])";

const std::vector<std::string> kCalling = {"I ",
                                           "look.\n<tool",
                                           "_call>{\"name\": \"f\", \"argu",
                                           "ments\": {\"a\"",
                                           ": 1}}</tool_call>\n",
                                           "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"};

TEST_F(ToolsTest, AChatHasThem) {
  const auto whole = Json(Call(kChat, kChatBody + "}", kCalling));
  EXPECT_EQ(At(whole, "/choices/0/message/content"), "I look.");
  EXPECT_EQ(At(whole, "/choices/0/finish_reason"), "tool_calls");
  EXPECT_EQ(At(whole, "/choices/0/message/tool_calls/0/type"), "function");
  EXPECT_EQ(At(whole, "/choices/0/message/tool_calls/0/function/name"), "f");
  EXPECT_EQ(At(whole, "/choices/0/message/tool_calls/0/function/arguments"), R"({"a": 1})");
  EXPECT_EQ(At(whole, "/choices/0/message/tool_calls/1/function/name"), "g");
  const std::string id = At(whole, "/choices/0/message/tool_calls/0/id");
  EXPECT_EQ(id.size(), 29u);
  EXPECT_EQ(id.substr(0, 5), "call_");
  EXPECT_NE(id, At(whole, "/choices/0/message/tool_calls/1/id"));
  // The template has seen the tools; a tool without parameters has none that are named.
  EXPECT_THAT(Prompt(), HasSubstr(R"("name": "f")"));
  EXPECT_THAT(Prompt(), HasSubstr(R"("name": "g", "parameters": {"type": "object", "properties": {}})"));

  const auto alone = Json(Call(kChat, kChatBody + "}", {kCalling.back()}));
  EXPECT_EQ(At(alone, "/choices/0/message/content"), "null");
  const auto text = Json(Call(kChat, kChatBody + "}", {"No call."}));
  EXPECT_EQ(At(text, "/choices/0/finish_reason"), "stop");
  EXPECT_EQ(At(text, "/choices/0/message/tool_calls"), "(absent)");
}

TEST_F(ToolsTest, AChatStreamsThem) {
  std::string content;
  std::vector<std::string> names, ids, arguments;
  std::string finish;
  for (const SseMessage& message : Events(Call(kChat, kChatBody + ",\"stream\":true}", kCalling))) {
    if (message.data == "[DONE]") continue;
    const auto choice = Json(message.data).at("choices").at(0);
    const auto& delta = choice.at("delta").as_object();
    if (choice.at("finish_reason").is_string()) finish = choice.at("finish_reason").as_string();
    if (const auto* text = delta.if_contains("content")) content += text->as_string();
    const auto* calls = delta.if_contains("tool_calls");
    if (calls == nullptr) continue;
    ASSERT_EQ(calls->as_array().size(), 1u);
    const auto& call = calls->at(0);
    const auto index = static_cast<size_t>(call.at("index").as_int64());
    if (call.as_object().contains("id")) {
      ASSERT_EQ(index, names.size());
      ids.emplace_back(call.at("id").as_string());
      names.emplace_back(call.at("function").at("name").as_string());
      arguments.emplace_back();
    }
    ASSERT_LT(index, arguments.size());
    arguments[index] += call.at("function").at("arguments").as_string();
  }
  EXPECT_EQ(content, "I look.");
  EXPECT_EQ(names, (std::vector<std::string>{"f", "g"}));
  EXPECT_EQ(arguments, (std::vector<std::string>{R"({"a": 1})", "{}"}));
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_NE(ids[0], ids[1]);
}

TEST_F(ToolsTest, ACallThatTheLimitCutsComesAsFarAsItWasWritten) {
  const std::vector<std::string> says = {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"};
  const auto whole = Json(Call(kChat, kChatBody + "}", says, FinishReason::kLength));
  EXPECT_EQ(At(whole, "/choices/0/finish_reason"), "length");
  EXPECT_EQ(At(whole, "/choices/0/message/tool_calls/0/function/arguments"), R"({"a": 1)");
  // One that ends so by itself is a text.
  const auto text = Json(Call(kChat, kChatBody + "}", says));
  EXPECT_EQ(At(text, "/choices/0/message/content"), says[0]);
}

TEST_F(ToolsTest, ChoicesSayWhatIsACall) {
  const auto none = Json(Call(kChat, kChatBody + R"(,"tool_choice":"none"})", kCalling));
  EXPECT_EQ(At(none, "/choices/0/finish_reason"), "stop");
  EXPECT_THAT(At(none, "/choices/0/message/content"), HasSubstr("<tool_call>"));
  EXPECT_THAT(Prompt(), Not(HasSubstr("T[")));
  const auto one = Json(Call(kChat, kChatBody + R"(,"parallel_tool_calls":false})", kCalling));
  EXPECT_EQ(At(one, "/choices/0/message/tool_calls/0/function/name"), "f");
  EXPECT_EQ(At(one, "/choices/0/message/tool_calls/1"), "(absent)");
  const auto allowed = Json(Call(kChat,
                                 kChatBody + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)"
                                             R"("tools":[{"type":"function","function":{"name":"g"}}]}}})",
                                 kCalling));
  EXPECT_EQ(At(allowed, "/choices/0/message/tool_calls/0/function/name"), "g");
  EXPECT_THAT(At(allowed, "/choices/0/message/content"), HasSubstr("<tool_call>{\"name\": \"f\""));
}

// What the engine is asked for: calls that must come, calls that obey, and the end behind the first one.
TEST_F(ToolsTest, ChoicesOfToolsAskForGrammars) {
  const auto asked = [&](const char* path, const std::string& body) {
    Call(path, body, {"<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"});
    return engine_.requests().back();
  };
  const auto grammar = [&](const char* path, const std::string& body) {
    const Request request = asked(path, body);
    EXPECT_TRUE(request.grammar_source && request.grammar != nullptr) << body;
    EXPECT_EQ(request.grammar_source->kind, grammar::SourceKind::kToolCalls) << body;
    EXPECT_FALSE(request.one_call) << body;
    return Json(request.grammar_source->text);
  };
  const std::string response = R"({"input":"a",)" + kFlatTools;
  for (const auto& [path, body] : {std::pair{kChat, kChatBody + R"(,"tool_choice":"required"})"},
                                   {kResponsesRoute, response + R"(,"tool_choice":"required"})"},
                                   {kMessagesRoute, kMessageBody + R"(,"tool_choice":{"type":"any"}})"}}) {
    const auto source = grammar(path, body);
    EXPECT_EQ(At(source, "/required"), "true");
    EXPECT_EQ(At(source, "/parallel"), "true");
    EXPECT_EQ(At(source, "/format"), "json_in_tags");
    EXPECT_EQ(source.at("tools").as_array().size(), 2u);
  }
  const std::string chat_allowed = R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":)"
                                   R"([{"type":"function","function":{"name":"g"}}]}})";
  for (const auto& [path, body] :
       {std::pair{kChat, kChatBody + R"(,"tool_choice":{"type":"function","function":{"name":"g"}}})"},
        {kChat, kChatBody + R"(,"tool_choice":)" + chat_allowed + "}"},
        {kResponsesRoute, response + R"(,"tool_choice":{"type":"function","name":"g"}})"},
        {kResponsesRoute,
         response +
             R"(,"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}})"},
        {kMessagesRoute,
         kMessageBody + R"(,"tool_choice":{"type":"tool","name":"g","disable_parallel_tool_use":true}})"}}) {
    const auto source = grammar(path, body);
    EXPECT_EQ(At(source, "/required"), "true");
    EXPECT_EQ(source.at("tools").as_array().size(), 1u);
    EXPECT_EQ(At(source, "/tools/0/name"), "g");
    EXPECT_EQ(At(source, "/parallel"), path == kMessagesRoute ? "false" : "true");
    EXPECT_THAT(Prompt(), HasSubstr(R"("name": "f")")) << "the template sees all of them";
  }
  const auto strict =
      grammar(kChat, R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":)"
                     R"({"name":"g","strict":true}},{"type":"function","function":{"name":"h"}}]})");
  EXPECT_EQ(At(strict, "/required"), "false");
  EXPECT_EQ(At(strict, "/tools/0/strict"), "true");
  EXPECT_EQ(At(strict, "/tools/1/strict"), "false");
  const auto answer = grammar(kChat, kChatBody + R"(,"response_format":{"type":"json_object"}})");
  EXPECT_EQ(At(answer, "/answer"), R"({"type": "object"})");
  // A model that is free needs no grammar.
  EXPECT_FALSE(asked(kChat, kChatBody + R"(,"tool_choice":"auto"})").grammar_source);
  const std::string allowed = R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]})";
  EXPECT_FALSE(asked(kResponsesRoute, response + R"(,"tool_choice":)" + allowed + "}").grammar_source);
  for (const auto& [path, body] :
       {std::pair{kChat, kChatBody + R"(,"parallel_tool_calls":false})"},
        {kMessagesRoute, kMessageBody + R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}})"}}) {
    const Request one = asked(path, body);
    EXPECT_FALSE(one.grammar_source);
    ASSERT_TRUE(one.one_call) << body;
    EXPECT_EQ(one.one_call->size(), 2u);
  }
}

TEST_F(ToolsTest, WrongChoicesAreRefused) {
  Refused(kChat, kChatBody + R"(,"tool_choice":{"type":"function","function":{"name":"h"}}})", 400, "no tool");
  Refused(kChat, kChatBody + R"(,"tool_choice":"perhaps"})", 400, "tool_choice");
  Refused(kChat, R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required"})", 400, "there are no tools");
  Refused(kResponsesRoute, R"({"input":"a","tools":[{"type":"web_search"}]})", 422, "tools[0].type");
  Refused(kMessagesRoute, kMessageBody + R"(,"tool_choice":{"type":"x"}})", 400, "tool_choice.type");
  Refused(kMessagesRoute, kMessageBody + R"(,"tool_choice":{"type":"tool","name":"h"}})", 400, "no tool");
}

TEST_F(ToolsTest, ResultsGoToTheTemplate) {
  const std::string call =
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":)"
      R"({"name":"f","arguments":"{\"a\": 1}"}}]})";
  const std::string result = R"({"role":"tool","tool_call_id":"c1","content":"one"})";
  Call(kChat, R"({"messages":[{"role":"user","content":"Hi"},)" + call + "," + result + "]," + kChatTools + "}", {"x"});
  const std::string expected = R"([user:Hi][assistant:<tool_call>{"name": "f", "arguments": {"a": 1}}][tool:onef])";
  EXPECT_THAT(Prompt(), HasSubstr(expected));
  Call(kResponsesRoute,
       R"({"input":[{"role":"user","content":"Hi"},{"type":"function_call","call_id":"c1","name":"f",)"
       R"("arguments":"{\"a\": 1}"},{"type":"function_call_output","call_id":"c1","output":"one"}],)" +
           kFlatTools + "}",
       {"x"});
  EXPECT_THAT(Prompt(), HasSubstr(expected));
  Call(kMessagesRoute,
       R"({"model":"demo","max_tokens":50,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":[)"
       R"({"type":"tool_use","id":"c1","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result",)"
       R"("tool_use_id":"c1","content":[{"type":"text","text":"one"}]},{"type":"text","text":"Go on"}]}]})",
       {"x"});
  EXPECT_THAT(Prompt(), HasSubstr(expected + "[user:Go on]"));
}

TEST_F(ToolsTest, AResponseHasItemsOfCalls) {
  const std::string body = R"({"input":"Hi",)" + kFlatTools;
  const auto whole = Json(Call(kResponsesRoute, body + "}", kCalling));
  EXPECT_EQ(At(whole, "/output/0/content/0/text"), "I look.");
  EXPECT_EQ(At(whole, "/output/1/type"), "function_call");
  EXPECT_EQ(At(whole, "/output/1/name"), "f");
  EXPECT_EQ(At(whole, "/output/1/arguments"), R"({"a": 1})");
  EXPECT_EQ(At(whole, "/output/1/call_id").substr(0, 5), "call_");
  EXPECT_EQ(At(whole, "/output/2/name"), "g");
  EXPECT_EQ(At(whole, "/tool_choice"), "auto");
  EXPECT_EQ(At(whole, "/tools/0/name"), "f");
  EXPECT_NE(At(whole, "/output/1/id"), At(whole, "/output/2/id"));
  std::vector<std::string> types;
  std::string arguments;
  const std::vector<SseMessage> events = Events(Call(kResponsesRoute, body + ",\"stream\":true}", kCalling));
  for (const SseMessage& event : events) {
    if (types.empty() || types.back() != event.event) types.push_back(event.event);
    if (event.event == "response.function_call_arguments.delta") arguments += At(Json(event.data), "/delta");
  }
  EXPECT_EQ(types,
            (std::vector<std::string>{
                "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                "response.output_item.done", "response.output_item.added", "response.function_call_arguments.delta",
                "response.function_call_arguments.done", "response.output_item.done", "response.output_item.added",
                "response.function_call_arguments.delta", "response.function_call_arguments.done",
                "response.output_item.done", "response.completed"}));
  EXPECT_EQ(arguments, R"({"a": 1}{})");
  const auto end = Json(events.back().data);
  EXPECT_EQ(At(end, "/response/output/1/arguments"), R"({"a": 1})");
}

// A tool that takes a text is a function with one argument for the model.
TEST_F(ToolsTest, ACustomToolTakesAText) {
  const std::vector<std::string> says = {"<tool_call>{\"name\": \"patch\", \"argu", "ments\": {\"input\": \"*** a\\n",
                                         "b\"}}</tool_call>"};
  const std::string flat = R"("tools":[{"type":"custom","name":"patch","description":"Edits.","format":{"type":)"
                           R"("grammar","syntax":"lark","definition":"start: x"}},{"type":"function","name":"f"}])";
  const std::string body = R"({"input":"Hi",)" + flat;
  const auto whole = Json(Call(kResponsesRoute, body + "}", says));
  EXPECT_EQ(At(whole, "/output/0/type"), "custom_tool_call");
  EXPECT_EQ(At(whole, "/output/0/input"), "*** a\nb");
  EXPECT_THAT(Prompt(), HasSubstr(R"("description": "Edits.\nThe input obeys this grammar (lark):\nstart: x")"));
  EXPECT_THAT(Prompt(), HasSubstr(R"("required": ["input"])"));
  std::vector<std::string> events;
  for (const SseMessage& event : Events(Call(kResponsesRoute, body + ",\"stream\":true}", says))) {
    if (event.event.find("custom") == std::string::npos) continue;
    events.push_back(event.event.substr(event.event.rfind('.') + 1) + At(Json(event.data), "/delta") +
                     At(Json(event.data), "/input"));
  }
  EXPECT_EQ(events, (std::vector<std::string>{"delta*** a\nb(absent)", "done(absent)*** a\nb"}));
  Call(kResponsesRoute,
       R"({"input":[{"role":"user","content":"Hi"},)" + boost::json::serialize(whole.at("output").at(0)) +
           R"(,{"type":"custom_tool_call_output","call_id":")" + At(whole, "/output/0/call_id") +
           R"(","output":"Done"}],)" + flat + "}",
       {"x"});
  EXPECT_THAT(
      Prompt(),
      HasSubstr(R"([assistant:<tool_call>{"name": "patch", "arguments": {"input": "*** a\nb"}}][tool:Donepatch])"));

  const std::string nested = R"("tools":[{"type":"custom","custom":{"name":"patch"}}])";
  const std::string chat = R"({"messages":[{"role":"user","content":"Hi"}],)" + nested;
  const auto answer = Json(Call(kChat, chat + "}", says));
  const std::string call = At(answer, "/choices/0/message/tool_calls/0");
  EXPECT_EQ(At(Json(call), "/type"), "custom");
  EXPECT_EQ(At(Json(call), "/custom/input"), "*** a\nb");
  std::string name, input;
  for (const SseMessage& message : Events(Call(kChat, chat + ",\"stream\":true}", says))) {
    if (message.data == "[DONE]") continue;
    const std::string at = "/choices/0/delta/tool_calls/0/custom/";
    if (At(Json(message.data), at + "name") != "(absent)") name += At(Json(message.data), at + "name");
    if (At(Json(message.data), at + "input") != "(absent)") input += At(Json(message.data), at + "input");
  }
  EXPECT_EQ(name + ":" + input, "patch:*** a\nb");
  Call(kChat,
       R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":[)" + call +
           R"(]},{"role":"tool","tool_call_id":")" + At(Json(call), "/id") + R"(","content":"Done"}],)" + nested + "}",
       {"x"});
  EXPECT_THAT(Prompt(), HasSubstr(R"("arguments": {"input": "*** a\nb"}}][tool:Donepatch])"));

  // A regular expression is obeyed; a custom tool can be chosen by its name.
  Call(kResponsesRoute,
       R"({"input":"Hi","tool_choice":{"type":"custom","name":"t"},"tools":[{"type":"custom","name":"t","format":)"
       R"({"type":"grammar","syntax":"regex","definition":"[0-9]+"}}]})",
       {"x"});
  const Request request = engine_.requests().back();
  ASSERT_TRUE(request.grammar_source);
  EXPECT_THAT(request.grammar_source->text, HasSubstr("^(?:[0-9]+)$"));
  Refused(kMessagesRoute,
          R"({"model":"demo","max_tokens":5,"messages":[{"role":"user","content":"a"}],"tools":[)"
          R"({"type":"web_search_20250305","name":"web_search","max_uses":5}]})",
          422, "web_search_20250305");
}

// A tool of the client may give an image, which no later request can leave out: the model reads that there is one.
TEST_F(ToolsTest, WhatIsNoTextInAResultIsNamed) {
  const std::string image = "[An image, which is left out: you read text alone.]";
  const std::string file = "[A file, which is left out: you read text alone.]";
  Call(
      kMessagesRoute,
      R"({"model":"demo","max_tokens":5,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[)"
      R"({"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"f","input":{}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"p.png"},)"
      R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},)"
      R"({"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}},)"
      R"({"type":"document","source":{"type":"text","media_type":"text/plain","data":"read"}}]}]}]})",
      {"x"});
  EXPECT_THAT(Prompt(), HasSubstr("[tool:p.png\n" + image + "\n" + file + "\nreadf]"));
  Call(
      kResponsesRoute,
      R"({"input":[{"role":"user","content":"Hi"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c1","output":[{"type":"input_image","image_url":"data:image/png;base64,AA",)"
      R"("detail":"high"},{"type":"input_text","text":"seen"}]}],)" +
          kFlatTools + "}",
      {"x"});
  EXPECT_THAT(Prompt(), HasSubstr("[tool:" + image + "seenf]"));
  Call(kChat,
       R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1",)"
       R"("type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":)"
       R"([{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}],)" +
           kChatTools + "}",
       {"x"});
  EXPECT_THAT(Prompt(), HasSubstr("[tool:" + image + "f]"));
  // The user can take back what he sent.
  Refused(kMessagesRoute,
          R"({"model":"demo","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":)"
          R"({"type":"base64","media_type":"image/png","data":"AAAA"}}]}]})",
          400, "reads text alone");
  Refused(kResponsesRoute, R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}]})",
          400, "reads text only");
}

// Codex offers tools of OpenAI's servers beside its own, and may hand back what they did elsewhere.
TEST_F(ToolsTest, ToolsOfServersAreLeftOutBesideOthers) {
  for (const char* type : {"tool_search", "web_search", "image_generation", "code_interpreter", "file_search", "mcp",
                           "web_search_preview"}) {
    const std::string tool = R"({"type":")" + std::string(type) + R"(","execution":"client","parameters":{}})";
    Call(kResponsesRoute, R"({"input":"Hi","tools":[{"type":"function","name":"f"},)" + tool + "]}", {"x"});
    EXPECT_THAT(Prompt(), HasSubstr("\"f\"")) << type;
    EXPECT_THAT(Prompt(), Not(HasSubstr(type)));
    Refused(kResponsesRoute, R"({"input":"Hi","tools":[)" + tool + "]}", 422,
            "tools[0].type: this server runs no tools");
  }
  Refused(kResponsesRoute, R"({"input":"Hi","tools":[{"type":"function","name":"f"},{"type":"local_shell"}]})", 422,
          "local_shell");
  Call(
      kResponsesRoute,
      R"({"input":[{"role":"user","content":"Hi"},{"type":"web_search_call","id":"ws_1","status":"completed","action":{}},)"
      R"({"type":"tool_search_call","call_id":"c","arguments":{"query":"q"}},{"type":"tool_search_output","call_id":"c",)"
      R"("tools":[]},{"role":"user","content":"Go on"}]})",
      {"x"});
  EXPECT_THAT(Prompt(), HasSubstr("[user:Hi][user:Go on]"));
  Refused(kResponsesRoute, R"({"input":[{"type":"local_shell_call","call_id":"c"}]})", 400, "local_shell_call");
}

// As Codex asks: tools of a namespace, a search of the server's beside them, and several messages of the developer.
TEST_F(ToolsTest, AResponseMayHaveToolsOfANamespace) {
  const std::string tools =
      R"("tools":[{"type":"namespace","name":"agents","description":"d","tools":[{"type":"function","name":"close",)"
      R"("parameters":{"type":"object","properties":{}}}]},{"type":"function","name":"close"},)"
      R"({"type":"web_search","external_web_access":false}])";
  const std::string head = R"({"instructions":"One.","input":[{"type":"message","role":"developer","content":"Two."},)"
                           R"({"type":"message","role":"user","content":"Hi"})";
  const std::vector<std::string> says = {"<tool_call>{\"name\": \"agents__close\", \"arguments\": {}}</tool_call>"};
  const auto whole = Json(Call(kResponsesRoute, head + "]," + tools + R"(,"client_metadata":{"a":"b"}})", says));
  EXPECT_EQ(At(whole, "/output/0/name"), "close");
  EXPECT_EQ(At(whole, "/output/0/namespace"), "agents");
  EXPECT_THAT(Prompt(), HasSubstr("[system:One.\n\nTwo.][user:Hi]"));
  EXPECT_THAT(Prompt(), Not(HasSubstr("web_search")));
  Call(kResponsesRoute,
       head + "," + boost::json::serialize(whole.at("output").at(0)) +
           R"(,{"type":"function_call_output","call_id":")" + At(whole, "/output/0/call_id") + R"(","output":"ok"}],)" +
           tools + "}",
       {"x"});
  EXPECT_THAT(Prompt(), HasSubstr(R"({"name": "agents__close", "arguments": {}}][tool:okagents__close])"));
  // The choice of one, by its namespace and name, and of all of a namespace.
  const auto chosen = [&](const std::string& choice) {
    Call(kResponsesRoute, R"({"input":"Hi","tool_choice":)" + choice + "," + tools + "}",
         {"<tool_call>{\"name\": \"agents__close\", \"arguments\": {}}</tool_call>"});
    const std::string source = engine_.requests().back().grammar_source->text;
    return std::pair(source.find(R"("agents__close")") != std::string::npos,
                     source.find(R"("close")") != std::string::npos);
  };
  EXPECT_EQ(chosen(R"({"type":"function","name":"close","namespace":"agents"})"), std::pair(true, false));
  EXPECT_EQ(chosen(R"({"type":"function","name":"close"})"), std::pair(false, true));
  EXPECT_EQ(chosen(R"({"type":"allowed_tools","mode":"required","tools":[{"type":"namespace","name":"agents"}]})"),
            std::pair(true, false));
  Refused(kResponsesRoute,
          R"({"input":"Hi","tool_choice":{"type":"function","name":"close","namespace":"x"},)" + tools + "}", 400,
          "no tool \\\"x__close");
  Refused(kResponsesRoute,
          R"({"input":"Hi","tool_choice":{"type":"allowed_tools","tools":[{"type":"namespace","name":"x"}]},)" + tools +
              "}",
          400, "no namespace");
  Refused(kResponsesRoute, R"({"input":"Hi","tools":[{"type":"web_search"}]})", 422,
          "tools[0].type: this server runs no");
  Refused(kResponsesRoute, R"({"input":"Hi","tool_choice":{"type":"web_search"},)" + tools + "}", 422, "web_search");
}

TEST_F(ToolsTest, AMessageHasBlocksOfCalls) {
  const auto whole = Json(Call(kMessagesRoute, kMessageBody + "}", kCalling));
  EXPECT_EQ(At(whole, "/content/0/text"), "I look.");
  EXPECT_EQ(At(whole, "/content/1/type"), "tool_use");
  EXPECT_EQ(At(whole, "/content/1/name"), "f");
  EXPECT_EQ(At(whole, "/content/1/input/a"), "1");
  EXPECT_EQ(At(whole, "/content/1/id").substr(0, 6), "toolu_");
  EXPECT_EQ(At(whole, "/content/2/name"), "g");
  EXPECT_EQ(At(whole, "/stop_reason"), "tool_use");
  std::string json_text, stop;
  std::vector<std::string> blocks;
  int open = 0;
  for (const SseMessage& event : Events(Call(kMessagesRoute, kMessageBody + ",\"stream\":true}", kCalling))) {
    const auto data = Json(event.data);
    if (event.event == "content_block_start") {
      blocks.push_back(At(data, "/content_block/type"));
      EXPECT_EQ(++open, 1);
    }
    if (event.event == "content_block_stop") EXPECT_EQ(--open, 0);
    if (At(data, "/delta/type") == "input_json_delta") json_text += At(data, "/delta/partial_json");
    if (event.event == "message_delta") stop = At(data, "/delta/stop_reason");
  }
  EXPECT_EQ(blocks, (std::vector<std::string>{"text", "tool_use", "tool_use"}));
  EXPECT_EQ(json_text, R"({"a": 1}{})");
  EXPECT_EQ(stop, "tool_use");
  const auto one = Json(Call(
      kMessagesRoute, kMessageBody + R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}})", kCalling));
  EXPECT_EQ(At(one, "/content/2"), "(absent)");
}

const std::string kOllamaBody = R"({"model":"demo","messages":[{"role":"user","content":"Hi"}],)" + kChatTools;

TEST_F(ToolsTest, OllamasChatHasThem) {
  const auto whole = Json(Call(kOllamaRoute, kOllamaBody + ",\"stream\":false}", kCalling));
  EXPECT_EQ(At(whole, "/message/content"), "I look.");
  EXPECT_EQ(At(whole, "/message/tool_calls/0/function/name"), "f");
  EXPECT_EQ(At(whole, "/message/tool_calls/0/function/index"), "0");
  EXPECT_EQ(At(whole, "/message/tool_calls/0/function/arguments"), R"({"a":1})") << "an object, not a text";
  EXPECT_EQ(At(whole, "/message/tool_calls/0/id").substr(0, 5), "call_");
  EXPECT_EQ(At(whole, "/message/tool_calls/1/function/name"), "g");
  EXPECT_EQ(At(whole, "/message/tool_calls/1/function/arguments"), "{}");
  EXPECT_EQ(At(whole, "/done_reason"), "stop");
  EXPECT_THAT(Prompt(), HasSubstr(R"("name": "f")"));

  std::string content, streamed = Call(kOllamaRoute, kOllamaBody + "}", kCalling);
  std::vector<std::string> calls;
  while (!streamed.empty()) {
    const auto part = Json(streamed.substr(0, streamed.find('\n')));
    streamed.erase(0, streamed.find('\n') + 1);
    content += At(part, "/message/content");
    EXPECT_EQ(At(part, "/done"), streamed.empty() ? "true" : "false");
    if (At(part, "/message/tool_calls") == "(absent)") continue;
    EXPECT_EQ(At(part, "/message/content"), "");
    EXPECT_EQ(At(part, "/message/tool_calls/1"), "(absent)") << "a part for each call";
    EXPECT_EQ(At(part, "/message/tool_calls/0/function/index"), std::to_string(calls.size()));
    calls.push_back(At(part, "/message/tool_calls/0/function/name") +
                    At(part, "/message/tool_calls/0/function/arguments"));
  }
  EXPECT_EQ(content, "I look.");
  EXPECT_EQ(calls, (std::vector<std::string>{R"(f{"a":1})", "g{}"}));

  const std::vector<std::string> cut = {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"};
  const auto begun = Json(Call(kOllamaRoute, kOllamaBody + ",\"stream\":false}", cut, FinishReason::kLength));
  EXPECT_EQ(At(begun, "/message/tool_calls/0/function/arguments/raw"), "{\"a\": 1");
  EXPECT_EQ(At(begun, "/done_reason"), "length");
  EXPECT_THAT(Call(kOllamaRoute, kOllamaBody + "}", cut, FinishReason::kLength), HasSubstr(R"("raw":"{\"a\": 1")"));
  const auto plain = Json(Call(kOllamaRoute, kOllamaBody + ",\"stream\":false}", {"No call."}));
  EXPECT_EQ(At(plain, "/message/content"), "No call.");
  EXPECT_EQ(At(plain, "/message/tool_calls"), "(absent)");
  EXPECT_THAT(At(Json(api_.Post("/api/show", R"({"model":"demo"})")->answer.body), "/capabilities"),
              HasSubstr("tools"));
}

TEST_F(ToolsTest, OllamasResultsGoToTheTemplate) {
  const std::string head = R"({"model":"demo","stream":false,"messages":[{"role":"user","content":"Hi"},)";
  const std::string calls = R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":)"
                            R"({"a":1}}},{"function":{"index":1,"name":"g","arguments":{}}}]},)";
  // Results by the tools' names, in any order; by ids; and with neither, in the order of the calls.
  for (const std::string results :
       {R"({"role":"tool","tool_name":"g","content":"two"},{"role":"tool","tool_name":"f","content":"one"})",
        R"({"role":"tool","tool_call_id":"call00001","content":"two"},)"
        R"({"role":"tool","tool_call_id":"call00000","content":"one"})"}) {
    Call(kOllamaRoute, head + calls + results + "]}", {"x"});
    EXPECT_THAT(Prompt(),
                HasSubstr(R"([assistant:<tool_call>{"name": "f", "arguments": {"a": 1}}][tool:twog][tool:onef])"));
  }
  Call(kOllamaRoute, head + calls + R"({"role":"tool","content":"one"},{"role":"tool","content":"two"}]})", {"x"});
  EXPECT_THAT(Prompt(), HasSubstr("[tool:onef][tool:twog]"));
  Refused(kOllamaRoute, head + R"({"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}]})", 400,
          "only an assistant");
  Refused(kOllamaRoute, head + R"({"role":"user","content":"x","tool_name":"f"}]})", 400, "a tool's result");
  Refused(kOllamaRoute,
          head + R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]})",
          400, "arguments");
  Refused("/api/generate", R"({"model":"demo","prompt":"x",)" + kChatTools + "}", 400, "they belong to a chat");
}

// A template that shows what the model thought before it called a tool, as Qwen's do.
class ThoughtsTest : public ToolsTest {
 protected:
  ThoughtsTest()
      : ToolsTest(
            "{%if tools%}T{{tools|tojson}}{%endif%}{%for m in messages%}[{{m.role}}:{%if m.reasoning_content%}<think>"
            "{{m.reasoning_content}}</think>{%endif%}{{m.content}}{%for c in m.tool_calls%}<tool_call>"
            "{{c.function|tojson}}{%endfor%}]{%endfor%}<think>") {}
};
const std::vector<std::string> kThinking = {"I wonder", ".</think>",
                                            "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"};
constexpr char kThought[] = R"([assistant:<think>I wonder.</think><tool_call>{"name": "g", "arguments": {}}])";

TEST_F(ThoughtsTest, AMessagesThoughtsComeBack) {
  const auto whole = Json(Call(kMessagesRoute, kMessageBody + "}", kThinking));
  EXPECT_EQ(At(whole, "/content/0/thinking"), "I wonder.");
  const std::string signature = At(whole, "/content/0/signature");
  EXPECT_EQ(signature.size(), 37u) << signature;
  std::string streamed, order;
  for (const SseMessage& event : Events(Call(kMessagesRoute, kMessageBody + ",\"stream\":true}", kThinking))) {
    const auto data = Json(event.data);
    if (At(data, "/index") == "0") order += event.event.substr(14) + At(data, "/delta/type") + " ";
    if (At(data, "/delta/type") == "signature_delta") streamed += At(data, "/delta/signature");
  }
  EXPECT_EQ(streamed, signature);
  EXPECT_THAT(order, ::testing::EndsWith("deltasignature_delta stop(absent) ")) << "before the block ends";

  const std::string answer = boost::json::serialize(whole.at("content"));
  const auto again = [&](const std::string& content, const std::string& more = "") {
    Call(kMessagesRoute,
         kMessageBody.substr(0, kMessageBody.find(R"(],"tools")")) + R"(,{"role":"assistant","content":)" + content +
             R"(},{"role":"user","content":[{"type":"tool_result","tool_use_id":")" + At(whole, "/content/1/id") +
             R"(","content":"one"}]}])" + more + kMessageBody.substr(kMessageBody.find(R"(,"tools")")) + "}",
         {"x</think>y"});
    return Prompt();
  };
  EXPECT_THAT(again(answer), HasSubstr(std::string(kThought) + "[tool:one]"));
  EXPECT_THAT(again(R"([{"type":"redacted_thinking","data":"abc"},)" + answer.substr(1)), HasSubstr(kThought));
  std::string foreign = answer;
  foreign.replace(foreign.find(signature), signature.size(), "ErUB");
  EXPECT_THAT(again(foreign), HasSubstr(kThought));
  // The client asks for fewer of them.
  const std::string clear = R"(,"context_management":{"edits":[{"type":"clear_thinking_20251015")";
  EXPECT_THAT(again(answer, clear + R"(,"keep":"all"}]})"), HasSubstr(kThought));
  EXPECT_THAT(again(answer, clear + R"(,"keep":{"type":"thinking_turns","value":2}}]})"), HasSubstr(kThought));
  EXPECT_THAT(again(answer, clear + "}]}"), HasSubstr(kThought)) << "the last turn's stay";
  Refused(
      kMessagesRoute,
      R"({"model":"demo","max_tokens":5,"messages":[{"role":"user","content":[{"type":"thinking","thinking":"x"}]}]})",
      400, "messages[0].content[0].type");
}

TEST_F(ThoughtsTest, ThoughtsOfEarlierTurnsAreCleared) {
  const auto prompt = [&](const std::string& keep) {
    Call(kMessagesRoute,
         R"({"model":"demo","max_tokens":5,"messages":[{"role":"user","content":"a"},)"
         R"({"role":"assistant","content":[{"type":"thinking","thinking":"old","signature":""},)"
         R"({"type":"text","text":"b"}]},{"role":"user","content":"c"},{"role":"assistant","content":)"
         R"([{"type":"thinking","thinking":"new","signature":""},{"type":"text","text":"d"}]},)"
         R"({"role":"user","content":"e"}],"context_management":{"edits":[)"
         R"({"type":"clear_thinking_20251015","keep":)" +
             keep + "}]}}",
         {"x</think>y"});
    return Prompt();
  };
  EXPECT_THAT(prompt("\"all\""), HasSubstr("<think>old"));
  EXPECT_THAT(prompt(R"({"type":"thinking_turns","value":3})"), HasSubstr("<think>old"));
  EXPECT_THAT(prompt(R"({"type":"thinking_turns","value":2})"),
              ::testing::AllOf(HasSubstr("<think>new"), Not(HasSubstr("<think>old"))));
  EXPECT_THAT(prompt(R"({"type":"thinking_turns","value":1})"), Not(HasSubstr("<think>new")));
}

TEST_F(ThoughtsTest, AResponsesThoughtsComeBack) {
  const std::string body = R"({"input":[{"role":"user","content":"Hi"}],)" + kFlatTools;
  const auto plain = Json(Call(kResponsesRoute, body + "}", kThinking));
  EXPECT_EQ(At(plain, "/output/0/content/0/text"), "I wonder.");
  EXPECT_EQ(At(plain, "/output/0/encrypted_content"), "(absent)");
  const auto whole =
      Json(Call(kResponsesRoute, body + R"(,"store":false,"include":["reasoning.encrypted_content"]})", kThinking));
  boost::json::object thought = whole.at("output").at(0).as_object();
  EXPECT_EQ(thought.at("type"), "reasoning");
  const auto again = [&](const boost::json::object& item) {
    Call(kResponsesRoute,
         R"({"input":[{"role":"user","content":"Hi"},)" + boost::json::serialize(item) + "," +
             boost::json::serialize(whole.at("output").at(1)) + R"(,{"type":"function_call_output","call_id":")" +
             At(whole, "/output/1/call_id") + R"(","output":"one"}],)" + kFlatTools + "}",
         {"x</think>y"});
    return Prompt();
  };
  EXPECT_THAT(again(thought), HasSubstr(std::string(kThought) + "[tool:one]"));
  thought.erase("content");  // as clients hand it on that show no raw thoughts
  EXPECT_THAT(again(thought), HasSubstr(kThought));
  thought["encrypted_content"] = "gAAAA";
  EXPECT_THAT(again(thought), Not(HasSubstr("<think>I"))) << "another server's";
  // Thoughts, a text and a call are one message.
  Call(kResponsesRoute,
       R"({"input":[{"role":"user","content":"Hi"},{"type":"reasoning","summary":[],"content":[{"type":)"
       R"("reasoning_text","text":"Hm"}]},{"type":"message","role":"assistant","content":[{"type":"output_text",)"
       R"("text":"I look."}]},{"type":"function_call","call_id":"c1","name":"g","arguments":"{}"},)"
       R"({"type":"function_call_output","call_id":"c1","output":"one"}],)" +
           kFlatTools + "}",
       {"x</think>y"});
  EXPECT_THAT(Prompt(),
              HasSubstr(R"([assistant:<think>Hm</think>I look.<tool_call>{"name": "g", "arguments": {}}][tool)"));
}

TEST_F(ThoughtsTest, AChatsAndOllamasThoughtsComeBack) {
  const std::string call = R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"g","arguments":)";
  for (const char* name : {"reasoning_content", "reasoning"}) {
    Call(kChat,
         std::string(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,")") + name +
             R"(":"I wonder.",)" + call + R"("{}"}}]},{"role":"tool","tool_call_id":"c1","content":"one"}],)" +
             kChatTools + "}",
         {"x</think>y"});
    EXPECT_THAT(Prompt(), HasSubstr(kThought)) << name;
  }
  Call(kOllamaRoute,
       R"({"model":"demo","messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"",)"
       R"("thinking":"I wonder.",)" +
           call + R"({}}}]},{"role":"tool","tool_name":"g","content":"one"}],)" + kChatTools + "}",
       {"x</think>y"});
  EXPECT_THAT(Prompt(), HasSubstr(kThought));
}

TEST_F(ThoughtsTest, TheAppliedTemplateIsTheChatsPrompt) {
  const std::string body =
      R"({"messages":[{"role":"system","content":"x-anthropic-billing-header: cc_version=2.1.177.01c; cch=8a3f1;\nBe )"
      R"(brief."},{"role":"user","content":[{"type":"text","text":"Hi"}]},{"role":"assistant","content":null,)"
      R"("reasoning_content":"I wonder.","tool_calls":[{"id":"c1","type":"function","function":{"name":"g",)"
      R"("arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"one"}],)" +
      kChatTools + "}";
  const std::string text = At(api_.Get("/apply-template", body), "/prompt");
  Call(kChat, body, {"x</think>y"});
  EXPECT_THAT(Prompt(), HasSubstr(text));
  EXPECT_THAT(text, HasSubstr(kThought));
  EXPECT_THAT(text, HasSubstr(R"("name": "f")"));
  EXPECT_THAT(text, HasSubstr("cch=00000;"));
  Call(kChat, body.substr(0, body.size() - 1) + R"(,"tool_choice":"none"})", {"x</think>y"});
  EXPECT_THAT(Prompt(),
              HasSubstr(At(api_.Get("/apply-template", body.substr(0, body.size() - 1) + R"(,"tool_choice":"none"})"),
                           "/prompt")));
}

// Its template reads tools and says nothing of how they are called.
class UnknownFormTest : public ToolsTest {
 protected:
  UnknownFormTest()
      : ToolsTest("{%if tools%}T{{tools|tojson}}{%endif%}{% for m in messages %}{{ m.content }}{% endfor %}") {}
};

TEST_F(UnknownFormTest, ACallCannotBeAskedFor) {
  Refused(kChat, kChatBody + R"(,"tool_choice":"required"})", 422, "no form of calls");
  Refused(kMessagesRoute, kMessageBody + R"(,"tool_choice":{"type":"any"}})", 422, "no form of calls");
  Call(kChat, kChatBody + R"(,"parallel_tool_calls":false})", {"x"});
  EXPECT_FALSE(engine_.requests().back().one_call);
}

// Messages with headers, as gpt-oss has them.
class ChannelsTest : public ToolsTest {
 protected:
  ChannelsTest()
      : ToolsTest(
            "{%if tools%}T{{tools|tojson}}{%endif%}{%for m in messages%}{{m.role}}<|channel|>x<|message|>{{m.content}}"
            "{%endfor%}<|start|>assistant") {}
};

TEST_F(ChannelsTest, AFormHoldsBehindTheHeader) {
  const std::string says = "<|channel|>final<|message|>{}";
  Call(kChat, R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}})", {says});
  const Request form = engine_.requests().back();
  ASSERT_TRUE(form.grammar_source && form.grammar != nullptr);
  EXPECT_EQ(form.grammar_source->kind, grammar::SourceKind::kToolCalls);
  EXPECT_FALSE(form.answer_format.channels) << "the grammar has the headers";
  const auto takes = [](const Request& r, const std::string& text) {
    const auto state = r.grammar->Advance(r.grammar->start(), text);
    return state.ok() && r.grammar->MayEnd(*state);
  };
  EXPECT_TRUE(takes(form, says));
  EXPECT_TRUE(takes(form, "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant" + says));
  EXPECT_FALSE(takes(form, "{}"));
  Call(kChat, kChatBody + R"(,"tool_choice":"required"})", {"x"});
  const Request call = engine_.requests().back();
  EXPECT_TRUE(takes(call, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}"));
  EXPECT_FALSE(takes(call, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": true}"));
  EXPECT_FALSE(takes(call, says));
}

class NoToolsTest : public ToolsTest {
 protected:
  NoToolsTest() : ToolsTest("{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}") {}
};

TEST_F(NoToolsTest, ATemplateWithoutToolsRefusesThem) {
  Refused(kChat, kChatBody + "}", 422, "the chat template has no tools");
  Refused(kResponsesRoute, R"({"input":"Hi",)" + kFlatTools + "}", 422, "the chat template has no tools");
  Refused(kMessagesRoute, kMessageBody + "}", 422, "the chat template has no tools");
  Call(kChat, kChatBody + R"(,"tool_choice":"none"})", {"x"});
}

}  // namespace
}  // namespace gyre::http
