// SPDX-License-Identifier: Apache-2.0
// Batch, KVCache and Options: arrays in, views kept, defaults made explicit.
#include "types.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <map>
#include <utility>

#include "deferred.hpp"
#include "errors.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Tensor;

using quire::batch::BatchPart;
using quire::batch::CachePart;
using quire::batch::for_each_choice;
using quire::batch::for_each_tensor;
using quire::batch::Kind;
using quire::batch::OptionsPart;
using quire::batch::TensorField;

/// Raises if an array of these parts is on another GPU than `first`.
template <typename Arrays>
void check_all_with(const ArrayRef& first, const char* first_name, const Arrays& arrays) {
  const auto check = [&](const TensorField& f, const ArrayRef& array) {
    check_same_gpu(first, first_name, array, f.member.data());
  };
  for_each_tensor(check, arrays);
}

template <typename Number>
std::string text_of(const std::optional<Number>& choice) {
  return std::to_string(*choice);
}
std::string text_of(bool choice) { return choice ? "True" : "False"; }
std::string text_of(quire::Padding choice) { return "\"" + std::string(quire::name(choice)) + "\""; }

/// "Options(causal=False)": what was given, in the order of the arguments.
template <typename Part>
std::string describe(const Signature& of, const Part& part, const Part& otherwise) {
  std::map<std::string_view, std::string> texts;
  const auto add = [&](const TensorField& f, const Tensor& t) {
    if (t.present()) texts[f.member] = quire::to_string(t);
  };
  for_each_tensor(add, part);
  const auto add_choice = [&](std::string_view name, const auto& choice, const auto& usual) {
    if (choice != usual) texts[name] = text_of(choice);
  };
  for_each_choice(add_choice, part, otherwise);
  std::string text;
  for (const Argument& a : of.arguments())
    if (const auto found = texts.find(a.name); found != texts.end())
      text += (text.empty() ? "" : ", ") + a.name + "=" + found->second;
  return std::string(of.call()) + "(" + text + ")";
}

/// Padding as a Python object: its name, or None for padding that is refused.
nb::object padding_object(quire::Padding padding) {
  if (padding == quire::Padding::refused) return nb::none();
  return nb::cast(std::string(quire::name(padding)));
}

std::string describe(const PyCache& cache) {
  std::string text = "KVCache(";
  const auto add = [&](const TensorField& f, const ArrayRef& array) {
    if (array) text += std::string(f.member) + "=" + quire::to_string(array.view) + ", ";
  };
  for_each_tensor(add, CachePart{cache.arrays()});
  return text + "layout=" + std::string(quire::name(cache.views().layout)) + ")";
}

constexpr const char* kBatchDoc =
    R"(One step's batch: ragged prefill and decode requests over a paged cache. Arrays are viewed, never copied.

Lengths, by equation::

    query_len(r)   = query_start_loc[r + 1] - query_start_loc[r]      0 is legal and writes nothing
    context_len(r) = seq_lens[r] - query_len(r)
    key_pos(r, j)  = key_begin[r] + j                                 for key j of request r, 0 <= j < seq_lens[r]
    q_pos(r, i)    = q_begin[r] + i                                   for row i of request r
    key_begin None = 0; q_begin None = key_begin[r] + context_len(r): rows stand at the end of their keys
    a key at position k is visible to a row at position q  iff (each condition, if its argument is given)
      ordered  k <= q if the request is causal, else k <= q + window_right      or  k and q lie in one span of r
    and
      near     q - k < sliding_window  and  k // attention_chunk == q // attention_chunk
               or  k < prefix_lens[r]      or  k and q lie in one span of r and spans_beyond_window
    except the last tree_lens[r] keys of r: of them, a row sees those whose bit is set in its row of tree_mask, and no other
    query head h reads KV head h // (num_q_heads // num_kv_heads)

