// gyre export: a model's tensors as .npy files or as safetensors.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_from.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/out_file.h"
#include "cli/progress.h"
#include "fmt/core.h"
#include "model/half_floats.h"
#include "model/mapped_file.h"
#include "model/quoted.h"
#include "model/source_files.h"
#include "model/tensor_table.h"
#include "model/text_pattern.h"
#include "model/weights.h"
#include "scoring/npy.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

// The type of a tensor's elements in both formats.
struct FileType {
  const char* npy = nullptr;
  const char* safetensors = nullptr;
};

// A tensor as it is written: rows of the file's own bytes, or of numbers.
struct Exported {
  std::string name;
  const TensorView* tensor = nullptr;
  FileType type;
  std::vector<uint64_t> shape;  // the last dimension is the fastest
  uint64_t bytes = 0;
};

// The type of a tensor that is written as it is. Quantized blocks are bytes.
FileType RawType(DType type) {
  switch (type) {
    case DType::kF32: return {"'<f4'", "F32"};
    case DType::kF16: return {"'<f2'", "F16"};
    case DType::kBF16: return {"'<u2'", "BF16"};  // numpy has no such type
    case DType::kF64: return {"'<f8'", "F64"};
    case DType::kI8: return {"'|i1'", "I8"};
    case DType::kI16: return {"'<i2'", "I16"};
    case DType::kI32: return {"'<i4'", "I32"};
    case DType::kI64: return {"'<i8'", "I64"};
    default: return {"'|u1'", "U8"};
  }
}

class ExportRun {
 public:
  explicit ExportRun(const ExportOptions& o) : o_(o), progress_("exporting", o.quiet) {}

  Status Run() {
    GYRE_ASSIGN_OR_RETURN(model_, OpenModel(o_.model, o_.open));
    GYRE_RETURN_IF_ERROR(Choose());
    sources_ = SourceFiles(o_.model);
    const bool npy = o_.out.ends_with(".npy");
    if (npy && chosen_.size() != 1)
      return UsageError("{}: a .npy file has one tensor, {} were chosen; expected NAME.safetensors or a folder", o_.out,
                        chosen_.size());
    if (npy) {
      GYRE_RETURN_IF_ERROR(WriteNpy(chosen_[0], o_.out));
    } else if (o_.out.ends_with(".safetensors")) {
      GYRE_RETURN_IF_ERROR(WriteSafetensors());
    } else {
      GYRE_RETURN_IF_ERROR(WriteFolder());
    }
    progress_.Finish();
    if (!o_.quiet) fmt::print(stderr, "{}: {}, {} bytes\n", o_.out, Counted(chosen_.size(), "tensor"), total_);
    return absl::OkStatus();
  }

 private:
  Status Choose() {
    std::vector<TextPattern> patterns;
    for (const std::string& text : o_.tensors) {
      StatusOr<TextPattern> pattern = TextPattern::Compile(text);
      if (!pattern.ok()) return UsageError("--tensors {}: {}", Printable(text), Message(pattern.status()));
      patterns.push_back(*std::move(pattern));
    }
    TextPattern::Match match;
    for (auto& [name, tensor] : model_->tensors().InFileOrder()) {
      const auto has = [&, &of = name](const TextPattern& p) { return p.Find(of, 0, &match); };
      if (!patterns.empty() && std::none_of(patterns.begin(), patterns.end(), has)) continue;
      GYRE_RETURN_IF_ERROR(Add(name, *tensor));
    }
    if (chosen_.empty())
      return InvalidArgument("{}: no tensor has such a name; `gyre inspect --tensors` lists them", o_.model);
    return absl::OkStatus();
  }

  Status Add(const std::string& name, const TensorView& tensor) {
    Exported e{.name = name, .tensor = &tensor};
    if (tensor.dims.empty()) return Unimplemented("tensor {} has no dimension", Printable(name));
    e.shape.assign(tensor.dims.rbegin(), tensor.dims.rend());
    const WeightView rows = tensor.Rows();
    if (o_.raw) {
      if (tensor.scales != nullptr)
        return Unimplemented(
            "tensor {} has its scales in another place, so its bytes alone mean nothing; without --raw "
            "it is written as numbers",
            Printable(name));
      e.type = RawType(tensor.type);
      if (Info(tensor.type).block_elems > 1 || tensor.type == DType::kF8E4M3) e.shape.back() = rows.row_bytes();
      e.bytes = rows.bytes();
    } else {
      if (!tensor.dequantizes())
        return Unimplemented("tensor {} has the type {}, which is not dequantized; --raw writes its bytes",
                             Printable(name), Info(tensor.type).name);
      const bool half = o_.type == "f16";
      e.type = half ? FileType{"'<f2'", "F16"} : FileType{"'<f4'", "F32"};
      e.bytes = uint64_t{rows.n} * rows.k * (half ? 2 : 4);
    }
    total_ += e.bytes;
    chosen_.push_back(std::move(e));
    return absl::OkStatus();
  }

