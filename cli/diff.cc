// gyre diff: where two models part, layer by layer (docs/diff.md).
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/cpus.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "fmt/core.h"
#include "model/source_files.h"
#include "model/tokenizer.h"
#include "runtime/devices.h"
#include "scoring/difference.h"
#include "scoring/npy.h"
#include "worker/layer_walk.h"

namespace gyre {
namespace {

namespace json = boost::json;

// JSON has no other numbers.
json::value Finite(double number) { return std::isfinite(number) ? json::value(number) : json::value(nullptr); }

// The embedding, a layer or the head.
struct DiffPlace {
  std::string name;
  std::optional<RowsDifference> rows;  // of the head: none, as logits are not kept
  double own = 0;
};

class DiffRun {
 public:
  explicit DiffRun(const DiffOptions& o) : o_(o), progress_("comparing", o.quiet, "layers") {}

  Status Prepare() {
    GYRE_ASSIGN_OR_RETURN(a_model_, OpenModel(o_.a.model, o_.open));
    b_model_ = a_model_;
    if (o_.b.model != o_.a.model) {
      GYRE_ASSIGN_OR_RETURN(b_model_, OpenModel(o_.b.model, o_.open));
    }
    GYRE_RETURN_IF_ERROR(CheckShapes());
    GYRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, Ids());
    if (o_.limit > 0 && ids.size() > o_.limit) ids.resize(o_.limit);
    GYRE_ASSIGN_OR_RETURN(const TeamCpus team, ChooseCpus(o_.threads, o_.cpus));
    const auto open = [&](const DiffSide& side) {
      return OpenDevice(
          {.name = side.device, .isa = side.isa, .threads = std::max(1, team.threads), .cpus = team.cpus});
    };
    GYRE_ASSIGN_OR_RETURN(const std::shared_ptr<Device> a_device, open(o_.a));
    std::shared_ptr<Device> b_device = a_device;
    if (o_.a.device != o_.b.device || o_.a.isa != o_.b.isa) {
      GYRE_ASSIGN_OR_RETURN(b_device, open(o_.b));
    }
    GYRE_ASSIGN_OR_RETURN(a_, LayerWalk::Make(a_model_, a_device, WalkOptions(o_.a), ids));
    GYRE_ASSIGN_OR_RETURN(b_, LayerWalk::Make(b_model_, b_device, WalkOptions(o_.b), std::move(ids)));
    if (o_.stop_at < 0) return absl::OkStatus();
    if (o_.stop_at >= a_->layers())
      return UsageError("--stop-at {}: the model has the layers 0-{}", o_.stop_at, a_->layers() - 1);
    std::vector<std::shared_ptr<const MappedFile>> sources;
    for (const std::string& path : {o_.a.model, o_.b.model, o_.text_file, o_.ids_file}) {
      if (path.empty()) continue;
      for (auto& file : SourceFiles(path)) sources.push_back(std::move(file));
    }
    for (auto& [side, file] : {std::pair("a", &a_out_), std::pair("b", &b_out_)}) {
      GYRE_ASSIGN_OR_RETURN(OutFile out, OutFile::Open(fmt::format("{}.{}.npy", o_.out, side),
                                                       {.overwrite = o_.force, .sources = sources}));
      file->emplace(std::move(out));
    }
    return absl::OkStatus();
  }

  Status Run() {
    const int last = o_.stop_at < 0 ? a_->layers() : o_.stop_at + 1;
    steps_ = last + (o_.stop_at < 0 ? 2 : 1);
    GYRE_RETURN_IF_ERROR(CompareEmbeddings());
    for (int layer = 0; layer < last; ++layer) GYRE_RETURN_IF_ERROR(CompareLayer(layer));
    if (o_.stop_at < 0) {
      GYRE_RETURN_IF_ERROR(CompareHeads());
    } else {
      GYRE_RETURN_IF_ERROR(Write(a_rows_.rows, &*a_out_));
      GYRE_RETURN_IF_ERROR(Write(b_rows_.rows, &*b_out_));
    }
    progress_.Finish();
    return absl::OkStatus();
  }

