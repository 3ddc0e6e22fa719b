#include "coordinator/http/exchange.h"

namespace gyre::http {
namespace {

const std::string* Find(const std::vector<std::pair<std::string, std::string>>& fields, std::string_view name) {
  for (const auto& [field, value] : fields) {
    if (field == name) return &value;
  }
  return nullptr;
}

}  // namespace

const std::string* HttpRequest::Header(std::string_view name) const { return Find(headers, name); }
const std::string* HttpRequest::Query(std::string_view name) const { return Find(query, name); }

}  // namespace gyre::http
