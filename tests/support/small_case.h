// SPDX-License-Identifier: Apache-2.0
// A batch small enough to know by heart: logical values [request][position][head][dim] on one side, the paged, strided,
// quantised tensors on the other. Written apart from src/capture, so that tests of the reference trust nothing but dtype stores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "quire/batch.hpp"
#include "quire/problem.hpp"
#include "semantics/dtype.h"

namespace quire::test {

struct SmallSpec {
  Problem problem;
  DType index_dtype = DType::i32;
  bool strided = false;  ///< gaps between rows, heads, dims and pages of every tensor
  std::uint64_t seed = 1;
};

/// Bytes that outlive the views, filled with a pattern that decodes to NaN in f32, f16, bf16, e4m3fn and e5m2.
class Storage {
 public:
  void* take(std::int64_t bytes, std::uint8_t fill = 0xFF) {
    blocks_.emplace_back(static_cast<std::size_t>(bytes) + 64, fill);
    void* first = blocks_.back().data();
    std::size_t room = blocks_.back().size();
    return std::align(64, static_cast<std::size_t>(bytes), first, room);
  }

 private:
  std::vector<std::vector<std::uint8_t>> blocks_;
};

/// Row-major over `shape`; with `gap`, every dimension's stride is one element more than it needs to be.
inline Tensor make_tensor(Storage& storage, DType dtype, std::vector<std::int64_t> shape, bool gap = false) {
  std::array<std::int64_t, Tensor::kMaxRank> dims{};
  std::copy(shape.begin(), shape.end(), dims.begin());
  Tensor t = Tensor::from_shape(nullptr, dtype, dims, static_cast<int>(shape.size()));
  std::int64_t stride = gap ? 2 : 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = stride;
    stride = stride * std::max<std::int64_t>(1, t.shape[i]) + (gap ? 1 : 0);
  }
  const bool fnuz = dtype == DType::fp8_e4m3fnuz || dtype == DType::fp8_e5m2fnuz;
  t.data = storage.take(stride * itemsize(dtype), fnuz ? 0x80 : 0xFF);
  return t;
}

inline std::int64_t offset(const Tensor& t, std::initializer_list<std::int64_t> index) {
  std::int64_t sum = 0;
  int i = 0;
  for (const std::int64_t n : index) sum += n * t.stride[i++];
  return sum;
}

inline double at(const Tensor& t, std::initializer_list<std::int64_t> index) {
  return semantics::load(t.data, t.dtype, offset(t, index));
}
/// Stores and returns what was really stored.
inline double set(const Tensor& t, std::initializer_list<std::int64_t> index, double value) {
  semantics::store(t.data, t.dtype, offset(t, index), static_cast<float>(value));
  return at(t, index);
}
inline void set_index(const Tensor& t, std::initializer_list<std::int64_t> index, std::int64_t value) {
  if (t.dtype == DType::i64) {
    static_cast<std::int64_t*>(t.data)[offset(t, index)] = value;
  } else {
    static_cast<std::int32_t*>(t.data)[offset(t, index)] = static_cast<std::int32_t>(value);
  }
}

/// [a][b][c] of doubles.
struct Cube {
  std::int64_t b = 0, c = 0;
  std::vector<double> data;
  Cube() = default;
  Cube(std::int64_t na, std::int64_t nb, std::int64_t nc) : b(nb), c(nc), data(static_cast<std::size_t>(na * nb * nc)) {}
  double& operator()(std::int64_t i, std::int64_t j, std::int64_t k) {
    return data[static_cast<std::size_t>((i * b + j) * c + k)];
  }
  double operator()(std::int64_t i, std::int64_t j, std::int64_t k) const {
    return data[static_cast<std::size_t>((i * b + j) * c + k)];
  }
};

class SmallCase {
 public:
  explicit SmallCase(const SmallSpec& spec) : spec_(spec), random_(spec.seed) {
    build_indices();
    build_cache();
    build_rows();
    build_options();
  }

  const Problem& problem() const { return spec_.problem; }
  std::int64_t row_start(std::int64_t r) const { return starts_[static_cast<std::size_t>(r)]; }

  // Logical values as the tensors really hold them: real = stored * scale for cached positions.
  Cube query;              // [token][q head][d]
  std::vector<Cube> k, v;  // [position][kv head][d] of each request
  std::vector<double> slopes, sinks;

