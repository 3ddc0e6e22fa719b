#include "client/cluster_api.h"

#include <algorithm>
#include <boost/json.hpp>

#include "client/openai.h"
#include "http_client/error_text.h"
#include "http_client/json_fields.h"
#include "proto/status_json.h"

namespace gyre {
namespace {

namespace json = boost::json;

Status NoGyre(const Url& url) {
  return Unimplemented("{}: this server is not Gyre, or hides its cluster: it has no /cluster", FormatUrl(url));
}

StatusOr<json::value> Body(const HttpClient& client, const HttpResponse& r) {
  if (r.code == 404 || r.code == 405) return NoGyre(client.url());
  if (r.code != 200) return ApiError(client.url(), r);
  json::error_code error;
  json::value v = json::parse(r.body, error);
  if (error || !v.is_object()) {
    return DataLoss("{}/cluster: expected the JSON of a cluster's state", FormatUrl(client.url()));
  }
  return v;
}

void ReadEngine(const json::value& e, v1::StatusReply* out) {
  out->set_requests(CountOf(e, "requests"));
  out->set_finished(CountOf(e, "finished"));
  out->set_failed(CountOf(e, "failed"));
  out->set_cancelled(CountOf(e, "cancelled"));
  out->set_tokens_generated(CountOf(e, "tokens_generated"));
  out->set_blocks(CountOf(e, "blocks"));
  out->set_blocks_available(CountOf(e, "blocks_available"));
  out->set_window_blocks(CountOf(e, "window_blocks"));
  out->set_window_blocks_available(CountOf(e, "window_blocks_available"));
  out->set_pauses(CountOf(e, "pauses"));
  out->set_last_pause_ms(NumberOf(e, "last_pause_ms", 0));
  out->set_longest_pause_ms(NumberOf(e, "longest_pause_ms", 0));
  constexpr uint64_t kMaxSequences = 100000;
  uint64_t running = 0;
  for (const char* state : {"waiting", "prefill", "decode", "held"}) running += CountOf(e, state);
  for (uint64_t i = 0; i < std::min(running, kMaxSequences); ++i) out->add_sequences();
}

}  // namespace

StatusOr<ServerCluster> FetchCluster(HttpClient* client, const std::function<bool()>& interrupted) {
  GYRE_ASSIGN_OR_RETURN(const HttpResponse r, client->Fetch({.target = client->url().path + "/cluster"}, interrupted));
  GYRE_ASSIGN_OR_RETURN(const json::value v, Body(*client, r));
  if (TextOf(v, "object") != "cluster") return NoGyre(client->url());
  ServerCluster out;
  v1::StatusReply& s = out.status;
  s.set_version(TextOf(v, "version"));
  if (const json::value* flags = FieldOf(v, "flags"); flags != nullptr && flags->is_object()) {
    for (const auto& [name, value] : flags->get_object()) {
      out.flags.emplace_back(Printable(std::string(name)),
                             Printable(value.is_string() ? std::string(value.get_string()) : ""));
    }
  }
  s.set_state(TextOf(v, "state"));
  if (const json::value* plan = FieldOf(v, "plan")) {
    s.mutable_epoch()->set_number(CountOf(*plan, "number"));
    s.set_ranges(TextOf(*plan, "ranges"));
  }
  s.set_transport(TextOf(v, "transport"));
  if (const json::value* hop = FieldOf(v, "first_hop")) s.set_first_hop_transport(TextOf(*hop, "transport"));
  if (const json::value* model = FieldOf(v, "model")) {
    s.set_model(TextOf(*model, "id"));
    s.set_num_layers(static_cast<int32_t>(CountOf(*model, "layers")));
    s.set_context(static_cast<uint32_t>(CountOf(*model, "context")));
    s.set_wire(TextOf(*model, "wire"));
    out.vocab = static_cast<int>(std::min<uint64_t>(CountOf(*model, "vocab"), 1 << 30));
    out.model_json = json::serialize(*model);
  }
  if (const json::value* members = FieldOf(v, "members"); members != nullptr && members->is_array()) {
    for (const json::value& m : members->get_array()) *s.add_members() = ReadMember(m);
  }
  if (const json::value* engine = FieldOf(v, "engine")) ReadEngine(*engine, &s);
  if (const json::value* plans = FieldOf(v, "plans")) {
    s.set_plans(CountOf(*plans, "made"));
    s.set_aborted(CountOf(*plans, "aborted"));
    s.set_lost(CountOf(*plans, "lost"));
  }
  return out;
}

StatusOr<v1::ChangeReply> ResizeCluster(HttpClient* client, const std::string& ranges,
                                        const std::function<bool()>& interrupted) {
  GYRE_ASSIGN_OR_RETURN(const HttpResponse r, client->Fetch({.method = "POST",
                                                             .target = client->url().path + "/cluster/resize",
                                                             .body = json::serialize(json::object{{"ranges", ranges}})},
                                                            interrupted));
  GYRE_ASSIGN_OR_RETURN(const json::value v, Body(*client, r));
  v1::ChangeReply out;
  out.mutable_epoch()->set_number(CountOf(v, "plan"));
  out.set_ranges(TextOf(v, "ranges"));
  out.set_pages_moved(CountOf(v, "pages_moved"));
  out.set_last_pages(CountOf(v, "last_pages"));
  out.set_took_ms(NumberOf(v, "took_ms", 0));
  return out;
}

}  // namespace gyre
