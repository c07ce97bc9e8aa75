// SPDX-License-Identifier: Apache-2.0
// Calls that are made ready once and run for each layer: BoundCall for the caller who keeps one, CallCache for quire_vllm and
// quire.torch, which find theirs by what was passed. No Python runs between the arguments and the launch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "deferred.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "types.hpp"
#include "without_gil.hpp"
#include "workspace.hpp"

namespace quire_python {
namespace {

using quire::BoundAttend;
using quire::Code;
using quire::Memory;
using quire::Plan;
using quire::Tensor;
using quire::batch::TensorField;

/// Arrays of one layer, and their views.
struct Layer : CallArrays {
  quire::Padding padding = quire::Padding::refused;

  quire::Batch batch_views() const {
    quire::Batch views;
    set_views(quire::batch::BatchPart{batch}, quire::batch::BatchPart{views});
    views.padding = padding;
    return views;
  }
  quire::KVCache cache_views(quire::CacheLayout layout) const {
    quire::KVCache views;
    set_views(quire::batch::CachePart{cache}, quire::batch::CachePart{views});
    views.layout = layout;
    return views;
  }
};

/// The arguments of BoundCall.__call__(), one for each tensor. A null handle or None stands for the tensor that was bound.
using GivenArrays = ForCall<nb::handle>;

/// The purpose of a tensor of a layer.
Role role_of(quire::batch::Kind kind) {
  using quire::batch::Kind;
  switch (kind) {
    case Kind::rows: return Role::rows;
    case Kind::cache: return Role::cache;
    case Kind::floats:
    case Kind::scale: return Role::f32;
    case Kind::index: return Role::index;
    case Kind::flags: return Role::flags;
    case Kind::block_scale: return Role::any;
  }
  return Role::any;
}

/// An output that the caller did not give: new memory like the query's, with V's head_dim.
ArrayRef new_output(const ArrayRef& query, const quire::KVCache& cache, nb::handle stream) {
  const nb::object array = new_rows(query, cache, stream);
  return import_array(array, "output", Access::write, std::string(quire::name(query.view.dtype)));
}

/// Part of attend() that a call does: all of it, the work that the layers of a step share, or the work of one layer.
enum class Part { call, preparation, layer };

/// Runs a bound call where its tensors are; `waits` names the argument that asks for waiting.
struct Run {
  std::shared_ptr<const BoundAttend> bound;
  const ArrayRef* workspace;  ///< null: memory of this thread, or of the query's library
  nb::handle stream;
  nb::handle wait;
  bool remember = true;  ///< the small arrays, until it is known that the call was sound
  Part part = Part::call;
  quire::Status operator()(const quire::Batch& b, const quire::KVCache& c, const quire::Options& o, std::span<std::byte> bytes,
                           quire::AttendOptions options) const {
    options.prepared = part == Part::layer;
    return part == Part::preparation ? bound->prepare(b, c, o, bytes, options) : bound->run(b, c, o, bytes, options);
  }
};

void run_on_host(const Run& how, const quire::Batch& b, const quire::KVCache& c, const quire::Options& o) {
  const Threads threads = current_threads();
  // Arrays are counted references, which nobody may copy without the GIL.
  const std::span<std::byte> bytes = how.workspace != nullptr ? bytes_of(*how.workspace) : host_workspace(how.bound->plan(), {});
  quire::Status status;
  {
    status = without_gil([&] { return how(b, c, o, bytes, {.executor = threads.executor.get()}); });
  }
  require_ok(status);
}

void run(const Run& how, const Layer& layer, const quire::KVCache& c, const quire::Options& o) {
  const BoundAttend& bound = *how.bound;
  const quire::Batch b = layer.batch_views();
  const Memory memory = b.query.memory;
  if (memory == Memory::cpu) {
    wait_of(how.wait, Wait::no, "wait", memory, nullptr);
    run_on_host(how, b, c, o);
    return;
  }
  check_one_gpu(layer);
  quire::AttendOptions options{.stream = stream_for(how.stream, layer.batch.query)};
  const Wait wait = wait_of(how.wait, Wait::no, "wait", memory, options.stream);
  raise_if_broken(memory, options.stream);
  DeviceWorkspace own;
  if (how.workspace == nullptr)
    own = device_workspace(layer.batch.query, quire::workspace_bytes(bound.plan()), nb::none(), how.stream);
  const std::span<std::byte> bytes = how.workspace != nullptr ? bytes_of(*how.workspace) : own.bytes;
  // The preparation has said what a layer's lengths and tables break.
  if (wait == Wait::no && how.part == Part::layer)
    options.ticket = kTicketOfLayers;
  else if (wait == Wait::no)
    options.ticket = how.remember ? defer(b, c, o, std::shared_ptr<const Plan>(how.bound, &bound.plan()), layer) : defer_untold();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = how(b, c, o, bytes, options);
    const auto ask = [&] { return quire::attend_status(bound.plan(), b, c, o, bytes, options); };
    if (status.ok() && wait == Wait::yes) status = how.workspace == nullptr ? status_in_new_workspace(ask) : ask();
  }
  require_ok(status);
}

class PyBoundCall {
 public:
  PyBoundCall(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan& plan, nb::handle workspace)
      : layer_{arrays_of(batch, cache, options), batch.views().padding}, layout_(cache.views().layout) {
    const BatchForCall call = batch.to_read(cache);
    if (!batch.output_given()) layer_.batch.output = {};
    options_ = options_or_default(options);
    held_ = nb::make_tuple(nb::find(batch), nb::find(cache));  // a scale that was a number lies in the cache
    check_one_gpu(layer_);
    bound_ = std::make_shared<const BoundAttend>(unwrap(BoundAttend::make(plan, call.views, cache.checked(), options_)));
    workspace_ = workspace.is_none() ? nb::none() : nb::borrow(workspace);
    if (workspace_.is_none() && layer_.batch.query.ordinal >= 0)
      workspace_ = arrays_function("empty_bytes_like")(layer_.batch.query.object, quire::workspace_bytes(plan), nb::none());
    if (workspace_.is_none()) return;
    place_ = import_workspace(workspace_);
    check_workspace(layer_.batch.query, place_);
  }

