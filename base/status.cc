#include "base/status.h"

namespace gyre {

Status Annotate(const Status& status, const std::string& where) {
  if (status.ok()) return status;
  return MakeStatus(status.code(), "{}: {}", where, Message(status));
}

}  // namespace gyre
