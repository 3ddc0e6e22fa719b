// The routes of an API over a service: calls them without a connection and reads their answers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "boost/json.hpp"
#include "coordinator/http/api_context.h"
#include "coordinator/http/router.h"
#include "tests/testing/fake_exchange.h"

namespace gyre::http {

inline constexpr char kChat[] = "/v1/chat/completions", kComplete[] = "/v1/completions";

struct SseMessage {
  std::string event, data;
};

// The events of a stream; a line that is no field of an event fails the test.
inline std::vector<SseMessage> Events(std::string_view body) {
  std::vector<SseMessage> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end == std::string_view::npos) {
      ADD_FAILURE() << "the stream ends within an event: " << body;
      break;
    }
    std::string_view block = body.substr(0, end);
    body.remove_prefix(end + 2);
    if (block.substr(0, 1) == ":") continue;
    SseMessage message;
    if (block.substr(0, 7) == "event: ") {
      const size_t line = block.find('\n');
      message.event = std::string(block.substr(7, line - 7));
      block.remove_prefix(line + 1);
    }
    EXPECT_EQ(block.substr(0, 6), "data: ");
    EXPECT_EQ(block.find('\n'), std::string_view::npos);
    message.data = std::string(block.substr(6));
    out.push_back(std::move(message));
  }
  return out;
}

inline boost::json::value Json(std::string_view text) {
  boost::system::error_code error;
  boost::json::value value = boost::json::parse({text.data(), text.size()}, error);
  EXPECT_FALSE(error) << error.message() << ": " << text;
  return value;
}

// The value as text, so that a failure shows it.
inline std::string At(const boost::json::value& value, std::string_view pointer) {
  boost::system::error_code error;
  const boost::json::value* found = value.find_pointer({pointer.data(), pointer.size()}, error);
  if (found == nullptr) return "(absent)";
  if (found->is_string()) return std::string(found->get_string());
  return boost::json::serialize(*found);
}

class ApiCaller {
 public:
  explicit ApiCaller(Service& service) : context{.service = service} {
    context.models = {"demo", "other"};
    context.created = 1234;
    context.version = "9.9";
  }

  std::unique_ptr<FakeExchange> Call(const std::string& method, const std::string& path, const std::string& body,
                                     const std::function<void(FakeExchange&)>& prepare = {}) {
    HttpRequest request;
    request.id = "r" + std::to_string(++calls_);
    request.method = method;
    request.path = path;
    request.body = body;
    request.caller = caller;
    const Router::Match match = router.Find(method, path);
    if (match.route == nullptr) {
      ADD_FAILURE() << "no route for " << method << " " << path;
      return nullptr;
    }
    return Ask(match.route->handler, std::move(request), prepare);
  }
  std::unique_ptr<FakeExchange> Post(const std::string& path, const std::string& body) {
    auto exchange = Call("POST", path, body);
    EXPECT_EQ(exchange->answers, 1) << body;
    return exchange;
  }
  // The answer of a call that must succeed.
  boost::json::value Get(const std::string& path, const std::string& body) {
    const auto exchange = Post(path, body);
    EXPECT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    return Json(exchange->answer.body);
  }
  // The chunks of a stream that must end well, without its [DONE].
  std::vector<boost::json::value> Stream(const std::string& path, const std::string& body) {
    const auto exchange = Post(path, body);
    EXPECT_EQ(exchange->answer.status, 200) << exchange->answer.body;
    EXPECT_EQ(exchange->answer.content_type, "text/event-stream");
    std::vector<boost::json::value> chunks;
    bool done = false;
    for (const SseMessage& message : Events(exchange->answer.body)) {
      EXPECT_FALSE(done) << message.data;
      done = message.data == "[DONE]";
      if (!done) chunks.push_back(Json(message.data));
    }
    EXPECT_TRUE(done) << exchange->answer.body;
    return chunks;
  }

  ApiContext context;
  Router router;
  Caller caller;

 private:
  int calls_ = 0;
};

}  // namespace gyre::http
