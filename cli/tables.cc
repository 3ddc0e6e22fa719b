#include "cli/tables.h"

#include "base/plan.h"
#include "fmt/core.h"

namespace gyre {

std::string FormatLayers(const v1::StatusReply& status) {
  std::string out = fmt::format("{:<16} {:>9} {:>9} {:>9} {:>7} {:>6}  {}\n", "worker", "layers", "weights", "KV",
                                "threads", "busy", "where");
  auto mib = [](uint64_t bytes) { return fmt::format("{:.1f}M", static_cast<double>(bytes) / (1 << 20)); };
  for (const v1::MemberStatus& m : status.members()) {
    out += fmt::format("{:<16} {:>9} {:>9} {:>9} {:>7} {:>5.0f}%  {}\n", m.name(),
                       m.has_layers() ? FormatRange({m.layers().begin(), m.layers().end()}) : "-",
                       m.has_layers() ? mib(m.weight_bytes()) : "-", m.has_layers() ? mib(m.kv_bytes()) : "-",
                       m.threads(), m.busy() * 100, m.host().empty() ? "the coordinator" : m.host());
  }
  return out;
}

std::string FormatStatus(const v1::StatusReply& s) {
  std::string out = fmt::format("{} ({} layers, context {})\n", s.model(), s.num_layers(), s.context());
  out += s.has_epoch() ? fmt::format("plan {}: {}; {}\n", s.epoch().number(), s.ranges(), s.state()) : s.state() + "\n";
  out += fmt::format("requests: {} running, {} finished, {} failed, {} cancelled; {} tokens generated\n",
                     s.sequences_size(), s.finished(), s.failed(), s.cancelled(), s.tokens_generated());
  out += fmt::format("KV blocks: {} of {} free\n", s.blocks_available(), s.blocks());
  uint64_t rows = 0, bytes = 0;
  for (const v1::MemberStatus& m : s.members()) {
    rows += m.rows_sent();
    bytes += m.row_bytes_sent();
  }
  if (rows > 0) {
    out += fmt::format("ring: activations as {}; {:.1f} MiB between stages, {} bytes a row\n", s.wire(),
                       static_cast<double>(bytes) / (1 << 20), bytes / rows);
  }
  if (s.plans() > 1 || s.aborted() > 0 || s.lost() > 0) {
    out += fmt::format("plans: {} made, {} given up, {} lost; last pause {:.1f} ms, longest {:.1f} ms\n", s.plans(),
                       s.aborted(), s.lost(), s.last_pause_ms(), s.longest_pause_ms());
  }
  return out + FormatLayers(s);
}

std::string FormatChange(const v1::ChangeReply& c) {
  return fmt::format("plan {}: {} after {:.0f} ms; {} KV pages moved, {} of them in the pause\n", c.epoch().number(),
                     c.ranges(), c.took_ms(), c.pages_moved(), c.last_pages());
}

}  // namespace gyre
