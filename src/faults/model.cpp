// SPDX-License-Identifier: Apache-2.0
// The truth as a Model, and its evaluation row by row.
#include "faults/model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "faults/visible.h"
#include "quire/interrupt.hpp"
#include "semantics/dtype.h"
#include "semantics/fp4.h"
#include "semantics/index_tensor.h"

namespace quire::faults_detail {
namespace {

const Tensor& cache_tensor(const Facts& f, Side side) { return side == Side::key ? f.cache.k : f.cache.v; }

/// Bits of a code.
std::int64_t bits_of(DType type) { return is_four_bit(type) ? 4 : 8 * itemsize(type); }

/// Largest offset plus 1 in codes, of a tensor whose strides are not negative.
std::int64_t extent(const Tensor& t) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[static_cast<std::size_t>(i)] - 1) * t.stride[static_cast<std::size_t>(i)];
  return t.num_elements() == 0 ? 0 : (last + 1) * (is_four_bit(t.dtype) ? 2 : 1);
}

Row row_of(const Facts& f, std::int64_t req, std::int64_t token) {
  const std::int64_t first = f.query_start_loc[Facts::at(req)];
  Row row;
  row.token = row.query_token = token;
  row.req = req;
  row.first_token = first;
  row.query_len = f.query_len(req);
  row.seq_len = f.seq_lens[Facts::at(req)];
  row.cached_len = f.cached_lens[Facts::at(req)];
  row.q_pos = f.first_position(req) + token - first;
  row.causal = f.causal[Facts::at(req)];
  return row;
}

Row true_row(const Facts& f, std::int64_t token, std::int64_t head) {
  Row row = row_of(f, f.req_of(token), token);
  row.head = row.query_head = head;
  return row;
}

void true_keys(const Facts& f, const Row& row, std::vector<Key>& keys) {
  keys_within(f, row, f.first_key(row.q_pos), f.last_key_of(row), keys);
}

/// Positions [cached_len, seq_len) come from this step's own rows, everything else from the cache.
Place true_place(const Facts& f, const Model& m, const Row& row, std::int64_t position) {
  Place place;
  if (position >= row.cached_len && position < row.seq_len && f.batch.key.present()) {
    place.kind = Place::Kind::new_row;
    place.token = row.first_token + position - row.context_len();
    return place;
  }
  place.page = m.table(row.req, position / f.page_size);
  place.offset = position % f.page_size;
  return place;
}

double true_scale(const Facts& f, Side side, const Place& place, std::int64_t head) {
  const Tensor& t = side == Side::key ? f.cache.k_scale : f.cache.v_scale;
  if (place.kind != Place::Kind::cache || !t.present()) return 1;
  if (t.rank == 3) {
    const bool inside = place.page >= 0 && place.page < t.shape[0] && place.offset >= 0 && place.offset < t.shape[1] &&
                        head >= 0 && head < t.shape[2];
    if (!inside) return kNaN;
    return semantics::load(t.data, t.dtype, place.page * t.stride[0] + place.offset * t.stride[1] + head * t.stride[2]);
  }
  const bool of_head = t.rank == 1 && t.shape[0] > 1;
  if (of_head && (head < 0 || head >= t.shape[0])) return kNaN;
  return semantics::load(t.data, t.dtype, of_head ? head * t.stride[0] : 0);
}

double per_head(const Tensor& t, std::int64_t head, double absent) {
  if (!t.present()) return absent;
  return head < 0 || head >= t.shape[0] ? kNaN : semantics::load(t.data, t.dtype, head * t.stride[0]);
}

