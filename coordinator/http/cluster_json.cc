#include "coordinator/http/cluster_json.h"

#include <utility>

#include "coordinator/http/json_text.h"
#include "coordinator/service/status_reply.h"
#include "model/quoted.h"
#include "proto/status_json.h"

namespace gyre::http {

namespace json = boost::json;

json::object StatusJson(const ServedFacts& of, const ClusterStatus& c, const EngineStats& e) {
  v1::StatusReply status;
  FillStatus(c, e, &status);
  status.set_version(of.version);
  status.set_model(ValidUtf8(of.model));
  status.set_num_layers(of.layers);
  status.set_context(of.context);
  json::object out = gyre::StatusJson(status);
  json::object flags;
  for (const auto& [name, value] : of.flags) flags[name] = PrintableSentence(value);
  out["flags"] = std::move(flags);
  json::object& model = out["model"].get_object();
  model["architecture"] = PrintableSentence(of.architecture);
  model["vocab"] = of.vocab;
  model["weights"] = of.weights;
  model["hash"] = of.hash;
  model["kv_type"] = KvTypeName(c.kv_type);
  return out;
}

json::object ChangeJson(const ChangeReport& report) {
  v1::ChangeReply change;
  FillChangeReply(report, &change);
  return gyre::ChangeJson(change);
}

}  // namespace gyre::http
