// The web page's routes: its files, for everyone, as they hold nothing but the page.
#pragma once

#include <string_view>

#include "coordinator/http/exchange.h"
#include "coordinator/http/page_assets.h"
#include "coordinator/http/router.h"

namespace gyre::http {

// A GET route for each of PageAssets().
void AddPageRoutes(Router& router);

// The answer to a request for `asset`: compressed if the client takes that, 304 without a body if the client has it.
// Browsers ask each time and get the page of the program that runs now. The headers let the page load and reach nothing
// but its own server.
HttpResponse PageAnswer(const PageAsset& asset, const HttpRequest& request);

// Whether a header Accept-Encoding takes gzip.
bool TakesGzip(std::string_view accept_encoding);

}  // namespace gyre::http