Arguments:
    query: [num_tokens, num_q_heads, head_dim] f32, f16, bf16 or fp8_e4m3fn; rows of all requests back to back. fp8_e4m3fn needs a
        cache of that type that holds every token, and an output of the caller's.
    query_start_loc: [num_reqs + 1] int32 or int64; request r owns rows [qsl[r], qsl[r+1]). Index tensors may be lists, which are
        copied.
    seq_lens: [num_reqs]; keys of r: its tokens up to and including its last query row. Fewer than query_len, and 0, if r is not
        causal or q_begin is given; a row that sees no key gives 0 and lse -inf.
    block_table: [num_reqs, max_pages_per_req] page ids; an entry is read if some row sees a cached key of its page.
    output: [num_tokens, num_q_heads, v_head_dim] of the query's dtype or f32, or fp8_e4m3fn with output_scale, written and returned by attend(); under an fp8_e4m3fn query also f32, f16
        or bf16. None: every call returns a new array, of the library and on the device
        of the query, and batch.output stays None; no two results share memory.
    cached_lens: [num_reqs]; leading tokens of r that the cache holds, context_len <= cached_len <= seq_len; None = seq_lens.
    key, value: [num_tokens, num_kv_heads, head_dim], value [.., v_head_dim]; this step's new rows, read for positions [cached_len,
        seq_len).
    slot_mapping: [num_tokens] int64; slot of each new token, negative = skip; for check() and append().
    lse: [num_tokens, num_q_heads] f32, written; natural log; -inf for a row with no visible key.
    request_ids: [num_reqs]; stable ids that the slot ledger knows; None = 0 .. num_reqs-1.
    padding: "left" or "zero" if query may have more rows than query_start_loc's last value, as batches padded for a graph have. Such
        padding rows are never read. "left": their output and lse stay as they are (a new output holds what its memory held). "zero":
        output 0 and lse -inf. None: rows behind the last start break rule Q-T04.
    q_scale: a number, or f32 [1] or [num_kv_heads], of an fp8_e4m3fn query; real value = stored value * scale; None = 1.
    output_scale: a number or f32 [1], of an fp8_e4m3fn output; stored = round to nearest even of real value / scale, +-448 beyond,
        NaN stays NaN.
    causal: [num_reqs] bool or uint8; False: the rows of r see later keys, too (encoders, cross attention, draft blocks). None: as
        Options(causal=...) says, for all requests.
    q_begin: [num_reqs]; position of r's first row, >= 0. Rows may stand anywhere beside their keys (a shard of a context), but those
        whose keys come from key at the end of them. None: at the end.
    key_begin: [num_reqs]; position of r's first key, >= 0: its shard of a context begins there, or its cache lost its head.
        block_table and cached_lens count from this key. None = 0.
    spans: [num_reqs, max_spans, 2]; positions [begin, end) whose rows see each other's keys, also later ones: images in a causal
        prompt, the prefix of a prefix LM. Ascending and disjoint; entries behind the last span of r are empty (begin == end).
    prefix_lens: [num_reqs]; keys at positions below prefix_lens[r] are hidden by no window and no chunk: StreamingLLM's first
        tokens, the prompt where only generated tokens have a window. None: as Options(prefix_len=...) says, for all requests.
    tree_mask: [num_tokens, 1 to 32] uint8; bit b (bit b % 8 of byte b // 8) says whether the row sees key seq_len - tree_lens[r] + b:
        a tree of draft tokens. numpy.packbits(mask, axis=1, bitorder="little") makes it from [num_tokens, tree_len] bools.
    tree_lens: [num_reqs]; last keys of r that tree_mask speaks of, 0 to 256; 0: r has no tree. Comes with tree_mask.
    dtype: element type ("bf16", "f16", or NumPy's or torch's own) if query, output, key and value are raw uint16.

Raises:
    ArgumentError: not an array, a dtype Quire does not know, a read-only output.
    UnsupportedError: an array in memory that this build does not compute in.

All arrays of a call live in one memory: the host's, or that of one GPU.

Shapes and values are judged by check(), plan() and attend().)";

constexpr const char* kCacheDoc = R"(A view of one layer's paged KV cache. A slot is page * page_size + offset.

