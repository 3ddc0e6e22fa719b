// gyre worker: a process that runs layers for a ring of machines.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cpus.h"
#include "base/files.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/mutex.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/listen.h"
#include "cli/log_setup.h"
#include "cli/model_source.h"
#include "cli/server_setup.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "identity/authority.h"
#include "identity/join_token.h"
#include "limits/machine_speed.h"
#include "runtime/devices.h"
#include "runtime/draft_node.h"
#include "transport/discovery.h"
#include "worker/join.h"
#include "worker/node.h"

namespace gyre {
namespace {

// The first coordinator on the local network that answers, however long that takes. Says after a while what else there
// is. kCancelled: the process was stopped.
StatusOr<std::string> LookForCoordinator(const std::string& authority, bool quiet) {
  constexpr auto kUntilHint = std::chrono::seconds(5);
  StatusOr<std::string> found = FindCoordinator(authority, After(kUntilHint), InterruptGuard::Interrupted);
  if (!absl::IsDeadlineExceeded(found.status())) return found;
  if (!quiet) {
    fmt::print(
        stderr,
        "no coordinator has answered on the local network yet; one that is elsewhere, or that listens on loopback "
        "only, never does: --join HOST:PORT names it\n");
  }
  return FindCoordinator(authority, kNoDeadline, InterruptGuard::Interrupted);
}

// The address to join: as it was given, or found on the local network. "": the process was stopped meanwhile.
StatusOr<std::string> AddressToJoin(const WorkerCommandOptions& options, bool insecure, const std::string& authority) {
  if (!options.join.empty()) return options.join;
  if (authority.empty() && !insecure) {
    return UsageError(
        "--join HOST:PORT is needed; without it a worker looks for a coordinator on the local network, but only with a "
        "--token or an --identity, which prove that it is the right one, or with --insecure, which believes whoever "
        "answers");
  }
  if (!options.quiet) fmt::print(stderr, "looking for a coordinator on the local network\n");
  const StatusOr<std::string> found = LookForCoordinator(authority, options.quiet);
  if (absl::IsCancelled(found.status())) return std::string();
  if (found.ok() && !options.quiet) fmt::print(stderr, "found a coordinator at {}\n", *found);
  return found;
}

// The folder of the folders for identities by tokens, unless --identity names one.
std::filesystem::path DefaultIdentities() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  std::filesystem::path path = config != nullptr && *config != '\0' ? config : "";
  if (path.empty()) path = std::filesystem::path(home != nullptr ? home : ".") / ".config";
  return path / "gyre";
}

// The workers' identities there, by their folders.
std::vector<std::filesystem::path> KeptIdentities() {
  std::vector<std::filesystem::path> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(DefaultIdentities(), ignored)) {
    const StatusOr<Principal> owner = OwnerOf(entry.path().string());
    if (owner.ok() && owner->role == Role::kWorker) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// The identity that a token got this worker once; "": there is none. Without a name or a host's identity, the only one
// that there is.
std::string KeptIdentity(const WorkerCommandOptions& options) {
  const std::vector<std::filesystem::path> kept = KeptIdentities();
  if (kept.empty()) return "";
  const std::string name = options.name.empty() ? HostName() : options.name;
  const auto own = std::find(kept.begin(), kept.end(), DefaultIdentities() / name);
  if (own != kept.end()) return own->string();
  if (!options.name.empty()) return "";
  if (kept.size() == 1) return kept[0].string();
  std::string names;
  for (const auto& folder : kept) names += (names.empty() ? "" : ", ") + folder.filename().string();
  if (!options.quiet) {
    fmt::print(stderr, "{}: there are the identities of {}; --name says which one this worker uses\n",
               DefaultIdentities().string(), names);
  }
  return "";
}

// A coordinator that stands by issues no identities, so each is asked in turn.
StatusOr<Identity::Files> JoinAtOneOf(const std::vector<std::string>& addresses, const JoinToken& token,
                                      const std::string& name) {
  StatusOr<Identity::Files> files = Unavailable("no coordinator is named");
  for (const std::string& at : addresses) {
    const auto timeout = std::chrono::seconds(addresses.size() > 1 ? 3 : 10);
    files = JoinWithToken(at, token, name, After(timeout), InterruptGuard::Interrupted);
    if (!absl::IsUnavailable(files.status()) && !absl::IsDeadlineExceeded(files.status())) break;
  }
  return files;
}

// A worker's identity; if its folder has none, a token gets it one. null: it has none, or was stopped meanwhile.
StatusOr<std::shared_ptr<IdentityFolder>> WorkerIdentity(const WorkerCommandOptions& options, std::string* join) {
  if (options.token.empty()) {
    std::string folder = options.identity;
    // --insecure names a cluster without TLS.
    if (folder.empty() && options.insecure.empty()) folder = KeptIdentity(options);
    if (options.identity.empty() && !folder.empty() && !options.quiet) {
      fmt::print(stderr, "{}: the identity that a token got is used; --insecure joins without TLS\n", folder);
    }
    return OpenIdentity(folder, Role::kWorker, "");
  }
  const std::string name = options.name.empty() ? HostName() : options.name;
  if (const Status fits = CheckPrincipalName(name); !fits.ok()) return AsUsage(Annotate(fits, "--name"));
  const std::string folder = options.identity.empty() ? (DefaultIdentities() / name).string() : options.identity;
  std::error_code ignored;
  if (std::filesystem::exists(PathIn(folder, kIdentityFile), ignored)) return OpenIdentity(folder, Role::kWorker, "");
  GYRE_ASSIGN_OR_RETURN(const JoinToken token, ParseToken(options.token));
  // The folder is checked first, as a failure to write it would come after the token is used up.
  GYRE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  GYRE_RETURN_IF_ERROR(CheckWritable(folder));
  GYRE_ASSIGN_OR_RETURN(*join, AddressToJoin(options, false, token.fingerprint));
  if (join->empty()) return std::shared_ptr<IdentityFolder>();
  GYRE_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, ParseAddresses(*join));
  bool told = false;
  while (!InterruptGuard::Interrupted()) {
    const auto files = JoinAtOneOf(addresses, token, name);
    if (files.ok()) {
      GYRE_RETURN_IF_ERROR(WriteIdentity(folder, *files, false));
      if (!options.quiet) fmt::print(stderr, "{}: the identity of worker {}, by the token\n", folder, name);
      return OpenIdentity(folder, Role::kWorker, "");
    }
    const bool absent = absl::IsUnavailable(files.status()) || absl::IsDeadlineExceeded(files.status());
    if (!absent)
      return absl::IsCancelled(files.status()) ? std::shared_ptr<IdentityFolder>()
                                               : StatusOr<std::shared_ptr<IdentityFolder>>(files.status());
    if (!told) Log(LogLevel::kWarn, "waiting for the coordinator, to join with the token: {}", Message(files.status()));
    told = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return std::shared_ptr<IdentityFolder>();
}

}  // namespace

Status WorkerCommand(const WorkerCommandOptions& options) {
  GYRE_RETURN_IF_ERROR(StartLog(options.log));
  InterruptGuard guard(0);
  InterruptGuard::Begin(2);
  TellMore();
  GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(options.threads, options.cpus));
  GYRE_ASSIGN_OR_RETURN(const auto device, OpenDevice({.name = options.device,
                                                       .isa = options.isa,
                                                       .threads = team.threads,
                                                       .cpus = team.cpus,
                                                       .memory = options.device_memory,
                                                       .graphs = !options.no_graphs}));
  GYRE_ASSIGN_OR_RETURN(const Insecure insecure, ParseInsecure(options.insecure));
  std::string join = options.join;
  GYRE_ASSIGN_OR_RETURN(const auto identity, WorkerIdentity(options, &join));
  if (!options.token.empty() && identity == nullptr) return absl::OkStatus();  // stopped while it waited
  if (join.empty()) {
    const std::string authority = identity != nullptr ? identity->current()->authority() : "";
    GYRE_ASSIGN_OR_RETURN(join, AddressToJoin(options, insecure.cluster, authority));
    if (join.empty()) return absl::OkStatus();
  }
  const bool logged = !options.log.file.empty() || options.log.format != "text";
  std::function<void(const std::string&)> say;
  if (!options.quiet) {
    say = [logged](const std::string& line) {
      if (logged) return Log(LogLevel::kInfo, "{}", line);
      fmt::print(stderr, "{}\n", line);
    };
  }
  IdentityWatch watch(identity.get());
  Mutex watching;  // several threads of the node ask
  const auto stopped = [&] {
    MutexLock lock(&watching);
    watch.Look(TakeHangup());
    return InterruptGuard::Count() > (InterruptGuard::Terminated() && options.drafts.empty() ? 1 : 0);
  };
  if (!options.drafts.empty()) {
    GYRE_ASSIGN_OR_RETURN(const std::string path, LocateModel(options.drafts, options.source));
    GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(path, options.open));
    return RunDraftNode({.join = join,
                         .model = model,
                         .device = device,
                         .name = options.name,
                         .identity = identity,
                         .version = options.version,
                         .say = say},
                        stopped);
  }
  NodeOptions node{.join = join,
                   .model = options.model,
                   .open = options.open,
                   .name = options.name,
                   .listen = options.listen,
                   .preference = std::nullopt,
                   .device = device,
                   .threads = team.threads,
                   .memory = 0,
                   .wire_types = kAllActivations,
                   .insecure = insecure.ring,
                   .identity = identity,
                   .version = options.version,
                   .say = say};
  if (!options.layers.empty()) {
    GYRE_ASSIGN_OR_RETURN(node.preference, ParseLayerPreference(options.layers));
  }
  if (!options.wire.empty()) {
    GYRE_ASSIGN_OR_RETURN(const WireType wire, ParseWireType(options.wire));
    node.wire_types = Only(wire);
  }
  GYRE_ASSIGN_OR_RETURN(node.transport, ParseTransport(options.transport));
  GYRE_ASSIGN_OR_RETURN(node.memory, ParseSizeFlag("--memory", options.memory));
  if (!node.model.empty()) {
    GYRE_ASSIGN_OR_RETURN(node.model, LocateModel(node.model, options.source));
  }
  node.weights = options.weights == "file"    ? WeightsFrom::kFile
                 : options.weights == "fetch" ? WeightsFrom::kFetch
                                              : WeightsFrom::kAuto;
  node.cache = CacheFolder(options.source);
  GYRE_ASSIGN_OR_RETURN(node.weights_rate, ParseSizeFlag("--weights-rate", options.weights_rate));
  GYRE_ASSIGN_OR_RETURN(node.cache_limit, ParseSizeFlag("--cache-limit", options.source.cache_limit));
  GYRE_ASSIGN_OR_RETURN(const Isa isa, ParseIsa(options.isa));
  node.measure = [isa, threads = team.threads, kept = KeptSpeeds(options.source), device](const std::string& file) {
    return MeasureMachine({.isa = isa, .threads = threads, .file = file, .kept = kept, .device = device.get()});
  };
  node.other_models = [source = options.source] { return CachedModelPaths(source); };
  // After SIGTERM the layers go to other members first; Ctrl-C, or a second signal, ends the process at once.
  node.leaves = [] { return InterruptGuard::Terminated(); };
  node.drain_timeout = std::chrono::seconds(options.drain_seconds);
  node.orphan_timeout = std::chrono::seconds(options.orphan_seconds);
  return RunNode(node, stopped);
}

}  // namespace gyre
