#include "client/load_plan.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>

namespace gyre {
namespace {

namespace json = boost::json;

constexpr size_t kMaxRequests = 1000000;
constexpr uint32_t kMaxTokens = 1 << 24;

// A hash of two numbers: splitmix64.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15u + b + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// In (0, 1].
double Fraction(uint64_t bits) { return (static_cast<double>(bits >> 11) + 1) / 9007199254740992.0; }

uint32_t Between(uint64_t bits, uint32_t low, uint32_t high) {
  return low + static_cast<uint32_t>(bits % (uint64_t{high} - low + 1));
}

uint32_t Scaled(double tokens, double scale) {
  return static_cast<uint32_t>(std::clamp(std::llround(tokens * scale), 1LL, static_cast<long long>(kMaxTokens)));
}

Duration Seconds(double s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); }

// Words that are one token, with the space before them, for most tokenizers.
constexpr std::array<const char*, 64> kWords = {
    "time",  "year",   "people", "way",     "day",     "man",     "thing",    "woman",   "life",       "child",
    "world", "school", "state",  "family",  "student", "group",   "country",  "problem", "hand",       "part",
    "place", "case",   "week",   "company", "system",  "program", "question", "work",    "government", "number",
    "night", "point",  "home",   "water",   "room",    "mother",  "area",     "money",   "story",      "fact",
    "month", "lot",    "right",  "study",   "book",    "eye",     "job",      "word",    "business",   "issue",
    "side",  "kind",   "head",   "house",   "service", "friend",  "father",   "power",   "hour",       "game",
    "line",  "end",    "member", "law"};

// The number from which position `i` of the prompt is made. The shared beginning does not depend on the salt.
uint64_t BitsAt(const LoadRequest& r, uint64_t seed, uint32_t i, uint32_t shared) {
  return Mix(Mix(seed, i < shared ? 0 : r.salt + 1), i);
}

void AddPoisson(const LoadOptions& o, LoadPlan* plan) {
  if (o.rate <= 0) return;
  plan->open_loop = true;
  double at = 0;
  for (size_t i = 0; i < plan->requests.size(); ++i) {
    plan->requests[i].due = Seconds(at);
    at -= std::log(Fraction(Mix(o.seed ^ 0xA221, i))) / o.rate;
  }
}

StatusOr<LoadRequest> ParseLine(const std::string& text, size_t number, double scale) {
  json::error_code error;
  const json::value v = json::parse(text, error);
  if (error || !v.is_object()) return InvalidArgument("line {}: expected a JSON object", number);
  const json::object& o = v.get_object();
  Status wrong;
  auto field = [&](std::initializer_list<const char*> names, double otherwise, double high) {
    for (const char* name : names) {
      const json::value* f = o.if_contains(name);
      if (f == nullptr) continue;
      const double value = f->is_number() ? f->to_number<double>() : -1;
      if (value >= 0 && value <= high) return value;
      wrong =
          InvalidArgument("line {}: {} is {}, expected a number from 0 to {}", number, name, json::serialize(*f), high);
    }
    return otherwise;
  };
  LoadRequest r;
  const double ms = field({"timestamp"}, -1, 1e12);
  r.due = Seconds(field({"at"}, ms < 0 ? 0 : ms / 1000, 1e9));
  const double prompt = field({"prompt_tokens", "input_length"}, 0, kMaxTokens);
  const double generate = field({"max_tokens", "output_length"}, 0, kMaxTokens);
  r.shared = static_cast<uint32_t>(field({"shared_tokens"}, 0, kMaxTokens) * scale);
  if (const json::value* p = o.if_contains("prompt"); p != nullptr && p->is_string())
    r.text = std::string(p->get_string());
  GYRE_RETURN_IF_ERROR(wrong);
  if (prompt < 1 && r.text.empty()) return InvalidArgument("line {}: no prompt_tokens and no prompt", number);
  if (generate < 1) return InvalidArgument("line {}: no max_tokens", number);
  r.prompt = Scaled(prompt, scale);
  r.generate = Scaled(generate, scale);
  r.shared = std::min(r.shared, r.prompt);
  r.salt = number;
  return r;
}

}  // namespace

StatusOr<LoadPlan> PlanLoad(const LoadOptions& o) {
  const bool single = o.workload == "single", mixed = o.workload == "mixed";
  if (!single && !mixed && o.workload != "prefix") {
    return InvalidArgument("there is no workload '{}', expected single, mixed or prefix", o.workload);
  }
  LoadPlan plan{.at_once = o.at_once > 0 ? o.at_once : single ? 1u : 16u, .lead = o.lead};
  const uint32_t count = o.requests > 0 ? o.requests : plan.at_once;
  for (uint32_t i = 0; i < count; ++i) {
    LoadRequest r{.salt = i};
    if (single) {
      r.prompt = Scaled(256, o.scale);
      r.generate = Scaled(256, o.scale);
    } else if (mixed) {
      r.prompt = Scaled(Between(Mix(o.seed ^ 0x11, i), 32, 1024), o.scale);
      r.generate = Scaled(Between(Mix(o.seed ^ 0x22, i), 64, 256), o.scale);
    } else {
      r.shared = Scaled(1024, o.scale);
      r.prompt = r.shared + Scaled(32, o.scale);
      r.generate = Scaled(64, o.scale);
    }
    plan.requests.push_back(std::move(r));
  }
  AddPoisson(o, &plan);
  if (plan.open_loop && o.at_once == 0) plan.at_once = 1000;
  return plan;
}

StatusOr<LoadPlan> PlanTrace(const std::string& lines, const LoadOptions& o) {
  LoadPlan plan{.open_loop = true, .at_once = o.at_once > 0 ? o.at_once : 1000, .lead = o.lead};
  size_t number = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (o.requests > 0 && plan.requests.size() == o.requests) break;
    if (plan.requests.size() == kMaxRequests) return InvalidArgument("more than {} requests", kMaxRequests);
    GYRE_ASSIGN_OR_RETURN(plan.requests.emplace_back(), ParseLine(line, number, o.scale));
  }
  if (plan.requests.empty()) return InvalidArgument("it has no request");
  std::stable_sort(plan.requests.begin(), plan.requests.end(),
                   [](const LoadRequest& a, const LoadRequest& b) { return a.due < b.due; });
  const Duration first = plan.requests.front().due, span = plan.requests.back().due - first;
  const double seconds = std::chrono::duration<double>(span).count();
  const double wanted = o.rate > 0 ? static_cast<double>(plan.requests.size() - 1) / o.rate : seconds;
  const double stretch = seconds > 0 ? wanted / seconds : 1;
  for (LoadRequest& r : plan.requests) {
    r.due = std::chrono::duration_cast<Duration>((r.due - first) * stretch);
  }
  return plan;
}

std::vector<TokenId> PromptOfIds(const LoadRequest& r, uint64_t seed, int vocab) {
  const int low = vocab / 8, count = std::max(1, vocab - 2 * low);
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < r.prompt; ++i) {
    ids.push_back(low + static_cast<TokenId>(BitsAt(r, seed, i, r.shared) % static_cast<uint64_t>(count)));
  }
  return ids;
}

std::string PromptOfWords(const LoadRequest& r, uint64_t seed, uint32_t words, uint32_t shared_words) {
  std::string out;
  for (uint32_t i = 0; i < words; ++i) {
    if (i > 0) out += ' ';
    out += kWords[BitsAt(r, seed, i, shared_words) % kWords.size()];
  }
  return out;
}

}  // namespace gyre
