// The ops of a forward pass, each declared once. A Backend is one implementation of all of them: ref/ is the scalar
// reference, cpu/ has the fast kernels.
//
// A Backend is a queue on its device: ops and copies run in the order of the calls, and a call may return before its op
// is done (docs/device.md). Tensors lie in the device's memory, also those that structs point to; arrays of structs
// (products, runs) lie on the host and are read before the call returns.
//
// Every op is batch-invariant (docs/structure.md): the result of a row depends on that row's inputs only, never on the
// other rows, on the number of threads or on how a prompt was chunked. Tensors are dense, row-major f32 unless said
// otherwise. Outputs must not alias inputs unless said otherwise.
//
// Errors: shapes and ids are preconditions, which the callers guarantee. Any call may throw std::bad_alloc (before an
// op starts its threads), DeviceFailed or DeviceLost; on a CPU only the first. Threads: one thread at a time drives a
// Backend, which spreads the work over its own team; a PackedWeight may be shared by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/ids.h"
#include "base/kv_type.h"
#include "kernels/device.h"
#include "kernels/op_types.h"
#include "kernels/quant.h"

namespace gyre {

// A weight matrix W[n][k] in the layout that a backend's kernels read. Immutable, so threads may share it. It may point
// into the source bytes, which then must outlive it.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  size_t n = 0;  // outputs
  size_t k = 0;  // inputs
  DType type = DType::kF32;
  size_t bytes = 0;      // that one product reads: what decoding streams from memory per token
  bool in_place = true;  // products read the source bytes
};

// The KV cache of one layer: pools of pages of block_size positions. Page p has its keys at k + p * PageBytes() and its
// values at v + p * ValuePageBytes(). In a page the heads are contiguous, keys as [head_dim][block_size], as scores are
// computed for several positions at once, and values as [block_size][value_dim], as sums are computed for several
// elements at once. In q8_0 each head's int8 elements are followed by its f16 scales, one per 32 elements: [head_dim /
// 32][block_size] for keys and [block_size][value_dim / 32] for values. In q4_0 a byte has elements i and i + 16 of
// such a block: keys are [head_dim / 2][block_size], values [block_size][head_dim / 2]. A value may be narrower than
// its key, and it may be the first value_dim elements of its key (latent attention: DeepSeek-V2, 2024): then there are
// keys only.
struct KvView {
  KvType type = KvType::kF16;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int block_size = 16;
  int kv_heads = 0;
  int head_dim = 0;             // elements of a key
  int value_dim = 0;            // of a value; 0 = head_dim
  bool values_in_keys = false;  // v is null
  size_t ValueDim() const { return static_cast<size_t>(value_dim == 0 ? head_dim : value_dim); }
  // Bytes of a page's keys, and of one head of them.
  size_t PageBytes() const { return static_cast<size_t>(kv_heads) * HeadBytes(); }
  size_t HeadBytes() const { return KvBytes(type, static_cast<size_t>(block_size) * static_cast<size_t>(head_dim)); }
  // Bytes of a page's values, and of one head of them; 0 where they are parts of keys.
  size_t ValuePageBytes() const { return static_cast<size_t>(kv_heads) * ValueHeadBytes(); }
  size_t ValueHeadBytes() const {
    return values_in_keys ? 0 : KvBytes(type, static_cast<size_t>(block_size) * ValueDim());
  }
};

// The place of one row: its position in a sequence, and the block table of that sequence. Ops take arrays of these that
// lie on the device.
struct KvRow {
  const BlockId* table = nullptr;  // [position / block_size]; entries of kNoBlock are never read
  uint32_t position = 0;
};

// The rounding that a product or attention may do. The bits of a row depend on it, so a row keeps it on replay.
enum class Arithmetic : uint8_t {
  // Nothing is rounded: f32 products, of dequantized weights too.
  kExact,
  // For generated rows: with quantized weights x is rounded to int8 with one scale per 32 elements.
  kDecode,
  // For rows of a prompt: if the backend has matrix tiles, x and quantized weights (in attention: queries and softmax
  // weights) are rounded to bf16, and other weights become sums of two bf16; otherwise as kDecode.
  kPrefill,
};

