// A line on stderr that says what takes long; nothing at all unless stderr is a terminal.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "report.h"

namespace quire::cli {

/// Shows "what ... 12 s" from half a second on, until destroyed; then wipes the line.
class Progress {
 public:
  Progress(const Terminal& terminal, std::string what);
  ~Progress();
  /// What it is at now.
  void say(std::string what);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show();

  std::string what_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace quire::cli
