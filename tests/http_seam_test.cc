// The common base of all routes: JSON fields, errors, the router, and requests to the service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "boost/json/parse.hpp"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/router.h"
#include "tests/testing/fake_exchange.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

json::object Object(std::string_view text) {
  json::object out;
  const std::optional<ApiError> error = ParseBody(text, &out);
  EXPECT_FALSE(error) << error->message;
  return out;
}

TEST(HttpJson, BodyThatIsNoObjectIsMalformed) {
  json::object out;
  for (const char* body :
       {"", "[]", "{", "{\"a\":1}x", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1,\"\\u0062\":2}}", "nul"}) {
    const auto error = ParseBody(body, &out);
    ASSERT_TRUE(error) << body;
    EXPECT_EQ(error->status, 400) << body;
  }
  const std::string deep = "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}";
  ASSERT_TRUE(ParseBody(deep, &out));
  EXPECT_FALSE(ParseBody(" {\"a\": [{\"b\":1},{\"b\":1}]}\n", &out));
}

TEST(HttpJson, FieldsSayWhatIsWrongWithThem) {
  const json::object object = Object(R"({"b":true,"n":0.5,"i":7,"s":"x","z":null,"big":1e300,"half":1.5})");
  JsonFields fine(object);
  EXPECT_EQ(fine.Bool("b"), true);
  EXPECT_EQ(fine.Number("n", 0, 1), 0.5);
  EXPECT_EQ(fine.Integer("i", 0, 9), 7);
  EXPECT_EQ(fine.String("s"), "x");
  EXPECT_EQ(fine.String("z"), std::nullopt);
  fine.Ignore("big");
  fine.Ignore("half");
  EXPECT_FALSE(fine.Finish());

  JsonFields unknown(object);
  for (const char* name : {"b", "n", "i", "s", "big"}) unknown.Ignore(name);
  EXPECT_EQ(unknown.Finish()->status, 400);
  EXPECT_EQ(unknown.Finish()->param, "half");

  const auto error_of = [&](auto read) {
    JsonFields fields(object, "outer.");
    read(fields);
    return *fields.Finish();
  };
  EXPECT_EQ(error_of([](JsonFields& f) { f.Integer("big", 0, 9); }).status, 400);
  EXPECT_EQ(error_of([](JsonFields& f) { f.Integer("half", 0, 9); }).status, 400);
  EXPECT_EQ(error_of([](JsonFields& f) { f.Integer("i", 8, 9); }).status, 400);
  EXPECT_EQ(error_of([](JsonFields& f) { f.String("i"); }).status, 400);
  EXPECT_EQ(error_of([](JsonFields& f) { f.String("i"); }).param, "outer.i");
  EXPECT_EQ(error_of([](JsonFields& f) { f.Require("missing"); }).status, 400);
  EXPECT_EQ(error_of([](JsonFields& f) { f.Refuse("s", "no"); }).status, 400);
}

TEST(HttpJson, TextIsAlwaysUtf8) {
  EXPECT_EQ(ValidUtf8("a\xC3\xA4\xF0\x9F\x98\x80"), "a\xC3\xA4\xF0\x9F\x98\x80");
  EXPECT_EQ(ValidUtf8("\xC3"), "\xEF\xBF\xBD");
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80z"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(SseEvent("{}", "ping"), "event: ping\ndata: {}\n\n");
}

TEST(HttpJson, NumbersAreWrittenAsShortAsTheyCanBe) {
  const std::pair<json::value, const char*> cases[] = {
      {0.8, "0.8"},
      {DecimalOf(0.8F), "0.8"},
      {DecimalOf(1e-10F), "1e-10"},
      {DecimalOf(16777216), "16777216.0"},
      {DecimalOf(-1.5F), "-1.5"},
      {0.1 + 0.2, "0.30000000000000004"},
      {1.0, "1.0"},
      {-0.0, "-0.0"},
      {1e300, "1e+300"},
      {5e-324, "5e-324"},
      {std::numeric_limits<double>::infinity(), "null"},
      {DecimalOf(std::numeric_limits<float>::quiet_NaN()), "null"},
      {uint64_t{18446744073709551615U}, "18446744073709551615"},
      {int64_t{-7}, "-7"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(WriteJson(value), text);
}

TEST(HttpJson, WhatIsWrittenReadsAsTheSame) {
  for (const char* text : {"{}", "[]", "[[],{}]", R"({"a":[1,-2,0.5,true,false,null,"x"],"b":{"c":{}}})",
                           R"({"\"\\\n\t\u0001é😀":"\u0000/"})"}) {
    EXPECT_EQ(WriteJson(json::parse(text)), text);
  }
}

TEST(HttpErrors, HaveTheShapeOfTheirApi) {
  const ApiError error = Unprocessable("n is 0", "n");
  EXPECT_EQ(RenderJson(error, ApiStyle::kOpenAi),
            R"({"error":{"message":"n is 0","type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_EQ(RenderJson(error, ApiStyle::kAnthropic),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"n is 0"}})");
  const HttpResponse full = Render(FromStatus(ResourceExhausted("the queue is full")), ApiStyle::kOpenAi);
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(Render(FromStatus(ResourceExhausted("the queue is full")), ApiStyle::kAnthropic).status, 529);
  EXPECT_EQ(RenderJson(error, ApiStyle::kOllama), R"({"error":"n is 0"})");
  EXPECT_THAT(RenderJson(FromStatus(OutOfRange("7 tokens")), ApiStyle::kAnthropic),
              ::testing::HasSubstr("prompt is too long: 7"));
  EXPECT_EQ(full.headers.at(0), (std::pair<std::string, std::string>("retry-after", "1")));
}

TEST(HttpRouter, FindsPathsAndSaysWhichMethodsThereAre) {
  Router router;
  router.Add({.method = "GET", .path = "/a"});
  router.Add({.method = "POST", .path = "/a"});
  router.Add({.method = "GET", .path = "/assets/*"});
  EXPECT_EQ(router.Find("HEAD", "/a").route, &router.routes()[0]);
  EXPECT_EQ(router.Find("POST", "/a").route, &router.routes()[1]);
  EXPECT_EQ(router.Find("GET", "/assets/x.js").route, &router.routes()[2]);
  EXPECT_EQ(router.Find("DELETE", "/a").allow, "GET, HEAD, POST");
  EXPECT_EQ(router.Find("GET", "/b").route, nullptr);
  EXPECT_EQ(router.Find("GET", "/b").allow, "");
}

TEST(HttpExchange, WakesWhoeverWaits) {
  int woken = 0;
  Ask(
      [&](Exchange& x) -> Awaitable<void> {
        std::function<void()> wake = x.waker();
        wake();
        wake();
        Wake first = co_await x.Wait();
        woken += first == Wake::kWoken;
        Wake second = co_await x.Wait(After(std::chrono::milliseconds(1)));
        woken += second == Wake::kTimeout;
      },
      {});
  EXPECT_EQ(woken, 2);
}

}  // namespace
}  // namespace gyre::http
