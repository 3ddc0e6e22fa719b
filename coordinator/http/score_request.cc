#include "coordinator/http/score_request.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/openai_sampling.h"
#include "coordinator/http/sampling_fields.h"
#include "fmt/core.h"
#include "model/weights.h"
#include "scoring/continuation.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

class ScoreReader {
 public:
  ScoreReader(const ApiContext& context, const HttpRequest& http, ScoreJob* job)
      : context_(context), vocab_(context.service.model().spec().vocab), http_(http), job_(job) {}

  std::optional<ApiError> Read() {
    json::object object;
    if (std::optional<ApiError> error = ParseBody(http_.body, &object)) return error;
    JsonFields fields(object);
    ReadSettings(fields);
    fields.Require("input");
    const json::value* input = fields.Any("input");
    if (std::optional<ApiError> error = fields.Finish()) return error;
    if (const json::array* list = ListOf(*input)) {
      if (list->empty() || list->size() > static_cast<size_t>(kMaxScored)) {
        return BadRequest(fmt::format("input has {} inputs; it may have 1 to {}", list->size(), kMaxScored), "input");
      }
      for (size_t i = 0; i < list->size(); ++i) {
        if (std::optional<ApiError> error = ReadInput((*list)[i], fmt::format("input[{}]", i))) return error;
      }
      return std::nullopt;
    }
    return ReadInput(*input, "input");
  }

 private:
  // nullptr: the value is one input, not several.
  static const json::array* ListOf(const json::value& value) {
    const json::array* array = value.if_array();
    return array == nullptr || (!array->empty() && array->front().is_number()) ? nullptr : array;
  }

  void ReadSettings(JsonFields& fields) {
    job_->model = ReadModel(fields, context_);
    question_.tenant = http_.caller.tenant;
    question_.priority = ReadPriority(fields);
    question_.cache_salt = ReadCacheSalt(fields);
    question_.adapter = ReadAdapter(fields, context_, job_->model);
    IgnoreAccounting(fields);
    ScoreSettings& score = question_.score.emplace();
    score.from = static_cast<uint32_t>(fields.Integer("score_from", 1, UINT32_MAX).value_or(1));
    score.top = static_cast<uint32_t>(fields.Integer("top", 0, kMaxTopK).value_or(0));
    const std::string as = OneOf(fields, "score_as", {"prompt", "generated"});
    score.generated = as == "generated";
    const std::string logits = OneOf(fields, "logits", {"none", "f16", "f32"});
    score.logits = logits != "none";
    const std::string form = OneOf(fields, "format", {"json", "npy", "arrow"});
    job_->form = form == "npy"     ? ScoreJob::Form::kNpy
                 : form == "arrow" ? ScoreJob::Form::kArrow
                                   : ScoreJob::Form::kJson;
    job_->beta = fields.Number("beta", 0, 1).value_or(0.5);
    job_->format = {.top = std::min(score.top, static_cast<uint32_t>(vocab_)),
                    .logits = logits == "f16"   ? LogitType::kF16
                              : logits == "f32" ? LogitType::kF32
                                                : LogitType::kNone,
                    .vocab = static_cast<uint32_t>(vocab_)};
  }

  // The field's value, the first one if it is absent.
  static std::string OneOf(JsonFields& fields, const char* name, const std::vector<std::string>& values) {
    const std::string value = fields.String(name).value_or(values.front());
    if (std::find(values.begin(), values.end(), value) == values.end()) {
      std::string known = values.front();
      for (size_t i = 1; i < values.size(); ++i) known += (i + 1 == values.size() ? " or " : ", ") + values[i];
      fields.Fail(BadRequest(fmt::format("{} is {}; it may be {}", name, value, known), name));
    }
    return value;
  }

  std::optional<ApiError> ReadInput(const json::value& value, const std::string& path) {
    Question question = question_;
    std::vector<std::vector<float>> student;
    if (const auto* text = value.if_string()) {
      question.input = TextInput{.text = std::string(*text)};
    } else if (const auto* ids = value.if_array()) {
      if (auto error = ReadIdsOf(*ids, path, &question)) return error;
    } else if (const auto* object = value.if_object()) {
      JsonFields fields(*object, path + ".");
      if (auto error = ReadObject(fields, &question, &student)) return error;
    } else {
      return BadRequest(path + " must be a string, an array of token ids or an object", path);
    }
    return Add(std::move(question), std::move(student), path);
  }

  std::optional<ApiError> ReadIdsOf(const json::array& array, const std::string& path, Question* question) const {
    static const json::object kNone;
    JsonFields fields(kNone);
    question->input = ReadIds(fields, path, array, vocab_);
    return fields.Finish();
  }