Arguments:
    k, v: arrays of f32, f16, bf16, an fp8 type or int8, each of its own type, shaped by layout (in any case); any strides; may interleave in one allocation.
        "nhd"     [num_pages, page_size, num_kv_heads, head_dim]
        "hnd"     [num_pages, num_kv_heads, page_size, head_dim]
        "packed"  k [num_pages, num_kv_heads, head_dim / x, page_size, x], v [num_pages, num_kv_heads, head_dim, page_size],
                  x = 16 / itemsize (vLLM's layout)
        The head_dim of v, v_head_dim, is its own: values and output have it. v may be a view of k's memory, as the first dims of a
        latent row (MLA); append() refuses that.
    k_scale, v_scale: a number, a list of them, or f32 [1] or [num_kv_heads]; real value = stored value * scale; None = 1 (int8 has no None).
        A cache of 8 bits may have a scale for each token and KV head: f32 [num_pages, page_size, num_kv_heads], whatever the layout, any
        strides. append() writes it: scale = max(max |row| / L, 2^-126), L = 127 (int8), 448, 240 or 57344, the largest code of the type.
    dtype: element type of raw uint8 / uint16 arrays: "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz", "bf16", "f16", "i8",
        "nvfp4", "mxfp4" (two 4-bit codes in a byte: [..., head_dim / 2], the even dim in the low bits; "nhd" and "hnd" alone); NumPy's and torch's names and dtype objects do, too.
        "fp8_ds_mla": k and v are one array of bytes, rows of 656 (quire.mla.cache).
    v_dtype: the same for v, if it has a type of its own; None = dtype.
    k_block_scale, v_block_scale: of nvfp4 (float8_e4m3fn, or its bytes, one for 16 dims) and mxfp4 (float8_e8m0fnu, or its bytes, one
        for 32): [num_pages, page_size, num_kv_heads, head_dim / block], whatever the layout, any strides. append() writes them.
        Real value = code * block scale * k_scale.

Read-only arrays are fine for attention; append() refuses them.

Raises ArgumentError and UnsupportedError as Batch does.)";

constexpr const char* kOptionsDoc = R"(Score options, the same for every request::

    s  = softmax_scale * dot(q, K_k)              softmax_scale: None = 1 / sqrt(head_dim)
    s  = cap * tanh(s / cap)                      logits_soft_cap > 0
    s += slope_h * (k - q_pos)                    alibi_slopes [num_q_heads] f32, any sign
    out = sum_k exp(s - m) V_k / (sum_k exp(s - m) + exp(sink_h - m))      sinks [num_q_heads] f32

alibi_slopes and sinks may be lists of numbers, which become arrays in host memory.
sliding_window counts the keys visible to a query up to its own, which is included (>= 1; 1 = the own key alone); None = all.
causal=False lets the rows of all requests see later keys; Batch(causal=...) says it request by request. window_right counts the later
keys visible to a query of a request that is not causal (>= 0); None = all. FlashAttention's window_size is (sliding_window - 1,
window_right). attention_chunk: rows see keys of their own chunk of so many tokens alone (>= 1; Llama 4); None = no chunks.
prefix_len: Batch(prefix_lens=...) of all requests (>= 0). spans_beyond_window=True: neither window nor chunk hides keys of a row's own
span, as in vLLM.)";

void bind_batch(nb::module_& m) {
  const auto get = [](ArrayRef BatchArrays::* member) {
    return [member](const PyBatch& batch) { return array_object(batch.arrays().*member); };
  };
  nb::class_<PyBatch> type(m, "Batch", kBatchDoc);
  const Signature& signature = def_init(type, {"Batch", {}, arguments_of("Batch", {{"dtype", "typing.Any | None = None"}})});
  type
#define QUIRE_BATCH_TENSOR(member, ...) \
  .def_prop_ro(#member, get(&BatchArrays::member), nb::sig("def " #member "(self) -> typing.Any"))
#include "batch/fields.inc"
      .def_prop_ro(
          "dtype", [](const PyBatch& batch) { return std::string(quire::name(batch.views().query.dtype)); },
          "Element type of query, key and value: \"f32\", \"f16\", \"bf16\" or \"fp8_e4m3fn\".")
      .def_prop_ro(
          "padding", [](const PyBatch& batch) { return padding_object(batch.views().padding); },
          nb::sig("def padding(self) -> typing.Literal['left', 'zero'] | None"),
          "What becomes of padding rows: \"left\", \"zero\", or None if there are none.")
      .def("__repr__", [&signature](const PyBatch& batch) {
        const quire::Batch usual;
        return describe(signature, BatchPart{batch.views()}, BatchPart{usual});
      });
}

}  // namespace

PyBatch::PyBatch(const Arguments& given) {
  const std::string dtype = given.dtype("dtype").value_or("");
  const nb::object query = given.required("query");
  if (query.is_none()) throw_error(Code::invalid_argument, "query: is None");
  const auto require = [&](const TensorField& f, const Tensor&) {
    if (f.presence == quire::batch::Presence::required) given.required(f.member.data());
  };
  for_each_tensor(require, BatchPart{views_});
  output_given_ = !given.get("output").is_none();
  arrays_ = import_batch(tensors_given(given).batch, dtype, numbers_);
  check_all_with(arrays_.query, "query", BatchPart{arrays_});
  set(given);
}

