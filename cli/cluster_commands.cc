// The flags of operators' commands: a cluster's state and changes, and its CA.
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "identity/principal.h"

namespace gyre {
namespace {

std::shared_ptr<AdminOptions> AddAdminFlags(CLI::App* app) {
  auto o = std::make_shared<AdminOptions>();
  app->add_option("--cluster", o->cluster, "the coordinator's address, or those of all that may lead")
      ->required()
      ->check(Addresses())
      ->type_name("HOST:PORT,...");
  AddIdentityFlag(app, &o->identity);
  AddJsonFlag(app, &o->json);
  return o;
}

void AddDryRunFlag(CLI::App* app, bool* dry_run) {
  app->add_flag("--dry-run", *dry_run, "only show what moves and what memory it takes, or why it is refused");
}

std::shared_ptr<CaOptions> AddCaFlags(CLI::App* app) {
  auto o = std::make_shared<CaOptions>();
  app->add_option("FOLDER", o->folder, "the CA's folder")->required();
  return o;
}

void AddKeyFlags(CLI::App* app, CaOptions* o) {
  app->add_option("--key-type", o->key_type, "the kind of the private key")->check(CLI::IsMember({"p256", "ed25519"}));
  app->add_option("--days", o->days, "number of days for which the certificate is valid")
      ->check(Whole(1, 36500))
      ->type_name("N");
}

}  // namespace

Action AddStatus(CLI::App* app) {
  return [o = AddAdminFlags(app)] { return StatusCommand(*o); };
}

Action AddLayers(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_flag("--why", o->why, "show for each member why it has its layers, or none, with the measured speeds");
  return [o] { return LayersCommand(*o); };
}

Action AddResize(CLI::App* app) {
  auto o = AddAdminFlags(app);
  auto ranges = std::make_shared<std::vector<std::string>>();
  app->add_option("RANGES", *ranges,
                  "[NAME=]A-B,... with both ends included, NAME=- for none; or the boundaries alone: 8 12");
  app->add_flag("--proposed", o->proposed, "take the plan that `gyre status` proposes");
  app->add_option(
         "--kv-tokens", o->kv_tokens,
         "number of tokens that the KV cache holds from now on; running requests are computed again, and those "
         "that fit no more fail (default: it stays as it is)")
      ->check(Whole(1))
      ->type_name("N");
  AddDryRunFlag(app, &o->dry_run);
  return [o, ranges] {
    if (int{!ranges->empty()} + int{o->proposed} + int{o->kv_tokens != 0} != 1) {
      return UsageError("RANGES, --proposed or --kv-tokens: expected one of them");
    }
    for (const std::string& word : *ranges) o->what += (o->what.empty() ? "" : " ") + word;
    return ResizeCommand(*o);
  };
}

Action AddDrain(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_option("WORKER", o->what, "the worker's name")->required()->check(NotEmpty());
  AddDryRunFlag(app, &o->dry_run);
  return [o] { return DrainCommand(*o); };
}

Action AddUndrain(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_option("WORKER", o->what, "the worker's name")->required()->check(NotEmpty());
  return [o] { return UndrainCommand(*o); };
}

Action AddRemove(CLI::App* app) {
  auto o = AddAdminFlags(app);
  app->add_option("WORKER", o->what, "the worker's name")->required()->check(NotEmpty());
  return [o] { return RemoveCommand(*o); };
}

Action AddCaInit(CLI::App* app) {
  auto o = AddCaFlags(app);
  o->days = 3650;
  app->add_option("--name", o->cluster, "the cluster's name, which stands in every certificate")->check(OwnersName());
  AddKeyFlags(app, o.get());
  AddQuietFlag(app, &o->quiet);
  return [o] { return CaInitCommand(*o); };
}

Action AddCaIssue(CLI::App* app) {
  auto o = AddCaFlags(app);
  app->add_option("--role", o->role, "what its owner may do")
      ->required()
      ->check(CLI::IsMember({"coordinator", "worker", "client", "admin"}));
  app->add_option("--name", o->name, "the name of its owner, which is a worker's name in the cluster")
      ->required()
      ->check(OwnersName());
  app->add_option("-o,--out", o->out, "the folder to write the identity to")->required()->type_name("FOLDER");
  AddKeyFlags(app, o.get());
  app->add_flag("--renew", o->renew, "replace the identity in --out; other certificates of this name stay valid");
  AddQuietFlag(app, &o->quiet);
  return [o] { return CaIssueCommand(*o); };
}

Action AddCaRevoke(CLI::App* app) {
  auto o = AddCaFlags(app);
  app->add_option("NAME", o->name, "the owner whose certificates are revoked")->required()->check(NotEmpty());
  app->add_option("--role", o->role, "revoke only those of this role (default: of all roles)")
      ->check(CLI::IsMember({"coordinator", "worker", "client", "admin"}));
  AddQuietFlag(app, &o->quiet);
  return [o] { return CaRevokeCommand(*o); };
}

Action AddCaToken(CLI::App* app) {
  auto o = AddCaFlags(app);
  app->add_option("--ttl", o->ttl, "time for which the token can be used, as 30m, 1h or 7d")->type_name("TIME");
  app->add_option("--name", o->name,
                  "the name of the only worker that may use it (default: a worker with any name that is free)")
      ->check(OwnersName());
  return [o] { return CaTokenCommand(*o); };
}

}  // namespace gyre
