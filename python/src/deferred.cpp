// SPDX-License-Identifier: Apache-2.0
// See deferred.hpp.
#include "deferred.hpp"

#include <array>
#include <string>
#include <utility>

#include "errors.hpp"

namespace quire_python {
namespace {

struct Deferred {
  std::uint64_t ticket = 0;
  quire::Batch batch;
  quire::KVCache cache;
  quire::Options options;
  std::shared_ptr<const quire::Plan> plan;
  CallArrays kept;
};

/// The last so many calls. Leaked, because static Python objects would outlive the interpreter. Guarded by the GIL.
constexpr std::size_t kRemembered = 64;
struct Remembered {
  std::array<Deferred, kRemembered> calls;
  std::uint64_t last = 0;
  std::uint64_t postponed = 0;  ///< a ticket that was taken while another one was looked for
};
Remembered& remembered() {
  static auto* const all = new Remembered;
  return *all;
}

/// Status of a broken call, in the words of check() if the tensors still hold the values that broke it.
quire::Status status_of(std::uint64_t ticket) {
  const std::string before = "an earlier attend() on a GPU wrote no row, and was not waited for: ";
  if ((ticket & quire::kTicketNotPrepared) != 0)
    return {quire::Code::invalid_argument,
            "an earlier prepared layer on a GPU found no preparation of its own in its workspace (and wrote no row), or other "
            "lengths than its preparation did: prepare() before the layers, and in each replay or before it"};
  Deferred& call = remembered().calls[ticket % kRemembered];
  if (call.ticket != ticket)
    return {
        quire::Code::contract_violation,
        before + "its lengths or tables break a rule or exceed the plan's bounds; nothing was kept that says which (wait=True)"};
  const Deferred broken = std::exchange(call, Deferred());
  quire::Status why;
  {
    const nb::gil_scoped_release unlocked;
    why = quire::why_broken(*broken.plan, broken.batch, broken.cache, broken.options);
  }
  if (!why.ok()) return {why.code(), before + why.message(), why.rule()};
  return {
      quire::Code::contract_violation,
      before +
          "its lengths or tables broke a rule or exceeded the plan's bounds, and hold other values now (wait=True says more)"};
}

void raise_broken() {
  std::uint64_t ticket = std::exchange(remembered().postponed, 0);
  if (ticket == 0) ticket = quire::take_broken_ticket();
  if (ticket != 0) throw_status(status_of(ticket));
}

void synchronize() {
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = quire::synchronize();
  }
  require_ok(status);
  raise_broken();
}

constexpr const char* kSynchronizeDoc =
    R"(Waits for the GPUs that ran calls which were not waited for, and raises what became of them.

A call with wait=False enqueues and returns. If its lengths or tables break a rule, or exceed the bounds of its plan, it writes no
row, and the device leaves a mark. The next call of attend(), a BoundCall or quire_vllm raises it, without waiting; this waits first.
Does nothing where no such call was made. Of several calls that broke since the last look, one is raised.

Raises ContractError (in the words of check(), if the tensors still hold what broke the call), ArgumentError (a bound was exceeded),
DeviceError.)";

}  // namespace

std::uint64_t defer(const quire::Batch& batch, const quire::KVCache& cache, const quire::Options& options,
                    std::shared_ptr<const quire::Plan> plan, const CallArrays& arrays) {
  Remembered& all = remembered();
  const std::uint64_t ticket = ++all.last;
  Deferred& call = all.calls[ticket % kRemembered];
  call = {ticket, batch, cache, options, std::move(plan), {}};
  const auto keep = [](const quire::batch::TensorField& f, const ArrayRef& array, ArrayRef& kept) {
    const bool of_values = f.of_step() || f.kind == quire::batch::Kind::floats || f.kind == quire::batch::Kind::scale;
    if (of_values && f.access == quire::batch::Access::read) kept = array;
  };
  quire::batch::for_each_tensor(keep, arrays, call.kept);
  call.batch.slot_mapping = call.batch.request_ids = {};  // attend() does not look at their values
  return ticket;
}

std::uint64_t defer_untold() {
  Remembered& all = remembered();
  all.calls[++all.last % kRemembered] = Deferred();
  return all.last;
}

void settle(std::uint64_t ticket) {
  Deferred& call = remembered().calls[ticket % kRemembered];
  if (call.ticket == ticket) call = Deferred();
  if (const std::uint64_t taken = quire::take_broken_ticket(); taken != 0 && taken != ticket) remembered().postponed = taken;
}

void raise_if_broken(quire::Memory memory, void* stream) {
  if (remembered().postponed == 0 && !quire::has_broken_ticket()) return;
  const quire::Result<bool> capturing = quire::is_capturing(memory, stream);
  if (capturing.ok() && !capturing.value()) raise_broken();
}

Wait wait_of(nb::handle wait, Wait otherwise, const char* argument, quire::Memory memory, void* stream) {
  if (!wait.is_none() && !PyBool_Check(wait.ptr()))
    throw_error(quire::Code::invalid_argument, "wait: " + shown(wait) + ", expected True, False or None");
  const Wait chosen = wait.is_none() ? otherwise : wait.ptr() == Py_True ? Wait::yes : Wait::no;
  if (chosen == Wait::no || memory == quire::Memory::cpu) return chosen;
  const quire::Result<bool> capturing = quire::is_capturing(memory, stream);
  if (!capturing.ok()) throw_status(capturing.status());
  if (capturing.value())
    throw_error(quire::Code::invalid_argument,
                std::string(argument) +
                    ": the call would wait, but its stream is being captured in a graph; pass wait=False, and "
                    "quire.synchronize() after a replay says what became of it");
  return chosen;
}

void bind_deferred(nb::module_& m) { m.def("synchronize", &synchronize, kSynchronizeDoc); }

}  // namespace quire_python