  nb::object call(const GivenArrays& given, nb::handle stream, nb::handle wait, bool prepared) const {
    if (prepared && !prepared_)
      throw_error(Code::invalid_argument, "prepared: True, but prepare() of this BoundCall was never called");
    check_still_there(place_, "workspace");
    Layer now = layer_;
    const auto replace = [&](const TensorField& f, nb::handle by, ArrayRef& array) {
      if (by.is_valid() && !by.is_none())
        array = import_array(by, f.member.data(), access_of(f), type_bound(f, array), role_of(f.kind));
      else
        check_still_there(array, f.member.data());
    };
    quire::batch::for_each_tensor(replace, given, now);
    if (now.batch.query.ordinal != layer_.batch.query.ordinal)
      throw_error(Code::invalid_argument, "query: lives on GPU " + std::to_string(now.batch.query.ordinal) + ", bound on GPU " +
                                              std::to_string(layer_.batch.query.ordinal));
    if (!now.batch.output) now.batch.output = new_output(now.batch.query, now.cache_views(layout_), stream);
    quire::Options o = options_;
    set_views(quire::batch::OptionsPart{std::as_const(now.options)}, quire::batch::OptionsPart{o});
    run({bound_, place_ ? &place_ : nullptr, stream, wait, true, prepared ? Part::layer : Part::call}, now,
        now.cache_views(layout_), o);
    return array_object(now.batch.output);
  }

