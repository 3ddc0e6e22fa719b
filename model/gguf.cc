#include "model/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

#include "base/coding.h"
#include "model/foreign_file.h"
#include "model/quoted.h"

namespace gyre {

struct PendingTensor {
  TensorView view;
  uint64_t offset = 0;
};

namespace {

constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxNameBytes = 1 << 16;
constexpr uint32_t kMaxDims = 4;

size_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
  }
}

template <typename T>
T Read(std::span<const std::byte> bytes, size_t at = 0) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// A reader of bytes in order; its errors name the offset.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  // Whether enough bytes are left for `count` elements of `each` bytes.
  bool Holds(uint64_t count, uint64_t each) {
    if (count <= left() / each) return true;
    short_of_bytes_ = true;
    return false;
  }
  // Whether Holds has ever returned false.
  bool short_of_bytes() const { return short_of_bytes_; }

  template <typename T>
  StatusOr<T> Number(const char* what) {
    GYRE_ASSIGN_OR_RETURN(auto bytes, Take(sizeof(T), what));
    return Read<T>(bytes);
  }
  StatusOr<std::span<const std::byte>> Take(uint64_t n, const char* what) {
    if (!Holds(n, 1)) {
      return DataLoss("offset {}: {} takes {} bytes, the file has {} left: is it whole?", at_, what, n, left());
    }
    const auto out = bytes_.subspan(at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    return out;
  }
  StatusOr<std::string_view> String(const char* what) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, Number<uint64_t>(what));
    GYRE_ASSIGN_OR_RETURN(auto bytes, Take(n, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool short_of_bytes_ = false;
};

template <typename T>
StatusOr<T> Annotated(StatusOr<T> value, const std::string& where) {
  if (!value.ok()) return Annotate(value.status(), where);
  return value;
}

StatusOr<std::string> ReadName(Reader& in, const char* what) {
  const size_t at = in.at();
  GYRE_ASSIGN_OR_RETURN(const std::string_view name, in.String(what));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return DataLoss("offset {}: {} of {} bytes, expected 1 to {}", at, what, name.size(), kMaxNameBytes);
  }
  return std::string(name);
}

Status CheckBools(GgufType type, std::span<const std::byte> bytes, const std::string& key) {
  if (type != GgufType::kBool) return absl::OkStatus();
  for (std::byte b : bytes) {
    if (b > std::byte{1}) return DataLoss("key {}: a bool of {}, expected 0 or 1", Printable(key), static_cast<int>(b));
  }
  return absl::OkStatus();
}

StatusOr<GgufValue> ReadArray(Reader& in, const std::string& key) {
  GgufValue v{.type = GgufType::kArray, .element = GgufType::kU8, .count = 0, .bytes = {}};
  GYRE_ASSIGN_OR_RETURN(const uint32_t element, in.Number<uint32_t>("an array's type"));
  GYRE_ASSIGN_OR_RETURN(v.count, in.Number<uint64_t>("an array's count"));
  v.element = static_cast<GgufType>(element);
  const size_t begin = in.at();
  if (v.element == GgufType::kString) {
    if (!in.Holds(v.count, 8))
      return DataLoss("key {}: {} strings, the file has {} bytes left", Printable(key), v.count, in.left());
    const Reader start = in;
    for (uint64_t i = 0; i < v.count; ++i)
      GYRE_RETURN_IF_ERROR(Annotate(in.String("a string").status(), "key " + Printable(key)));
    Reader whole = start;
    GYRE_ASSIGN_OR_RETURN(v.bytes, whole.Take(in.at() - begin, "an array"));
    return v;
  }
  if (v.element == GgufType::kArray) return Unimplemented("key {}: an array of arrays", Printable(key));
  const size_t size = ScalarBytes(v.element);
  if (size == 0) {
    return DataLoss("key {}: an array of type {}, expected numbers or strings", Printable(key), element);
  }
  if (!in.Holds(v.count, size))
    return DataLoss("key {}: {} elements, the file has {} bytes left", Printable(key), v.count, in.left());
  GYRE_ASSIGN_OR_RETURN(v.bytes, in.Take(v.count * size, "an array"));
  GYRE_RETURN_IF_ERROR(CheckBools(v.element, v.bytes, key));
  return v;
}