/// Calls decode(offsets, values) for the offsets that lie inside of both cache tensors; the others become NaN. A fault may swap
/// the tensors: so what lies in one of them alone is inside only if they have dims of their own, and no fault swaps those.
template <typename Decode>
void decode_inside(const Facts& f, Side side, std::span<const std::int64_t> at, Decode&& decode, std::span<double> to) {
  const Tensor &k = f.cache.k, &v = f.cache.v;
  const std::int64_t own = extent(cache_tensor(f, side));
  const std::int64_t bits = std::min(extent(k) * bits_of(k.dtype), extent(v) * bits_of(v.dtype));
  const std::int64_t end = f.has_equal_dims() ? bits / std::max(bits_of(k.dtype), bits_of(v.dtype)) : own;
  bool inside = true;
  for (const std::int64_t i : at) inside = inside && i >= 0 && i < end;
  if (inside) return decode(at, to.data());
  for (std::size_t d = 0; d < to.size(); ++d) {
    to[d] = kNaN;
    if (at[d] >= 0 && at[d] < end) decode(at.subspan(d, 1), &to[d]);
  }
}

/// Buffers that one evaluation reuses from row to row.
struct Scratch {
  std::vector<Key> keys;
  std::vector<std::int64_t> at;
  std::vector<double> query, vector, scores, p;
};

/// A row of fp8_ds_mla as it is stored: f32, in which Facts::cache has it, would round.
void load_latent_row(const Facts& f, Side side, const Place& place, std::span<double> to) {
  if (place.offset < 0 || place.offset >= f.page_size) return std::fill(to.begin(), to.end(), kNaN);
  const LatentBytes row = latent_bytes(f.stored, side, place.page, place.offset);
  for (std::size_t d = 0; d < to.size(); ++d) to[d] = row.value(static_cast<std::int64_t>(d));
}

void load_cached(const Model& m, Side side, const Place& place, std::int64_t head, std::vector<std::int64_t>& at,
                 std::span<double> to) {
  const Tensor& t = cache_tensor(*m.facts, side);
  if (place.page < 0 || place.page >= m.facts->num_pages) return std::fill(to.begin(), to.end(), kNaN);
  if (m.facts->has_latent_rows() && head == 0 && !m.elements.replaced() && !m.decode.replaced())
    return load_latent_row(*m.facts, side, place, to);
  at.resize(to.size());
  m.elements(side, place, head, at);
  decode_inside(
      *m.facts, side, at, [&](std::span<const std::int64_t> some, double* values) { m.decode(side, t.data, some, values); }, to);
  if (is_four_bit(t.dtype)) m.blocks(side, place, head, to);
}

/// A K or V vector as a model reads it: stored values and one factor, or own values if a fault changes the vector.
struct Loaded {
  const float* stored = nullptr;  ///< vector in DecodedPages; nullptr: `values` hold it
  double scale = 1;
};

/// Whether the model reads elements of the cache unchanged.
bool reads_as_stored(const Model& m) {
  return !m.elements.replaced() && !m.decode.replaced() && !m.blocks.replaced() && !m.vector && !m.facts->dequantised_to_query &&
         !m.facts->has_latent_rows();
}

/// `values` (which has the dims that are wanted) is filled only if nothing is stored.
Loaded load(const Model& m, const Row& row, Side side, std::int64_t position, std::vector<std::int64_t>& at,
            std::span<double> values) {
  if (reads_as_stored(m)) {
    const Place place = m.place(m, row, side, position);
    const std::int64_t head = m.kv_head(row, side);
    if (place.kind == Place::Kind::cache)
      if (const float* stored = m.facts->decoded.slot(side, place.page, place.offset, head); stored != nullptr)
        return {stored, m.scale(side, place, head) * (side == Side::value ? m.facts->value_unit : 1)};
  }
  load_vector(m, row, side, position, at, values);
  return {};
}

