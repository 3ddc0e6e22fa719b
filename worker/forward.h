// The forward pass: rows through a range of layers, driven by the spec.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/step.h"
#include "kernels/ops.h"
#include "worker/experts.h"
#include "worker/layer.h"

namespace gyre {

// Rows of one class that follow each other.
struct ClassRun {
  RowClass row_class;
  size_t rows;
};
inline void AddRows(RowClass row_class, size_t rows, std::vector<ClassRun>* runs) {
  if (runs->empty() || runs->back().row_class != row_class) runs->push_back({row_class, 0});
  runs->back().rows += rows;
}

// Positions, classes and tables of a step's rows, the same for every layer. Rows of one sequence lie together.
class RowPlaces {
 public:
  // Of all rows, or of those that something is wanted of. REQUIRES: a checked batch; it outlives the places.
  void Fill(const StepBatch& batch, bool wanted_only);
  std::span<const KvRow> rows() const { return rows_; }
  std::span<const size_t> numbers() const { return numbers_; }    // of each row, among the step's
  std::span<const RowClass> classes() const { return classes_; }  // of each row
  std::span<const ClassRun> runs() const { return runs_; }
  // cos and sin [rows][dims/2] of a rotary embedding, computed once a step.
  struct Rotation {
    const float* cos;
    const float* sin;
  };
  Rotation RotationFor(const RopeSpec& rope);

 private:
  struct Table {
    RopeSpec rope;
    std::vector<double> frequencies;  // radians a position
    std::vector<float> cos, sin;
    bool fresh = false;
  };
  std::vector<KvRow> rows_;
  std::vector<size_t> numbers_;
  std::vector<RowClass> classes_;
  std::vector<ClassRun> runs_;
  std::vector<std::unique_ptr<Table>> tables_;
};

// Scratch of one stage; grows to the largest step and stays. Not thread-safe.
class Forward {
 public:
  // exact: quantized weights are multiplied by f32 activations.
  Forward(Backend& backend, int dim, bool exact) : backend_(backend), dim_(static_cast<size_t>(dim)), exact_(exact) {}

  // out [rows][dim] = embedding rows times `scale`.
  void Embed(std::span<const TokenId> ids, const PackedWeight& embedding, float scale, float* out);
  // x [rows][dim], in place, through one layer; writes the rows' keys and values. Which is all that a model's last
  // layer has to do for rows that nothing is wanted of: only those of `wanted`, `places` itself or some of its rows, go
  // on, and x begins with them afterwards.
  void RunLayer(const Layer& layer, RowPlaces& places, RowPlaces& wanted, float* x);
  // out [rows][dim] = final norm of x.
  void FinalNorm(const float* x, size_t rows, const Ends& ends, float eps, float* out);
  // logits [rows][vocab] of normalized hidden states; of any row as of a generated one.
  void Head(const float* hidden, size_t rows, const Ends& ends, float softcap, float* logits);

 private:
  // Rows [dim] that a part of a layer writes, or adds its own to.
  struct Result {
    float* rows;
    bool add;
  };
  // Queries of the wanted rows, keys and values of all; normed_ and x begin with the wanted ones afterwards.
  void Project(const Layer& layer, RowPlaces& places, RowPlaces& wanted, float* x);
  void Attend(const Layer& layer, const RowPlaces& places, const Result& result);
  void FeedForward(const Layer& layer, const RowPlaces& places, const float* x, const Result& result);
  void MixExperts(const Layer& layer, const RowPlaces& places, float* out);
  void Ffn(const PackedFfn& w, const float* x, std::span<const ClassRun> runs, Activation activation, Result result);
  // f for the rows of each run, or for all at once where classes make no difference.
  template <typename Fn>  // void(size_t rows, Arithmetic)
  void ForEachClass(std::span<const ClassRun> runs, const Fn& f) const;
  // Each run's rows of x by each W, as its class is computed.
  void Multiply(const float* x, std::span<const ClassRun> runs, std::initializer_list<Backend::Product> products);
  void AddScaled(float* x, float by, float* sum);  // sum [dim] += by * x, which it changes

  Backend& backend_;
  const size_t dim_;
  const bool exact_;
  AlignedVector<float> normed_, q_, k_, v_, attended_, result_, mixed_;
  AlignedVector<float> scores_, gathered_, expert_out_;
  ExpertRoutes routes_;
  std::vector<ClassRun> expert_runs_;
  std::vector<Backend::Product> products_;  // of one Multiply
};

}  // namespace gyre
