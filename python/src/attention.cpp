// append(), attend() and merge(): the calls that write.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <vector>

#include "errors.hpp"
#include "executor.hpp"
#include "ledger.hpp"
#include "types.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Plan;
using quire::RowCount;
using quire::Tensor;
using quire::WriteTag;

constexpr std::size_t kAlignment = 64;

/// One workspace per thread, grown to the largest plan so far: steady state allocates nothing.
class ThreadWorkspace {
 public:
  ~ThreadWorkspace() { std::free(data_); }
  std::span<std::byte> at_least(std::size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_));
      if (data_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return {data_, size_};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The stream of a GPU call as a number: the argument's, or the current one of the library that the array comes from.
void* stream_for(nb::handle stream, const ArrayRef& like) {
  if (like.ordinal < 0) return nullptr;
  const nb::object number = arrays_function("stream_of")(stream, like.object, like.ordinal);
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number));  // NOLINT(performance-no-int-to-ptr)
}

std::span<std::byte> workspace_for(const Plan& plan, const ArrayRef& given) {
  static thread_local ThreadWorkspace own;
  if (!given) return own.at_least(quire::workspace_bytes(plan));
  const auto bytes = static_cast<std::size_t>(given.view.num_elements() * quire::itemsize(given.view.dtype));
  return {static_cast<std::byte*>(given.view.data), bytes};
}

/// Any contiguous writable array serves as workspace; raw bytes are the usual choice.
ArrayRef import_workspace(nb::handle workspace) {
  if (workspace.is_none()) return {};
  const nb::object view = arrays_function("as_bytes")(workspace);
  ArrayRef array = import_array(view, "workspace", Access::write, "fp8_e4m3fn");
  if (!array.view.is_contiguous()) throw_error(Code::invalid_argument, "workspace: the array is not contiguous");
  return array;
}

Plan plan_now(const quire::Batch& b, const quire::KVCache& c, const quire::Options& o, int num_threads) {
  quire::Result<Plan> made = quire::plan(b, c, o, {.kernel = {}, .num_threads = num_threads});
  const nb::gil_scoped_acquire locked;
  return unwrap(std::move(made));
}

void fill_rows(const std::vector<RowCount>& counts, std::optional<nb::dict>& rows) {
  if (!rows) return;
  for (const RowCount& count : counts) (*rows)[count.kernel.c_str()] = count.rows;
}

/// The workspace of a GPU call: what the caller gave, or one from the library of the query.
ArrayRef device_workspace(const PyBatch& batch, const Plan& plan, nb::handle workspace, nb::handle stream) {
  const ArrayRef& query = batch.arrays().query;
  const nb::object made = workspace.is_none()
                              ? arrays_function("empty_bytes_like")(query.object, quire::workspace_bytes(plan), stream)
                              : nb::borrow(workspace);
  ArrayRef array = import_workspace(made);
  if (array.view.memory != query.view.memory)
    throw_error(Code::invalid_argument, "workspace: is in " + std::string(quire::name(array.view.memory)) +
                                            " memory, but the batch is in " + std::string(quire::name(query.view.memory)) +
                                            " memory");
  check_same_gpu(query, "query", array, "workspace");
  return array;
}

/// Enqueues; with a workspace of its own it also waits, because nobody could ask afterwards.
void attend_on_gpu(const PyBatch& batch, const quire::Batch& b, const PyCache& cache, const PyOptions* options, const Plan& plan,
                   nb::handle workspace, std::optional<nb::dict>& rows, nb::handle stream, bool nan_if_refused) {
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  check_same_gpu(batch.arrays().query, "query", cache.k(), "k");
  const ArrayRef place = device_workspace(batch, plan, workspace, stream);
  const std::span<std::byte> bytes = workspace_for(plan, place);
  std::vector<RowCount> counts;
  const quire::AttendOptions how{
      .rows = &counts, .stream = stream_for(stream, batch.arrays().query), .nan_if_refused = nan_if_refused};
  quire::Status status;
  {
    const bool wait = workspace.is_none();
    const nb::gil_scoped_release unlocked;
    status = quire::attend(plan, b, c, o, bytes, how);
    if (status.ok() && wait) status = quire::attend_status(plan, b, c, o, bytes, how);
  }
  require_ok(status);
  fill_rows(counts, rows);
}

