#include "model/gguf_writer.h"

#include <utility>

namespace gyre {

StatusOr<GgufWriter> GgufWriter::Create(const std::string& path, const NewFileOptions& options) {
  GYRE_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, options));
  return GgufWriter(std::move(file));
}

void GgufWriter::Put(const void* data, size_t bytes) {
  std::string& out = part_ == Part::kHead ? head_ : part_ == Part::kValues ? values_ : infos_;
  out.append(static_cast<const char*>(data), bytes);
}
void GgufWriter::Text(std::string_view s) {
  Number(static_cast<uint64_t>(s.size()));
  Put(s.data(), s.size());
}

void GgufWriter::Add(std::string_view key, const GgufValue& v) {
  part_ = Part::kValues;
  ++n_values_;
  Text(key);
  Number(static_cast<uint32_t>(v.type));
  if (v.type == GgufType::kArray) {
    Number(static_cast<uint32_t>(v.element));
    Number(v.count);
  }
  if (v.type == GgufType::kString) Number(static_cast<uint64_t>(v.bytes.size()));
  Put(v.bytes.data(), v.bytes.size());
}
void GgufWriter::Add(std::string_view key, uint32_t v) {
  Add(key, GgufValue{.type = GgufType::kU32, .bytes = std::as_bytes(std::span(&v, 1))});
}
void GgufWriter::Add(std::string_view key, std::string_view v) {
  Add(key, GgufValue{.type = GgufType::kString, .bytes = std::as_bytes(std::span(v))});
}

void GgufWriter::AddTensor(std::string_view name, DType type, const std::vector<uint64_t>& dims) {
  part_ = Part::kInfos;
  Text(name);
  Number(static_cast<uint32_t>(dims.size()));
  uint64_t elems = 1;
  for (uint64_t d : dims) {
    Number(d);
    elems *= d;
  }
  Number(static_cast<uint32_t>(type));
  Number(offset_);
  sizes_.push_back(elems / Info(type).block_elems * Info(type).block_bytes);
  offset_ += (sizes_.back() + kAlignment - 1) / kAlignment * kAlignment;
}

Status GgufWriter::PadTo(uint64_t alignment) {
  constexpr char kZeros[kAlignment] = {};
  return file_.Write(std::as_bytes(std::span(kZeros)).first((alignment - file_.written() % alignment) % alignment));
}

Status GgufWriter::Begin() {
  part_ = Part::kHead;
  Put("GGUF", 4);
  Number(uint32_t{3});
  Number(static_cast<uint64_t>(sizes_.size()));
  Number(n_values_);
  for (const std::string* part : {&head_, &values_, &infos_}) {
    GYRE_RETURN_IF_ERROR(file_.Write(std::as_bytes(std::span(*part))));
  }
  return PadTo(kAlignment);
}

Status GgufWriter::Write(std::span<const std::byte> bytes) {
  if (current_ >= sizes_.size() || bytes.size() > sizes_[current_] - current_done_) {
    return Internal("{}: more bytes than tensor {} has", file_.path(), current_);
  }
  GYRE_RETURN_IF_ERROR(file_.Write(bytes));
  current_done_ += bytes.size();
  if (current_done_ < sizes_[current_]) return absl::OkStatus();
  ++current_;
  current_done_ = 0;
  return PadTo(kAlignment);
}

Status GgufWriter::Finish() {
  if (current_ != sizes_.size())
    return Internal("{}: {} of {} tensors were written", file_.path(), current_, sizes_.size());
  return file_.Finish();
}

}  // namespace gyre
