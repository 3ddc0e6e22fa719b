// Errors across folders: absl::Status with messages made by fmt. A message says what failed, where, and what was
// expected.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/core.h"

namespace gyre {

using absl::Status;
using absl::StatusOr;

// The code tells whose fault it was: kInvalidArgument (input), kDataLoss (corrupt bytes), kNotFound, kResourceExhausted
// (does not fit now), kOutOfRange (longer than the context or the KV cache will ever hold), kFailedPrecondition
// (state), kUnavailable (peer gone), kDeadlineExceeded, kUnimplemented (valid input that Gyre does not support),
// kInternal (a bug in Gyre).
template <typename... Args>
Status MakeStatus(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  return Status(code, absl::string_view(text.data(), text.size()));
}

#define GYRE_STATUS_MAKER(Name, Code)                                               \
  template <typename... Args>                                                       \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {                 \
    return MakeStatus(absl::StatusCode::Code, format, std::forward<Args>(args)...); \
  }
GYRE_STATUS_MAKER(InvalidArgument, kInvalidArgument)
GYRE_STATUS_MAKER(DataLoss, kDataLoss)
GYRE_STATUS_MAKER(NotFound, kNotFound)
GYRE_STATUS_MAKER(ResourceExhausted, kResourceExhausted)
GYRE_STATUS_MAKER(OutOfRange, kOutOfRange)
GYRE_STATUS_MAKER(FailedPrecondition, kFailedPrecondition)
GYRE_STATUS_MAKER(Unavailable, kUnavailable)
GYRE_STATUS_MAKER(DeadlineExceeded, kDeadlineExceeded)
GYRE_STATUS_MAKER(Unimplemented, kUnimplemented)
GYRE_STATUS_MAKER(Internal, kInternal)
#undef GYRE_STATUS_MAKER

// The message as a std::string, which fmt can print.
inline std::string Message(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// The same status with "where: " before its message; OK stays OK.
Status Annotate(const Status& status, const std::string& where);

}  // namespace gyre

#define GYRE_RETURN_IF_ERROR(expr)               \
  do {                                           \
    ::absl::Status gyre_status_ = (expr);        \
    if (!gyre_status_.ok()) return gyre_status_; \
  } while (false)

#define GYRE_CONCAT_INNER(a, b) a##b
#define GYRE_CONCAT(a, b) GYRE_CONCAT_INNER(a, b)
// GYRE_ASSIGN_OR_RETURN(auto x, Make()); declares or assigns x, or returns the error.
#define GYRE_ASSIGN_OR_RETURN(lhs, expr) GYRE_ASSIGN_OR_RETURN_IMPL(GYRE_CONCAT(gyre_or_, __LINE__), lhs, expr)
#define GYRE_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp.ok()) return tmp.status();              \
  lhs = std::move(tmp).value()
