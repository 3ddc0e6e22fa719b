// The caller of a request, and whether it may use its route. This is decided from the head, before a body is read.
#pragma once

#include <optional>

#include "coordinator/http/api_error.h"
#include "coordinator/http/exchange.h"
#include "coordinator/http/router.h"
#include "coordinator/http/server_core.h"

namespace gyre::http {

// The caller, as Caller describes it. `loopback`: the peer's address is a loopback address.
Caller Identify(const ApiKeys* keys, const HttpRequest& request, bool loopback);

struct Admission {
  const Route* route = nullptr;   // null although there is no error: a preflight
  std::optional<ApiError> error;  // why the request is refused
  std::string allow;              // for the header Allow of a refusal; "" = none
};
// The route must belong to `router`.
Admission Admit(const ServerCore& core, const Router& router, const HttpRequest& request);

// Whether a browser asks if a page may make a request.
bool IsPreflight(const HttpRequest& request);
HttpResponse PreflightAnswer(const HttpRequest& request);

}  // namespace gyre::http
