// docs/openapi.json and the routes that there are. Answers are held against it in tests/sdk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/trace.h"
#include "batch/batch_store.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/cluster_json.h"
#include "coordinator/http/page_assets.h"
#include "coordinator/http/routes.h"
#include "coordinator/http/sampling_fields.h"
#include "model/weights.h"
#include "proto/status_json.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/http_api.h"
#include "tests/testing/option_schema.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre::http {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

// In the words of JSON Schema.
std::string KindOf(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return "boolean";
    case json::kind::string: return "string";
    case json::kind::array: return "array";
    case json::kind::object: return "object";
    case json::kind::double_: return "number";
    default: return "integer";
  }
}

class HttpDescriptionTest : public ::testing::Test {
 protected:
  HttpDescriptionTest() {
    engine_.refusal = Unavailable("no ring");  // for fields that change nothing
    api_.context.cluster = &ring_->cluster();
    api_.context.tracer = &tracer_;
    char folder[] = "/tmp/gyre-description-XXXXXX";
    batches_folder_ = mkdtemp(folder);
    auto batches = BatchStore::Open(batches_folder_);
    EXPECT_TRUE(batches.ok()) << batches.status();
    batches_ = *std::move(batches);
    api_.context.batches = batches_.get();
    AddAllRoutes(api_.router, api_.context);
    std::ifstream file(std::filesystem::path(GYRE_DEMO_MODEL).parent_path() / "../docs/openapi.json");
    description_ = Json(std::string((std::istreambuf_iterator<char>(file)), {}));
  }
  ~HttpDescriptionTest() override { std::filesystem::remove_all(batches_folder_); }
  // The routes that take a body of JSON.
  std::vector<Route> PostRoutes() const {
    std::vector<Route> out;
    for (const Route& route : api_.router.routes()) {
      if (route.method != "POST") continue;
      // A file is a form, and what ends a batch has no body.
      if (route.path != "/v1/files" && route.path != "/v1/batches/*") out.push_back(route);
    }
    return out;
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
  // A body with what the schema requires.
  static json::object Needed(const json::value& schema) {
    json::object body;
    body["messages"] = json::array({json::object{{"role", "user"}, {"content", "Hi"}}});
    for (const char* text : {"prompt", "input", "content", "worker", "query", "input_file_id", "endpoint"})
      body[text] = "a";
    body["documents"] = json::array({"a"});
    body["ranges"] = "0-1";
    body["completion_window"] = "24h";
    body["model"] = "demo";
    body["max_tokens"] = 1;
    body["tokens"] = json::array();
    json::object needed;
    const json::object& object = schema.as_object();
    const json::value* ways = object.if_contains("anyOf");  // of several the first
    const json::object& way = ways != nullptr ? ways->at(0).as_object() : object;
    if (const json::value* required = way.if_contains("required")) {
      for (const json::value& name : required->as_array()) needed[name.as_string()] = body.at(name.as_string());
    }
    return needed;
  }
  // The kinds of values that a schema takes, in its words; any: all.
  std::set<std::string> KindsOf(const json::value& schema) const {
    const json::object& object = schema.as_object();
    std::set<std::string> kinds;
    const auto add = [&kinds](const std::set<std::string>& more) { kinds.insert(more.begin(), more.end()); };
    if (const json::value* ref = object.if_contains("$ref")) {
      boost::system::error_code error;
      return KindsOf(*description_.find_pointer(std::string(ref->as_string()).substr(1), error));
    }
    if (const json::value* any = object.if_contains("anyOf")) {
      for (const json::value& one : any->as_array()) add(KindsOf(one));
    } else if (const json::value* type = object.if_contains("type")) {
      if (type->is_string()) kinds.insert(std::string(type->as_string()));
      for (const json::value& one : type->is_array() ? type->as_array() : json::array()) {
        kinds.insert(std::string(one.as_string()));
      }
    } else if (const json::value* one = object.if_contains("const")) {
      kinds.insert(KindOf(*one));
    } else if (const json::value* several = object.if_contains("enum")) {
      for (const json::value& value : several->as_array()) kinds.insert(KindOf(value));
    } else {
      kinds.insert("any");
    }
    return kinds;
  }
  // The value has the fields of the schema, of the kinds that it says.
  void ExpectDescribed(const json::value& value, const char* schema) const;
  static bool Takes(const std::set<std::string>& kinds, const std::string& kind) {
    return kinds.contains(kind) || kinds.contains("any") || (kind == "integer" && kinds.contains("number"));
  }

  const testing::TinyModelFile tiny_{testing::TinyOptions{.layers = 2}};
  const std::unique_ptr<Runtime> ring_ = testing::OpenRing(testing::TinyRing(tiny_.path(), 2, 64));
  const std::shared_ptr<const Model> model_ = *OpenModel(GYRE_DEMO_MODEL);
  testing::FakeEngine engine_;
  Service service_{*model_, engine_.Calls(), 100};
  Tracer tracer_;
  std::string batches_folder_;
  std::unique_ptr<BatchStore> batches_;
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
  for (const Route& route : PostRoutes()) {
    const json::value* schema = Schema(paths().at(PathOf(route)).at("post"));
    ASSERT_NE(schema, nullptr) << route.path;
    EXPECT_EQ(At(*schema, "/additionalProperties"), "false") << route.path;
    for (const auto& [name, type] : schema->at("properties").as_object()) {
      json::object asked = Needed(*schema);
      asked[name] = json::array({json::array()});
      const auto exchange = api_.Post(route.path, json::serialize(asked));
      EXPECT_THAT(exchange->answer.body,
                  ::testing::Not(HasSubstr("the field " + std::string(name) + " is not supported")))
          << route.path;
    }
  }
}

// A field takes the kinds of values that the description says, and no others.
TEST_F(HttpDescriptionTest, AFieldHasTheTypeThatIsDescribed) {
  const json::value samples[] = {true, 1, 1.5, "a", json::parse("[1]"), json::object{{"a", 1}}};
  for (const Route& route : PostRoutes()) {
    const json::value* schema = Schema(paths().at(PathOf(route)).at("post"));
    ASSERT_NE(schema, nullptr) << route.path;
    for (const auto& [name, type] : schema->at("properties").as_object()) {
      const std::set<std::string> kinds = KindsOf(type);
      for (const json::value& sample : samples) {
        const bool described = Takes(kinds, KindOf(sample));
        if (described && route.path.starts_with("/v1/cluster/")) continue;  // it would be done
        json::object asked = Needed(*schema);
        asked[name] = sample;
        const auto exchange = api_.Post(route.path, json::serialize(asked));
        const std::string& body = exchange->answer.body;
        if (described) {
          for (const char* kind :
               {"true or false", "a number", "a whole number", "a string", "an array", "an object"}) {
            EXPECT_THAT(body, ::testing::Not(HasSubstr(fmt::format("{} must be {}\"", std::string(name), kind))))
                << route.path << sample;
          }
        } else {
          EXPECT_THAT(exchange->answer.status, ::testing::AnyOf(400, 422)) << route.path << " " << name << sample;
          EXPECT_THAT(body, HasSubstr(name)) << route.path << sample;
        }
      }
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
  for (const Route& route : PostRoutes()) {
    const json::value* schema = Schema(paths().at(PathOf(route)).at("post"));
    const auto exchange = api_.Post(route.path, "{}");
    EXPECT_EQ(exchange->answer.status, 400) << route.path;
    // If a request can be made in several ways, the error names the first.
    const std::string one_of = schema->as_object().contains("anyOf") ? "/anyOf/0" : "";
    EXPECT_THAT(exchange->answer.body, HasSubstr(At(*schema, one_of + "/required/0") + " is missing")) << route.path;
  }
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
      json::object expected = testing::RequestSchema(option);
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
    EXPECT_THAT(page, HasSubstr(fmt::format("`{}`", option.shown()))) << "docs/api.md";
  }
}

// The fields of an object and of those in it, each with its kind.
using Fields = std::map<std::string, std::string>;
void AddFields(const std::string& path, const json::value& value, Fields* out) {
  if (const json::array* array = value.if_array(); array != nullptr && !array->empty()) {
    return AddFields(path, (*array)[0], out);
  }
  const json::object* object = value.if_object();
  if (object == nullptr) return;
  for (const auto& [name, field] : *object) {
    (*out)[path + std::string(name)] = KindOf(field);
    AddFields(path + std::string(name) + ".", field, out);
  }
}
using Described = std::map<std::string, json::value>;  // by their schemas
void AddDescribed(const std::string& path, const json::value& schema, Described* out) {
  const json::object& object = schema.as_object();
  if (const json::value* items = object.if_contains("items")) return AddDescribed(path, *items, out);
  if (const json::value* any = object.if_contains("anyOf")) return AddDescribed(path, any->at(0), out);
  const json::value* properties = object.if_contains("properties");
  if (properties == nullptr) return;
  for (const auto& [name, field] : properties->as_object()) {
    (*out)[path + std::string(name)] = field;
    AddDescribed(path + std::string(name) + ".", field, out);
  }
}

void HttpDescriptionTest::ExpectDescribed(const json::value& value, const char* schema) const {
  Fields there;
  Described described;
  AddFields("", value, &there);
  AddDescribed("", description_.at("components").at("schemas").at(schema), &described);
  for (const auto& [name, field] : described) EXPECT_TRUE(there.contains(name)) << schema << " has no " << name;
  for (const auto& [name, kind] : there) {
    ASSERT_TRUE(described.contains(name)) << schema << "." << name << " is not described";
    EXPECT_TRUE(Takes(KindsOf(described.at(name)), kind))
        << schema << "." << name << " is described as " << described.at(name) << " and is of the kind " << kind;
  }
}

TEST_F(HttpDescriptionTest, TheStatusHasTheFieldsThatAreDescribed) {
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
  ExpectDescribed(shown, "Cluster");
  v1::ChangeReply change;
  change.add_moves()->set_to("a");
  change.add_members()->set_name("a");
  ExpectDescribed(gyre::ChangeJson(change), "ClusterChange");
}

TEST_F(HttpDescriptionTest, AMembersStateHasTheFieldsThatAreDescribed) {
  v1::MemberStatus member;
  member.mutable_replica()->set_of("b");
  member.add_links()->set_to("b");
  ExpectDescribed(MemberJson(member, "b"), "ClusterMember");
}

// Each field is read under every name, with the same range.
TEST_F(HttpDescriptionTest, SamplerOptionsAreReadUnderAllTheirNames) {
  for (const SamplingOption& option : SamplingOptions()) {
    for (const std::string_view name : {option.shown(), option.llama}) {
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
