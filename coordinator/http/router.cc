#include "coordinator/http/router.h"

namespace gyre::http {
namespace {

bool Fits(std::string_view pattern, std::string_view path) {
  if (pattern.empty() || pattern.back() != '*') return pattern == path;
  const std::string_view beginning = pattern.substr(0, pattern.size() - 1);
  return path.substr(0, beginning.size()) == beginning;
}

}  // namespace

void Router::Add(Route route) { routes_.push_back(std::move(route)); }

Router::Match Router::Find(std::string_view method, std::string_view path) const {
  Match match;
  for (const Route& route : routes_) {
    if (!Fits(route.path, path)) continue;
    if (route.method == method || (method == "HEAD" && route.method == "GET")) return {.route = &route, .allow = {}};
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return match;
}

}  // namespace gyre::http
