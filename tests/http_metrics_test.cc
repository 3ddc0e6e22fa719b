// /metrics after requests to the demo model: the counts are exact.
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <thread>

#include "coordinator/http/metrics_routes.h"
#include "coordinator/http/trace_json.h"
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
    const auto answer = api_.Get(
        kComplete, std::string(R"({"model":"demo","temperature":0,"max_tokens":7,"speculative.n_max":0,"prompt":")") +
                       text + "\"}");
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
  // Workers tell their load some times a second; ReportLoads does it for those of this process.
  runtime_->ReportLoads();
  std::string told = Read();
  const double steps = Sample(after, "gyre_steps_total");
  const std::string count = "gyre_worker_step_duration_seconds_count{worker=\"local\"}";
  for (int i = 0; i < 4000 && Sample(told, count) < steps; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    runtime_->ReportLoads();
    told = Read();
  }
  EXPECT_EQ(Sample(told, count), Sample(told, "gyre_worker_steps_total{worker=\"local\"}"));
  EXPECT_GT(Sample(told, "gyre_worker_step_duration_seconds_sum{worker=\"local\"}"), 0);
  EXPECT_EQ(Sample(told, "gyre_link_rows_total{from=\"coordinator\",to=\"local\"}"), Sample(told, "gyre_rows_total"));
  EXPECT_GT(Sample(told, "gyre_link_bytes_total{from=\"coordinator\",to=\"local\"}"), 100);
  EXPECT_GT(Sample(told, "gyre_link_bytes_total{from=\"local\",to=\"coordinator\"}"), 100);
  EXPECT_GT(Sample(after, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(Sample(after, "process_cpu_seconds_total"), 0);
  EXPECT_GT(Sample(after, "process_open_fds"), 2);
  const double started = Sample(after, "process_start_time_seconds"), now = static_cast<double>(std::time(nullptr));
  EXPECT_LT(started, now + 2);
  EXPECT_GT(started, now - 3600);
}

// A ring within the process: both stages and the three links, with the one clock that there is.
TEST(HttpTrace, ARingWithinTheProcessIsTraced) {
  Tracer tracer;
  RuntimeOptions options;
  options.model = GYRE_DEMO_MODEL;
  options.threads = options.stages = 2;
  options.quiet = true;
  options.tracer = &tracer;
  const auto runtime = Runtime::Open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto run = [&runtime] {
    gyre::Request r;
    r.prompt = {1, 2, 3};
    r.max_new_tokens = 5;
    EXPECT_TRUE((*runtime)->service().Run(std::move(r), [](const Event&) {}, {}).ok());
  };
  run();
  (*runtime)->cluster().AskForTraces();  // nobody traces
  std::string text;
  {
    const Tracer::Session session(tracer);
    for (int i = 0; i < 2000; ++i) {
      (*runtime)->cluster().AskForTraces();
      run();
      text = TraceJson(session.Events(), session.Members());
      if (text.find("link to coordinator 1") != std::string::npos &&
          text.find("link to local-2 1") != std::string::npos)
        break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  for (const char* name :
       {"\"local-1\"", "\"local-2\"", "link to local-1 1", "link to local-2 1", "link to coordinator 1"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(text.find("clock known"), std::string::npos);
  // The steps of a stage lie within the step as the coordinator sees it.
  std::map<int64_t, std::pair<double, double>> steps;
  size_t stage_steps = 0;
  const json::value trace = json::parse(text);
  for (const json::value& e : trace.at("traceEvents").as_array()) {
    if (e.at("ph") != "X") continue;
    const double from = e.at("ts").to_number<double>(), to = from + e.at("dur").to_number<double>();
    const auto id = e.at_pointer("/args/step").to_number<int64_t>();
    if (e.at("cat") == "step") steps[id] = {from, to};
    if (e.at("cat") != "stage" || e.at("name") != "step" || steps.count(id) == 0) continue;
    EXPECT_GE(from, steps[id].first - 0.01);
    EXPECT_LE(to, steps[id].second + 0.01);
    ++stage_steps;
  }
  EXPECT_GE(stage_steps, 2u);
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
