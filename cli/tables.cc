#include "cli/tables.h"

#include "base/plan.h"
#include "fmt/core.h"

namespace gyre {
namespace {

std::string Mib(uint64_t bytes) { return fmt::format("{:.1f}M", static_cast<double>(bytes) / (1 << 20)); }

std::string Range(const v1::LayerRange& layers) { return FormatRange({layers.begin(), layers.end()}); }

}  // namespace

std::string FormatLayers(const v1::StatusReply& status) {
  std::string out = fmt::format("{:<16} {:>9} {:>9} {:>9} {:>7} {:>6} {:>7}  {}\n", "worker", "layers", "weights", "KV",
                                "threads", "busy", "link", "where");
  for (const v1::MemberStatus& m : status.members()) {
    out += fmt::format("{:<16} {:>9} {:>9} {:>9} {:>7} {:>5.0f}% {:>7}  {}\n", m.name(),
                       m.has_layers() ? Range(m.layers())
                       : m.drained()  ? "drained"
                       : m.leaving()  ? "leaving"
                                      : "-",
                       m.has_layers() ? Mib(m.weight_bytes()) : "-", m.has_layers() ? Mib(m.kv_bytes()) : "-",
                       m.threads(), m.busy() * 100, m.transport().empty() ? "-" : m.transport(),
                       m.host().empty() ? "the coordinator" : m.host());
  }
  for (const v1::MemberStatus& m : status.members()) {
    if (!m.has_mirror()) continue;
    out += fmt::format("{} mirrors {}: ", m.name(), m.mirror().of());
    out += m.mirror().whole() ? fmt::format("{} pages, {}, {} steps behind\n", m.mirror().pages(),
                                            Mib(m.mirror().bytes()), m.mirror().behind())
                              : std::string("not whole yet\n");
  }
  for (const v1::MemberStatus& m : status.members()) {
    if (m.to_pack() == 0) continue;
    out += fmt::format("{} loads its layers of the next plan: {} of {} packed", m.name(), Mib(m.packed()),
                       Mib(m.to_pack()));
    if (m.to_fetch() > 0) out += fmt::format(", {} of {} fetched", Mib(m.fetched()), Mib(m.to_fetch()));
    out += '\n';
  }
  if (!status.first_hop_transport().empty()) {
    out += fmt::format("link from the coordinator: {} (--transport {})\n", status.first_hop_transport(),
                       status.transport());
  }
  return out;
}

std::string FormatReasons(const v1::StatusReply& status) {
  const auto rate = [](double per_second, const char* unit = "GB/s") {
    return per_second > 0 ? fmt::format("{:.1f} {}", per_second / 1e9, unit) : std::string("unknown");
  };
  std::string out;
  for (const v1::MemberStatus& m : status.members()) {
    std::string why = m.left_out().empty() ? m.why() : m.left_out();
    if (m.drained()) why = "it is drained, and gets no layers before an undrain";
    if (why.empty())
      why = status.rebalance() == "off" ? "nothing is measured (--rebalance off)" : "it is not known yet";
    out += fmt::format("\n{}: {}\n", m.name(), why);
    out += fmt::format("  memory {}, arithmetic {}, disk {}\n", rate(m.memory_bytes_per_second()),
                       rate(m.operations_per_second(), "GOP/s"), rate(m.disk_bytes_per_second()));
    if (m.weights_room() > 0) {
      out += fmt::format("  it fetches its weights, and its disk has room for {}\n", Mib(m.weights_room()));
    }
    for (const v1::MeasuredLink& l : m.links()) {
      out += l.failure().empty() ? fmt::format("  to {}: {:.3f} ms, {}\n", l.to(),
                                               static_cast<double>(l.round_trip_us()) / 1e3, rate(l.bytes_per_second()))
                                 : fmt::format("  to {}: not reached: {}\n", l.to(), l.failure());
    }
  }
  if (status.step_ms() > 0) out += fmt::format("\na step is expected every {:.3g} ms\n", status.step_ms());
  return out;
}

std::string FormatStatus(const v1::StatusReply& s) {
  std::string out = fmt::format("{} ({} layers, context {})\n", s.model(), s.num_layers(), s.context());
  out += s.has_epoch() ? fmt::format("plan {}: {}; {}\n", s.epoch().number(), s.ranges(), s.state()) : s.state() + "\n";
  out += fmt::format("requests: {} running, {} finished, {} failed, {} cancelled; {} tokens generated\n",
                     s.sequences_size(), s.finished(), s.failed(), s.cancelled(), s.tokens_generated());
  out += fmt::format("KV blocks: {} of {} free", s.blocks_available(), s.blocks());
  if (s.window_blocks() > 0)
    out += fmt::format("; {} of {} in layers with a window", s.window_blocks_available(), s.window_blocks());
  out += '\n';
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
  if (s.rings_lost() > 0) {
    out += fmt::format("losses: {}, all that ran was computed again; last wait {:.1f} ms, longest {:.1f} ms\n",
                       s.rings_lost(), s.last_wait_ms(), s.longest_wait_ms());
  }
  if (!s.replay_note().empty()) out += s.replay_note() + "\n";
  if (s.has_proposal()) {
    out += fmt::format("proposed: {}, {:.2f} times as fast: {}; `gyre resize --proposed` takes it\n",
                       s.proposal().ranges(), s.proposal().gain(), s.proposal().why());
  }
  return out + FormatLayers(s);
}

std::string FormatChange(const v1::ChangeReply& c) {
  if (!c.has_epoch()) return "no plan serves\n";
  if (c.moves().empty() && c.took_ms() == 0)
    return fmt::format("plan {}: {}, as before\n", c.epoch().number(), c.ranges());
  return fmt::format("plan {}: {} after {:.0f} ms; {} KV pages moved, {} of them in the pause\n", c.epoch().number(),
                     c.ranges(), c.took_ms(), c.pages_moved(), c.last_pages());
}

std::string FormatPreview(const v1::ChangeReply& c) {
  std::string out = c.named_ranges().empty() ? "no plan serves\n" : c.named_ranges() + "\n";
  if (c.moves().empty()) return out + "no layers move\n";
  out += fmt::format("\n{:>9}  {:<16} {:<16} {:>9} {:>9}\n", "layers", "from", "to", "weights", "KV");
  for (const v1::LayerMove& m : c.moves()) {
    out += fmt::format("{:>9}  {:<16} {:<16} {:>9} {:>9}\n", Range(m.layers()), m.from().empty() ? "-" : m.from(),
                       m.to(), Mib(m.weight_bytes()), Mib(m.kv_bytes()));
  }
  out += fmt::format("\n{:<16} {:>9} {:>9} {:>9} {:>10} {:>9}\n", "worker", "layers", "weights", "KV", "meanwhile",
                     "memory");
  for (const v1::MemberShare& m : c.members()) {
    out += fmt::format("{:<16} {:>9} {:>9} {:>9} {:>10} {:>9}\n", m.name(), m.has_layers() ? Range(m.layers()) : "-",
                       Mib(m.weight_bytes()), Mib(m.kv_bytes()), Mib(m.peak_bytes()),
                       m.memory_bytes() == 0 ? "-" : Mib(m.memory_bytes()));
  }
  return out;
}

}  // namespace gyre
