// A small server with OpenAI's API: answers of exactly max_tokens words, and behaviour that a test chooses.
#pragma once

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/http_peer.h"

namespace gyre::testing {

struct OpenAiBehaviour {
  std::vector<std::string> refused;  // fields that give 422
  std::chrono::milliseconds before_first{0}, between{0};
  bool usage = true;
  int stops_after = 1 << 30;  // tokens, unless ignore_eos or min_tokens is given
  std::string cluster;        // the JSON of GET /v1/cluster; "" = 404
  // Called for each request to generate; returns true if it has answered.
  std::function<bool(HttpPeer::Call&, const boost::json::object&)> instead;
};

class OpenAiPeer {
 public:
  explicit OpenAiPeer(OpenAiBehaviour behaviour = {}, const Certificate* certificate = nullptr)
      : behaviour_(std::move(behaviour)), peer_([this](HttpPeer::Call& call) { Answer(call); }, certificate) {}

  std::string url() const { return peer_.url(); }
  const HttpPeer& peer() const { return peer_; }
  int most_at_once() const { return most_; }
  // Bodies of the requests to generate, in the order in which they came.
  std::vector<boost::json::object> bodies() const {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }
  std::vector<std::string> resizes() const {
    const std::lock_guard lock(mutex_);
    return resizes_;
  }

 private:
  void Answer(HttpPeer::Call& call) {
    if (call.target == "/v1/models") {
      call.Respond(200, R"({"object":"list","data":[{"id":"tiny","object":"model","meta":{"n_vocab":512}}]})");
    } else if (call.target == "/v1/cluster" && !behaviour_.cluster.empty()) {
      call.Respond(200, behaviour_.cluster);
    } else if (call.target == "/v1/cluster/resize" && !behaviour_.cluster.empty()) {
      const std::lock_guard lock(mutex_);
      resizes_.push_back(call.body);
      call.Respond(200,
                   R"({"plan":4,"ranges":"a=0-3,b=4-7","dry_run":false,"moves":[],"took_ms":12.0,"pages_moved":3})");
    } else if (call.method == "POST" && (call.target == "/v1/completions" || call.target == "/v1/chat/completions")) {
      Generate(call);
    } else {
      call.Respond(404, R"({"error":{"message":"there is nothing here","type":"not_found_error"}})");
    }
  }

  static uint32_t Words(const boost::json::object& o) {
    if (const auto* prompt = o.if_contains("prompt"); prompt != nullptr && prompt->is_array()) {
      return static_cast<uint32_t>(prompt->get_array().size());
    }
    const bool chat = o.contains("messages");
    uint32_t words = chat ? 7 : 1;  // what a template or a begin token adds
    const boost::json::value& text = chat ? o.at("messages").as_array().back().at("content") : o.at("prompt");
    for (char c : text.as_string()) words += c == ' ' ? 2 : 0;
    return words + 2;  // two tokens a word
  }

  void Generate(HttpPeer::Call& call) {
    const boost::json::object o = boost::json::parse(call.body).as_object();
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(o);
    }
    for (const std::string& field : behaviour_.refused) {
      if (o.contains(field)) {
        call.Respond(422,
                     R"({"error":{"message":"')" + field + R"(' is not supported","type":"invalid_request_error"}})");
        return;
      }
    }
    if (behaviour_.instead && behaviour_.instead(call, o)) return;
    const int now = ++running_;
    for (int most = most_; now > most && !most_.compare_exchange_weak(most, now);) {
    }
    Stream(call, o);
    --running_;
  }

  void Stream(HttpPeer::Call& call, const boost::json::object& o) {
    const bool chat = o.contains("messages");
    int tokens = o.contains("max_tokens") ? static_cast<int>(o.at("max_tokens").to_number<int64_t>()) : 5;
    if (!o.contains("ignore_eos") && !o.contains("min_tokens")) tokens = std::min(tokens, behaviour_.stops_after);
    auto event = [&](const std::string& part, const char* finish) {
      return call.Event(fmt::format(
          R"({{"id":"x","object":"y","choices":[{{"index":0,{},"finish_reason":{}}}],"usage":null}})", part, finish));
    };
    call.BeginStream();
    if (chat) event(R"("delta":{"role":"assistant","content":""})", "null");
    std::this_thread::sleep_for(behaviour_.before_first);
    for (int i = 0; i < tokens; ++i) {
      if (i > 0) std::this_thread::sleep_for(behaviour_.between);
      const std::string text = fmt::format("w{} ", i);
      if (!event(chat ? R"("delta":{"content":")" + text + "\"}" : "\"text\":\"" + text + "\"", "null")) return;
    }
    event(chat ? "\"delta\":{}" : "\"text\":\"\"", "\"length\"");
    if (behaviour_.usage) {
      call.Event(fmt::format(
          R"({{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":3}}}}}})",
          Words(o), tokens));
    }
    call.Event("[DONE]");
    call.EndStream();
  }

  const OpenAiBehaviour behaviour_;
  mutable std::mutex mutex_;
  std::vector<boost::json::object> bodies_;
  std::vector<std::string> resizes_;
  std::atomic<int> running_{0}, most_{0};
  HttpPeer peer_;
};

}  // namespace gyre::testing
