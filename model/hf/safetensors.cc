#include "model/hf/safetensors.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>

#include "model/hf/json.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace json = boost::json;

// The bytes of an element; 0: unknown.
uint64_t ElementBytes(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
  return 0;
}

StatusOr<SafeTensor> ReadOne(const json::value& v, std::span<const std::byte> data) {
  const json::object* o = v.if_object();
  const json::value* dtype = o != nullptr ? o->if_contains("dtype") : nullptr;
  const json::value* shape = o != nullptr ? o->if_contains("shape") : nullptr;
  const json::value* offsets = o != nullptr ? o->if_contains("data_offsets") : nullptr;
  if (dtype == nullptr || !dtype->is_string() || shape == nullptr || !shape->is_array() || offsets == nullptr ||
      !offsets->is_array() || offsets->get_array().size() != 2) {
    return DataLoss("expected dtype, shape and data_offsets");
  }
  SafeTensor t;
  t.dtype = std::string(dtype->get_string().data(), dtype->get_string().size());
  uint64_t bytes = ElementBytes(t.dtype);
  if (bytes == 0) return Unimplemented("the type {} is not known", Printable(t.dtype));
  auto number = [](const json::value& n) -> StatusOr<uint64_t> {
    if (n.is_int64() && n.get_int64() >= 0) return static_cast<uint64_t>(n.get_int64());
    if (n.is_uint64()) return n.get_uint64();
    return DataLoss("a number is missing or below zero");
  };
  for (const json::value& d : shape->get_array()) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t dim, number(d));
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return DataLoss("the shape overflows");
    t.shape.push_back(dim);
  }
  GYRE_ASSIGN_OR_RETURN(const uint64_t begin, number(offsets->get_array()[0]));
  GYRE_ASSIGN_OR_RETURN(const uint64_t end, number(offsets->get_array()[1]));
  if (begin > end || end > data.size())
    return DataLoss("bytes {} to {} of the {} that there are", begin, end, data.size());
  if (end - begin != bytes) return DataLoss("{} bytes, the shape takes {}", end - begin, bytes);
  t.bytes = data.subspan(begin, bytes);
  return t;
}

}  // namespace

std::optional<DType> FloatDType(std::string_view dtype) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (dtype == Info(type).name) return type;
  }
  return std::nullopt;
}

StatusOr<std::map<std::string, SafeTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                             std::map<std::string, std::string>* metadata) {
  uint64_t header = 0;
  if (file.size() < 8) return DataLoss("{} bytes are no safetensors file, expected 8 and a header", file.size());
  std::memcpy(&header, file.data(), 8);
  if (header < 2 || header > file.size() - 8 || header > (uint64_t{100} << 20)) {
    return DataLoss("a header of {} bytes in a file of {}, expected one that fits", header, file.size());
  }
  const StatusOr<json::object> root =
      ParseObject(std::string_view(reinterpret_cast<const char*>(file.data()) + 8, header));
  GYRE_RETURN_IF_ERROR(Annotate(root.status(), "the header"));
  const std::span<const std::byte> data = file.subspan(8 + header);
  std::map<std::string, SafeTensor> out;
  for (const auto& item : *root) {
    const std::string name(item.key().data(), item.key().size());
    if (name == "__metadata__") {
      if (metadata == nullptr || !item.value().is_object()) continue;
      for (const auto& [key, value] : item.value().get_object()) {
        if (value.is_string()) (*metadata)[std::string(key)] = std::string(value.get_string());
      }
      continue;
    }
    StatusOr<SafeTensor> t = ReadOne(item.value(), data);
    if (!t.ok()) return Annotate(t.status(), "tensor " + Printable(name));
    if (!out.emplace(name, *std::move(t)).second)
      return DataLoss("tensor {} stands in the file twice", Printable(name));
  }
  std::vector<std::pair<const std::byte*, const std::byte*>> places;
  for (const auto& [name, t] : out) {
    if (!t.bytes.empty()) places.emplace_back(t.bytes.data(), t.bytes.data() + t.bytes.size());
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) return DataLoss("tensors lie over each other");
  }
  return out;
}

}  // namespace gyre