nb::object new_rows(const ArrayRef& query, const quire::KVCache& cache, nb::handle stream) {
  const nb::object like = array_object(query);
  if (query.view.rank != 3 || cache.v.rank != 4 || quire::v_head_dim(cache) == query.view.shape[2])
    return arrays_function("empty_like")(like, stream);
  return arrays_function("empty_like")(like, stream, quire::v_head_dim(cache));
}

BatchForCall PyBatch::with_new_output(const PyCache& cache, nb::handle stream) const {
  BatchForCall made{.views = checked(), .output = {}};
  const ArrayRef& like = arrays_.output ? arrays_.output : arrays_.query;  // a case has an output, which is not written here
  if (!arrays_.output && (is_fp8(views_.query.dtype) || views_.output_scale.present()))
    throw_error(Code::invalid_argument,
                "output: None, expected an array: with an fp8 query or output_scale its type is the caller's to say");
  const nb::object array =
      arrays_.output ? arrays_function("empty_like")(array_object(like), stream) : new_rows(arrays_.query, cache.views(), stream);
  made.output = import_array(array, "output", Access::write, std::string(quire::name(like.view.dtype)));
  made.views.output = made.output.view;
  return made;
}

BatchForCall PyBatch::to_read(const PyCache& cache) const {
  if (!views_.output.present()) return with_new_output(cache);
  return {.views = checked(), .output = arrays_.output};
}

BatchForCall PyBatch::to_write(const PyCache& cache, nb::handle stream) const {
  if (!output_given_) return with_new_output(cache, stream);
  return {.views = checked(), .output = arrays_.output};
}

void PyBatch::settle() const {
  if (deferred_ != 0) quire_python::settle(std::exchange(deferred_, 0));
}