  void prepare(nb::handle stream, nb::handle wait) {
    Layer first = layer_;
    // No output exists yet if each call makes its own. prepare() writes none, so any memory of the query's shape will do.
    if (!first.batch.output) first.batch.output = new_output(first.batch.query, first.cache_views(layout_), stream);
    check_still_there(place_, "workspace");
    const auto check = [](const TensorField& f, const ArrayRef& array) {
      if (f.of_step()) check_still_there(array, f.member.data());
    };
    quire::batch::for_each_tensor(check, layer_);
    run({bound_, place_ ? &place_ : nullptr, stream, wait, true, Part::preparation}, first, first.cache_views(layout_), options_);
    prepared_ = true;
  }

  const Plan& plan() const { return bound_->plan(); }
  nb::object workspace() const { return workspace_; }

 private:
  static Access access_of(const TensorField& f) {
    return f.access == quire::batch::Access::written ? Access::write : Access::read;
  }

  /// The type of what was bound, for arrays that hold raw bits. Rows that were not bound have the query's type.
  std::string type_bound(const TensorField& f, const ArrayRef& bound) const {
    if (role_of(f.kind) == Role::f32 || (!bound && f.kind != quire::batch::Kind::rows)) return {};
    return std::string(quire::name(bound ? bound.view.dtype : layer_.batch.query.view.dtype));
  }

  bool prepared_ = false;
  nb::object held_;
  Layer layer_;
  quire::CacheLayout layout_;
  quire::Options options_;
  std::shared_ptr<const BoundAttend> bound_;
  nb::object workspace_;
  ArrayRef place_;
};

/// Calls that were made before, the last one first. A plan for a GPU depends on shapes and bounds alone, so a call that differs
/// in addresses only has the same one. On a CPU it depends on lengths, and is made each time.
class CallCache {
 public:
  nb::object attend(const Layer& layer, quire::CacheLayout layout, const quire::Options& o, std::int64_t max_query_len,
                    std::int64_t max_seq_len, nb::handle stream, nb::handle wait, bool remember, const ArrayRef* workspace,
                    Part part) {
    const quire::Batch b = layer.batch_views();
    const quire::KVCache c = layer.cache_views(layout);
    run({find(layer.batch.query.ordinal, b, c, o, max_query_len, max_seq_len), workspace, stream, wait, remember, part}, layer, c,
        o);
    return array_object(layer.batch.output);
  }
  /// workspace_bytes() of the plan that attend() has for the same arguments.
  std::size_t workspace_bytes(const Layer& layer, quire::CacheLayout layout, const quire::Options& o, std::int64_t max_query_len,
                              std::int64_t max_seq_len) {
    return quire::workspace_bytes(
        find(layer.batch.query.ordinal, layer.batch_views(), layer.cache_views(layout), o, max_query_len, max_seq_len)->plan());
  }

 private:
  struct Known {
    std::int64_t max_query_len = 0, max_seq_len = 0;
    int ordinal = -1;
    std::shared_ptr<const BoundAttend> bound;
  };
  static constexpr std::size_t kKnown = 32;

  static std::shared_ptr<const BoundAttend> make(const quire::Batch& b, const quire::KVCache& c, const quire::Options& o,
                                                 std::int64_t max_query_len, std::int64_t max_seq_len) {
    Plan plan = unwrap(
        quire::plan(b, c, o, {.num_threads = threads_of_plan(0, b), .max_query_len = max_query_len, .max_seq_len = max_seq_len}));
    return std::make_shared<const BoundAttend>(unwrap(BoundAttend::make(std::move(plan), b, c, o)));
  }

