// The forward pass: rows through a range of layers, driven by the spec.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "base/step.h"
#include "kernels/ops.h"
#include "worker/layer.h"
#include "worker/row_length.h"
#include "worker/streams.h"

namespace gyre {

// Consecutive rows of one class.
struct ClassRun {
  RowClass row_class;
  size_t rows;
};
inline void AddRows(RowClass row_class, size_t rows, std::vector<ClassRun>* runs) {
  if (runs->empty() || runs->back().row_class != row_class) runs->push_back({row_class, 0});
  runs->back().rows += rows;
}

// Consecutive rows of one class with the same adapter, not 0.
struct AdapterRun {
  uint32_t adapter;
  RowClass row_class;
  size_t first, rows;
};

// Positions, classes and tables of a step's rows, the same for every layer. Rows of one sequence lie together.
class RowPlaces {
 public:
  // Brings the tables of a step's sequences to the device: places of all rows. REQUIRES: a checked batch, which
  // outlives the places.
  void Fill(const StepBatch& batch, Backend& queue);
  // Brings only the logit rows: those that a request asks an answer of.
  void FillLogitRows(const StepBatch& batch, const RowPlaces& all, Backend& queue);
  size_t count() const { return host_rows().size(); }
  uint32_t end() const { return end_; }                                     // above all positions
  std::span<const KvRow> rows() const { return groups_[kPageGroup].rows; }  // on the device
  // The same rows with the tables of a layer's KV group.
  std::span<const KvRow> rows(const LayerSpec& layer) const {
    return KindOf(layer.kv_group).paged ? groups_[static_cast<size_t>(layer.kv_group)].rows : rows();
  }
  std::span<const uint32_t> numbers() const { return numbers_; }  // on the device: each row's index among the step's
  std::span<const ClassRun> runs() const { return runs_; }
  std::span<const AdapterRun> adapters() const { return adapters_; }
  // Each sequence's rows, with its slot of recurrent state (kNoBlock: the model has none).
  struct SequenceRows {
    size_t first = 0, count = 0;
    BlockId slot = kNoBlock;
    std::vector<SlotTable::Mark> marks;
  };
  std::span<const SequenceRows> sequences() const { return sequences_; }
  // cos and sin [rows][dims/2] of a rotary embedding, computed once a step; on the device.
  struct Rotation {
    const float* cos;
    const float* sin;
  };
  Rotation RotationFor(const RopeSpec& rope, Backend& queue);
  // The rows as attention that is not causal takes them: each at the last position that it sees, of those in the step.
  // `reach`: how many positions it sees to each side; 0: all. They lie on the device.
  struct Sight {
    std::span<const KvRow> rows;
    uint32_t end = 0;  // above all of their positions
    // Consecutive rows, and the window that ends each one's sight where it begins; 0: it begins with the sequence.
    struct Piece {
      size_t rows;
      int window;
    };
    std::vector<Piece> pieces;
  };
  const Sight& SightOf(int reach, Backend& queue);
  // AttentionSpec::temperature as a factor of each row; on the device.
  const float* TemperaturesFor(const AttentionSpec& spec, Backend& queue);

 private:
  struct Table {
    RopeSpec rope;
    std::vector<double> frequencies;  // radians a position
    DeviceBuffer<double> on_device;
    DeviceBuffer<float> cos, sin;
    bool fresh = false;
  };
  struct Temperatures {
    float temperature;
    int length, offset;
    std::vector<float> factors;
    std::span<const float> on_device;  // of this step, or empty
  };
  struct Reach {
    int reach = 0;
    std::vector<KvRow> host_rows;
    Sight sight;
    bool fresh = false;
  };
  // A KV group of pages.
  struct Group {
    std::vector<const BlockId*> tables;          // of each sequence, on the device; null: it has none
    std::vector<std::vector<BlockId>> unfolded;  // of each sequence, from position 0 on, where blocks move on
    std::vector<KvRow> host_rows;
    std::span<const KvRow> rows;  // on the device
  };
  const std::vector<KvRow>& host_rows() const { return groups_[kPageGroup].host_rows; }
  void Clear();
  // Brings a sequence's table to the device; null: it has none.
  static const BlockId* UploadTable(const SeqRows& s, int group, std::vector<BlockId>* unfolded, Backend& queue);
  // Rows of the step's sequence with this number, whose tables are among those of `all`.
  void Add(const SeqRows& s, uint32_t first, uint32_t count, size_t sequence, const RowPlaces& all, size_t before);
  void Upload(Backend& queue);