  std::optional<ApiError> ReadObject(JsonFields& fields, Question* question,
                                     std::vector<std::vector<float>>* student) const {
    const json::array* ids = fields.Array("ids");
    const std::optional<std::string> text = fields.String("text"), context = fields.String("context"),
                                     continuation = fields.String("continuation");
    const std::optional<int64_t> from = fields.Integer("score_from", 1, UINT32_MAX);
    if (from) question->score->from = static_cast<uint32_t>(*from);
    const json::array* distributions = fields.Array("student");
    const int forms = (ids != nullptr ? 1 : 0) + (text ? 1 : 0) + (continuation ? 1 : 0);
    if (forms != 1 || context.has_value() != continuation.has_value() || (continuation && from)) {
      fields.Fail(BadRequest(
          fmt::format("{}: one of ids, text, or context with continuation, which says itself where it begins",
                      fields.Path("")),
          fields.Path("ids")));
    }
    if (ids != nullptr && !fields.failed()) question->input = ReadIds(fields, fields.Path("ids"), *ids, vocab_);
    if (text) question->input = TextInput{.text = *text};
    if (distributions != nullptr && !fields.failed()) ReadStudent(fields, *distributions, question, student);
    if (auto error = fields.Finish()) return error;
    if (!continuation) return std::nullopt;
    StatusOr<ScoredIds> whole = EncodeContinuation(
        [this](const std::string& t, bool special) { return context_.service.Tokenize(t, {.add_special = special}); },
        *context, *continuation);
    if (!whole.ok()) return FromInput(whole.status(), fields.Path("continuation"));
    question->input = std::move(whole->ids);
    question->score->from = whole->from;
    return std::nullopt;
  }

  // Each distribution is {"ids": [...], "logprobs": [...]}; the ids are sorted here.
  void ReadStudent(JsonFields& fields, const json::array& array, Question* question,
                   std::vector<std::vector<float>>* student) const {
    fields.EachObject("student", array, [&](JsonFields& one) {
      one.Require("ids");
      one.Require("logprobs");
      const json::array* ids = one.Array("ids");
      const json::array* logprobs = one.Array("logprobs");
      if (ids == nullptr || logprobs == nullptr) return;
      const std::vector<TokenId> read = ReadIds(one, one.Path("ids"), *ids, vocab_);
      if (one.failed()) return;
      std::vector<std::pair<TokenId, float>> pairs;
      for (size_t i = 0; i < read.size() && i < logprobs->size(); ++i) {
        boost::system::error_code error;
        const double value = (*logprobs)[i].to_number<double>(error);
        if (error)
          return one.Fail(BadRequest(one.Path("logprobs") + " has a value that is no number", one.Path("logprobs")));
        pairs.emplace_back(read[i], static_cast<float>(value));
      }
      std::sort(pairs.begin(), pairs.end());
      const bool twice = std::adjacent_find(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
                           return a.first == b.first;
                         }) != pairs.end();
      if (read.size() != logprobs->size() || twice) {
        return one.Fail(
            BadRequest(fmt::format("{} has {} ids, each once, and as many logprobs", one.Path("ids"), read.size()),
                       one.Path("ids")));
      }
      std::vector<TokenId>& named = question->score->named.emplace_back();
      std::vector<float>& of = student->emplace_back();
      for (const auto& [id, logprob] : pairs) {
        named.push_back(id);
        of.push_back(logprob);
      }
    });
  }

  std::optional<ApiError> Add(Question question, std::vector<std::vector<float>> student, const std::string& path) {
    job_->format.divergence |= !student.empty();
    StatusOr<Request> request = context_.service.MakeRequest(std::move(question));
    if (!request.ok()) return FromInput(request.status(), path);
    const size_t ids = request->prompt.size(), from = request->score->from;
    if (from >= ids) {
      return BadRequest(
          fmt::format("{} has {} tokens, of which none stands at position {} or behind it", path, ids, from), path);
    }
    if (!student.empty() && student.size() != ids - from) {
      return BadRequest(
          fmt::format("{}.student has {} distributions for {} scored positions", path, student.size(), ids - from),
          path + ".student");
    }
    request->tenant = http_.caller.tenant;
    job_->inputs.push_back({.request = *std::move(request), .student = std::move(student)});
    return std::nullopt;
  }

  const ApiContext& context_;
  const int vocab_;
  const HttpRequest& http_;
  ScoreJob* const job_;
  Question question_;  // the settings of all inputs
};

}  // namespace

std::optional<ApiError> ReadScoreJob(const ApiContext& context, const HttpRequest& http, ScoreJob* job) {
  return ScoreReader(context, http, job).Read();
}

}  // namespace gyre::http
