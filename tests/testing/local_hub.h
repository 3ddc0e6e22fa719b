// A model hub in the test's process that looks like Hugging Face's from outside: listings, files that redirect to
// another host with ranges, tokens; and faults that a test chooses. TLS by an authority that is made here.
#pragma once

#include <openssl/evp.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/http_peer.h"

namespace gyre::testing {

// Lower-case hexadecimal. algorithm: EVP_sha256() or EVP_sha1().
inline std::string HexDigest(const std::string& bytes, const EVP_MD* algorithm = EVP_sha256()) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, algorithm, nullptr);
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}
// Decodes "a%20b" as "a b".
inline std::string Unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size();
    out += escape ? static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)) : text[i];
    if (escape) i += 2;
  }
  return out;
}
// Bytes without a pattern, the same for each seed.
inline std::string NoiseBytes(size_t size, uint64_t seed = 1) {
  std::string out(size, '\0');
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  for (char& c : out) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    c = static_cast<char>(state >> 32);
  }
  return out;
}

// An answer that replaces the right one.
struct HubRefusal {
  int code = 0;         // 0 = none
  std::string headers;  // "Retry-After: 1\r\n", "X-Error-Code: GatedRepo\r\n", ...
  int times = 1 << 30;  // so many requests get it
  std::string body = R"({"error":"X"})";
};

// The faults from the next request on. A test sets them with LocalHub::Fault.
struct HubFaults {
  HubRefusal listing, resolve, bytes;  // by the API, the files' URLs at the hub, the host with the bytes
  int64_t listed_size_more = 0;        // added to every size in listings
  int64_t told_size_more = 0;          // added to the total in Content-Range
  bool listed_hash_wrong = false;
  bool no_sizes = false;                 // listings by revision say no sizes, as some replicas do; the tree does
  bool no_ranges = false;                // always 200 and the whole file
  bool too_many_bytes = false;           // a range's answer goes on up to the file's end
  bool too_few_bytes = false;            // a range's answer is a shorter range than was asked
  std::optional<uint64_t> flipped_byte;  // at this offset of every file
  int flips = 1 << 30;                   // so many answers get it
  uint64_t cut_after = 0;                // bytes of a connection's answer, then it is closed; 0 = never
  int cuts = 1 << 30;                    // so many times
  uint64_t stall_after = 0;              // the same, but it stays open and silent
  int stalls = 1 << 30;
  uint64_t bytes_per_second = 0;  // on each connection; 0 = no limit
  int links_last = 1 << 30;       // a redirect's URL serves so many requests, then the answer is 403
  std::string redirect_to;        // in place of the host with the bytes: a whole URL
};

struct HubCounts {
  int listings = 0, resolves = 0, ranges = 0, connections = 0;
  uint64_t bytes = 0;            // that were sent of files
  int tokens_at_bytes_host = 0;  // requests there that had an Authorization; has to stay 0
};

class LocalHub {
 public:
  struct Options {
    bool tls = false;
    std::string token;        // "" = everyone may
    bool redirects = true;    // files lie on another host, and are redirected to
    size_t tree_page = 1000;  // entries of a page of the tree
  };

  explicit LocalHub(const Options& options)
      : options_(options),
        authority_(options.tls ? MakeCertificate("") : Certificate{}),
        certificate_(options.tls ? MakeCertificate("DNS:localhost,IP:127.0.0.1", &authority_) : Certificate{}),
        bytes_host_([this](HttpPeer::Call& call) { AnswerBytes(call); }, options.tls ? &certificate_ : nullptr),
        hub_([this](HttpPeer::Call& call) { AnswerHub(call); }, options.tls ? &certificate_ : nullptr) {
    if (!options.tls) return;
    char path[] = "/tmp/gyre-hub-ca-XXXXXX";
    close(mkstemp(path));
    ca_file_ = path;
    std::FILE* out = std::fopen(path, "w");
    std::fputs(authority_.certificate.c_str(), out);
    std::fclose(out);
  }
  LocalHub() : LocalHub(Options{}) {}
  ~LocalHub() {
    if (!ca_file_.empty()) unlink(ca_file_.c_str());
  }

  std::string endpoint() const { return hub_.url(); }
  std::string ca_file() const { return ca_file_; }  // "" without TLS
  static std::string commit() { return "0123456789abcdef0123456789abcdef01234567"; }
  std::string FileUrl(const std::string& repo, const std::string& path) const {
    return endpoint() + "/" + repo + "/resolve/" + commit() + "/" + path;
  }

  // lfs: listings have the SHA-256 of the file, else Git's hash.
  void AddFile(const std::string& repo, const std::string& path, std::string content, bool lfs = true) {
    const std::lock_guard lock(mutex_);
    const std::string git = HexDigest(fmt::format("blob {}", content.size()) + '\0' + content, EVP_sha1());
    const std::string sha = HexDigest(content);
    files_[repo][path] = std::make_shared<const File>(File{std::move(content), sha, git, lfs});
  }
  // Changes the faults from now on. `change` must not call the hub.
  void Fault(const std::function<void(HubFaults&)>& change) {
    const std::lock_guard lock(mutex_);
    change(faults_);
  }
  HubCounts counts() const {
    const std::lock_guard lock(mutex_);
    HubCounts out = counts_;
    out.connections = bytes_host_.connections();
    return out;
  }

