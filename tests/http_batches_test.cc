// /v1/files and /v1/batches: the folder, the routes, and batches that run and are taken up again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "batch/batch_store.h"
#include "coordinator/http/batch_routes.h"
#include "coordinator/http/batch_runner.h"
#include "coordinator/http/score.h"
#include "tests/testing/openai_rig.h"

namespace gyre::http {
namespace {

using ::testing::HasSubstr;

constexpr char kFiles[] = "/v1/files", kBatches[] = "/v1/batches";

std::string Request(const std::string& id, int most = 3) {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":{"prompt":"Number )" + id +
         R"(","temperature":0,"max_tokens":)" + std::to_string(most) + "}}\n";
}

TEST(FormTest, PartsAreReadStrictly) {
  const std::string type = "multipart/form-data; boundary=\"a b\"";
  const std::string body =
      "--a b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--a b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"x.jsonl\"\r\nContent-Type: text/plain\r\n\r\n"
      "one\r\n--a\r\ntwo\r\n--a b--\r\n";
  const auto parts = ReadForm(type, body);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_EQ((*parts)[0].data, "batch");
  EXPECT_EQ((*parts)[1].filename, "x.jsonl");
  EXPECT_EQ((*parts)[1].data, "one\r\n--a\r\ntwo");
  EXPECT_FALSE(ReadForm("application/json", body).ok());
  EXPECT_FALSE(ReadForm("multipart/form-data", body).ok());
  for (size_t cut = 0; cut + 4 < body.size(); ++cut) EXPECT_FALSE(ReadForm(type, body.substr(0, cut)).ok()) << cut;
}

class BatchesTest : public OpenAiRig {
 protected:
  BatchesTest() {
    char name[] = "/tmp/gyre-batches-XXXXXX";
    folder_ = mkdtemp(name);
    Open();
    api_.context.batches = store_.get();
    AddScoreRoutes(api_.router, api_.context);
    AddBatchRoutes(api_.router, api_.context);
  }
  ~BatchesTest() override {
    runner_.reset();
    store_.reset();
    std::filesystem::remove_all(folder_);
  }
  void Open() {
    store_.reset();
    auto store = BatchStore::Open(folder_ + "/batches");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    api_.context.batches = store_.get();
  }
  void Run() {
    Router routes;
    AddOpenAiRoutes(routes, api_.context);
    AddScoreRoutes(routes, api_.context);
    Run(std::move(routes));
  }
  void Run(Router routes) {
    auto runner = BatchRunner::Start(*store_, std::move(routes), {});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }
  json::value Call(const std::string& method, const std::string& path, const std::string& body = "", int status = 200) {
    const auto exchange = api_.Call(method, path, body);
    EXPECT_EQ(exchange->answer.status, status) << exchange->answer.body;
    return Json(exchange->answer.body);
  }
  std::string Batch(const std::string& lines) {
    const auto file = store_->AddFile(api_.caller.tenant, "in.jsonl", "batch", lines);
    EXPECT_TRUE(file.ok()) << file.status();
    return At(Call("POST", kBatches,
                   R"({"input_file_id":")" + file->id +
                       R"(","endpoint":"/v1/completions","completion_window":"24h","metadata":{"a":"b"}})"),
              "/id");
  }
  json::value Wait(const std::string& id) {
    json::value batch;
    for (int i = 0; i < 6000; ++i) {
      batch = Call("GET", std::string(kBatches) + "/" + id);
      if (At(batch, "/status") != "in_progress" && At(batch, "/status") != "cancelling") return batch;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "the batch does not end: " << json::serialize(batch);
    return batch;
  }
  std::vector<json::value> Lines(const std::string& file) {
    const auto exchange = api_.Call("GET", std::string(kFiles) + "/" + file + "/content", "");
    EXPECT_EQ(exchange->answer.status, 200);
    std::vector<json::value> out;
    std::istringstream in(exchange->answer.body);
    for (std::string line; std::getline(in, line);) out.push_back(Json(line));
    return out;
  }

  std::string folder_;
  std::unique_ptr<BatchStore> store_;
  std::unique_ptr<BatchRunner> runner_;
};

