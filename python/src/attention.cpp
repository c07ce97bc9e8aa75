// SPDX-License-Identifier: Apache-2.0
// append(), attend(), merge() and merge_many(): the calls that write.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <vector>

#include "deferred.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "ledger.hpp"
#include "types.hpp"
#include "without_gil.hpp"
#include "workspace.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Plan;
using quire::RowCount;
using quire::Tensor;
using quire::WriteTag;
using quire::batch::CachePart;

Plan plan_now(const quire::Batch& b, const quire::KVCache& c, const quire::Options& o, int num_threads) {
  quire::Result<Plan> made = quire::plan(b, c, o, {.kernel = {}, .num_threads = num_threads});
  const nb::gil_scoped_acquire locked;
  return unwrap(std::move(made));
}

void fill_rows(const std::vector<RowCount>& counts, std::optional<nb::dict>& rows) {
  if (!rows) return;
  for (const RowCount& count : counts) (*rows)[count.kernel.c_str()] = count.rows;
}

/// How attend() runs, as its caller said.
struct How {
  nb::handle workspace;
  std::optional<nb::dict> rows;
  nb::handle stream;
  bool nan_if_refused;
  nb::handle wait;
};

/// Enqueues a call. Waits for the device's findings if asked to; else the next call and synchronize() report them.
void attend_on_gpu(const PyBatch& batch, const quire::Batch& b, const PyCache& cache, const PyOptions* options,
                   std::shared_ptr<const Plan> plan, How& asked) {
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  check_same_gpu(batch.arrays().query, "query", cache.k(), "k");
  std::vector<RowCount> counts;
  quire::AttendOptions how{
      .rows = &counts, .stream = stream_for(asked.stream, batch.arrays().query), .nan_if_refused = asked.nan_if_refused};
  const bool alone = asked.workspace.is_none();  // nobody could ask with attend_status() afterwards
  const Wait chosen =
      wait_of(asked.wait, alone ? Wait::yes : Wait::no, asked.wait.is_none() ? "workspace" : "wait", b.query.memory, how.stream);
  raise_if_broken(b.query.memory, how.stream);
  const DeviceWorkspace place =
      device_workspace(batch.arrays().query, quire::workspace_bytes(*plan), asked.workspace, asked.stream);
  const std::span<std::byte> bytes = place.bytes;
  if (chosen == Wait::no) how.ticket = batch.defer(defer(b, c, o, plan, arrays_of(batch, cache, options)));
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = quire::attend(*plan, b, c, o, bytes, how);
    const auto ask = [&] { return quire::attend_status(*plan, b, c, o, bytes, how); };
    if (status.ok() && chosen == Wait::yes) status = alone ? status_in_new_workspace(ask) : ask();
  }
  require_ok(status);
  fill_rows(counts, asked.rows);
}

/// The plan that was given, which its Python object keeps, or one for this call.
std::shared_ptr<const Plan> shared_plan(const Plan* given, const quire::Batch& b, const quire::KVCache& c,
                                        const quire::Options& o) {
  if (given == nullptr) return std::make_shared<const Plan>(unwrap(quire::plan(b, c, o)));
  return {given, [held = nb::object(nb::find(*given))](const Plan*) {}};
}

nb::object attend(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan* plan, How asked) {
  const BatchForCall call = batch.to_write(cache, asked.stream);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  if (b.query.memory != quire::Memory::cpu) {
    attend_on_gpu(batch, b, cache, options, shared_plan(plan, b, c, o), asked);
    return result_of(batch, call);
  }
  wait_of(asked.wait, Wait::yes, "wait", b.query.memory, nullptr);
  const ArrayRef given = import_workspace(asked.workspace);
  std::vector<RowCount> counts;
  quire::Status status;
  {
    const Threads threads = current_threads();
    status = without_gil([&] {
      std::optional<Plan> made;
      if (plan == nullptr) made = plan_now(b, c, o, threads.chosen);
      const Plan& use = plan != nullptr ? *plan : *made;
      return quire::attend(use, b, c, o, host_workspace(use, given), {.executor = threads.executor.get(), .rows = &counts});
    });
  }
  require_ok(status);
  fill_rows(counts, asked.rows);
  return result_of(batch, call);
}

void attend_status(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan& plan, nb::handle workspace,
                   std::optional<nb::dict> rows, nb::handle stream) {
  if (batch.views().query.memory == quire::Memory::cpu) return;
  if (workspace.is_none()) throw_error(Code::invalid_argument, "workspace: None, expected the one that attend() was given");
  const BatchForCall call = batch.to_read(cache);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const DeviceWorkspace place = device_workspace(batch.arrays().query, quire::workspace_bytes(plan), workspace, stream);
  std::vector<RowCount> counts;
  const quire::AttendOptions how{.rows = &counts, .stream = stream_for(stream, batch.arrays().query)};
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = quire::attend_status(plan, b, c, o, place.bytes, how);
  }
  batch.settle();
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

