// SPDX-License-Identifier: Apache-2.0
// Batch, KVCache and Options: arrays in, views kept, defaults made explicit.
#include "types.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <utility>

#include "arguments.hpp"
#include "deferred.hpp"
#include "errors.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Tensor;

using quire::batch::BatchPart;
using quire::batch::CachePart;
using quire::batch::for_each_tensor;
using quire::batch::Kind;
using quire::batch::OptionsPart;
using quire::batch::TensorField;

/// Raises if an array of these parts moved since it was imported.
template <typename Arrays>
void check_all_still_there(const Arrays& arrays) {
  for_each_tensor([](const TensorField& f, const ArrayRef& array) { check_still_there(array, f.member.data()); }, arrays);
}

/// Raises if an array of these parts is on another GPU than `first`.
template <typename Arrays>
void check_all_with(const ArrayRef& first, const char* first_name, const Arrays& arrays) {
  const auto check = [&](const TensorField& f, const ArrayRef& array) {
    check_same_gpu(first, first_name, array, f.member.data());
  };
  for_each_tensor(check, arrays);
}

/// Arrays of views that `owner` keeps alive.
template <typename Views, typename Arrays>
void own_views(const Views& views, const Arrays& arrays, nb::handle owner) {
  for_each_tensor([&](const TensorField&, const Tensor& view, ArrayRef& array) { array = owned_view(view, owner); }, views,
                  arrays);
}

std::string describe(const PyBatch& batch) {
  std::string text = "Batch(";
  const auto add = [&](const TensorField& f, const ArrayRef& array) {
    if (!array) return;
    if (text.size() > 6) text += ", ";
    text += std::string(f.member) + "=" + quire::to_string(array.view);
  };
  for_each_tensor(add, BatchPart{batch.arrays()});
  if (batch.views().padding != quire::Padding::refused)
    text += ", padding=\"" + std::string(quire::name(batch.views().padding)) + "\"";
  return text + ")";
}

/// Padding as a Python object: its name, or None for padding that is refused.
nb::object padding_object(quire::Padding padding) {
  if (padding == quire::Padding::refused) return nb::none();
  return nb::cast(std::string(quire::name(padding)));
}

quire::Padding read_padding(const Arguments& given) {
  if (given.get("padding").is_none()) return quire::Padding::refused;
  return padding_named(given.text("padding", ""));
}

std::string describe(const PyCache& cache) {
  std::string text = "KVCache(";
  const auto add = [&](const TensorField& f, const ArrayRef& array) {
    if (array) text += std::string(f.member) + "=" + quire::to_string(array.view) + ", ";
  };
  for_each_tensor(add, CachePart{cache.arrays()});
  return text + "layout=" + std::string(quire::name(cache.views().layout)) + ")";
}

std::string describe(const PyOptions& options) {
  const quire::Options& o = options.views();
  std::string text = "Options(";
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.size() > 8 ? ", " : "") + std::string(name) + "=" + value;
  };
  if (o.softmax_scale) add("softmax_scale", std::to_string(*o.softmax_scale));
  if (o.sliding_window) add("sliding_window", std::to_string(*o.sliding_window));
  if (o.logits_soft_cap) add("logits_soft_cap", std::to_string(*o.logits_soft_cap));
  if (o.alibi_slopes.present()) add("alibi_slopes", quire::to_string(o.alibi_slopes));
  if (o.sinks.present()) add("sinks", quire::to_string(o.sinks));
  if (!o.causal) add("causal", "False");
  if (o.window_right) add("window_right", std::to_string(*o.window_right));
  if (o.attention_chunk) add("attention_chunk", std::to_string(*o.attention_chunk));
  if (o.prefix_len) add("prefix_len", std::to_string(*o.prefix_len));
  if (o.spans_beyond_window) add("spans_beyond_window", "True");
  return text + ")";
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
  nb::class_<PyBatch>(m, "Batch", kBatchDoc)
      .def(
          "__init__",
          [](PyBatch* self, const nb::args& args, const nb::kwargs& kwargs) {
            new (self) PyBatch(
                Arguments("Batch", {"query",   "query_start_loc", "seq_lens",     "block_table", "output",      "cached_lens",
                                    "key",     "value",           "slot_mapping", "lse",         "request_ids", "dtype",
                                    "padding", "q_scale",         "output_scale", "causal",      "q_begin",     "key_begin",
                                    "spans",   "prefix_lens",     "tree_mask",    "tree_lens"},
                          0, args, kwargs));
          },
          // Index tensors and scales may be lists and numbers; the other arrays are viewed, whatever library they are of.
          nb::sig("def __init__(self, *, query: typing.Any, query_start_loc: numpy.typing.ArrayLike, "
                  "seq_lens: numpy.typing.ArrayLike, block_table: numpy.typing.ArrayLike, output: typing.Any | None = None, "
                  "cached_lens: numpy.typing.ArrayLike | None = None, key: typing.Any | None = None, "
                  "value: typing.Any | None = None, slot_mapping: numpy.typing.ArrayLike | None = None, "
                  "lse: typing.Any | None = None, request_ids: numpy.typing.ArrayLike | None = None, "
                  "dtype: typing.Any | None = None, padding: typing.Literal['left', 'zero'] | None = None, "
                  "q_scale: numpy.typing.ArrayLike | None = None, output_scale: numpy.typing.ArrayLike | None = None, "
                  "causal: numpy.typing.ArrayLike | None = None, q_begin: numpy.typing.ArrayLike | None = None, "
                  "key_begin: numpy.typing.ArrayLike | None = None, spans: numpy.typing.ArrayLike | None = None, "
                  "prefix_lens: numpy.typing.ArrayLike | None = None, tree_mask: typing.Any | None = None, "
                  "tree_lens: numpy.typing.ArrayLike | None = None) -> None"))
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
      .def("__repr__", [](const PyBatch& batch) { return describe(batch); });
}

}  // namespace

