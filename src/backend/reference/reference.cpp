// The oracle: fp64, two passes over the scores, plain loops, written from the equations of docs/design.md section 2.
//
// It shares nothing with the kernels but the decoding of one element (semantics/dtype.h): masking, paging, layouts, softmax
// and scaling are its own, so that a bug in the shared headers cannot hide from it. It reads only what some row may see.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "quire/contract.hpp"
#include "quire/diagnose.hpp"
#include "semantics/dtype.h"

namespace quire {
namespace {

constexpr std::int64_t kLanes = 8;           // keys (scores) or dims (values) computed side by side
constexpr std::int64_t kRowsPerTask = 256;   // rows of one request and KV head that share one decoded copy of K and V
constexpr double kFlushedWeight = 0x1p-102;  // u = 2^-24 of it is 2^-126, below which f32 may flush (docs/numerics.md)
constexpr double kThreadedWork = 4e6;        // multiplications; below this, starting threads costs more than it saves
constexpr double kNegInf = -std::numeric_limits<double>::infinity();

std::int64_t blocks(std::int64_t n) { return (n + kLanes - 1) / kLanes; }

double scalar_or_per_head(const Tensor& t, std::int64_t head, double absent) {
  if (!t.present()) return absent;
  const bool per_head = t.rank == 1 && t.shape[0] > 1;
  return semantics::load(t.data, t.dtype, per_head ? head * t.stride[0] : 0);
}

std::int64_t index_at(const Tensor& t, std::int64_t i) { return semantics::load_index(t.data, t.dtype, i * t.stride[0]); }

/// Query rows [row_begin, row_end) of one request, for all query heads of one KV head.
struct Task {
  std::int64_t req, kv_head, row_begin, row_end;
};

/// Keys [first, first + count) of one request and KV head as real values, in lanes.
struct DecodedKeys {
  std::int64_t first = 0, count = 0;
  std::vector<double> k;  // [blocks(count)][head_dim][kLanes keys]
  std::vector<double> v;  // [blocks(head_dim)][count][kLanes dims]
};

/// The visible keys of one row: which, their logits, weights and rounding magnitudes.
struct RowScores {
  std::vector<std::int64_t> key;  // relative to DecodedKeys::first
  std::vector<double> logit, weight, magnitude;
};

class Oracle {
 public:
  Oracle(const Batch& batch, const KVCache& cache, const Options& options, Reference& result)
      : batch_(batch), cache_(cache), options_(options), result_(result) {
    head_dim_ = batch.query.shape[2];
    num_kv_heads_ = cache.layout == CacheLayout::nhd ? cache.k.shape[2] : cache.k.shape[1];
    page_size_ = cache.layout == CacheLayout::nhd ? cache.k.shape[1] : cache.k.shape[cache.layout == CacheLayout::hnd ? 2 : 3];
    group_ = batch.query.shape[1] / num_kv_heads_;
    scale_ = options.softmax_scale ? *options.softmax_scale : 1.0 / std::sqrt(static_cast<double>(head_dim_));
  }

  std::vector<Task> tasks(double& work) const {
    std::vector<Task> list;
    work = 0;
    for (std::int64_t r = 0; r < batch_.seq_lens.shape[0]; ++r) {
      const std::int64_t rows = query_len(r);
      work += static_cast<double>(rows) * static_cast<double>(index_at(batch_.seq_lens, r)) *
              static_cast<double>(batch_.query.shape[1] * head_dim_);
      for (std::int64_t h = 0; h < num_kv_heads_; ++h)
        for (std::int64_t row = 0; row < rows; row += kRowsPerTask)
          list.push_back({r, h, row, std::min(rows, row + kRowsPerTask)});
    }
    return list;
  }

  void run(const Task& task) const {
    const DecodedKeys keys = decode(task);
    RowScores scores;
    std::vector<double> q(static_cast<std::size_t>(head_dim_));
    for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
      for (std::int64_t g = 0; g < group_; ++g) {
        const std::int64_t head = task.kv_head * group_ + g;
        const std::int64_t token = index_at(batch_.query_start_loc, task.req) + row;
        load_query(token, head, q);
        const std::int64_t q_pos = context_len(task.req) + row;
        score_row(keys, q, q_pos, head, scores);
        const std::int64_t index = token * batch_.query.shape[1] + head;
        if (weigh_row(head, index, scores)) sum_values(keys, scores, index);
      }
    }
  }

