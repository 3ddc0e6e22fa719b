#pragma once

#include <boost/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace gyre::testing {

// A .safetensors file in memory.
class Shard {
 public:
  void Add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
           const std::string& bytes) {
    header_[name] = {{"dtype", dtype},
                     {"shape", boost::json::value_from(shape)},
                     {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }
  void AddFloats(const std::string& name, const std::vector<uint64_t>& shape, const std::vector<float>& v) {
    Add(name, "F32", shape, std::string(reinterpret_cast<const char*>(v.data()), 4 * v.size()));
  }
  std::string Bytes() const {
    const std::string header = boost::json::serialize(header_);
    const uint64_t n = header.size();
    return std::string(reinterpret_cast<const char*>(&n), 8) + header + data_;
  }

 private:
  boost::json::object header_;
  std::string data_;
};

}  // namespace gyre::testing
