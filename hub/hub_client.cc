#include "hub/hub_client.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "http_client/error_text.h"
#include "http_client/json_fields.h"
#include "hub/range_answer.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr size_t kLongestListing = size_t{64} << 20;  // bytes of JSON
constexpr size_t kMostFiles = 100000;

bool IsHex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool IsCommit(const std::string& text) { return IsHex(text, 40) || IsHex(text, 64); }

Status CheckRepo(const std::string& repo) {
  constexpr size_t kLongest = 200;
  bool good = !repo.empty() && repo.size() <= kLongest && std::count(repo.begin(), repo.end(), '/') <= 1;
  for (const char c : repo) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    std::string_view("/-._").find(c) != std::string_view::npos);
  }
  const size_t slash = repo.find('/');
  for (const std::string& part : {repo.substr(0, slash), slash == std::string::npos ? "x" : repo.substr(slash + 1)}) {
    good = good && !part.empty() && part[0] != '.' && part[0] != '-';
  }
  if (!good) return InvalidArgument("'{}' is no name of a repository, expected ORG/REPO", Printable(repo));
  return absl::OkStatus();
}

// Whether a path stays within the folder to which it is relative.
bool IsSafePath(const std::string& path) {
  constexpr size_t kLongest = 1024;
  if (path.empty() || path.size() > kLongest) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7F' || c == '\\') return false;
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

std::string FileUrl(const HubOptions& options, const std::string& repo, const std::string& commit,
                    const std::string& path) {
  return options.endpoint + "/" + repo + "/resolve/" + commit + "/" + EscapePath(path);
}

// The revision with escapes, as one part of a path.
std::string EscapeRevision(const std::string& revision) {
  std::string out;
  for (const char c : EscapePath(revision)) out += c == '/' ? "%2F" : std::string(1, c);
  return out;
}

// The URL in `Link: <URL>; rel="next"`; "" = this page is the last.
std::string NextPage(const HttpHeaders& headers) {
  const std::string link = FindHeader(headers, "link");
  const size_t rel = link.find("rel=\"next\"");
  const size_t end = link.rfind('>', rel), begin = link.rfind('<', end);
  if (rel == std::string::npos || end == std::string::npos || begin == std::string::npos) return "";
  return link.substr(begin + 1, end - begin - 1);
}

}  // namespace

StatusOr<std::unique_ptr<HttpFetcher>> MakeHubFetcher(const HubOptions& options, const HttpClientOptions& http) {
  GYRE_ASSIGN_OR_RETURN(Url server, ParseUrl(options.endpoint));
  server.path.clear();
  HttpFetcherOptions fetcher{.http = http, .bearer_for = server, .proxies = options.proxies};
  fetcher.http.ca_file = options.ca_file;
  fetcher.http.bearer = options.token;
  return HttpFetcher::Make(std::move(fetcher));
}

HubClient::HubClient(HubOptions options, std::unique_ptr<HttpFetcher> fetcher)
    : options_(std::move(options)), fetcher_(std::move(fetcher)) {}

StatusOr<std::unique_ptr<HubClient>> HubClient::Make(const HubOptions& options) {
  GYRE_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpFetcher> fetcher,
      MakeHubFetcher(options, {.idle_timeout = std::chrono::seconds(60), .max_body_bytes = kLongestListing}));
  return std::unique_ptr<HubClient>(new HubClient(options, std::move(fetcher)));
}

StatusOr<json::value> HubClient::FetchJson(const std::string& what, const std::string& url, HttpHeaders* headers,
                                           const std::function<bool()>& interrupted) {
  GYRE_ASSIGN_OR_RETURN(HttpFetched r, fetcher_->Get(url, {{"Accept", "application/json"}}, interrupted));
  if (r.code != 200) return HubError(options_, r.address.server, what, r, r.body);
  json::error_code error;
  json::value v = json::parse(r.body, error);
  if (error) return DataLoss("{}: not a hub: {}, expected JSON", FormatAddress(r.address), error.message());
  *headers = std::move(r.headers);
  return v;
}

