// The web page's files (coordinator/web/dist) and the description of the API (docs/openapi.json), which are part of the
// program, written by cmake/embed_assets.cmake.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace gyre::http {

struct PageAsset {
  std::string_view path;  // "/" or "/page.js"
  std::string_view content_type;
  std::string_view etag;  // a hash of `body`, without quotes
  std::string_view body;
  std::string_view gzip;  // `body` compressed
};

// Valid as long as the program runs.
std::span<const PageAsset> PageAssets();

}  // namespace gyre::http
