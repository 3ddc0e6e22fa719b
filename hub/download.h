// Downloads one remote file into one local file: over several connections, resumed after interruptions, checked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "hub/hub_client.h"

namespace gyre {

struct DownloadRequest {
  std::string url;               // http or https; it may redirect to another host
  std::string path;              // the finished file; its folder exists, and it is replaced where it exists
  std::optional<uint64_t> size;  // what the listing says; nullopt = what the server says
  std::string sha256;            // 64 hexadecimal digits; "" = unknown
  std::string git_sha1;          // looked at where sha256 is unknown; "" = unknown
};

struct DownloadProgress {
  uint64_t bytes = 0;           // that are there, with those of earlier runs
  uint64_t total = 0;           // 0 = not known yet
  double bytes_per_second = 0;  // the mean of the last seconds; 0 = not known yet
  bool checking = false;        // all bytes are there, the last are hashed
  Duration waiting{};           // until the next attempt, where nothing runs; 0 = it goes on
  std::string trouble;          // why it waits, a sentence; "" = it does not
};

struct DownloadOptions {
  int connections = 8;                                       // at most, at once
  uint64_t range_bytes = uint64_t{16} << 20;                 // bytes that one request asks for
  std::function<void(const DownloadProgress&)> on_progress;  // some times a second, on the caller's thread; may be null
  std::function<bool()> interrupted;                         // asked every 50 ms; may be null
  // A connection without new bytes is given up after idle_timeout. A download without a new byte is given up after
  // `attempts` failures in succession; the pause between them doubles from first_pause to longest_pause.
  Duration idle_timeout = std::chrono::seconds(30);
  Duration first_pause = std::chrono::milliseconds(500);
  Duration longest_pause = std::chrono::seconds(30);
  int attempts = 8;
  Duration save_every = std::chrono::seconds(1);  // how often the state file is written
};

struct DownloadResult {
  uint64_t size = 0;
  std::string sha256;    // the hash of what lies in the file, 64 hexadecimal digits; always
  uint64_t resumed = 0;  // bytes that were there from an earlier run
};

// Bytes go to PartialPath(path), the list of present bytes to StatePath(path). Both stay after an error, and the next
// call continues from there if the remote file is still the same. At the end the partial file is renamed to `path`.
// Errors: HubError's for a refusal; kResourceExhausted: the disk is too small or full; kDataLoss: the hash is wrong
// (then nothing is kept), or the size is, or the file changed meanwhile; kUnavailable,
// kDeadlineExceeded: the network, after all attempts; kFailedPrecondition: another process downloads to this path;
// kCancelled: interrupted; kNotFound, kPermissionDenied: the folder. Blocks the thread that calls it; calls for
// different paths may run at the same time.
StatusOr<DownloadResult> Download(const DownloadRequest& request, const HubOptions& hub,
                                  const DownloadOptions& options);

std::string PartialPath(const std::string& path);
std::string StatePath(const std::string& path);
// Removes the rest of an unfinished download. OK if there is nothing.
// kFailedPrecondition: a process is downloading it.
Status RemovePartial(const std::string& path);

}  // namespace gyre
