// SPDX-License-Identifier: Apache-2.0
// A plain fp64 attention whose every belief can be changed: the reference under a hypothesis.
//
// A Model is a list of small functions, one per decision of a kernel, in the order in which data flows: the row, its keys, their
// places, the stored elements, their scores, the written output. Model(facts) holds the truth. A fault replaces one function and
// may call the replaced one, so faults combine by planting one after the other.
//
// The model is a second implementation beside src/backend/reference (tests/faults compares the two) and shares only dtype decode
// with the reference.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "faults/decoded_pages.h"
#include "faults/latent_bytes.h"
#include "quire/batch.hpp"
#include "quire/problem.hpp"

namespace quire::faults_detail {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kNegInf = -std::numeric_limits<double>::infinity();

/// Strides of a cache tensor in codes: two of 4 bits lie in a byte, side by side.
std::array<std::int64_t, Tensor::kMaxRank> code_strides(const Tensor& t);

struct Row;

/// Contents of the batch, decoded once. Facts are true, whatever a model believes.
struct Facts {
  Facts(const Batch& batch, const KVCache& cache, const Options& options);

  const Batch& batch;
  const KVCache& stored;  ///< the batch's own
  RealCache real;
  const KVCache& cache;  ///< `stored`, but of f32 in place of fp8_ds_mla
  const Options& options;
  std::int64_t num_tokens = 0, num_q_heads = 0, num_kv_heads = 0, group = 0;
  std::int64_t head_dim = 0, v_head_dim = 0;  ///< dims of query and K; dims of V and output
  std::int64_t num_reqs = 0, page_size = 0, num_pages = 0, max_pages_per_req = 0;
  std::vector<std::int64_t> query_start_loc, seq_lens, cached_lens;  ///< cached_lens = seq_lens if absent
  std::vector<std::int64_t> q_begin, key_begin;                      ///< given values, or the defaults of batch.hpp
  std::vector<bool> causal;
  std::vector<std::int64_t> prefix_lens, tree_lens;  ///< lengths; 0 if absent
  std::vector<std::vector<Span>> spans;              ///< spans of each request that are not empty
  bool has_shapes = false;                           ///< a chunk, a prefix, spans or a tree is given
  bool has_masks = false;                            ///< causal_at_end() is false, or has_shapes is true
  DecodedPages decoded;                              ///< K and V as numbers, page by page
  /// The kernel rounds cached K and V times their scale to the query's type before it uses them.
  bool dequantised_to_query = false;
  double value_unit = 1;  ///< factor of all real values, by which 8-bit outputs are counted in codes

