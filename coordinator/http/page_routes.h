// The web page's routes: its files, which are open to everyone, as they contain only the page.
#pragma once

#include <string_view>

#include "coordinator/http/exchange.h"
#include "coordinator/http/page_assets.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// Adds a GET route for each of PageAssets().
void AddPageRoutes(Router& router);

// The answer to a request for `asset`: compressed if the client accepts that, 304 without a body if the client has it.
// Browsers ask each time and get the page of the running program. The headers let the page load, and connect to its
// own server only.
HttpResponse PageAnswer(const PageAsset& asset, const HttpRequest& request);

// Whether a header Accept-Encoding accepts gzip.
bool TakesGzip(std::string_view accept_encoding);

}  // namespace gyre::http