/// Rows that append() writes, and their slots.
struct NewRows {
  ArrayRef key, value, slots;
};

NewRows rows_given(nb::handle key, nb::handle value, nb::handle slot_mapping, const std::string& dtype, const ArrayRef& k) {
  return {import_array(key, "key", Access::read, dtype, Role::rows),
          import_array(value, "value", Access::read, dtype, Role::rows), import_index(slot_mapping, "slot_mapping", k.object)};
}

void append_rows(const quire::KVCache& cache, const NewRows& rows, quire::AppendOptions how) {
  const std::shared_ptr<quire::Executor> executor = current_executor();
  how.executor = executor.get();
  require_ok(without_gil([&] { return quire::append(cache, rows.key.view, rows.value.view, rows.slots.view, how); }));
}

void append(const PyCache& cache, const NewRows& rows, PyLedger* ledger, nb::handle request_ids, nb::handle positions,
            nb::handle stream) {
  const quire::KVCache& c = cache.checked_for_write();
  if (ledger == nullptr && !(request_ids.is_none() && positions.is_none()))
    throw_error(Code::invalid_argument, "request_ids, positions: given, but no ledger to record them in; pass ledger=");
  std::vector<WriteTag> tags;
  if (ledger != nullptr) tags = tags_from(request_ids, positions, rows.slots.view.rank == 1 ? rows.slots.view.shape[0] : 0);
  check_same_gpu(cache.k(), "k", rows.key, "key");
  append_rows(c, rows,
              {.ledger = ledger != nullptr ? &ledger->ledger : nullptr, .tags = tags, .stream = stream_for(stream, cache.k())});
}

/// append() of arrays, without the objects: what quire_vllm and quire.torch call for each layer.
void append_arrays(const nb::dict& call) {
  const std::string any = "typing.Any";
  static const auto& signature =
      *new Signature("append_arrays", {},
                     arguments_of("KVCache", {{"key", any}, {"value", any}, {"slot_mapping", any}, {"cache_dtype", "str = ''"}}));
  const Arguments given(signature, call);
  const ForCall<nb::handle> tensors = tensors_given(given);
  const std::string dtype = given.text("cache_dtype", "");
  Numbers numbers;
  const CacheArrays cache = import_cache(tensors.cache, dtype, dtype, numbers);
  check_writable(cache);
  const NewRows rows = rows_given(tensors.batch.key, tensors.batch.value, tensors.batch.slot_mapping, {}, cache.k);
  const auto check = [&](const quire::batch::TensorField& f, const ArrayRef& array) {
    check_same_gpu(cache.k, "k", array, f.member.data());
  };
  quire::batch::for_each_tensor(check, CachePart{cache});
  for (const auto& [array, name] : {std::pair{&rows.key, "key"}, {&rows.value, "value"}, {&rows.slots, "slot_mapping"}})
    check_same_gpu(cache.k, "k", *array, name);
  quire::KVCache views;
  read_choices(given, CachePart{views});
  set_views(CachePart{cache}, CachePart{views});
  append_rows(views, rows, {.stream = stream_for(nb::none(), cache.k)});
}

nb::object or_allocate(nb::handle given, const char* function, nb::handle like, const nb::object& argument) {
  if (!given.is_none()) return nb::borrow(given);
  const nb::object make = arrays_function(function);
  return argument.is_valid() ? make(like, argument) : make(like);
}

/// Where a merge writes, and how, as its caller said.
struct Into {
  nb::handle out, lse, stream, output_scale;
};

/// Runs a merge of `from`, whose rows begin at axis `axis`; returns (out, lse), which are new where none was given.
template <typename Call>
nb::tuple merge_into(const Into& to, const ArrayRef& from, std::size_t axis, Call&& call) {
  const auto& shape = from.view.shape;
  if (to.out.is_none() && !to.output_scale.is_none())
    throw_error(Code::invalid_argument, "out: None, expected an fp8_e4m3fn array beside output_scale");
  float number = 0;
  const ArrayRef scale = import_scale(to.output_scale, "output_scale", from, number);
  const nb::object part = axis == 0 ? nb::object() : nb::make_tuple(shape[1], shape[2], shape[3]);
  const nb::object out = or_allocate(to.out, axis == 0 ? "empty_like" : "empty_part_like", from.object, part);
  const nb::object lse = or_allocate(to.lse, "empty_f32_like", from.object, nb::make_tuple(shape[axis], shape[axis + 1]));
  const ArrayRef o = import_array(out, "out", Access::write);
  const ArrayRef l = import_array(lse, "lse", Access::write);
  void* const where = stream_for(to.stream, from);
  quire::Status status;
  {
    const std::shared_ptr<quire::Executor> executor = current_executor();
    const nb::gil_scoped_release unlocked;
    status = call(o.view, l.view, quire::MergeOptions{.executor = executor.get(), .stream = where, .output_scale = scale.view});
  }
  require_ok(status);
  return nb::make_tuple(out, lse);
}

