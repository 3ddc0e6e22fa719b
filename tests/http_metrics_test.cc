// /metrics after requests to the demo model: the counts are exact.
#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "coordinator/http/metrics_routes.h"
#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

// The sample `name`, labels included; -1: there is none.
double Sample(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

class HttpMetrics : public OpenAiRig {
 protected:
  HttpMetrics() {
    api_.context.engine_stats = [] { return runtime_->engine().stats(); };
    api_.context.cluster = &runtime_->cluster();
    AddMetricsRoutes(api_.router, api_.context);
  }
  std::string Read() {
    const auto e = api_.Call("GET", "/metrics", "");
    EXPECT_EQ(e->answer.status, 200);
    EXPECT_EQ(e->answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
    return e->answer.body;
  }
  // When so many requests have ended: the engine shows its counters after it has handed the last event over.
  std::string ReadAfter(double finished) {
    std::string text = Read();
    for (int i = 0; i < 4000 && Sample(text, "gyre_requests_ended_total{outcome=\"finished\"}") < finished; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      text = Read();
    }
    return text;
  }
};

TEST_F(HttpMetrics, CountsWhatRequestsTook) {
  const std::string before = ReadAfter(0);
  double prompt = 0, generated = 0, cached = 0;
  for (const char* text : {"What is Gyre?", "What is Gyre? And what is it not, and why?", "What is Gyre?"}) {
    const auto answer =
        api_.Get(kComplete, std::string(R"({"model":"demo","temperature":0,"max_tokens":7,"prompt":")") + text + "\"}");
    prompt += std::stod(At(answer, "/usage/prompt_tokens"));
    generated += std::stod(At(answer, "/usage/completion_tokens"));
    cached += std::stod(At(answer, "/usage/prompt_tokens_details/cached_tokens"));
  }
  const std::string after = ReadAfter(Sample(before, "gyre_requests_ended_total{outcome=\"finished\"}") + 3);
  auto grown = [&](const std::string& name) {
    EXPECT_GE(Sample(before, name), 0) << name;
    return Sample(after, name) - Sample(before, name);
  };
  EXPECT_EQ(grown("gyre_requests_total"), 3);
  EXPECT_EQ(grown("gyre_requests_ended_total{outcome=\"finished\"}"), 3);
  EXPECT_EQ(grown("gyre_requests_ended_total{outcome=\"failed\"}"), 0);
  EXPECT_GT(generated, 6);
  EXPECT_EQ(grown("gyre_tokens_generated_total"), generated);
  EXPECT_EQ(grown("gyre_prompt_tokens_total"), prompt);
  EXPECT_EQ(grown("gyre_prompt_tokens_cached_total"), cached);
  EXPECT_EQ(grown("gyre_prompt_tokens_computed_total"), prompt - cached);
  EXPECT_EQ(grown("gyre_rows_total"), prompt - cached + generated - 3) << "a last token is not computed";
  EXPECT_EQ(grown("gyre_time_to_first_token_seconds_count"), 3);
  EXPECT_EQ(grown("gyre_inter_token_seconds_count"), generated - 3);
  EXPECT_EQ(grown("gyre_queue_seconds_count"), 3);
  EXPECT_EQ(grown("gyre_request_seconds_count"), 3);
  EXPECT_EQ(grown("gyre_request_seconds_bucket{le=\"+Inf\"}"), 3);
  EXPECT_GE(grown("gyre_request_seconds_sum"), grown("gyre_time_to_first_token_seconds_sum"));
  EXPECT_GT(grown("gyre_inter_token_seconds_sum"), 0);
  EXPECT_EQ(Sample(after, "gyre_sequences{state=\"decode\"}"), 0);
  EXPECT_EQ(Sample(after, "gyre_serving"), 1);
  EXPECT_EQ(Sample(after, "gyre_workers{state=\"serving\"}"), 1);
  EXPECT_GT(Sample(after, "gyre_worker_layers{worker=\"local\"}"), 0) << after;
  EXPECT_GT(Sample(after, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(Sample(after, "process_cpu_seconds_total"), 0);
  EXPECT_GT(Sample(after, "process_open_fds"), 2);
  const double started = Sample(after, "process_start_time_seconds"), now = static_cast<double>(std::time(nullptr));
  EXPECT_LT(started, now + 2);
  EXPECT_GT(started, now - 3600);
}

TEST_F(HttpMetrics, NeedsAKeyUnlessItIsOpen) {
  EXPECT_EQ(api_.router.Find("GET", "/metrics").route->role, Role::kUser);
  api_.context.metrics_open = true;
  Router open;
  AddMetricsRoutes(open, api_.context);
  EXPECT_EQ(open.Find("GET", "/metrics").route->role, Role::kAnyone);
}

}  // namespace
}  // namespace gyre::http
