// The table of commands, and the flags that several of them share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/commands.h"
#include "identity/principal.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gyre {

struct Command {
  std::string name, summary;
  // Adds the command's flags. The function that it returns runs the command with the parsed values.
  std::function<std::function<Status()>(CLI::App*)> add;
  std::string example = "";  // a line for the shell
};

const std::vector<Command>& Commands();
// nullptr: there is no command of that name.
const Command* FindCommand(const std::string& name);
std::vector<std::string> CommandNames();

// An app with the flags of one command and its description. The return value is that of Command::add.
std::function<Status()> AddCommand(const Command& command, CLI::App* app);

// Groups of flags.
void AddModelFlag(CLI::App* app, std::string* model);
// A model as a path or a name: the flags of AddModelFlag and AddSourceFlags.
void AddModelFlags(CLI::App* app, std::string* model, SourceOptions* source);
// The source of models that have a name. `token` is the flag for the hub's token. Commands that have --ca keep it.
void AddSourceFlags(CLI::App* app, SourceOptions* source, const char* token = "--token");
void AddHubCaFlag(CLI::App* app, SourceOptions* source);
void AddYesFlag(CLI::App* app, SourceOptions* source);
void AddCacheFlag(CLI::App* app, SourceOptions* source);
// What .bin models do not say themselves.
void AddBinFlags(CLI::App* app, OpenOptions* options);
// The same, and what the weights must be.
void AddOpenFlags(CLI::App* app, OpenOptions* options);
void AddContextFlag(CLI::App* app, uint32_t* ctx);
void AddKvTypeFlag(CLI::App* app, std::string* kv_type);
void AddMaxRowsFlag(CLI::App* app, uint32_t* max_rows);
void AddDeviceFlags(CLI::App* app, std::string* device, uint64_t* device_memory, bool* no_graphs, int* threads,
                    std::string* cpus, std::string* isa);
void AddEngineFlags(CLI::App* app, RuntimeOptions* options);
CLI::Option* AddTransportFlag(CLI::App* app, std::string* transport);
void AddSchedulerFlags(CLI::App* app, ComputeOptions* options);
void AddContextShiftFlags(CLI::App* app, ComputeOptions* options);
// A model to run here, or a cluster that runs one. generates: the command makes text.
void AddTargetFlags(CLI::App* app, TargetOptions* options, bool generates);
// A server to ask over HTTP. Call it after AddTargetFlags, whose flags it excludes.
void AddUrlFlags(CLI::App* app, TargetOptions* options);
// The long names of the flags that were parsed.
std::vector<std::string> GivenFlags(const CLI::App& app);
void AddGenerateFlags(CLI::App* app, GenerateOptions* options);
// The flags of a client of an HTTP server.
void AddHttpClientFlags(CLI::App* app, std::string* api_key, std::string* ca_file, std::string* model_id);
// role: that the identity must have; nullopt: the coordinator decides.
CLI::Option* AddIdentityFlag(CLI::App* app, std::string* identity, std::optional<Role> role = std::nullopt);
void AddInsecureFlag(CLI::App* app, std::string* insecure);
void AddQuietFlag(CLI::App* app, bool* quiet);
// The instruction sets that --isa may name.
std::vector<std::string> IsaNames();
void AddThreadsFlag(CLI::App* app, int* threads, const std::string& what = "number of threads");

}  // namespace gyre