/// Four sums, so that the processor does not wait for one.
template <typename T>
double dot(const double* a, const T* b, std::size_t n) {
  double sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (std::size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * static_cast<double>(b[i + j]);
  for (; i < n; ++i) sums[0] += a[i] * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// out += weight * v. The vectors do not overlap and a step has a fixed length: GCC 12 vectorises no other loop at -O2.
template <typename T>
void add(double weight, const T* __restrict v, double* __restrict out, std::size_t dims) {
  constexpr std::size_t kStep = 8;
  std::size_t d = 0;
  for (; d + kStep <= dims; d += kStep)
    for (std::size_t j = 0; j < kStep; ++j) out[d + j] += weight * static_cast<double>(v[d + j]);
  for (; d < dims; ++d) out[d] += weight * static_cast<double>(v[d]);
}

/// Keys between two questions whether the call shall end: some microseconds of work.
constexpr std::size_t kKeysPerQuestion = 64;

/// The score of every key, in s.scores. NaN in a masked key's K stays out.
void score_keys(const Model& m, const Row& row, Scratch& s) {
  const auto dims = static_cast<std::size_t>(m.dims);
  for (std::size_t d = 0; d < dims; ++d) s.query[d] = m.query(row, static_cast<std::int64_t>(d));
  for (const Key& key : s.keys) {
    if (s.scores.size() % kKeysPerQuestion == 0) end_if_interrupted();
    if (key.weight == 0) {
      s.scores.push_back(kNegInf);
      continue;
    }
    const Loaded k = load(m, row, Side::key, key.position, s.at, std::span(s.vector).first(dims));
    const double product =
        k.stored != nullptr ? k.scale * dot(s.query.data(), k.stored, dims) : dot(s.query.data(), s.vector.data(), dims);
    s.scores.push_back(m.score(m, row, key.position, product));
  }
}

double true_softmax(const Model& m, const Row& row, std::span<const Key> keys, std::span<const double> scores,
                    std::vector<double>& p) {
  const double sink = m.sink(row), max = largest(scores, sink);
  p.assign(keys.size(), 0.0);
  if (max == kNegInf) return kNegInf;
  double denominator = sink == kNegInf ? 0 : m.weight(sink, max);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].weight != 0) p[i] = keys[i].weight * m.weight(scores[i], max);
    denominator += p[i];
  }
  for (double& weight : p) weight /= denominator;
  return max + std::log(denominator);
}

/// Limits a belief about lengths to the table and this step's rows, after which no sequence with rows ends. A larger belief, such
/// as the seq_len of a request without rows, which may be anything, would take hours of walking unowned memory.
Row within_table(const Facts& f, Row row) {
  const std::int64_t end = f.max_pages_per_req * f.page_size + f.num_tokens;
  row.seq_len = std::min(row.seq_len, end);
  if (!f.has_masks) row.q_pos = std::min(row.q_pos, end - 1);
  return row;
}

constexpr double kLargestCode = 448;  // largest finite value of fp8_e4m3fn
bool saturates(const Facts& f) { return f.batch.output.dtype == DType::fp8_e4m3fn; }

RowResult evaluate_row(const Model& m, const RowHead& at, Scratch& s) {
  const Facts& f = *m.facts;
  const Row row = within_table(f, m.row(at.token, at.head));
  RowResult result;
  result.out.assign(Facts::at(f.v_head_dim), 0.0);
  result.lse = kNegInf;
  if (!row.written) {
    result.written = false;
    m.finish(row, result);
    return result;
  }
  s.keys.clear();
  s.scores.clear();
  s.query.resize(Facts::at(f.head_dim));
  s.vector.resize(Facts::at(std::max(f.head_dim, f.v_head_dim)));
  m.keys(row, s.keys);
  score_keys(m, row, s);
  result.lse = m.softmax(m, row, s.keys, s.scores, s.p);
  for (std::size_t i = 0; result.lse != kNegInf && i < s.keys.size(); ++i) {
    if (i % kKeysPerQuestion == 0) end_if_interrupted();
    const Loaded v = load(m, row, Side::value, s.keys[i].position, s.at, std::span(s.vector).first(result.out.size()));
    if (v.stored != nullptr) {
      add(s.p[i] * v.scale, v.stored, result.out.data(), result.out.size());
    } else {
      add(s.p[i], s.vector.data(), result.out.data(), result.out.size());
    }
  }
  m.finish(row, result);
  if (saturates(f))
    for (double& x : result.out) x = std::clamp(x, -kLargestCode, kLargestCode);  // NaN stays
  return result;
}

}  // namespace

