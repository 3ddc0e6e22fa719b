#include "coordinator/trace_json.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "fmt/format.h"

namespace gyre {
namespace {

constexpr int kCoordinator = 1;  // the process in the trace

class Writer {
 public:
  explicit Writer(Deadline start) : start_(start) {}

  double Micros(Deadline at) const { return std::chrono::duration<double, std::micro>(at - start_).count(); }
  void Name(std::string_view what, int tid, std::string_view name) {
    Begin();
    fmt::format_to(std::back_inserter(out_), R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   what, kCoordinator, tid, name);
  }
  void Step(int lane, const TraceEvent& launched, Deadline end, bool failed) {
    Begin();
    fmt::format_to(std::back_inserter(out_),
                   R"({{"ph":"X","name":"{}","cat":"step","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
                   R"("args":{{"step":{},"rows":{}}}}})",
                   failed ? "failed step" : "step", kCoordinator, lane, Micros(launched.at),
                   Micros(end) - Micros(launched.at), launched.id, launched.rows);
  }
  // `phase`: b, n or e.
  void Async(char phase, std::string_view name, uint64_t request, Deadline at) {
    Begin();
    fmt::format_to(
        std::back_inserter(out_),
        R"({{"ph":"{}","name":"{}","cat":"request","id":{},"pid":{},"tid":0,"ts":{:.3f},"args":{{"request":{}}}}})",
        phase, name, request, kCoordinator, Micros(at), request);
  }
  std::string End() && { return std::move(out_) + "\n]}\n"; }

 private:
  void Begin() {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }
  const Deadline start_;
  bool first_ = true;
  std::string out_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
};

struct OpenStep {
  TraceEvent launched;
  int lane = 1;
};

// Steps overlap where the ring has several stages; spans of one lane must not.
class Steps {
 public:
  void Launch(const TraceEvent& e) {
    auto free = std::find(busy_.begin(), busy_.end(), false);
    if (free == busy_.end()) free = busy_.insert(free, false);
    *free = true;
    open_[e.id] = {e, static_cast<int>(free - busy_.begin()) + 1};
  }
  void End(uint64_t step, Deadline at, bool failed, Writer* out) {
    const auto it = open_.find(step);
    if (it == open_.end()) return;
    out->Step(it->second.lane, it->second.launched, at, failed);
    busy_[static_cast<size_t>(it->second.lane) - 1] = false;
    open_.erase(it);
  }
  void EndAll(Deadline at, Writer* out) {
    while (!open_.empty()) End(open_.begin()->first, at, false, out);
  }
  int lanes() const { return static_cast<int>(busy_.size()); }

 private:
  std::vector<bool> busy_;
  std::map<uint64_t, OpenStep> open_;
};

// Values: whether its first rows were launched.
using Requests = std::map<uint64_t, bool>;

void OnRequest(const TraceEvent& e, Requests* open, Writer* out) {
  const auto it = open->find(e.id);
  if (e.kind == TraceKind::kRequestCame) {
    out->Async('b', "request", e.id, e.at);
    out->Async('b', "wait", e.id, e.at);
    (*open)[e.id] = false;
    return;
  }
  if (it == open->end()) return;
  if (!it->second && e.kind != TraceKind::kRequestAnswered) {
    out->Async('e', "wait", e.id, e.at);
    it->second = true;
  }
  if (e.kind == TraceKind::kRequestAnswered) out->Async('n', "first token", e.id, e.at);
  if (e.kind == TraceKind::kRequestEnded) {
    out->Async('e', "request", e.id, e.at);
    open->erase(it);
  }
}

}  // namespace

std::string TraceJson(const std::vector<TraceEvent>& events) {
  Writer out(events.empty() ? Deadline{} : events.front().at);
  out.Name("process_name", 0, "coordinator");
  Steps steps;
  Requests requests;
  for (const TraceEvent& e : events) {
    switch (e.kind) {
      case TraceKind::kStepLaunched: steps.Launch(e); break;
      case TraceKind::kStepLanded:
      case TraceKind::kStepFailed: steps.End(e.id, e.at, e.kind == TraceKind::kStepFailed, &out); break;
      default: OnRequest(e, &requests, &out);
    }
  }
  if (!events.empty()) {
    const Deadline last = events.back().at;
    steps.EndAll(last, &out);
    while (!requests.empty()) {
      OnRequest({.kind = TraceKind::kRequestEnded, .id = requests.begin()->first, .at = last}, &requests, &out);
    }
  }
  for (int lane = 1; lane <= steps.lanes(); ++lane) out.Name("thread_name", lane, fmt::format("steps {}", lane));
  return std::move(out).End();
}

}  // namespace gyre
