#include "coordinator/http/batch_routes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "batch/batch_store.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/parse.hpp"
#include "coordinator/http/api_error.h"
#include "coordinator/http/generation.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "fmt/core.h"

namespace gyre::http {
namespace {

namespace json = boost::json;

constexpr std::string_view kFilesPath = "/v1/files/", kBatchesPath = "/v1/batches/", kContent = "/content",
                           kCancel = "/cancel";
constexpr size_t kMostParts = 16;

// In lower case, letters of ASCII.
std::string Lower(std::string_view text) { return absl::AsciiStrToLower(absl::string_view(text.data(), text.size())); }

// The value of NAME="VALUE" or NAME=VALUE in a header; "" = it is not there.
std::string ParameterOf(std::string_view header, std::string_view name) {
  for (size_t at = header.find(';'); at != std::string_view::npos; at = header.find(';', at + 1)) {
    std::string_view rest = header.substr(at + 1);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    if (rest.size() <= name.size() || Lower(rest.substr(0, name.size())) != name || rest[name.size()] != '=') continue;
    rest.remove_prefix(name.size() + 1);
    if (rest.empty() || rest[0] != '"') return std::string(rest.substr(0, rest.find_first_of("; \t")));
    return std::string(rest.substr(1, rest.find('"', 1) - 1));
  }
  return "";
}

json::object FileObject(const StoredFile& f) {
  return {{"id", f.id},
          {"object", "file"},
          {"bytes", f.bytes},
          {"created_at", f.created},
          {"filename", ValidUtf8(f.name)},
          {"purpose", f.purpose},
          {"status", "processed"}};
}

json::object BatchObject(const StoredBatch& b) {
  const std::string_view state = NameOf(b.state);
  const bool ended = b.ended != 0;
  json::object out{{"id", b.id},
                   {"object", "batch"},
                   {"endpoint", b.endpoint},
                   {"errors", nullptr},
                   {"input_file_id", b.input},
                   {"completion_window", "24h"},
                   {"status", JsonView(state)},
                   {"output_file_id", ended ? json::value(b.output) : json::value()},
                   {"error_file_id", ended && b.failed > 0 ? json::value(b.errors) : json::value()},
                   {"created_at", b.created},
                   {"in_progress_at", b.created},
                   {"completed_at", b.state == BatchState::kCompleted ? json::value(b.ended) : json::value()},
                   {"cancelled_at", b.state == BatchState::kCancelled ? json::value(b.ended) : json::value()}};
  out["request_counts"] = json::object{{"total", b.total}, {"completed", b.completed}, {"failed", b.failed}};
  boost::system::error_code error;
  out["metadata"] = json::parse(b.metadata, error);
  return out;
}

template <typename T>
json::object DescribeAll(const std::vector<T>& all, json::object (*describe)(const T&)) {
  json::array data;
  for (const T& one : all) data.push_back(describe(one));
  return {{"object", "list"}, {"data", std::move(data)}, {"has_more", false}};
}

// What a route answers, made on a thread of the service, as it reads and writes files.
struct Made {
  std::optional<ApiError> error;
  HttpResponse response;