  void Print() const {
    std::vector<double> own;
    for (const DiffPlace& place : places_) own.push_back(place.own);
    const std::optional<size_t> first = FirstJump(own);
    if (o_.json) return PrintJson(first);
    fmt::print("A {}\nB {}\n{} tokens\n\n", Describe(o_.a), Describe(o_.b), a_->tokens());
    fmt::print("{:>10} {:>10} {:>12} {:>10} {:>10} {}\n", "place", "error", "1 - cosine", "own error", "largest",
               "at row, element");
    for (const DiffPlace& place : places_) {
      if (place.rows) {
        fmt::print("{:>10} {:10.3e} {:12.3e} {:10.3e} {:10.3e} {}, {}\n", place.name, place.rows->error,
                   1 - place.rows->cosine, place.own, place.rows->largest, place.rows->row, place.rows->element);
      } else {
        fmt::print("{:>10} {:>10} {:>12} {:10.3e}\n", place.name, "", "", place.own);
      }
    }
    if (first) {
      fmt::print("\nthe error jumps first at: {}\n", places_[*first].name);
    } else {
      fmt::print("\nno place has more than {} times the error of its neighbours\n", kJump);
    }
    if (tokens_.empty()) return;
    const Mean mean = MeanOf(tokens_);
    fmt::print(
        "\nKL(A || B) {:.6g} nats a token, at most {:.6g} behind token {}; KL(B || A) {:.6g}; Jensen-Shannon "
        "{:.6g}\ntop-1 agreement {:.3f}%; mean rank of A's best in B {:.4f}\n",
        mean.forward, tokens_[mean.worst].divergence.forward, mean.worst, mean.reverse, mean.jensen_shannon,
        100 * mean.same_best, mean.rank);
  }

 private:
  struct Mean {
    double forward = 0, reverse = 0, jensen_shannon = 0, same_best = 0, rank = 0;
    size_t worst = 0;  // the token with the largest forward divergence
  };
  static Mean MeanOf(const std::vector<TokenDifference>& tokens) {
    Mean mean;
    const auto n = static_cast<double>(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const TokenDifference& t = tokens[i];
      mean.forward += t.divergence.forward / n;
      mean.reverse += t.divergence.reverse / n;
      mean.jensen_shannon += t.divergence.jensen_shannon / n;
      mean.same_best += (t.same_best ? 1 : 0) / n;
      mean.rank += t.rank / n;
      if (t.divergence.forward > tokens[mean.worst].divergence.forward) mean.worst = i;
    }
    return mean;
  }

  LayerWalkOptions WalkOptions(const DiffSide& side) const {
    return {.kv_type = *ParseKvType(side.kv_type),
            .exact = side.exact,
            .row_class = side.generated ? RowClass::kGenerated : RowClass::kPrompt,
            .chunk = o_.chunk};
  }

  static std::string Describe(const DiffSide& side) {
    return fmt::format("{} (KV cache {}{}{}{}{})", side.model, side.kv_type, side.isa.empty() ? "" : ", " + side.isa,
                       side.device.empty() ? "" : ", " + side.device, side.exact ? ", exact" : "",
                       side.generated ? ", as generated" : "");
  }

  Status CheckShapes() const {
    const ModelSpec &a = a_model_->spec(), &b = b_model_->spec();
    const auto same = [&](const char* what, size_t of_a, size_t of_b) {
      return of_a == of_b ? absl::OkStatus()
                          : InvalidArgument("{} has {} {}, {} has {}: such models can't be compared layer by layer",
                                            o_.a.model, of_a, what, o_.b.model, of_b);
    };
    GYRE_RETURN_IF_ERROR(same("layers", a.layers.size(), b.layers.size()));
    GYRE_RETURN_IF_ERROR(
        same("elements in a row", static_cast<size_t>(a.RowElems()), static_cast<size_t>(b.RowElems())));
    return same("ids in its vocabulary", static_cast<size_t>(a.vocab), static_cast<size_t>(b.vocab));
  }

