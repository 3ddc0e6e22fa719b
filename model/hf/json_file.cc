#include "model/hf/json_file.h"

#include <fstream>
#include <iterator>

#include "model/hf/json.h"

namespace gyre {

StatusOr<std::string> ReadTextFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound("{} is missing", path.string());
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

StatusOr<boost::json::object> ParseJsonFile(const std::string& text, const std::filesystem::path& path) {
  StatusOr<boost::json::object> o = ParseObject(text);
  if (!o.ok()) return Annotate(o.status(), path.string());
  return o;
}

StatusOr<boost::json::object> ReadJsonFile(const std::filesystem::path& path) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseJsonFile(text, path);
}

}  // namespace gyre