nb::tuple merge(nb::handle out_a, nb::handle lse_a, nb::handle out_b, nb::handle lse_b, nb::handle out, nb::handle lse,
                nb::handle stream, nb::handle output_scale) {
  const ArrayRef oa = import_array(out_a, "out_a");
  const ArrayRef la = import_array(lse_a, "lse_a");
  const ArrayRef ob = import_array(out_b, "out_b");
  const ArrayRef lb = import_array(lse_b, "lse_b");
  if (!oa || oa.view.rank != 3) throw_error(Code::invalid_argument, "out_a: " + quire::to_string(oa.view) + ", expected rank 3");
  check_same_gpu(oa, "out_a", ob, "out_b");
  return merge_into({out, lse, stream, output_scale}, oa, 0,
                    [&](const Tensor& o, const Tensor& l, const quire::MergeOptions& how) {
                      return quire::merge(oa.view, la.view, ob.view, lb.view, o, l, how);
                    });
}

nb::tuple merge_many(nb::handle outs, nb::handle lses, nb::handle out, nb::handle lse, nb::handle stream,
                     nb::handle output_scale) {
  const ArrayRef os = import_array(outs, "outs");
  const ArrayRef ls = import_array(lses, "lses");
  if (!os || os.view.rank != 4) throw_error(Code::invalid_argument, "outs: " + quire::to_string(os.view) + ", expected rank 4");
  return merge_into({out, lse, stream, output_scale}, os, 1,
                    [&](const Tensor& o, const Tensor& l, const quire::MergeOptions& how) {
                      return quire::merge_many(os.view, ls.view, o, l, how);
                    });
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
    wait: of calls on a GPU: True waits for the device and raises what it found; False enqueues and returns, and what the device
        finds is raised by the next call, by attend_status() or by synchronize(). None = True without a workspace, else False.

On a GPU lengths and tables are checked there, and no row is written if they break a rule. A call that does not wait can be captured
in a graph; one that would is refused there, and the capture goes on.

Raises ContractError (a broken rule, named in .rule) or UnsupportedError before any output byte changes. The GIL is released.)";

constexpr const char* kAttendStatusDoc =
    R"(What became of the last attend() with these arguments on a GPU, and of calls before it with this workspace that nobody has asked
about (other layers, earlier replays of a graph); waits for its stream.

Raises ContractError if lengths or tables break a rule (the words of check()), ArgumentError if they exceed what the plan was made for;
in both cases no row was written. An earlier call that was refused is a ContractError without words of its own: its tables have changed
since. It is told once. rows receives the counts. On a CPU attend() has said it all.)";

constexpr const char* kAppendDoc = R"(Writes key/value row t into slot slot_mapping[t] of the cache, for every t with a slot >= 0.

    stored = convert(row / scale)      round to nearest even; fp8 and int8 saturate, NaN stays NaN (int8: 0)
    scale = max(max |row| / L, 2^-126)      found and stored for each token and KV head if k_scale, v_scale have three axes (KVCache)

key, value: [num_tokens, num_kv_heads, head_dim], value [.., v_head_dim], f32, f16 or bf16, both of one dtype, any strides. slot_mapping: [n] int32 or int64,
n <= num_tokens. With a ledger every written slot is recorded for request_ids[t], positions[t] (each [n], both >= 0). These three may be
lists. dtype: type of raw uint16 key and value.

On a GPU the call enqueues on stream and returns: slots outside the cache are skipped, unless there is a ledger; then they raise.

Raises ContractError before the first write (slot out of range or written twice, shapes that disagree), ArgumentError for
read-only caches. The GIL is released.)";

constexpr const char* kMergeDoc =
    R"(Combines two partial results over disjoint key sets, exactly on empty sides (lse = -inf); returns (out, lse).

    lse = log(exp(lse_a) + exp(lse_b))
    out = out_a * exp(lse_a - lse) + out_b * exp(lse_b - lse)

out_*: [num_tokens, num_q_heads, v_head_dim] f32, f16 or bf16; lse_*: [num_tokens, num_q_heads] f32, natural log; any strides. out may
be out_a or out_b. None allocates. +inf in an lse is an error.)";

constexpr const char* kMergeManyDoc =
    R"(Combines a stack of partial results over disjoint key sets in one pass, in the order of the first axis; returns (out, lse).

    lse = log(sum_i exp(lses[i]))
    out = sum_i outs[i] * exp(lses[i] - lse)          i = 0, 1, ..., num_parts - 1

