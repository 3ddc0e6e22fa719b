// The call that is read, as deltas that wait until it is certain. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/tool_reader.h"
#include "model/tool_values.h"

namespace gyre {

class CallDeltas {
 public:
  using Kind = AnswerDelta::Kind;

  // json: the form's arguments are JSON.
  explicit CallDeltas(bool json) { begun_.json = json; }

  // known: the tool is declared. Of another one there are no deltas.
  void Begin(std::string_view name, bool known) {
    known_ = open_ = known;
    begun_.complete = arguments_ = 0;
    EndMember();
    name_ = name;
    if (known_) waiting_.push_back({.kind = Kind::kCall, .text = std::string(name)});
  }
  void Arguments(std::string_view text) {
    if (!known_ || text.empty()) return;
    arguments_ += text.size();
    if (waiting_.empty() || waiting_.back().kind != Kind::kArguments) {
      waiting_.push_back({.kind = Kind::kArguments, .text = {}});
    }
    waiting_.back().text += text;
  }
  void End() {
    if (open_) waiting_.push_back({.kind = Kind::kCallEnd, .text = {}});
    open_ = false;
  }
  // It ends, but no delta says so.
  void Leave() { open_ = false; }
  // Nothing of it is to be given out.
  void Drop() {
    waiting_.clear();
    open_ = false;
  }
  // The text behind it belongs to the answer or to another call.
  void Forget() { known_ = true; }
  std::vector<AnswerDelta> Take() { return std::exchange(waiting_, {}); }

  const std::string& name() const { return name_; }
  bool known() const { return known_; }
  bool open() const { return open_; }
  bool waiting() const { return !waiting_.empty(); }

  // The members of arguments whose form is not JSON.
  void BeginMember(std::string_view key) {
    begun_.key = key;
    begun_.value.clear();
  }
  std::string MemberBegin() const { return (arguments_ == 0 ? "{" : ", ") + JsonQuoted(begun_.key) + ": "; }
  void AddToValue(std::string_view written) { begun_.value += written; }
  void EndMember() {
    begun_.complete = arguments_;
    begun_.key.clear();
    begun_.value.clear();
  }
  void Member(std::string_view json_value) {
    Arguments(MemberBegin() + std::string(json_value));
    EndMember();
  }
  void EndMembers() { Arguments(arguments_ == 0 ? "{}" : "}"); }
  const ToolReader::Begun& begun() const { return begun_; }
  void SetJson(bool json) { begun_.json = json; }

 private:
  std::string name_;
  std::vector<AnswerDelta> waiting_;
  bool known_ = true, open_ = false;
  size_t arguments_ = 0;  // bytes
  ToolReader::Begun begun_;
};

}  // namespace gyre