  StatusOr<std::vector<TokenId>> Ids() const {
    if (!o_.ids_file.empty()) return ReadIds(o_.ids_file);
    std::string text = o_.text;
    if (!o_.text_file.empty()) {
      GYRE_ASSIGN_OR_RETURN(text, ReadFile(o_.text_file));
    }
    std::vector<TokenId> ids;
    for (const auto* model : {a_model_.get(), b_model_.get()}) {
      if (model->tokenizer() == nullptr)
        return FailedPrecondition("{}: {}; use --ids FILE", model->path(), model->tokenizer_note());
      std::vector<TokenId> of_model = model->tokenizer()->Encode(text, {.add_special = true});
      if (model == a_model_.get()) {
        ids = std::move(of_model);
      } else if (ids != of_model) {
        return InvalidArgument("{} and {} give the text different tokens; name them by --ids FILE", o_.a.model,
                               o_.b.model);
      }
    }
    return ids;
  }

  // Whether the user wants an end, and how far it is.
  Status Step() {
    if (InterruptGuard::Interrupted()) return InterruptGuard::Stopped();
    progress_.Update(places_.size(), static_cast<uint64_t>(steps_));
    return absl::OkStatus();
  }
  void AddRows(std::string name, std::optional<double> own) {
    DiffPlace& place = places_.emplace_back();
    place.name = std::move(name);
    place.rows = Compare(a_rows_.rows, b_rows_.rows, static_cast<size_t>(a_->spec().RowElems()));
    place.own = own.value_or(place.rows->error);
  }

  Status CompareEmbeddings() {
    GYRE_RETURN_IF_ERROR(a_->LoadEmbedding());
    GYRE_RETURN_IF_ERROR(a_->Embed(&a_rows_));
    a_->Unload();
    GYRE_RETURN_IF_ERROR(b_->LoadEmbedding());
    GYRE_RETURN_IF_ERROR(b_->Embed(&b_rows_));
    b_->Unload();
    AddRows("embedding", std::nullopt);
    return Step();
  }

  Status CompareLayer(int layer) {
    before_ = a_rows_.rows;
    crossed_.rows = a_rows_.rows;
    GYRE_RETURN_IF_ERROR(a_->LoadLayer(layer));
    GYRE_RETURN_IF_ERROR(a_->Run(&a_rows_));
    GYRE_RETURN_IF_ERROR(b_->LoadLayer(layer));
    GYRE_RETURN_IF_ERROR(b_->Run(&b_rows_));
    GYRE_RETURN_IF_ERROR(b_->Run(&crossed_));
    RelativeError own;
    own.Add(a_rows_.rows, crossed_.rows, before_);
    AddRows(fmt::format("layer {}", layer), own.value());
    return Step();
  }

  Status CompareHeads() {
    GYRE_RETURN_IF_ERROR(a_->LoadHead());
    GYRE_RETURN_IF_ERROR(b_->LoadHead());
    constexpr size_t kRows = 16;  // whose logits are in memory
    const auto dim = static_cast<size_t>(a_->spec().RowElems()), vocab = static_cast<size_t>(a_->spec().vocab);
    RelativeError own;
    std::vector<float> of_a, of_b, crossed;
    for (size_t at = 0; at < a_->tokens(); at += kRows) {
      const size_t count = std::min(kRows, a_->tokens() - at);
      const auto part = [&](const WalkedRows& rows) { return std::span(rows.rows).subspan(at * dim, count * dim); };
      GYRE_RETURN_IF_ERROR(a_->Logits(part(a_rows_), &of_a));
      GYRE_RETURN_IF_ERROR(b_->Logits(part(b_rows_), &of_b));
      GYRE_RETURN_IF_ERROR(b_->Logits(part(a_rows_), &crossed));
      own.Add(of_a, crossed);
      for (size_t i = 0; i < count; ++i) {
        const auto row = [&](const std::vector<float>& logits) { return std::span(logits).subspan(i * vocab, vocab); };
        StatusOr<TokenDifference> token = CompareLogits(row(of_a), row(of_b));
        if (!token.ok()) return Annotate(token.status(), fmt::format("the logits behind token {}", at + i));
        tokens_.push_back(*token);
      }
      if (InterruptGuard::Interrupted()) return InterruptGuard::Stopped();
    }
    a_->Unload();
    b_->Unload();
    DiffPlace& head = places_.emplace_back();
    head.name = "head";
    head.own = own.value();
    return Step();
  }

