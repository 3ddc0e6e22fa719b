// docs/openapi.json and the routes that there are. Answers are held against it in tests/sdk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/trace.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/cluster_json.h"
#include "coordinator/http/page_assets.h"
#include "coordinator/http/routes.h"
#include "coordinator/http/sampling_fields.h"
#include "model/weights.h"
#include "proto/status_json.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre::http {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

class HttpDescriptionTest : public ::testing::Test {
 protected:
  HttpDescriptionTest() {
    engine_.refusal = Unavailable("no ring");  // for fields that change nothing
    api_.context.cluster = &ring_->cluster();
    api_.context.tracer = &tracer_;
    AddAllRoutes(api_.router, api_.context);
    std::ifstream file(std::filesystem::path(GYRE_DEMO_MODEL).parent_path() / "../docs/openapi.json");
    description_ = Json(std::string((std::istreambuf_iterator<char>(file)), {}));
  }
  const json::object& paths() const { return description_.at("paths").as_object(); }
  // As the description writes it.
  static std::string PathOf(const Route& route) {
    std::string path = route.path;
    if (path.back() == '*') path.replace(path.size() - 1, 1, "{id}");
    return path;
  }
  const json::value* Schema(const json::value& post) const {
    boost::system::error_code error;
    return description_.find_pointer(At(post, "/requestBody/content/application~1json/schema/$ref").substr(1), error);
  }

  const testing::TinyModelFile tiny_{testing::TinyOptions{.layers = 2}};
  const std::unique_ptr<Runtime> ring_ = testing::OpenRing(testing::TinyRing(tiny_.path(), 2, 64));
  const std::shared_ptr<const Model> model_ = *OpenModel(GYRE_DEMO_MODEL);
  testing::FakeEngine engine_;
  Service service_{*model_, engine_.Calls(), 100};
  Tracer tracer_;
  ApiCaller api_{service_};
  json::value description_;
};

TEST_F(HttpDescriptionTest, ItHasTheRoutesThatThereAre) {
  std::set<std::string> page, there, described;
  for (const PageAsset& asset : PageAssets()) page.emplace(asset.path);
  for (const Route& route : api_.router.routes()) {
    if (page.count(route.path) == 0) there.insert(route.method + " " + PathOf(route));
  }
  for (const auto& [path, methods] : paths()) {
    for (const auto& [method, operation] : methods.as_object()) {
      std::string upper(method);
      std::transform(upper.begin(), upper.end(), upper.begin(),
                     [](char c) { return static_cast<char>(c - 'a' + 'A'); });
      described.insert(upper + " " + std::string(path));
    }
  }
  EXPECT_EQ(described, there);
}

TEST_F(HttpDescriptionTest, ItsErrorsHaveTheShapeOfTheRoutesApi) {
  for (const Route& route : api_.router.routes()) {
    if (!paths().contains(PathOf(route)) || route.method != "POST") continue;
    const std::string error = At(paths().at(PathOf(route)), "/post/responses/default/$ref");
    const ApiStyle style = StyleOf(route.path);
    const char* const shape = style == ApiStyle::kAnthropic ? "AnthropicError"
                              : style == ApiStyle::kOllama  ? "OllamaError"
                                                            : "Error";
    EXPECT_EQ(error, std::string("#/components/responses/") + shape) << route.path;
  }
}

TEST_F(HttpDescriptionTest, EveryFieldOfItIsKnownToItsRoute) {
  for (const Route& route : api_.router.routes()) {
    if (route.method != "POST") continue;
    const json::value* schema = Schema(paths().at(PathOf(route)).at("post"));
    ASSERT_NE(schema, nullptr) << route.path;
    EXPECT_EQ(At(*schema, "/additionalProperties"), "false") << route.path;
    for (const auto& [name, type] : schema->at("properties").as_object()) {
      json::object body;
      body["messages"] = json::array({json::object{{"role", "user"}, {"content", "Hi"}}});
      for (const char* text : {"prompt", "input", "content", "ranges", "worker", "query"}) body[text] = "a";
      body["documents"] = json::array({"a"});
      body["model"] = "demo";
      body["max_tokens"] = 1;
      body["tokens"] = json::array();
      json::object asked;
      if (const json::object* all = schema->if_object(); all->contains("required")) {
        for (const json::value& needed : all->at("required").as_array()) {
          asked[needed.as_string()] = body.at(needed.as_string());
        }
      }
      asked[name] = json::array({json::array()});
      const auto exchange = api_.Post(route.path, json::serialize(asked));
      EXPECT_THAT(exchange->answer.body,
                  ::testing::Not(HasSubstr("the field " + std::string(name) + " is not supported")))
          << route.path;
    }
  }
}

