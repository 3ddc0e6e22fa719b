// The table of paths: the handler of each, and the roles that may call it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/exchange.h"

namespace gyre::http {

struct Route {
  std::string method;  // GET also answers HEAD
  std::string path;    // exact, or a beginning: "/assets/*"
  Role role = Role::kUser;
  std::function<Awaitable<void>(Exchange&)> handler;
};

// Add all routes before the first Find; from then on it is thread-safe.
class Router {
 public:
  void Add(Route route);

  struct Match {
    const Route* route = nullptr;  // null: none
    std::string allow;             // then, if the path is known with other methods: these, for the header Allow
  };
  Match Find(std::string_view method, std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace gyre::http