Facts::Facts(const Batch& b, const KVCache& c, const Options& o)
    : batch(b), stored(c), real(c), cache(real.cache()), options(o), decoded(cache) {
  num_tokens = num_request_rows(b);
  if (b.output_scale.present()) value_unit = 1 / static_cast<double>(semantics::load(b.output_scale.data, DType::f32, 0));
  num_q_heads = b.query.shape[1];
  head_dim = b.query.shape[2];
  v_head_dim = b.output.shape[2];
  num_kv_heads = quire::num_kv_heads(c);
  page_size = quire::page_size(c);
  num_pages = quire::num_pages(c);
  group = num_q_heads / num_kv_heads;
  num_reqs = b.seq_lens.shape[0];
  max_pages_per_req = b.block_table.shape[1];
  query_start_loc = semantics::indices_of(b.query_start_loc);
  seq_lens = semantics::indices_of(b.seq_lens);
  cached_lens = b.cached_lens.present() ? semantics::indices_of(b.cached_lens) : seq_lens;
  key_begin = b.key_begin.present() ? semantics::indices_of(b.key_begin) : std::vector<std::int64_t>(seq_lens.size(), 0);
  q_begin = semantics::indices_of(b.q_begin);
  for (std::int64_t r = 0; r < num_reqs; ++r) {
    if (!b.q_begin.present()) q_begin.push_back(key_begin[at(r)] + context_len(r));
    const auto* flags = static_cast<const std::uint8_t*>(b.causal.data);
    causal.push_back(b.causal.present() ? flags[r * b.causal.stride[0]] != 0 : o.causal);
  }
  has_shapes = o.attention_chunk || has_prefix() || b.spans.present() || b.tree_mask.present();
  prefix_lens =
      b.prefix_lens.present() ? semantics::indices_of(b.prefix_lens) : std::vector(seq_lens.size(), o.prefix_len.value_or(0));
  tree_lens = b.tree_lens.present() ? semantics::indices_of(b.tree_lens) : std::vector<std::int64_t>(seq_lens.size(), 0);
  spans.resize(seq_lens.size());
  for (std::int64_t r = 0; b.spans.present() && r < num_reqs; ++r)
    for (std::int64_t i = 0; i < b.spans.shape[1]; ++i)
      if (const Span span = span_of(b, r, i); span.begin < span.end) spans[at(r)].push_back(span);
  has_masks = !causal_at_end() || has_shapes;
}

bool Facts::tree_bit(std::int64_t token, std::int64_t bit) const {
  const Tensor& t = batch.tree_mask;
  if (token < 0 || token >= t.shape[0] || bit < 0 || bit >= 8 * t.shape[1]) return false;
  return (static_cast<const std::uint8_t*>(t.data)[token * t.stride[0] + bit / 8 * t.stride[1]] >> (bit % 8) & 1) != 0;
}

std::int64_t Facts::req_of(std::int64_t token) const {
  // The last request that starts at or before the token: requests without rows are stepped over.
  const auto after = std::upper_bound(query_start_loc.begin(), query_start_loc.end() - 1, token);
  return after - query_start_loc.begin() - 1;
}

std::int64_t Facts::page(std::int64_t req, std::int64_t column) const {
  const Tensor& t = batch.block_table;
  if (column < 0 || column >= t.shape[1] || req < 0 || req >= t.shape[0]) return 0;
  const std::int64_t id = semantics::index_at(t, req, column);
  return id >= 0 && id < num_pages ? id : kNotAPage;
}

bool Facts::v_is_in_k() const {
  const Tensor &k = cache.k, &v = cache.v;
  return k.data == v.data && cache.layout != CacheLayout::packed && v_head_dim <= head_dim && k.stride == v.stride;
}

std::int64_t Facts::max_query_len() const {
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < num_reqs; ++r) longest = std::max(longest, query_len(r));
  return longest;
}

std::int64_t Facts::max_seq_len() const { return seq_lens.empty() ? 0 : *std::max_element(seq_lens.begin(), seq_lens.end()); }