nb::object attend(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan* plan, nb::handle workspace,
                  std::optional<nb::dict> rows, nb::handle stream, bool nan_if_refused) {
  const BatchForCall call = batch.to_write(stream);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  if (b.query.memory != quire::Memory::cpu) {
    std::optional<Plan> made;
    if (plan == nullptr) made = unwrap(quire::plan(b, c, o));
    attend_on_gpu(batch, b, cache, options, plan != nullptr ? *plan : *made, workspace, rows, stream, nan_if_refused);
    return result_of(batch, call);
  }
  const ArrayRef given = import_workspace(workspace);
  std::vector<RowCount> counts;
  quire::Status status;
  {
    const Threads threads = current_threads();
    const nb::gil_scoped_release unlocked;
    std::optional<Plan> made;
    if (plan == nullptr) made = plan_now(b, c, o, threads.chosen);
    const Plan& use = plan != nullptr ? *plan : *made;
    status = quire::attend(use, b, c, o, workspace_for(use, given), {.executor = threads.executor.get(), .rows = &counts});
  }
  require_ok(status);
  fill_rows(counts, rows);
  return result_of(batch, call);
}

void attend_status(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan& plan, nb::handle workspace,
                   std::optional<nb::dict> rows, nb::handle stream) {
  if (batch.views().query.memory == quire::Memory::cpu) return;
  if (workspace.is_none()) throw_error(Code::invalid_argument, "workspace: None, expected the one that attend() was given");
  const BatchForCall call = batch.to_read();
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const ArrayRef place = device_workspace(batch, plan, workspace, stream);
  std::vector<RowCount> counts;
  const quire::AttendOptions how{.rows = &counts, .stream = stream_for(stream, batch.arrays().query)};
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = quire::attend_status(plan, b, c, o, workspace_for(plan, place), how);
  }
  require_ok(status);
  fill_rows(counts, rows);
}

std::vector<WriteTag> tags_from(nb::handle request_ids, nb::handle positions, std::int64_t num_slots) {
  const std::vector<std::int64_t> requests = index_list(request_ids, "request_ids");
  const std::vector<std::int64_t> where = index_list(positions, "positions");
  const auto n = static_cast<std::size_t>(num_slots);
  if (requests.size() != n || where.size() != n)
    throw_error(Code::invalid_argument, "ledger: needs request_ids and positions with one entry per slot (" + std::to_string(n) +
                                            "), got " + std::to_string(requests.size()) + " and " + std::to_string(where.size()));
  std::vector<WriteTag> tags(n);
  for (std::size_t i = 0; i < n; ++i) tags[i] = {.request = requests[i], .position = where[i]};
  return tags;
}

void append(const PyCache& cache, nb::handle key, nb::handle value, nb::handle slot_mapping, PyLedger* ledger,
            nb::handle request_ids, nb::handle positions, const std::optional<std::string>& dtype, nb::handle stream) {
  const quire::KVCache& c = cache.checked_for_write();
  const ArrayRef k = import_array(key, "key", Access::read, dtype.value_or(""), Role::rows);
  const ArrayRef v = import_array(value, "value", Access::read, dtype.value_or(""), Role::rows);
  const ArrayRef slots = import_index(slot_mapping, "slot_mapping", cache.k().object);
  if (ledger == nullptr && !(request_ids.is_none() && positions.is_none()))
    throw_error(Code::invalid_argument, "request_ids, positions: given, but no ledger to record them in; pass ledger=");
  std::vector<WriteTag> tags;
  if (ledger != nullptr) tags = tags_from(request_ids, positions, slots.view.rank == 1 ? slots.view.shape[0] : 0);
  check_same_gpu(cache.k(), "k", k, "key");
  void* const where = stream_for(stream, cache.k());
  quire::Status status;
  {
    const std::shared_ptr<quire::Executor> executor = current_executor();
    const nb::gil_scoped_release unlocked;
    status = quire::append(
        c, k.view, v.view, slots.view,
        {.executor = executor.get(), .ledger = ledger != nullptr ? &ledger->ledger : nullptr, .tags = tags, .stream = where});
  }
  require_ok(status);
}