  uint32_t end_ = 0;
  std::array<Group, kKvGroups> groups_;
  std::vector<uint32_t> host_numbers_;
  std::span<const uint32_t> numbers_;
  std::vector<ClassRun> runs_;
  std::vector<AdapterRun> adapters_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::unique_ptr<Table>> rotations_;
  std::vector<std::unique_ptr<Temperatures>> temperatures_;
  std::vector<uint32_t> host_lasts_;  // of each row: the last position of its sequence in the step
  std::vector<std::unique_ptr<Reach>> reaches_;
};

// Calls ops on the queue of a stage, with scratch that grows to the largest step and stays. All rows are on the device.
// Not thread-safe.
class Forward {
 public:
  // exact: quantized weights are multiplied by f32 activations.
  Forward(Backend& backend, int dim, bool exact)
      : backend_(backend),
        dim_(static_cast<size_t>(dim)),
        exact_(exact),
        streams_(backend, static_cast<size_t>(dim)),
        row_length_(backend) {}

  // out [rows][dim] = embedding rows times `scale`.
  void Embed(std::span<const TokenId> ids, const PackedWeight& embedding, float scale, float* out);
  // x [rows][dim] += the rows of a table of positions.
  void AddPositions(std::span<const TokenId> positions, const PackedWeight& table, float* x);
  // x [rows][dim] = an encoder's embeddings: with the vector of the first type of tokens, under their norm.
  void NormEmbeddings(const Ends& ends, const ModelSpec& spec, size_t rows, float* x);
  // x [rows][streams][dim] = all streams, of the embeddings [rows][dim].
  void BeginStreams(const float* embedded, size_t rows, const Ends& ends, float* x) {
    streams_.Begin(embedded, rows, ends.streams_begin, HeadArithmetic(), x);
  }
  // Sets the source of per-layer embeddings for a step's rows: their tokens, on the host, and the model's tables, whose
  // rows are read in the file's own type.
  void SetTokens(std::span<const TokenId> ids, const WeightView& embedding, float scale,
                 const WeightView& per_layer_tokens);
  // Runs x [rows][streams][dim] through one layer, in place, and stores the keys and values of all rows. The model's
  // last layer then compacts x to `logit_rows` and computes only these; in other layers `logit_rows` is `places`
  // itself. `kv`: the pages that the layer's attention reads, its own or an earlier layer's; null where it reads none.
  void RunLayer(const Layer& layer, const PagePool* kv, RowPlaces& places, RowPlaces& logit_rows, float* x);
  // x [rows][2][dim] = the embeddings [rows][dim], and no values yet.
  void BeginCarrying(const float* embedded, size_t rows, float* x) {
    backend_.Zero(x, rows * 2 * dim_ * sizeof(float));
    backend_.CopyColumns(embedded, rows, dim_, dim_, x, 2 * dim_);
  }
  // x [rows of places][dim] = what the layer for drafts takes in: of the embeddings of the tokens behind the rows and
  // of the rows' final-normed hidden states.
  void JoinForDrafts(const MtpHead& mtp, const float* embedded, const float* hidden, const RowPlaces& places, float* x);
  // out [rows][dim] = the norm of what the layer for drafts gives; Head then says the tokens. May be in place.
  void DraftNorm(const MtpHead& mtp, const float* x, size_t rows, float* out) {
    backend_.RmsNorm(x, rows, dim_, mtp.head_norm(), mtp.layer->spec.norm_eps, out);
  }
  // out [rows][dim] = final norm of x, [rows][streams][dim] or with carried values.
  void FinalNorm(const float* x, size_t rows, const Ends& ends, const ModelSpec& spec, float* out);
  // logits [rows][vocab] of normalized hidden states [rows][dim]; prompt rows are computed as generated ones.
  void Head(const float* hidden, size_t rows, const Ends& ends, const ModelSpec& spec, float* logits) {
    Head(hidden, rows, *ends.output, ends, spec, logits);
  }
  // The same with another output matrix.
  void Head(const float* hidden, size_t rows, const PackedWeight& output, const Ends& ends, const ModelSpec& spec,
            float* logits);

