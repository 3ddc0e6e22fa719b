#include "coordinator/engine/remote_drafter.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"
#include "coordinator/engine/learned_time.h"

namespace gyre {
namespace {

constexpr Duration kMostPatience = std::chrono::seconds(1);

}  // namespace

StatusOr<std::shared_ptr<RemoteDrafter>> RemoteDrafter::Start(Duration patience) {
  std::shared_ptr<RemoteDrafter> drafter(new RemoteDrafter(patience));
  GYRE_ASSIGN_OR_RETURN(drafter->thread_, StartThread("drafts-due", [d = drafter.get()] { d->Loop(); }));
  return drafter;
}

RemoteDrafter::~RemoteDrafter() { Stop(); }

Status RemoteDrafter::MayAttach(const std::string& name) const {
  if (stopped_) return Unavailable("the coordinator stops");
  if (stream_ && !late_ && stream_->name != name)
    return FailedPrecondition("{} drafts for this coordinator already", stream_->name);
  return absl::OkStatus();
}

Status RemoteDrafter::CheckAttach(const std::string& name) {
  MutexLock lock(&mutex_);
  return MayAttach(name);
}

StatusOr<uint64_t> RemoteDrafter::Attach(Stream stream) {
  Answers owed;
  uint64_t number = 0;
  const std::string name = stream.name;
  {
    MutexLock lock(&mutex_);
    GYRE_RETURN_IF_ERROR(MayAttach(name));
    owed = TakeOwed();
    // Under the lock, for which a stream's end waits.
    if (stream_ && stream_->displaced) {
      stream_->displaced(stream_->name == name ? FailedPrecondition("another process drafts as {} now", name)
                                               : Unavailable("it was late, and {} drafts now", name));
    }
    stream_ = std::move(stream);
    number = ++number_;
    late_ = false;
    each_ = 0;
    ended_.clear();
    SetReady();
  }
  Call(owed);
  return number;
}

void RemoteDrafter::CheckStream() {
  MutexLock lock(&mutex_);
  if (!stream_ || !stream_->accepted) return;
  if (const Status status = stream_->accepted(); !status.ok() && stream_->displaced) stream_->displaced(status);
}

void RemoteDrafter::Detach(uint64_t stream) {
  Answers owed;
  {
    MutexLock lock(&mutex_);
    if (stream != number_) return;  // another one took its place
    stream_.reset();
    late_ = false;
    SetReady();
    owed = TakeOwed();
  }
  Call(owed);
}

RemoteDrafter::Answers RemoteDrafter::TakeOwed() {
  Answers out;
  for (auto& [number, asked] : std::exchange(asked_, {})) {
    if (asked.answer && !stopped_) out.emplace_back([answer = std::move(asked.answer)] { answer({}); });
  }
  if (!out.empty()) ++calling_;
  return out;
}

void RemoteDrafter::Call(const Answers& answers) {
  if (answers.empty()) return;
  for (const auto& answer : answers) answer();
  {
    MutexLock lock(&mutex_);
    --calling_;
  }
  changed_.SignalAll();
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
      const Duration patience = std::min(patience_ + 4 * each() * question.most, std::max(patience_, kMostPatience));
      asked_[++questions_] = {.answer = std::move(answer), .most = question.most, .at = now, .until = now + patience};
      stream_->ask(questions_, std::move(question), std::exchange(ended_, {}));
      changed_.SignalAll();
      return;
    }
  }
  answer({});
}

void RemoteDrafter::Answer(uint64_t stream, uint64_t number, std::vector<TokenId> drafts) {
  Answers answers;
  {
    MutexLock lock(&mutex_);
    const auto it = asked_.find(number);
    if (stream != number_ || it == asked_.end()) return;
    Asked& asked = it->second;
    if (drafts.size() > asked.most) drafts.resize(asked.most);
    if (asked.answer && !drafts.empty()) {  // one that came too late says nothing of those that are waited for
      LearnGuess(&each_,
                 std::chrono::nanoseconds(Clock::now() - asked.at).count() / static_cast<int64_t>(drafts.size()));
    }
    if (asked.answer && !stopped_) {
      answers.emplace_back([answer = std::move(asked.answer), drafts = std::move(drafts)] { answer(drafts); });
      ++calling_;
    }
    asked_.erase(it);
    late_ = std::any_of(asked_.begin(), asked_.end(), [](const auto& one) { return !one.second.answer; });
    SetReady();
  }
  Call(answers);
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
    changed_.SignalAll();
    while (calling_ > 0) changed_.Wait(&mutex_);
  }
  if (thread_.joinable()) thread_.join();
}

void RemoteDrafter::Loop() {
  for (;;) {
    Answers due;
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
        due.emplace_back([answer = std::exchange(asked.answer, nullptr)] { answer({}); });
        late_ = true;
      }
      SetReady();
      if (due.empty()) {
        changed_.WaitUntil(&mutex_, next);
        continue;
      }
      ++calling_;
    }
    Call(due);
  }
}

}  // namespace gyre
