// The headers of a model's files, without the weights: read from a server by ranges.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "hub/pull.h"

namespace gyre {

// Files with the model's sizes and headers, and holes in place of the weights. They are removed with the object.
class RemoteHeaders {
 public:
  // Errors as RemoteFile and PullPlan; kDataLoss: a header is damaged; kUnavailable: no folder for temporary files.
  static StatusOr<std::unique_ptr<RemoteHeaders>> Fetch(const PullPlan& plan, const PullOptions& options);
  ~RemoteHeaders();
  RemoteHeaders(const RemoteHeaders&) = delete;
  RemoteHeaders& operator=(const RemoteHeaders&) = delete;

  // The path for OpenModel. Shapes and metadata are right, all weights are 0.
  const std::string& path() const { return path_; }
  uint64_t fetched() const { return fetched_; }  // bytes that came over the network

 private:
  explicit RemoteHeaders(std::string folder) : folder_(std::move(folder)) {}
  Status FetchFile(const std::string& path, const std::string& url, const PullOptions& options);

  const std::string folder_;
  std::string path_;
  uint64_t fetched_ = 0;
};

}  // namespace gyre