StatusOr<GgufValue> ReadValue(Reader& in, const std::string& key) {
  GYRE_ASSIGN_OR_RETURN(const uint32_t type, Annotated(in.Number<uint32_t>("a value's type"), "key " + Printable(key)));
  GgufValue v{.type = static_cast<GgufType>(type), .element = GgufType::kU8, .count = 0, .bytes = {}};
  if (v.type == GgufType::kArray) return ReadArray(in, key);
  if (v.type == GgufType::kString) {
    GYRE_ASSIGN_OR_RETURN(const std::string_view text, Annotated(in.String("a string"), "key " + Printable(key)));
    v.bytes = std::as_bytes(std::span(text));
    return v;
  }
  const size_t size = ScalarBytes(v.type);
  if (size == 0) return DataLoss("key {}: value type {} is unknown, expected 0 to 12", Printable(key), type);
  GYRE_ASSIGN_OR_RETURN(v.bytes, Annotated(in.Take(size, "a value"), "key " + Printable(key)));
  GYRE_RETURN_IF_ERROR(CheckBools(v.type, v.bytes, key));
  return v;
}

StatusOr<PendingTensor> ReadTensor(Reader& in, const std::string& tensor_name) {
  const std::string name = Printable(tensor_name);
  PendingTensor t;
  GYRE_ASSIGN_OR_RETURN(const uint32_t n_dims, in.Number<uint32_t>("a tensor's dimensions"));
  if (n_dims == 0 || n_dims > kMaxDims) {
    return DataLoss("tensor {}: {} dimensions, expected 1 to {}", name, n_dims, kMaxDims);
  }
  uint64_t elems = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t d, in.Number<uint64_t>("a tensor's dimension"));
    if (d == 0) return DataLoss("tensor {}: dimension {} is 0", name, i);
    if (__builtin_mul_overflow(elems, d, &elems) || elems > uint64_t{1} << 48) {
      return DataLoss("tensor {}: too many elements", name);
    }
    t.view.dims.push_back(d);
  }
  GYRE_ASSIGN_OR_RETURN(const uint32_t type, in.Number<uint32_t>("a tensor's type"));
  const DTypeInfo* info = FindDType(type);
  if (info == nullptr) return Unimplemented("tensor {}: type {}, which GGUF does not define", name, type);
  t.view.type = static_cast<DType>(type);
  if (t.view.dims[0] % info->block_elems != 0) {
    return DataLoss("tensor {}: rows of {} elements, {} needs a multiple of {}", name, t.view.dims[0], info->name,
                    info->block_elems);
  }
  t.view.bytes = static_cast<size_t>(elems / info->block_elems * info->block_bytes);
  GYRE_ASSIGN_OR_RETURN(t.offset, in.Number<uint64_t>("a tensor's offset"));
  return t;
}

// If two tensors share bytes, the table is damaged.
Status CheckOverlap(const TensorTable& table) {
  using Entry = std::pair<const std::string, TensorView>;
  std::vector<const Entry*> order;
  order.reserve(table.all().size());
  for (const Entry& t : table.all()) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) { return a->second.data < b->second.data; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Entry& a = *order[i - 1];
    const Entry& b = *order[i];
    if (static_cast<size_t>(b.second.data - a.second.data) < a.second.bytes) {
      return DataLoss("tensors {} and {} overlap", Printable(a.first), Printable(b.first));
    }
  }
  return absl::OkStatus();
}

std::optional<int64_t> AsInt(GgufType type, std::span<const std::byte> b, size_t at) {
  switch (type) {
    case GgufType::kU8: return Read<uint8_t>(b, at);
    case GgufType::kI8: return Read<int8_t>(b, at);
    case GgufType::kU16: return Read<uint16_t>(b, at);
    case GgufType::kI16: return Read<int16_t>(b, at);
    case GgufType::kU32: return Read<uint32_t>(b, at);
    case GgufType::kI32: return Read<int32_t>(b, at);
    case GgufType::kI64: return Read<int64_t>(b, at);
    case GgufType::kU64: {
      const auto v = Read<uint64_t>(b, at);
      if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(v);
    }
    default: return std::nullopt;
  }
}

}  // namespace

bool IsGguf(std::span<const std::byte> bytes) { return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0; }

const char* GgufTypeName(GgufType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return static_cast<uint32_t>(type) <= 12 ? kNames[static_cast<uint32_t>(type)] : "unknown";
}

// The part of the file before the tensors' data.
class Gguf::Header {
 public:
  // file_bytes: the size of the whole file; `in` may read only its beginning.
  static StatusOr<Header> Read(Reader& in, std::span<const std::byte> beginning, uint64_t file_bytes);

  Gguf gguf;  // without tensors
  // A deque, because a vector's single allocation could become larger than the file.
  std::deque<std::pair<std::string, PendingTensor>> pending;
  uint64_t align = 32;
};