TEST_F(BatchesTest, AFileIsUploadedReadAndDeleted) {
  const auto upload = [this](const std::string& purpose) {
    HttpRequest request;
    request.method = "POST";
    request.path = kFiles;
    request.headers = {{"content-type", "multipart/form-data; boundary=xyz"}};
    request.body =
        "--xyz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
        "\r\n--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\nabc\n\r\n--xyz--\r\n";
    const auto exchange = http::Ask(api_.router.Find("POST", kFiles).route->handler, std::move(request));
    return exchange->answer;
  };
  EXPECT_EQ(upload("fine-tune").status, 400);
  const HttpResponse made = upload("batch");
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string id = At(Json(made.body), "/id");
  EXPECT_EQ(At(Json(made.body), "/bytes"), "4");
  EXPECT_EQ(At(Call("GET", std::string(kFiles) + "/" + id), "/filename"), "in.jsonl");
  EXPECT_EQ(api_.Call("GET", std::string(kFiles) + "/" + id + "/content", "")->answer.body, "abc\n");
  EXPECT_EQ(At(Call("GET", kFiles), "/data/0/id"), id);
  api_.caller.tenant = 7;  // of another key
  Call("GET", std::string(kFiles) + "/" + id, "", 404);
  EXPECT_EQ(At(Call("GET", kFiles), "/data"), "[]");
  api_.caller.tenant = 0;
  EXPECT_EQ(At(Call("DELETE", std::string(kFiles) + "/" + id), "/deleted"), "true");
  Call("GET", std::string(kFiles) + "/" + id, "", 404);
}

TEST_F(BatchesTest, ABatchHasTheAnswersOfItsRoute) {
  Run();
  const std::string wrong =
      R"({"custom_id":"w","method":"POST","url":"/v1/completions","body":{"prompt":"a","what":1}})";
  const std::string id = Batch(Request("1") + Request("2") + wrong + "\n" + Request("3"));
  const json::value batch = Wait(id);
  EXPECT_EQ(At(batch, "/status"), "completed");
  EXPECT_EQ(At(batch, "/request_counts"), R"({"total":4,"completed":3,"failed":1})");
  EXPECT_EQ(At(batch, "/metadata/a"), "b");
  std::set<std::string> ids;
  for (const json::value& line : Lines(At(batch, "/output_file_id"))) {
    const std::string custom = At(line, "/custom_id");
    ids.insert(custom);
    const json::value alone =
        api_.Get(kComplete, R"({"prompt":"Number )" + custom + R"(","temperature":0,"max_tokens":3})");
    EXPECT_EQ(At(line, "/response/body/choices/0/text"), At(alone, "/choices/0/text"));
    EXPECT_EQ(At(line, "/response/status_code"), "200");
  }
  EXPECT_EQ(ids, (std::set<std::string>{"1", "2", "3"}));
  const auto errors = Lines(At(batch, "/error_file_id"));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(At(errors[0], "/response/status_code"), "400");
  EXPECT_THAT(At(errors[0], "/response/body/error/message"), HasSubstr("what"));
}

// An answer has begun with code 200 and breaks: a request that found no room runs again, another error is its answer.
TEST_F(BatchesTest, AnAnswerThatBreaksIsNoAnswer) {
  int asked = 0;
  Router routes;
  routes.Add({.method = "POST", .path = kComplete, .role = Role::kUser, .handler = [&asked](Exchange& exchange) {
                return [](Exchange& e, int* count) -> Awaitable<void> {
                  HttpResponse head{.body = "{"};
                  co_await e.Begin(std::move(head));
                  e.Broke(++*count == 1 ? 503 : 500);
                  std::string rest = R"("error":{"message":"it broke"}})";
                  co_await e.Write(std::move(rest));
                }(exchange, &asked);
              }});
  Run(std::move(routes));
  const json::value batch = Wait(Batch(Request("1")));
  EXPECT_EQ(At(batch, "/request_counts"), R"({"total":1,"completed":0,"failed":1})");
  const auto errors = Lines(At(batch, "/error_file_id"));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(At(errors[0], "/response/status_code"), "500");
  EXPECT_EQ(At(errors[0], "/response/body/error/message"), "it broke");
  EXPECT_EQ(asked, 2);
}

