#include "cli/tables.h"

#include <algorithm>
#include <ctime>
#include <string_view>

#include "base/counted.h"
#include "base/memory_counts.h"
#include "base/plan.h"
#include "fmt/chrono.h"
#include "fmt/core.h"

namespace gyre {
namespace {

std::string Mib(uint64_t bytes) { return fmt::format("{:.1f}M", static_cast<double>(bytes) / (1 << 20)); }

std::string Range(const v1::LayerRange& layers) { return FormatRange({layers.begin(), layers.end()}); }

// The width of a column of names, with two of space behind it.
template <typename Rows, typename NameOf>
size_t WidthOf(const Rows& rows, size_t least, const NameOf& name_of) {
  size_t width = least;
  for (const auto& row : rows) width = std::max(width, std::string(name_of(row)).size() + 1);
  return width;
}

// The newest of the cluster's events, the last one first.
std::string FormatEvents(const v1::StatusReply& s) {
  constexpr int kShown = 5;
  std::string out;
  for (int i = s.events_size() - 1; i >= std::max(0, s.events_size() - kShown); --i) {
    const v1::ClusterEvent& e = s.events(i);
    out += fmt::format("{:%Y-%m-%d %H:%M:%S}Z  {}\n", fmt::gmtime(static_cast<std::time_t>(e.at())), e.text());
  }
  return out.empty() ? out : "last events:\n" + out;
}

}  // namespace

std::string FormatLayers(const v1::StatusReply& status) {
  const size_t width = WidthOf(status.members(), 16, [](const v1::MemberStatus& m) { return m.name(); });
  std::string out = fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>7} {:>6} {:>7}  {}\n", "worker", width, "layers",
                                "weights", "KV", "threads", "busy", "link", "where");
  for (const v1::MemberStatus& m : status.members()) {
    out += fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>7} {:>5.0f}% {:>7}  {}\n", m.name(), width,
                       m.has_layers() ? Range(m.layers())
                       : m.drained()  ? "drained"
                       : m.leaving()  ? "leaving"
                                      : "-",
                       m.has_layers() ? Mib(m.weight_bytes()) : "-", m.has_layers() ? Mib(m.kv_bytes()) : "-",
                       m.threads(), m.busy() * 100, m.transport().empty() ? "-" : m.transport(),
                       m.host().empty() ? "the coordinator" : m.host());
  }
  for (const v1::MemberStatus& m : status.members()) {
    if (!m.has_replica()) continue;
    out += fmt::format("{} replicas {}: ", m.name(), m.replica().of());
    out += m.replica().whole() ? fmt::format("{}, {}, {} behind\n", Counted(m.replica().pages(), "page"),
                                             Mib(m.replica().bytes()), Counted(m.replica().behind(), "step"))
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

namespace {

// "KV blocks: 90 of 100 free; 4 of 8 in layers with a window". A kind that is newer than this program has its own name.
std::string FormatMemory(const v1::StatusReply& s) {
  std::string out;
  for (const v1::MemoryStatus& m : s.memory()) {
    const auto kind = std::ranges::find(kKvKinds, std::string_view(m.kind()), &KvKind::name);
    const std::string_view text = kind == kKvKinds.end() ? std::string_view(m.kind()) : kind->text;
    out += out.empty() ? fmt::format("{}: {} of {} free", text, m.available(), m.units())
                       : fmt::format("; {} of {} {}", m.available(), m.units(), text);
  }
  return out.empty() ? out : out + '\n';
}

}  // namespace

std::string FormatStatus(const v1::StatusReply& s) {
  std::string out = fmt::format("{} ({}, context {})\n", s.model(),
                                Counted(static_cast<uint64_t>(s.num_layers()), "layer"), s.context());
  out += s.has_epoch() ? fmt::format("plan {}: {}; {}\n", s.epoch().number(), s.ranges(), s.state()) : s.state() + "\n";
  out += fmt::format("requests: {} running, {} finished, {} failed, {} cancelled; {} generated\n",
                     s.waiting() + s.prefill() + s.decode(), s.finished(), s.failed(), s.cancelled(),
                     Counted(s.tokens_generated(), "token"));
  out += FormatMemory(s);
  uint64_t rows = 0, bytes = 0;
  for (const v1::MemberStatus& m : s.members()) {
    rows += m.rows_sent();
    bytes += m.row_bytes_sent();
  }
  if (rows > 0) {
    out += fmt::format("ring: activations as {}; {:.1f} MiB between stages, {} a row\n", s.wire(),
                       static_cast<double>(bytes) / (1 << 20), Counted(bytes / rows, "byte"));
  }
  if (s.plans() > 1 || s.aborted() > 0 || s.lost() > 0) {
    out += fmt::format("plans: {} made, {} given up, {} lost; last pause {:.1f} ms, longest {:.1f} ms\n", s.plans(),
                       s.aborted(), s.lost(), s.last_pause_ms(), s.longest_pause_ms());
  }
  if (s.rings_lost() > 0) {
    out +=
        fmt::format("losses: {}, all that ran was computed again; without results for {:.1f} ms, at most {:.1f} ms\n",
                    s.rings_lost(), s.last_wait_ms(), s.longest_wait_ms());
  }
  if (!s.replay_note().empty()) out += s.replay_note() + "\n";
  if (s.has_proposal()) {
    out += fmt::format("proposed: {}, {:.2f} times as fast: {}; `gyre resize --proposed` takes it\n",
                       s.proposal().ranges(), s.proposal().gain(), s.proposal().why());
  }
  return out + FormatLayers(s) + FormatEvents(s);
}

std::string FormatChange(const v1::ChangeReply& c) {
  if (!c.has_epoch()) return "no plan serves\n";
  if (c.moves().empty() && c.took_ms() == 0)
    return fmt::format("plan {}: {}, as before\n", c.epoch().number(), c.ranges());
  return fmt::format("plan {}: {} after {:.0f} ms; {} moved, {} of them in the pause; the KV cache holds {}\n",
                     c.epoch().number(), c.ranges(), c.took_ms(), Counted(c.pages_moved(), "KV page"), c.last_pages(),
                     Counted(c.kv_tokens(), "token"));
}

std::string FormatPreview(const v1::ChangeReply& c) {
  std::string out = c.named_ranges().empty() ? "no plan serves\n" : c.named_ranges() + "\n";
  if (c.moves().empty()) return out + "no layers move\n";
  const size_t from = WidthOf(c.moves(), 16, [](const v1::LayerMove& m) { return m.from(); });
  const size_t to = WidthOf(c.moves(), 16, [](const v1::LayerMove& m) { return m.to(); });
  out += fmt::format("\n{:>9}  {:<{}} {:<{}} {:>9} {:>9}\n", "layers", "from", from, "to", to, "weights", "KV");
  for (const v1::LayerMove& m : c.moves()) {
    out += fmt::format("{:>9}  {:<{}} {:<{}} {:>9} {:>9}\n", Range(m.layers()), m.from().empty() ? "-" : m.from(), from,
                       m.to(), to, Mib(m.weight_bytes()), Mib(m.kv_bytes()));
  }
  const size_t width = WidthOf(c.members(), 16, [](const v1::MemberShare& m) { return m.name(); });
  out += fmt::format("\n{:<{}} {:>9} {:>9} {:>9} {:>10} {:>9}\n", "worker", width, "layers", "weights", "KV",
                     "meanwhile", "memory");
  for (const v1::MemberShare& m : c.members()) {
    out += fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>10} {:>9}\n", m.name(), width,
                       m.has_layers() ? Range(m.layers()) : "-", Mib(m.weight_bytes()), Mib(m.kv_bytes()),
                       Mib(m.peak_bytes()), m.memory_bytes() == 0 ? "-" : Mib(m.memory_bytes()));
  }
  return out;
}

}  // namespace gyre