  void Set(const Status& status, std::string param = "") { error = FromStatus(status, std::move(param)); }
  void Set(const json::object& object) { response.body = WriteJson(object); }
};
using MakeAnswer = void (*)(BatchStore&, const HttpRequest&, Made*);

Awaitable<void> AnswerBatchRoute(const ApiContext& context, Exchange& exchange, MakeAnswer make) {
  Made made;
  std::function<void()> work = [&] { make(*context.batches, exchange.request(), &made); };
  const Status posted = co_await RunOnService(exchange, context.service, std::move(work));
  if (!posted.ok()) made.Set(posted);
  if (made.error) {
    co_await RespondError(exchange, *std::move(made.error));
  } else {
    co_await exchange.Respond(std::move(made.response));
  }
}

// The id in a path behind its beginning.
std::string IdIn(const HttpRequest& request, std::string_view beginning, std::string_view end = "") {
  return request.path.substr(beginning.size(), request.path.size() - beginning.size() - end.size());
}

void UploadFile(BatchStore& store, const HttpRequest& request, Made* made) {
  const std::string* type = request.Header("content-type");
  const auto parts = ReadForm(type == nullptr ? "" : *type, request.body);
  if (!parts.ok()) return made->Set(parts.status());
  const FormPart *purpose = nullptr, *file = nullptr;
  for (const FormPart& part : *parts) {
    if (part.name == "purpose") purpose = &part;
    if (part.name == "file") file = &part;
    if (part.name != "purpose" && part.name != "file") {
      made->error = BadRequest(fmt::format("the field {} is not supported", ValidUtf8(part.name)));
      return;
    }
  }
  if (file == nullptr || purpose == nullptr) {
    made->error = BadRequest(file == nullptr ? "file is missing" : "purpose is missing");
    return;
  }
  const auto stored = store.AddFile(request.caller.tenant, file->filename, std::string(purpose->data), file->data);
  if (!stored.ok()) return made->Set(stored.status());
  made->Set(FileObject(*stored));
}

void ListFiles(BatchStore& store, const HttpRequest& request, Made* made) {
  made->Set(DescribeAll(store.Files(request.caller.tenant), FileObject));
}

void ShowFile(BatchStore& store, const HttpRequest& request, Made* made) {
  if (request.path.ends_with(kContent)) {
    auto content = store.Content(request.caller.tenant, IdIn(request, kFilesPath, kContent));
    if (!content.ok()) return made->Set(content.status());
    made->response.content_type = "application/octet-stream";
    made->response.body = *std::move(content);
    return;
  }
  const auto file = store.FindFile(request.caller.tenant, IdIn(request, kFilesPath));
  if (!file.ok()) return made->Set(file.status());
  made->Set(FileObject(*file));
}

void DeleteFile(BatchStore& store, const HttpRequest& request, Made* made) {
  const std::string id = IdIn(request, kFilesPath);
  const Status removed = store.RemoveFile(request.caller.tenant, id);
  if (!removed.ok()) return made->Set(removed);
  made->Set(json::object{{"id", id}, {"object", "file"}, {"deleted", true}});
}

void CreateBatch(BatchStore& store, const HttpRequest& request, Made* made) {
  json::object object;
  made->error = ParseBody(request.body, &object);
  if (made->error) return;
  JsonFields fields(object);
  for (const char* name : {"input_file_id", "endpoint", "completion_window"}) fields.Require(name);
  const std::string file = fields.String("input_file_id").value_or("");
  const std::string endpoint = fields.String("endpoint").value_or("");
  const std::string window = fields.String("completion_window").value_or("24h");
  const json::object* metadata = fields.Object("metadata");
  if (window != "24h")
    fields.Fail(BadRequest(fmt::format("completion_window is {}; it must be 24h", window), "completion_window"));
  made->error = fields.Finish();
  if (made->error) return;
  const auto batch =
      store.Create(request.caller.tenant, file, endpoint, metadata == nullptr ? "{}" : WriteJson(*metadata));
  if (!batch.ok()) return made->Set(batch.status());
  made->Set(BatchObject(*batch));
}

void ListBatches(BatchStore& store, const HttpRequest& request, Made* made) {
  made->Set(DescribeAll(store.Batches(request.caller.tenant), BatchObject));
}

void ShowBatch(BatchStore& store, const HttpRequest& request, Made* made) {
  const auto batch = store.Find(request.caller.tenant, IdIn(request, kBatchesPath));
  if (!batch.ok()) return made->Set(batch.status());
  made->Set(BatchObject(*batch));
}

void CancelBatch(BatchStore& store, const HttpRequest& request, Made* made) {
  if (!request.path.ends_with(kCancel)) {
    made->error =
        ApiError{.status = 404, .message = "there is no such route; POST /v1/batches/{id}/cancel cancels one"};
    return;
  }
  const auto batch = store.Cancel(request.caller.tenant, IdIn(request, kBatchesPath, kCancel));
  if (!batch.ok()) return made->Set(batch.status());
  made->Set(BatchObject(*batch));
}

}  // namespace

StatusOr<std::vector<FormPart>> ReadForm(std::string_view content_type, std::string_view body) {
  const std::string boundary = ParameterOf(content_type, "boundary");
  if (!Lower(content_type).starts_with("multipart/form-data") || boundary.empty())
    return InvalidArgument("the body must be multipart/form-data with a boundary");
  const auto wrong = [] { return InvalidArgument("the body is no multipart/form-data of its boundary"); };
  const std::string line = "--" + boundary, between = "\r\n--" + boundary;
  if (!body.starts_with(line)) return wrong();
  body.remove_prefix(line.size());
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    if (parts.size() == kMostParts) return InvalidArgument("the body has more than {} parts", kMostParts);
    if (!body.starts_with("\r\n")) return wrong();
    const size_t head = body.find("\r\n\r\n"), end = body.find(between, head);
    if (head == std::string_view::npos || end == std::string_view::npos || end < head + 4) return wrong();
    FormPart& part = parts.emplace_back();
    for (size_t at = 2; at < head;) {
      const size_t stop = std::min(body.find("\r\n", at), head);
      const std::string_view header = body.substr(at, stop - at);
      if (Lower(header).starts_with("content-disposition:")) {
        part.name = ParameterOf(header, "name");
        part.filename = ParameterOf(header, "filename");
      }
      at = stop + 2;
    }
    part.data = body.substr(head + 4, end - head - 4);
    body.remove_prefix(end + between.size());
  }
  return parts;
}

void AddBatchRoutes(Router& router, ApiContext& context) {
  if (context.batches == nullptr) return;
  const auto add = [&](const char* method, const std::string& path, MakeAnswer make) {
    router.Add({.method = method, .path = path, .role = Role::kUser, .handler = [&context, make](Exchange& exchange) {
                  return AnswerBatchRoute(context, exchange, make);
                }});
  };
  add("POST", "/v1/files", UploadFile);
  add("GET", "/v1/files", ListFiles);
  add("GET", "/v1/files/*", ShowFile);
  add("DELETE", "/v1/files/*", DeleteFile);
  add("POST", "/v1/batches", CreateBatch);
  add("GET", "/v1/batches", ListBatches);
  add("GET", "/v1/batches/*", ShowBatch);
  add("POST", "/v1/batches/*", CancelBatch);
}

}  // namespace gyre::http