  std::shared_ptr<const BoundAttend> find(int ordinal, const quire::Batch& b, const quire::KVCache& c, const quire::Options& o,
                                          std::int64_t max_query_len, std::int64_t max_seq_len) {
    if (b.query.memory == Memory::cpu) return make(b, c, o, max_query_len, max_seq_len);
    const auto same = [&](const Known& k) {
      return k.ordinal == ordinal && k.max_query_len == max_query_len && k.max_seq_len == max_seq_len &&
             k.bound->same_call(b, c, o);
    };
    const auto found = std::find_if(known_.begin(), known_.end(), same);
    if (found != known_.end()) {
      std::rotate(known_.begin(), found, found + 1);
      return known_.front().bound;
    }
    std::shared_ptr<const BoundAttend> made = make(b, c, o, max_query_len, max_seq_len);
    if (known_.size() == kKnown) known_.pop_back();
    known_.insert(known_.begin(), {max_query_len, max_seq_len, ordinal, made});
    return made;
  }

  std::vector<Known> known_;
};

/// Leaked, as what it holds is shared with calls that were deferred.
CallCache& call_cache() {
  static auto* const cache = new CallCache;
  return *cache;
}

std::int64_t bound_or_zero(const std::optional<std::int64_t>& bound, const char* name) {
  if (bound && *bound < 0)
    throw_error(Code::invalid_argument, std::string(name) + ": " + std::to_string(*bound) + ", expected at least 0");
  return bound.value_or(0);
}

/// Memory like seq_lens, on the current stream of its library where there is no other.
ArrayRef like_seq_lens(const ArrayRef& seq_lens, nb::handle stream) {
  ArrayRef made;
  made.view = Tensor::contiguous(nullptr, seq_lens.view.dtype, seq_lens.view.rank == 1 ? seq_lens.view.shape[0] : 0);
  const auto bytes = static_cast<std::size_t>(made.view.shape[0] * quire::itemsize(made.view.dtype));
  TorchBytes fresh;
  if (stream.is_none() && seq_lens.torch_data != nullptr) fresh = new_torch_bytes(seq_lens.view.memory, seq_lens.ordinal, bytes);
  if (!fresh)
    return import_array(arrays_function("empty_like")(seq_lens.object, stream), "cached_lens", Access::write, {}, Role::index);
  made.view.data = fresh.data();
  made.view.memory = seq_lens.view.memory;
  made.ordinal = seq_lens.ordinal;
  made.owner = nb::capsule(new TorchBytes(std::move(fresh)), [](void* p) noexcept { delete static_cast<TorchBytes*>(p); });
  return made;
}

/// cached_lens of derive_cached_lens(), beside the others.
ArrayRef derived_cached_lens(const BatchArrays& batch, nb::handle stream) {
  ArrayRef made = like_seq_lens(batch.seq_lens, stream);
  require_ok(
      quire::derive_cached_lens(batch.query_start_loc.view, batch.seq_lens.view, made.view, stream_for(stream, batch.query)));
  return made;
}

/// Part of attend() that attend_arrays() is asked for; nullopt: the caller asks for the bytes of a workspace.
std::optional<Part> part_named(const std::string& name, nb::handle workspace) {
  if (name == "workspace_bytes") return std::nullopt;
  const Part part = name == "preparation" ? Part::preparation : name == "layer" ? Part::layer : Part::call;
  if (part == Part::call && name != "call")
    throw_error(Code::invalid_argument, "part: \"" + name + "\" is none of call, preparation, layer, workspace_bytes");
  if (part != Part::call && workspace.is_none())
    throw_error(Code::invalid_argument, "workspace: None, expected the one that all layers of a prepared step have in common");
  return part;
}

/// attend() of arrays, without the objects: what quire_vllm and quire.torch call for each layer.
nb::object attend_arrays(nb::handle query, nb::handle output, nb::handle k, nb::handle v, nb::handle query_start_loc,
                         nb::handle seq_lens, nb::handle block_table, const std::string& layout, const std::string& cache_dtype,
                         nb::handle cached_lens, nb::handle key, nb::handle value, nb::handle lse, nb::handle k_scale,
                         nb::handle v_scale, std::optional<float> softmax_scale, std::optional<std::int64_t> sliding_window,
                         std::optional<float> logits_soft_cap, nb::handle alibi_slopes, nb::handle sinks,
                         const std::optional<std::string>& padding, std::optional<std::int64_t> max_query_len,
                         std::optional<std::int64_t> max_seq_len, nb::handle stream, nb::handle wait, bool remember,
                         nb::handle q_scale, nb::handle output_scale, nb::handle workspace, const std::string& part,
                         nb::handle causal, nb::handle q_begin, nb::handle key_begin, std::optional<std::int64_t> window_right,
                         nb::handle spans, nb::handle prefix_lens, nb::handle tree_mask, nb::handle tree_lens,
                         std::optional<std::int64_t> attention_chunk, std::optional<std::int64_t> prefix_len,
                         bool spans_beyond_window, nb::handle k_block_scale, nb::handle v_block_scale) {
  const std::optional<Part> asked = part_named(part, workspace);
  const quire::CacheLayout order = layout_named(layout);
  if (query.is_none()) throw_error(Code::invalid_argument, "query: is None");
  float scales[4];
  Layer now;
  now.batch.query = import_array(query, "query", Access::read, {}, Role::rows);
  now.batch.lse = import_array(lse, "lse", Access::write, {}, Role::f32);
  if (padding) now.padding = padding_named(*padding);
  now.batch.query_start_loc = import_index(query_start_loc, "query_start_loc", query);
  now.batch.seq_lens = import_index(seq_lens, "seq_lens", query);
  now.batch.block_table = import_index(block_table, "block_table", query);
  now.batch.cached_lens = nb::isinstance<nb::str>(cached_lens) ? derived_cached_lens(now.batch, stream)
                                                               : import_index(cached_lens, "cached_lens", query);
  now.batch.key = import_array(key, "key", Access::read, {}, Role::rows);
  now.batch.value = import_array(value, "value", Access::read, {}, Role::rows);
  now.cache.k = import_array(k, "k", Access::read, cache_dtype, Role::cache);
  now.cache.v = import_array(v, "v", Access::read, cache_dtype, Role::cache);
  now.batch.output = output.is_none() ? new_output(now.batch.query, now.cache_views(order), stream)
                                      : import_array(output, "output", Access::write, {}, Role::rows);
  now.cache.k_scale = import_scale(k_scale, "k_scale", now.cache.k, scales[0]);
  now.cache.v_scale = import_scale(v_scale, "v_scale", now.cache.k, scales[1]);
  now.cache.k_block_scale = import_block_scales(k_block_scale, "k_block_scale", now.cache.k.view.dtype);
  now.cache.v_block_scale = import_block_scales(v_block_scale, "v_block_scale", now.cache.v.view.dtype);
  now.batch.q_scale = import_scale(q_scale, "q_scale", now.batch.query, scales[2]);
  now.batch.output_scale = import_scale(output_scale, "output_scale", now.batch.query, scales[3]);
  now.options.alibi_slopes = import_array(alibi_slopes, "alibi_slopes", Access::read, {}, Role::f32);
  now.options.sinks = import_array(sinks, "sinks", Access::read, {}, Role::f32);
  const bool one_flag = PyBool_Check(causal.ptr()) != 0;
  if (!one_flag) now.batch.causal = import_flags(causal, "causal", query);
  now.batch.q_begin = import_index(q_begin, "q_begin", query);
  now.batch.key_begin = import_index(key_begin, "key_begin", query);
  now.batch.spans = import_index(spans, "spans", query);
  now.batch.prefix_lens = import_index(prefix_lens, "prefix_lens", query);
  now.batch.tree_mask = import_array(tree_mask, "tree_mask", Access::read, {}, Role::flags);
  now.batch.tree_lens = import_index(tree_lens, "tree_lens", query);
  const quire::Options o{.softmax_scale = softmax_scale,
                         .sliding_window = sliding_window,
                         .logits_soft_cap = logits_soft_cap,
                         .alibi_slopes = now.options.alibi_slopes.view,
                         .sinks = now.options.sinks.view,
                         .causal = !one_flag || causal.is(Py_True),
                         .window_right = window_right,
                         .attention_chunk = attention_chunk,
                         .prefix_len = prefix_len,
                         .spans_beyond_window = spans_beyond_window};
  const std::int64_t most_rows = bound_or_zero(max_query_len, "max_query_len");
  const std::int64_t most_keys = bound_or_zero(max_seq_len, "max_seq_len");
  if (!asked) return nb::int_(call_cache().workspace_bytes(now, order, o, most_rows, most_keys));
  const ArrayRef place = import_workspace(workspace);
  if (place) check_workspace(now.batch.query, place);
  return call_cache().attend(now, order, o, most_rows, most_keys, stream, wait, remember, place ? &place : nullptr, *asked);
}

static_assert(quire::batch::kNumTensors == 28, "attend_arrays() and BoundCall.__call__ name each tensor of a layer");

/// Refuses what nanobind would refuse in words of its own.
void check_call(const nb::kwargs& others, nb::handle prepared) {
  for (const auto& [name, value] : others) {
    const nb::object words = nb::module_::import_("quire._messages").attr("unknown_argument_of");
    const nb::object call = nb::type<PyBoundCall>().attr("__call__");
    throw_error(Code::invalid_argument, "BoundCall(): " + nb::cast<std::string>(words(call, name)));
  }
  if (PyBool_Check(prepared.ptr()) == 0)
    throw_error(Code::invalid_argument, "prepared: " + shown(prepared) + ", expected True or False");
}

constexpr const char* kBindDoc =
    R"(A call of attend() with all but addresses settled; made once per step, run for each layer (BoundCall).

