// SPDX-License-Identifier: Apache-2.0
// The library calls do not report progress, so the line shows elapsed time, drawn by a thread of its own.
#include "progress.h"
#include "text/formatted.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>

namespace quire::cli {
namespace {

/// Columns of the terminal behind stderr: asked for each time, since windows are resized.
std::size_t columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// A line one column wider than the terminal would leave a copy of itself behind at every frame.
std::string fitted(std::string line, std::size_t width) {
  if (line.size() > width) line = line.substr(0, width > 3 ? width - 3 : 0) + "...";
  return line;
}

std::string remaining(double share, double seconds) {
  if (share <= 0.02 || seconds < 2) return {};
  return formatted(", about {:.0f} s left", seconds * (1 - share) / share);
}

}  // namespace

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

void Progress::say(std::string what, double share) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
  share_ = std::clamp(share, 0.0, 1.0);
}

void Progress::show() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const char* frames = "|/-\\";
  bool shown = false;
  std::unique_lock lock(mutex_);
  for (int frame = 0; !stop_.wait_for(lock, std::chrono::milliseconds(shown ? 100 : 500), [this] { return stopped_; }); ++frame) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    // The time stands before the words: it is seen where the terminal is too narrow for them.
    const std::string text = formatted("{} {:.0f} s{}: {}", frames[frame % 4], seconds, remaining(share_, seconds), what_);
    const std::string line = "\r\x1b[K" + fitted(text, columns() - 1);
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
    shown = true;
  }
  if (shown) std::fputs("\r\x1b[K", stderr);
}

}  // namespace quire::cli
