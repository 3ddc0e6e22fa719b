#include "batch/batch_lines.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <unordered_set>

#include "base/sha256.h"
#include "fmt/core.h"

namespace gyre {
namespace {

namespace json = boost::json;

// An answer is parsed with its line around it, so a line may be deeper than a body.
constexpr size_t kBodyDepth = 512, kLineDepth = kBodyDepth + 8;

json::value Parse(std::string_view text, size_t depth, boost::system::error_code* error) {
  json::parse_options options;
  options.max_depth = depth;
  return json::parse({text.data(), text.size()}, *error, {}, options);
}

// Whether the field is there and is another text than `usual`.
bool Asks(const json::object& body, const char* name, const char* usual) {
  const json::value* value = body.if_contains(name);
  return value != nullptr && value->is_string() && value->get_string() != usual;
}

std::string_view View(json::string_view text) { return {text.data(), text.size()}; }

StatusOr<std::string> TextOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains({name.data(), name.size()});
  if (value == nullptr || !value->is_string() || value->get_string().empty())
    return InvalidArgument("{} must be a text that is not empty", name);
  return std::string(value->get_string());
}

// The same for the same request, also in another run.
std::string AnswerId(const BatchRequest& request) {
  const Hash256 hash = Sha256(request.custom_id + '\n' + request.path + '\n' + request.body);
  std::string id = "batch_req_";
  for (size_t i = 0; i < 12; ++i) id += fmt::format("{:02x}", static_cast<unsigned>(hash[i]));
  return id;
}

json::object AnswerLine(const BatchRequest& request) {
  return {{"id", AnswerId(request)}, {"custom_id", request.custom_id}, {"response", nullptr}, {"error", nullptr}};
}

}  // namespace

const std::vector<std::string>& BatchPaths() {
  static const std::vector<std::string> kPaths = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                                  "/v1/responses", "/v1/score"};
  return kPaths;
}

StatusOr<BatchRequest> ReadBatchRequest(std::string_view line, const std::vector<std::string>& paths) {
  boost::system::error_code error;
  const json::value value = Parse(line, kLineDepth, &error);
  if (error) return InvalidArgument("not JSON ({})", error.message());
  const json::object* object = value.if_object();
  if (object == nullptr) return InvalidArgument("no JSON object");
  BatchRequest out;
  GYRE_ASSIGN_OR_RETURN(out.custom_id, TextOf(*object, "custom_id"));
  GYRE_ASSIGN_OR_RETURN(out.method, TextOf(*object, "method"));
  GYRE_ASSIGN_OR_RETURN(out.path, TextOf(*object, "url"));
  if (out.method != "POST") return InvalidArgument("method is {}; it must be POST", out.method);
  if (std::find(paths.begin(), paths.end(), out.path) == paths.end()) {
    std::string known;
    for (const std::string& path : paths) known += (known.empty() ? "" : ", ") + path;
    return InvalidArgument("url is {}; it may be {}", out.path, known);
  }
  const json::value* body = object->if_contains("body");
  if (body == nullptr || !body->is_object()) return InvalidArgument("body must be an object");
  if (const json::value* stream = body->get_object().if_contains("stream"); stream != nullptr && stream->is_bool()) {
    if (stream->get_bool()) return InvalidArgument("body.stream: a batch has whole answers");
  }
  if (out.path == "/v1/score") {
    if (Asks(body->get_object(), "format", "json")) return InvalidArgument("body.format: an answer of a batch is JSON");
    if (Asks(body->get_object(), "logits", "none"))
      return InvalidArgument("body.logits: they are too large for a batch");
  }
  for (const auto& [key, field] : *object) {
    const std::string_view name = View(key);
    if (name != "custom_id" && name != "method" && name != "url" && name != "body")
      return InvalidArgument("the field {} is not known", name);
  }
  out.body = json::serialize(*body);
  return out;
}

namespace {

// Calls take(request, where) for all of a file.
template <typename Take>
Status ReadLines(std::string_view text, const std::vector<std::string>& paths, const Take& take) {
  std::unordered_set<std::string> ids;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const BatchLine where{.at = static_cast<uint64_t>(line.data() - text.data()), .bytes = line.size()};
    StatusOr<BatchRequest> request = ReadBatchRequest(line, paths);
    if (!request.ok()) return Annotate(request.status(), fmt::format("line {}", number));
    if (!ids.insert(request->custom_id).second)
      return InvalidArgument("line {}: the custom_id {} stands twice", number, request->custom_id);
    take(*std::move(request), where);
  }
  return ids.empty() ? InvalidArgument("there is no request in it") : absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<BatchRequest>> ReadBatch(std::string_view text, const std::vector<std::string>& paths) {
  std::vector<BatchRequest> out;
  GYRE_RETURN_IF_ERROR(
      ReadLines(text, paths, [&out](BatchRequest request, const BatchLine&) { out.push_back(std::move(request)); }));
  return out;
}

StatusOr<std::vector<BatchLine>> FindRequests(std::string_view text, const std::vector<std::string>& paths) {
  std::vector<BatchLine> out;
  GYRE_RETURN_IF_ERROR(ReadLines(text, paths, [&out](BatchRequest request, BatchLine where) {
    where.custom_id = std::move(request.custom_id);
    out.push_back(std::move(where));
  }));
  return out;
}

BatchResult BatchAnswer(const BatchRequest& request, int status_code, std::string_view request_id,
                        std::string_view body) {
  boost::system::error_code error;
  json::value read = Parse(body, kBodyDepth, &error);
  if (error) read = json::string(body.data(), body.size());
  json::object line = AnswerLine(request);
  line["response"] = json::object{{"status_code", status_code},
                                  {"request_id", json::string(request_id.data(), request_id.size())},
                                  {"body", std::move(read)}};
  BatchResult out{.line = json::serialize(line) + "\n", .succeeded = status_code == 200};
  if (AnsweredId(out.line) == request.custom_id) return out;
  return {.line = BatchFailure(request, "invalid_answer", "the answer is no JSON and no text in UTF-8")};
}

std::string BatchFailure(const BatchRequest& request, std::string_view code, std::string_view message) {
  json::object line = AnswerLine(request);
  line["error"] = json::object{{"code", json::string(code.data(), code.size())},
                               {"message", json::string(message.data(), message.size())}};
  return json::serialize(line) + "\n";
}

std::string AnsweredId(std::string_view line) {
  boost::system::error_code error;
  const json::value value = Parse(line, kLineDepth, &error);
  if (error || !value.is_object()) return "";
  const json::object& object = value.get_object();
  if (!object.contains("response") || !object.contains("error")) return "";
  const StatusOr<std::string> id = TextOf(object, "custom_id");
  return id.ok() ? *id : "";
}

}  // namespace gyre
