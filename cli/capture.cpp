// SPDX-License-Identifier: Apache-2.0
// quire capture: writes the batch of a problem line (or a re-written capture) to a file that every tool reads; with --fault also
// the output that a kernel with this fault would have produced.
#include <cstring>

#include "commands.h"
#include "progress.h"
#include "quire/tools/faults.hpp"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

std::vector<std::string> fault_ids() {
  std::vector<std::string> ids;
  for (const FaultInfo& fault : faults()) ids.push_back(fault.id);
  return ids;
}

Result<Tensor> tensor_like(Case& c, const Tensor& t) {
  Tensor made = Tensor::from_shape(nullptr, t.dtype, t.shape, t.rank);
  made.data = c.allocate(static_cast<std::size_t>(made.num_elements() * itemsize(made.dtype)));
  if (made.data == nullptr) return Status(Code::out_of_memory, "no memory for the observed output");
  return made;
}

/// The new-token keys of a made batch: N(0,1) in `like`'s shape and type, the same bytes on every machine.
Status fill_with_garbage(Tensor& to) {
  if (to.num_elements() == 0) return {};
  ProblemLine line;
  line.problem.q_dtype = line.problem.kv_dtype = to.dtype;
  line.problem.num_q_heads = line.problem.num_kv_heads = to.shape[1];
  line.problem.head_dim = to.rank == 3 ? to.shape[2] : 1;
  line.problem.reqs = {{to.shape[0], 0, /*cached_len=*/0}};
  const Result<Case> garbage = make_case(line);
  if (!garbage.ok()) return garbage.status();
  std::memcpy(to.data, garbage->batch.key.data, static_cast<std::size_t>(to.num_elements() * itemsize(to.dtype)));
  return {};
}

void fill_with_nan(Tensor& to) {
  const auto bytes = static_cast<std::size_t>(to.num_elements() * itemsize(to.dtype));
  // All bits set is a NaN in f32, f16 and bf16.
  std::memset(to.data, 0xFF, bytes);
}

/// Fills the memory of an output with its content before the kernel runs.
Status fill(Tensor& to, const std::string& with) {
  if (with == "garbage") return fill_with_garbage(to);
  fill_with_nan(to);
  return {};
}

/// Sets observed and observed_lse to what a kernel with the fault writes over the fill.
Status observe_fault(Case& c, const CaptureArgs& args) {
  Result<Tensor> output = tensor_like(c, c.batch.output);
  if (!output.ok()) return output.status();
  if (const Status s = fill(output.value(), args.fill); !s.ok()) return s;
  Batch batch = c.batch;
  batch.output = c.observed = output.value();
  if (batch.lse.present()) {
    Result<Tensor> lse = tensor_like(c, c.batch.lse);
    if (!lse.ok()) return lse.status();
    if (const Status s = fill(lse.value(), args.fill); !s.ok()) return s;
    batch.lse = c.observed_lse = lse.value();
  }
  c.notes["fault"] = args.fault;
  return attend_with_fault(batch, c.cache, c.options, args.fault);
}

}  // namespace

Report run_capture(const CaptureArgs& args, const Terminal& terminal) {
  if (!args.fill.empty() && args.fault.empty()) return Report::usage("--fill says what lies under the output of a --fault");
  const std::vector<std::string> ids = fault_ids();
  if (!args.fault.empty() && std::find(ids.begin(), ids.end(), args.fault) == ids.end())
    return Report::usage(formatted("no fault '{}'", args.fault.substr(0, 64)), did_you_mean(args.fault, ids));
  Result<Case> input = case_of(args.input, terminal);
  if (!input.ok()) return Report::failure(input.status());
  if (!names_a_file(args.input)) input->notes["producer"] = formatted("quire {} capture", QUIRE_VERSION);
  if (!args.fault.empty()) {
    const Progress progress(terminal, "computing with the fault");
    if (const Status s = observe_fault(input.value(), args); !s.ok()) return Report::failure(s);
  }
  {
    const Progress progress(terminal, "writing " + args.output);
    if (const Status s = write_capture(args.output, input.value()); !s.ok()) return Report::failure(s);
  }
  Report report;
  report.text = formatted("wrote {}; try `quire {} {}`\n", printable_line(args.output), args.fault.empty() ? "run" : "diagnose",
                          printable_line(args.output));
  report.json = {
      {"schema", "quire.capture/1"}, {"ok", true}, {"exit_code", kOk}, {"input", title_of(args.input)}, {"file", args.output}};
  report.json["fault"] = args.fault.empty() ? Json(nullptr) : Json(args.fault);
  return report;
}

}  // namespace quire::cli
