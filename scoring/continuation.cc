#include "scoring/continuation.h"

#include <algorithm>

namespace gyre {

StatusOr<ScoredIds> EncodeContinuation(const EncodeText& encode, std::string context, std::string continuation) {
  const size_t end = context.find_last_not_of(" \t\r\n\f\v") + 1;  // npos + 1 = 0
  continuation.insert(0, context, end);
  context.resize(end);
  ScoredIds out;
  const std::string text = context + continuation;
  GYRE_ASSIGN_OR_RETURN(out.ids, encode(text, true));
  GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> plain, encode(text, false));
  GYRE_ASSIGN_OR_RETURN(const std::vector<TokenId> alone, encode(context, false));
  // What ends a text belongs to neither part.
  const auto begin = std::search(out.ids.begin(), out.ids.end(), plain.begin(), plain.end());
  const auto before = static_cast<size_t>(begin - out.ids.begin());
  if (begin == out.ids.end() && !plain.empty()) return Internal("the tokens of the text are others in its place");
  out.ids.resize(before + plain.size());
  out.from = std::max<uint32_t>(1, static_cast<uint32_t>(before + alone.size()));
  if (out.from >= out.ids.size()) return InvalidArgument("the continuation has no token of its own to be scored");
  return out;
}

}  // namespace gyre
