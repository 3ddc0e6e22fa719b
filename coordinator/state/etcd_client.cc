#include "coordinator/state/etcd_client.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "absl/strings/escaping.h"
#include "base/host_port.h"
#include "http_client/json_fields.h"

namespace gyre {
namespace {

namespace json = boost::json;

constexpr size_t kLongestKeyName = 200;

std::string ToBase64(const std::string& bytes) { return absl::Base64Escape(bytes); }

StatusOr<std::string> FromBase64(const std::string& text) {
  std::string out;
  if (!absl::Base64Unescape(text, &out)) return DataLoss("etcd answers with bytes that are not base64");
  return out;
}

// The gateway writes 64-bit numbers as texts.
int64_t Int64Of(const json::value& v, const char* key) {
  const std::string text = TextOf(v, key);
  int64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

int64_t RevisionOf(const json::value& v) {
  const json::value* header = FieldOf(v, "header");
  return header != nullptr ? Int64Of(*header, "revision") : 0;
}

json::object Encode(const EtcdOp& op) {
  if (op.put) {
    json::object put{{"key", ToBase64(op.key)}, {"value", ToBase64(op.value)}};
    if (op.lease != 0) put["lease"] = std::to_string(op.lease);
    return {{"requestPut", std::move(put)}};
  }
  json::object range{{"key", ToBase64(op.key)}};
  if (!op.end.empty()) range["range_end"] = ToBase64(op.end);
  return {{"requestDeleteRange", std::move(range)}};
}

json::object Encode(const EtcdCompare& c) {
  return {{"key", ToBase64(c.key)},
          {"target", c.created ? "CREATE" : "MOD"},
          {"result", "EQUAL"},
          {c.created ? "create_revision" : "mod_revision", std::to_string(c.revision)}};
}

// The status for the gateway's answer to a failed call; its codes are gRPC's.
Status ErrorOf(const std::string& host, const HttpResponse& answer) {
  boost::system::error_code error;
  const json::value body = json::parse(answer.body, error);
  std::string words = error ? "" : TextOf(body, "message");
  if (words.empty() && !error) words = TextOf(body, "error");
  if (words.empty()) words = fmt::format("HTTP {}, is it etcd 3.4 or newer?", answer.code);
  const auto code = error ? 0 : static_cast<int>(NumberOf(body, "code", 0));
  constexpr int kInvalid = 3, kNotFound = 5, kDenied = 7, kExhausted = 8, kPrecondition = 9, kOutOfRange = 11,
                kUnimplemented = 12, kUnauthenticated = 16;
  switch (code) {
    case kExhausted: return ResourceExhausted("etcd at {}: {}", host, words);
    case kInvalid:
    case kNotFound:
    case kDenied:
    case kPrecondition:
    case kOutOfRange:
    case kUnimplemented:
    case kUnauthenticated: return FailedPrecondition("etcd at {}: {}", host, words);
    // The member ends, or a proxy before it failed: another member may answer. Without a code the answer is not etcd's.
    default:
      if (code == 0 && answer.code < 500) return FailedPrecondition("etcd at {}: {}", host, words);
      return Unavailable("etcd at {}: {}", host, words);
  }
}

class GatewayClient : public EtcdClient {
 public:
  explicit GatewayClient(const EtcdOptions& options) : options_(options) {}

  Status Open() {
    for (const std::string& host : options_.hosts) {
      GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(host));
      HttpClientOptions http;
      http.ca_file = options_.ca;
      http.ca_flag = "--etcd-ca";
      http.cert_file = options_.cert;
      http.cert_flag = "--etcd-cert";
      http.key_file = options_.key;
      GYRE_ASSIGN_OR_RETURN(auto client, HttpClient::Make({options_.tls, at.host, at.port, ""}, http));
      members_.push_back(std::move(client));
    }
    return absl::OkStatus();
  }

  StatusOr<Lease> Grant(std::chrono::seconds life, Deadline until) override {
    GYRE_ASSIGN_OR_RETURN(const json::value answer,
                          Post("/v3/lease/grant", {{"TTL", std::to_string(life.count())}}, until));
    const Lease lease{Int64Of(answer, "ID"), std::chrono::seconds(Int64Of(answer, "TTL"))};
    if (lease.id == 0 || lease.life <= Duration{})
      return FailedPrecondition("etcd grants no lease: it answers without one");
    return lease;
  }
  StatusOr<Duration> Renew(int64_t lease, Deadline until) override {
    GYRE_ASSIGN_OR_RETURN(const json::value answer,
                          Post("/v3/lease/keepalive", {{"ID", std::to_string(lease)}}, until));
    // The answer is a stream of one message.
    const json::value* result = FieldOf(answer, "result");
    if (result == nullptr) return FailedPrecondition("etcd renews no lease: it answers without one");
    return Duration(std::chrono::seconds(Int64Of(*result, "TTL")));
  }
  Status Revoke(int64_t lease, Deadline until) override {
    return Post("/v3/lease/revoke", {{"ID", std::to_string(lease)}}, until).status();
  }
  StatusOr<Txn> Do(const std::vector<EtcdCompare>& conditions, const std::vector<EtcdOp>& ops,
                   Deadline until) override {
    json::array compare, success;
    for (const EtcdCompare& c : conditions) compare.push_back(Encode(c));
    for (const EtcdOp& op : ops) success.push_back(Encode(op));
    GYRE_ASSIGN_OR_RETURN(
        const json::value answer,
        Post("/v3/kv/txn", {{"compare", std::move(compare)}, {"success", std::move(success)}}, until));
    return Txn{.succeeded = IsTrue(answer, "succeeded"), .revision = RevisionOf(answer)};
  }
  StatusOr<Page> Read(const std::string& key, const std::string& end, int64_t limit, int64_t revision,
                      Deadline until) override {
    json::object ask{{"key", ToBase64(key)}};
    if (!end.empty()) ask["range_end"] = ToBase64(end);
    if (limit != 0) ask["limit"] = std::to_string(limit);
    if (revision != 0) ask["revision"] = std::to_string(revision);
    GYRE_ASSIGN_OR_RETURN(const json::value answer, Post("/v3/kv/range", std::move(ask), until));
    Page page{.values = {}, .more = IsTrue(answer, "more"), .revision = RevisionOf(answer)};
    const json::value* values = FieldOf(answer, "kvs");
    if (values == nullptr || !values->is_array()) return page;
    for (const json::value& v : values->get_array()) {
      EtcdValue value{.key = {},
                      .value = {},
                      .created = Int64Of(v, "create_revision"),
                      .modified = Int64Of(v, "mod_revision"),
                      .lease = Int64Of(v, "lease")};
      GYRE_ASSIGN_OR_RETURN(value.key, FromBase64(TextOf(v, "key")));
      GYRE_ASSIGN_OR_RETURN(value.value, FromBase64(TextOf(v, "value")));
      page.values.push_back(std::move(value));
    }
    return page;
  }

 private:
  // Asks the member that answered last, then the others, each once.
  StatusOr<json::value> Post(const std::string& path, json::object body, Deadline until) {
    const std::string text = json::serialize(body);
    Status status;
    for (size_t i = 0; i < members_.size() && (i == 0 || Clock::now() < until); ++i) {
      const Deadline give_up = std::min(until, After(options_.attempt));
      auto answer = members_[at_]->Fetch({.method = "POST", .target = path, .body = text, .headers = {}},
                                         [give_up] { return Clock::now() >= give_up; });
      const std::string& host = options_.hosts[at_];
      if (answer.ok() && answer->code == 200) {
        boost::system::error_code error;
        json::value value = json::parse(answer->body, error);
        if (!error) return value;
        status = DataLoss("etcd at {}: the answer is not JSON", host);
      } else if (answer.ok()) {
        status = ErrorOf(host, *answer);
        if (absl::IsFailedPrecondition(status)) return status;
      } else if (absl::IsCancelled(answer.status())) {
        status = DeadlineExceeded("etcd at {} does not answer in time", host);
      } else {
        status = Annotate(answer.status(), "etcd");
      }
      at_ = (at_ + 1) % members_.size();
    }
    return status;
  }

  const EtcdOptions options_;
  std::vector<std::unique_ptr<HttpClient>> members_;
  size_t at_ = 0;
};

}  // namespace

StatusOr<EtcdOptions> ParseEtcdUrl(const std::string& text) {
  EtcdOptions out;
  std::string rest;
  if (text.rfind("etcd://", 0) == 0) {
    rest = text.substr(7);
  } else if (text.rfind("etcds://", 0) == 0) {
    rest = text.substr(8);
    out.tls = true;
  } else {
    return InvalidArgument("'{}': expected etcd://HOST:PORT[,HOST:PORT...][/NAME]", text);
  }
  const size_t slash = rest.find('/');
  GYRE_ASSIGN_OR_RETURN(out.hosts, ParseAddresses(rest.substr(0, slash)));
  if (slash == std::string::npos) return out;
  out.name = rest.substr(slash + 1);
  const bool fine = !out.name.empty() && out.name.size() <= kLongestKeyName &&
                    std::all_of(out.name.begin(), out.name.end(), [](char c) {
                      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
                    });
  if (!fine) {
    return InvalidArgument("'{}': a name of letters, digits, '-', '_' and '.' stands behind the addresses", text);
  }
  return out;
}

EtcdOp EtcdOp::Put(std::string key, std::string value, int64_t lease) {
  return {.put = true, .key = std::move(key), .value = std::move(value), .end = {}, .lease = lease};
}

EtcdOp EtcdOp::Delete(std::string key, std::string end) {
  return {.put = false, .key = std::move(key), .value = {}, .end = std::move(end)};
}

StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(const EtcdOptions& options) {
  auto client = std::make_unique<GatewayClient>(options);
  GYRE_RETURN_IF_ERROR(client->Open());
  return std::unique_ptr<EtcdClient>(std::move(client));
}

StatusOr<std::optional<EtcdValue>> EtcdClient::Get(const std::string& key, Deadline until) {
  GYRE_ASSIGN_OR_RETURN(Page page, Read(key, "", 0, 0, until));
  if (page.values.empty()) return std::optional<EtcdValue>();
  return std::optional(std::move(page.values[0]));
}

}  // namespace gyre
