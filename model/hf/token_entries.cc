#include "model/hf/token_entries.h"

#include <algorithm>
#include <unordered_map>

#include "model/hf/added_tokens.h"
#include "model/hf/json.h"
#include "model/quoted.h"
#include "model/utf8.h"

namespace gyre {
namespace {

namespace json = boost::json;

bool IsBytePiece(std::string_view piece) { return piece.size() == 6 && piece.substr(0, 3) == "<0x" && piece[5] == '>'; }

// Collects entries by id; the model's embedding must have a row for each id.
class EntryTable {
 public:
  // `rows`: of the model's embedding, 0 = unknown; `pieces`: in the tokenizer's vocabulary.
  EntryTable(int rows, size_t pieces)
      : rows_(rows), pieces_(pieces), entries_(static_cast<size_t>(std::max(rows, 0))) {}
  Status Put(const json::value& id, TokenEntry entry) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= (int64_t{1} << 24)) {
      return DataLoss("the id of {} is {}", Printable(entry.piece), Printable(json::serialize(id)));
    }
    const auto at = static_cast<size_t>(id.get_int64());
    if (rows_ > 0 && at >= entries_.size())
      return DataLoss("token {} has the id {}, the model has {} rows", Printable(entry.piece), at, rows_);
    if (at >= pieces_ + 100000)
      return DataLoss("token {} has the id {}, of {} tokens", Printable(entry.piece), at, pieces_);
    if (at >= entries_.size()) entries_.resize(at + 1);
    entries_[at] = std::move(entry);
    return absl::OkStatus();
  }
  // Adds special and user-defined tokens, which the vocabulary may have too.
  Status PutAdded(const json::object& root, const json::object& settings, const std::string& unknown) {
    GYRE_ASSIGN_OR_RETURN(const std::vector<AddedToken> added, ReadAddedTokens(root, settings));
    for (const AddedToken& t : added) GYRE_RETURN_IF_ERROR(PutAdded(t, unknown));
    std::unordered_map<std::string, size_t> ids;
    for (size_t id = 0; id < entries_.size(); ++id) ids.emplace(entries_[id].piece, id);
    for (AddedToken t : NamedSpecialTokens(settings)) {
      const auto it = ids.find(t.content);
      if (it == ids.end()) continue;
      // A padding token may be a letter or a mark that texts have.
      const bool text = t.content.size() == Utf8Length(t.content, 0);
      if (entries_[it->second].type != TokenType::kNormal || text) continue;
      t.id = static_cast<int64_t>(it->second);
      GYRE_RETURN_IF_ERROR(PutAdded(t, unknown));
    }
    return absl::OkStatus();
  }
  std::vector<TokenEntry> Take() { return std::move(entries_); }

 private:
  Status PutAdded(const AddedToken& t, const std::string& unknown) {
    TokenEntry e{t.content, TokenType::kUserDefined};
    if (t.special) e.type = TokenType::kControl;
    if (!unknown.empty() && e.piece == unknown) e.type = TokenType::kUnknown;
    e.added = true;
    e.rule = t.rule;
    const auto at = static_cast<size_t>(t.id);
    if (at < entries_.size() && entries_[at].type != TokenType::kUnused) {
      if (entries_[at].piece != e.piece)
        return DataLoss("token {} has the id {}, which is that of {}", Printable(e.piece), at,
                        Printable(entries_[at].piece));
      e.score = entries_[at].score;
      e.in_model = entries_[at].in_model;
    }
    return Put(t.id, std::move(e));
  }

  const int rows_;
  const size_t pieces_;
  std::vector<TokenEntry> entries_;
};

TokenType TypeOf(std::string_view piece, bool byte_fallback) {
  return byte_fallback && IsBytePiece(piece) ? TokenType::kByte : TokenType::kNormal;
}

}  // namespace

StatusOr<std::vector<TokenEntry>> ReadEntries(const json::object& root, const json::object& model,
                                              const json::object& settings, int rows, bool byte_fallback) {
  const json::object* pieces = Object(model, "vocab");
  if (pieces == nullptr) return DataLoss("model.vocab is missing");
  EntryTable table(rows, pieces->size());
  for (const auto& item : *pieces) {
    std::string piece(item.key().data(), item.key().size());
    const TokenType type = TypeOf(piece, byte_fallback);
    GYRE_RETURN_IF_ERROR(table.Put(item.value(), {.piece = std::move(piece), .type = type, .in_model = true}));
  }
  GYRE_RETURN_IF_ERROR(table.PutAdded(root, settings, Text(model.if_contains("unk_token"))));
  return table.Take();
}

StatusOr<std::vector<TokenEntry>> ReadScoredEntries(const json::object& root, const json::object& model,
                                                    const json::object& settings, int rows, bool byte_fallback) {
  const json::array* pieces = Array(model, "vocab");
  if (pieces == nullptr) return DataLoss("model.vocab is missing, or no list of pieces with their scores");
  int64_t unknown = -1;
  if (const json::value* id = model.if_contains("unk_id"); id != nullptr && !id->is_null()) {
    if (!id->is_int64() || id->get_int64() < 0 || id->get_int64() >= static_cast<int64_t>(pieces->size())) {
      return DataLoss("model.unk_id is {}, of {} pieces", Printable(json::serialize(*id)), pieces->size());
    }
    unknown = id->get_int64();
  }
  EntryTable table(rows, pieces->size());
  std::string unknown_piece;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const json::array* pair = (*pieces)[i].if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_number()) {
      return DataLoss("model.vocab: entry {} is {}, expected a piece and its score", i,
                      Printable(json::serialize((*pieces)[i])));
    }
    TokenEntry e{Text(&(*pair)[0])};
    e.type = TypeOf(e.piece, byte_fallback);
    e.score = static_cast<float>((*pair)[1].to_number<double>());
    e.in_model = true;
    if (static_cast<int64_t>(i) == unknown) {
      e.type = TokenType::kUnknown;
      unknown_piece = e.piece;
    }
    GYRE_RETURN_IF_ERROR(table.Put(static_cast<int64_t>(i), std::move(e)));
  }
  GYRE_RETURN_IF_ERROR(table.PutAdded(root, settings, unknown_piece));
  return table.Take();
}

}  // namespace gyre