TEST_F(HttpDescriptionTest, MembersOfThisProcessAreLocal) {
  const auto exchange = api_.Call("GET", "/v1/cluster", "");
  for (const char* member : {"/members/0/local", "/members/1/local"}) {
    EXPECT_EQ(At(Json(exchange->answer.body), member), "true") << exchange->answer.body;
  }
}

TEST_F(HttpDescriptionTest, ARequiredFieldIsMissed) {
  for (const Route& route : api_.router.routes()) {
    if (route.method != "POST") continue;
    const json::value* schema = Schema(paths().at(PathOf(route)).at("post"));
    const auto exchange = api_.Post(route.path, "{}");
    EXPECT_EQ(exchange->answer.status, 400) << route.path;
    // If a request can be made in several ways, the error names the first.
    const std::string one_of = schema->as_object().contains("anyOf") ? "/anyOf/0" : "";
    EXPECT_THAT(exchange->answer.body, HasSubstr(At(*schema, one_of + "/required/0") + " is missing")) << route.path;
  }
}

// The schema of an option in a request.
json::object RequestSchema(const SamplingOption& option) {
  const bool whole = std::holds_alternative<int SamplingParams::*>(option.field);
  const double least = option.has_foreign ? std::min(option.least, option.foreign) : option.least;
  const bool excluded = option.above_least && !(option.has_foreign && option.foreign == option.least);
  json::object out{{"type", json::array{whole ? "integer" : "number", "null"}}};
  out[excluded ? "exclusiveMinimum" : "minimum"] = static_cast<int64_t>(least);
  if (option.most < INT32_MAX) out["maximum"] = static_cast<int64_t>(option.most);
  return out;
}

TEST_F(HttpDescriptionTest, SamplerOptionsHaveTheRangesOfTheirRows) {
  std::set<std::string> requests;
  for (const auto& [name, schema] : description_.at("components").at("schemas").as_object()) {
    const json::object* whole = schema.if_object();
    if (whole == nullptr || !whole->contains("properties")) continue;
    const json::object& properties = whole->at("properties").as_object();
    const json::value* temperature = properties.if_contains("temperature");
    if (temperature == nullptr || !temperature->at("type").is_array()) continue;  // not a request's
    requests.insert(name);
    const bool llama = name == "LlamaRequest" || name == "OllamaOptions";
    for (const SamplingOption& option : SamplingOptions()) {
      if (!llama && !option.openai) continue;
      const std::string_view key = llama ? option.llama : option.name;
      json::object expected = RequestSchema(option);
      const json::value* there = properties.if_contains(key);
      ASSERT_NE(there, nullptr) << name << " has no \"" << key << "\": " << json::serialize(expected);
      // A default is only stated where no model recommends another one.
      if (const json::value* said = there->as_object().if_contains("default")) {
        EXPECT_EQ(said->to_number<double>(), ValueOf(SamplingParams{}, option)) << name << "." << key;
        expected["default"] = *said;
      }
      EXPECT_EQ(*there, expected) << name << "." << key << ": " << json::serialize(expected);
    }
  }
  EXPECT_EQ(requests, (std::set<std::string>{"ChatRequest", "CompletionRequest", "LlamaRequest", "MessagesRequest",
                                             "OllamaOptions", "ResponsesRequest"}));
  const json::value& settings = description_.at("components").at("schemas").at("LlamaSettings").at("properties");
  std::ifstream file(std::filesystem::path(GYRE_DEMO_MODEL).parent_path() / "../docs/api.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const SamplingOption& option : SamplingOptions()) {
    EXPECT_TRUE(settings.as_object().contains(option.llama)) << "LlamaSettings has no " << option.llama;
    EXPECT_THAT(page, HasSubstr(fmt::format("`{}`", option.openai ? option.name : option.llama))) << "docs/api.md";
  }
}