    call = quire.bind(batch, cache, options, plan=plan)
    for q, k, v, out in layers: call(q, k, v, out)

On a GPU, layers that share lengths and tables are faster if those are read once:

    call.prepare()
    for q, k, v, out in layers: call(q, k, v, out, prepared=True)

batch, cache, options: of one layer; the others have the same shapes, strides and dtypes. plan: from plan() for this batch; None plans
now. workspace: as in attend(), used by every run; None takes one from the library of the query, on its current stream, for the life of
the BoundCall. Runs of one BoundCall are enqueued on one stream at a time.

Raises ContractError or UnsupportedError as attend() does, as far as no tensor on a GPU is read.)";

constexpr const char* kBoundDoc =
    R"(attend() with all but addresses settled; made by bind(). str(call.plan) says what it will run.)";

constexpr const char* kPrepareDoc =
    R"(Checks lengths and tables and makes work lists, once for the layers that follow with prepared=True.

May be captured in a CUDA graph with its layers, or called before each replay of a graph that holds the layers alone; then lengths and
tables hold what the layers are to see. Where they break a rule, no layer writes a row, and it is raised as wait says in a call. Any
number of layers. stream: that of the layers. On a CPU it raises what a call would raise, and does nothing else.

Raises as a call does.)";

constexpr const char* kCallDoc = R"(Attends one layer, and returns its output.

