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
  return Unimplemented("{}: this server is not Gyre, or does not show its cluster: it has no route /cluster",
                       FormatUrl(url));
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

}  // namespace

StatusOr<ServerCluster> FetchCluster(HttpClient* client, const std::function<bool()>& interrupted) {
  GYRE_ASSIGN_OR_RETURN(const HttpResponse r, client->Fetch({.target = client->url().path + "/cluster"}, interrupted));
  GYRE_ASSIGN_OR_RETURN(const json::value v, Body(*client, r));
  if (TextOf(v, "object") != "cluster") return NoGyre(client->url());
  ServerCluster out{.status = ReadStatus(v)};
  for (v1::ClusterEvent& event : *out.status.mutable_events()) event.set_text(Printable(event.text()));
  if (const json::value* flags = FieldOf(v, "flags"); flags != nullptr && flags->is_object()) {
    for (const auto& [name, value] : flags->get_object()) {
      out.flags.emplace_back(Printable(std::string(name)),
                             Printable(value.is_string() ? std::string(value.get_string()) : ""));
    }
  }
  if (const json::value* model = FieldOf(v, "model")) {
    out.vocab = static_cast<int>(std::min<uint64_t>(CountOf(*model, "vocab"), 1 << 30));
    out.model_json = json::serialize(*model);
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
  return ReadChange(v);
}

}  // namespace gyre
