// A file of answers, a line each, that grows and survives a kill: a line that is there is there for good.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/status.h"

namespace gyre {

// Used by one thread. The answer and the note that there is one are the same line, so that no kill falls between them.
class ResultsFile {
 public:
  // Opens or makes the file and reads which requests have answers. A last line without its end is one that a kill cut:
  // it is removed. kFailedPrecondition: another process has it open. kDataLoss: a line is no answer, so that this is
  // another file, which stays as it is.
  static StatusOr<std::unique_ptr<ResultsFile>> Open(const std::string& path);
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  bool Has(const std::string& custom_id) const { return done_.count(custom_id) > 0; }
  size_t size() const { return done_.size(); }
  uint64_t bytes() const { return bytes_; }
  // Appends one line. FileError's errors; after one the file is as before and the request has no answer. kDataLoss:
  // that could not be done, and nothing more is written.
  Status Add(const std::string& custom_id, std::string_view line);
  // What was added is on the disk when it returns. After an error what was added since the last Sync is not in the
  // file.
  Status Sync();

 private:
  ResultsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status ReadAll();
  void CutTo(uint64_t bytes);

  const std::string path_;
  const int fd_;
  bool broken_ = false;                // a line that was not written whole is still there
  uint64_t bytes_ = 0, synced_ = 0;    // whole lines; of these, those that are on the disk
  std::vector<std::string> unsynced_;  // the others
  std::unordered_set<std::string> done_;
};

}  // namespace gyre