  /// Overwrites one logical value and the element that holds it.
  void set_query(std::int64_t token, std::int64_t head, std::int64_t d, double value) {
    query(token, head, d) = set(batch.query, {token, head, d}, value);
  }
  void set_k(std::int64_t r, std::int64_t position, std::int64_t head, std::int64_t d, double value) {
    k[static_cast<std::size_t>(r)](position, head, d) = write(/*is_key=*/true, r, position, head, d, value);
  }
  void set_v(std::int64_t r, std::int64_t position, std::int64_t head, std::int64_t d, double value) {
    v[static_cast<std::size_t>(r)](position, head, d) = write(/*is_key=*/false, r, position, head, d, value);
  }

  Batch batch;
  KVCache cache;
  Options options;

 private:
  double normal() { return std::normal_distribution<double>(0.0, 1.0)(random_); }
  const Request& req(std::int64_t r) const { return spec_.problem.reqs[static_cast<std::size_t>(r)]; }
  std::int64_t num_reqs() const { return static_cast<std::int64_t>(spec_.problem.reqs.size()); }
  std::int64_t pages_of(std::int64_t r) const {
    return (req(r).cached_len + spec_.problem.page_size - 1) / spec_.problem.page_size;
  }

  void build_indices() {
    const Problem& p = spec_.problem;
    std::int64_t total = 0, columns = 1;
    for (std::int64_t r = 0; r < num_reqs(); ++r) total += pages_of(r), columns = std::max(columns, pages_of(r) + 1);
    num_pages_ = total + 3;
    std::vector<std::int64_t> ids(static_cast<std::size_t>(num_pages_));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    batch.block_table = make_tensor(storage_, spec_.index_dtype, {num_reqs(), columns}, spec_.strided);
    batch.seq_lens = make_tensor(storage_, spec_.index_dtype, {num_reqs()}, spec_.strided);
    batch.cached_lens = make_tensor(storage_, spec_.index_dtype, {num_reqs()}, spec_.strided);
    batch.query_start_loc = make_tensor(storage_, spec_.index_dtype, {num_reqs() + 1}, spec_.strided);
    starts_.assign(1, 0);
    set_index(batch.query_start_loc, {0}, 0);
    std::size_t next = 0;
    for (std::int64_t r = 0; r < num_reqs(); ++r) {
      starts_.push_back(starts_.back() + req(r).query_len);
      set_index(batch.query_start_loc, {r + 1}, starts_.back());
      set_index(batch.seq_lens, {r}, req(r).seq_len());
      set_index(batch.cached_lens, {r}, req(r).cached_len);
      tables_.emplace_back();
      for (std::int64_t c = 0; c < columns; ++c) {
        const bool used = c < pages_of(r);
        if (used) tables_.back().push_back(ids[next++]);
        set_index(batch.block_table, {r, c}, used ? tables_.back().back() : 2147480000);
      }
    }
    query = Cube(p.num_tokens(), p.num_q_heads, p.head_dim);
  }

  void build_cache() {
    const Problem& p = spec_.problem;
    const std::int64_t x = packed_x(p.kv_dtype);
    cache.layout = p.layout;
    const auto make = [&](bool is_key) {
      const std::int64_t dims = is_key ? p.head_dim : p.out_dim();
      switch (p.layout) {
        case CacheLayout::nhd:
          return make_tensor(storage_, p.kv_dtype, {num_pages_, p.page_size, p.num_kv_heads, dims}, spec_.strided);
        case CacheLayout::hnd:
          return make_tensor(storage_, p.kv_dtype, {num_pages_, p.num_kv_heads, p.page_size, dims}, spec_.strided);
        case CacheLayout::packed: break;
      }
      return is_key ? make_tensor(storage_, p.kv_dtype, {num_pages_, p.num_kv_heads, dims / x, p.page_size, x}, spec_.strided)
                    : make_tensor(storage_, p.kv_dtype, {num_pages_, p.num_kv_heads, dims, p.page_size}, spec_.strided);
    };
    cache.k = make(true);
    cache.v = make(false);
    build_scale(p.k_scale, cache.k_scale, k_scales_);
    build_scale(p.v_scale, cache.v_scale, v_scales_);
  }

  void build_scale(ScaleKind kind, Tensor& tensor, std::vector<double>& values) {
    values.assign(static_cast<std::size_t>(spec_.problem.num_kv_heads), 1.0);
    if (kind == ScaleKind::none) return;
    const bool per_head = kind == ScaleKind::per_head;
    tensor = per_head ? make_tensor(storage_, DType::f32, {spec_.problem.num_kv_heads}, spec_.strided)
                      : make_tensor(storage_, DType::f32, {});
    for (std::size_t h = 0; h < values.size(); ++h) {
      if (per_head)
        values[h] = set(tensor, {static_cast<std::int64_t>(h)}, std::exp(0.5 * normal()));
      else
        values[h] = h == 0 ? set(tensor, {}, std::exp(0.5 * normal())) : values[0];
    }
  }

