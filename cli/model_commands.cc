// The flags of commands about model files and the cache of models.
#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>
#include <memory>

#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "coordinator/engine/speculation.h"
#include "model/quantize.h"

namespace gyre {
namespace {

// A file that is no model's.
bool IsTextFile(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return false;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) != "GGUF" && !path.ends_with(".bin") && !path.ends_with(".safetensors");
}

}  // namespace

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

Action AddGrammarCheck(CLI::App* app) {
  auto o = std::make_shared<GrammarCheckOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  AddBinFlags(app, &o->open);
  auto* schema = app->add_option("--schema", o->schema, "a file with a JSON Schema")->type_name("FILE");
  auto* regex =
      app->add_option("--regex", o->regex, "a regular expression that matches the whole text")->type_name("PATTERN");
  auto* gbnf = app->add_option("--gbnf", o->gbnf, "a file with a grammar in llama.cpp's form")->type_name("FILE");
  schema->excludes(regex)->excludes(gbnf);
  regex->excludes(gbnf);
  app->add_flag(
      "--jsonl", o->jsonl,
      "read one {\"schema\" | \"pattern\" | \"grammar\" | \"tools\": ..., \"texts\": [...]} per line, write one "
      "{\"accepted\": [...]} or {\"refused\": ...} per line");
  app->add_flag("--ordered", o->ordered, "take members only in the order of a schema's \"properties\"");
  app->add_flag("--no-formats", o->no_formats, "read a schema's \"format\" as an annotation");
  return [o, source, regex]() -> Status {
    o->has_regex = regex->count() > 0;
    if (!o->jsonl && !o->has_regex && o->schema.empty() && o->gbnf.empty()) {
      return UsageError("--schema FILE, --regex PATTERN, --gbnf FILE or --jsonl is needed");
    }
    if (!o->model.empty()) GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    return GrammarCheckCommand(*o);
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

Action AddParseAnswer(CLI::App* app) {
  auto o = std::make_shared<ParseAnswerOptions>();
  auto source = std::make_shared<SourceOptions>();
  auto from = std::make_shared<std::string>();
  app->add_option("--template", *from,
                  "a file with a chat template, or a model: it says how reasoning and calls are written, unless a line "
                  "has \"format\"")
      ->type_name("FILE|MODEL");
  AddSourceFlags(app, source.get());
  AddHubCaFlag(app, source.get());
  app->add_flag("--jsonl", o->jsonl,
                "read one {\"generated\", \"tools\", ...} per line, write one {\"message\", \"finish_reason\"} or "
                "{\"error\"} per line");
  app->add_flag("--bytewise", o->bytewise, "feed the answer byte by byte, as the slowest stream");
  return [o, source, from]() -> Status {
    if (IsTextFile(*from)) {
      o->file = *from;
    } else if (!from->empty()) {
      o->model = *from;
      GYRE_RETURN_IF_ERROR(Locate(*source, false, &o->model));
    }
    return ParseAnswerCommand(*o);
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
  AddThreadsFlag(app, &o->threads);
  app->add_option("--imatrix", o->importance,
                  "an importance matrix, from `gyre imatrix` or llama-imatrix (GGUF or .dat): errors count more where "
                  "activations are large")
      ->type_name("FILE");
  app->add_option("--tensor-type", o->tensor_types,
                  "give tensors whose name has the regular expression this type, as ffn_down=Q6_K; the first that "
                  "matches counts")
      ->type_name("PATTERN=TYPE")
      ->allow_extra_args(false);
  app->add_flag("--requantize", o->requantize,
                "quantize weights again that are quantized already; lost quality stays lost");
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite OUT if it exists; IN itself is never overwritten");
  return [o] { return QuantizeCommand(*o); };
}

Action AddImatrix(CLI::App* app) {
  auto o = std::make_shared<ImatrixOptions>();
  app->add_option("MODEL", o->ring.model, "a GGUF file or a folder of safetensors, with float weights at best")
      ->required()
      ->type_name("FILE");
  app->add_option("TEXT", o->text, "a text such as the model will read and write; some hundred kilobytes suffice")
      ->required()
      ->type_name("FILE");
  app->add_option("-o,--out", o->out, "the file to write (GGUF)")->required()->type_name("FILE");
  app->add_option("--chunk", o->chunk, "tokens that are computed as one prompt")
      ->check(Whole(1, 1 << 20))
      ->type_name("N");
  AddThreadsFlag(app, &o->ring.threads);
  AddOpenFlags(app, &o->ring.open);
  AddQuietFlag(app, &o->ring.quiet);
  app->add_flag("--force", o->force, "overwrite the file if it exists; the model and the text are never overwritten");
  return [o] { return ImatrixCommand(*o); };
}

Action AddConvert(CLI::App* app) {
  auto o = std::make_shared<ConvertOptions>();
  app->add_option("DIR", o->folder,
                  "the folder, with config.json, *.safetensors and tokenizer.json; with --merge also a GGUF file")
      ->required()
      ->type_name("FOLDER");
  app->add_option("OUT", o->out, "the file to write")->required()->type_name("FILE");
  app->add_option(
         "--merge", o->merged,
         "add a LoRA adapter to the weights: a GGUF file or a folder of PEFT. Each tensor keeps its type; what is "
         "quantized is quantized again")
      ->type_name("ADAPTER");
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite OUT if it exists; a file of DIR is never overwritten");
  return [o] { return ConvertCommand(*o); };
}

Action AddExport(CLI::App* app) {
  auto o = std::make_shared<ExportOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  app->add_option("-o,--out", o->out,
                  "what to write: NAME.npy for one tensor, NAME.safetensors for any number, else a folder that gets a "
                  ".npy file for each")
      ->required()
      ->type_name("PATH");
  app->add_option("--tensors", o->tensors,
                  "only tensors whose name has this regular expression (repeatable; default: all)")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  auto* type = app->add_option("--type", o->type, "the type of the numbers")->check(CLI::IsMember({"f32", "f16"}));
  app->add_flag("--raw", o->raw,
                "the bytes as they are in the model: floats keep their type, rows of quantized blocks are bytes")
      ->excludes(type);
  AddOpenFlags(app, &o->open);
  AddQuietFlag(app, &o->quiet);
  app->add_flag("--force", o->force, "overwrite files that exist; those of the model are never overwritten");
  return [o, source]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    GYRE_RETURN_IF_ERROR(Locate(*source, o->quiet, &o->model));
    return ExportCommand(*o);
  };
}

Action AddEstimate(CLI::App* app) {
  auto o = std::make_shared<EstimateOptions>();
  AddModelFlag(app, &o->model);
  AddSourceFlags(app, &o->source);
  AddHubCaFlag(app, &o->source);
  AddOpenFlags(app, &o->open);
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
  app->add_option("--draft-model", o->draft_model, "a draft model beside it, on the first node")->type_name("FILE");
  app->add_option("--speculation", o->speculation,
                  "as `gyre run` has it: with auto and mtp a layer of the model's file for drafts counts, too")
      ->check(CLI::IsMember(std::vector<std::string>(kSpeculationNames.begin(), kSpeculationNames.end())));
  AddJsonFlag(app, &o->json);
  return [o, parallel, nodes]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->model));
    o->parallel_given = parallel->count() > 0;
    if (!o->parallel_given && nodes->count() > 0) o->parallel = kServeParallel;
    return EstimateCommand(*o);
  };
}

Action AddInspect(CLI::App* app) {
  auto o = std::make_shared<InspectOptions>();
  auto source = std::make_shared<SourceOptions>();
  AddModelFlags(app, &o->model, source.get());
  AddOpenFlags(app, &o->open);
  AddJsonFlag(app, &o->json);
  app->add_option("--tensor", o->tensor, "show statistics of the tensor NAME")->type_name("NAME");
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
  app->add_flag("--all", o->all, "remove every quantization and version that the name means");
  AddCacheFlag(app, &o->source);
  AddQuietFlag(app, &o->source.quiet);
  return [o] { return ModelsRemoveCommand(*o); };
}

}  // namespace gyre
