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

/// Arrays of one layer, and the call that they make.
struct Layer {
  CallArrays arrays;
  quire::Batch batch;
  quire::KVCache cache;
  quire::Options options;

  void set_output(ArrayRef output) {
    batch.output = output.view;
    arrays.batch.output = std::move(output);
  }
};

/// An output that the caller did not give: new memory like the query's, with V's head_dim.
ArrayRef new_output(const Layer& layer, nb::handle stream) {
  const nb::object array = new_rows(layer.arrays.batch.query, layer.cache, stream);
  return import_array(array, "output", Access::write, std::string(quire::name(layer.batch.query.dtype)));
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
  quire::Status operator()(const Layer& l, std::span<std::byte> bytes, quire::AttendOptions options) const {
    options.prepared = part == Part::layer;
    return part == Part::preparation ? bound->prepare(l.batch, l.cache, l.options, bytes, options)
                                     : bound->run(l.batch, l.cache, l.options, bytes, options);
  }
};

void run_on_host(const Run& how, const Layer& layer) {
  const Threads threads = current_threads();
  // Arrays are counted references, which nobody may copy without the GIL.
  const std::span<std::byte> bytes = how.workspace != nullptr ? bytes_of(*how.workspace) : host_workspace(how.bound->plan(), {});
  require_ok(without_gil([&] { return how(layer, bytes, {.executor = threads.executor.get()}); }));
}

void run(const Run& how, const Layer& layer) {
  const BoundAttend& bound = *how.bound;
  const ArrayRef& query = layer.arrays.batch.query;
  const Memory memory = query.view.memory;
  if (memory == Memory::cpu) {
    wait_of(how.wait, Wait::no, "wait", memory, nullptr);
    run_on_host(how, layer);
    return;
  }
  check_one_gpu(layer.arrays);
  quire::AttendOptions options{.stream = stream_for(how.stream, query)};
  const Wait wait = wait_of(how.wait, Wait::no, "wait", memory, options.stream);
  raise_if_broken(memory, options.stream);
  DeviceWorkspace own;
  if (how.workspace == nullptr) own = device_workspace(query, quire::workspace_bytes(bound.plan()), nb::none(), how.stream);
  const std::span<std::byte> bytes = how.workspace != nullptr ? bytes_of(*how.workspace) : own.bytes;
  // The preparation has said what a layer's lengths and tables break.
  if (wait == Wait::no && how.part == Part::layer)
    options.ticket = kTicketOfLayers;
  else if (wait == Wait::no)
    options.ticket = how.remember ? defer(layer.batch, layer.cache, layer.options,
                                          std::shared_ptr<const Plan>(how.bound, &bound.plan()), layer.arrays)
                                  : defer_untold();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = how(layer, bytes, options);
    const auto ask = [&] { return quire::attend_status(bound.plan(), layer.batch, layer.cache, layer.options, bytes, options); };
    if (status.ok() && wait == Wait::yes) status = how.workspace == nullptr ? status_in_new_workspace(ask) : ask();
  }
  require_ok(status);
}

class PyBoundCall {
 public:
  PyBoundCall(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan& plan, nb::handle workspace)
      : layer_{arrays_of(batch, cache, options), batch.views(), cache.checked(), options_or_default(options)} {
    const BatchForCall call = batch.to_read(cache);
    if (!batch.output_given()) layer_.set_output({});
    held_ = nb::make_tuple(nb::find(batch), nb::find(cache));  // a scale that was a number lies in the cache
    check_one_gpu(layer_.arrays);
    bound_ = std::make_shared<const BoundAttend>(unwrap(BoundAttend::make(plan, call.views, layer_.cache, layer_.options)));
    workspace_ = workspace.is_none() ? nb::none() : nb::borrow(workspace);
    const ArrayRef& query = layer_.arrays.batch.query;
    if (workspace_.is_none() && query.ordinal >= 0)
      workspace_ = arrays_function("empty_bytes_like")(query.object, quire::workspace_bytes(plan), nb::none());
    if (workspace_.is_none()) return;
    place_ = import_workspace(workspace_);
    check_workspace(query, place_);
  }

  nb::object call(const Arguments& given) const {
    const bool prepared = given.flag("prepared", false);
    const nb::object stream = given.get("stream"), wait = given.get("wait");
    if (prepared && !prepared_)
      throw_error(Code::invalid_argument, "prepared: True, but prepare() of this BoundCall was never called");
    check_still_there(place_, "workspace");
    Layer now = layer_;
    const auto replace = [&](const TensorField& f, nb::handle by, ArrayRef& array, Tensor& view) {
      if (by.is_none()) return check_still_there(array, f.member.data());
      array = import_array(by, f.member.data(), access_of(f), type_bound(f, array), role_of(f.kind));
      view = array.view;
    };
    quire::batch::for_each_tensor(replace, tensors_given(given), now.arrays, now);
    const int ordinal = now.arrays.batch.query.ordinal, bound = layer_.arrays.batch.query.ordinal;
    if (ordinal != bound)
      throw_error(Code::invalid_argument,
                  "query: lives on GPU " + std::to_string(ordinal) + ", bound on GPU " + std::to_string(bound));
    if (!now.arrays.batch.output) now.set_output(new_output(now, stream));
    run({bound_, place_ ? &place_ : nullptr, stream, wait, true, prepared ? Part::layer : Part::call}, now);
    return array_object(now.arrays.batch.output);
  }