// The tree has the sizes that some mirrors leave out of the revision's description.
Status HubClient::FetchTree(const std::string& repo, RepoListing* out, const std::function<bool()>& interrupted) {
  const std::string first = options_.endpoint + "/api/models/" + repo + "/tree/" + out->commit + "?recursive=true";
  out->files.clear();
  std::set<std::string> pages;
  for (std::string url = first; !url.empty();) {
    if (!pages.insert(url).second) return DataLoss("{}: pages of files that have no end", repo);
    HttpHeaders headers;
    GYRE_ASSIGN_OR_RETURN(const json::value page, FetchJson(repo, url, &headers, interrupted));
    const json::array* entries = page.if_array();
    if (entries == nullptr) return DataLoss("{}: not a hub: expected a list of files", url);
    for (const json::value& entry : *entries) {
      if (TextOf(entry, "type") != "file") continue;
      const json::value* lfs = FieldOf(entry, "lfs");
      GYRE_RETURN_IF_ERROR(AddFile(repo,
                                   {.path = TextOf(entry, "path"),
                                    .size = CountOf(entry, "size"),
                                    .sha256 = lfs == nullptr ? "" : TextOf(*lfs, "oid"),
                                    .git_sha1 = lfs == nullptr ? TextOf(entry, "oid") : ""},
                                   out));
    }
    url = NextPage(headers);
    if (url.empty()) break;
    GYRE_ASSIGN_OR_RETURN(const HttpAddress base, ParseAddress(first));
    const StatusOr<HttpAddress> next = ResolveReference(base, url);
    if (!next.ok() || !(next->server == base.server)) return DataLoss("{}: the next page is elsewhere", repo);
    url = FormatUrl(next->server) + next->target;
  }
  return absl::OkStatus();
}

Status HubClient::AddFile(const std::string& repo, RepoFile file, RepoListing* out) const {
  if (!IsSafePath(file.path)) return DataLoss("{}: a file '{}', expected a path within it", repo, Printable(file.path));
  if (out->files.size() == kMostFiles) return ResourceExhausted("{}: more than {} files", repo, kMostFiles);
  if (!IsHex(file.sha256, 64)) file.sha256.clear();
  if (!file.sha256.empty() || !IsHex(file.git_sha1, 40)) file.git_sha1.clear();
  file.url = FileUrl(options_, repo, out->commit, file.path);
  out->files.push_back(std::move(file));
  return absl::OkStatus();
}

StatusOr<RepoListing> HubClient::List(const std::string& repo, const std::string& revision,
                                      const std::function<bool()>& interrupted) {
  GYRE_RETURN_IF_ERROR(CheckRepo(repo));
  if (revision.empty() || revision.size() > 200) return InvalidArgument("a revision of {} bytes", revision.size());
  const std::string what = revision == "main" ? repo : repo + "@" + Printable(revision);
  const std::string url = options_.endpoint + "/api/models/" + repo + "/revision/" + EscapeRevision(revision);
  HttpHeaders headers;
  GYRE_ASSIGN_OR_RETURN(const json::value v, FetchJson(what, url + "?blobs=true", &headers, interrupted));
  RepoListing out;
  out.commit = TextOf(v, "sha");
  const json::value* siblings = FieldOf(v, "siblings");
  if (!IsCommit(out.commit) || siblings == nullptr || !siblings->is_array()) {
    return DataLoss("{}: not a hub: expected a commit and its files", url);
  }
  bool sizes = true;
  for (const json::value& sibling : siblings->get_array()) {
    const json::value* lfs = FieldOf(sibling, "lfs");
    sizes = sizes && FieldOf(sibling, "size") != nullptr;
    GYRE_RETURN_IF_ERROR(AddFile(repo,
                                 {.path = TextOf(sibling, "rfilename"),
                                  .size = CountOf(sibling, "size"),
                                  .sha256 = lfs == nullptr ? "" : TextOf(*lfs, "sha256"),
                                  .git_sha1 = lfs == nullptr ? TextOf(sibling, "blobId") : ""},
                                 &out));
  }
  if (!sizes) GYRE_RETURN_IF_ERROR(FetchTree(repo, &out, interrupted));
  return out;
}

