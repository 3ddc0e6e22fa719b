// A small model that guesses the next tokens of texts, on a thread of this process (docs/speculation.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/engine/drafter.h"
#include "kernels/device.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "worker/stage.h"

namespace gyre {

inline constexpr uint32_t kDraftBlock = 16;  // positions

// A model's ids, and what they stand for.
struct TokenList {
  struct Token {
    std::string text;
    TokenType type = TokenType::kNormal;
  };
  int ids = 0;
  std::vector<Token> tokens;  // empty: the model has no tokenizer
};
TokenList TokensOf(const Model& model);

struct ModelDrafterOptions {
  std::shared_ptr<const Model> model;  // that drafts
  TokenList target;                    // of the one whose texts they are; needed in Open only
  std::string target_name;             // for messages
  std::shared_ptr<Device> device;
  uint32_t context = 0;  // positions of a text at most; beyond, nothing is guessed
  uint32_t texts = 1;    // whole contexts that its KV cache holds; the longest unused text gives way
  uint32_t chunk = 256;  // rows of a prompt in a step
};

// One stage with all layers, and pages of its own. What it has of a text that went on otherwise is computed again from
// there. Any thread may call it; one thread of its own computes.
class ModelDrafter : public Drafter {
 public:
  // kFailedPrecondition: the vocabularies differ, with the first difference, or the model has recurrent state, which
  // can't go back behind a guess. Errors of the model's weights.
  static StatusOr<std::shared_ptr<ModelDrafter>> Open(const ModelDrafterOptions& options);
  ~ModelDrafter() override;

  void Draft(DraftQuestion question, std::function<void(std::vector<TokenId>)> answer) override;
  void End(SeqId seq) override;
  void Stop() override;
  Duration each() const override { return Duration(each_.load(std::memory_order_relaxed)); }

 private:
  struct Text {
    std::vector<TokenId> tokens;    // as the engine has them
    std::vector<TokenId> computed;  // those whose keys and values the pages have
    std::vector<BlockId> blocks;
    uint64_t used = 0;  // the last Serve that was about it
    SeqId seq{};
  };
  struct Asked {
    DraftQuestion question;
    std::function<void(std::vector<TokenId>)> answer;
    std::vector<TokenId> drafts;
  };

  explicit ModelDrafter(const ModelDrafterOptions& options);
  Status Load();
  void Loop();
  void Serve(std::vector<Asked>* asked);
  // Brings the text up to date but for its last token. False: it does not fit, or is not up to date yet.
  bool CatchUp(Text* text, const DraftQuestion& question);
  bool ComputeChunk(Text* text);
  // A chunk of the text that is behind.
  void Advance();
  void Forget();
  bool Hold(Text* text, size_t positions);
  void Compute(const std::vector<Asked*>& round);
  SeqRows RowsOf(const Text& text, size_t first, size_t count) const;

  const ModelDrafterOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stage> stage_;
  uint64_t step_ = 0, served_ = 0;
  std::unordered_map<SeqId, Text> texts_;
  std::vector<BlockId> free_;
  BlockId blocks_ = 0;           // of all texts
  std::optional<SeqId> behind_;  // a text that is being caught up

  Mutex mutex_;
  CondVar changed_;
  std::deque<Asked> asked_ GYRE_GUARDED_BY(mutex_);
  std::vector<SeqId> ended_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};  // set under mutex_
  std::atomic<int64_t> each_{0};       // nanoseconds
  std::thread thread_;
};

// The bytes of a draft model's weights, and of its KV cache for so many positions.
StatusOr<uint64_t> DraftModelBytes(const Model& draft, uint64_t positions);

// The first difference between two vocabularies, as a sentence; "": they are the same. Ids beyond the smaller one count
// only where they are not padding.
std::string VocabularyDifference(const TokenList& target, const TokenList& draft);

}  // namespace gyre
