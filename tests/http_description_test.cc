// docs/openapi.json and the routes that there are. Answers are held against it in tests/sdk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/trace.h"
#include "coordinator/http/page_assets.h"
#include "coordinator/http/routes.h"
#include "model/weights.h"
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
      described.insert((method == "get" ? "GET " : "POST ") + std::string(path));
    }
  }
  EXPECT_EQ(described, there);
}

TEST_F(HttpDescriptionTest, ItsErrorsHaveTheShapeOfTheRoutesApi) {
  for (const Route& route : api_.router.routes()) {
    if (!paths().contains(PathOf(route)) || route.method != "POST") continue;
    const std::string error = At(paths().at(PathOf(route)), "/post/responses/default/$ref");
    EXPECT_EQ(error, route.style == ApiStyle::kAnthropic ? "#/components/responses/AnthropicError"
                                                         : "#/components/responses/Error")
        << route.path;
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
      for (const char* text : {"prompt", "input", "content", "ranges", "worker"}) body[text] = "a";
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

}  // namespace
}  // namespace gyre::http
