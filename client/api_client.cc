#include "client/api_client.h"

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "client/sse.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Parses the bytes of an answer: a stream or, from a server that does not stream, one object.
class AnswerReader {
 public:
  explicit AnswerReader(const std::function<void(const ApiChunk&)>& on_chunk) : on_chunk_(on_chunk) {}

  void Take(std::string_view bytes) {
    if (!status_.ok()) return;
    if (!streams_ && whole_.size() < kLongestWhole) whole_ += bytes;
    const Status fed =
        events_.Feed(bytes, [this](std::string_view name, std::string_view data) { OnEvent(name, data); });
    if (status_.ok()) status_ = fed;
  }
  StatusOr<ApiEnd> Finish() {
    events_.Finish([this](std::string_view name, std::string_view data) { OnEvent(name, data); });
    const bool streamed = streams_;
    // It would be cleared while it is read.
    const std::string whole = std::move(whole_);
    if (!streams_ && status_.ok()) OnEvent("", whole);
    GYRE_RETURN_IF_ERROR(status_);
    // Half an answer must not pass for a whole one.
    if (streamed && !done_ && end_.finish_reason.empty()) {
      return DataLoss("the server's answer is cut off: its stream ended without a finish_reason and without [DONE]");
    }
    end_.total = Clock::now() - start_;
    return end_;
  }
  // Whether the answer broke, or a chunk was an error.
  bool failed() const { return !status_.ok(); }

 private:
  static constexpr size_t kLongestWhole = size_t{16} << 20;

  void OnEvent(std::string_view name, std::string_view data) {
    if (!status_.ok()) return;
    streams_ = true;
    whole_.clear();
    done_ |= data == "[DONE]";
    if (data == "[DONE]") return;
    const StatusOr<ApiChunk> chunk = ParseApiChunk(data, name);
    if (!chunk.ok()) {
      status_ = chunk.status();
      return;
    }
    if (chunk->usage) end_.usage = *chunk->usage;
    if (!chunk->finish_reason.empty()) end_.finish_reason = chunk->finish_reason;
    const bool says = !chunk->text.empty() || !chunk->reasoning.empty() || !chunk->ids.empty();
    if (says && end_.to_first_token == Duration::zero()) end_.to_first_token = Clock::now() - start_;
    on_chunk_(*chunk);
  }

  const std::function<void(const ApiChunk&)>& on_chunk_;
  const Deadline start_ = Clock::now();
  SseParser events_;
  std::string whole_;
  bool streams_ = false;
  bool done_ = false;  // [DONE] came
  ApiEnd end_;
  Status status_;
};

}  // namespace

StatusOr<std::unique_ptr<ApiClient>> ApiClient::Open(const ApiOptions& options,
                                                     const std::function<bool()>& interrupted) {
  GYRE_ASSIGN_OR_RETURN(const Url url, ParseApiUrl(options.url));
  GYRE_ASSIGN_OR_RETURN(auto http, HttpClient::Make(url, options.http));
  const auto models = FetchModels(http.get(), interrupted);
  const bool has_none = absl::IsNotFound(models.status()) || absl::IsDataLoss(models.status());
  if (!models.ok() && (options.model_id.empty() || !has_none)) return models.status();
  ApiModel model{.id = options.model_id};
  if (models.ok()) {
    if (options.model_id.empty()) model = models->front();
    for (const ApiModel& m : *models) {
      if (m.id == options.model_id) model = m;
    }
  }
  return std::unique_ptr<ApiClient>(new ApiClient(std::move(http), std::move(model)));
}

StatusOr<ApiEnd> ApiClient::Generate(json::object body, bool chat, const std::function<void(const ApiChunk&)>& on_chunk,
                                     const std::function<bool()>& interrupted) {
  body["model"] = model_.id;
  body["stream"] = true;
  body["stream_options"] = json::object{{"include_usage", true}};
  AnswerReader reader(on_chunk);
  GYRE_ASSIGN_OR_RETURN(
      const HttpResponse r,
      http_->FetchStream(
          {.method = "POST",
           .target = http_->url().path + (chat ? "/chat/completions" : "/completions"),
           .body = json::serialize(body)},
          [&reader](std::string_view bytes) { reader.Take(bytes); }, [&] { return interrupted() || reader.failed(); }));
  if (r.code != 200) return ApiError(http_->url(), r);
  return reader.Finish();
}

}  // namespace gyre
