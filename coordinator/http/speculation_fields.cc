#include "coordinator/http/speculation_fields.h"

#include <string>

namespace gyre::http {
namespace json = boost::json;

void ReadSpeculation(JsonFields& fields, Question* question) {
  SpeculationSettings& s = question->speculation;
  const auto whole = [&fields](std::string_view name, uint32_t* value) {
    if (const auto n = fields.Integer(name, 0, kMostDrafts)) *value = static_cast<uint32_t>(*n);
  };
  whole("speculative.n_max", &s.n_max);
  whole("speculative.n_min", &s.n_min);
  if (const auto p = fields.Number("speculative.p_min", 0, 1)) s.p_min = static_cast<float>(*p);
}

void ReadPrediction(JsonFields& fields, Question* question) {
  const json::object* prediction = fields.Object("prediction");
  if (prediction == nullptr) return;
  JsonFields inner(*prediction, fields.Path("prediction") + ".");
  if (inner.String("type").value_or("content") != "content")
    inner.Fail(BadRequest(inner.Path("type") + " must be content", inner.Path("type")));
  inner.Require("content");
  const json::value* content = inner.Any("content");
  if (content != nullptr && content->is_array()) {
    inner.EachObject("content", content->get_array(), [question](JsonFields& part) {
      part.Ignore("type");
      part.Require("text");
      question->prediction += part.String("text").value_or("");
    });
  } else {
    question->prediction = inner.String("content").value_or("");
  }
  if (std::optional<ApiError> error = inner.Finish()) fields.Fail(*std::move(error));
}

}  // namespace gyre::http
