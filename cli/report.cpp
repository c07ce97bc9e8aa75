// SPDX-License-Identifier: Apache-2.0
// The only file of the command that writes to stdout and stderr (progress lines apart).
#include "report.h"
#include "text/formatted.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace quire::cli {
namespace {

std::string wrap(const char* code, std::string_view text, bool color) {
  return color ? formatted("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

bool flag_in_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

/// The width of the terminal that stdout is; else what COLUMNS says, or 80.
std::int64_t columns_of_stdout() {
  // Columns. A narrower report would break in nearly every word, as labels take nine columns of each line.
  constexpr std::int64_t kNarrowest = 40;
  winsize size = {};
  if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::max<std::int64_t>(kNarrowest, size.ws_col);
  const char* value = std::getenv("COLUMNS");
  const std::int64_t asked = value == nullptr ? 0 : std::strtoll(value, nullptr, 10);
  return asked > 0 ? std::max(kNarrowest, asked) : 80;
}

/// People need the start of a message; a 100 kB file name inside it would bury the rest. JSON carries it whole.
std::string shortened(std::string text) {
  constexpr std::size_t kMax = 2000;
  if (text.size() > kMax) text.replace(kMax, std::string::npos, "... (cut)");
  return text;
}

/// Control characters, but for those that are `kept`, as \xNN.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && kept.find(c) == kept.npos) || byte == 0x7F;
    out += control ? formatted("\\x{:02x}", byte) : std::string(1, c);
  }
  return out;
}

bool put(std::FILE* stream, const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
}

Json error_json(const std::string& code, const Status& status, int exit_code) {
  return {{"schema", "quire.error/1"},  {"ok", false}, {"exit_code", exit_code}, {"code", code}, {"rule", status.rule()},
          {"message", status.message()}};
}

}  // namespace

ExitCode exit_code_of(Code code) {
  switch (code) {
    case Code::ok: return kOk;
    case Code::contract_violation: return kFindings;
    case Code::invalid_argument:
    case Code::parse_error: return kUsage;
    case Code::io_error: return kIo;
    case Code::unsupported:
    case Code::device_error:
    case Code::out_of_memory:
    case Code::out_of_pages: return kUnsupported;
    case Code::internal_error: return kInternal;
  }
  return kInternal;
}

Report Report::failure(const Status& status, std::string hint) {
  Report report;
  report.exit_code = exit_code_of(status.code());
  report.error = status.message();
  report.hint = std::move(hint);
  report.json = error_json(name(status.code()), status, report.exit_code);
  report.json["hint"] = report.hint;
  return report;
}

Report Report::usage(std::string message, std::string hint) {
  return failure(Status(Code::invalid_argument, std::move(message)), std::move(hint));
}

Terminal detect_terminal(bool json) {
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  Terminal terminal;
  terminal.json = json;
  terminal.color = !json && isatty(STDOUT_FILENO) == 1 && !dumb && !flag_in_environment("NO_COLOR");
  terminal.progress = !json && isatty(STDERR_FILENO) == 1 && !dumb;
  terminal.columns = columns_of_stdout();
  return terminal;
}

std::string printable(std::string_view text) { return escaped(text, "\n\t"); }
std::string printable_line(std::string_view text) { return escaped(text, ""); }

std::string green(std::string_view text, const Terminal& terminal) { return wrap("32", text, terminal.color); }
std::string red(std::string_view text, const Terminal& terminal) { return wrap("31", text, terminal.color); }
std::string bold(std::string_view text, const Terminal& terminal) { return wrap("1", text, terminal.color); }

int write_report(const Report& report, const Terminal& terminal) {
  bool written = true;
  if (terminal.json) {
    // Foreign bytes (a file name, say) may not be UTF-8; replacing them keeps the output valid JSON.
    written = put(stdout, report.json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else if (!report.text.empty()) {
    written = put(stdout, report.text);
  }
  if (!report.error.empty()) {
    std::string text = "quire: error: " + printable(shortened(report.error)) + "\n";
    if (!report.hint.empty()) text += "hint: " + printable(report.hint) + "\n";
    put(stderr, text);
  }
  if (written) return report.exit_code;
  put(stderr, "quire: error: cannot write to stdout\n");
  return kIo;
}

}  // namespace quire::cli
