// SPDX-License-Identifier: Apache-2.0
// Batch, KVCache and Options: arrays in, views kept, defaults made explicit.
#include "types.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "arguments.hpp"
#include "deferred.hpp"
#include "errors.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Tensor;

template <typename Visit>
void for_each_array(const BatchArrays& a, Visit&& visit) {
  visit(a.query, "query");
  visit(a.output, "output");
  visit(a.query_start_loc, "query_start_loc");
  visit(a.seq_lens, "seq_lens");
  visit(a.block_table, "block_table");
  visit(a.cached_lens, "cached_lens");
  visit(a.causal, "causal");
  visit(a.q_begin, "q_begin");
  visit(a.key_begin, "key_begin");
  visit(a.spans, "spans");
  visit(a.prefix_lens, "prefix_lens");
  visit(a.tree_mask, "tree_mask");
  visit(a.tree_lens, "tree_lens");
  visit(a.key, "key");
  visit(a.value, "value");
  visit(a.slot_mapping, "slot_mapping");
  visit(a.lse, "lse");
  visit(a.request_ids, "request_ids");
  visit(a.q_scale, "q_scale");
  visit(a.output_scale, "output_scale");
}

std::string describe(const PyBatch& batch) {
  std::string text = "Batch(";
  for_each_array(batch.arrays(), [&](const ArrayRef& array, const char* name) {
    if (!array) return;
    if (text.size() > 6) text += ", ";
    text += std::string(name) + "=" + quire::to_string(array.view);
  });
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
  std::string text = "KVCache(k=" + quire::to_string(cache.k().view) + ", v=" + quire::to_string(cache.v().view) +
                     ", layout=" + std::string(quire::name(cache.views().layout));
  if (cache.k_scale()) text += ", k_scale=" + quire::to_string(cache.k_scale().view);
  if (cache.v_scale()) text += ", v_scale=" + quire::to_string(cache.v_scale().view);
  if (cache.k_block_scale()) text += ", k_block_scale=" + quire::to_string(cache.k_block_scale().view);
  if (cache.v_block_scale()) text += ", v_block_scale=" + quire::to_string(cache.v_block_scale().view);
  return text + ")";
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
  if (options.alibi_slopes()) add("alibi_slopes", quire::to_string(o.alibi_slopes));
  if (options.sinks()) add("sinks", quire::to_string(o.sinks));
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
    block_table: [num_reqs, max_pages_per_req] page ids; entries past ceil(cached_len / page_size) are never read.
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
      .def_prop_ro("query", get(&BatchArrays::query), nb::sig("def query(self) -> typing.Any"))
      .def_prop_ro("output", get(&BatchArrays::output), nb::sig("def output(self) -> typing.Any"))
      .def_prop_ro("query_start_loc", get(&BatchArrays::query_start_loc), nb::sig("def query_start_loc(self) -> typing.Any"))
      .def_prop_ro("seq_lens", get(&BatchArrays::seq_lens), nb::sig("def seq_lens(self) -> typing.Any"))
      .def_prop_ro("block_table", get(&BatchArrays::block_table), nb::sig("def block_table(self) -> typing.Any"))
      .def_prop_ro("cached_lens", get(&BatchArrays::cached_lens), nb::sig("def cached_lens(self) -> typing.Any"))
      .def_prop_ro("key", get(&BatchArrays::key), nb::sig("def key(self) -> typing.Any"))
      .def_prop_ro("value", get(&BatchArrays::value), nb::sig("def value(self) -> typing.Any"))
      .def_prop_ro("slot_mapping", get(&BatchArrays::slot_mapping), nb::sig("def slot_mapping(self) -> typing.Any"))
      .def_prop_ro("lse", get(&BatchArrays::lse), nb::sig("def lse(self) -> typing.Any"))
      .def_prop_ro("request_ids", get(&BatchArrays::request_ids), nb::sig("def request_ids(self) -> typing.Any"))
      .def_prop_ro("q_scale", get(&BatchArrays::q_scale), nb::sig("def q_scale(self) -> typing.Any"))
      .def_prop_ro("causal", get(&BatchArrays::causal), nb::sig("def causal(self) -> typing.Any"))
      .def_prop_ro("q_begin", get(&BatchArrays::q_begin), nb::sig("def q_begin(self) -> typing.Any"))
      .def_prop_ro("key_begin", get(&BatchArrays::key_begin), nb::sig("def key_begin(self) -> typing.Any"))
      .def_prop_ro("spans", get(&BatchArrays::spans), nb::sig("def spans(self) -> typing.Any"))
      .def_prop_ro("prefix_lens", get(&BatchArrays::prefix_lens), nb::sig("def prefix_lens(self) -> typing.Any"))
      .def_prop_ro("tree_mask", get(&BatchArrays::tree_mask), nb::sig("def tree_mask(self) -> typing.Any"))
      .def_prop_ro("tree_lens", get(&BatchArrays::tree_lens), nb::sig("def tree_lens(self) -> typing.Any"))
      .def_prop_ro("output_scale", get(&BatchArrays::output_scale), nb::sig("def output_scale(self) -> typing.Any"))
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

quire::Batch BatchArrays::views(quire::Padding padding) const {
  return {.query = query.view,
          .output = output.view,
          .query_start_loc = query_start_loc.view,
          .seq_lens = seq_lens.view,
          .block_table = block_table.view,
          .cached_lens = cached_lens.view,
          .key = key.view,
          .value = value.view,
          .slot_mapping = slot_mapping.view,
          .lse = lse.view,
          .request_ids = request_ids.view,
          .padding = padding,
          .q_scale = q_scale.view,
          .output_scale = output_scale.view,
          .causal = causal.view,
          .q_begin = q_begin.view,
          .key_begin = key_begin.view,
          .spans = spans.view,
          .prefix_lens = prefix_lens.view,
          .tree_mask = tree_mask.view,
          .tree_lens = tree_lens.view};
}

PyBatch::PyBatch(const Arguments& given) {
  const std::string dtype = given.dtype("dtype").value_or("");
  const auto rows = [&](const char* name, Access access = Access::read) {
    return import_array(given.get(name), name, access, dtype, Role::rows);
  };
  const nb::object query = given.required("query");
  const auto index = [&](const char* name) { return import_index(given.get(name), name, query); };
  if (query.is_none()) throw_error(Code::invalid_argument, "query: is None");
  for (const char* name : {"query_start_loc", "seq_lens", "block_table"}) given.required(name);
  arrays_.query = rows("query");
  output_given_ = !given.get("output").is_none();
  arrays_.output = rows("output", Access::write);
  arrays_.query_start_loc = index("query_start_loc");
  arrays_.seq_lens = index("seq_lens");
  arrays_.block_table = index("block_table");
  arrays_.cached_lens = index("cached_lens");
  arrays_.key = rows("key");
  arrays_.value = rows("value");
  arrays_.slot_mapping = index("slot_mapping");
  arrays_.lse = import_array(given.get("lse"), "lse", Access::write, {}, Role::f32);
  arrays_.request_ids = index("request_ids");
  arrays_.causal = import_flags(given.get("causal"), "causal", query);
  arrays_.q_begin = index("q_begin");
  arrays_.key_begin = index("key_begin");
  arrays_.spans = index("spans");
  arrays_.prefix_lens = index("prefix_lens");
  arrays_.tree_mask = import_array(given.get("tree_mask"), "tree_mask", Access::read, {}, Role::flags);
  arrays_.tree_lens = index("tree_lens");
  arrays_.q_scale = import_scale(given.get("q_scale"), "q_scale", arrays_.query, scalars_[0]);
  arrays_.output_scale = import_scale(given.get("output_scale"), "output_scale", arrays_.query, scalars_[1]);
  const BatchArrays& a = arrays_;
  for_each_array(a, [&](const ArrayRef& array, const char* name) { check_same_gpu(a.query, "query", array, name); });
  views_ = a.views(read_padding(given));
}

PyBatch::PyBatch(const quire::Batch& b, nb::handle owner) : views_(b) {
  arrays_ = {.query = owned_view(b.query, owner),
             .output = owned_view(b.output, owner),
             .query_start_loc = owned_view(b.query_start_loc, owner),
             .seq_lens = owned_view(b.seq_lens, owner),
             .block_table = owned_view(b.block_table, owner),
             .cached_lens = owned_view(b.cached_lens, owner),
             .key = owned_view(b.key, owner),
             .value = owned_view(b.value, owner),
             .slot_mapping = owned_view(b.slot_mapping, owner),
             .lse = owned_view(b.lse, owner),
             .request_ids = owned_view(b.request_ids, owner),
             .q_scale = owned_view(b.q_scale, owner),
             .output_scale = owned_view(b.output_scale, owner),
             .causal = owned_view(b.causal, owner),
             .q_begin = owned_view(b.q_begin, owner),
             .key_begin = owned_view(b.key_begin, owner),
             .spans = owned_view(b.spans, owner),
             .prefix_lens = owned_view(b.prefix_lens, owner),
             .tree_mask = owned_view(b.tree_mask, owner),
             .tree_lens = owned_view(b.tree_lens, owner)};
}

const quire::Batch& PyBatch::checked() const {
  for_each_array(arrays_, [](const ArrayRef& array, const char* name) { check_still_there(array, name); });
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

namespace {

/// Scales of blocks of 4-bit codes; raw bytes have the type that the codes ask for.
ArrayRef import_block_scales(nb::handle scales, const char* name, quire::DType codes) {
  if (scales.is_none()) return {};
  const quire::DType type = quire::block_scale_type(codes);
  if (type == quire::DType::none)
    throw_error(Code::invalid_argument, std::string(name) + ": given beside a cache of " + std::string(quire::name(codes)) +
                                            "; dtype=\"nvfp4\" or \"mxfp4\" makes 4-bit codes of bytes");
  return import_array(scales, name, Access::read, std::string(quire::name(type)));
}

}  // namespace

PyCache::PyCache(const Arguments& given) {
  std::string layout = given.text("layout", "nhd");
  std::transform(layout.begin(), layout.end(), layout.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::optional<quire::CacheLayout> known = quire::layout_from_name(layout);
  if (!known) throw_error(Code::invalid_argument, "layout: \"" + layout + "\" is none of nhd, hnd, packed");
  const std::string dtype = given.dtype("dtype").value_or("");
  k_ = import_array(given.required("k"), "k", Access::read, dtype, Role::cache);
  v_ = import_array(given.required("v"), "v", Access::read, given.dtype("v_dtype").value_or(dtype), Role::cache);
  k_scale_ = import_scale(given.get("k_scale"), "k_scale", k_, scalars_[0]);
  v_scale_ = import_scale(given.get("v_scale"), "v_scale", k_, scalars_[1]);
  check_same_gpu(k_, "k", v_, "v");
  check_same_gpu(k_, "k", k_scale_, "k_scale");
  check_same_gpu(k_, "k", v_scale_, "v_scale");
  k_block_scale_ = import_block_scales(given.get("k_block_scale"), "k_block_scale", k_.view.dtype);
  v_block_scale_ = import_block_scales(given.get("v_block_scale"), "v_block_scale", v_.view.dtype);
  check_same_gpu(k_, "k", k_block_scale_, "k_block_scale");
  check_same_gpu(k_, "k", v_block_scale_, "v_block_scale");
  views_ = {.k = k_.view,
            .v = v_.view,
            .layout = *known,
            .k_scale = k_scale_.view,
            .v_scale = v_scale_.view,
            .k_block_scale = k_block_scale_.view,
            .v_block_scale = v_block_scale_.view};
}

PyCache::PyCache(const quire::KVCache& cache, nb::handle owner)
    : k_(owned_view(cache.k, owner)),
      v_(owned_view(cache.v, owner)),
      k_scale_(owned_view(cache.k_scale, owner)),
      v_scale_(owned_view(cache.v_scale, owner)),
      k_block_scale_(owned_view(cache.k_block_scale, owner)),
      v_block_scale_(owned_view(cache.v_block_scale, owner)),
      views_(cache) {}

const quire::KVCache& PyCache::checked() const {
  check_still_there(k_, "k");
  check_still_there(v_, "v");
  check_still_there(k_scale_, "k_scale");
  check_still_there(v_scale_, "v_scale");
  check_still_there(k_block_scale_, "k_block_scale");
  check_still_there(v_block_scale_, "v_block_scale");
  return views_;
}

const quire::KVCache& PyCache::checked_for_write() const {
  if (k_ && !k_.writable) throw_error(Code::invalid_argument, "k: the array is read-only, but it is written");
  if (v_ && !v_.writable) throw_error(Code::invalid_argument, "v: the array is read-only, but it is written");
  check_scale_writable(k_scale_, "k_scale");
  check_scale_writable(v_scale_, "v_scale");
  check_scale_writable(k_block_scale_, "k_block_scale");
  check_scale_writable(v_block_scale_, "v_block_scale");
  return checked();
}

PyOptions::PyOptions(const Arguments& given)
    : alibi_slopes_(import_floats(given.get("alibi_slopes"), "alibi_slopes")),
      sinks_(import_floats(given.get("sinks"), "sinks")) {
  views_ = {.softmax_scale = given.number("softmax_scale"),
            .sliding_window = given.integer("sliding_window"),
            .logits_soft_cap = given.number("logits_soft_cap"),
            .alibi_slopes = alibi_slopes_.view,
            .sinks = sinks_.view,
            .causal = given.flag("causal", true),
            .window_right = given.integer("window_right"),
            .attention_chunk = given.integer("attention_chunk"),
            .prefix_len = given.integer("prefix_len"),
            .spans_beyond_window = given.flag("spans_beyond_window", false)};
}

PyOptions::PyOptions(const quire::Options& options, nb::handle owner)
    : alibi_slopes_(owned_view(options.alibi_slopes, owner)), sinks_(owned_view(options.sinks, owner)), views_(options) {}

const quire::Options& PyOptions::checked() const {
  check_still_there(alibi_slopes_, "alibi_slopes");
  check_still_there(sinks_, "sinks");
  return views_;
}

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
      .def_prop_ro(
          "k", [](const PyCache& c) { return array_object(c.k()); }, nb::sig("def k(self) -> typing.Any"))
      .def_prop_ro(
          "v", [](const PyCache& c) { return array_object(c.v()); }, nb::sig("def v(self) -> typing.Any"))
      .def_prop_ro(
          "k_scale", [](const PyCache& c) { return array_object(c.k_scale()); }, nb::sig("def k_scale(self) -> typing.Any"))
      .def_prop_ro(
          "v_scale", [](const PyCache& c) { return array_object(c.v_scale()); }, nb::sig("def v_scale(self) -> typing.Any"))
      .def_prop_ro(
          "k_block_scale", [](const PyCache& c) { return array_object(c.k_block_scale()); },
          nb::sig("def k_block_scale(self) -> typing.Any"))
      .def_prop_ro(
          "v_block_scale", [](const PyCache& c) { return array_object(c.v_block_scale()); },
          nb::sig("def v_block_scale(self) -> typing.Any"))
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
      .def_prop_ro(
          "alibi_slopes", [](const PyOptions& o) { return array_object(o.alibi_slopes()); },
          nb::sig("def alibi_slopes(self) -> typing.Any"))
      .def_prop_ro(
          "sinks", [](const PyOptions& o) { return array_object(o.sinks()); }, nb::sig("def sinks(self) -> typing.Any"))
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
