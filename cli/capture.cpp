// quire capture: writes the batch of a problem line (or a re-written capture) to a file that every tool reads.
#include <fmt/format.h>

#include "commands.h"
#include "progress.h"

namespace quire::cli {

Report run_capture(const CaptureArgs& args, const Terminal& terminal) {
  Result<Case> input = case_of(args.input, terminal);
  if (!input.ok()) return Report::failure(input.status());
  if (!names_a_file(args.input)) input->notes["producer"] = fmt::format("quire {} capture", QUIRE_VERSION);
  {
    const Progress progress(terminal, "writing " + args.output);
    if (const Status s = write_capture(args.output, input.value()); !s.ok()) return Report::failure(s);
  }
  Report report;
  report.text = fmt::format("wrote {}; try `quire run {}`\n", printable(args.output), printable(args.output));
  report.json = {
      {"schema", "quire.capture/1"}, {"ok", true}, {"exit_code", kOk}, {"input", title_of(args.input)}, {"file", args.output}};
  return report;
}

}  // namespace quire::cli
