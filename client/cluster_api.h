// Gyre's own routes over HTTP: the cluster's state, and resizes.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "client/http_client.h"
#include "gyre/v1/admin.pb.h"

namespace gyre {

struct ServerCluster {
  v1::StatusReply status;
  int vocab = 0;
  std::string model_json;  // how the server describes its model, a JSON object
};

// GET BASE/cluster. kUnimplemented: the server is not Gyre; kDataLoss: the body is not a cluster's state; other
// errors as Fetch and ApiError.
StatusOr<ServerCluster> FetchCluster(HttpClient* client, const std::function<bool()>& interrupted);
// POST BASE/cluster/resize; returns when the new plan serves, or why it does not. `ranges` as in `gyre resize`.
StatusOr<v1::ChangeReply> ResizeCluster(HttpClient* client, const std::string& ranges,
                                        const std::function<bool()>& interrupted);

}  // namespace gyre
