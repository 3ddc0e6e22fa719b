#include "hub/remote_file.h"

#include <algorithm>

#include "hub/range_answer.h"

namespace gyre {
namespace {

constexpr uint64_t kBlock = uint64_t{1} << 20;
constexpr uint64_t kMostRead = uint64_t{256} << 20;  // that one Read gives

}  // namespace

RemoteFile::RemoteFile(std::string url, HubOptions hub, std::unique_ptr<HttpFetcher> fetcher,
                       std::function<bool()> interrupted)
    : url_(std::move(url)), hub_(std::move(hub)), fetcher_(std::move(fetcher)), interrupted_(std::move(interrupted)) {}

StatusOr<std::unique_ptr<RemoteFile>> RemoteFile::Open(const std::string& url, const HubOptions& hub,
                                                       std::function<bool()> interrupted) {
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<HttpFetcher> fetcher,
                        MakeHubFetcher(hub, {.idle_timeout = std::chrono::seconds(60), .max_body_bytes = SIZE_MAX}));
  std::unique_ptr<RemoteFile> file(new RemoteFile(url, hub, std::move(fetcher), std::move(interrupted)));
  GYRE_RETURN_IF_ERROR(file->FetchBlocks(0, 0));
  return file;
}

// Fetches blocks from `first` to `last`, both included, in one request.
Status RemoteFile::FetchBlocks(uint64_t first, uint64_t last) {
  const ByteRange range{first * kBlock, (last + 1) * kBlock};
  GYRE_ASSIGN_OR_RETURN(
      const HttpFetched r,
      fetcher_->Get(url_, {{"Range", RangeHeader(range)}, {"Accept", "*/*"}, {"Accept-Encoding", "identity"}},
                    interrupted_, range.size()));
  const RangeAnswer answer = ReadRangeAnswer(r);
  if (r.code == 416 && answer.total == 0u) return absl::OkStatus();
  const std::string where = FormatAddress(r.address);
  if (r.code == 200) {
    // The whole file came, which is fine if it is small.
    if (r.truncated || first != 0) return Unimplemented("{}: the server gives no parts of files", where);
    size_ = r.body.size();
  } else if (r.code != 206) {
    return HubError(hub_, r.address.server, where, r, r.body);
  } else {
    if (!answer.range.has_value() || !answer.total.has_value() || answer.range->begin != range.begin || r.truncated) {
      return DataLoss("{}: the server answers with another range than was asked", where);
    }
    const bool opened = fetched_ > 0;
    if (opened && *answer.total != size_) return DataLoss("{}: the file has changed meanwhile", where);
    size_ = *answer.total;
    if (r.body.size() != std::min(range.end, size_) - range.begin) {
      return DataLoss("{}: {} bytes came, expected {}", where, r.body.size(), std::min(range.end, size_) - range.begin);
    }
  }
  fetched_ += r.body.size();
  for (uint64_t at = 0; at < r.body.size(); at += kBlock) blocks_[first + at / kBlock] = r.body.substr(at, kBlock);
  return absl::OkStatus();
}

StatusOr<std::string> RemoteFile::Read(uint64_t offset, uint64_t count) {
  if (offset > size_ || count > size_ - offset) {
    return OutOfRange("{}: {} bytes at {} of a file of {} bytes", url_, count, offset, size_);
  }
  if (count > kMostRead) return ResourceExhausted("{}: {} bytes at once, expected at most {}", url_, count, kMostRead);
  std::string out;
  if (count == 0) return out;
  const uint64_t first = offset / kBlock, last = (offset + count - 1) / kBlock;
  for (uint64_t block = first; block <= last; ++block) {
    if (blocks_.count(block) != 0) continue;
    uint64_t end = block;
    while (end < last && blocks_.count(end + 1) == 0) ++end;
    GYRE_RETURN_IF_ERROR(FetchBlocks(block, end));
    block = end;
  }
  out.reserve(count);
  for (uint64_t block = first; block <= last; ++block) {
    const uint64_t from = block == first ? offset % kBlock : 0;
    out.append(blocks_.at(block), from, count - out.size());
  }
  return out;
}

}  // namespace gyre
