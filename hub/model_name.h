// A model as a user names it: a path, a repository of a hub, or a URL. Pure.
#pragma once

#include <string>

#include "base/status.h"

namespace gyre {

struct ModelReference {
  enum class Kind {
    kPath,  // a file or folder of this machine, whether it is there or not
    kRepo,  // of the hub
    kUrl,   // a file of any web server
  };
  Kind kind = Kind::kPath;
  std::string repo;      // "ORG/REPO"
  std::string quant;     // as "Q4_K_M"; "" = not said
  std::string file;      // the path of a file in the repository, instead of a quant; "" = not said
  std::string revision;  // a branch, a tag or a commit; "" = not said, which means "main"
  std::string url;       // of kUrl

  bool operator==(const ModelReference&) const = default;
};

// ORG/REPO[:QUANT][@REVISION], where QUANT may also be a .gguf file of the repository, or an http(s) URL. All other
// text is a path, and so is a text for which `is_path` is true. A URL of the hub, as a browser shows it, is split into
// repository, revision and file. kInvalidArgument: the text begins as a name, but is none.
StatusOr<ModelReference> ParseModelName(const std::string& text, bool is_path, const std::string& endpoint);

// "ORG/REPO:QUANT@REVISION", or the URL. An empty quant or revision is left out.
std::string FormatModelName(const ModelReference& name);

// The last part of a URL's path, without a query; "" = it has none.
std::string FileOfUrl(const std::string& url);

}  // namespace gyre