 private:
  // RunLayer where rows [2][dim] carry the first layer's values (ModelSpec::carries_values).
  void RunCarrying(const Layer& layer, RowPlaces& places, RowPlaces& logit_rows, float* x);
  // RunLayer of one stream.
  void RunRows(const Layer& layer, const PagePool* kv, RowPlaces& places, RowPlaces& logit_rows, float* x);
  // Rows [dim] that a part of a layer overwrites, or adds its result to.
  struct Result {
    float* rows;
    bool add;
  };
  // out [rows][dim] = the norm of x, or x itself where the layer has none in this slot. May be in place. There may be a
  // bias.
  void Norm(const Layer& layer, Slot slot, Slot bias, const float* x, size_t rows, float* out);
  // normed_ [rows][dim] = what the mixer sees of x.
  void MixerNorm(const Layer& layer, const float* x, size_t rows) {
    Norm(layer, Slot::kMixerNorm, Slot::kMixerNormBias, x, rows, Room(normed_, rows * dim_));
  }
  // Keeps what a part of the layer behind the mixer sees of the mixer's row x, of the logit rows.
  void KeepInput(const Layer& layer, const float* x, size_t rows);
  // Calls part(Result) and adds what it computes to x [rows][dim], after a norm of its own where the layer has
  // post-norms, and times the layer's scale. Where the layer has norms of the row, x goes through one.
  template <typename Part>
  void AddPart(const Layer& layer, Slot post_norm, Slot post_bias, size_t rows, float* x, const Part& part);
  // Computes queries of the logit rows, and keys and values of all rows; then compacts normed_ and x to the logit rows.
  void Project(const Layer& layer, const AttentionSpec& spec, const KvView& kv, RowPlaces& places,
               RowPlaces& logit_rows, float* x);
  void Attend(const Layer& layer, const AttentionSpec& spec, const KvView& kv, RowPlaces& places, const Result& result);
  // The mixers of forward_state.cc.
  // Both take all rows in, compact x to the logit rows and return what the output matrix is for, of these rows.
  const float* AttendLatent(const Layer& layer, const LatentAttentionSpec& spec, RowPlaces& places,
                            RowPlaces& logit_rows, float* x);
  const float* ApplyState(const Layer& layer, RowPlaces& places, RowPlaces& logit_rows, float* x);
  void Mix(const Layer& layer, const DeltaNetSpec& spec, const RowPlaces& places, float* out);
  void Mix(const Layer& layer, const KimiDeltaSpec& spec, const RowPlaces& places, float* out);
  void Mix(const Layer& layer, const MambaSpec& spec, const RowPlaces& places, float* out);
  void Mix(const Layer& layer, const Mamba2Spec& spec, const RowPlaces& places, float* out);
  void Mix(const Layer& layer, const ShortConvolutionSpec& spec, const RowPlaces& places, float* out);
  void Mix(const Layer& layer, const TimeMixSpec& spec, const RowPlaces& places, float* out);
  void Mix(const Layer& layer, const ChannelMixSpec& spec, const RowPlaces& places, float* out);
  // convolved_ [mixtures][rows][dim] = mixtures of normed_'s rows with those before, by the shares in Slot::kConv.
  float* ShiftTokens(const Layer& layer, const RowPlaces& places, size_t mixtures);
  // Calls op() with the states of all rows in states_: floats [begin, end) of each. Where there are marks it is called
  // for the rows up to the first one of each sequence, then up to the next, and the state between is copied to them.
  template <typename Op>  // void()
  void OverStates(const Layer& layer, const RowPlaces& places, size_t begin, size_t end, const Op& op);
  // The convolution of in [rows][channels], of the layer's states.
  void Convolve(const Layer& layer, const RowPlaces& places, const float* in, bool silu, float* out);
  // The same of `channels` channels whose inputs lie from float `state_at` of a state on. With several outputs each has
  // weights of its own, and out is [outputs][rows][channels].
  void Convolve(const Layer& layer, const RowPlaces& places, Slot weights, size_t channels, size_t state_at,
                const float* in, bool silu, float* out, size_t outputs = 1);
  // out_h = W_h x_h for each head: in has `heads` vectors of in_stride floats a row, of which the first W_h.k count.
  void MultiplyHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* in, size_t in_stride,
                     std::span<const ClassRun> runs, float* out, size_t out_stride);
  // The norm of q or k, and its rotation.
  void NormHeads(const Layer& layer, const AttentionSpec& spec, Slot weights, size_t rows, int heads, float* x);
  void FeedForward(const Layer& layer, const RowPlaces& places, const float* x, const Result& result);
  // The same of a dense block, of normed_, product by product: adapters of the rows or sparse gates change these.
  void StepwiseFfn(const Layer& layer, const DenseSpec& spec, const RowPlaces& places, const Result& result);
  // Adds to the slots' products out [rows of places][n] of x [rows of places][k] what the rows' adapters say.
  struct Adapted {
    Slot slot;
    float* out;
  };
  void Adapt(const Layer& layer, const RowPlaces& places, const float* x, std::initializer_list<Adapted> products);
  // A dense block with this activation, of normed_.
  void Xielu(const Layer& layer, const DenseSpec& spec, const RowPlaces& places, const Result& result);
  // The experts of each row, from what the router sees, [rows][dim].
  void Route(const Layer& layer, const ExpertSpec& spec, const float* x, size_t rows);
  // out [rows][dim] = for each row of normed_ the weighted sum of the experts that Route chose.
  void MixExperts(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, float* out);
  void AddShared(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, float* out);
  // out [rows][dim] = a dense block and experts, each of its own norm of x and under a norm of its own.
  void DenseBesideExperts(const Layer& layer, const ExpertSpec& spec, const RowPlaces& places, const float* x,
                          float* out);
  void Ffn(const Backend::Ffn& w, const float* x, std::span<const ClassRun> runs, Activation activation, Result result);
  // The layer's piece of the per-layer embedding, gated by x: [rows of places][dim].
  const float* MakeSide(const Layer& layer, const RowPlaces& places, const float* x);
  // x [rows of places][dim], to which the mixer's result is added, and the low-rank residual of what the mixer saw.
  void AddLaurel(const Layer& layer, const RowPlaces& places, float* x);
  // A row's gate [width] without what is not far enough above its mean (DenseSpec::sparsity).
  void Sparsify(const Layer& layer, size_t rows, size_t width, float* gate);
  Arithmetic HeadArithmetic() const { return exact_ ? Arithmetic::kExact : Arithmetic::kDecode; }
  float* Room(DeviceBuffer<float>& buffer, size_t n) { return buffer.EnsureCapacity(backend_.device(), n); }
  // Leaves the logit rows of x [rows][width] at its front.
  void Compact(const RowPlaces& logit_rows, size_t width, float* x) {
    backend_.GatherRows(x, width, logit_rows.numbers(), width, x);
  }
  // Calls f for the rows of each run, or once for all rows where the class makes no difference.
  template <typename Fn>  // void(size_t rows, Arithmetic)
  void ForEachClass(std::span<const ClassRun> runs, const Fn& f) const;
  Arithmetic ArithmeticOf(RowClass row_class) const {
    if (exact_) return Arithmetic::kExact;
    const bool prefill = row_class == RowClass::kPrompt && !backend_.prefill_matches_decode();
    return prefill ? Arithmetic::kPrefill : Arithmetic::kDecode;
  }
  // Multiplies each run's rows of x by each matrix, with the arithmetic of the run's class.
  void Multiply(const float* x, std::span<const ClassRun> runs, std::initializer_list<Backend::Product> products);
  void Multiply(const float* x, std::span<const ClassRun> runs);  // by products_

