// A progress bar on a terminal; elsewhere a line for each quarter. Nothing is shown for work of less than a second.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace gyre {

class Progress {
 public:
  // `unit`: what is counted, in the plural; "" = bytes.
  Progress(std::string what, bool quiet, std::string unit = "")
      : what_(std::move(what)), unit_(std::move(unit)), quiet_(quiet) {}
  // If the rate of bytes is known (above 0), a terminal shows it and the remaining time. Of another unit it is the mean
  // since the beginning.
  void Update(uint64_t done, uint64_t total, double bytes_per_second = 0);
  // Removes the bar.
  void Finish();

 private:
  const std::string what_, unit_;
  const bool quiet_;
  const Deadline start_ = Clock::now();
  Deadline drawn_{};
  int quarter_ = 0;
};

// "42 s", "3 min 20 s", "1 h 05 min".
std::string DescribeSeconds(double seconds);

// The bar for the first plan's weights. Later plans load beside the one that serves, without a bar. Thread-safe.
class LoadingBar {
 public:
  explicit LoadingBar(bool quiet) : state_(std::make_shared<State>(quiet)) {}
  // For RuntimeOptions::on_load; may be called after Finish and after the bar is gone.
  std::function<void(uint64_t done, uint64_t total)> callback() const;
  void Finish();

 private:
  struct State {
    explicit State(bool quiet) : progress("loading", quiet) {}
    Mutex mutex;
    Progress progress GYRE_GUARDED_BY(mutex);
    bool finished GYRE_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<State> state_;
};

}  // namespace gyre