  void prepare(nb::handle stream, nb::handle wait) {
    Layer first = layer_;
    // No output exists yet if each call makes its own. prepare() writes none, so any memory of the query's shape will do.
    if (!first.arrays.batch.output) first.set_output(new_output(first, stream));
    check_still_there(place_, "workspace");
    const auto check = [](const TensorField& f, const ArrayRef& array) {
      if (f.of_step()) check_still_there(array, f.member.data());
    };
    quire::batch::for_each_tensor(check, layer_.arrays);
    run({bound_, place_ ? &place_ : nullptr, stream, wait, true, Part::preparation}, first);
    prepared_ = true;
  }

  const Plan& plan() const { return bound_->plan(); }
  nb::object workspace() const { return workspace_; }

 private:
  /// The type of what was bound, for arrays that hold raw bits. Rows that were not bound have the query's type.
  std::string type_bound(const TensorField& f, const ArrayRef& bound) const {
    if (role_of(f.kind) == Role::f32 || (!bound && f.kind != quire::batch::Kind::rows)) return {};
    return std::string(quire::name(bound ? bound.view.dtype : layer_.batch.query.dtype));
  }

  bool prepared_ = false;
  nb::object held_;
  Layer layer_;
  std::shared_ptr<const BoundAttend> bound_;
  nb::object workspace_;
  ArrayRef place_;
};

/// The longest that a caller lets requests be; 0: it did not say.
struct Bounds {
  std::int64_t query_len = 0, seq_len = 0;
  bool operator==(const Bounds&) const = default;
};

/// Calls that were made before, the last one first. A plan for a GPU depends on shapes and bounds alone, so a call that differs
/// in addresses only has the same one. On a CPU it depends on lengths, and is made each time.
class CallCache {
 public:
  std::shared_ptr<const BoundAttend> find(const Layer& layer, const Bounds& bounds) {
    if (layer.batch.query.memory == Memory::cpu) return make(layer, bounds);
    const int ordinal = layer.arrays.batch.query.ordinal;
    const auto same = [&](const Known& k) {
      return k.ordinal == ordinal && k.bounds == bounds && k.bound->same_call(layer.batch, layer.cache, layer.options);
    };
    const auto found = std::find_if(known_.begin(), known_.end(), same);
    if (found != known_.end()) {
      std::rotate(known_.begin(), found, found + 1);
      return known_.front().bound;
    }
    std::shared_ptr<const BoundAttend> made = make(layer, bounds);
    if (known_.size() == kKnown) known_.pop_back();
    known_.insert(known_.begin(), {bounds, ordinal, made});
    return made;
  }

 private:
  struct Known {
    Bounds bounds;
    int ordinal = -1;
    std::shared_ptr<const BoundAttend> bound;
  };
  static constexpr std::size_t kKnown = 32;

  static std::shared_ptr<const BoundAttend> make(const Layer& l, const Bounds& bounds) {
    Plan plan = unwrap(quire::plan(
        l.batch, l.cache, l.options,
        {.num_threads = threads_of_plan(0, l.batch), .max_query_len = bounds.query_len, .max_seq_len = bounds.seq_len}));
    return std::make_shared<const BoundAttend>(unwrap(BoundAttend::make(std::move(plan), l.batch, l.cache, l.options)));
  }

  std::vector<Known> known_;
};

/// Leaked, as what it holds is shared with calls that were deferred.
CallCache& call_cache() {
  static auto* const cache = new CallCache;
  return *cache;
}

