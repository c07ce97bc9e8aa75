// SPDX-License-Identifier: Apache-2.0
// plan(), explain() and the lists of devices and kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "case.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Device;
using quire::Explanation;
using quire::Kernel;
using quire::Plan;
using quire::PlanSettings;
using quire::Problem;
using quire::ProblemLine;
using quire::Refusal;

void check_bound(std::int64_t bound, const std::string& name) {
  if (bound < 0)
    throw_error(Code::invalid_argument, name + ": " + std::to_string(bound) + ", expected at least 0 (0 = not given)");
}

Plan plan(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const PlanSettings& asked) {
  check_num_threads(asked.num_threads);
  check_bound(asked.max_query_len, "max_query_len");
  check_bound(asked.max_seq_len, "max_seq_len");
  const BatchForCall call = batch.to_read(cache);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const PlanSettings settings = settings_of_plan(asked, b);
  return unwrap(without_gil([&] { return quire::plan(b, c, o, settings); }));
}

/// The problem of a text, plan, capture or batch.
Problem problem_from(nb::handle source, const PyCache* cache, const PyOptions* options) {
  if (nb::isinstance<nb::str>(source)) return unwrap(quire::parse_problem_line(nb::cast<std::string>(source))).problem;
  if (nb::isinstance<ProblemLine>(source)) return nb::cast<const ProblemLine&>(source).problem;
  if (nb::isinstance<Plan>(source)) return nb::cast<const Plan&>(source).problem;
  BatchForCall call;
  quire::Batch& b = call.views;
  quire::KVCache c;
  quire::Options o;
  if (nb::isinstance<PyCase>(source)) {
    const quire::Case& k = nb::cast<const PyCase&>(source).data;
    b = k.batch, c = k.cache, o = k.options;
  } else if (nb::isinstance<PyBatch>(source)) {
    if (cache == nullptr) throw_error(Code::invalid_argument, "cache: explaining a Batch needs its cache=");
    call = nb::cast<const PyBatch&>(source).to_read(*cache), c = cache->checked(), o = options_or_default(options);
  } else {
    throw_error(Code::invalid_argument, "problem: expected a problem line, Batch, Case or Plan");
  }
  require_ok(quire::check(b, c, o, quire::Depth::tables).status());
  return quire::problem_of(b, c, o);
}

Explanation explain(nb::handle source, const std::optional<std::string>& device, const std::optional<std::string>& kernel,
                    const PyCache* cache, const PyOptions* options) {
  const Problem problem = problem_from(source, cache, options);
  const Device where = device ? unwrap(quire::find_device(*device)) : quire::host_device();
  return quire::explain(problem, where, {.kernel = kernel.value_or("")});
}

bool runs_here(const Kernel& kernel) {
  std::vector<Device> devices = quire::gpu_devices();
  devices.push_back(quire::host_device());
  return std::any_of(devices.begin(), devices.end(), [&](const Device& device) {
    return kernel.backend == device.backend && (kernel.cpu_features & ~device.cpu_features) == 0;
  });
}

