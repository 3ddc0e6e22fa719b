// The flags of commands about model files and the cache of models.
#include <CLI/CLI.hpp>

#include <memory>

#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "model/quantize.h"

namespace gyre {

Action AddTokenize(CLI::App* app) {
  auto o = std::make_shared<TokenizeOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  AddBinFlags(app, &o->open);
  app->add_flag("--add-special", o->add_special, "add the begin and end tokens that the model's file asks for");
  app->add_flag("--parse-special", o->parse_special, "recognize control tokens in the text");
  app->add_flag("--jsonl", o->jsonl, "read one {\"text\"} per line, write one {\"ids\"} per line");
  return [o, source]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return TokenizeCommand(*o);
  };
}

Action AddTemplate(CLI::App* app) {
  auto o = std::make_shared<TemplateOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  app->add_option("--template", o->file, "a file with a chat template, instead of a MODEL")
      ->type_name("FILE")
      ->excludes(app->get_option("--model"));
  app->add_flag("--jsonl", o->jsonl,
                "read one {\"messages\", ...} per line, write one {\"text\"} or {\"error\"} per line");
  return [o, source]() -> Status {
    if (o->model.empty() && o->file.empty()) return UsageError("a MODEL or --template FILE is needed");
    GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return TemplateCommand(*o);
  };
}

Action AddQuantize(CLI::App* app) {
  auto o = std::make_shared<QuantizeCommandOptions>();
  app->add_option("IN", o->in, "a GGUF file, or a folder of safetensors, which is converted first")
      ->required()
      ->type_name("FILE");
  app->add_option("OUT", o->out, "the file to write")->required()->type_name("FILE");
  app->add_option("TYPE", o->type, "type of the new weights")
      ->required()
      ->check(CLI::IsMember(QuantizeTypes(), CLI::ignore_case));
  app->add_option("-t,--threads", o->threads, "threads (default: one per core)")->check(Whole(1, 4096))->type_name("N");
  app->add_flag("--requantize", o->requantize, "also read weights that are quantized (lost quality stays lost)");
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite OUT if it exists; IN itself is never overwritten");
  return [o] { return QuantizeCommand(*o); };
}

Action AddConvert(CLI::App* app) {
  auto o = std::make_shared<ConvertOptions>();
  app->add_option("DIR", o->folder, "the folder, with config.json, *.safetensors and tokenizer.json")
      ->required()
      ->type_name("FOLDER");
  app->add_option("OUT", o->out, "the file to write")->required()->type_name("FILE");
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite OUT if it exists; a file of DIR is never overwritten");
  return [o] { return ConvertCommand(*o); };
}

Action AddEstimate(CLI::App* app) {
  auto o = std::make_shared<EstimateOptions>();
  AddModelFlag(app, &o->model);
  AddSourceFlags(app, &o->source);
  AddHubCaFlag(app, &o->source);
  AddBinFlags(app, &o->open);
  AddContextFlag(app, &o->ctx);
  auto* parallel =
      app->add_option("--parallel", o->parallel,
                      "requests with the whole context that the KV cache holds (default: 1 as `gyre run`, 8 with "
                      "--nodes as `gyre serve`)")
          ->check(Whole(1))
          ->type_name("N");
  AddKvTypeFlag(app, &o->kv_type);
  AddMaxRowsFlag(app, &o->max_rows);
  auto* nodes = app->add_option("--nodes", o->nodes,
                                "how many nodes share the layers, or the memory of each: 16G,8G or NAME=16G,NAME=8G")
                    ->type_name("NODES");
  AddJsonFlag(app, &o->json);
  return [o, parallel, nodes]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    if (parallel->count() == 0 && nodes->count() > 0) o->parallel = kServeParallel;
    return EstimateCommand(*o);
  };
}

Action AddInspect(CLI::App* app) {
  auto o = std::make_shared<InspectOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  AddBinFlags(app, &o->open);
  AddJsonFlag(app, &o->json);
  app->add_option("--tensor", o->tensor, "statistics of one tensor")->type_name("NAME");
  app->add_flag("--tensors", o->tensors, "list all tensors");
  return [o, source]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return InspectCommand(*o);
  };
}

Action AddPull(CLI::App* app) {
  auto o = std::make_shared<PullCommandOptions>();
  app->add_option("NAME", o->model, "ORG/REPO, ORG/REPO:QUANT, ORG/REPO:QUANT@REVISION, or a URL")->required();
  AddSourceFlags(app, &o->source);
  AddHubCaFlag(app, &o->source);
  AddQuietFlag(app, &o->source.quiet);
  return [o] { return PullCommand(*o); };
}

Action AddModels(CLI::App* app) {
  auto o = std::make_shared<ModelsOptions>();
  AddCacheFlag(app, &o->source);
  AddJsonFlag(app, &o->json);
  return [o] { return ModelsCommand(*o); };
}

Action AddModelsRemove(CLI::App* app) {
  auto o = std::make_shared<ModelsOptions>();
  app->add_option("NAME", o->model, "a model as `gyre models` lists it")->required();
  app->add_flag("--all", o->all, "every quantization and version that the name means");
  AddCacheFlag(app, &o->source);
  AddQuietFlag(app, &o->source.quiet);
  return [o] { return ModelsRemoveCommand(*o); };
}

}  // namespace gyre
