// The functions that add each command's flags, for the table of commands, and helpers that they share.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "cli/model_source.h"

namespace CLI {
class App;
}  // namespace CLI

namespace gyre {

// Runs the command with the parsed values.
using Action = std::function<Status()>;

// Usage error: there is no model.
Status NeedModel(const std::string& model);
// Replaces a model's name by its path.
Status Locate(SourceOptions source, bool quiet, std::string* model);
void AddJsonFlag(CLI::App* app, bool* json);

// request_commands.cc
Action AddRun(CLI::App* app);
Action AddChat(CLI::App* app);
Action AddLogits(CLI::App* app);
Action AddBench(CLI::App* app);
Action AddBenchServe(CLI::App* app);

// score_commands.cc
Action AddPerplexity(CLI::App* app);
Action AddEval(CLI::App* app);
Action AddBatch(CLI::App* app);
Action AddDiff(CLI::App* app);
Action AddCertify(CLI::App* app);

// model_commands.cc
Action AddTokenize(CLI::App* app);
Action AddTemplate(CLI::App* app);
Action AddGrammarCheck(CLI::App* app);
Action AddParseAnswer(CLI::App* app);
Action AddQuantize(CLI::App* app);
Action AddImatrix(CLI::App* app);
Action AddConvert(CLI::App* app);
Action AddExport(CLI::App* app);
Action AddEstimate(CLI::App* app);
Action AddInspect(CLI::App* app);
Action AddPull(CLI::App* app);
Action AddModels(CLI::App* app);
Action AddModelsRemove(CLI::App* app);

// cluster_commands.cc
Action AddStatus(CLI::App* app);
Action AddLayers(CLI::App* app);
Action AddResize(CLI::App* app);
Action AddDrain(CLI::App* app);
Action AddUndrain(CLI::App* app);
Action AddRemove(CLI::App* app);
Action AddCaInit(CLI::App* app);
Action AddCaIssue(CLI::App* app);
Action AddCaRevoke(CLI::App* app);
Action AddCaToken(CLI::App* app);

}  // namespace gyre