outs: [num_parts, num_tokens, num_q_heads, v_head_dim] f32, f16 or bf16; lses: [num_parts, num_tokens, num_q_heads] f32, natural log;
any strides. out may have another of these dtypes than outs; None allocates one of the dtype of outs. out and lse have memory of
their own. Equal parts in equal order give equal bits, so ranks that merge in rank order agree to the bit; two parts give the bits
of merge(). A part with lse = -inf is empty and not read. NaN or +inf in lses is an error (on a GPU, its row becomes NaN).)";

}  // namespace

void bind_attention(nb::module_& m) {
  m.def(
      "attend",
      [](const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan* plan, nb::handle workspace,
         std::optional<nb::dict> rows, nb::handle stream, bool nan_if_refused, nb::handle wait) {
        return attend(batch, cache, options, plan, {workspace, std::move(rows), stream, nan_if_refused, wait});
      },
      nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::arg("plan") = nb::none(),
      nb::arg("workspace") = nb::none(), nb::arg("rows") = nb::none(), nb::arg("stream") = nb::none(),
      nb::arg("nan_if_refused") = false, nb::arg("wait") = nb::none(),
      nb::sig("def attend(batch: Batch, cache: KVCache, options: Options | None = None, plan: Plan | None = None, "
              "workspace: typing.Any | None = None, rows: dict[str, int] | None = None, stream: typing.Any | None = None, "
              "nan_if_refused: bool = False, wait: bool | None = None) -> typing.Any"),
      kAttendDoc);
  m.def("attend_status", &attend_status, nb::arg("batch"), nb::arg("cache"), nb::arg("options").none(), nb::arg("plan"),
        nb::arg("workspace").none(), nb::arg("rows") = nb::none(), nb::arg("stream") = nb::none(),
        nb::sig("def attend_status(batch: Batch, cache: KVCache, options: Options | None, plan: Plan, workspace: typing.Any, "
                "rows: dict[str, int] | None = None, stream: typing.Any | None = None) -> None"),
        kAttendStatusDoc);
  m.def(
      "append",
      [](const PyCache& cache, nb::handle key, nb::handle value, nb::handle slots, PyLedger* ledger, nb::handle request_ids,
         nb::handle positions, const std::optional<std::string>& dtype, nb::handle stream) {
        append(cache, rows_given(key, value, slots, dtype.value_or(""), cache.k()), ledger, request_ids, positions, stream);
      },
      nb::arg("cache"), nb::arg("key").none(), nb::arg("value").none(), nb::arg("slot_mapping").none(),
      nb::arg("ledger") = nb::none(), nb::arg("request_ids") = nb::none(), nb::arg("positions") = nb::none(),
      nb::arg("dtype") = nb::none(), nb::arg("stream") = nb::none(),
      nb::sig("def append(cache: KVCache, key: typing.Any, value: typing.Any, slot_mapping: numpy.typing.ArrayLike, "
              "ledger: SlotLedger | None = None, request_ids: numpy.typing.ArrayLike | None = None, "
              "positions: numpy.typing.ArrayLike | None = None, dtype: str | None = None, "
              "stream: typing.Any | None = None) -> None"),
      kAppendDoc);
  m.def("append_arrays", &append_arrays, nb::arg("call"), nb::sig("def append_arrays(call: dict[str, typing.Any]) -> None"),
        "append() of arrays by name, without objects for them: for quire_vllm and quire.torch. Arguments: those of KVCache but "
        "for its "
        "dtypes, key, value, slot_mapping and cache_dtype.");
  m.def(
      "merge", &merge, nb::arg("out_a"), nb::arg("lse_a"), nb::arg("out_b"), nb::arg("lse_b"), nb::arg("out") = nb::none(),
      nb::arg("lse") = nb::none(), nb::arg("stream") = nb::none(), nb::arg("output_scale") = nb::none(),
      nb::sig(
          "def merge(out_a: typing.Any, lse_a: typing.Any, out_b: typing.Any, lse_b: typing.Any, out: typing.Any | None = None, "
          "lse: typing.Any | None = None, stream: typing.Any | None = None, output_scale: typing.Any | None = None) -> "
          "tuple[typing.Any, typing.Any]"),
      kMergeDoc);
  m.def(
      "merge_many", &merge_many, nb::arg("outs"), nb::arg("lses"), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(),
      nb::arg("stream") = nb::none(), nb::arg("output_scale") = nb::none(),
      nb::sig("def merge_many(outs: typing.Any, lses: typing.Any, out: typing.Any | None = None, lse: typing.Any | None = None, "
              "stream: typing.Any | None = None, output_scale: typing.Any | None = None) -> tuple[typing.Any, typing.Any]"),
      kMergeManyDoc);
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