  Backend& backend_;
  const size_t dim_;
  const bool exact_;
  DeviceBuffer<float> normed_, q_, k_, v_, attended_, result_, mixed_;
  DeviceBuffer<float> kept_, weighted_, positions_, low_rank_;
  DeviceBuffer<float> in_, convolved_, gate_, steps_, betas_, decays_, latent_, params_, joint_;
  std::vector<StateRun> states_;   // of the layer that is computed
  std::vector<StateRun> scanned_;  // of these, the rows that are scanned at a time
  DeviceBuffer<float> scores_, expert_weights_, expert_out_, shared_weights_, routed_, dense_;
  DeviceBuffer<uint32_t> experts_;
  // Set by SetTokens: embeddings [row][dim], and the tokens' parts of all per-layer embeddings [row][side width].
  std::vector<float> host_embedded_, host_per_layer_tokens_;
  std::span<const float> embedded_, per_layer_tokens_;  // on the device
  DeviceBuffer<float> gathered_, per_layer_token_, per_layer_, per_layer_gate_;
  size_t per_layer_width_ = 0;
  Streams streams_;
  RowLength row_length_;
  DeviceBuffer<float> carried_;  // [rows][dim]: the first layer's values, of the rows that are computed
  DeviceBuffer<float> first_, merged_, laurel_, unit_;
  std::vector<Backend::Ffn> mixture_;
  std::vector<Backend::RowRun> mixture_runs_;
  std::vector<Backend::Product> products_;                        // scratch of Multiply and Adapt
  std::vector<std::pair<const PackedLowRank*, float*>> adapted_;  // likewise
};

template <typename Fn>
void Forward::ForEachClass(std::span<const ClassRun> runs, const Fn& f) const {
  size_t rows = 0;
  for (const ClassRun& run : runs) rows += run.rows;
  if (exact_ || backend_.prefill_matches_decode()) return f(rows, ArithmeticOf(RowClass::kGenerated));
  for (const ClassRun& run : runs) f(run.rows, ArithmeticOf(run.row_class));
}

}  // namespace gyre
