// SPDX-License-Identifier: Apache-2.0
// See soak_files.h.
#include "verify/soak_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "files/atomic_file.h"
#include "report/json/keys.h"
#include "text/formatted.h"
#include "text/utc.h"

namespace quire::verify_detail {

template <typename Keys, report::Of<SoakState> State>
void keys_of(Keys& keys, State& s) {
  keys.says("quire_soak", 1);
  keys("seed", s.seed, "next", s.next, "seconds", s.seconds, "running", s.running, "interrupted", s.interrupted);
  keys("counts", s.counts);
}

namespace {

using report::Json;

/// Text of a foreign target in one line.
std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, ' ');
  return text;
}

/// Throws where a key is missing or of another type.
SoakState state_of(const Json& json) {
  if (json.at("quire_soak") != 1) throw std::invalid_argument("another version");
  SoakState s;
  report::Reader::read(json, s);
  if (s.next < 0) throw std::invalid_argument("next is negative");
  return s;
}

Status io_error(const std::string& path, const char* what) { return {Code::io_error, formatted("{}: {}", path, what)}; }

}  // namespace

Result<SoakFiles> SoakFiles::open(const std::string& directory) {
  if (directory.empty()) return SoakFiles({});
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return io_error(directory, error.message().c_str());
  return SoakFiles(directory + "/");
}

Status SoakFiles::load(SoakState& state) const {
  const std::string path = directory_ + "state.json";
  std::error_code error;
  if (directory_.empty() || !std::filesystem::exists(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return io_error(path, "cannot be read");
  try {
    state = state_of(Json::parse(text.str()));
  } catch (const std::exception& e) {
    return {Code::parse_error, formatted("{}: expected the state of a soak, got: {}; remove it to begin anew", path, e.what())};
  }
  return {};
}

Status SoakFiles::save(const SoakState& state) const {
  if (directory_.empty()) return {};
  const std::string text = report::Writer::written(state).dump(1, ' ', false, Json::error_handler_t::replace);
  return files::write_whole(directory_ + "state.json", text + "\n");
}

Status SoakFiles::append(const char* name, const std::string& text) const {
  if (directory_.empty()) return {};
  std::ofstream file(directory_ + name, std::ios::binary | std::ios::app);
  file << text;
  return file.flush() ? Status() : io_error(directory_ + name, "cannot be written");
}

Status SoakFiles::log(const std::string& text) const {
  return append("log.txt", formatted("{} {}\n", utc_now("%Y-%m-%d %H:%M:%SZ"), one_line(text)));
}

Status SoakFiles::add(const SoakFinding& f) const {
  std::string text = formatted("# {} {} {}: {}\n", utc_now("%Y-%m-%d %H:%M:%SZ"), one_line(f.target), f.check, one_line(f.text));
  if (f.reduced_line.empty()) return append("findings.txt", formatted("{}{}\n", text, f.line));
  text += formatted("# found on: {}\n# {}\n{}\n", f.line, one_line(f.reduced_finding), f.reduced_line);
  return append("findings.txt", text);
}

}  // namespace quire::verify_detail