 private:
  std::int64_t query_len(std::int64_t r) const {
    return index_at(batch_.query_start_loc, r + 1) - index_at(batch_.query_start_loc, r);
  }
  std::int64_t context_len(std::int64_t r) const { return index_at(batch_.seq_lens, r) - query_len(r); }

  bool visible(std::int64_t k, std::int64_t q_pos) const {
    return k <= q_pos && (!options_.sliding_window || q_pos - k < *options_.sliding_window);
  }

  std::int64_t page_of(std::int64_t req, std::int64_t position) const {
    const Tensor& t = batch_.block_table;
    return semantics::load_index(t.data, t.dtype, req * t.stride[0] + position / page_size_ * t.stride[1]);
  }

  /// Offset of dim d of a cached token in cache.k (`is_key`) or cache.v.
  std::int64_t cache_offset(bool is_key, std::int64_t page, std::int64_t slot, std::int64_t head, std::int64_t d) const {
    const Tensor& t = is_key ? cache_.k : cache_.v;
    const auto& s = t.stride;
    switch (cache_.layout) {
      case CacheLayout::nhd: return page * s[0] + slot * s[1] + head * s[2] + d * s[3];
      case CacheLayout::hnd: return page * s[0] + head * s[1] + slot * s[2] + d * s[3];
      case CacheLayout::packed: break;
    }
    if (!is_key) return page * s[0] + head * s[1] + d * s[2] + slot * s[3];
    const std::int64_t x = t.shape[4];
    return page * s[0] + head * s[1] + d / x * s[2] + slot * s[3] + d % x * s[4];
  }

  DecodedKeys decode(const Task& task) const {
    DecodedKeys out;
    const std::int64_t first_q = context_len(task.req) + task.row_begin;
    const std::int64_t last_q = context_len(task.req) + task.row_end - 1;
    while (!visible(out.first, first_q)) ++out.first;
    out.count = last_q + 1 - out.first;
    out.k.assign(static_cast<std::size_t>(blocks(out.count) * head_dim_ * kLanes), 0.0);
    out.v.assign(static_cast<std::size_t>(blocks(head_dim_) * out.count * kLanes), 0.0);
    const std::int64_t cached =
        batch_.cached_lens.present() ? index_at(batch_.cached_lens, task.req) : index_at(batch_.seq_lens, task.req);
    for (std::int64_t i = 0; i < out.count; ++i) {
      const std::int64_t position = out.first + i;
      if (position < cached) {
        decode_cached(task, position, i, out);
      } else {
        decode_new(task, position, i, out);
      }
    }
    return out;
  }

  void decode_cached(const Task& task, std::int64_t position, std::int64_t i, DecodedKeys& out) const {
    const std::int64_t page = page_of(task.req, position);
    const std::int64_t slot = position % page_size_;
    const double k_scale = scalar_or_per_head(cache_.k_scale, task.kv_head, 1.0);
    const double v_scale = scalar_or_per_head(cache_.v_scale, task.kv_head, 1.0);
    for (std::int64_t d = 0; d < head_dim_; ++d) {
      const std::int64_t k_at = cache_offset(/*is_key=*/true, page, slot, task.kv_head, d);
      const std::int64_t v_at = cache_offset(/*is_key=*/false, page, slot, task.kv_head, d);
      put(out, i, d, k_scale * semantics::load(cache_.k.data, cache_.k.dtype, k_at),
          v_scale * semantics::load(cache_.v.data, cache_.v.dtype, v_at));
    }
  }