 private:
  struct File {
    std::string content, sha256, git_sha1;
    bool lfs = true;
  };
  using FilePtr = std::shared_ptr<const File>;

  // Whether the request was answered by the refusal.
  static bool Refused(const HttpPeer::Call& call, HubRefusal* refusal, std::unique_lock<std::mutex>* lock) {
    if (refusal->code == 0 || refusal->times <= 0) return false;
    --refusal->times;
    const HubRefusal answer = *refusal;
    lock->unlock();
    call.Respond(answer.code, answer.body, answer.headers);
    return true;
  }

  void AnswerHub(HttpPeer::Call& call) {
    if (!options_.token.empty() && call.authorization != "Bearer " + options_.token) {
      call.Respond(401, R"({"error":"Invalid credentials in Authorization header"})",
                   call.authorization.empty() ? "X-Error-Code: RepoNotFound\r\n" : "");
      return;
    }
    const std::string path = call.target.substr(0, call.target.find('?'));
    if (path.rfind("/api/models/", 0) == 0) return AnswerListing(call, path.substr(12));
    const size_t resolve = path.find("/resolve/");
    if (resolve == std::string::npos) {
      call.Respond(404, R"({"error":"Not Found"})");
      return;
    }
    const size_t file_at = path.find('/', resolve + 9) + 1;
    const std::string repo = path.substr(1, resolve - 1), name = Unescaped(path.substr(file_at));
    std::unique_lock lock(mutex_);
    ++counts_.resolves;
    if (Refused(call, &faults_.resolve, &lock)) return;
    const FilePtr file = Find(repo, name);
    if (file == nullptr) {
      lock.unlock();
      call.Respond(404, "Entry not found", "X-Error-Code: EntryNotFound\r\n");
      return;
    }
    if (!options_.redirects) {
      lock.unlock();
      return SendFile(call, file);
    }
    const int link = ++links_;
    const std::string location =
        !faults_.redirect_to.empty()
            ? faults_.redirect_to
            : fmt::format("{}://localhost:{}/{}/{}?X-Signature={}", options_.tls ? "https" : "http", bytes_host_.port(),
                          repo, path.substr(file_at), link);
    lock.unlock();
    call.Respond(302, "",
                 fmt::format("Location: {}\r\nX-Repo-Commit: {}\r\nX-Linked-Size: {}\r\nX-Linked-Etag: "
                             "\"{}\"\r\n",
                             location, commit(), file->content.size(), file->sha256));
  }

  void AnswerListing(HttpPeer::Call& call, const std::string& rest) {
    namespace json = boost::json;
    std::unique_lock lock(mutex_);
    ++counts_.listings;
    if (Refused(call, &faults_.listing, &lock)) return;
    const bool tree = rest.find("/tree/") != std::string::npos;
    const std::string word = tree ? "/tree/" : "/revision/";
    const size_t at = rest.find(word);
    const std::string repo = rest.substr(0, at);
    const std::string revision = at == std::string::npos ? "main" : Unescaped(rest.substr(at + word.size()));
    const auto found = files_.find(repo);
    if (found == files_.end() || (revision != "main" && revision != commit())) {
      lock.unlock();
      call.Respond(404, R"({"error":"Not found"})",
                   found == files_.end() ? "X-Error-Code: RepoNotFound\r\n" : "X-Error-Code: RevisionNotFound\r\n");
      return;
    }
    json::array siblings, entries;
    for (const auto& [path, file] : found->second) {
      const int64_t size = static_cast<int64_t>(file->content.size()) + faults_.listed_size_more;
      const std::string sha = faults_.listed_hash_wrong ? std::string(64, 'a') : file->sha256;
      json::object sibling{{"rfilename", path}},
          entry{{"type", "file"}, {"path", path}, {"size", size}, {"oid", file->git_sha1}};
      if (!faults_.no_sizes) {
        sibling["size"] = size;
        sibling["blobId"] = file->git_sha1;
        if (file->lfs) sibling["lfs"] = json::object{{"sha256", sha}, {"size", size}, {"pointerSize", 135}};
      }
      if (file->lfs) entry["lfs"] = json::object{{"oid", sha}, {"size", size}, {"pointerSize", 135}};
      siblings.push_back(std::move(sibling));
      entries.push_back(std::move(entry));
    }
    lock.unlock();
    if (!tree) {
      call.Respond(200, json::serialize(json::object{{"id", repo}, {"sha", commit()}, {"siblings", siblings}}));
      return;
    }
    const size_t cursor = call.target.find("cursor=");
    const size_t begin = cursor == std::string::npos ? 0 : std::stoul(call.target.substr(cursor + 7));
    const size_t end = std::min(entries.size(), begin + options_.tree_page);
    json::array page;
    for (size_t i = begin; i < end; ++i) page.push_back(entries[i]);
    const std::string next =
        end == entries.size()
            ? ""
            : fmt::format("Link: <{}/api/models/{}?recursive=true&cursor={}>; rel=\"next\"\r\n", endpoint(), rest, end);
    call.Respond(200, json::serialize(page), next);
  }