std::int64_t Facts::first_key(std::int64_t q_pos) const {
  return windowed() ? std::max<std::int64_t>(0, q_pos - window() + 1) : 0;
}

std::int64_t Facts::last_key(std::int64_t q_pos, bool is_causal) const {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  if (is_causal) return q_pos;
  return q_pos + std::min(options.window_right.value_or(kFar), kFar);
}

std::int64_t Facts::last_key_of(const Row& row) const { return std::min(last_key(row.q_pos, row.causal), row.seq_len - 1); }

std::vector<Span> Facts::seen_by(std::int64_t req, std::int64_t q_pos) const {
  const Row row = row_of(*this, req, query_start_loc[at(req)] + q_pos - first_position(req));
  const std::int64_t first = first_key(q_pos), last = last_key_of(row);
  if (!has_shapes) return first <= last ? std::vector<Span>{{first, last + 1}} : std::vector<Span>{};
  std::vector<Span> seen;
  const std::int64_t tree_begin = row.seq_len - tree_lens[at(req)];
  for (const Span& range : ranges_of(*this, shapes_of(*this), row))
    if (range.begin < tree_begin) seen.push_back({range.begin, std::min(range.end, tree_begin)});
  for (std::int64_t b = 0; b < tree_lens[at(req)]; ++b) {
    if (!tree_bit(row.token, b)) continue;
    if (seen.empty() || seen.back().end < tree_begin + b) seen.push_back({tree_begin + b, tree_begin + b});
    ++seen.back().end;
  }
  return seen;
}

bool Facts::sees(const Row& row, std::int64_t position) const {
  if (!has_shapes) return position >= first_key(row.q_pos) && position <= last_key_of(row);
  for (const Span& range : seen_by(row.req, row.q_pos))
    if (position >= range.begin && position < range.end) return true;
  return false;
}

Span Facts::hull(std::int64_t req, std::int64_t q_pos) const {
  const std::vector<Span> seen = seen_by(req, q_pos);
  return seen.empty() ? Span{first_key(q_pos), first_key(q_pos)} : Span{seen.front().begin, seen.back().end};
}

std::int64_t Facts::num_visible(std::int64_t req, std::int64_t q_pos) const {
  std::int64_t count = 0;
  for (const Span& range : seen_by(req, q_pos)) count += range.end - range.begin;
  return count;
}