struct AttentionParams {
  int heads = 0;      // query heads, a multiple of kv.kv_heads
  float scale = 0;    // factor of q . k
  float softcap = 0;  // 0 = none; otherwise scores become softcap * tanh(score / softcap) before the mask
  int window = 0;     // 0 = none; otherwise a row at position p attends to positions > p - window
  int chunk = 0;      // 0 = none; otherwise only to positions from p / chunk * chunk on
  // [heads], or null: a score that takes part in each head's softmax and has no value (attention sinks: Xiao et al.
  // 2023, learned as in gpt-oss). It is not scaled.
  const float* sinks = nullptr;
  // No row has a position from here on: for a backend that shares out work before it can read the rows. 0 = not known.
  uint32_t end = 0;
  // kPrefill uses tiles if the backend has them.
  Arithmetic arithmetic = Arithmetic::kDecode;
};

// Where a row of logits [vocab] leaves its best ids: up to k of those that `mask` allows (bit id % 64 of word id / 64;
// empty = all) and that are not in `skip` (strictly rising).
struct TopKRow {
  const float* logits = nullptr;
  uint32_t k = 0;
  std::span<const TokenId> skip;
  std::span<const uint64_t> mask;
  TokenId* ids = nullptr;  // [k], by falling logit, then by rising id, NaN last; -1 where fewer remain
  float* best = nullptr;   // [k]: their logits
};
// log(sum(exp(logit * inv_temperature))) over the ids that TopKRow says; -inf if none remains.
struct LogSumExpRow {
  const float* logits = nullptr;
  double inv_temperature = 1;
  std::span<const TokenId> skip;
  std::span<const uint64_t> mask;
  double* out = nullptr;
};
// out[i] = logits[ids[i]]
struct PickRow {
  const float* logits = nullptr;
  std::span<const TokenId> ids;
  float* out = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device& device() = 0;
  virtual int threads() const { return 1; }  // of the CPU
  bool prefill_matches_decode() { return device().prefill_matches_decode(); }

  // Order and copies: docs/device.md. Sizes in bytes; nothing happens for 0.
  //
  // Returns when everything is done that was called before. What failed on the way is thrown here at the latest.
  virtual void Finish() = 0;
  // Begins a step: what Upload and Download returned before is no longer used.
  virtual void Recycle() = 0;
  // Calls `ops` without doing them, but for CopyIn, which fills tables for later: the memory that they need is
  // allocated, and stays for later calls. Nothing else may be called meanwhile, and what they download is garbage.
  // Devices on the host's memory don't call it, as theirs costs nothing until it is used. Throws OutOfDeviceMemory.
  virtual void Rehearse(const std::function<void()>& ops) { static_cast<void>(ops); }
  // The address of these elements on the device. The host leaves its own as they are until Finish.
  template <typename T>
  std::span<const T> Upload(std::span<const T> host) {
    static_assert(std::is_trivially_copyable_v<T>);
    return {static_cast<const T*>(UploadBytes(host.data(), host.size_bytes())), host.size()};
  }
  // Where the host finds n elements after Finish, until they are overwritten by a later op.
  template <typename T>
  std::span<const T> Download(const T* device, size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    return {static_cast<const T*>(DownloadBytes(device, n * sizeof(T))), n};
  }
  // The host leaves its bytes as they are until Finish.
  virtual void CopyIn(const void* host, void* device, size_t bytes) = 0;
  // The bytes are there after Finish.
  virtual void CopyOut(const void* device, void* host, size_t bytes) = 0;
  // Within the device; the two do not overlap.
  virtual void Copy(const void* from, void* to, size_t bytes) = 0;
  virtual void Zero(void* device, size_t bytes) = 0;

  // Packs W [n][k], spread over the team. The bytes of `w` lie on the host; the packed weight may go on reading them
  // there. Slow: it reads all of W, and is done when it returns. Calls progress(bytes), if given, with the number of
  // source bytes done since the last call, on the calling thread. Throws std::bad_alloc.
  virtual std::shared_ptr<const PackedWeight> Pack(const WeightView& w,
                                                   const std::function<void(size_t)>& progress = {}) = 0;