namespace {

Status Unauthenticated(const std::string& text) { return MakeStatus(absl::StatusCode::kUnauthenticated, "{}", text); }
Status PermissionDenied(const std::string& text) { return MakeStatus(absl::StatusCode::kPermissionDenied, "{}", text); }

// The hub itself answers 401 or 403. said: its own words, in brackets, or "".
Status AccessError(const HubOptions& options, const std::string& what, const HttpHead& head, const std::string& said) {
  const bool token = !options.token.empty();
  const std::string given = "the token from " + options.token_source;
  if (FindHeader(head.headers, "x-error-code") == "GatedRepo") {
    const std::string text = fmt::format(
        "{}: its owner gives access on request: accept the conditions on its page at {}", what, options.endpoint);
    return token ? PermissionDenied(text + " with the account of " + given)
                 : Unauthenticated(text + ", then give a token by --token or HF_TOKEN");
  }
  if (head.code == 403) {
    return PermissionDenied(fmt::format("{}: {} refuses access; {}{}", what, options.endpoint,
                                        token ? given + " may not read it" : "a token by --token or HF_TOKEN may help",
                                        said));
  }
  return Unauthenticated(
      token ? fmt::format("{}: {} does not take {}: check the name, or make a new token there{}", what,
                          options.endpoint, given, said)
            : fmt::format("{}: there is no such public repository: check the name, or, for a private one, give a token "
                          "by --token or HF_TOKEN",
                          what));
}

}  // namespace

Status HubError(const HubOptions& options, const Url& server, const std::string& what, const HttpHead& head,
                const std::string& body) {
  const StatusOr<Url> endpoint = ParseUrl(options.endpoint);
  const bool hub = endpoint.ok() && FormatUrl({endpoint->tls, endpoint->host, endpoint->port, ""}) == FormatUrl(server);
  const std::string who = hub ? options.endpoint : FormatUrl(server);
  const std::string text = ErrorText(head, body);
  const std::string said = text.empty() ? "" : fmt::format(" ({} says: {})", hub ? "the hub" : "it", text);
  switch (head.code) {
    case 401:
    case 403:
      if (hub) return AccessError(options, what, head, said);
      return PermissionDenied(fmt::format("{}: {} refuses access with code {}{}", what, who, head.code, said));
    case 404: {
      const std::string reason = FindHeader(head.headers, "x-error-code");
      if (reason == "RevisionNotFound") return NotFound("{}: there is no such branch, tag or commit", what);
      if (reason == "EntryNotFound") return NotFound("{}: there is no such file", what);
      return NotFound("{}: {} does not have it: check the name", what, who);
    }
    case 407:
      return PermissionDenied(fmt::format("{}: the proxy asks for a user and a password: give them in its URL", what));
    case 429: {
      const std::optional<Duration> wait = RetryAfter(head);
      const std::string when =
          wait ? fmt::format("in {} s", std::chrono::duration_cast<std::chrono::seconds>(*wait).count()) : "later";
      const bool advise = hub && options.token.empty();
      return ResourceExhausted("{}: {} limits requests: try again {}{}", what, who, when,
                               advise ? ", or with a token (--token, HF_TOKEN), which is limited less" : "");
    }
    default: break;
  }
  const std::string answer = fmt::format("{}: {} answers {} {}{}", what, who, head.code, Printable(head.reason), said);
  if (head.code / 100 == 5 || head.code == 408) return Unavailable("{}; try again later", answer);
  return DataLoss("{}", answer);
}

}  // namespace gyre
