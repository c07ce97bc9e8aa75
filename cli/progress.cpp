// The library calls do not report progress, so the line shows elapsed time, drawn by a thread of its own.
#include "progress.h"
#include "text/formatted.h"

#include <chrono>
#include <cstdio>
#include <system_error>

namespace quire::cli {

Progress::Progress(const Terminal& terminal, std::string what) : what_(std::move(what)) {
  if (!terminal.progress) return;
  try {
    thread_ = std::thread([this] { show(); });
  } catch (const std::system_error&) {
    // The system grants no more threads: the command works without the line.
  }
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void Progress::say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::show() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const char* frames = "|/-\\";
  bool shown = false;
  std::unique_lock lock(mutex_);
  for (int frame = 0; !stop_.wait_for(lock, std::chrono::milliseconds(shown ? 100 : 500), [this] { return stopped_; }); ++frame) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
    const std::string line = formatted("\r\x1b[K{} {} ... {} s ", frames[frame % 4], what_, seconds);
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
    shown = true;
  }
  if (shown) std::fputs("\r\x1b[K", stderr);
}

}  // namespace quire::cli
