// A cluster and its changes as the JSON of /v1/cluster. Pure. Layers count from 0, both ends included.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "boost/json/object.hpp"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/engine/engine.h"

namespace gyre::http {

// Facts that neither cluster nor engine have.
struct ServedFacts {
  std::string version;  // Gyre's
  // The flags of the engine that the server was started with; "true" stands for the value of one that takes none.
  std::vector<std::pair<std::string, std::string>> flags;
  std::string model;  // its name in the API
  std::string architecture;
  int layers = 0;
  uint32_t context = 0;  // positions
  int vocab = 0;
  std::string weights;  // the type that most of them have
  std::string hash;     // of the file
};

boost::json::object StatusJson(const ServedFacts& of, const ClusterStatus& cluster, const EngineStats& engine);
boost::json::object ChangeJson(const ChangeReport& report);

}  // namespace gyre::http
