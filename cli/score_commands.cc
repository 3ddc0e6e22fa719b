// The flags of perplexity, eval, batch, diff and certify.
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "base/kv_type.h"
#include "base/step_codec.h"
#include "cli/add_commands.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "kernels/isa.h"

namespace gyre {
namespace {

Status NeedsModel(const TargetOptions& o) {
  if (!o.model.empty() || !o.cluster.empty()) return absl::OkStatus();
  return UsageError("a MODEL or --cluster HOST:PORT is needed");
}

// A setting for both sides, and for each alone, which takes precedence.
struct SideFlags {
  std::string kv_type = "f16", isa, device;
  bool exact = false, generated = false;
};

void AddSideFlags(CLI::App* app, const std::string& side, SideFlags* o) {
  const std::string of = side.empty() ? "" : " of " + side;
  const std::string dashes = side.empty() ? "--" : side == "A" ? "--a-" : "--b-";
  const std::string both = side.empty() ? "" : " (default: as both)";
  app->add_option(dashes + "kv-type", o->kv_type, "number format of the KV cache's values" + of + both)
      ->check(CLI::IsMember(std::vector<std::string>(kKvTypeNames.begin(), kKvTypeNames.end())));
  app->add_option(
         dashes + "isa", o->isa,
         "instruction set of the kernels" + of + (side.empty() ? " (default: the best that this processor has)" : both))
      ->check(CLI::IsMember(IsaNames()));
  app->add_option(dashes + "device", o->device,
                  "the device that computes" + of + (side.empty() ? ", as cpu or cuda:0 (default: auto)" : both))
      ->type_name("NAME");
  app->add_flag(dashes + "exact", o->exact, "keep activations in f32" + of);
  app->add_flag(dashes + "as-generated", o->generated, "rows" + of + " as when a text is generated, not as a prompt's");
}

DiffSide SideOf(const CLI::App& app, const std::string& dashes, const SideFlags& both, const SideFlags& own) {
  const auto choose = [&](const char* name, const std::string& for_both, const std::string& for_one) {
    return app.count(dashes + name) > 0 ? for_one : for_both;
  };
  DiffSide side;
  side.kv_type = choose("kv-type", both.kv_type, own.kv_type);
  side.isa = choose("isa", both.isa, own.isa);
  side.device = choose("device", both.device, own.device);
  side.exact = both.exact || own.exact;
  side.generated = both.generated || own.generated;
  return side;
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

Action AddDiff(CLI::App* app) {
  struct Flags {
    DiffOptions options;
    SourceOptions source;
    std::string a, b;
    SideFlags for_both, for_a, for_b;
  };
  auto f = std::make_shared<Flags>();
  DiffOptions* const o = &f->options;
  app->add_option("A", f->a, "a model's file or folder, or its name")->required()->type_name("MODEL");
  app->add_option("B", f->b, "the other model (default: A under other settings)")->type_name("MODEL");
  AddYesFlag(app, &f->source);
  AddSourceFlags(app, &f->source);
  AddHubCaFlag(app, &f->source);
  auto* text = app->add_option("--text", o->text, "the text that both compute");
  auto* file = app->add_option("-f,--file", o->text_file, "a file with the text")->type_name("FILE");
  auto* ids =
      app->add_option("--ids", o->ids_file, "a file with token ids, separated by white space")->type_name("FILE");
  text->excludes(file)->excludes(ids);
  file->excludes(ids);
  app->add_option("--limit", o->limit, "only the first N tokens (default: all)")->check(Whole(1))->type_name("N");
  app->add_option("--chunk", o->chunk, "tokens that are computed at once")
      ->check(Whole(1, kMaxStepRows))
      ->type_name("N");
  AddSideFlags(app, "", &f->for_both);
  AddSideFlags(app, "A", &f->for_a);
  AddSideFlags(app, "B", &f->for_b);
  AddThreadsFlag(app, &o->threads);
  auto* stop = app->add_option("--stop-at", o->stop_at, "end behind this layer, the first is 0 (default: the last)")
                   ->check(Whole(0, 1 << 20))
                   ->type_name("LAYER");
  auto* out = app->add_option("--out", o->out, "with --stop-at: write both residual streams, NAME.a.npy and NAME.b.npy")
                  ->needs(stop)
                  ->type_name("NAME");
  stop->needs(out);
  app->add_flag("--force", o->force, "overwrite these files if they exist; no file that is read is ever overwritten")
      ->needs(out);
  AddOpenFlags(app, &o->open);
  AddJsonFlag(app, &o->json);
  AddQuietFlag(app, &o->quiet);
  return [f, o, app]() -> Status {
    if (o->text.empty() && o->text_file.empty() && o->ids_file.empty())
      return UsageError("--text TEXT, --file FILE or --ids FILE is needed");
    GYRE_RETURN_IF_ERROR(Locate(f->source, o->quiet, &f->a));
    if (!f->b.empty()) GYRE_RETURN_IF_ERROR(Locate(f->source, o->quiet, &f->b));
    o->a = SideOf(*app, "--a-", f->for_both, f->for_a);
    o->b = SideOf(*app, "--b-", f->for_both, f->for_b);
    o->a.model = f->a;
    o->b.model = f->b.empty() ? f->a : f->b;
    if (o->a == o->b) return UsageError("both sides are the same: a second model or a flag as --b-kv-type is needed");
    return DiffCommand(*o);
  };
}

Action AddCertify(CLI::App* app) {
  auto o = std::make_shared<CertifyOptions>();
  AddModelFlags(app, &o->ring.model, &o->ring.source);
  app->add_option("--reference", o->reference,
                  "ids and logits of another program, as `scripts/parity --write` makes them")
      ->required()
      ->type_name("FILE");
  app->add_option("--most", o->most, "the largest relative distance of the logits that passes")
      ->check(RealNumber(0, 1e6))
      ->type_name("X");
  app->add_option("--stages", o->ring.stages, "cut the model into N stages, a ring in this process")
      ->check(Whole(1))
      ->type_name("N");
  AddDeviceFlags(app, &o->ring.device, &o->ring.device_memory, &o->ring.no_graphs, &o->ring.threads, &o->ring.cpus,
                 &o->ring.isa);
  AddOpenFlags(app, &o->ring.open);
  AddJsonFlag(app, &o->json);
  AddQuietFlag(app, &o->ring.quiet);
  return [o]() -> Status {
    GYRE_RETURN_IF_ERROR(NeedModel(o->ring.model));
    return CertifyCommand(*o);
  };
}

}  // namespace gyre
