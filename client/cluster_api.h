// Gyre's own routes over HTTP: the cluster's state, and resizes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gyre/v1/admin.pb.h"
#include "http_client/http_client.h"

namespace gyre {

struct ServerCluster {
  v1::StatusReply status;
  int vocab = 0;
  std::string model_json;                                  // how the server describes its model, a JSON object
  std::vector<std::pair<std::string, std::string>> flags;  // of its engine, that it was started with
};

// GET BASE/cluster. kUnimplemented: the server is not Gyre; kDataLoss: the body is not a cluster's state; other
// errors as Fetch and ApiError.
StatusOr<ServerCluster> FetchCluster(HttpClient* client, const std::function<bool()>& interrupted);
// POST BASE/cluster/resize; returns when the new plan serves, or why it does not. `ranges` as in `gyre resize`.
StatusOr<v1::ChangeReply> ResizeCluster(HttpClient* client, const std::string& ranges,
                                        const std::function<bool()>& interrupted);

}  // namespace gyre