  void build_rows() {
    const Problem& p = spec_.problem;
    batch.query = make_tensor(storage_, p.q_dtype, {p.num_tokens(), p.num_q_heads, p.head_dim}, spec_.strided);
    batch.output = make_tensor(storage_, p.q_dtype, {p.num_tokens(), p.num_q_heads, p.out_dim()}, spec_.strided);
    batch.key = make_tensor(storage_, p.q_dtype, {p.num_tokens(), p.num_kv_heads, p.head_dim}, spec_.strided);
    batch.value = make_tensor(storage_, p.q_dtype, {p.num_tokens(), p.num_kv_heads, p.out_dim()}, spec_.strided);
    if (p.lse) batch.lse = make_tensor(storage_, DType::f32, {p.num_tokens(), p.num_q_heads}, spec_.strided);
    for (std::int64_t t = 0; t < p.num_tokens(); ++t)
      for (std::int64_t h = 0; h < p.num_q_heads; ++h)
        for (std::int64_t d = 0; d < p.head_dim; ++d) set_query(t, h, d, normal());
    for (std::int64_t r = 0; r < num_reqs(); ++r) {
      k.emplace_back(req(r).seq_len(), p.num_kv_heads, p.head_dim);
      v.emplace_back(req(r).seq_len(), p.num_kv_heads, p.out_dim());
      for (std::int64_t position = 0; position < req(r).seq_len(); ++position)
        for (std::int64_t h = 0; h < p.num_kv_heads; ++h)
          for (std::int64_t d = 0; d < std::max(p.head_dim, p.out_dim()); ++d) {
            if (d < p.head_dim) set_k(r, position, h, d, normal());
            if (d < p.out_dim()) set_v(r, position, h, d, normal());
          }
    }
  }

  void build_options() {
    const Problem& p = spec_.problem;
    options.softmax_scale = p.softmax_scale;
    options.sliding_window = p.sliding_window;
    options.logits_soft_cap = p.logits_soft_cap;
    slopes.assign(static_cast<std::size_t>(p.num_q_heads), 0.0);
    sinks.assign(static_cast<std::size_t>(p.num_q_heads), -std::numeric_limits<double>::infinity());
    if (p.alibi) options.alibi_slopes = make_tensor(storage_, DType::f32, {p.num_q_heads}, spec_.strided);
    if (p.sinks) options.sinks = make_tensor(storage_, DType::f32, {p.num_q_heads}, spec_.strided);
    for (std::int64_t h = 0; h < p.num_q_heads; ++h) {
      if (p.alibi) slopes[static_cast<std::size_t>(h)] = set(options.alibi_slopes, {h}, 0.3 * normal());
      if (p.sinks) sinks[static_cast<std::size_t>(h)] = set(options.sinks, {h}, normal());
    }
  }

  /// The element of `position`: in the cache below cached_len, in this step's key/value rows from there on.
  double write(bool is_key, std::int64_t r, std::int64_t position, std::int64_t h, std::int64_t d, double value) {
    const Problem& p = spec_.problem;
    if (position >= req(r).cached_len)
      return set(is_key ? batch.key : batch.value, {row_start(r) + position - req(r).context_len, h, d}, value);
    const double scale = (is_key ? k_scales_ : v_scales_)[static_cast<std::size_t>(h)];
    const std::int64_t page = tables_[static_cast<std::size_t>(r)][static_cast<std::size_t>(position / p.page_size)];
    const std::int64_t slot = position % p.page_size, x = packed_x(p.kv_dtype);
    const Tensor& t = is_key ? cache.k : cache.v;
    switch (p.layout) {
      case CacheLayout::nhd: return scale * set(t, {page, slot, h, d}, value / scale);
      case CacheLayout::hnd: return scale * set(t, {page, h, slot, d}, value / scale);
      case CacheLayout::packed: break;
    }
    if (is_key) return scale * set(t, {page, h, d / x, slot, d % x}, value / scale);
    return scale * set(t, {page, h, d, slot}, value / scale);
  }

  SmallSpec spec_;
  std::mt19937_64 random_;
  Storage storage_;
  std::int64_t num_pages_ = 0;
  std::vector<std::int64_t> starts_;
  std::vector<std::vector<std::int64_t>> tables_;
  std::vector<double> k_scales_, v_scales_;
};

}  // namespace quire::test
