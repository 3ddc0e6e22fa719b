// Every op, declared once. ref/ is the scalar oracle, cpu/ the fast paths; a Backend is one implementation of all.
//
// Contract of every op: a row's result depends on that row's own inputs only, never on the rows beside it, on the
// number of threads or on how a prompt was chunked (batch invariance; docs/structure.md). Tensors are dense, row-major
// and f32 unless said otherwise. Wrong shapes are our bug: asserted, not reported. Outputs may not alias inputs
// unless said. Not thread-safe: one thread drives one Backend (it spreads the work over its own team).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/kv_type.h"
#include "kernels/quant.h"

namespace gyre {

// A weight in the layout that a backend's kernels want. May point into the file mapping (then the mapping must
// outlive it). Immutable; shared between threads.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  size_t n = 0;
  size_t k = 0;
  DType type = DType::kF32;
  size_t bytes = 0;  // read per full pass: what decode streams from memory
};

enum class RopePairing : uint8_t { kInterleaved, kHalves };  // (2i, 2i+1) | (i, i + d/2)
enum class Activation : uint8_t { kSilu, kGeluTanh };        // exact (no tables)

// K and V of one layer. Page p: K at k + p * PageBytes(), of each key-value head [head_dim][block_size], V the same
// with [block_size][head_dim]: scores go over positions, sums over elements. In q8_0 a head's bytes are followed by
// their f16 scales, [head_dim / 32][block_size] and [block_size][head_dim / 32].
struct KvView {
  KvType type = KvType::kF16;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int block_size = 16;
  int kv_heads = 0;
  int head_dim = 0;
  size_t PageElems() const {
    return static_cast<size_t>(block_size) * static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim);
  }
  size_t PageBytes() const { return KvBytes(type, PageElems()); }
  size_t HeadBytes() const { return PageBytes() / static_cast<size_t>(kv_heads); }
};

// One row's place: its sequence's block table and its position.
struct KvRow {
  const BlockId* table = nullptr;  // [position / block_size]; kNoBlock is never read
  uint32_t position = 0;
};

// What a product may round.
enum class Arithmetic : uint8_t {
  kExact,      // nothing: f32 products, of quantized weights too
  kDecode,  // as generated rows are: with quantized weights x to int8, 32 elements a scale
  kPrefill,  // as prompt rows are: x (in attention queries and weights) and W to bf16 where the backend has tiles, else
            // as kDecode
};

struct AttentionParams {
  int heads = 0;                                   // a multiple of kv.kv_heads
  float scale = 0;                                 // applied to q.k
  float softcap = 0;                               // 0 = none; else cap * tanh(s / cap), before the mask
  int window = 0;                                  // 0 = none; else a row at p sees positions > p - window
  Arithmetic arithmetic = Arithmetic::kDecode;  // kPrefill: by tiles where the backend has them, unless a page is no
                                                   // multiple of 16 positions
};

// kAmxEmulated computes as kAmx does, slowly, on any processor with AVX-512: for tests. It is never chosen by itself.
enum class Isa : uint8_t {
  kRef = 0,
  kAvx2 = 1,
  kAvx512 = 2,
  kAvx512Vnni = 3,
  kNeon = 4,
  kNeonDot = 5,
  kAmx = 6,
  kAmxEmulated = 7,
  kAvxVnni = 8
};
const char* IsaName(Isa isa);
// Whether Arithmetic::kPrefill and kDecode give equal bits.
constexpr bool PrefillMatchesDecode(Isa isa) { return isa != Isa::kAmx && isa != Isa::kAmxEmulated; }
// Those that this build has, ref first, each better than the one before it.
std::span<const Isa> BuiltIsas();
// The best of them that this CPU has. GYRE_ISA (a name) caps it.
Isa DetectIsa();
// "" or why this CPU can't run `isa`.
std::string IsaMissing(Isa isa);

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Isa isa() const = 0;
  virtual int threads() const = 0;

  // Packs W. `progress(bytes)` as source bytes are done; may be empty. Slow; spread over the team.
  virtual std::shared_ptr<const PackedWeight> Pack(const WeightView& w,
                                                   const std::function<void(size_t)>& progress = {}) = 0;

  bool prefill_matches_decode() const { return PrefillMatchesDecode(isa()); }
  struct Product {
    const PackedWeight& w;
    float* out;
    bool add = false;  // to what out holds
  };
  // out[r][n] (+)= sum over k of x[r][k] * W[n][k], for several W of one k, so that x is rounded once. Per (r, n) the
  // order along k is fixed.
  virtual void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) = 0;
  void MatMul(const float* x, size_t rows, const PackedWeight& w, float* out,
              Arithmetic arithmetic = Arithmetic::kDecode) {
    const Product one[] = {{w, out}};
    MatMul(x, rows, one, arithmetic);
  }
  struct Ffn {
    const PackedWeight &gate, &up, &down;
  };
  // out[r] (+)= down(act(gate x[r]) * (up x[r])), products as MatMul's.
  virtual void FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                           bool add = false) = 0;
  // Rows of the embedding table: out[r] = W[ids[r]]. REQUIRES: 0 <= id < n.
  virtual void Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) = 0;

  // out = x / sqrt(mean(x^2) + eps) * w, over `rows` vectors of `dim`. May be in place. w may be null (all ones).
  virtual void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) = 0;
  // x[r][h][head_dim], in place, rotates the first 2*half elements of each head by cos/sin [r][half].
  virtual void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
                    RopePairing pairing) = 0;
  // Writes k, v [r][kv_heads][head_dim] to each row's page, rounded to nearest even; q8_0 as DType::kQ8_0 is quantized,
  // which needs heads of a multiple of 32.
  virtual void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) = 0;
  // q, out [r][heads][head_dim]. Positions [max(0, p - window + 1), p]; fixed splits of 256 positions counted from 0.
  virtual void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                         float* out) = 0;
  // out[i] = act(gate[i]) * up[i]. May be in place on gate.
  virtual void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) = 0;
  virtual void AddInPlace(float* x, const float* y, size_t n) = 0;                 // x += y
  virtual void AddBias(float* x, size_t rows, size_t dim, const float* bias) = 0;  // x[r] += bias
  virtual void Scale(float* x, size_t n, float by) = 0;                            // x *= by
  virtual void SoftcapInPlace(float* x, size_t n, float cap) = 0;                  // cap * tanh(x / cap)
  // The k best ids of logits[vocab] that are allowed by `mask` (empty = all) and not in `skip` (strictly rising):
  // logit falling, then id rising; fewer if fewer are left. NaN ranks below everything.
  virtual void TopK(const float* logits, size_t vocab, uint32_t k, std::span<const TokenId> skip,
                    std::span<const uint64_t> mask, std::vector<TokenId>* ids) = 0;
  // log(sum(exp(logit * inv_temperature))) over the same ids, in double, fixed order; -inf if none is left.
  virtual double LogSumExp(const float* logits, size_t vocab, double inv_temperature, std::span<const TokenId> skip,
                           std::span<const uint64_t> mask) = 0;
};

// REQUIRES: IsaMissing(isa) is empty, threads >= 1. `threads` is the team that this backend may use.
std::unique_ptr<Backend> MakeBackend(Isa isa, int threads, std::vector<int> cpus = {});

// Ends the threads that a backend's calls from this thread have started; the next call starts them anew. For who has
// done its share for long: while a process has more such threads than processors, idle ones counted, libgomp lets all
// of them sleep between two products, which costs a decoding stage a sixth of its speed.
void EndTeamThreads();

}  // namespace gyre