std::vector<Span> Facts::reach(std::int64_t req) const {
  const std::int64_t rows = query_len(req), first = first_position(req), num_keys = seq_lens[at(req)];
  std::vector<Span> ranges, apart;
  if (rows > 0 && !has_shapes) ranges.push_back({first_key(first), last_key(first + rows - 1, causal[at(req)]) + 1});
  for (std::int64_t i = 0; i < rows && has_shapes; ++i)
    for (const Span& seen : seen_by(req, first + i)) ranges.push_back(seen);
  std::sort(ranges.begin(), ranges.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (const Span& range : ranges) {
    const Span inside{std::max<std::int64_t>(range.begin, 0), std::min(range.end, num_keys)};
    if (inside.begin >= inside.end) continue;
    if (apart.empty() || apart.back().end < inside.begin) apart.push_back(inside);
    apart.back().end = std::max(apart.back().end, inside.end);
  }
  return apart;
}

bool Facts::causal_at_end() const {
  for (std::int64_t r = 0; r < num_reqs; ++r)
    if (!causal[at(r)] || first_position(r) != context_len(r)) return false;
  return true;
}

void append_keys(std::int64_t first, std::int64_t last, std::vector<Key>& keys) {
  for (std::int64_t k = first; k <= last; ++k) keys.push_back({k, 1});
}

double largest(std::span<const double> scores, double sink) {
  double max = sink;
  for (const double score : scores)
    if (score > max || std::isnan(score)) max = score;
  return max;
}

/// The value of every code of a type of 8 bits.
static const std::array<double, 256>& code_values(DType dtype) {
  static const auto tables = [] {
    std::array<std::array<double, 256>, 5> all{};
    for (std::size_t code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      all[0][code] = semantics::fp8_decode<semantics::E4m3fn>(byte);
      all[1][code] = semantics::fp8_decode<semantics::E4m3fnuz>(byte);
      all[2][code] = semantics::fp8_decode<semantics::E5m2>(byte);
      all[3][code] = semantics::fp8_decode<semantics::E5m2fnuz>(byte);
      all[4][code] = static_cast<std::int8_t>(byte);
    }
    return all;
  }();
  switch (dtype) {
    case DType::fp8_e4m3fn: return tables[0];
    case DType::fp8_e4m3fnuz: return tables[1];
    case DType::fp8_e5m2: return tables[2];
    case DType::fp8_e5m2fnuz: return tables[3];
    default: return tables[4];
  }
}

/// Values of all f16 codes. A table is faster than decoding, and a diagnosis decodes the same cache a thousand times.
static const std::vector<float>& f16_values() {
  static const std::vector<float> table = [] {
    std::vector<float> all(std::size_t{1} << 16);
    for (std::size_t code = 0; code < all.size(); ++code) all[code] = semantics::f16_decode(static_cast<std::uint16_t>(code));
    return all;
  }();
  return table;
}

/// Decodes `count` elements, number i at offset at(i).
template <typename At>
static void decode_each(DType dtype, const void* data, std::size_t count, At&& at, double* values) {
  const auto decode = [&](auto type) {
    for (std::size_t i = 0; i < count; ++i) values[i] = semantics::load(data, type(), at(i));
  };
  switch (dtype) {
    case DType::f32: return decode([] { return DType::f32; });
    case DType::f16: {
      const std::vector<float>& values_of = f16_values();
      for (std::size_t i = 0; i < count; ++i) values[i] = values_of[static_cast<const std::uint16_t*>(data)[at(i)]];
      return;
    }
    case DType::bf16: return decode([] { return DType::bf16; });
    case DType::nvfp4:
    case DType::mxfp4:
      for (std::size_t i = 0; i < count; ++i) values[i] = semantics::e2m1_decode(semantics::load_code4(data, at(i)));
      return;
    default: break;
  }
  const std::array<double, 256>& values_of = code_values(dtype);
  for (std::size_t i = 0; i < count; ++i) values[i] = values_of[static_cast<const std::uint8_t*>(data)[at(i)]];
}

std::array<std::int64_t, Tensor::kMaxRank> code_strides(const Tensor& t) {
  std::array<std::int64_t, Tensor::kMaxRank> strides = t.stride;
  if (is_four_bit(t.dtype))
    for (int i = 0; i < 3; ++i) strides[static_cast<std::size_t>(i)] *= 2;
  return strides;
}

double block_scale(const KVCache& cache, Side side, const Place& place, std::int64_t head, std::int64_t block) {
  const Tensor& t = side == Side::key ? cache.k_block_scale : cache.v_block_scale;
  const std::int64_t at[] = {place.page, place.offset, head, block};
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.rank != 4 || at[i] < 0 || at[i] >= t.shape[i]) return kNaN;
    offset += at[i] * t.stride[i];
  }
  const DType cached = side == Side::key ? cache.k.dtype : cache.v.dtype;
  return semantics::block_scale_decode(cached, static_cast<const std::uint8_t*>(t.data)[offset]);
}

void decode_as(DType dtype, const void* data, std::span<const std::int64_t> at, double* values) {
  decode_each(dtype, data, at.size(), [&](std::size_t i) { return at[i]; }, values);
}

