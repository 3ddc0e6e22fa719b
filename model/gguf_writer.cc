#include "model/gguf_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gyre {

StatusOr<GgufWriter> GgufWriter::Create(const std::string& path) {
  GgufWriter w;
  w.path_ = path;
  w.partial_ = path + ".partial";
  w.file_ = std::fopen(w.partial_.c_str(), "wb");
  if (w.file_ == nullptr) return Unavailable("{}: {}", w.partial_, std::strerror(errno));
  return w;
}

GgufWriter::GgufWriter(GgufWriter&& o) noexcept
    : path_(std::move(o.path_)),
      partial_(std::move(o.partial_)),
      file_(std::exchange(o.file_, nullptr)),
      values_(std::move(o.values_)),
      infos_(std::move(o.infos_)),
      n_values_(o.n_values_),
      offset_(o.offset_),
      written_(o.written_),
      sizes_(std::move(o.sizes_)),
      current_(o.current_),
      current_done_(o.current_done_) {}

GgufWriter::~GgufWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  unlink(partial_.c_str());
}

void GgufWriter::Put(const void* data, size_t bytes) { out_->append(static_cast<const char*>(data), bytes); }
void GgufWriter::Text(std::string_view s) {
  Number(static_cast<uint64_t>(s.size()));
  Put(s.data(), s.size());
}

void GgufWriter::Add(std::string_view key, const GgufValue& v) {
  out_ = &values_;
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
  out_ = &infos_;
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

Status GgufWriter::Raw(const void* data, size_t bytes) {
  written_ += bytes;
  if (std::fwrite(data, 1, bytes, file_) == bytes) return absl::OkStatus();
  return Unavailable("{}: {}", partial_, std::strerror(errno));
}

Status GgufWriter::PadTo(uint64_t alignment) {
  constexpr char kZeros[kAlignment] = {};
  return Raw(kZeros, (alignment - written_ % alignment) % alignment);
}

Status GgufWriter::Begin() {
  std::string head;
  out_ = &head;
  Put("GGUF", 4);
  Number(uint32_t{3});
  Number(static_cast<uint64_t>(sizes_.size()));
  Number(n_values_);
  out_ = &values_;
  for (const std::string* part : {&head, &values_, &infos_}) GYRE_RETURN_IF_ERROR(Raw(part->data(), part->size()));
  return PadTo(kAlignment);
}

Status GgufWriter::Write(std::span<const std::byte> bytes) {
  if (current_ >= sizes_.size() || bytes.size() > sizes_[current_] - current_done_) {
    return Internal("{}: more bytes than tensor {} has", path_, current_);
  }
  GYRE_RETURN_IF_ERROR(Raw(bytes.data(), bytes.size()));
  current_done_ += bytes.size();
  if (current_done_ < sizes_[current_]) return absl::OkStatus();
  ++current_;
  current_done_ = 0;
  return PadTo(kAlignment);
}

Status GgufWriter::Finish() {
  if (current_ != sizes_.size()) return Internal("{}: {} of {} tensors were written", path_, current_, sizes_.size());
  std::FILE* file = std::exchange(file_, nullptr);
  const bool flushed = std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  const int error = errno;
  if (std::fclose(file) != 0 || !flushed || std::rename(partial_.c_str(), path_.c_str()) != 0) {
    const Status status = Unavailable("{}: {}", path_, std::strerror(flushed ? errno : error));
    unlink(partial_.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace gyre