Arguments that are None are those of bind(); an output that neither gave is a new array. Arrays have the shapes, strides and dtypes of
bind(), and lie where those do. Lengths and tables are those of bind(); their values may change in place, within the plan's bounds.

    out = sum_k exp(s(k) - m) V_k / (sum_k exp(s(k) - m) + exp(sink_h - m))       over visible k, as attend()

wait: of calls on a GPU: True waits and raises what the device found; None and False enqueue and return, and the next call or
synchronize() raises it. stream: as in attend(). prepared: prepare() came before, and lengths and tables hold what they held then; the
layer only attends. A layer that was not prepared on the device (a graph whose preparation is not replayed, a workspace that another
call has used since) writes no row, and one that finds other lengths breaks: both are raised as above. No difference on a CPU.

Every promise of attend() holds: alignment and shared memory are looked at anew in each run, lengths and tables too (on a GPU by the
device, which writes no row if they break a rule).

Raises ArgumentError, naming the array, if a shape, stride, dtype or device is not that of bind(); ContractError for addresses
that break a rule (output that shares memory, say) before any output byte changes. The GIL is released.)";

}  // namespace

void bind_bound(nb::module_& m) {
  nb::class_<PyBoundCall>(m, "BoundCall", kBoundDoc)
      .def(
          "__call__",
          [](const PyBoundCall& self, nb::handle query, nb::handle k, nb::handle v, nb::handle output, nb::handle lse,
             nb::handle key, nb::handle value, nb::handle k_scale, nb::handle v_scale, nb::handle alibi_slopes, nb::handle sinks,
             nb::handle q_scale, nb::handle output_scale, nb::handle stream, nb::handle wait, nb::handle prepared,
             nb::handle k_block_scale, nb::handle v_block_scale, const nb::kwargs& others) {
            check_call(others, prepared);
            const GivenArrays given{.batch = {.query = query,
                                              .output = output,
                                              .key = key,
                                              .value = value,
                                              .lse = lse,
                                              .q_scale = q_scale,
                                              .output_scale = output_scale},
                                    .cache = {k, v, k_scale, v_scale, k_block_scale, v_block_scale},
                                    .options = {alibi_slopes, sinks}};
            return self.call(given, stream, wait, prepared.ptr() == Py_True);
          },
          nb::arg("query") = nb::none(), nb::arg("k") = nb::none(), nb::arg("v") = nb::none(), nb::arg("output") = nb::none(),
          nb::arg("lse") = nb::none(), nb::arg("key") = nb::none(), nb::arg("value") = nb::none(),
          nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
          nb::arg("sinks") = nb::none(), nb::kw_only(), nb::arg("q_scale") = nb::none(), nb::arg("output_scale") = nb::none(),
          nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(), nb::arg("prepared") = false,
          nb::arg("k_block_scale") = nb::none(), nb::arg("v_block_scale") = nb::none(), nb::arg("others"),
          nb::sig("def __call__(self, query: typing.Any | None = None, k: typing.Any | None = None, v: typing.Any | None = None, "
                  "output: typing.Any | None = None, lse: typing.Any | None = None, key: typing.Any | None = None, "
                  "value: typing.Any | None = None, k_scale: typing.Any | None = None, v_scale: typing.Any | None = None, "
                  "alibi_slopes: typing.Any | None = None, sinks: typing.Any | None = None, *, "
                  "q_scale: typing.Any | None = None, output_scale: typing.Any | None = None, "
                  "stream: typing.Any | None = None, wait: bool | None = None, prepared: bool = False, "
                  "k_block_scale: typing.Any | None = None, v_block_scale: typing.Any | None = None) -> typing.Any"),
          kCallDoc)
      .def("prepare", &PyBoundCall::prepare, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(),
           nb::sig("def prepare(self, *, stream: typing.Any | None = None, wait: bool | None = None) -> None"), kPrepareDoc)
      .def_prop_ro("plan", &PyBoundCall::plan, nb::rv_policy::reference_internal, "The plan that every run uses.")
      .def_prop_ro("workspace", &PyBoundCall::workspace, nb::sig("def workspace(self) -> typing.Any"),
                   "The memory that every run uses; None on a CPU, where each thread has its own.")
      .def("__repr__", [](const PyBoundCall& c) { return "<BoundCall " + quire::to_string(c.plan()) + ">"; });
  m.def(
      "bind",
      [](const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan* plan, nb::handle workspace) {
        if (plan != nullptr) return std::make_unique<PyBoundCall>(batch, cache, options, *plan, workspace);
        const BatchForCall call = batch.to_read(cache);
        const Plan made = unwrap(quire::plan(call.views, cache.checked(), options_or_default(options),
                                             {.num_threads = threads_of_plan(0, call.views)}));
        return std::make_unique<PyBoundCall>(batch, cache, options, made, workspace);
      },
      nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::arg("plan") = nb::none(),
      nb::arg("workspace") = nb::none(),
      nb::sig("def bind(batch: Batch, cache: KVCache, options: Options | None = None, plan: Plan | None = None, "
              "workspace: typing.Any | None = None) -> BoundCall"),
      kBindDoc);
  const auto none = nb::none();
  m.def(
      "attend_arrays", &attend_arrays, nb::arg("query"), nb::arg("output").none(), nb::arg("k"), nb::arg("v"),
      nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("block_table"), nb::arg("layout") = "nhd",
      nb::arg("cache_dtype") = "", nb::arg("cached_lens") = none, nb::arg("key") = none, nb::arg("value") = none,
      nb::arg("lse") = none, nb::arg("k_scale") = none, nb::arg("v_scale") = none, nb::arg("softmax_scale") = none,
      nb::arg("sliding_window") = none, nb::arg("logits_soft_cap") = none, nb::arg("alibi_slopes") = none,
      nb::arg("sinks") = none, nb::arg("padding") = none, nb::arg("max_query_len") = none, nb::arg("max_seq_len") = none,
      nb::arg("stream") = none, nb::arg("wait") = none, nb::arg("remember") = true, nb::arg("q_scale") = none,
      nb::arg("output_scale") = none, nb::arg("workspace") = none, nb::arg("part") = "call", nb::arg("causal") = true,
      nb::arg("q_begin") = none, nb::arg("key_begin") = none, nb::arg("window_right") = none, nb::arg("spans") = none,
      nb::arg("prefix_lens") = none, nb::arg("tree_mask") = none, nb::arg("tree_lens") = none, nb::arg("attention_chunk") = none,
      nb::arg("prefix_len") = none, nb::arg("spans_beyond_window") = false, nb::arg("k_block_scale") = none,
      nb::arg("v_block_scale") = none,
      nb::sig(
          "def attend_arrays(query: typing.Any, output: typing.Any, k: typing.Any, v: typing.Any, "
          "query_start_loc: typing.Any, seq_lens: typing.Any, block_table: typing.Any, layout: str = 'nhd', "
          "cache_dtype: str = '', cached_lens: typing.Any = None, key: typing.Any = None, value: typing.Any = None, "
          "lse: typing.Any = None, k_scale: typing.Any = None, v_scale: typing.Any = None, "
          "softmax_scale: float | None = None, sliding_window: int | None = None, logits_soft_cap: float | None = None, "
          "alibi_slopes: typing.Any = None, sinks: typing.Any = None, padding: str | None = None, max_query_len: int | "
          "None = None, "
          "max_seq_len: int | None = None, stream: typing.Any = None, wait: bool | None = None, remember: bool = True, "
          "q_scale: typing.Any = None, output_scale: typing.Any = None, workspace: typing.Any = None, part: str = 'call', "
          "causal: typing.Any = True, q_begin: typing.Any = None, key_begin: typing.Any = None, window_right: int | None = None, "
          "spans: typing.Any = None, prefix_lens: typing.Any = None, tree_mask: typing.Any = None, tree_lens: typing.Any = None, "
          "attention_chunk: int | None = None, prefix_len: int | None = None, spans_beyond_window: bool = False, "
          "k_block_scale: typing.Any = None, v_block_scale: typing.Any = None) -> typing.Any"),
      "attend() of arrays, without objects for them: for quire_vllm and quire.torch. remember=False keeps no reference to "
      "them, and a call that broke is raised without the rule. cached_lens \"decode\", on a CUDA device: seq_len where "
      "query_len is 1, else seq_len - query_len. causal: one bool, or one flag a request.");
}

}  // namespace quire_python