nb::object or_allocate(nb::handle given, const char* function, nb::handle like, const nb::object& argument) {
  if (!given.is_none()) return nb::borrow(given);
  const nb::object make = arrays_function(function);
  return argument.is_valid() ? make(like, argument) : make(like);
}

nb::tuple merge(nb::handle out_a, nb::handle lse_a, nb::handle out_b, nb::handle lse_b, nb::handle out, nb::handle lse,
                nb::handle stream) {
  const ArrayRef oa = import_array(out_a, "out_a");
  const ArrayRef la = import_array(lse_a, "lse_a");
  const ArrayRef ob = import_array(out_b, "out_b");
  const ArrayRef lb = import_array(lse_b, "lse_b");
  if (!oa || oa.view.rank != 3) throw_error(Code::invalid_argument, "out_a: " + quire::to_string(oa.view) + ", expected rank 3");
  const nb::object rows = nb::make_tuple(oa.view.shape[0], oa.view.shape[1]);
  const nb::object result = or_allocate(out, "empty_like", out_a, {});
  const nb::object result_lse = or_allocate(lse, "empty_f32_like", out_a, rows);
  const ArrayRef o = import_array(result, "out", Access::write);
  const ArrayRef l = import_array(result_lse, "lse", Access::write);
  check_same_gpu(oa, "out_a", ob, "out_b");
  void* const where = stream_for(stream, oa);
  quire::Status status;
  {
    const std::shared_ptr<quire::Executor> executor = current_executor();
    const nb::gil_scoped_release unlocked;
    status = quire::merge(oa.view, la.view, ob.view, lb.view, o.view, l.view, {.executor = executor.get(), .stream = where});
  }
  require_ok(status);
  return nb::make_tuple(result, result_lse);
}

constexpr const char* kAttendDoc =
    R"(Softmax attention for every request of the batch; returns batch.output if the caller gave one, else a new array on every call.

    s(k) = softmax_scale * dot(q, K_k), then soft cap, then ALiBi (see Options)
    out  = sum_k exp(s(k) - m) V_k / (sum_k exp(s(k) - m) + exp(sink_h - m))       over visible k
    lse  = m + log(that denominator)

A row with no visible key gives out = 0 and lse = -inf (or the sink). Every output row is written exactly once, or the call fails
before writing any. Only visible positions are read.

Arguments:
    plan: from plan() for this batch's lengths and shapes, reused for every layer; None plans now.
    workspace: contiguous array of at least plan.workspace_bytes bytes, 64-byte aligned, where the batch is; None uses one that
        the thread keeps, or on a GPU one from the library of the query.
    rows: a dict that receives {kernel: (token x head) rows it wrote} (on a GPU, if the call waits).
    stream: of calls on a GPU: a number (cudaStream_t, hipStream_t) or a stream of torch or CuPy; None = the library's current stream.
    nan_if_refused: on a GPU, output and lse become NaN if the device refuses lengths or tables: for replays that nobody asks about.

On a GPU lengths and tables are checked there, and no row is written if they break a rule. With a workspace of yours the call
enqueues and returns (it can be captured in a graph), and attend_status() waits and raises what was found; with None it does so itself.

Raises ContractError (a broken rule, named in .rule) or UnsupportedError before any output byte changes. The GIL is released.)";

constexpr const char* kAttendStatusDoc =
    R"(What became of the last attend() with these arguments on a GPU, and of calls before it with this workspace that nobody has asked
about (other layers, earlier replays of a graph); waits for its stream.

Raises ContractError if lengths or tables break a rule (the words of check()), ArgumentError if they exceed what the plan was made for;
in both cases no row was written. An earlier call that was refused is a ContractError without words of its own: its tables have changed
since. It is told once. rows receives the counts. On a CPU attend() has said it all.)";

