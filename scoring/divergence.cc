#include "scoring/divergence.h"

#include <algorithm>
#include <cmath>

namespace gyre {
namespace {

constexpr double kMostMass = 1.001;  // of float log-probabilities that were rounded one by one

// p log(p / q); the logarithms are given.
double Term(double log_p, double log_q) {
  const double p = std::exp(log_p);
  return p > 0 ? p * (log_p - log_q) : 0;
}

}  // namespace

StatusOr<Divergence> Diverge(std::span<const TokenLogprob> teacher, std::span<const float> student, bool whole,
                             double beta) {
  if (teacher.size() != student.size()) {
    return InvalidArgument("{} log-probabilities are given for {} ids", student.size(), teacher.size());
  }
  Divergence out;
  double p_left = 1, q_left = 1;
  const auto add = [&](double log_p, double log_q) {
    const double mixed = std::log(beta * std::exp(log_p) + (1 - beta) * std::exp(log_q));
    out.forward += Term(log_p, log_q);
    out.reverse += Term(log_q, log_p);
    // A term of weight 0 counts for nothing, though it may be infinite.
    if (beta > 0) out.jensen_shannon += beta * Term(log_p, mixed);
    if (beta < 1) out.jensen_shannon += (1 - beta) * Term(log_q, mixed);
  };
  for (size_t i = 0; i < teacher.size(); ++i) {
    const double log_p = static_cast<double>(teacher[i].logprob), log_q = static_cast<double>(student[i]);
    if (std::isnan(log_q)) return InvalidArgument("the log-probability of the id {} is no number", teacher[i].id);
    p_left -= std::exp(log_p);
    q_left -= std::exp(log_q);
    add(log_p, log_q);
  }
  if (1 - q_left > kMostMass) {
    return InvalidArgument("the student's probabilities are {:.4f} together, which is more than 1", 1 - q_left);
  }
  if (!whole) add(std::log(std::max(p_left, kLeastRest)), std::log(std::max(q_left, kLeastRest)));
  return out;
}

}  // namespace gyre