  /// Positions [cached_len, seq_len) come from this step's own rows, unscaled.
  void decode_new(const Task& task, std::int64_t position, std::int64_t i, DecodedKeys& out) const {
    const std::int64_t token = index_at(batch_.query_start_loc, task.req) + position - context_len(task.req);
    const auto at = [&](const Tensor& t, std::int64_t d) -> double {
      return semantics::load(t.data, t.dtype, token * t.stride[0] + task.kv_head * t.stride[1] + d * t.stride[2]);
    };
    for (std::int64_t d = 0; d < head_dim_; ++d) put(out, i, d, at(batch_.key, d), at(batch_.value, d));
  }

  void put(DecodedKeys& out, std::int64_t i, std::int64_t d, double k, double v) const {
    out.k[static_cast<std::size_t>((i / kLanes * head_dim_ + d) * kLanes + i % kLanes)] = k;
    out.v[static_cast<std::size_t>((d / kLanes * out.count + i) * kLanes + d % kLanes)] = v;
  }

  void load_query(std::int64_t token, std::int64_t head, std::vector<double>& q) const {
    const Tensor& t = batch_.query;
    for (std::int64_t d = 0; d < head_dim_; ++d)
      q[static_cast<std::size_t>(d)] =
          semantics::load(t.data, t.dtype, token * t.stride[0] + head * t.stride[1] + d * t.stride[2]);
  }

  /// First pass: the logit of every visible key, and |scale| * sum_d |q_d K_kd| + |ALiBi|.
  void score_row(const DecodedKeys& keys, const std::vector<double>& q, std::int64_t q_pos, std::int64_t head,
                 RowScores& row) const {
    row.key.clear();
    row.logit.clear();
    row.magnitude.clear();
    const double slope = options_.alibi_slopes.present() ? per_q_head(options_.alibi_slopes, head) : 0.0;
    for (std::int64_t b = 0; b < blocks(keys.count); ++b) {
      const std::int64_t end = std::min(keys.count, (b + 1) * kLanes);
      const std::int64_t last = keys.first + end - 1;
      if (!visible(std::min(last, q_pos), q_pos)) continue;
      double dot[kLanes] = {}, magnitude[kLanes] = {};
      dot_block(&keys.k[static_cast<std::size_t>(b * head_dim_ * kLanes)], q, dot, magnitude);
      for (std::int64_t i = b * kLanes; i < end; ++i) {
        const std::int64_t k = keys.first + i;
        if (!visible(k, q_pos)) continue;
        const double bias = slope * static_cast<double>(k - q_pos);
        row.key.push_back(i);
        row.logit.push_back(capped(scale_ * dot[i % kLanes]) + bias);
        row.magnitude.push_back(std::fabs(scale_) * magnitude[i % kLanes] + std::fabs(bias));
      }
    }
  }

  void dot_block(const double* k, const std::vector<double>& q, double (&dot)[kLanes], double (&magnitude)[kLanes]) const {
    for (std::int64_t d = 0; d < head_dim_; ++d) {
      const double qd = q[static_cast<std::size_t>(d)];
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const double term = qd * k[d * kLanes + lane];
        dot[lane] += term;
        magnitude[lane] += std::fabs(term);
      }
    }
  }

  double capped(double s) const {
    if (!options_.logits_soft_cap) return s;
    const double cap = *options_.logits_soft_cap;
    return cap * std::tanh(s / cap);
  }

  static double per_q_head(const Tensor& t, std::int64_t head) { return semantics::load(t.data, t.dtype, head * t.stride[0]); }

