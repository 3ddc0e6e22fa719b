// Features of an x86-64 processor that __builtin_cpu_supports does not report. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace gyre::cpu {

// "" or the reason why AMX can't be used. The first call asks the system for permission to use the tiles.
const std::string& AmxMissing();
bool HasAvxVnni();
// REQUIRES: the processor has AVX-512, whose registers the system saves.
bool HasAvx512Vbmi();
// IsaOps::streams. AMD's processors read one panel after the other faster than four at once, others the reverse
// (bench/experiments.md).
size_t PanelStreams();
// The distance in bytes at which products of few rows prefetch in each of their streams, for one stream and for four.
inline constexpr size_t kOneAhead = 8192, kFourAhead = 2048;

}  // namespace gyre::cpu
