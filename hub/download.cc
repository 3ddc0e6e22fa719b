#include "hub/download.h"

namespace gyre {

StatusOr<DownloadResult> Download(const DownloadRequest&, const HubOptions&, const DownloadOptions&) {
  return Unimplemented("download");
}

std::string PartialPath(const std::string& path) { return path + ".partial"; }
std::string StatePath(const std::string& path) { return path + ".state"; }
Status RemovePartial(const std::string&) { return Unimplemented("download"); }

}  // namespace gyre