constexpr const char* kAppendDoc = R"(Writes key/value row t into slot slot_mapping[t] of the cache, for every t with a slot >= 0.

    stored = convert(row / scale)      round to nearest even; fp8 saturates to its largest finite value, NaN stays NaN

key, value: [num_tokens, num_kv_heads, head_dim] f32, f16 or bf16, both of one dtype, any strides. slot_mapping: [n] int32 or int64,
n <= num_tokens. With a ledger every written slot is recorded for request_ids[t], positions[t] (each [n], both >= 0). These three may be
lists. dtype: type of raw uint16 key and value.

On a GPU the call enqueues on stream and returns: slots outside the cache are skipped, unless there is a ledger; then they raise.

Raises ContractError before the first write (slot out of range or written twice, shapes that disagree), ArgumentError for
read-only caches. The GIL is released.)";

constexpr const char* kMergeDoc =
    R"(Combines two partial results over disjoint key sets, exactly on empty sides (lse = -inf); returns (out, lse).

    lse = log(exp(lse_a) + exp(lse_b))
    out = out_a * exp(lse_a - lse) + out_b * exp(lse_b - lse)

out_*: [num_tokens, num_q_heads, head_dim] f32, f16 or bf16; lse_*: [num_tokens, num_q_heads] f32, natural log; any strides. out may
be out_a or out_b. None allocates. +inf in an lse is an error.)";

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attend", &attend, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::arg("plan") = nb::none(),
        nb::arg("workspace") = nb::none(), nb::arg("rows") = nb::none(), nb::arg("stream") = nb::none(),
        nb::arg("nan_if_refused") = false,
        nb::sig("def attend(batch: Batch, cache: KVCache, options: Options | None = None, plan: Plan | None = None, "
                "workspace: typing.Any | None = None, rows: dict[str, int] | None = None, stream: typing.Any | None = None, "
                "nan_if_refused: bool = False) -> typing.Any"),
        kAttendDoc);
  m.def("attend_status", &attend_status, nb::arg("batch"), nb::arg("cache"), nb::arg("options").none(), nb::arg("plan"),
        nb::arg("workspace").none(), nb::arg("rows") = nb::none(), nb::arg("stream") = nb::none(),
        nb::sig("def attend_status(batch: Batch, cache: KVCache, options: Options | None, plan: Plan, workspace: typing.Any, "
                "rows: dict[str, int] | None = None, stream: typing.Any | None = None) -> None"),
        kAttendStatusDoc);
  m.def("append", &append, nb::arg("cache"), nb::arg("key").none(), nb::arg("value").none(), nb::arg("slot_mapping").none(),
        nb::arg("ledger") = nb::none(), nb::arg("request_ids") = nb::none(), nb::arg("positions") = nb::none(),
        nb::arg("dtype") = nb::none(), nb::arg("stream") = nb::none(),
        nb::sig("def append(cache: KVCache, key: typing.Any, value: typing.Any, slot_mapping: typing.Any, "
                "ledger: SlotLedger | None = None, request_ids: typing.Any | None = None, positions: typing.Any | None = None, "
                "dtype: str | None = None, stream: typing.Any | None = None) -> None"),
        kAppendDoc);
  m.def(
      "merge", &merge, nb::arg("out_a"), nb::arg("lse_a"), nb::arg("out_b"), nb::arg("lse_b"), nb::arg("out") = nb::none(),
      nb::arg("lse") = nb::none(), nb::arg("stream") = nb::none(),
      nb::sig(
          "def merge(out_a: typing.Any, lse_a: typing.Any, out_b: typing.Any, lse_b: typing.Any, out: typing.Any | None = None, "
          "lse: typing.Any | None = None, stream: typing.Any | None = None) -> tuple[typing.Any, typing.Any]"),
      kMergeDoc);
  m.def(
      "set_num_threads",
      [](int n) {
        check_num_threads(n);
        set_num_threads(n);
      },
      nb::arg("num_threads"), "Threads for every later call in this process; 0 = QUIRE_NUM_THREADS or all cores.");
  m.def("get_num_threads", [] { return current_executor()->num_threads(); }, "Threads that the next call may use.");
}

}  // namespace quire_python
