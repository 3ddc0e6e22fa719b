// gyre certify: a model's logits beside those of another program (docs/models.md).
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "fmt/core.h"
#include "model/hf/safetensors.h"
#include "model/mapped_file.h"
#include "model/quantize.h"
#include "scoring/difference.h"

namespace gyre {
namespace {

namespace json = boost::json;

// What somebody else computed. The logits lie in the mapped file.
struct Reference {
  std::shared_ptr<const MappedFile> file;
  std::vector<TokenId> ids;
  size_t vocab = 0;
  std::string source;                 // the program, as its file says
  const std::byte* logits = nullptr;  // [ids][vocab], f32, not aligned

  std::vector<float> Row(size_t i) const {
    std::vector<float> row(vocab);
    std::memcpy(row.data(), logits + i * vocab * sizeof(float), vocab * sizeof(float));
    return row;
  }
};

// A text from a file as a field of a table.
std::string Cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' || static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  return out;
}

// Tensors "ids" I64 or I32 [n] and "logits" F32 [n][vocab].
StatusOr<Reference> ReadReference(const std::string& path) {
  Reference out;
  GYRE_ASSIGN_OR_RETURN(out.file, MappedFile::Open(path));
  std::map<std::string, std::string> metadata;
  const auto tensors = ParseSafetensors(out.file->bytes(), &metadata);
  if (!tensors.ok()) return Annotate(tensors.status(), path);
  const auto ids = tensors->find("ids"), logits = tensors->find("logits");
  if (ids == tensors->end() || ids->second.shape.size() != 1 ||
      (ids->second.dtype != "I64" && ids->second.dtype != "I32"))
    return InvalidArgument("{}: it has no tensor `ids` of the type I64 or I32 with one dimension", path);
  const uint64_t n = ids->second.shape[0];
  if (n == 0) return InvalidArgument("{}: it has no ids", path);
  if (logits == tensors->end() || logits->second.dtype != "F32" || logits->second.shape.size() != 2 ||
      logits->second.shape[0] != n)
    return InvalidArgument("{}: it has no tensor `logits` of the type F32 with a row for each of its {}", path,
                           Counted(n, "id"));
  const size_t each = ids->second.dtype == "I64" ? 8 : 4;
  for (uint64_t i = 0; i < n; ++i) {
    int64_t id = 0;
    int32_t narrow = 0;
    if (each == 8) {
      std::memcpy(&id, ids->second.bytes.data() + i * each, each);
    } else {
      std::memcpy(&narrow, ids->second.bytes.data() + i * each, each);
      id = narrow;
    }
    if (id < 0 || id > INT32_MAX) return InvalidArgument("{}: id {} of number {}", path, id, i);
    out.ids.push_back(static_cast<TokenId>(id));
  }
  out.vocab = logits->second.shape[1];
  out.logits = logits->second.bytes.data();
  out.source = metadata["source"].empty() ? "not named" : Cell(metadata["source"]);
  return out;
}

class Certification {
 public:
  Certification(const Reference& reference, double most) : reference_(reference), most_(most) {}

  Status Add(const std::vector<float>& logits) {
    if (logits.size() != reference_.vocab)
      return InvalidArgument("the reference has {} logits a token, the model {}", reference_.vocab, logits.size());
    const std::vector<float> expected = reference_.Row(rows_);
    all_.Add(expected, logits);
    RelativeError row;
    row.Add(expected, logits);
    if (row.value() > worst_) {
      worst_ = row.value();
      worst_row_ = rows_;
    }
    if (!first_far_ && !(row.value() <= most_)) first_far_ = rows_;
    StatusOr<TokenDifference> token = CompareLogits(expected, logits);
    if (!token.ok()) return Annotate(token.status(), fmt::format("row {}", rows_));
    divergence_ += token->divergence.forward;
    same_best_ += token->same_best ? 1 : 0;
    ++rows_;
    return absl::OkStatus();
  }

  size_t rows() const { return rows_; }
  double relative() const { return all_.value(); }
  double worst() const { return worst_; }
  size_t worst_row() const { return worst_row_; }
  std::optional<size_t> first_far() const { return first_far_; }  // the first row beyond what passes
  double divergence() const { return divergence_ / static_cast<double>(rows_); }
  double same_best() const { return static_cast<double>(same_best_) / static_cast<double>(rows_); }

 private:
  const Reference& reference_;
  const double most_;
  RelativeError all_;
  std::optional<size_t> first_far_;
  double worst_ = 0, divergence_ = 0;
  size_t rows_ = 0, worst_row_ = 0, same_best_ = 0;
};

}  // namespace

Status CertifyCommand(const CertifyOptions& o) {
  InterruptGuard guard(kExitInterrupted);
  GYRE_ASSIGN_OR_RETURN(const Reference reference, ReadReference(o.reference));
  TargetOptions ring = o.ring;
  // What rounds least. A larger context than the ids need may have other frequencies.
  ring.kv_type = "f32";
  ring.exact = true;
  ring.ctx = static_cast<uint32_t>(reference.ids.size()) + 1;
  GYRE_ASSIGN_OR_RETURN(const auto target, OpenTarget(ring));
  InterruptGuard::Begin();
  Certification result(reference, o.most);
  Progress progress("computing", o.ring.quiet, "tokens");
  const Status status = ForEachLogits(*target, reference.ids, [&](const std::vector<float>& logits) {
    const Status added = result.rows() < reference.ids.size() ? result.Add(logits) : Internal("more rows than ids");
    progress.Update(result.rows(), reference.ids.size());
    return Annotate(added, o.reference);
  });
  progress.Finish();
  GYRE_RETURN_IF_ERROR(status);
  if (result.rows() != reference.ids.size())
    return Internal("{} rows of logits came, expected {}", result.rows(), reference.ids.size());
  GYRE_ASSIGN_OR_RETURN(const auto model, OpenModel(target->facts().model, o.ring.open));
  const std::string quantization = QuantizationOf(*model);
  const bool passes = result.relative() <= o.most;  // not what is no number
  if (o.json) {
    fmt::print("{}\n",
               json::serialize(json::object{
                   {"model", target->facts().model},
                   {"architecture", target->facts().architecture},
                   {"quantization", quantization},
                   {"content_hash", fmt::format("{:016x}", model->content_hash())},
                   {"reference", reference.source},
                   {"tokens", result.rows()},
                   {"relative", result.relative()},
                   {"worst_row", result.worst_row()},
                   {"worst", result.worst()},
                   {"first_far_row", result.first_far() ? json::value(*result.first_far()) : json::value(nullptr)},
                   {"same_best", result.same_best()},
                   {"forward_kl", result.divergence()},
                   {"passes", passes}}));
  } else {
    fmt::print("{} tokens: relative distance {:.3e}, at most {:.3e} (row {}), same best {:.3f}, KL {:.3e}\n",
               result.rows(), result.relative(), result.worst(), result.worst_row(), result.same_best(),
               result.divergence());
  }
  if (!passes)
    return FailedPrecondition("{}: the relative distance is {:.3e}, expected at most {:g}{}", target->facts().model,
                              result.relative(), o.most,
                              result.first_far() ? fmt::format("; rows are far from {} on", *result.first_far()) : "");
  if (!o.json) {
    fmt::print("| {} | {} {} {:016x} | {} | {} | {:.1e} | {:.1e} | {:.3f} |\n", target->facts().architecture,
               Cell(model->spec().name), quantization, model->content_hash(), reference.source, result.rows(),
               result.relative(), result.worst(), result.same_best());
  }
  return absl::OkStatus();
}

}  // namespace gyre
