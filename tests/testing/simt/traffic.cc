#include "tests/testing/simt/traffic.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "tests/testing/simt/source_line.h"

namespace gyre::simt {
namespace {

constexpr uintptr_t kSector = 32, kWord = 4;
constexpr size_t kBanks = 32;

// The numbers of the pieces of `size` bytes that the lanes touch, each once.
std::vector<uintptr_t> Pieces(std::span<const Request* const> lanes, uintptr_t size) {
  std::vector<uintptr_t> pieces;
  for (const Request* r : lanes) {
    for (uintptr_t p = r->at / size; p <= (r->at + r->bytes - 1) / size; ++p) pieces.push_back(p);
  }
  std::sort(pieces.begin(), pieces.end());
  pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
  return pieces;
}

Traffic OfGlobal(std::span<const Request* const> lanes) {
  std::vector<std::pair<uintptr_t, uintptr_t>> parts;
  for (const Request* r : lanes) parts.emplace_back(r->at, r->at + r->bytes);
  std::sort(parts.begin(), parts.end());
  uintptr_t end = 0, bytes = 0;
  for (const auto& [from, to] : parts) {
    if (to <= end) continue;
    bytes += to - std::max(from, end);
    end = to;
  }
  return {1, Pieces(lanes, kSector).size(), (bytes + kSector - 1) / kSector};
}

// Accesses of 8 and 16 bytes go by halves and quarters of a warp; in each, lanes wait for others that want another word
// of the same bank.
Traffic OfShared(std::span<const Request* const> lanes) {
  const size_t together = lanes[0]->bytes == 16 ? 8 : lanes[0]->bytes == 8 ? 16 : 32;
  Traffic traffic{1, 0, 0};
  for (size_t from = 0; from < lanes.size(); from += together) {
    const auto words = Pieces(lanes.subspan(from, std::min(together, lanes.size() - from)), kWord);
    uint64_t of_bank[kBanks] = {}, most = 0;
    for (uintptr_t w : words) most = std::max(most, ++of_bank[w % kBanks]);
    traffic.units += most;
    traffic.least += (words.size() + kBanks - 1) / kBanks;
  }
  return traffic;
}

void Add(const Traffic& one, Traffic* all) {
  all->requests += one.requests;
  all->units += one.units;
  all->least += one.least;
}

}  // namespace

void TrafficBook::AddRequest(std::span<const Request* const> lanes) {
  const Request& first = *lanes[0];
  const Traffic traffic = first.shared ? OfShared(lanes) : OfGlobal(lanes);
  Add(traffic, first.shared ? &counts_.shared : first.write ? &counts_.stores : &counts_.loads);
  Line& line = lines_[first.code];
  Add(traffic, &line.traffic);
  line.write = first.write;
  line.shared = first.shared;
}

void TrafficBook::AddWarp(std::span<const std::vector<Request>* const> lanes) {
  std::map<std::pair<size_t, uint32_t>, std::vector<const Request*>> requests;  // of the n-th time of a line
  std::unordered_map<uint32_t, size_t> times;
  for (const auto* lane : lanes) {
    times.clear();
    for (const Request& r : *lane) requests[{times[r.code]++, r.code}].push_back(&r);
  }
  for (const auto& [key, request] : requests) AddRequest(request);
}

std::string TrafficBook::Worst(size_t lines) const {
  std::vector<std::pair<uint32_t, Line>> all(lines_.begin(), lines_.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second.traffic.units - a.second.traffic.least > b.second.traffic.units - b.second.traffic.least;
  });
  std::string out;
  for (size_t i = 0; i < std::min(lines, all.size()); ++i) {
    const Line& line = all[i].second;
    if (line.traffic.units == line.traffic.least) break;
    const auto each = [&](uint64_t units) {
      return static_cast<double>(units) / static_cast<double>(line.traffic.requests);
    };
    char text[200];
    std::snprintf(text, sizeof text, ": %s %s memory, %.2f %s a request, %.2f needed\n",
                  line.write ? "stores to" : "loads from", line.shared ? "shared" : "global", each(line.traffic.units),
                  line.shared ? "passes" : "sectors", each(line.traffic.least));
    out += SourceLine(all[i].first) + text;
  }
  return out;
}

}  // namespace gyre::simt
