// SPDX-License-Identifier: Apache-2.0
// Runs the built `quire` as a user would and collects what it wrote.
#pragma once

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quire::test {

#ifndef QUIRE_COMMAND
#define QUIRE_COMMAND "built without QUIRE_BUILD_CLI"
#endif

struct Ran {
  int exit_code = -1;  ///< -1: did not exit by itself
  std::string out;
  std::string err;
};

/// A fresh folder below the build's temporary files, removed at the end of the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire_cli_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

using Environment = std::map<std::string, std::string>;

/// Replaces the process; the scalar level and two threads keep plans the same on every machine.
[[noreturn]] inline void exec_quire(std::vector<std::string> args, const Environment& environment) {
  ::setenv("QUIRE_CPU", "scalar", 1);
  ::setenv("QUIRE_NUM_THREADS", "2", 1);
  ::unsetenv("NO_COLOR");
  ::unsetenv("COLUMNS");
  for (const auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
  args.insert(args.begin(), QUIRE_COMMAND);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

/// stdout and stderr go to files, so nothing is a terminal. `out_path` redirects stdout elsewhere (e.g. /dev/full).
inline Ran quire(const std::vector<std::string>& args, const Environment& environment = {}, const std::string& out_path = {}) {
  const TempFolder folder;
  const std::string out = out_path.empty() ? folder / "out" : out_path;
  const std::string err = folder / "err";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    exec_quire(args, environment);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {exit_code_of(status), out_path.empty() ? slurp(out) : "", slurp(err)};
}

/// stdout and stderr are one terminal.
inline Ran quire_on_terminal(const std::vector<std::string>& args, const Environment& environment = {}) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    exec_quire(args, environment);
  }
  Ran ran;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof(buffer))) > 0;) ran.out.append(buffer, static_cast<std::size_t>(n));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  ran.exit_code = exit_code_of(status);
  return ran;
}

/// The one JSON object on stdout; null (which no test expects) if there is anything else.
inline nlohmann::json json_of(const Ran& ran) { return nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false); }

}  // namespace quire::test
