#include "scoring/continuation.h"

#include <algorithm>

namespace gyre {

StatusOr<ScoredIds> EncodeContinuation(const std::function<StatusOr<std::vector<TokenId>>(const std::string&)>& encode,
                                       std::string context, std::string continuation) {
  const size_t end = context.find_last_not_of(" \t\r\n\f\v") + 1;  // npos + 1 = 0
  continuation.insert(0, context, end);
  context.resize(end);
  ScoredIds out;
  GYRE_ASSIGN_OR_RETURN(out.ids, encode(context + continuation));
  GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> alone, encode(context));
  out.from = std::max<uint32_t>(1, static_cast<uint32_t>(alone.size()));
  if (out.from >= out.ids.size()) return InvalidArgument("the continuation has no token of its own to be scored");
  return out;
}

}  // namespace gyre