StatusOr<Gguf::Header> Gguf::Header::Read(Reader& in, std::span<const std::byte> beginning, uint64_t file_bytes) {
  Header h;
  Gguf& g = h.gguf;
  GYRE_ASSIGN_OR_RETURN(const uint32_t magic, in.Number<uint32_t>("the magic"));
  if (magic != kGgufMagic) {
    const std::string foreign = DescribeForeignFile(beginning);
    if (!foreign.empty()) return InvalidArgument("{}", foreign);
    return DataLoss("not a GGUF file: offset 0 has the magic {:#010x}, expected GGUF", magic);
  }
  GYRE_ASSIGN_OR_RETURN(g.version_, in.Number<uint32_t>("the version"));
  if (g.version_ == 0x02000000 || g.version_ == 0x03000000) return Unimplemented("a big-endian GGUF file");
  if (g.version_ != 2 && g.version_ != 3) {
    return Unimplemented("offset 4: GGUF version {}, expected 2 or 3", g.version_);
  }
  GYRE_ASSIGN_OR_RETURN(const uint64_t n_tensors, in.Number<uint64_t>("the tensor count"));
  GYRE_ASSIGN_OR_RETURN(const uint64_t n_values, in.Number<uint64_t>("the metadata count"));
  // A value takes at least 13 bytes and a tensor 33, so larger counts are damaged.
  if (n_values > file_bytes / 13)
    return DataLoss("offset 16: {} metadata values in {} bytes: is the file whole?", n_values, file_bytes);
  if (n_tensors > file_bytes / 33)
    return DataLoss("offset 8: {} tensors in {} bytes: is the file whole?", n_tensors, file_bytes);
  for (uint64_t i = 0; i < n_values; ++i) {
    GYRE_ASSIGN_OR_RETURN(std::string key, ReadName(in, "a metadata key"));
    GYRE_ASSIGN_OR_RETURN(const GgufValue value, ReadValue(in, key));
    if (!g.metadata_.emplace(key, value).second) {
      return DataLoss("key {} stands in the file twice", Printable(key));
    }
  }
  for (uint64_t i = 0; i < n_tensors; ++i) {
    GYRE_ASSIGN_OR_RETURN(std::string name, ReadName(in, "a tensor's name"));
    GYRE_ASSIGN_OR_RETURN(PendingTensor t, Annotated(ReadTensor(in, name), "tensor " + Printable(name)));
    h.pending.emplace_back(std::move(name), std::move(t));
  }
  GYRE_ASSIGN_OR_RETURN(const auto alignment, g.Int("general.alignment", 8, 1 << 20));
  h.align = static_cast<uint64_t>(alignment.value_or(32));
  if ((h.align & (h.align - 1)) != 0) return DataLoss("general.alignment is {}, expected a power of two", h.align);
  g.data_offset_ = static_cast<size_t>((in.at() + h.align - 1) / h.align * h.align);
  return h;
}

StatusOr<Gguf> Gguf::Parse(std::span<const std::byte> file) {
  Reader in(file);
  GYRE_ASSIGN_OR_RETURN(Header header, Header::Read(in, file, file.size()));
  Gguf g = std::move(header.gguf);
  for (auto& [name, t] : header.pending) {
    if (t.offset % header.align != 0)
      return DataLoss("tensor {}: offset {} is no multiple of {}", Printable(name), t.offset, header.align);
    if (g.data_offset_ > file.size() || t.offset > file.size() - g.data_offset_ ||
        t.view.bytes > file.size() - g.data_offset_ - t.offset) {
      return DataLoss("tensor {}: {} bytes at {} of the data end past the file of {} bytes: is it whole?",
                      Printable(name), t.view.bytes, t.offset, file.size());
    }
    t.view.data = file.data() + g.data_offset_ + t.offset;
    GYRE_RETURN_IF_ERROR(g.tensors_.Add(std::move(name), std::move(t.view)));
  }
  GYRE_RETURN_IF_ERROR(CheckOverlap(g.tensors_));
  GYRE_RETURN_IF_ERROR(g.tensors_.AddScales());
  return g;
}

StatusOr<std::optional<size_t>> Gguf::HeaderBytes(std::span<const std::byte> beginning, uint64_t file_bytes) {
  Reader in(beginning);
  const StatusOr<Header> header = Header::Read(in, beginning, file_bytes);
  if (header.ok()) return std::optional<size_t>(header->gguf.data_offset_);
  if (in.short_of_bytes() && beginning.size() < file_bytes) return std::optional<size_t>();
  return header.status();
}

Gguf Gguf::FromParts(std::map<std::string, GgufValue, std::less<>> metadata, TensorTable tensors) {
  Gguf g;
  g.metadata_ = std::move(metadata);
  g.tensors_ = std::move(tensors);
  g.version_ = 3;
  return g;
}

