#include "hub/remote_file.h"

namespace gyre {

RemoteFile::RemoteFile(std::string url, HubOptions hub, std::unique_ptr<HttpFetcher> fetcher,
                       std::function<bool()> interrupted)
    : url_(std::move(url)), hub_(std::move(hub)), fetcher_(std::move(fetcher)), interrupted_(std::move(interrupted)) {}

StatusOr<std::unique_ptr<RemoteFile>> RemoteFile::Open(const std::string&, const HubOptions&, std::function<bool()>) {
  return Unimplemented("remote file");
}

StatusOr<std::string> RemoteFile::Read(uint64_t, uint64_t) { return Unimplemented("remote file"); }

}  // namespace gyre
