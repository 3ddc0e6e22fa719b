#include "coordinator/http/trace_json.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace gyre {
namespace {

constexpr int kCoordinator = 1;  // the process in the trace; member n is 2 + n
constexpr int kStageLine = 1;    // the thread of a member; behind it, and behind the coordinator's steps, links
constexpr int kFirstLink = 1000;

class Writer {
 public:
  explicit Writer(Deadline start) : start_(start) {}

  double Micros(Deadline at) const { return std::chrono::duration<double, std::micro>(at - start_).count(); }
  void Name(std::string_view what, int tid, std::string_view name, int pid = kCoordinator) {
    Begin();
    fmt::format_to(std::back_inserter(out_), R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                   what, pid, tid, name);
  }
  void Span(int pid, int tid, std::string_view name, std::string_view category, Deadline begin, Duration took,
            const TraceEvent& step) {
    Begin();
    fmt::format_to(std::back_inserter(out_),
                   R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
                   R"("args":{{"step":{},"rows":{}}}}})",
                   name, category, pid, tid, Micros(begin), Micros(begin + took) - Micros(begin), step.id, step.rows);
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
    const TraceEvent& launched = it->second.launched;
    out->Span(kCoordinator, it->second.lane, failed ? "failed step" : "step", "step", launched.at, at - launched.at,
              launched);
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

// The members' computations, and the ways of the steps between them.
class Hops {
 public:
  explicit Hops(const std::vector<TraceMember>& members) : members_(members) {}
  void Take(const TraceEvent& e) {
    Path& path = paths_[e.id];
    if (e.kind == TraceKind::kStepLaunched) path.launched = e;
    if (e.kind == TraceKind::kStepLanded) path.landed = e.at;
    if (e.kind == TraceKind::kStageStep && e.member < members_.size()) path.stages.push_back(e);
  }
  void Write(Writer* out) {
    for (auto& [id, path] : paths_) Follow(&path, out);
    WriteLinks(out);
    for (size_t m = 0; m < members_.size(); ++m) {
      const double error = std::chrono::duration<double, std::micro>(members_[m].clock_error).count();
      const std::string clock = error > 0 ? fmt::format(" (clock known to {:.0f} us)", error) : "";
      out->Name("process_name", 0, members_[m].name + clock, Process(m));
      out->Name("thread_name", kStageLine, "stage", Process(m));
    }
  }

 private:
  struct Path {
    std::optional<TraceEvent> launched;
    std::optional<Deadline> landed;
    std::vector<TraceEvent> stages;
  };
  struct Way {
    Deadline begin, end;
    TraceEvent step;
  };
  static int Process(size_t member) { return static_cast<int>(member) + 2; }

  void Follow(Path* path, Writer* out) {
    std::sort(path->stages.begin(), path->stages.end(),
              [](const TraceEvent& a, const TraceEvent& b) { return a.stage < b.stage; });
    for (size_t i = 0; i < path->stages.size(); ++i) {
      const TraceEvent& e = path->stages[i];
      out->Span(Process(e.member), kStageLine, "step", "stage", e.at, e.computed, e);
      out->Span(Process(e.member), kStageLine, "send", "stage", e.at + e.computed, e.sent - e.computed, e);
      const Deadline left = e.at + e.computed;
      if (e.stage == 0 && path->launched) Go(kCoordinator, members_[e.member].name, path->launched->at, e.at, e);
      if (e.last && path->landed) Go(Process(e.member), "coordinator", left, *path->landed, e);
      if (i + 1 == path->stages.size() || path->stages[i + 1].stage != e.stage + 1) continue;
      const TraceEvent& next = path->stages[i + 1];
      Go(Process(e.member), members_[next.member].name, left, next.at, e);
    }
  }
  // The clocks of two machines may say that a step came before it left.
  void Go(int from, const std::string& to, Deadline left, Deadline came, const TraceEvent& step) {
    ways_[{from, to}].push_back({left, std::max(left, came), step});
  }
  // Several steps may be on one link at once: each lies in the first lane that is free.
  void WriteLinks(Writer* out) {
    std::map<int, int> next;  // thread, by process
    for (auto& [link, ways] : ways_) {
      const auto& [from, to] = link;
      std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.begin < b.begin; });
      std::vector<Deadline> free;
      const int base = next.try_emplace(from, kFirstLink).first->second;
      for (const Way& w : ways) {
        auto lane = std::find_if(free.begin(), free.end(), [&w](Deadline at) { return at <= w.begin; });
        if (lane == free.end()) lane = free.insert(lane, w.end);
        *lane = w.end;
        out->Span(from, base + static_cast<int>(lane - free.begin()), "way", "link", w.begin, w.end - w.begin, w.step);
      }
      for (size_t i = 0; i < free.size(); ++i) {
        out->Name("thread_name", base + static_cast<int>(i), fmt::format("link to {} {}", to, i + 1), from);
      }
      next[from] = base + static_cast<int>(free.size());
    }
  }

  const std::vector<TraceMember>& members_;
  std::map<uint64_t, Path> paths_;
  std::map<std::pair<int, std::string>, std::vector<Way>> ways_;
};

}  // namespace

std::string TraceJson(const std::vector<TraceEvent>& events, const std::vector<TraceMember>& members) {
  const auto first = std::min_element(events.begin(), events.end(),
                                      [](const TraceEvent& a, const TraceEvent& b) { return a.at < b.at; });
  Writer out(events.empty() ? Deadline{} : first->at);
  out.Name("process_name", 0, "coordinator");
  Hops hops(members);
  Deadline last = Deadline::min();
  Steps steps;
  Requests requests;
  for (const TraceEvent& e : events) {
    hops.Take(e);
    last = std::max(last, e.at + e.sent);
    switch (e.kind) {
      case TraceKind::kStepLaunched: steps.Launch(e); break;
      case TraceKind::kStepLanded:
      case TraceKind::kStepFailed: steps.End(e.id, e.at, e.kind == TraceKind::kStepFailed, &out); break;
      case TraceKind::kStageStep: break;
      default: OnRequest(e, &requests, &out);
    }
  }
  if (!events.empty()) {
    steps.EndAll(last, &out);
    while (!requests.empty()) {
      OnRequest({.kind = TraceKind::kRequestEnded, .id = requests.begin()->first, .at = last}, &requests, &out);
    }
  }
  hops.Write(&out);
  for (int lane = 1; lane <= steps.lanes(); ++lane) out.Name("thread_name", lane, fmt::format("steps {}", lane));
  return std::move(out).End();
}

}  // namespace gyre
