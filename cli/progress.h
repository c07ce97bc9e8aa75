// SPDX-License-Identifier: Apache-2.0
// A line on stderr that says what takes long; nothing at all unless stderr is a terminal.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "report.h"

namespace quire::cli {

/// Shows "12 s, about 30 s left: what" from half a second on, until destroyed; then wipes the line.
class Progress {
 public:
  Progress(const Terminal& terminal, std::string what);
  ~Progress();
  /// Shows the present step and the share of the whole that is done. A known share (> 0) gives the time left.
  void say(std::string what, double share = 0);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show();

  std::string what_;
  double share_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace quire::cli