  StatusOr<OutFile> Open(const std::string& path) const {
    return OutFile::Open(path, {.overwrite = o_.force, .sources = sources_});
  }

  Status WriteNpy(const Exported& e, const std::string& path) {
    GYRE_ASSIGN_OR_RETURN(OutFile out, Open(path));
    const std::string header = NpyHeader(e.type.npy, e.shape);
    GYRE_RETURN_IF_ERROR(out.Write(std::as_bytes(std::span(header))));
    GYRE_RETURN_IF_ERROR(WriteRows(e, &out));
    return out.Finish();
  }

  Status WriteFolder() {
    for (const Exported& e : chosen_) {
      // Names come from the model's file.
      if (e.name.find('/') != std::string::npos || e.name.find('\0') != std::string::npos || e.name.starts_with("."))
        return InvalidArgument("tensor {}: its name can't be a file's; expected NAME.safetensors", Printable(e.name));
    }
    std::error_code error;
    fs::create_directories(o_.out, error);
    if (error) return Unavailable("{}: {}", o_.out, error.message());
    for (const Exported& e : chosen_) GYRE_RETURN_IF_ERROR(WriteNpy(e, o_.out + "/" + e.name + ".npy"));
    return absl::OkStatus();
  }

  Status WriteSafetensors() {
    json::object header, metadata{{"format", "pt"}};
    uint64_t at = 0;
    for (const Exported& e : chosen_) {
      header[e.name] = json::object{{"dtype", e.type.safetensors},
                                    {"shape", json::value_from(e.shape)},
                                    {"data_offsets", json::array{at, at + e.bytes}}};
      at += e.bytes;
      // What the bytes of blocks are.
      if (o_.raw && Info(e.tensor->type).block_elems > 1) {
        metadata[e.name] = fmt::format("{} [{}]", Info(e.tensor->type).name,
                                       DescribeDims({e.tensor->dims.rbegin(), e.tensor->dims.rend()}));
      }
    }
    header["__metadata__"] = std::move(metadata);
    std::string text = json::serialize(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    GYRE_ASSIGN_OR_RETURN(OutFile out, Open(o_.out));
    std::string length;
    for (int i = 0; i < 8; ++i) length += static_cast<char>(uint64_t{text.size()} >> (8 * i) & 0xff);
    GYRE_RETURN_IF_ERROR(out.Write(std::as_bytes(std::span(length))));
    GYRE_RETURN_IF_ERROR(out.Write(std::as_bytes(std::span(text))));
    for (const Exported& e : chosen_) GYRE_RETURN_IF_ERROR(WriteRows(e, &out));
    return out.Finish();
  }

  // Piece by piece; what was read is dropped.
  Status WriteRows(const Exported& e, OutFile* out) {
    constexpr size_t kPiece = 1 << 20;  // bytes of the model, or one row
    MadeTensor::Bytes held;
    const WeightView all = e.tensor->WithData(&held).Rows();
    const size_t rows = std::max<size_t>(1, kPiece / std::max<size_t>(1, all.row_bytes()));
    std::vector<float> numbers;
    std::string halves;
    for (size_t at = 0; at < all.n; at += rows) {
      if (InterruptGuard::Interrupted()) return InterruptGuard::Stopped();
      const size_t count = std::min(rows, all.n - at);
      const std::span<const std::byte> bytes(all.data + at * all.row_bytes(), count * all.row_bytes());
      std::span<const std::byte> piece = bytes;
      if (!o_.raw) {
        numbers.resize(count * all.k);
        for (size_t r = 0; r < count; ++r) DequantizeRow(all, at + r, numbers.data() + r * all.k);
        piece = std::as_bytes(std::span(numbers));
        if (o_.type == "f16") {
          halves.clear();
          AppendHalves(numbers, &halves);
          piece = std::as_bytes(std::span(halves));
        }
      }
      GYRE_RETURN_IF_ERROR(out->Write(piece));
      for (const auto& file : model_->files()) file->Drop(bytes);
      done_ += piece.size();
      progress_.Update(done_, total_);
    }
    return absl::OkStatus();
  }

  const ExportOptions& o_;
  Progress progress_;
  std::shared_ptr<const Model> model_;
  std::vector<std::shared_ptr<const MappedFile>> sources_;
  std::vector<Exported> chosen_;
  uint64_t total_ = 0, done_ = 0;  // bytes of numbers
};

}  // namespace

Status ExportCommand(const ExportOptions& options) {
  const InterruptGuard guard(kExitInterrupted);
  InterruptGuard::Begin();
  return ExportRun(options).Run();
}

}  // namespace gyre