PyBatch::PyBatch(const Arguments& given) {
  const std::string dtype = given.dtype("dtype").value_or("");
  const nb::object query = given.required("query");
  if (query.is_none()) throw_error(Code::invalid_argument, "query: is None");
  for (const char* name : {"query_start_loc", "seq_lens", "block_table"}) given.required(name);
  output_given_ = !given.get("output").is_none();
  std::size_t scalar = 0;
  const auto import = [&](const TensorField& f, ArrayRef& array) {
    const char* name = f.member.data();
    const Access access = f.access == quire::batch::Access::written ? Access::write : Access::read;
    switch (f.kind) {
      case Kind::rows: array = import_array(given.get(name), name, access, dtype, Role::rows); break;
      case Kind::index: array = import_index(given.get(name), name, query); break;
      case Kind::floats: array = import_array(given.get(name), name, access, {}, Role::f32); break;
      case Kind::scale: array = import_scale(given.get(name), name, arrays_.query, scalars_.at(scalar++)); break;
      case Kind::flags: {
        const nb::object flags = given.get(name);
        array = f.member == "causal" ? import_flags(flags, name, query) : import_array(flags, name, access, {}, Role::flags);
        break;
      }
      case Kind::cache:
      case Kind::block_scale: break;  // Batch has none
    }
  };
  for_each_tensor(import, BatchPart{arrays_});
  check_all_with(arrays_.query, "query", BatchPart{arrays_});
  set_views(BatchPart{std::as_const(arrays_)}, BatchPart{views_});
  views_.padding = read_padding(given);
}

PyBatch::PyBatch(const quire::Batch& b, nb::handle owner) : views_(b) { own_views(BatchPart{b}, BatchPart{arrays_}, owner); }