std::int64_t bound_or_zero(const Arguments& given, const char* name) {
  const std::optional<std::int64_t> bound = given.integer(name);
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

/// Arguments of attend_arrays().
const Signature& signature_of_arrays() {
  static const auto& signature = *new Signature("attend_arrays", {},
                                                arguments_of_call({{"cache_dtype", "str = ''"},
                                                                   {"max_query_len", "int | None = None"},
                                                                   {"max_seq_len", "int | None = None"},
                                                                   {"workspace", "typing.Any | None = None"},
                                                                   {"stream", "typing.Any | None = None"},
                                                                   {"wait", "bool | None = None"},
                                                                   {"remember", "bool = True"},
                                                                   {"part", "str = 'call'"}}));
  return signature;
}

/// The layer that was given. `numbers` holds scales that are Python numbers.
Layer layer_given(const Arguments& given, nb::handle stream, Numbers& of_batch, Numbers& of_cache) {
  ForCall<nb::handle> tensors = tensors_given(given);
  if (tensors.batch.query.is_none()) throw_error(Code::invalid_argument, "query: is None");
  const bool derived = nb::isinstance<nb::str>(tensors.batch.cached_lens);
  if (derived) tensors.batch.cached_lens = nb::handle(Py_None);
  const std::string dtype = given.text("cache_dtype", "");
  Layer layer{.arrays = {import_batch(tensors.batch, {}, of_batch), import_cache(tensors.cache, dtype, dtype, of_cache),
                         import_options(tensors.options)}};
  if (derived) layer.arrays.batch.cached_lens = derived_cached_lens(layer.arrays.batch, stream);
  set_views(layer.arrays, layer);
  read_choices(given, layer);
  if (!layer.arrays.batch.output) layer.set_output(new_output(layer, stream));
  return layer;
}

/// attend() of arrays, without the objects: what quire_vllm and quire.torch call for each layer.
nb::object attend_arrays(const nb::dict& call) {
  const Arguments given(signature_of_arrays(), call);
  const nb::object workspace = given.get("workspace"), stream = given.get("stream"), wait = given.get("wait");
  const std::optional<Part> asked = part_named(given.text("part", "call"), workspace);
  Numbers of_batch, of_cache;
  const Layer layer = layer_given(given, stream, of_batch, of_cache);
  const Bounds bounds{bound_or_zero(given, "max_query_len"), bound_or_zero(given, "max_seq_len")};
  if (!asked) return nb::int_(quire::workspace_bytes(call_cache().find(layer, bounds)->plan()));
  const ArrayRef place = import_workspace(workspace);
  if (place) check_workspace(layer.arrays.batch.query, place);
  run({call_cache().find(layer, bounds), place ? &place : nullptr, stream, wait, given.flag("remember", true), *asked}, layer);
  return array_object(layer.arrays.batch.output);
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

/// Arguments of BoundCall.__call__().
const Signature& signature_of_call() {
  static const auto& signature = *new Signature(
      "BoundCall", {"query", "k", "v", "output", "lse", "key", "value", "k_scale", "v_scale", "alibi_slopes", "sinks"},
      arguments_of_layer({{"stream", "typing.Any | None = None"}, {"wait", "bool | None = None"}, {"prepared", "bool = False"}}));
  return signature;
}

void bind_call(nb::module_& m) {
  nb::class_<PyBoundCall>(m, "BoundCall", kBoundDoc)
      .def(
          "__call__",
          [](const PyBoundCall& self, const nb::args& args, const nb::kwargs& named) {
            return self.call(Arguments(signature_of_call(), args, named));
          },
          nb::sig(signature_of_call().text("__call__", "typing.Any").c_str()), kCallDoc)
      .def("prepare", &PyBoundCall::prepare, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("wait") = nb::none(),
           nb::sig("def prepare(self, *, stream: typing.Any | None = None, wait: bool | None = None) -> None"), kPrepareDoc)
      .def_prop_ro("plan", &PyBoundCall::plan, nb::rv_policy::reference_internal, "The plan that every run uses.")
      .def_prop_ro("workspace", &PyBoundCall::workspace, nb::sig("def workspace(self) -> typing.Any"),
                   "The memory that every run uses; None on a CPU, where each thread has its own.")
      .def("__repr__", [](const PyBoundCall& c) { return "<BoundCall " + quire::to_string(c.plan()) + ">"; });
}

std::unique_ptr<PyBoundCall> bind(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const Plan* plan,
                                  nb::handle workspace) {
  if (plan != nullptr) return std::make_unique<PyBoundCall>(batch, cache, options, *plan, workspace);
  const BatchForCall call = batch.to_read(cache);
  const Plan made = unwrap(
      quire::plan(call.views, cache.checked(), options_or_default(options), {.num_threads = threads_of_plan(0, call.views)}));
  return std::make_unique<PyBoundCall>(batch, cache, options, made, workspace);
}

}  // namespace

void bind_bound(nb::module_& m) {
  bind_call(m);
  m.def("bind", &bind, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::arg("plan") = nb::none(),
        nb::arg("workspace") = nb::none(),
        nb::sig("def bind(batch: Batch, cache: KVCache, options: Options | None = None, plan: Plan | None = None, "
                "workspace: typing.Any | None = None) -> BoundCall"),
        kBindDoc);
  m.def("attend_arrays", &attend_arrays, nb::arg("call"), nb::sig("def attend_arrays(call: dict[str, typing.Any]) -> typing.Any"),
        "attend() of arrays by name, without objects for them: for quire_vllm and quire.torch. Arguments: those of fields(), "
        "cache_dtype, max_query_len, max_seq_len, stream, wait, workspace, part, and remember: False keeps no reference to the "
        "arrays, "
        "and a call that broke is raised without the rule. cached_lens \"decode\", on a CUDA device: seq_len where query_len is "
        "1, else "
        "seq_len - query_len.");
}

}  // namespace quire_python