ArrayRef import_scale(nb::handle scale, const char* name, const ArrayRef& beside, float& storage) {
  if (scale.is_none()) return {};
  if (!is_number(scale)) {
    if (is_scalar(scale))
      throw_error(Code::invalid_argument, std::string(name) + ": " + shown(scale) + ", expected a real number");
    return import_floats(scale, name, beside.object);
  }
  if (beside.ordinal >= 0)  // scales live where the cache does
    return import_array(arrays_function("full_f32_like")(beside.object, scale), name);
  const nb::object number = nb::steal(PyNumber_Float(scale.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  storage = static_cast<float>(nb::cast<double>(number));
  ArrayRef array;
  array.object = nb::borrow(scale);
  array.view = Tensor::from_shape(&storage, quire::DType::f32, {}, 0);
  return array;
}

void check_writable(const CacheArrays& cache) {
  const auto check = [](const TensorField& f, const ArrayRef& array) {
    if (!array || array.writable) return;
    if (f.kind == Kind::cache)
      throw_error(Code::invalid_argument, std::string(f.member) + ": the array is read-only, but it is written");
    if (array.view.rank >= 3)
      throw_error(Code::invalid_argument, std::string(f.member) + ": the array of scales is read-only, but it is written");
  };
  for_each_tensor(check, CachePart{cache});
}

ArrayRef import_block_scales(nb::handle scales, const char* name, quire::DType codes) {
  if (scales.is_none()) return {};
  const quire::DType type = quire::block_scale_type(codes);
  if (type == quire::DType::none)
    throw_error(Code::invalid_argument, std::string(name) + ": given beside a cache of " + std::string(quire::name(codes)) +
                                            "; dtype=\"nvfp4\" or \"mxfp4\" makes 4-bit codes of bytes");
  return import_array(scales, name, Access::read, std::string(quire::name(type)));
}

PyCache::PyCache(const Arguments& given) {
  const std::string dtype = given.dtype("dtype").value_or("");
  for (const char* name : {"k", "v"}) given.required(name);
  arrays_ = import_cache(tensors_given(given).cache, dtype, given.dtype("v_dtype").value_or(dtype), numbers_);
  check_all_with(arrays_.k, "k", CachePart{arrays_});
  set(given);
}

const quire::KVCache& PyCache::checked_for_write() const {
  check_writable(arrays_);
  return checked();
}

PyOptions::PyOptions(const Arguments& given) {
  arrays_ = import_options(tensors_given(given).options);
  set(given);
}

CallArrays arrays_of(const PyBatch& batch, const PyCache& cache, const PyOptions* options) {
  return {batch.arrays(), cache.arrays(), options != nullptr ? options->arrays() : OptionsArrays()};
}

void check_one_gpu(const CallArrays& arrays) { check_all_with(arrays.batch.query, "query", arrays); }

const quire::Options& options_or_default(const PyOptions* options) {
  static const quire::Options kDefault;
  return options != nullptr ? options->checked() : kDefault;
}

ArrayRef owned_view(const Tensor& view, nb::handle owner) {
  ArrayRef array;
  if (!view.present()) return array;
  array.owner = nb::borrow(owner);
  array.view = view;
  array.writable = true;
  return array;
}

nb::object array_object(const ArrayRef& array) {
  if (array.object.is_valid()) return array.object;
  return to_numpy(array.view, array.owner);
}

void fill_with_nan(const BatchForCall& made) {
  const Tensor& output = made.views.output;
  const std::int64_t bytes = output.num_elements() * quire::itemsize(output.dtype);
  if (output.memory == quire::Memory::cpu && bytes > 0) std::memset(output.data, 0xFF, static_cast<std::size_t>(bytes));
}

nb::object result_of(const PyBatch& batch, const BatchForCall& written) {
  nb::object output = array_object(written.output);
  const nb::object& query = batch.arrays().query.object;
  const bool given = batch.arrays().output.object.is(output);
  if (given || !query.is_valid()) return output;
  return arrays_function("in_library_of")(query, output);
}

void bind_types(nb::module_& m) {
  bind_batch(m);
  nb::class_<PyCache> cache(m, "KVCache", kCacheDoc);
  def_init(cache, {"KVCache",
                   {"k", "v", "layout", "k_scale", "v_scale", "dtype"},
                   arguments_of("KVCache", {{"dtype", "typing.Any | None = None"}, {"v_dtype", "typing.Any | None = None"}})});
  cache
#define QUIRE_CACHE_TENSOR(member, ...) \
  .def_prop_ro(                         \
      #member, [](const PyCache& c) { return array_object(c.arrays().member); }, nb::sig("def " #member "(self) -> typing.Any"))
#include "batch/fields.inc"
      .def_prop_ro("layout", [](const PyCache& c) { return std::string(quire::name(c.views().layout)); })
      .def_prop_ro("dtype", [](const PyCache& c) { return std::string(quire::name(c.views().k.dtype)); })
      .def_prop_ro("v_dtype", [](const PyCache& c) { return std::string(quire::name(c.views().v.dtype)); })
      .def_prop_ro("num_pages", [](const PyCache& c) { return quire::num_pages(c.views()); })
      .def_prop_ro("page_size", [](const PyCache& c) { return quire::page_size(c.views()); })
      .def_prop_ro("num_kv_heads", [](const PyCache& c) { return quire::num_kv_heads(c.views()); })
      .def_prop_ro("head_dim", [](const PyCache& c) { return quire::head_dim(c.views()); })
      .def_prop_ro("v_head_dim", [](const PyCache& c) { return quire::v_head_dim(c.views()); })
      .def("__repr__", [](const PyCache& c) { return describe(c); });
  nb::class_<PyOptions> options(m, "Options", kOptionsDoc);
  const Signature& signature = def_init(
      options,
      {"Options", {"softmax_scale", "sliding_window", "logits_soft_cap", "alibi_slopes", "sinks"}, arguments_of("Options")});
  options
#define QUIRE_OPTIONS_TENSOR(member, ...)                                          \
  .def_prop_ro(                                                                    \
      #member, [](const PyOptions& o) { return array_object(o.arrays().member); }, \
      nb::sig("def " #member "(self) -> typing.Any"))
#define QUIRE_OPTIONS_CHOICE(member) .def_prop_ro(#member, [](const PyOptions& o) { return o.views().member; })
#include "batch/fields.inc"
      .def("__repr__", [&signature](const PyOptions& o) {
        const quire::Options usual;
        return describe(signature, OptionsPart{o.views()}, OptionsPart{usual});
      });
}

quire::Padding padding_named(const std::string& text) {
  const std::optional<quire::Padding> known = quire::padding_from_name(text);
  if (known && *known != quire::Padding::refused) return *known;
  throw_error(Code::invalid_argument, "padding: \"" + text + "\" is none of left, zero; None = there is none");
}

}  // namespace quire_python
