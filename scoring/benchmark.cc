#include "scoring/benchmark.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>

#include "model/text_pattern.h"

namespace gyre {
namespace {

namespace json = boost::json;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string Normal(const BenchmarkItem& item, std::string_view text) {
  std::string out(Trimmed(text));
  if (!item.ignore_case) return out;
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

Status ReadText(std::string_view name, const json::value& value, std::string* out) {
  if (!value.is_string()) return InvalidArgument("{} is no string", name);
  *out = std::string(value.get_string());
  return absl::OkStatus();
}

// A string or an array of strings.
Status ReadTexts(std::string_view name, const json::value& value, std::vector<std::string>* out) {
  if (const auto* array = value.if_array()) {
    for (const json::value& v : *array) GYRE_RETURN_IF_ERROR(ReadText(name, v, &out->emplace_back()));
    return absl::OkStatus();
  }
  return ReadText(name, value, &out->emplace_back());
}

Status ReadField(std::string_view name, const json::value& value, BenchmarkItem* item) {
  if (name == "task") return ReadText(name, value, &item->task);
  if (name == "context" || name == "prompt") return ReadText(name, value, &item->context);
  if (name == "delimiter") return ReadText(name, value, &item->delimiter);
  if (name == "choices") return ReadTexts(name, value, &item->choices);
  if (name == "regex") return ReadText(name, value, &item->regex);
  if (name == "stop") return ReadTexts(name, value, &item->stop);
  if (name == "id") return absl::OkStatus();  // for people
  if (name == "ignore_case") {
    if (!value.is_bool()) return InvalidArgument("ignore_case is no boolean");
    item->ignore_case = value.get_bool();
    return absl::OkStatus();
  }
  if (name == "max_tokens") {
    const int64_t* n = value.if_int64();
    if (n == nullptr || *n < 1 || *n > (1 << 20))
      return InvalidArgument("max_tokens is no number from 1 to {}", 1 << 20);
    item->max_tokens = static_cast<uint32_t>(*n);
    return absl::OkStatus();
  }
  if (name != "answer") return InvalidArgument("the field {} is not known", name);
  if (const int64_t* n = value.if_int64()) {
    if (*n < 0) return InvalidArgument("answer is {}", *n);
    item->right = static_cast<size_t>(*n);
    return absl::OkStatus();
  }
  return ReadTexts(name, value, &item->answers);
}

Status Check(const json::object& object, const BenchmarkItem& item) {
  for (const char* name : {"answer"}) {
    if (object.find(name) == object.end()) return InvalidArgument("the field {} is missing", name);
  }
  if (object.find("context") == object.end() && object.find("prompt") == object.end())
    return InvalidArgument("the field context is missing");
  if (item.choices.empty() != !item.answers.empty()) {
    return InvalidArgument("answer is the number of one of the choices, or without choices a text or several");
  }
  if (!item.choices.empty() && item.right >= item.choices.size())
    return InvalidArgument("answer is {}, the choices have the numbers 0 to {}", item.right, item.choices.size() - 1);
  const bool empty = std::any_of(item.choices.begin(), item.choices.end(), [](const auto& c) { return c.empty(); });
  if (empty) return InvalidArgument("a choice is empty");
  if (item.regex.empty()) return absl::OkStatus();
  return TextPattern::Compile(item.regex).status();
}

size_t Characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

StatusOr<BenchmarkItem> ReadBenchmarkItem(std::string_view line) {
  boost::system::error_code error;
  const json::value value = json::parse({line.data(), line.size()}, error);
  if (error) return InvalidArgument("not JSON ({})", error.message());
  const json::object* object = value.if_object();
  if (object == nullptr) return InvalidArgument("no JSON object");
  BenchmarkItem item;
  for (const auto& [key, field] : *object) {
    GYRE_RETURN_IF_ERROR(ReadField(std::string_view(key.data(), key.size()), field, &item));
  }
  GYRE_RETURN_IF_ERROR(Check(*object, item));
  return item;
}

Picks PickChoices(const BenchmarkItem& item, const std::vector<ChoiceScore>& scores) {
  const auto best = [&](const auto& value) {
    size_t at = 0;
    for (size_t i = 1; i < scores.size(); ++i) {
      if (value(i) > value(at)) at = i;
    }
    return at;
  };
  return {.sum = best([&](size_t i) { return scores[i].sum; }),
          .mean = best([&](size_t i) { return scores[i].sum / std::max(1u, scores[i].tokens); }),
          .normalized = best([&](size_t i) {
            return scores[i].sum / static_cast<double>(std::max<size_t>(1, Characters(item.choices[i])));
          })};
}

StatusOr<std::optional<std::string>> ExtractAnswer(const BenchmarkItem& item, std::string_view text) {
  if (item.regex.empty()) return std::optional(Normal(item, text));
  GYRE_ASSIGN_OR_RETURN(const TextPattern pattern, TextPattern::Compile(item.regex));
  TextPattern::Match match;
  if (!pattern.Find(text, 0, &match)) return std::optional<std::string>();
  return std::optional(Normal(item, text.substr(match.begin, match.end - match.begin)));
}

bool IsRight(const BenchmarkItem& item, const std::optional<std::string>& answer) {
  return answer && std::any_of(item.answers.begin(), item.answers.end(),
                               [&](const std::string& right) { return Normal(item, right) == *answer; });
}

double Accuracy::standard_error() const {
  if (items < 2) return 0;
  return std::sqrt(share() * (1 - share()) / static_cast<double>(items - 1));
}

}  // namespace gyre