  std::int64_t query_len(std::int64_t req) const { return query_start_loc[at(req + 1)] - query_start_loc[at(req)]; }
  std::int64_t context_len(std::int64_t req) const { return seq_lens[at(req)] - query_len(req); }
  /// The request that owns an output row.
  std::int64_t req_of(std::int64_t token) const;
  static constexpr std::int64_t kNotAPage = -1;
  /// A table entry; 0 for a column past the row's end; kNotAPage for a number that is no page id, with which no address can be
  /// computed (an entry that no row reads may hold any number).
  std::int64_t page(std::int64_t req, std::int64_t column) const;
  std::int64_t max_query_len() const;
  /// Position of a request's first row, counted from its first key; key positions of a model count from there, too.
  std::int64_t first_position(std::int64_t req) const { return q_begin[at(req)] - key_begin[at(req)]; }
  /// The first position that the window leaves to a row at q_pos, and the last one that order leaves, if there are as many. Both
  /// say nothing of a chunk, a prefix, spans or a tree: seen_by() asks the whole mask.
  std::int64_t first_key(std::int64_t q_pos) const;
  std::int64_t last_key(std::int64_t q_pos, bool is_causal) const;
  /// last_key() within the keys of the row's request.
  std::int64_t last_key_of(const Row& row) const;
  /// Returns the keys that a row of a request sees, as disjoint ranges in rising order.
  std::vector<Span> seen_by(std::int64_t req, std::int64_t q_pos) const;
  /// Whether the row of these beliefs sees the key at a position.
  bool sees(const Row& row, std::int64_t position) const;
  /// From the first key that a row sees to behind the last; both the first of its window if it sees none.
  Span hull(std::int64_t req, std::int64_t q_pos) const;
  /// Returns ranges of keys, disjoint and in rising order, that hold every key that some row of the request sees. The cost grows
  /// with the rows of the request, not with its keys.
  std::vector<Span> reach(std::int64_t req) const;
  /// Keys of a request that a row at q_pos sees.
  std::int64_t num_visible(std::int64_t req, std::int64_t q_pos) const;
  /// Whether every request is causal, with its rows at the end of its keys.
  bool causal_at_end() const;
  /// Dims of a row of K or V.
  std::int64_t dims_of(Side side) const { return side == Side::key ? head_dim : v_head_dim; }
  bool has_equal_dims() const { return head_dim == v_head_dim; }
  const Tensor& codes(Side side) const { return side == Side::key ? cache.k : cache.v; }
  const Tensor& block_scales(Side side) const { return side == Side::key ? cache.k_block_scale : cache.v_block_scale; }
  /// Codes from an element of each axis to the next.
  std::array<std::int64_t, Tensor::kMaxRank> strides(Side side) const { return code_strides(codes(side)); }
  /// The cache is of fp8_ds_mla.
  bool has_latent_rows() const { return stored.k.dtype == DType::fp8_ds_mla; }
  /// V is the leading dims of K's rows: one tensor.
  bool v_is_in_k() const;
  bool has_prefix() const { return options.prefix_len.has_value() || batch.prefix_lens.present(); }
  /// A bit of tree_mask; 0 outside of it.
  bool tree_bit(std::int64_t token, std::int64_t bit) const;
  bool windowed() const { return options.sliding_window.has_value(); }
  std::int64_t window() const { return options.sliding_window.value_or(0); }
  std::int64_t max_seq_len() const;

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
};

/// Beliefs of a kernel about the output row that it computes.
struct Row {
  std::int64_t token = 0;        ///< output row
  std::int64_t head = 0;         ///< query head of the output
  bool written = true;           ///< false: the row keeps its bytes
  std::int64_t req = 0;          ///< request whose table row is used
  std::int64_t query_token = 0;  ///< row of query that is loaded
  std::int64_t query_head = 0;   ///< head of query that is loaded
  std::int64_t first_token = 0;  ///< query_start_loc[req] as believed
  std::int64_t query_len = 0, seq_len = 0, cached_len = 0;
  std::int64_t q_pos = 0;  ///< position of the row, counted from the request's first key
  bool causal = true;
  std::int64_t context_len() const { return seq_len - query_len; }
};

/// A key that a row folds in. weight 0: a masked key that is multiplied all the same (0 * NaN is NaN); 2: a key counted twice.
struct Key {
  std::int64_t position = 0;
  double weight = 1;
};

/// Place from which the K or V of one position is taken.
struct Place {
  enum class Kind { cache, new_row, zero } kind = Kind::cache;
  std::int64_t page = 0, offset = 0;  ///< cache: page id and offset in the page
  std::int64_t token = 0;             ///< new_row: row of key / value
};

/// Values that are written for one (row, head).
struct RowResult {
  bool written = true;
  std::vector<double> out;
  double lse = 0;
};

/// A function of a Model that knows whether a fault has replaced it: a function that was not may be computed once for all models.
template <typename Signature>
class Belief : public std::function<Signature> {
 public:
  template <typename F>
  Belief& operator=(F&& f) {
    std::function<Signature>::operator=(std::forward<F>(f));
    replaced_ = true;
    return *this;
  }
  bool replaced() const { return replaced_; }
  /// Declares the present function to be the truth.
  void settle() { replaced_ = false; }

 private:
  bool replaced_ = false;
};

struct Model {
  explicit Model(const Facts& facts);  ///< the truth; keeps a reference to `facts`

  const Facts* facts;

