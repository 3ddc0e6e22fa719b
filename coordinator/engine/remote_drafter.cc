#include "coordinator/engine/remote_drafter.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace gyre {

StatusOr<std::shared_ptr<RemoteDrafter>> RemoteDrafter::Start(Duration patience) {
  std::shared_ptr<RemoteDrafter> drafter(new RemoteDrafter(patience));
  GYRE_ASSIGN_OR_RETURN(drafter->thread_, StartThread("drafts-due", [d = drafter.get()] { d->Loop(); }));
  return drafter;
}

RemoteDrafter::~RemoteDrafter() { Stop(); }

StatusOr<uint64_t> RemoteDrafter::Attach(Stream stream) {
  std::map<uint64_t, Asked> owed;
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return Unavailable("the coordinator stops");
    if (stream_ && !late_) return FailedPrecondition("{} drafts for this coordinator already", stream_->name);
    owed = std::exchange(asked_, {});
    stream_ = std::move(stream);
    number = ++number_;
    late_ = false;
    each_ = 0;
    ended_.clear();
    SetReady();
  }
  AnswerWithout(owed);
  return number;
}

void RemoteDrafter::AnswerWithout(const std::map<uint64_t, Asked>& owed) {
  for (const auto& [number, asked] : owed) {
    if (asked.answer) asked.answer({});
  }
}

void RemoteDrafter::Detach(uint64_t stream) {
  std::map<uint64_t, Asked> owed;
  {
    MutexLock lock(&mutex_);
    if (stream != number_) return;  // another one took its place
    stream_.reset();
    late_ = false;
    SetReady();
    owed = std::exchange(asked_, {});
    if (stopped_) return;
  }
  AnswerWithout(owed);
}

void RemoteDrafter::Draft(DraftQuestion question, std::function<void(std::vector<TokenId>)> answer) {
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    Text& text = texts_[question.seq];
    text.tokens.resize(std::min(question.first, text.tokens.size()));
    text.tokens.insert(text.tokens.end(), question.tokens.begin(), question.tokens.end());
    if (stream_ && !late_) {
      if (std::exchange(text.stream, number_) != number_) {
        question.first = 0;
        question.tokens = text.tokens;
      }
      const Deadline now = Clock::now();
      const Duration patience = patience_ + 4 * each() * question.most;
      asked_[++questions_] = {.answer = std::move(answer), .most = question.most, .at = now, .until = now + patience};
      stream_->ask(questions_, std::move(question), std::exchange(ended_, {}));
      changed_.Signal();
      return;
    }
  }
  answer({});
}

void RemoteDrafter::Answer(uint64_t stream, uint64_t number, std::vector<TokenId> drafts) {
  std::function<void(std::vector<TokenId>)> answer;
  {
    MutexLock lock(&mutex_);
    const auto it = asked_.find(number);
    if (stream != number_ || it == asked_.end()) return;
    if (drafts.size() > it->second.most) drafts.resize(it->second.most);
    if (!drafts.empty()) {
      const int64_t took = std::chrono::nanoseconds(Clock::now() - it->second.at).count() /
                           static_cast<int64_t>(drafts.size()),
                    before = each_;
      each_ = before == 0 ? took : before + (std::min(took, 4 * before) - before) / 8;
    }
    answer = std::move(it->second.answer);
    asked_.erase(it);
    late_ = std::any_of(asked_.begin(), asked_.end(), [](const auto& one) { return !one.second.answer; });
    SetReady();
    if (stopped_) return;
  }
  if (answer) answer(std::move(drafts));
}

void RemoteDrafter::End(SeqId seq) {
  MutexLock lock(&mutex_);
  if (texts_.erase(seq) > 0 && stream_) ended_.push_back(seq);
}

void RemoteDrafter::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    stream_.reset();
    SetReady();
  }
  changed_.Signal();
  if (thread_.joinable()) thread_.join();
}

void RemoteDrafter::Loop() {
  for (;;) {
    std::vector<std::function<void(std::vector<TokenId>)>> due;
    {
      MutexLock lock(&mutex_);
      if (stopped_) return;
      const Deadline now = Clock::now();
      Deadline next = kNoDeadline;
      for (auto& [number, asked] : asked_) {
        if (!asked.answer) continue;
        if (asked.until > now) {
          next = std::min(next, asked.until);
          continue;
        }
        due.push_back(std::exchange(asked.answer, nullptr));
        late_ = true;
      }
      SetReady();
      if (due.empty()) {
        changed_.WaitUntil(&mutex_, next);
        continue;
      }
    }
    for (const auto& answer : due) answer({});
  }
}

}  // namespace gyre
