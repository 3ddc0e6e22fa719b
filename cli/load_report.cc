#include "cli/load_report.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <map>

#include "base/counted.h"
#include "cli/libraries.h"
#include "fmt/core.h"
#include "limits/machine_limits.h"

namespace gyre {
namespace {

namespace json = boost::json;

struct Memory {
  uint64_t weights = 0, kv = 0;        // as Gyre tells
  uint64_t resident = 0;               // by --pid, at the end
  uint64_t at_first = 0, longest = 0;  // by --pid
};

Memory MemoryOf(const LoadReport& r) {
  Memory m;
  if (r.cluster) {
    for (const v1::MemberStatus& member : r.cluster->status.members()) {
      if (!member.has_layers()) continue;
      m.weights += member.weight_bytes();
      m.kv += member.kv_bytes();
    }
  }
  if (r.memory.empty()) return m;
  m.at_first = r.memory.front().second;
  m.resident = r.memory.back().second;
  for (const auto& [at, bytes] : r.memory) m.longest = std::max(m.longest, bytes);
  return m;
}

std::string LoopOf(const LoadReport& r) {
  if (!r.plan.open_loop) return fmt::format("closed loop, {} at once", r.plan.at_once);
  if (r.options.load.rate > 0 && r.options.trace_file.empty()) {
    return fmt::format("open loop, {} arrivals a second, at most {} at once", r.options.load.rate, r.plan.at_once);
  }
  return fmt::format("open loop, as the trace says, at most {} at once", r.plan.at_once);
}

std::string PromptsOf(const LoadDialect& d) {
  if (d.vocab > 0) return "token ids";
  return fmt::format("words ({:.2f} tokens each, {:.0f} beside)", d.tokens_per_word, d.tokens_beside);
}

std::string Line(const char* name, const Spread& s) {
  if (s.count == 0) return "";
  return fmt::format("{:<22} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n", name, s.mean * 1e3, s.p50 * 1e3,
                     s.p95 * 1e3, s.p99 * 1e3, s.longest * 1e3);
}

std::map<std::string, size_t> ErrorsOf(const LoadReport& r) {
  std::map<std::string, size_t> out;
  for (const LoadRecord& record : r.records) {
    if (!record.status.ok()) ++out[Message(record.status)];
  }
  return out;
}

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string MemoryLines(const LoadReport& r) {
  const Memory m = MemoryOf(r);
  std::string out;
  if (m.weights > 0) out += fmt::format("memory: weights {:.1f} MiB, KV cache {:.1f} MiB", Mib(m.weights), Mib(m.kv));
  if (m.resident > 0) {
    out += out.empty() ? "memory: " : ", ";
    const uint64_t known = m.weights + m.kv;
    if (m.weights > 0 && m.resident > known) out += fmt::format("other {:.1f} MiB; ", Mib(m.resident - known));
    out += fmt::format("process {:.1f} MiB, {:.1f} before, {:.1f} at most", Mib(m.resident), Mib(m.at_first),
                       Mib(m.longest));
  }
  return out.empty() ? out : out + "\n";
}

json::object JsonOf(const Spread& s) {
  return {{"count", s.count},      {"mean_ms", s.mean * 1e3}, {"p50_ms", s.p50 * 1e3},
          {"p95_ms", s.p95 * 1e3}, {"p99_ms", s.p99 * 1e3},   {"max_ms", s.longest * 1e3}};
}

json::object FlagsOf(const BenchServeOptions& o) {
  return {{"url", o.url},
          {"workload", o.trace_file.empty() ? o.load.workload : ""},
          {"trace_file", o.trace_file},
          {"requests", o.load.requests},
          {"concurrency", o.load.at_once},
          {"rate", o.load.rate},
          {"scale", o.load.scale},
          {"seed", o.load.seed},
          {"lead", o.load.lead},
          {"duration", o.duration},
          {"chat", o.chat},
          {"ids", o.ids},
          {"vocab", o.vocab},
          {"idle", o.idle},
          {"starvation", o.starvation},
          {"timeout", o.timeout},
          {"model_id", o.model_id},
          {"pid", o.pid}};
}

json::object SummaryOf(const LoadReport& r) {
  const LoadSummary& s = r.summary;
  json::object out{{"requests", s.requests},
                   {"failed", s.failed},
                   {"short_answers", s.short_answers},
                   {"uncounted", s.uncounted},
                   {"seconds", s.seconds},
                   {"prompt_tokens", s.prompt_tokens},
                   {"cached_tokens", s.cached_tokens},
                   {"generated_tokens", s.generated_tokens},
                   {"events", s.events},
                   {"tokens_per_s", s.tokens_per_second},
                   {"prompt_tokens_per_s", s.prompt_tokens_per_second},
                   {"to_first_token", JsonOf(s.to_first_token)},
                   {"between_tokens", JsonOf(s.between_tokens)},
                   {"latency", JsonOf(s.latency)},
                   {"first_to_first_token_ms", s.first_to_first_token * 1e3},
                   {"followers_to_first_token", JsonOf(s.followers_to_first_token)}};
  if (s.queue.count > 0) out["queue"] = JsonOf(s.queue);
  if (r.queue.mean >= 0) {
    const auto ms = [](double seconds) {
      return std::isfinite(seconds) && seconds >= 0 ? json::value(seconds * 1e3) : json::value();
    };
    out["mean_queue_ms"] = ms(r.queue.mean);
    out["queue_at_most_ms"] =
        json::object{{"p50", ms(r.queue.p50)}, {"p95", ms(r.queue.p95)}, {"p99", ms(r.queue.p99)}};
  }
  json::array starvation;
  for (const Starvation& gap : s.starvation) {
    starvation.push_back(
        json::object{{"request", gap.request}, {"from", gap.from}, {"to", gap.to}, {"others", gap.others}});
  }
  out["starvation"] = std::move(starvation);
  out["longest_wait_ms"] = s.longest_wait * 1e3;
  json::object errors;
  for (const auto& [message, count] : ErrorsOf(r)) errors[message] = count;
  out["errors"] = std::move(errors);
  return out;
}

json::object MemoryJson(const LoadReport& r) {
  const Memory m = MemoryOf(r);
  json::object out;
  if (m.weights > 0) {
    out["weights"] = m.weights;
    out["kv"] = m.kv;
  }
  if (m.resident > 0) {
    out["process"] = m.resident;
    if (m.resident > m.weights + m.kv) out["other"] = m.resident - m.weights - m.kv;
    json::array samples;
    for (const auto& [at, bytes] : r.memory) samples.push_back(json::array{at, bytes});
    out["samples"] = std::move(samples);
  }
  return out;
}

// "; started with --policy fcfs --kv-reserve"
std::string FlagsText(const ServerCluster& cluster) {
  std::string out;
  for (const auto& [name, value] : cluster.flags) out += " --" + name + (value == "true" ? "" : " " + value);
  return out.empty() ? out : "; started with" + out;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("&#{};", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

// The step of a scale: 1, 2 or 5 times a power of ten, such that there are about eight.
double StepOf(double span) {
  double step = 1e-3;
  for (int i = 0; span / step > 10; ++i) step *= i % 3 == 1 ? 2.5 : 2;
  return step;
}

}  // namespace

std::string ReportTable(const LoadReport& r) {
  const LoadSummary& s = r.summary;
  std::string out = fmt::format("{}: {}\n", r.url, r.model.id);
  if (r.cluster) {
    out +=
        fmt::format("gyre {}: {}{}\n", r.cluster->status.version(), r.cluster->status.ranges(), FlagsText(*r.cluster));
  }
  out += fmt::format("{}: {}, {}; prompts of {}; lengths × {}, seed {}\n",
                     r.options.trace_file.empty() ? r.options.load.workload : r.options.trace_file,
                     Counted(s.requests, "request"), LoopOf(r), PromptsOf(r.dialect), r.options.load.scale,
                     r.options.load.seed);
  out += fmt::format("measured from {}; gyre {}\n\n", bench::MachineText(), r.options.version);
  out += fmt::format("{:<22} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "P50", "P95", "P99", "longest");
  out += Line("first token", s.to_first_token);
  if (r.plan.lead || r.options.load.workload == "prefix")
    out += Line("first token, followers", s.followers_to_first_token);
  out += Line("between tokens", s.between_tokens);
  out += Line("whole answer", s.latency);
  out += Line("queue", s.queue);
  if (s.queue.count == 0 && r.queue.mean >= 0) {
    out += fmt::format("{:<22} {:>10.1f}", "queue", r.queue.mean * 1e3);
    for (const double at_most : {r.queue.p50, r.queue.p95, r.queue.p99}) {
      if (at_most >= 0) out += fmt::format(" {:>10.1f}", at_most * 1e3);
    }
    out += "   (by the server's metrics; percentiles are bounds of its histogram)\n";
  }
  if (r.plan.lead) out += fmt::format("\nthe first request's first token: {:.1f} ms\n", s.first_to_first_token * 1e3);
  out += fmt::format("\noutput {:.1f} tokens/s ({} in {:.2f} s); prompts {:.1f} tokens/s, {} of {} from the cache\n",
                     s.tokens_per_second, s.generated_tokens, s.seconds, s.prompt_tokens_per_second, s.cached_tokens,
                     s.prompt_tokens);
  out += fmt::format("starvation: {} over {} s while others got tokens\n", Counted(s.starvation.size(), "gap"),
                     r.options.starvation);
  out += fmt::format("the longest wait of a request while others got tokens: {:.1f} ms\n", s.longest_wait * 1e3);
  out += MemoryLines(r);
  if (r.options.idle > 0) {
    out += fmt::format("idle connections: {}, of which the server closed {}\n", r.options.idle, r.idle_closed);
  }
  if (s.short_answers > 0)
    out += fmt::format("{} another number of tokens than asked for\n",
                       Counted(s.short_answers, "answer has", "answers have"));
  if (s.uncounted > 0)
    out += fmt::format("{} without usage: tokens are counted by events there\n",
                       Counted(s.uncounted, "answer came", "answers came"));
  for (const auto& [message, count] : ErrorsOf(r))
    out += fmt::format("failed {}: {}\n", count == 1 ? "once" : fmt::format("{} times", count), message);
  return out;
}

std::string ReportJson(const LoadReport& r) {
  json::object model{{"id", r.model.id}};
  if (!r.model.hash.empty()) model["hash"] = r.model.hash;
  if (r.model.context > 0) model["context"] = r.model.context;
  if (r.model.vocab > 0) model["vocab"] = r.model.vocab;
  json::object out{{"bench", "serve"},
                   {"version", r.options.version},
                   {"machine", json::parse(bench::DescribeMachine())},
                   {"libraries", LibrariesJson()},
                   {"flags", FlagsOf(r.options)},
                   {"model", std::move(model)},
                   {"loop", r.plan.open_loop ? "open" : "closed"},
                   {"at_once", r.plan.at_once},
                   {"ignore_eos", r.dialect.ignore_eos},
                   {"min_tokens", r.dialect.min_tokens},
                   {"tokens_per_word", r.dialect.tokens_per_word},
                   {"summary", SummaryOf(r)},
                   {"memory", MemoryJson(r)},
                   {"idle_closed", r.idle_closed}};
  if (r.cluster) {
    json::object server{{"version", r.cluster->status.version()}, {"ranges", r.cluster->status.ranges()}};
    json::object flags;
    for (const auto& [name, value] : r.cluster->flags) flags[name] = value;
    server["flags"] = std::move(flags);
    if (!r.cluster->model_json.empty()) server["model"] = json::parse(r.cluster->model_json);
    out["server"] = std::move(server);
  }
  json::array requests;
  for (const LoadRecord& record : r.records) {
    json::object o{{"due", record.due},
                   {"sent", record.sent},
                   {"ended", record.ended},
                   {"prompt_tokens", record.prompt_tokens},
                   {"cached_tokens", record.cached_tokens},
                   {"generated_tokens", record.generated_tokens},
                   {"asked", record.asked}};
    if (!record.tokens_at.empty()) o["first_token"] = record.tokens_at.front();
    if (!record.status.ok()) o["error"] = Message(record.status);
    requests.push_back(std::move(o));
  }
  out["requests"] = std::move(requests);
  return json::serialize(out) + "\n";
}

std::string ReportSvg(const LoadReport& r) {
  constexpr double kWidth = 900, kLeft = 40, kTop = 64, kBottom = 40;
  const double bar = std::clamp(600.0 / static_cast<double>(std::max<size_t>(r.records.size(), 1)), 1.0, 14.0);
  const double height = bar * static_cast<double>(r.records.size());
  double end = 1e-3;
  for (const LoadRecord& record : r.records) end = std::max(end, record.ended);
  auto x = [&](double seconds) { return kLeft + seconds / end * kWidth; };
  const LoadSummary& s = r.summary;
  const std::string title = fmt::format("{}: {}, {}", r.model.id, Counted(s.requests, "request"), LoopOf(r));
  const std::string about = fmt::format(
      "{:.1f} tokens/s; first token P50 {:.0f} ms, P99 {:.0f} ms; between tokens P50 {:.1f} ms, P99 {:.1f} ms",
      s.tokens_per_second, s.to_first_token.p50 * 1e3, s.to_first_token.p99 * 1e3, s.between_tokens.p50 * 1e3,
      s.between_tokens.p99 * 1e3);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "role=\"img\" aria-labelledby=\"title desc\" font-family=\"DejaVu Sans, Verdana, Arial, sans-serif\" "
      "font-size=\"12\"><title id=\"title\">{2}</title><desc id=\"desc\">{3}</desc>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{4:.0f}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{2}</text>\n"
      "<text x=\"{4:.0f}\" y=\"38\">{3}</text>\n"
      "<text x=\"{4:.0f}\" y=\"56\">light: up to the first token; dark: the answer; red: failed</text>\n",
      kWidth + 2 * kLeft, height + kTop + kBottom, Escaped(title), Escaped(about), kLeft);
  const double step = StepOf(end);
  for (double at = 0; at <= end; at += step) {
    out += fmt::format(
        "<path d=\"M{0:.1f},{1:.0f} V{2:.1f}\" stroke=\"#ccc\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" "
        "text-anchor=\"middle\">{4:g} s</text>\n",
        x(at), kTop, kTop + height, kTop + height + 18, at);
  }
  for (size_t i = 0; i < r.records.size(); ++i) {
    const LoadRecord& record = r.records[i];
    const double y = kTop + bar * static_cast<double>(i);
    auto rect = [&](double from, double to, const char* colour) {
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x(from),
                         y, std::max(0.5, x(to) - x(from)), std::max(0.8, bar - 1), colour);
    };
    const double first = record.tokens_at.empty() ? record.ended : record.tokens_at.front();
    rect(record.due, first, record.ok() ? "#9ad1f0" : "#b00020");
    if (first < record.ended) rect(first, record.ended, record.ok() ? "#0b3c5d" : "#b00020");
  }
  return out + "</svg>\n";
}

}  // namespace gyre