void bind_device(nb::module_& m) {
  nb::class_<Device>(m, "Device", "A device as planning sees it.")
      .def_ro("name", &Device::name)
      .def_prop_ro("backend", [](const Device& d) { return std::string(quire::name(d.backend)); })
      .def_ro("num_threads", &Device::num_threads, "Threads (CPU), SMs or CUs (GPU).")
      .def_ro("l2_bytes", &Device::l2_bytes)
      .def_ro("sm", &Device::sm, "CUDA compute capability, 10 * major + minor; 0 for all others.")
      .def_ro("ordinal", &Device::ordinal, "Which of this machine's GPUs; -1 for CPUs and pretended devices.")
      .def_ro("product", &Device::product)
      .def("__repr__",
           [](const Device& d) { return "<Device " + d.name + " num_threads=" + std::to_string(d.num_threads) + ">"; });
  nb::class_<Kernel>(m, "Kernel", "One row of the kernel table.")
      .def_ro("name", &Kernel::name)
      .def_prop_ro("backend", [](const Kernel& k) { return std::string(quire::name(k.backend)); })
      .def_ro("takes", &Kernel::takes, "What it takes, in words.")
      .def_ro("description", &Kernel::description)
      .def_prop_ro("runs_here", &runs_here, "Whether this machine's CPU, or one of its GPUs, can run it.")
      .def("__repr__", [](const Kernel& k) { return "<Kernel " + std::string(k.name) + ">"; });
  nb::class_<Refusal>(m, "Refusal", "A kernel that was passed over, and one reason.")
      .def_ro("kernel", &Refusal::kernel)
      .def_ro("reason", &Refusal::reason)
      .def("__str__", [](const Refusal& r) { return r.kernel + ": " + r.reason; })
      .def("__repr__", [](const Refusal& r) { return "<Refusal " + r.kernel + ": " + r.reason + ">"; });
  m.def("devices", [] { return quire::known_devices(); }, "Every device that explain() knows by name, pretended ones included.");
  m.def("gpu_devices", [] { return quire::gpu_devices(); }, "This machine's GPUs that this build has kernels for.");
  m.def(
      "has_backend",
      [](const std::string& backend) {
        for (const quire::Backend b : {quire::Backend::cpu, quire::Backend::cuda, quire::Backend::hip})
          if (backend == quire::name(b)) return quire::has_backend(b);
        throw_error(Code::invalid_argument, "backend: \"" + backend + "\" is none of cpu, cuda, hip");
      },
      nb::arg("backend"), "Whether this build has kernels for \"cpu\", \"cuda\" or \"hip\".");
  m.def("host_device", [] { return quire::host_device(); }, "This machine's CPU (QUIRE_CPU narrows it).");
  m.def(
      "kernels",
      [] {
        const auto rows = quire::kernels();
        return std::vector<Kernel>(rows.begin(), rows.end());
      },
      "The kernel table, in order of preference.");
}

void bind_plan_class(nb::module_& m) {
  nb::class_<Plan>(m, "Plan",
                   "What attend() will do, decided in full; str() is the one-line form. Reusable for every layer of a step.")
      .def_prop_ro("kernel", [](const Plan& p) { return p.kernel.name(); })
      .def_ro("device", &Plan::device)
      .def_ro("batch_invariant", &Plan::batch_invariant)
      .def(
          "rounds_weights", &quire::rounds_weights, nb::arg("query_len"),
          "Whether softmax weights of a request with query_len rows may be rounded to the type of the query before they meet V.\n"
          "Judge its outputs with compare(..., weights=...) then.")
      .def_ro("tile_q", &Plan::tile_q)
      .def_ro("tile_kv", &Plan::tile_kv)
      .def_ro("split_keys", &Plan::split_keys)
      .def_ro("num_partials", &Plan::num_partials)
      .def_ro("num_threads", &Plan::num_threads)
      .def_ro("kv_bytes", &Plan::kv_bytes, "Bytes of K and V in the visible ranges, each counted once.")
      .def_ro("flops", &Plan::flops)
      .def_ro("refusals", &Plan::refusals)
      .def_ro("assumptions", &Plan::assumptions, "What a GPU plan took for granted about lengths that it did not read.")
      .def_prop_ro("num_items", [](const Plan& p) { return p.num_items(); })
      .def_prop_ro("num_merges", [](const Plan& p) { return p.num_merges(); })
      .def_prop_ro("workspace_bytes", [](const Plan& p) { return quire::workspace_bytes(p); })
      .def_prop_ro(
          "problem", [](const Plan& p) { return quire::to_string(p.problem); }, "The planned problem as text.")
      .def(
          "__eq__", [](const Plan& a, nb::handle b) { return nb::isinstance<Plan>(b) && a == nb::cast<const Plan&>(b); },
          nb::is_operator())
      .def("__str__", [](const Plan& p) { return quire::to_string(p); })
      .def("__repr__", [](const Plan& p) { return "<Plan " + quire::to_string(p) + ">"; });
}