  /// Second pass over the logits: normalised weights, lse and the mean rounding magnitude. False if there is nothing to sum.
  bool weigh_row(std::int64_t head, std::int64_t index, RowScores& row) const {
    const auto at = static_cast<std::size_t>(index);
    const double sink = options_.sinks.present() ? per_q_head(options_.sinks, head) : kNegInf;
    double max = sink;
    // NaN must reach the result, and a plain > would step over it.
    for (const double s : row.logit)
      if (s > max || std::isnan(s)) max = s;
    result_.num_keys[at] = static_cast<std::int64_t>(row.key.size());
    result_.lse[at] = max;
    if (max == kNegInf) return false;  // no visible key, or only -inf scores: exp(-inf - -inf) would be NaN
    double denominator = std::exp(sink - max);
    row.weight.clear();
    for (const double s : row.logit) {
      row.weight.push_back(std::exp(s - max));
      denominator += row.weight.back();
    }
    result_.lse[at] = max + std::log(denominator);
    const double p_sink = std::exp(sink - max) / denominator;
    double mean = p_sink > 0 ? p_sink * (std::fabs(sink) + std::fabs(sink - max)) : 0.0;
    for (std::size_t i = 0; i < row.weight.size(); ++i) {
      row.weight[i] /= denominator;
      row.magnitude[i] = row.weight[i] == 0 ? 0.0 : row.magnitude[i] + std::fabs(row.logit[i] - max);
      mean += row.weight[i] * row.magnitude[i];
    }
    result_.score_mag[at] = mean;
    return true;
  }

  void sum_values(const DecodedKeys& keys, const RowScores& row, std::int64_t index) const {
    for (std::int64_t b = 0; b < blocks(head_dim_); ++b) {
      const double* v = &keys.v[static_cast<std::size_t>(b * keys.count * kLanes)];
      double out[kLanes] = {}, absolute[kLanes] = {}, scored[kLanes] = {};
      for (std::size_t i = 0; i < row.key.size(); ++i) {
        const double p = row.weight[i], floored = std::max(p, kFlushedWeight), m = p * row.magnitude[i];
        const double* vk = v + row.key[i] * kLanes;
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          out[lane] += p * vk[lane];
          absolute[lane] += floored * std::fabs(vk[lane]);
          scored[lane] += m * std::fabs(vk[lane]);
        }
      }
      const std::int64_t dims = std::min(kLanes, head_dim_ - b * kLanes);
      for (std::int64_t lane = 0; lane < dims; ++lane) {
        const auto at = static_cast<std::size_t>(index * head_dim_ + b * kLanes + lane);
        result_.out[at] = out[lane];
        result_.abs_pv[at] = absolute[lane];
        result_.abs_spv[at] = scored[lane];
      }
    }
  }

  const Batch& batch_;
  const KVCache& cache_;
  const Options& options_;
  Reference& result_;
  std::int64_t head_dim_ = 0, num_kv_heads_ = 0, page_size_ = 0, group_ = 0;
  double scale_ = 0;
};

/// Every task writes rows of its own, so the result does not depend on who runs which.
void run_all(const Oracle& oracle, const std::vector<Task>& tasks, std::size_t num_threads) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> out_of_memory{false};
  const auto worker = [&] {
    try {
      for (std::size_t i = next++; i < tasks.size(); i = next++) oracle.run(tasks[i]);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  };
  std::vector<std::thread> helpers;
  for (std::size_t i = 1; i < std::min(num_threads, tasks.size()); ++i) helpers.emplace_back(worker);
  worker();
  for (std::thread& helper : helpers) helper.join();
  if (out_of_memory) throw std::bad_alloc();
}

}  // namespace

Result<Reference> reference(const Batch& batch, const KVCache& cache, const Options& options) try {
  Reference result;
  result.num_tokens = batch.query.shape[0];
  result.num_q_heads = batch.query.shape[1];
  result.head_dim = batch.query.shape[2];
  const auto rows = static_cast<std::size_t>(result.num_tokens * result.num_q_heads);
  const auto elements = rows * static_cast<std::size_t>(result.head_dim);
  result.out.assign(elements, 0.0);
  result.abs_pv.assign(elements, 0.0);
  result.abs_spv.assign(elements, 0.0);
  result.lse.assign(rows, kNegInf);
  result.score_mag.assign(rows, 0.0);
  result.num_keys.assign(rows, 0);

  const Oracle oracle(batch, cache, options, result);
  double work = 0;
  const std::vector<Task> tasks = oracle.tasks(work);
  run_all(oracle, tasks, work < kThreadedWork ? 1 : std::max(1u, std::thread::hardware_concurrency()));
  return result;
} catch (const std::exception& e) {
  return Status(Code::internal_error, std::string("reference: ") + e.what());
}

}  // namespace quire