void elements_as(CacheLayout layout, Side side, std::span<const std::int64_t> s, std::int64_t x, const Place& p,
                 std::int64_t head, std::span<std::int64_t> at) {
  const auto strided = [&](std::int64_t base, std::int64_t stride) {
    for (std::size_t d = 0; d < at.size(); ++d) at[d] = base + static_cast<std::int64_t>(d) * stride;
  };
  switch (layout) {
    case CacheLayout::nhd: return strided(p.page * s[0] + p.offset * s[1] + head * s[2], s[3]);
    case CacheLayout::hnd: return strided(p.page * s[0] + head * s[1] + p.offset * s[2], s[3]);
    case CacheLayout::packed: break;
  }
  if (side == Side::value) return strided(p.page * s[0] + head * s[1] + p.offset * s[3], s[2]);
  const std::int64_t base = p.page * s[0] + head * s[1] + p.offset * s[3];
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(x, 1));
  for (std::size_t d = 0, chunk = 0; d < at.size(); ++chunk)
    for (std::size_t inner = 0; inner < width && d < at.size(); ++inner, ++d)
      at[d] = base + static_cast<std::int64_t>(chunk) * s[2] + static_cast<std::int64_t>(inner) * s[4];
}

// The functions capture the facts and never the model, so that a Model can be copied.
Model::Model(const Facts& truth) : facts(&truth), dims(truth.head_dim) {
  const Facts* f = facts;
  row = [f](std::int64_t token, std::int64_t head) { return true_row(*f, token, head); };
  keys = [f](const Row& r, std::vector<Key>& list) { true_keys(*f, r, list); };
  table = [f](std::int64_t req, std::int64_t column) { return f->page(req, column); };
  kv_head = [f](const Row& r, Side) { return r.query_head / f->group; };
  place = [f](const Model& m, const Row& r, Side, std::int64_t position) { return true_place(*f, m, r, position); };
  elements = [f](Side side, const Place& p, std::int64_t head, std::span<std::int64_t> at) {
    const Tensor& t = cache_tensor(*f, side);
    elements_as(f->cache.layout, side, code_strides(t), f->cache.k.shape[4], p, head, at);
  };
  decode = [f](Side side, const void* data, std::span<const std::int64_t> at, double* values) {
    decode_as(cache_tensor(*f, side).dtype, data, at, values);
  };
  scale = [f](Side side, const Place& p, std::int64_t head) { return true_scale(*f, side, p, head); };
  blocks = [f](Side side, const Place& p, std::int64_t head, std::span<double> to) {
    const auto size = static_cast<std::size_t>(block_size(f->codes(side).dtype));
    for (std::size_t d = 0; size > 0 && d < to.size(); ++d)
      to[d] *= block_scale(f->cache, side, p, head, static_cast<std::int64_t>(d / size));
  };
  query = [f](const Row& r, std::int64_t d) -> double {
    const Tensor& q = f->batch.query;
    const bool inside = r.query_token >= 0 && r.query_token < q.shape[0] && r.query_head >= 0 && r.query_head < q.shape[1] &&
                        d >= 0 && d < q.shape[2];
    if (!inside) return kNaN;
    const Tensor& s = f->batch.q_scale;
    const double factor = s.present() && s.rank == 1 && s.shape[0] > 1 ? per_head(s, r.query_head / f->group, 1)
                          : s.present()                                ? semantics::load(s.data, s.dtype, 0)
                                                                       : 1.0;
    return factor * semantics::load(q.data, q.dtype, r.query_token * q.stride[0] + r.query_head * q.stride[1] + d * q.stride[2]);
  };
  softmax_scale = [f](const Row&) {
    return f->options.softmax_scale ? static_cast<double>(*f->options.softmax_scale)
                                    : 1 / std::sqrt(static_cast<double>(f->head_dim));
  };
  cap = [f](const Row&, double s) {
    if (!f->options.logits_soft_cap) return s;
    const double limit = *f->options.logits_soft_cap;
    return limit * std::tanh(s / limit);
  };
  bias = [f](const Row& r, std::int64_t k) { return slope_of(*f, r.query_head) * static_cast<double>(k - r.q_pos); };
  score = [](const Model& m, const Row& r, std::int64_t k, double dot) {
    return m.cap(r, m.softmax_scale(r) * dot) + m.bias(r, k);
  };
  sink = [f](const Row& r) { return per_head(f->options.sinks, r.query_head, kNegInf); };
  weight = [](double s, double max) { return std::exp(s - max); };
  softmax = true_softmax;
  finish = [](const Row&, RowResult&) {};
  settle();
}