  void AnswerBytes(HttpPeer::Call& call) {
    std::unique_lock lock(mutex_);
    if (!call.authorization.empty()) ++counts_.tokens_at_bytes_host;
    if (Refused(call, &faults_.bytes, &lock)) return;
    const size_t query = call.target.find("?X-Signature=");
    const bool valid = query != std::string::npos && ++uses_[call.target.substr(query)] <= faults_.links_last;
    const std::string path = call.target.substr(1, query - 1);
    FilePtr file;
    for (const auto& [repo, files] : files_) {
      if (valid && path.rfind(repo + "/", 0) == 0) file = Find(repo, Unescaped(path.substr(repo.size() + 1)));
    }
    lock.unlock();
    if (file == nullptr) {
      call.Respond(403, "<Error><Code>AccessDenied</Code></Error>");
      return;
    }
    SendFile(call, file);
  }

  FilePtr Find(const std::string& repo, const std::string& path) {
    const auto r = files_.find(repo);
    if (r == files_.end()) return nullptr;
    const auto f = r->second.find(path);
    return f == r->second.end() ? nullptr : f->second;
  }

  void SendFile(HttpPeer::Call& call, const FilePtr& file) {
    const std::string& content = file->content;
    std::unique_lock lock(mutex_);
    ++counts_.ranges;
    const bool flipped = faults_.flipped_byte.has_value() && faults_.flips-- > 0;
    const uint64_t cut = faults_.cut_after > 0 && faults_.cuts > 0 ? faults_.cut_after : 0;
    const uint64_t stall = faults_.stall_after > 0 && faults_.stalls > 0 ? faults_.stall_after : 0;
    const HubFaults faults = faults_;
    lock.unlock();
    const std::string etag = "\"" + file->sha256 + "\"";
    uint64_t begin = 0, end = content.size();
    bool part = !call.range.empty() && !faults.no_ranges;
    if (part) {
      unsigned long long first = 0, last = content.size();
      if (std::sscanf(call.range.c_str(), "bytes=%llu-%llu", &first, &last) < 1 || first >= content.size()) {
        call.Respond(416, "", fmt::format("Content-Range: bytes */{}\r\n", content.size()));
        return;
      }
      begin = first;
      end = std::min<uint64_t>(content.size(), last + 1);
      if (faults.too_few_bytes) end = begin + std::max<uint64_t>(1, (end - begin) / 2);
      if (faults.too_many_bytes) end = content.size();
    }
    const std::string range = part ? fmt::format("Content-Range: bytes {}-{}/{}\r\n", begin, end - 1,
                                                 static_cast<int64_t>(content.size()) + faults.told_size_more)
                                   : "";
    if (!call.Write(fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nETag: {}\r\n{}\r\n",
                                part ? "206 Partial Content" : "200 OK", end - begin, etag, range))) {
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    uint64_t sent = 0;
    for (uint64_t at = begin; at < end;) {
      uint64_t count = std::min<uint64_t>(end - at, 65536);
      if (faults.bytes_per_second > 0) {
        count = std::min(count, std::max<uint64_t>(1, faults.bytes_per_second / 50));
        const auto due = start + std::chrono::duration<double>(static_cast<double>(sent) /
                                                               static_cast<double>(faults.bytes_per_second));
        std::this_thread::sleep_until(std::chrono::time_point_cast<std::chrono::steady_clock::duration>(due));
      }
      if (stall > 0 && sent + count > stall) {
        if (Spend(&HubFaults::stalls)) return WaitUntilGone(call);
      }
      const bool cuts = cut > 0 && sent + count > cut && Spend(&HubFaults::cuts);
      if (cuts) count = cut - std::min(cut, sent);
      std::string piece = content.substr(at, count);
      if (flipped && *faults.flipped_byte >= at && *faults.flipped_byte < at + count) {
        piece[*faults.flipped_byte - at] ^= 0x40;
      }
      if (!call.Write(piece)) return;
      sent += count, at += count;
      lock.lock();
      counts_.bytes += count;
      lock.unlock();
      if (cuts) {
        call.close = true;
        return;
      }
    }
  }
  // Whether one more of the limited faults may happen.
  bool Spend(int HubFaults::*left) {
    const std::lock_guard lock(mutex_);
    return faults_.*left > 0 && (faults_.*left)-- > 0;
  }
  static void WaitUntilGone(HttpPeer::Call& call) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!call.Gone() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    call.close = true;
  }

  const Options options_;
  const Certificate authority_, certificate_;
  std::string ca_file_;
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, FilePtr>> files_;
  std::map<std::string, int> uses_;  // how often a redirect's URL was asked for, by its signature
  int links_ = 0;
  HubFaults faults_;
  HubCounts counts_;
  HttpPeer bytes_host_, hub_;  // the last: their threads use all the others
};

}  // namespace gyre::testing