const quire::Batch& PyBatch::checked() const {
  check_all_still_there(BatchPart{arrays_});
  return views_;
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

void check_scale_writable(const ArrayRef& scale, const char* name) {
  if (scale.view.rank >= 3 && !scale.writable)
    throw_error(Code::invalid_argument, std::string(name) + ": the array of scales is read-only, but it is written");
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
  const quire::CacheLayout layout = layout_named(given.text("layout", "nhd"));
  const std::string dtype = given.dtype("dtype").value_or("");
  CacheArrays& a = arrays_;
  a.k = import_array(given.required("k"), "k", Access::read, dtype, Role::cache);
  a.v = import_array(given.required("v"), "v", Access::read, given.dtype("v_dtype").value_or(dtype), Role::cache);
  a.k_scale = import_scale(given.get("k_scale"), "k_scale", a.k, scalars_[0]);
  a.v_scale = import_scale(given.get("v_scale"), "v_scale", a.k, scalars_[1]);
  a.k_block_scale = import_block_scales(given.get("k_block_scale"), "k_block_scale", a.k.view.dtype);
  a.v_block_scale = import_block_scales(given.get("v_block_scale"), "v_block_scale", a.v.view.dtype);
  check_all_with(a.k, "k", CachePart{a});
  set_views(CachePart{a}, CachePart{views_});
  views_.layout = layout;
}

PyCache::PyCache(const quire::KVCache& cache, nb::handle owner) : views_(cache) {
  own_views(CachePart{cache}, CachePart{arrays_}, owner);
}

const quire::KVCache& PyCache::checked() const {
  check_all_still_there(CachePart{arrays_});
  return views_;
}

const quire::KVCache& PyCache::checked_for_write() const {
  const auto check = [](const TensorField& f, const ArrayRef& array) {
    if (f.kind != Kind::cache) return check_scale_writable(array, f.member.data());
    if (array && !array.writable)
      throw_error(Code::invalid_argument, std::string(f.member) + ": the array is read-only, but it is written");
  };
  for_each_tensor(check, CachePart{arrays_});
  return checked();
}

PyOptions::PyOptions(const Arguments& given) {
  const auto import = [&](const TensorField& f, ArrayRef& array) {
    array = import_floats(given.get(f.member.data()), f.member.data());
  };
  for_each_tensor(import, OptionsPart{arrays_});
  views_ = {.softmax_scale = given.number("softmax_scale"),
            .sliding_window = given.integer("sliding_window"),
            .logits_soft_cap = given.number("logits_soft_cap"),
            .causal = given.flag("causal", true),
            .window_right = given.integer("window_right"),
            .attention_chunk = given.integer("attention_chunk"),
            .prefix_len = given.integer("prefix_len"),
            .spans_beyond_window = given.flag("spans_beyond_window", false)};
  set_views(OptionsPart{std::as_const(arrays_)}, OptionsPart{views_});
}

PyOptions::PyOptions(const quire::Options& options, nb::handle owner) : views_(options) {
  own_views(OptionsPart{options}, OptionsPart{arrays_}, owner);
}

const quire::Options& PyOptions::checked() const {
  check_all_still_there(OptionsPart{arrays_});
  return views_;
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
  nb::class_<PyCache>(m, "KVCache", kCacheDoc)
      .def(
          "__init__",
          [](PyCache* self, const nb::args& args, const nb::kwargs& kwargs) {
            new (self) PyCache(Arguments(
                "KVCache", {"k", "v", "layout", "k_scale", "v_scale", "dtype", "v_dtype", "k_block_scale", "v_block_scale"}, 6,
                args, kwargs));
          },
          nb::sig("def __init__(self, k: typing.Any, v: typing.Any, "
                  "layout: typing.Literal['nhd', 'hnd', 'packed', 'NHD', 'HND', 'PACKED'] = 'nhd', "
                  "k_scale: numpy.typing.ArrayLike | None = None, v_scale: numpy.typing.ArrayLike | None = None, "
                  "dtype: typing.Any | None = None, v_dtype: typing.Any | None = None, "
                  "k_block_scale: typing.Any | None = None, v_block_scale: typing.Any | None = None) -> None"))
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
  nb::class_<PyOptions>(m, "Options", kOptionsDoc)
      .def(
          "__init__",
          [](PyOptions* self, const nb::args& args, const nb::kwargs& kwargs) {
            new (self) PyOptions(Arguments("Options",
                                           {"softmax_scale", "sliding_window", "logits_soft_cap", "alibi_slopes", "sinks",
                                            "causal", "window_right", "attention_chunk", "prefix_len", "spans_beyond_window"},
                                           5, args, kwargs));
          },
          nb::sig(
              "def __init__(self, softmax_scale: float | None = None, sliding_window: int | None = None, "
              "logits_soft_cap: float | None = None, alibi_slopes: numpy.typing.ArrayLike | None = None, "
              "sinks: numpy.typing.ArrayLike | None = None, *, causal: bool = True, window_right: int | None = None, "
              "attention_chunk: int | None = None, prefix_len: int | None = None, spans_beyond_window: bool = False) -> None"))
      .def_prop_ro("softmax_scale", [](const PyOptions& o) { return o.views().softmax_scale; })
      .def_prop_ro("sliding_window", [](const PyOptions& o) { return o.views().sliding_window; })
      .def_prop_ro("logits_soft_cap", [](const PyOptions& o) { return o.views().logits_soft_cap; })
#define QUIRE_OPTIONS_TENSOR(member, ...)                                          \
  .def_prop_ro(                                                                    \
      #member, [](const PyOptions& o) { return array_object(o.arrays().member); }, \
      nb::sig("def " #member "(self) -> typing.Any"))
#include "batch/fields.inc"
      .def_prop_ro("causal", [](const PyOptions& o) { return o.views().causal; })
      .def_prop_ro("window_right", [](const PyOptions& o) { return o.views().window_right; })
      .def_prop_ro("attention_chunk", [](const PyOptions& o) { return o.views().attention_chunk; })
      .def_prop_ro("prefix_len", [](const PyOptions& o) { return o.views().prefix_len; })
      .def_prop_ro("spans_beyond_window", [](const PyOptions& o) { return o.views().spans_beyond_window; })
      .def("__repr__", [](const PyOptions& o) { return describe(o); });
}

quire::Padding padding_named(const std::string& text) {
  const std::optional<quire::Padding> known = quire::padding_from_name(text);
  if (known && *known != quire::Padding::refused) return *known;
  throw_error(Code::invalid_argument, "padding: \"" + text + "\" is none of left, zero; None = there is none");
}

}  // namespace quire_python