void Model::settle() {
  const auto all = [](auto&... belief) { (belief.settle(), ...); };
  all(row, keys, table, place, kv_head, elements, decode, scale, blocks, vector, query, softmax_scale, cap, bias, score, sink,
      weight, softmax, finish);
}

void load_new_row(const Facts& f, Side side, std::int64_t token, std::int64_t head, std::span<double> to) {
  const Tensor& t = side == Side::key ? f.batch.key : f.batch.value;
  const bool inside = t.present() && token >= 0 && token < t.shape[0] && head >= 0 && head < t.shape[1];
  if (!inside) return std::fill(to.begin(), to.end(), kNaN);
  const std::int64_t first = token * t.stride[0] + head * t.stride[1];
  decode_each(
      t.dtype, t.data, to.size(), [&](std::size_t d) { return first + static_cast<std::int64_t>(d) * t.stride[2]; }, to.data());
}

void load_codes(const Facts& f, DType dtype, Side side, const Place& place, std::int64_t head, std::span<double> to) {
  const Tensor& t = cache_tensor(f, side);
  if (place.page < 0 || place.page >= f.num_pages) return std::fill(to.begin(), to.end(), kNaN);
  std::vector<std::int64_t> at(to.size());
  elements_as(f.cache.layout, side, code_strides(t), f.cache.k.shape[4], place, head, at);
  decode_inside(
      f, side, at, [&](std::span<const std::int64_t> some, double* values) { decode_as(dtype, t.data, some, values); }, to);
}

void store_row(const Batch& b, const RowHead& at, const RowResult& result) {
  if (!result.written) return;
  const Tensor &o = b.output, &l = b.lse;
  for (std::size_t d = 0; d < result.out.size(); ++d)
    semantics::store(o.data, o.dtype, at.token * o.stride[0] + at.head * o.stride[1] + static_cast<std::int64_t>(d) * o.stride[2],
                     static_cast<float>(result.out[d]));
  if (!l.present()) return;
  semantics::store(l.data, l.dtype, at.token * l.stride[0] + at.head * l.stride[1], static_cast<float>(result.lse));
}

double slope_of(const Facts& f, std::int64_t head) { return per_head(f.options.alibi_slopes, head, 0); }

double rounded(DType type, double value) {
  float stored = 0;  // bytes for the widest floating type
  semantics::store(&stored, type, 0, static_cast<float>(value));
  return semantics::load(&stored, type, 0);
}

void load_vector(const Model& m, const Row& row, Side side, std::int64_t position, std::vector<std::int64_t>& at,
                 std::span<double> to) {
  const Place place = m.place(m, row, side, position);
  const std::int64_t head = m.kv_head(row, side);
  switch (place.kind) {
    case Place::Kind::zero: std::fill(to.begin(), to.end(), 0.0); return;
    case Place::Kind::new_row: load_new_row(*m.facts, side, place.token, head, to); break;
    case Place::Kind::cache: load_cached(m, side, place, head, at, to); break;
  }
  const double scale = m.scale(side, place, head);
  if (scale != 1)
    for (double& value : to) value *= scale;
  if (place.kind == Place::Kind::cache && m.facts->dequantised_to_query)
    for (double& value : to) value = rounded(m.facts->batch.query.dtype, value);
  if (side == Side::value && m.facts->value_unit != 1)
    for (double& value : to) value *= m.facts->value_unit;
  if (m.vector) m.vector(row, side, place, head, to);
}

std::vector<RowResult> evaluate(const Model& model, std::span<const RowHead> rows) {
  Scratch scratch;
  std::vector<RowResult> results;
  results.reserve(rows.size());
  for (const RowHead& row : rows) results.push_back(evaluate_row(model, row, scratch));
  return results;
}

}  // namespace quire::faults_detail