  // Row that is computed.
  Belief<Row(std::int64_t token, std::int64_t head)> row;
  // Positions that the row folds in, ascending; the truth is the visible range of docs/design.md section 2.
  Belief<void(const Row&, std::vector<Key>&)> keys;
  // Place of a position. The default `place` calls `table`.
  Belief<std::int64_t(std::int64_t req, std::int64_t column)> table;
  Belief<Place(const Model&, const Row&, Side, std::int64_t position)> place;
  Belief<std::int64_t(const Row&, Side)> kv_head;
  // Elements at a place: the offset of dim i in at[i], in codes (two of 4 bits lie in a byte), the value of each code, one scale
  // for all dims.
  Belief<void(Side, const Place&, std::int64_t kv_head, std::span<std::int64_t> at)> elements;
  Belief<void(Side, const void* data, std::span<const std::int64_t> at, double* values)> decode;
  Belief<double(Side, const Place&, std::int64_t kv_head)> scale;
  /// Multiplies the leading dims of a cached vector by the scales of their blocks, where codes have 4 bits.
  Belief<void(Side, const Place&, std::int64_t kv_head, std::span<double>)> blocks;
  /// Absent in the truth. Changes a K or V vector after it was loaded and scaled.
  Belief<void(const Row&, Side, const Place&, std::int64_t kv_head, std::span<double>)> vector;
  // Score of a key. The default `score` is cap(softmax_scale * dot) + bias, with the functions of the given model.
  Belief<double(const Row&, std::int64_t dim)> query;  ///< an element of the query row
  std::int64_t dims;                                   ///< leading dims that take part in dot products
  Belief<double(const Row&)> softmax_scale;
  Belief<double(const Row&, double)> cap;
  Belief<double(const Row&, std::int64_t position)> bias;
  Belief<double(const Model&, const Row&, std::int64_t position, double dot)> score;
  // The softmax: sink logit (-inf = none), exp(score - max), both passes over the scores.
  Belief<double(const Row&)> sink;
  Belief<double(double score, double max)> weight;
  /// The weight of every key, divided by the denominator, in p (as long as keys; never for a key of weight 0). Returns the lse;
  /// -inf means that nothing was folded in and the output is 0.
  Belief<double(const Model&, const Row&, std::span<const Key>, std::span<const double> scores, std::vector<double>& p)> softmax;
  // Values that are written, after normalisation.
  Belief<void(const Row&, RowResult&)> finish;

 private:
  void settle();
};

/// An (output row, query head).
struct RowHead {
  std::int64_t token = 0, head = 0;
};

/// Writes output and lse of a row, each rounded once; nothing if the row is not written.
void store_row(const Batch& batch, const RowHead& at, const RowResult& result);

/// The keys first .. last, each once.
void append_keys(std::int64_t first, std::int64_t last, std::vector<Key>& keys);

/// The largest score, the sink's included; NaN wins.
double largest(std::span<const double> scores, double sink);

/// The nearest value of a floating type; infinite or saturated beyond its range, like a store.
double rounded(DType type, double value);

/// Decodes elements of `data` as `dtype`.
void decode_as(DType dtype, const void* data, std::span<const std::int64_t> at, double* values);

/// Offsets that `layout` gives to the dims of one (page, offset, head) in a tensor with these strides; x belongs to packed K.
void elements_as(CacheLayout layout, Side side, std::span<const std::int64_t> strides, std::int64_t x, const Place& place,
                 std::int64_t kv_head, std::span<std::int64_t> at);

/// Loads one row of this step's key or value; NaN if there is no such row or head.
void load_new_row(const Facts& facts, Side side, std::int64_t token, std::int64_t head, std::span<double> to);

/// Loads the codes of one (page, offset, head) of the cache, decoded as `dtype` and not scaled; NaN outside of the cache.
void load_codes(const Facts& facts, DType dtype, Side side, const Place& place, std::int64_t kv_head, std::span<double> to);

/// The scale of block `block` of a cached token; NaN outside of the tensor of scales.
double block_scale(const KVCache& cache, Side side, const Place& place, std::int64_t kv_head, std::int64_t block);

/// The ALiBi slope of a head: 0 without slopes, NaN if there is no such head.
double slope_of(const Facts& facts, std::int64_t head);

/// K or V of one key as real values (scaled), `to.size()` leading dims.
void load_vector(const Model& model, const Row& row, Side side, std::int64_t position, std::vector<std::int64_t>& scratch,
                 std::span<double> to);

/// Computes some rows under a model. Reads outside the cache, which a wrong model may ask for, give NaN.
std::vector<RowResult> evaluate(const Model& model, std::span<const RowHead> rows);

}  // namespace quire::faults_detail