TEST_F(BatchesTest, AnAnswerThatIsTooLongIsAnError) {
  Router routes;
  routes.Add({.method = "POST", .path = kComplete, .role = Role::kUser, .handler = [](Exchange& exchange) {
                return [](Exchange& e) -> Awaitable<void> {
                  HttpResponse head;
                  co_await e.Begin(std::move(head));
                  bool there = true;
                  for (int i = 0; there && i < 70; ++i) {
                    std::string piece(1 << 20, ' ');
                    there = co_await e.Write(std::move(piece));
                  }
                  EXPECT_FALSE(there);
                }(exchange);
              }});
  Run(std::move(routes));
  const json::value batch = Wait(Batch(Request("1")));
  EXPECT_EQ(At(batch, "/request_counts"), R"({"total":1,"completed":0,"failed":1})");
  EXPECT_THAT(At(Lines(At(batch, "/error_file_id"))[0], "/response/body/error/message"), HasSubstr("67108864 bytes"));
}

// The runner ends at any moment, and another store goes on: each request has one answer.
TEST_F(BatchesTest, ABatchGoesOnAfterEachEnd) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += Request(std::to_string(i), 4);
  const std::string id = Batch(lines);
  for (int ends = 0; ends < 5; ++ends) {
    const auto before = store_->Find(0, id)->completed;
    Run();
    for (int i = 0; i < 2000 && store_->Find(0, id)->completed < before + 3; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    runner_.reset();
    Open();
  }
  EXPECT_GE(store_->Find(0, id)->completed, 15u);
  Run();
  const json::value batch = Wait(id);
  EXPECT_EQ(At(batch, "/request_counts"), R"({"total":40,"completed":40,"failed":0})");
  std::set<std::string> ids;
  for (const json::value& line : Lines(At(batch, "/output_file_id")))
    EXPECT_TRUE(ids.insert(At(line, "/custom_id")).second);
  EXPECT_EQ(ids.size(), 40u);
}

TEST_F(BatchesTest, ACancelledBatchKeepsWhatItHas) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += Request(std::to_string(i), 4);
  const std::string id = Batch(lines);
  Call("DELETE", std::string(kFiles) + "/" + At(Call("GET", std::string(kBatches) + "/" + id), "/input_file_id"), "",
       409);
  Run();
  while (store_->Find(0, id)->completed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  Call("POST", std::string(kBatches) + "/" + id + "/cancel");
  const json::value batch = Wait(id);
  EXPECT_EQ(At(batch, "/status"), "cancelled");
  const auto answers = Lines(At(batch, "/output_file_id"));
  EXPECT_GE(answers.size(), 2u);
  EXPECT_LT(answers.size(), 200u);
  Call("POST", std::string(kBatches) + "/" + id + "/cancel", "", 409);
}

TEST_F(BatchesTest, WrongBatchesHaveTheirSentence) {
  const auto refused = [this](const std::string& lines, const std::string& endpoint) {
    const auto file = store_->AddFile(0, "in", "batch", lines);
    const auto exchange = api_.Call(
        "POST", kBatches,
        R"({"input_file_id":")" + file->id + R"(","endpoint":")" + endpoint + R"(","completion_window":"24h"})");
    EXPECT_EQ(exchange->answer.status, 400);
    return At(Json(exchange->answer.body), "/error/message");
  };
  EXPECT_THAT(refused(Request("1"), "/v1/models"), HasSubstr("no batch can ask"));
  EXPECT_THAT(refused(Request("1"), "/v1/embeddings"), HasSubstr("line 1: url is /v1/completions"));
  EXPECT_THAT(refused(Request("1") + Request("1"), "/v1/completions"), HasSubstr("stands twice"));
  Call("POST", kBatches, R"({"input_file_id":"file-x","endpoint":"/v1/completions","completion_window":"24h"})", 404);
  Call("POST", kBatches, R"({"endpoint":"/v1/completions","completion_window":"24h"})", 400);
  Call("POST", kBatches, R"({"input_file_id":"f","endpoint":"/v1/completions","completion_window":"1h"})", 400);
}

}  // namespace
}  // namespace gyre::http
