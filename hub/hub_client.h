// A client of a model hub with Hugging Face's HTTP API: its address, the user's token, the contents of a repository.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/fwd.hpp"
#include "http_client/http_fetcher.h"

namespace gyre {

// The address of the hub and the user's token. Only the endpoint is required.
struct HubOptions {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token;                                // sent to the endpoint's host and port, nowhere else
  std::string token_source;                         // for messages: "--token", "HF_TOKEN" or the file's path
  std::string ca_file;                              // PEM certificates that are trusted beside the system's
  ProxySettings proxies;
};

// The values from the command line; "" = none.
struct HubFlags {
  std::string endpoint, token, ca_file;
};

// A variable of the environment; nullopt: it is not set.
using GetEnv = std::function<std::optional<std::string>(const std::string&)>;
GetEnv ProcessEnvironment();

// Flags win over the environment (HF_ENDPOINT, HF_TOKEN, HUGGING_FACE_HUB_TOKEN), which wins over the token file:
// HF_TOKEN_PATH, HF_HOME/token, XDG_CACHE_HOME/huggingface/token or ~/.cache/huggingface/token. Proxies are those of
// the environment. kInvalidArgument: an endpoint or a proxy that is no URL, a token that no header can carry.
StatusOr<HubOptions> MakeHubOptions(const HubFlags& flags, const GetEnv& env);

struct RepoFile {
  std::string path;      // within the repository, with '/'; never absolute, without "." and ".." as parts
  uint64_t size = 0;     // bytes
  std::string sha256;    // 64 lower-case hexadecimal digits; "" = the hub does not say it, as of small files
  std::string git_sha1;  // Git's name of the blob, 40 digits, where there is no sha256; "" = not told
  std::string url;       // where its bytes are, for Download and RemoteFile
};

struct RepoListing {
  std::string commit;  // 40 or 64 hexadecimal digits: what the revision means now
  std::vector<RepoFile> files;
};

// Not thread-safe; a call blocks the thread that makes it.
class HubClient {
 public:
  // kInvalidArgument, kNotFound: the endpoint or the CA file.
  static StatusOr<std::unique_ptr<HubClient>> Make(const HubOptions& options);

  // The files of "ORG/REPO" (or "REPO") at a branch, tag or commit. Errors are sentences that say what to do:
  // kInvalidArgument: the name is not possible; kUnauthenticated (401), kPermissionDenied (403), kNotFound (404),
  // kResourceExhausted (429, with the time to wait); kUnavailable: no connection, or the hub is out of order;
  // kDataLoss: not an answer of a hub; kCancelled: `interrupted`, which is asked every 50 ms.
  StatusOr<RepoListing> List(const std::string& repo, const std::string& revision,
                             const std::function<bool()>& interrupted);

  const HubOptions& options() const { return options_; }

 private:
  HubClient(HubOptions options, std::unique_ptr<HttpFetcher> fetcher);
  StatusOr<boost::json::value> FetchJson(const std::string& what, const std::string& url, HttpHeaders* headers,
                                         const std::function<bool()>& interrupted);
  Status FetchTree(const std::string& repo, RepoListing* out, const std::function<bool()>& interrupted);
  Status AddFile(const std::string& repo, RepoFile file, RepoListing* out) const;

  const HubOptions options_;
  const std::unique_ptr<HttpFetcher> fetcher_;
};

// A fetcher that sends the hub's token to the hub only. http: time limits and sizes. Errors as HubClient::Make.
StatusOr<std::unique_ptr<HttpFetcher>> MakeHubFetcher(const HubOptions& options, const HttpClientOptions& http);

// The error of an answer whose code is not 2xx, as in List. server: the one that answered, the hub or another; what:
// "ORG/REPO" or a URL.
Status HubError(const HubOptions& options, const Url& server, const std::string& what, const HttpHead& head,
                const std::string& body);

}  // namespace gyre