Status Gguf::AddTensors(const Gguf& part) {
  for (const auto& [name, view] : part.tensors_.all()) GYRE_RETURN_IF_ERROR(tensors_.Add(name, view));
  return tensors_.AddScales();
}

Status Gguf::Replace(const std::string& name, const std::vector<std::pair<std::string, TensorView>>& by) {
  tensors_.Remove(name);
  for (const auto& [other, view] : by) GYRE_RETURN_IF_ERROR(tensors_.Add(other, view));
  return absl::OkStatus();
}

StatusOr<std::optional<int64_t>> Gguf::Int(std::string_view key, int64_t min, int64_t max) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return std::optional<int64_t>();
  const std::optional<int64_t> v = AsInt(it->second.type, it->second.bytes, 0);
  if (!v) return DataLoss("key {} is a {}, expected an integer", key, GgufTypeName(it->second.type));
  if (*v < min || *v > max) return DataLoss("key {} is {}, expected {} to {}", key, *v, min, max);
  return v;
}

StatusOr<std::optional<double>> Gguf::Float(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return std::optional<double>();
  double v = 0;
  if (it->second.type == GgufType::kF32) {
    v = static_cast<double>(Read<float>(it->second.bytes));
  } else if (it->second.type == GgufType::kF64) {
    v = Read<double>(it->second.bytes);
  } else if (const auto whole = AsInt(it->second.type, it->second.bytes, 0)) {
    v = static_cast<double>(*whole);
  } else {
    return DataLoss("key {} is a {}, expected a number", key, GgufTypeName(it->second.type));
  }
  if (!std::isfinite(v)) return DataLoss("key {} is {}, expected a finite number", key, v);
  return std::optional<double>(v);
}

StatusOr<std::optional<bool>> Gguf::Bool(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return std::optional<bool>();
  if (it->second.type != GgufType::kBool) {
    return DataLoss("key {} is a {}, expected a bool", key, GgufTypeName(it->second.type));
  }
  return std::optional<bool>(it->second.bytes[0] != std::byte{0});
}

StatusOr<std::optional<std::string>> Gguf::String(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return std::optional<std::string>();
  if (it->second.type != GgufType::kString) {
    return DataLoss("key {} is a {}, expected a string", key, GgufTypeName(it->second.type));
  }
  const auto b = it->second.bytes;
  return std::optional<std::string>(std::string(reinterpret_cast<const char*>(b.data()), b.size()));
}

StatusOr<std::optional<std::vector<int64_t>>> Gguf::Ints(std::string_view key, size_t n, int64_t min,
                                                         int64_t max) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return std::optional<std::vector<int64_t>>();
  const GgufValue& v = it->second;
  if (v.type != GgufType::kArray) {
    GYRE_ASSIGN_OR_RETURN(const auto one, Int(key, min, max));
    return std::optional<std::vector<int64_t>>(std::vector<int64_t>(n, *one));
  }
  if (v.count != n) return DataLoss("key {} has {} values, expected {}", key, v.count, n);
  std::vector<int64_t> out;
  for (size_t i = 0; i < n; ++i) {
    const auto element = v.element == GgufType::kBool ? GgufType::kU8 : v.element;
    const std::optional<int64_t> x = AsInt(element, v.bytes, i * ScalarBytes(element));
    if (!x || *x < min || *x > max) return DataLoss("key {}: value {} is no integer from {} to {}", key, i, min, max);
    out.push_back(*x);
  }
  return std::optional<std::vector<int64_t>>(std::move(out));
}

StatusOr<const GgufValue*> Gguf::Array(std::string_view key, GgufType element) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return nullptr;
  if (it->second.type != GgufType::kArray || it->second.element != element) {
    return DataLoss("key {} is no array of {}", key, GgufTypeName(element));
  }
  return &it->second;
}

std::string DescribeValue(const GgufValue& v) {
  if (v.type == GgufType::kArray) return fmt::format("[{} x {}]", v.count, GgufTypeName(v.element));
  if (v.type == GgufType::kString) {
    return Printable({reinterpret_cast<const char*>(v.bytes.data()), v.bytes.size()});
  }
  if (v.type == GgufType::kF32) return fmt::format("{}", Read<float>(v.bytes));
  if (v.type == GgufType::kF64) return fmt::format("{}", Read<double>(v.bytes));
  if (v.type == GgufType::kBool) return v.bytes[0] != std::byte{0} ? "true" : "false";
  const std::optional<int64_t> i = AsInt(v.type, v.bytes, 0);
  return i ? fmt::format("{}", *i) : fmt::format("{}", Read<uint64_t>(v.bytes));
}

}  // namespace gyre