  Status Write(const std::vector<float>& rows, OutFile* out) const {
    const uint64_t shape[] = {a_->tokens(), static_cast<uint64_t>(a_->spec().RowElems())};
    const std::string header = NpyHeader("'<f4'", shape);
    GYRE_RETURN_IF_ERROR(out->Write(std::as_bytes(std::span(header))));
    GYRE_RETURN_IF_ERROR(out->Write(std::as_bytes(std::span(rows))));
    return out->Finish();
  }

  static json::object SideJson(const DiffSide& side) {
    return {{"model", side.model},   {"kv_type", side.kv_type}, {"isa", side.isa},
            {"device", side.device}, {"exact", side.exact},     {"as_generated", side.generated}};
  }

  void PrintJson(std::optional<size_t> first) const {
    json::array places, tokens;
    for (const DiffPlace& place : places_) {
      json::object& one =
          places.emplace_back(json::object{{"place", place.name}, {"own_error", Finite(place.own)}}).as_object();
      if (!place.rows) continue;
      one["error"] = Finite(place.rows->error);
      one["cosine"] = Finite(place.rows->cosine);
      one["largest"] = Finite(place.rows->largest);
      one["row"] = place.rows->row;
      one["element"] = place.rows->element;
    }
    json::object out{{"a", SideJson(o_.a)},
                     {"b", SideJson(o_.b)},
                     {"tokens", a_->tokens()},
                     {"places", std::move(places)},
                     {"first_jump", first ? json::value(places_[*first].name) : json::value(nullptr)}};
    if (!tokens_.empty()) {
      for (const TokenDifference& t : tokens_) {
        tokens.push_back(json::object{{"forward_kl", Finite(t.divergence.forward)},
                                      {"reverse_kl", Finite(t.divergence.reverse)},
                                      {"jensen_shannon", Finite(t.divergence.jensen_shannon)},
                                      {"same_best", t.same_best},
                                      {"rank", t.rank}});
      }
      const Mean mean = MeanOf(tokens_);
      out["mean"] = json::object{{"forward_kl", Finite(mean.forward)},
                                 {"reverse_kl", Finite(mean.reverse)},
                                 {"jensen_shannon", Finite(mean.jensen_shannon)},
                                 {"top1_agreement", mean.same_best},
                                 {"rank", mean.rank}};
      out["per_token"] = std::move(tokens);
    }
    fmt::print("{}\n", json::serialize(out));
  }

  const DiffOptions& o_;
  Progress progress_;
  int steps_ = 0;
  std::shared_ptr<const Model> a_model_, b_model_;
  std::unique_ptr<LayerWalk> a_, b_;
  WalkedRows a_rows_, b_rows_, crossed_;  // crossed: A's rows through B's layer
  std::vector<float> before_;             // A's rows before the layer
  std::optional<OutFile> a_out_, b_out_;
  std::vector<DiffPlace> places_;
  std::vector<TokenDifference> tokens_;
};

}  // namespace

Status DiffCommand(const DiffOptions& o) {
  InterruptGuard guard(kExitInterrupted);
  DiffRun run(o);
  GYRE_RETURN_IF_ERROR(run.Prepare());
  InterruptGuard::Begin();
  GYRE_RETURN_IF_ERROR(run.Run());
  run.Print();
  return absl::OkStatus();
}

}  // namespace gyre
