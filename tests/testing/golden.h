// Files of exact logits and ids in ../shared.
#pragma once

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace gyre::testing {

template <typename T>
std::vector<T> ReadNumbers(const std::string& path) {
  std::ifstream in(path);
  std::vector<T> out;
  for (T v; in >> v;) out.push_back(v);
  return out;
}

inline std::vector<float> ReadFloats(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  std::vector<float> out(text.str().size() / 4);
  std::memcpy(out.data(), text.str().data(), out.size() * 4);
  return out;
}

}  // namespace gyre::testing
