#include "worker/node_identity.h"

#include <chrono>
#include <ctime>

#include "base/files.h"
#include "base/host_port.h"
#include "base/log.h"
#include "identity/authority.h"
#include "proto/channel.h"
#include "proto/convert.h"

namespace gyre {

StatusOr<std::string> NodeIdentity::WorkerName(const std::string& wanted) const {
  if (folder_ == nullptr) return wanted.empty() ? HostName() : wanted;
  const Principal self = folder_->current()->self();
  if (self.role != Role::kWorker) {
    return FailedPrecondition("{} is the identity of {}, expected a worker's", folder_->folder(), Describe(self));
  }
  if (!wanted.empty() && wanted != self.name) {
    return FailedPrecondition("--name {}: {} is the identity of {}", wanted, folder_->folder(), Describe(self));
  }
  return self.name;
}

void NodeIdentity::TakeRevoked(const std::string& crl) {
  if (folder_ == nullptr) return;
  const uint64_t before = folder_->current()->revocations();
  if (const Status taken = folder_->TakeRevoked(crl); !taken.ok()) {
    return Log(LogLevel::kError, "the coordinator's list of revoked certificates is not taken: {}", Message(taken));
  }
  const uint64_t now = folder_->current()->revocations();
  if (now != before)
    Log(LogLevel::kInfo, "list {} of certificates that the CA revoked is taken from the coordinator", now);
}

void NodeIdentity::RenewIfDue(v1::Cluster::Stub& stub) {
  if (folder_ == nullptr || Clock::now() < next_renewal_) return;
  next_renewal_ = After(std::chrono::hours(1));
  const auto before = folder_->current();
  const int64_t left = before->ends() - std::time(nullptr);
  if (left > (before->ends() - before->begins()) / 3) return;
  const Status renewed = Renew(stub);
  if (!renewed.ok())
    Log(LogLevel::kWarn, "the certificate of {} could not be renewed: {}", before->self().name, Message(renewed));
}

Status NodeIdentity::Renew(v1::Cluster::Stub& stub) {
  GYRE_ASSIGN_OR_RETURN(const KeyPtr key, MakeKey(KeyType::kP256));
  GYRE_ASSIGN_OR_RETURN(const std::string csr, MakeCertificateRequest(key.get()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::RenewRequest request;
  request.set_request(csr);
  v1::RenewReply reply;
  GYRE_RETURN_IF_ERROR(FromGrpcAt(stub.Renew(&context, request, &reply), coordinator_));
  const auto before = folder_->current();
  Identity::Files files = before->files();
  files.identity = ToPem(key.get()) + reply.certificate();
  GYRE_ASSIGN_OR_RETURN(const auto identity, Identity::Make(files, "from the coordinator"));
  if (identity->self() != before->self()) return FailedPrecondition("it is for {}", Describe(identity->self()));
  GYRE_RETURN_IF_ERROR(ReplaceFile(PathIn(folder_->folder(), kIdentityFile), files.identity, 0600));
  folder_->Refresh(true);
  Log(LogLevel::kInfo, "the certificate of {} is renewed", identity->self().name);
  return absl::OkStatus();
}

}  // namespace gyre