// The names of an object's fields, and of those of the objects in it.
void AddNames(const std::string& path, const json::value& value, std::set<std::string>* out) {
  if (const json::array* array = value.if_array(); array != nullptr && !array->empty()) {
    return AddNames(path, (*array)[0], out);
  }
  const json::object* object = value.if_object();
  if (object == nullptr) return;
  for (const auto& [name, field] : *object) {
    out->insert(path + std::string(name));
    AddNames(path + std::string(name) + ".", field, out);
  }
}
void AddDescribed(const std::string& path, const json::value& schema, std::set<std::string>* out) {
  const json::object& object = schema.as_object();
  if (const json::value* items = object.if_contains("items")) return AddDescribed(path, *items, out);
  if (const json::value* any = object.if_contains("anyOf")) return AddDescribed(path, any->at(0), out);
  const json::value* properties = object.if_contains("properties");
  if (properties == nullptr) return;
  for (const auto& [name, field] : properties->as_object()) {
    out->insert(path + std::string(name));
    AddDescribed(path + std::string(name) + ".", field, out);
  }
}

TEST_F(HttpDescriptionTest, TheStatusHasTheFieldsThatAreDescribed) {
  std::set<std::string> there, described;
  v1::StatusReply status;
  status.mutable_epoch()->set_number(1);
  status.add_members()->mutable_layers()->set_end(1);
  status.mutable_proposal()->set_gain(2);
  status.add_memory()->set_units(1);
  status.add_history()->set_number(1);
  status.add_events()->set_number(1);
  json::object shown = StatusJson({}, {}, {});  // the model's facts
  for (const auto& [name, value] : gyre::StatusJson(status)) {
    if (name != "model") shown[name] = value;
  }
  shown["members"] = json::array();  // the next test has them
  AddNames("", shown, &there);
  AddDescribed("", description_.at("components").at("schemas").at("Cluster"), &described);
  EXPECT_EQ(described, there);
  v1::ChangeReply change;
  change.add_moves()->set_to("a");
  change.add_members()->set_name("a");
  there.clear(), described.clear();
  AddNames("", gyre::ChangeJson(change), &there);
  AddDescribed("", description_.at("components").at("schemas").at("ClusterChange"), &described);
  EXPECT_EQ(described, there);
}

TEST_F(HttpDescriptionTest, AMembersStateHasTheFieldsThatAreDescribed) {
  v1::MemberStatus member;
  member.mutable_replica()->set_of("b");
  member.add_links()->set_to("b");
  std::set<std::string> there, described;
  AddNames("", MemberJson(member, "b"), &there);
  AddDescribed("", description_.at("components").at("schemas").at("ClusterMember"), &described);
  EXPECT_EQ(described, there);
}

// Each field is read under every name, with the same range.
TEST_F(HttpDescriptionTest, SamplerOptionsAreReadUnderAllTheirNames) {
  for (const SamplingOption& option : SamplingOptions()) {
    for (const std::string_view name : {option.openai ? option.name : option.llama, option.llama}) {
      const auto read = [&](double value, SamplingParams* out) {
        const json::object body{{name, value}};
        JsonFields fields(body);
        ReadSamplers(fields, out);
        return fields.Finish();
      };
      SamplingParams params;
      EXPECT_FALSE(read(1, &params).has_value()) << name;
      EXPECT_EQ(ValueOf(params, option), 1) << name;
      EXPECT_EQ(JsonOf(params, option).to_number<double>(), 1) << name;
      SamplingParams kept;
      const auto beyond = read(option.most + 1, &kept);
      ASSERT_TRUE(beyond.has_value()) << name;
      EXPECT_EQ(beyond->param, name);
      EXPECT_TRUE(read(-3, &kept).has_value()) << name;
      if (option.has_foreign) {
        EXPECT_FALSE(read(option.foreign, &params).has_value()) << name;
        EXPECT_EQ(static_cast<float>(ValueOf(params, option)), static_cast<float>(option.foreign_means)) << name;
      } else if (option.above_least) {
        for (const double least : {option.least, option.least + 1e-60}) {
          const auto error = read(least, &kept);
          ASSERT_TRUE(error.has_value()) << name << " " << least;
          EXPECT_THAT(error->message, HasSubstr(RangeOf(option)));
        }
      }
      EXPECT_EQ(kept, SamplingParams{}) << name;
    }
  }
}

}  // namespace
}  // namespace gyre::http