void bind_explanation(nb::module_& m) {
  nb::class_<Explanation>(m, "Explanation", "The chosen kernel and every refusal; str() is the text for people.")
      .def_ro("chosen", &Explanation::chosen)
      .def_ro("refusals", &Explanation::refusals)
      .def_ro("plan_line", &Explanation::plan_line)
      .def_ro("decode_reason", &Explanation::decode_reason)
      .def_ro("device", &Explanation::device)
      .def_prop_ro("problem", [](const Explanation& e) { return quire::to_string(e.problem); })
      .def_ro("text", &Explanation::text)
      .def("__str__", [](const Explanation& e) { return e.text; })
      .def("__repr__", [](const Explanation& e) {
        return "<Explanation " + (e.chosen.empty() ? "no kernel" : std::string(e.chosen)) + " for " +
               quire::to_string(e.problem) + ", " + std::to_string(e.refusals.size()) + " refused>";
      });
  nb::class_<ProblemLine>(m, "ProblemLine", "A parsed problem line; str() is the canonical text.")
      .def_ro("seed", &ProblemLine::seed)
      .def_ro("num_pages", &ProblemLine::num_pages)
      .def_prop_ro("num_tokens", [](const ProblemLine& p) { return p.problem.num_tokens(); })
      .def("__str__", [](const ProblemLine& p) { return quire::to_string(p); })
      .def("__repr__", [](const ProblemLine& p) { return "<ProblemLine " + quire::to_string(p) + ">"; });
  m.def(
      "parse_problem_line", [](const std::string& text) { return unwrap(quire::parse_problem_line(text)); }, nb::arg("text"),
      "Parses e.g. 'q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=1x4096,64x1@2048'. Raises ParseError.");
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_device(m);
  bind_plan_class(m);
  bind_explanation(m);
  m.def(
      "plan",
      [](const PyBatch& batch, const PyCache& cache, const PyOptions* options, const std::optional<std::string>& kernel,
         bool batch_invariant, int num_threads, std::int64_t max_query_len, std::int64_t max_seq_len, bool exact_weights) {
        return plan(batch, cache, options,
                    {.kernel = kernel.value_or(""),
                     .batch_invariant = batch_invariant,
                     .exact_weights = exact_weights,
                     .num_threads = num_threads,
                     .max_query_len = max_query_len,
                     .max_seq_len = max_seq_len});
      },
      nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::arg("kernel") = nb::none(),
      nb::arg("batch_invariant") = false, nb::arg("num_threads") = 0, nb::arg("max_query_len") = 0, nb::arg("max_seq_len") = 0,
      nb::arg("exact_weights") = false,
      R"(Checks metadata and tables, then plans this batch for this machine. Plan once per step, use it for every layer.

kernel forces a row of info.kernels() by name. batch_invariant: a request's bits depend neither on the rest of the batch nor on its
chunking. exact_weights: softmax weights keep f32's precision in every row; otherwise a kernel may round those of long chunks to the
type of the query before they meet V, as FlashAttention does (Plan.rounds_weights says where). num_threads only balances work; 0 =
set_num_threads(), or all cores.

On a GPU no tensor is read and nothing waits: the plan is made from upper bounds, those of the shapes or max_query_len and max_seq_len
(0 = not given), and lists them in its assumptions.

Raises ContractError (a broken rule) or UnsupportedError (no kernel takes it; all refusals in the text).)");
  m.def("explain", &explain, nb::arg("problem"), nb::arg("device") = nb::none(), nb::arg("kernel") = nb::none(), nb::kw_only(),
        nb::arg("cache") = nb::none(), nb::arg("options") = nb::none(),
        nb::sig(
            "def explain(problem: str | ProblemLine | Batch | Case | Plan, device: str | None = None, kernel: str | None = None, "
            "*, cache: KVCache | None = None, options: Options | None = None) -> Explanation"),
        R"(Which kernel takes a problem, and why every other one refused.

problem: a problem line (text), a Batch (then give cache= and options=), a Case or a Plan. device: a name of
info.devices(); None = this machine.)");
}

}  // namespace quire_python
