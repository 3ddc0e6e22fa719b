// The flags of perplexity, eval and batch.
#include <CLI/CLI.hpp>

#include <memory>

#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"

namespace gyre {
namespace {

Status NeedsModel(const TargetOptions& o) {
  if (!o.model.empty() || !o.cluster.empty()) return absl::OkStatus();
  return UsageError("a MODEL or --cluster HOST:PORT is needed");
}

}  // namespace

Action AddPerplexity(CLI::App* app) {
  auto o = std::make_shared<PerplexityOptions>();
  AddTargetFlags(app, &o->ring, false);
  AddHubCaFlag(app, &o->ring.source);
  app->add_option("-f,--file,TEXT", o->text_file, "the text; with --cluster it is named by --file")
      ->required()
      ->type_name("FILE");
  app->add_option("--window", o->window, "tokens that are computed as one prompt")
      ->check(Whole(2, 1 << 24))
      ->type_name("N");
  app->add_option("--stride", o->stride,
                  "tokens that each window scores; those before them give it context (default: half of the window)")
      ->check(Whole(1, 1 << 24))
      ->type_name("N");
  app->add_option("--top", o->top, "likeliest ids of each position that --save keeps")
      ->check(Whole(1, 1024))
      ->type_name("K");
  app->add_flag("--as-generated", o->generated, "rows as when the text was generated, not as a prompt's");
  auto* save = app->add_option("--save", o->save, "write the run to a .npy file")->type_name("FILE");
  app->add_option("--against", o->against, "compare with a run that --save wrote")->type_name("FILE");
  app->add_flag("--force", o->force, "overwrite the --save file if it exists")->needs(save);
  AddJsonFlag(app, &o->json);
  return [o]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedsModel(o->ring));
    return PerplexityCommand(*o);
  };
}

Action AddEval(CLI::App* app) {
  auto o = std::make_shared<EvalOptions>();
  AddTargetFlags(app, &o->ring, false);
  AddHubCaFlag(app, &o->ring.source);
  app->add_option("-f,--file,QUESTIONS", o->file, "a JSON object a line; with --cluster it is named by --file")
      ->required()
      ->type_name("FILE");
  auto* out =
      app->add_option("-o,--out", o->out, "write what each question got, a JSON object a line")->type_name("FILE");
  app->add_flag("--force", o->force, "overwrite the --out file if it exists")->needs(out);
  app->add_flag("--chat", o->chat, "free answers: the question is a user's message, in the model's chat template");
  app->add_option("--limit", o->limit, "only the first N questions (default: all)")->check(Whole(1))->type_name("N");
  AddJsonFlag(app, &o->json);
  return [o]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedsModel(o->ring));
    return EvalCommand(*o);
  };
}

Action AddBatch(CLI::App* app) {
  auto o = std::make_shared<BatchCommandOptions>();
  app->add_option("FILE", o->file, "requests, as OpenAI's batches have them: a JSON object a line")
      ->required()
      ->type_name("FILE");
  app->add_option("-o,--out", o->out, "the file of answers; those that it has are not asked again")
      ->required()
      ->type_name("FILE");
  app->add_option("--url", o->url, "an OpenAI-compatible server, as http://127.0.0.1:8080")
      ->required()
      ->type_name("URL");
  app->add_option("--api-key", o->api_key,
                  "the key that the server asks for (default: OPENAI_API_KEY of the environment)")
      ->type_name("KEY");
  app->add_option("--ca", o->ca_file, "certificates in PEM form that are trusted beside the system's")
      ->type_name("FILE");
  app->add_option("--concurrency", o->at_once, "number of requests that run at once")
      ->check(Whole(1, 1000))
      ->type_name("N");
  AddQuietFlag(app, &o->quiet);
  return [o] { return BatchCommand(*o); };
}

}  // namespace gyre