  struct Product {
    const PackedWeight& w;
    float* out;
    bool add = false;  // add to the contents of out instead of replacing them
  };
  // out[r][n] (+)= sum over k of x[r][k] * W[n][k], x [rows][k], out [rows][n]. Takes several W with the same k, so
  // that x is rounded once. For each (r, n) the order of additions along k is fixed.
  virtual void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) = 0;
  void MatMul(const float* x, size_t rows, const PackedWeight& w, float* out,
              Arithmetic arithmetic = Arithmetic::kDecode) {
    const Product one[] = {{w, out}};
    MatMul(x, rows, one, arithmetic);
  }
  // A product for each head, whose rows lie between those of the others: with H heads, head h takes the k elements from
  // x + (r * H + h) * x_stride on, and writes its n to out + (r * H + h) * out_stride. The bits of MatMul. REQUIRES:
  // all heads have the same n, k and type.
  virtual void MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                           size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) = 0;
  // A feed-forward block's weights; one without gate has its up matrix in that place. Biases are null where it has
  // none.
  struct Ffn {
    const PackedWeight &gate, &up, &down;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    // Not 0, of a gated block: the gate's product is at most gate_limit, and the other's within -up_limit and up_limit.
    float gate_limit = 0, up_limit = 0;
    bool gated() const { return &gate != &up; }
    bool plain() const {
      return gate_bias == nullptr && up_bias == nullptr && down_bias == nullptr && gate_limit == 0 && up_limit == 0;
    }
  };
  // out[r] (+)= down(act(gate x[r]) * (up x[r])), or down(act(up x[r])): x [rows][gate.k], out [rows][down.n]; gate.n =
  // up.n = down.k. Gives the bits of the separate products.
  virtual void FeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                           bool add = false) = 0;
  // The experts that each row goes through, and their weights: scores [rows][params.count] are the router's products,
  // experts and weights [rows][params.used], by rising number of the expert. choice_bias [count], or null.
  virtual void ChooseExperts(const float* scores, size_t rows, const RouterParams& params, const float* choice_bias,
                             uint32_t* experts, float* weights) = 0;
  struct RowRun {  // consecutive rows
    size_t rows;
    Arithmetic arithmetic;
  };
  struct Mixture {
    std::span<const Ffn> experts;
    const float* scales = nullptr;  // [expert]: factors of the weights; null = 1
    Activation activation = Activation::kSilu;
    const uint32_t* chosen = nullptr;  // [rows][used], each row's rising
    const float* weights = nullptr;    // [rows][used]
    size_t used = 0;
  };
  // out[r] = sum over the chosen experts, in the order of their numbers, of weight * FeedForward of x[r].
  virtual void MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) = 0;
  // out[r] = row ids[r] of W as f32, out [rows][k]. REQUIRES: 0 <= id < n.
  virtual void Embed(const TokenId* ids, size_t rows, const PackedWeight& w, float* out) = 0;

  // out = x / sqrt(mean(x^2) + eps) * w for `rows` vectors of `dim` elements. w may be null, which means all ones. May
  // be in place.
  virtual void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) = 0;
  // out = x - mean(x) for `rows` vectors of `dim` elements: with RmsNorm and AddBias a LayerNorm (Ba et al. 2016). May
  // be in place. The mean in double, in a fixed order.
  virtual void Center(const float* x, size_t rows, size_t dim, float* out) = 0;
  // cos and sin [rows][half] of each row's position times the frequencies [half] (radians a position, f64), times
  // magnitude. Angles and functions in double.
  virtual void RotaryTable(std::span<const KvRow> rows, const double* frequencies, size_t half, float magnitude,
                           float* cos, float* sin) = 0;
  // Rotates the first 2 * half elements of each head of x [rows][heads][head_dim] in place, by the angles with cos, sin
  // [rows][half].
  virtual void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
                    RopePairing pairing) = 0;
  // Writes k [rows][kv_heads][head_dim] and v [rows][kv_heads][value_dim] (null where values are parts of keys) to the
  // page of each row, rounded to nearest even; q8_0 and q4_0 are quantized like DType::kQ8_0 and kQ4_0. REQUIRES for
  // these: both widths are multiples of 32.
  virtual void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) = 0;
  // Softmax attention of each row to positions [max(0, p - window + 1, p / chunk * chunk), p] of its sequence; q
  // [rows][heads][head_dim], out [rows][heads][value_dim]. The context is summed in splits of 256 positions counted
  // from 0.
  virtual void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                         float* out) = 0;
  // For the sequences' runs, in the order of their positions; x [rows][channels], with `stride` floats from one row to
  // the next, out [rows][channels] of each output.
  virtual void ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& params,
                         float* out) = 0;
  // For each row, in the order of positions: S = decay S + k u^T with u = beta v or, by the delta rule, beta (v - decay
  // S^T k), or what StateScanParams::removal says; out [rows][value_heads][value_dim] = scale S^T q + skip v.
  virtual void ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params,
                         float* out) = 0;
  // step = form(x + bias) and decay = exp(a * step), for x and step [rows][heads], bias [heads], a [heads][width] and
  // decay [rows][heads][width]. Sums and functions in double. step may be null.
  virtual void DecayGates(const float* x, size_t rows, size_t heads, size_t width, const float* bias, const float* a,
                          DecayStep form, float* step, float* decay) = 0;
  // RmsNorm of `groups` vectors of `dim` elements in each row, with a weight of its own for each group: w
  // [groups][dim]. May be in place.
  virtual void GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                            float* out) = 0;
  // out[i] = act(x[i]), of an activation with one argument. May be in place.
  virtual void Activate(const float* x, size_t n, Activation act, float* out) = 0;
  virtual void Xielu(float* x, size_t n, const XieluParams& params) = 0;
  virtual void MultiplyInPlace(float* x, const float* y, size_t n) = 0;  // x *= y
  // out[i] = act(gate[i]) * up[i] for n elements, or what `act` says of both. out may be gate.
  virtual void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) = 0;
  virtual void AddInPlace(float* x, const float* y, size_t n) = 0;                    // x += y
  virtual void AddScaled(float* x, const float* y, size_t n, float by) = 0;           // x += by * y
  virtual void AddBias(float* x, size_t rows, size_t dim, const float* bias) = 0;     // x[r] += bias
  virtual void ScaleColumns(float* x, size_t rows, size_t dim, const float* by) = 0;  // x[r] *= by, element by element
  virtual void Scale(float* x, size_t n, float by) = 0;                               // x *= by
  virtual void ScaleRows(float* x, size_t rows, size_t dim, const float* by) = 0;     // x[r] *= by[r]
  virtual void SoftcapInPlace(float* x, size_t n, float cap) = 0;                     // cap * tanh(x / cap)
  // out[r] = sigmoid(x[r] . w), for x [rows][dim]. In double.
  virtual void SigmoidDot(const float* x, size_t rows, size_t dim, const float* w, float* out) = 0;
  // out[i] = x[numbers[i]], for rows of `width` elements that are `stride` apart in x; out is dense. out may be x if
  // the stride is the width and numbers rise strictly.
  virtual void GatherRows(const float* x, size_t stride, std::span<const uint32_t> numbers, size_t width,
                          float* out) = 0;
  // The first `width` elements of `rows` rows, from rows of from_stride elements to rows of to_stride.
  virtual void CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                           size_t to_stride) = 0;
  // Rows as they travel: wire_rows.h. Adds the number of values that saturated to
  // *saturated.
  virtual void EncodeRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out, uint64_t* saturated) = 0;
  virtual void DecodeRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) = 0;
  virtual void TopK(std::span<const TopKRow> rows, size_t vocab) = 0;
  // In double, in a fixed order.
  virtual void LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) = 0;
  virtual void Pick(std::span<const PickRow> rows) = 0;

 protected:
  virtual const void* UploadBytes(const void* host, size_t bytes) = 0;
  virtual const void* DownloadBytes(const void* device, size_t bytes) = 0;
};

// A queue on a CPU device of its own: MakeCpuDevice.
std::unique_ptr<Backend> MakeBackend(Isa isa, int threads, std::vector<int> cpus = {});

// Ends the OpenMP threads that backends have started from the calling thread; the next op starts them again. Call after
// one-off work: with more OpenMP threads than CPUs, idle ones included, libgomp stops spinning between parallel
// regions, and decode loses a sixth of its speed.
void EndTeamThreads();

}  // namespace gyre
