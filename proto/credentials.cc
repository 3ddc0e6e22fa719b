#include "proto/credentials.h"

#include <grpc/support/log.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "base/mutex.h"
#include "proto/convert.h"

namespace gyre {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::TlsCustomVerificationCheckRequest;

StatusOr<Principal> CheckPem(std::string_view pem, const Identity& identity) {
  GYRE_ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ReadCertificates(pem));
  return identity.Check(chain.front().get());
}

// It runs after the handshake, which has checked signature and dates.
class PeerVerifier : public ExternalCertificateVerifier {
 public:
  using Check = std::function<absl::Status(std::string_view pem)>;
  explicit PeerVerifier(Check check) : check_(std::move(check)) {}
  ~PeerVerifier() override = default;

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const grpc::string_ref pem = request->peer_cert();
    *status = ToGrpc(check_({pem.data(), pem.size()}));
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const Check check_;
};

// A file without a name that gRPC watches: it gets only texts that were checked as a whole.
class WatchedText {
 public:
  explicit WatchedText(const char* name) : fd_(::memfd_create(name, MFD_CLOEXEC)) {}
  ~WatchedText() {
    if (fd_ >= 0) ::close(fd_);
  }
  WatchedText(const WatchedText&) = delete;
  WatchedText& operator=(const WatchedText&) = delete;

  bool ok() const { return fd_ >= 0; }
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }
  void Set(const std::string& text) {
    const bool fine =
        ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
    static_cast<void>(fine);  // a memory that is full leaves gRPC what it has
  }

 private:
  const int fd_;
};

// The table of roles and services. A service that is not in the table is closed.
class RoleCheck : public grpc::AuthMetadataProcessor {
 public:
  explicit RoleCheck(std::shared_ptr<IdentityFolder> folder) : folder_(std::move(folder)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (path == metadata.end()) return {grpc::StatusCode::PERMISSION_DENIED, "a call without a method"};
    const std::string method(path->second.data(), path->second.size());
    const StatusOr<Principal> caller = CheckCaller(*context, *folder_->current());
    if (!caller.ok()) return {grpc::StatusCode::UNAUTHENTICATED, Message(caller.status())};
    if (MayCall(caller->role, method)) return grpc::Status::OK;
    return {grpc::StatusCode::PERMISSION_DENIED,
            fmt::format("the identity of {} may not call {}", Describe(*caller), CutUtf8(method, 100))};
  }

 private:
  const std::shared_ptr<IdentityFolder> folder_;
};

// gRPC logs every unauthenticated peer's failed handshake, without a limit; the listener's log names the refused ones.
void QuietGrpc() {
  static const bool once = [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
    return true;
  }();
  static_cast<void>(once);
}

class FollowingServerIdentity : public ServerIdentity {
 public:
  explicit FollowingServerIdentity(std::shared_ptr<IdentityFolder> folder)
      : folder_(std::move(folder)), identity_("gyre-identity"), authorities_("gyre-ca") {}

  Status Open() {
    if (!identity_.ok() || !authorities_.ok())
      return ResourceExhausted("no memory file for gRPC: {}", std::strerror(errno));
    Show();
    constexpr unsigned kSeconds = 1;
    provider_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(identity_.path(), identity_.path(),
                                                                                     authorities_.path(), kSeconds);
    grpc::experimental::TlsServerCredentialsOptions options(provider_);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.set_check_call_host(false);
    options.set_certificate_verifier(ExternalCertificateVerifier::Create<PeerVerifier>(
        [folder = folder_](std::string_view pem) { return CheckPem(pem, *folder->current()).status(); }));
    credentials_ = grpc::experimental::TlsServerCredentials(options);
    if (credentials_ == nullptr) return Internal("gRPC takes no certificates");
    credentials_->SetAuthMetadataProcessor(std::make_shared<RoleCheck>(folder_));
    return absl::OkStatus();
  }
  std::shared_ptr<grpc::ServerCredentials> credentials() override { return credentials_; }
  bool Update() override {
    if (folder_->current() == shown_) return false;
    Show();
    return true;
  }

 private:
  void Show() {
    shown_ = folder_->current();
    identity_.Set(shown_->files().identity);
    authorities_.Set(shown_->files().authorities);
  }

  const std::shared_ptr<IdentityFolder> folder_;
  std::shared_ptr<const Identity> shown_;
  WatchedText identity_, authorities_;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
};

}  // namespace

StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(const std::shared_ptr<const Identity>& identity) {
  QuietGrpc();
  const Identity::Files& files = identity->files();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      files.authorities, std::vector<grpc::experimental::IdentityKeyCertPair>{
                             {.private_key = files.identity, .certificate_chain = files.identity}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      ExternalCertificateVerifier::Create<PeerVerifier>([identity](std::string_view pem) -> Status {
        GYRE_ASSIGN_OR_RETURN(const Principal peer, CheckPem(pem, *identity));
        if (peer.role == Role::kCoordinator) return absl::OkStatus();
        return FailedPrecondition("there is {}, expected a coordinator", Describe(peer));
      }));
  auto credentials = grpc::experimental::TlsCredentials(options);
  if (credentials == nullptr) return Internal("gRPC takes no certificates");
  return credentials;
}

StatusOr<std::unique_ptr<ServerIdentity>> ServerIdentity::Make(std::shared_ptr<IdentityFolder> folder) {
  QuietGrpc();
  auto out = std::make_unique<FollowingServerIdentity>(std::move(folder));
  GYRE_RETURN_IF_ERROR(out->Open());
  return std::unique_ptr<ServerIdentity>(std::move(out));
}

bool MayCall(Role role, const std::string& method) {
  const auto is_of = [&method](const char* service) { return method.rfind(service, 0) == 0; };
  if (is_of("/gyre.v1.Cluster/") || is_of("/gyre.v1.Drafts/")) return role == Role::kWorker;
  if (is_of("/gyre.v1.Admin/")) return role == Role::kAdmin;
  if (is_of("/gyre.v1.Inference/")) return role == Role::kAdmin || role == Role::kClient;
  return false;
}

std::optional<Principal> CallerOf(const grpc::AuthContext& context) {
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    StatusOr<Principal> principal = ParsePrincipal({uri.data(), uri.size()});
    if (principal.ok()) return *std::move(principal);
  }
  return std::nullopt;
}

StatusOr<Principal> CheckCaller(const grpc::AuthContext& context, const Identity& identity) {
  const std::vector<grpc::string_ref> pem = context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (pem.size() != 1) return FailedPrecondition("the caller has no certificate");
  return CheckPem({pem[0].data(), pem[0].size()}, identity);
}

}  // namespace gyre
