// Reads parts of a remote file without downloading the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/status.h"
#include "hub/hub_client.h"

namespace gyre {

// Reads by ranges, in blocks of 1 MiB that are kept: many small reads close together are one request. Not thread-safe.
class RemoteFile {
 public:
  // Asks for the first block. Errors: HubError's; kUnimplemented: the server gives no ranges; kUnavailable,
  // kDeadlineExceeded, kDataLoss as HttpFetcher; kCancelled: `interrupted`, which is asked every 50 ms while the file
  // is open; it may be null.
  static StatusOr<std::unique_ptr<RemoteFile>> Open(const std::string& url, const HubOptions& hub,
                                                    std::function<bool()> interrupted);

  uint64_t size() const { return size_; }
  // `count` bytes from `offset`. kOutOfRange: they are not all in the file; kResourceExhausted: more than 256 MiB; else
  // as Open.
  StatusOr<std::string> Read(uint64_t offset, uint64_t count);
  // The number of bytes that came over the network.
  uint64_t fetched() const { return fetched_; }

 private:
  RemoteFile(std::string url, HubOptions hub, std::unique_ptr<HttpFetcher> fetcher, std::function<bool()> interrupted);
  Status FetchBlocks(uint64_t first, uint64_t last);

  const std::string url_;
  const HubOptions hub_;
  const std::unique_ptr<HttpFetcher> fetcher_;
  const std::function<bool()> interrupted_;
  uint64_t size_ = 0, fetched_ = 0;
  std::map<uint64_t, std::string> blocks_;  // by number
};

}  // namespace gyre
