// SPDX-License-Identifier: Apache-2.0
// Makes a batch with data from a problem line, and poisons all memory that must not be read.
//
// Guarantees: the same line gives the same bytes everywhere; no byte is left uninitialised; sizes that do not fit in memory are
// refused before the first allocation. Knows the contract's words, not its rules: check() judges the result like any other batch.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "batch/caught.h"
#include "capture/fill.h"
#include "capture/read_pages.h"
#include "capture/shared_pages.h"
#include "quire/tools/capture.hpp"
#include "semantics/block_scale.h"
#include "semantics/ceil_div.h"
#include "semantics/latent_row.h"
#include "semantics/layout.h"
#include "semantics/page_walk.h"
#include "semantics/token_scale.h"
#include "text/formatted.h"

namespace quire {
namespace {

using capture::fill_unread;
using capture::normal;
using semantics::store_index;

constexpr std::int64_t kSparePages = 3;  // poisoned pages beside those in use
constexpr float kPeakyFactor = 8.0f;     // factor of queries of peaky heads, so that few keys dominate

/// One stream of random numbers per kind of data.
enum What : std::uint64_t { kQuery = 1, kKey = 2, kValue = 3, kSinks = 4, kPages = 5, kTree = 6 };
/// Stands for the request in the streams of tokens that all requests share.
constexpr std::uint64_t kSharedPrefix = ~std::uint64_t{0};

/// Counts that the tensors are made from.
struct Sizes {
  std::int64_t num_tokens = 0, num_reqs = 0;  ///< tokens: rows of requests, then padding rows
  std::int64_t common_pages = 0;              ///< pages that all requests share
  std::int64_t pages_in_use = 0;              ///< enough for every position below seq_len
  std::int64_t num_pages = 0;
  std::int64_t table_width = 1;  ///< most pages of a request + 1, so that every row ends in poison
  bool has_new_rows = false;     ///< some tokens are not in the cache
};

Sizes sizes_of(const ProblemLine& line) {
  const Problem& p = line.problem;
  Sizes s;
  s.num_tokens = p.num_tokens() + p.num_padding_rows;
  s.num_reqs = static_cast<std::int64_t>(p.reqs.size());
  std::map<capture::Branch, std::int64_t> branches;
  for (std::int64_t i = 0; i < s.num_reqs; ++i) {
    const Request& r = p.reqs[static_cast<std::size_t>(i)];
    const std::int64_t pages = semantics::ceil_div(r.seq_len(), p.page_size);
    const std::int64_t shared = capture::shared_pages(line, i);
    s.common_pages = std::max(s.common_pages, std::min(shared, line.shared_pages));
    std::int64_t end = line.shared_pages;
    for (const SharedBranch& branch : line.branches) {
      if (shared <= end) break;
      std::int64_t& most = branches[capture::branch_of(line, i, end)];
      most = std::max(most, std::min(shared - end, branch.pages));
      end += branch.pages;
    }
    s.pages_in_use += pages - shared;
    s.table_width = std::max(s.table_width, pages + 1);
    s.has_new_rows = s.has_new_rows || r.cached_len < r.seq_len();
  }
  s.pages_in_use += s.common_pages;
  for (const auto& [branch, pages] : branches) s.pages_in_use += pages;
  s.num_pages = line.num_pages != 0 ? line.num_pages : s.pages_in_use + kSparePages;
  return s;
}

/// Bytes of all tensors. In double, where no product of the factors overflows.
double bytes_needed(const ProblemLine& line, const Sizes& s) {
  const Problem& p = line.problem;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double dims = real(p.head_dim), v_dims = real(p.out_dim()), row_bytes = real(itemsize(p.q_dtype));
  const double rows = real(s.num_tokens) * real(p.num_q_heads);
  const double query = rows * (dims * row_bytes + v_dims * real(itemsize(p.out_dtype()))) + (p.lse ? 4 * rows : 0);
  const double new_rows = s.has_new_rows ? real(s.num_tokens) * real(p.num_kv_heads) * (dims + v_dims) * row_bytes : 0;
  const double slots = real(s.num_pages) * real(p.page_size);
  const double cache = slots * real(p.num_kv_heads) * real(p.kv_bytes());
  const double indices = real(s.num_reqs) * (real(s.table_width) + 3) + real(s.num_tokens) + 1;
  return query + new_rows + cache + 8 * indices + 8 * real(p.num_q_heads) + 8 * real(p.num_kv_heads);
}

double memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? static_cast<double>(pages) * static_cast<double>(bytes) : 0x1p40;
}

Status check_sizes(const ProblemLine& line, const Sizes& s) {
  if (s.num_pages < s.pages_in_use) {
    return {Code::invalid_argument, formatted("problem line: pages={}: the requests need at least {} pages of {} tokens",
                                              line.num_pages, s.pages_in_use, line.problem.page_size)};
  }
  const double needed = bytes_needed(line, s);
  const double available = memory_bytes();
  if (needed > available) {
    return {Code::unsupported, formatted("problem line: its tensors need {:.1f} GiB, this machine has {:.1f} GiB of memory: {}",
                                         needed * 0x1p-30, available * 0x1p-30, to_string(line).substr(0, 200))};
  }
  return {};
}

/// Deals distinct pages of [0, num_pages) in random order without holding all of them (Fisher-Yates on a virtual array).
class PageDealer {
 public:
  PageDealer(std::int64_t num_pages, std::uint64_t key) : left_(num_pages), key_(key) {}
  std::int64_t next() {
    const std::int64_t at = static_cast<std::int64_t>(capture::uniform(key_, draws_++) % static_cast<std::uint64_t>(left_));
    const std::int64_t page = value_at(at);
    moved_[at] = value_at(--left_);
    return page;
  }

 private:
  std::int64_t value_at(std::int64_t i) const {
    const auto it = moved_.find(i);
    return it == moved_.end() ? i : it->second;
  }
  std::int64_t left_;
  std::uint64_t key_, draws_ = 0;
  std::unordered_map<std::int64_t, std::int64_t> moved_;
};

/// Builds one case; `failed` once memory ran out.
class Maker {
 public:
  Maker(const ProblemLine& line, const Sizes& sizes) : line_(line), p_(line.problem), s_(sizes) {}

  Result<Case> make() {
    allocate_tensors();
    if (failed_) {
      return Status(Code::unsupported,
                    formatted("out of memory: the tensors need {:.3f} GiB", bytes_needed(line_, s_) * 0x1p-30));
    }
    fill_options();
    fill_lengths();
    fill_pages();
    poison_floats();
    fill_query();
    fill_new_rows(c_.batch.key, kKey);
    fill_new_rows(c_.batch.value, kValue);
    if (p_.kv_dtype == DType::fp8_ds_mla) {
      fill_latent_rows();
    } else {
      fill_cache(c_.cache.k, semantics::k_strides(c_.cache), c_.cache.k_scale, kKey);
    }
    if (p_.latent) {  // V is a part of K's rows, filled above
      if (c_.cache.v_scale.present()) fill_any_scale(c_.cache.v_scale, kValue);
    } else {
      fill_cache(c_.cache.v, semantics::v_strides(c_.cache), c_.cache.v_scale, kValue);
    }
    c_.notes["problem"] = to_string(line_);
    return std::move(c_);
  }

 private:
  template <typename... Dims>
  Tensor tensor(DType dtype, Dims... dims) {
    Tensor t = Tensor::contiguous(nullptr, dtype, dims...);
    t.data = c_.allocate(static_cast<std::size_t>(t.num_elements() * itemsize(dtype)));
    failed_ = failed_ || t.data == nullptr;
    return t;
  }

  void allocate_tensors() {
    Batch& b = c_.batch;
    b.query = tensor(p_.q_dtype, s_.num_tokens, p_.num_q_heads, p_.head_dim);
    b.output = tensor(p_.out_dtype(), s_.num_tokens, p_.num_q_heads, p_.out_dim());
    b.q_scale = scale_tensor(p_.q_scale);
    if (p_.out_dtype() == DType::fp8_e4m3fn) b.output_scale = tensor(DType::f32);
    b.query_start_loc = tensor(line_.index_dtype, s_.num_reqs + 1);
    b.seq_lens = tensor(line_.index_dtype, s_.num_reqs);
    b.block_table = tensor(line_.index_dtype, s_.num_reqs, s_.table_width);
    if (p_.has_causal) b.causal = tensor(DType::u8, s_.num_reqs);
    if (p_.has_q_begin) b.q_begin = tensor(line_.index_dtype, s_.num_reqs);
    if (p_.has_key_begin) b.key_begin = tensor(line_.index_dtype, s_.num_reqs);
    if (p_.has_prefix_lens) b.prefix_lens = tensor(line_.index_dtype, s_.num_reqs);
    if (p_.has_spans) b.spans = tensor(line_.index_dtype, s_.num_reqs, most(&Request::num_spans) + 1, 2);
    if (p_.has_tree) {
      b.tree_lens = tensor(line_.index_dtype, s_.num_reqs);
      b.tree_mask = tensor(DType::u8, s_.num_tokens, semantics::ceil_div(std::max<std::int64_t>(1, most(&Request::tree_len)), 8));
    }
    if (s_.has_new_rows) {
      b.cached_lens = tensor(line_.index_dtype, s_.num_reqs);
      b.key = tensor(p_.q_dtype, s_.num_tokens, p_.num_kv_heads, p_.head_dim);
      b.value = tensor(p_.q_dtype, s_.num_tokens, p_.num_kv_heads, p_.out_dim());
    }
    // A slot may exceed int32 although every page id fits.
    const bool wide_slots = s_.num_pages > 2147483647 / p_.page_size;
    b.slot_mapping = tensor(wide_slots ? DType::i64 : line_.index_dtype, s_.num_tokens);
    if (p_.lse) b.lse = tensor(DType::f32, s_.num_tokens, p_.num_q_heads);
    c_.cache.layout = p_.layout;
    const bool has_latent_rows = p_.kv_dtype == DType::fp8_ds_mla;
    c_.cache.k = cache_tensor(kKey);
    if (p_.latent) {
      c_.cache.v = c_.cache.k;
      if (!has_latent_rows) c_.cache.v.shape[3] = p_.out_dim() / (is_four_bit(p_.kv_dtype) ? 2 : 1);
    } else {
      c_.cache.v = cache_tensor(kValue);
    }
    c_.cache.k_scale = cache_scale_tensor(p_.k_scale);
    c_.cache.v_scale = cache_scale_tensor(p_.v_scale);
    allocate_block_scales();
    if (p_.alibi) c_.options.alibi_slopes = tensor(DType::f32, p_.num_q_heads);
    if (p_.sinks) c_.options.sinks = tensor(DType::f32, p_.num_q_heads);
  }

  void allocate_block_scales() {
    KVCache& cache = c_.cache;
    if (is_four_bit(p_.kv_dtype)) cache.k_block_scale = block_scale_tensor(kKey);
    if (!is_four_bit(p_.value_dtype())) return;
    if (!p_.latent) return void(cache.v_block_scale = block_scale_tensor(kValue));
    cache.v_block_scale = cache.k_block_scale;
    cache.v_block_scale.shape[3] = p_.out_dim() / block_size(p_.kv_dtype);
  }

  Tensor block_scale_tensor(What what) {
    return tensor(block_scale_type(type_of(what)), s_.num_pages, p_.page_size, p_.num_kv_heads,
                  dims_of(what) / block_size(type_of(what)));
  }

  std::int64_t most(std::int64_t Request::* member) const {
    std::int64_t value = 0;
    for (const Request& r : p_.reqs) value = std::max(value, r.*member);
    return value;
  }

  DType type_of(What what) const { return what == kKey ? p_.kv_dtype : p_.value_dtype(); }

  Tensor cache_tensor(What what) {
    const DType type = type_of(what);
    const std::int64_t bytes = semantics::latent_row::kBytes, elements = dims_of(what) / (is_four_bit(type) ? 2 : 1);
    const std::int64_t dims = type == DType::fp8_ds_mla ? bytes : elements, x = packed_x(type);
    if (p_.layout == CacheLayout::nhd) return tensor(type, s_.num_pages, p_.page_size, p_.num_kv_heads, dims);
    if (p_.layout == CacheLayout::hnd) return tensor(type, s_.num_pages, p_.num_kv_heads, p_.page_size, dims);
    if (what == kKey) return tensor(type, s_.num_pages, p_.num_kv_heads, dims / x, p_.page_size, x);
    return tensor(type, s_.num_pages, p_.num_kv_heads, dims, p_.page_size);
  }

  Tensor scale_tensor(ScaleKind kind) {
    if (kind == ScaleKind::none) return {};
    return kind == ScaleKind::per_head ? tensor(DType::f32, p_.num_kv_heads) : tensor(DType::f32);
  }

  Tensor cache_scale_tensor(ScaleKind kind) {
    if (kind != ScaleKind::per_token) return scale_tensor(kind);
    return tensor(DType::f32, s_.num_pages, p_.page_size, p_.num_kv_heads);
  }

  void fill_options() {
    c_.batch.padding = p_.padding;
    fill_row_scales();
    c_.options.softmax_scale = p_.softmax_scale;
    c_.options.sliding_window = p_.sliding_window;
    c_.options.causal = p_.causal;
    c_.options.window_right = p_.window_right;
    c_.options.attention_chunk = p_.attention_chunk;
    if (p_.has_prefix && !p_.has_prefix_lens) c_.options.prefix_len = p_.prefix_len;
    c_.options.spans_beyond_window = p_.spans_beyond_window;
    c_.options.logits_soft_cap = p_.logits_soft_cap;
    if (p_.alibi) fill_slopes(static_cast<float*>(c_.options.alibi_slopes.data));
    if (p_.sinks) fill_sinks(static_cast<float*>(c_.options.sinks.data));
  }

  /// Scales that are no powers of two, and differ by head: q_scale 3/16 is N(0,1) times the peaky factor well inside 448, and
  /// output_scale 3/1024 puts outputs between 1.3 and -1.3 into range and saturates what is beyond.
  void fill_row_scales() const {
    const Tensor& q = c_.batch.q_scale;
    for (std::int64_t i = 0; i < q.num_elements(); ++i)
      static_cast<float*>(q.data)[i] = i % 3 == 1 ? 0.375f : i % 3 == 2 ? 0.09375f : 0.1875f;
    if (c_.batch.output_scale.present()) *static_cast<float*>(c_.batch.output_scale.data) = 0x1.8p-9f;
  }

  /// The published slopes (Press et al. 2021): 2^(-8 i / n) for the n heads below a power of two, the odd steps of the next
  /// finer series for the rest; every third negated. Square roots and products are correctly rounded, so the bits are fixed.
  void fill_slopes(float* slopes) const {
    std::int64_t n = 1;
    double ratio = 0x1p-8;  // 2^(-8 / n)
    for (; 2 * n <= p_.num_q_heads; n *= 2) ratio = std::sqrt(ratio);
    double slope = ratio;
    for (std::int64_t h = 0; h < std::min(n, p_.num_q_heads); ++h, slope *= ratio) slopes[h] = static_cast<float>(slope);
    slope = std::sqrt(ratio);
    for (std::int64_t h = n; h < p_.num_q_heads; ++h, slope *= ratio) slopes[h] = static_cast<float>(slope);
    for (std::int64_t h = 2; h < p_.num_q_heads; h += 3) slopes[h] = -slopes[h];
  }

  /// N(0,1) * 2, but 12 for the first head that is not peaky: e^12 outweighs the sum over thousands of N(0,1) scores.
  void fill_sinks(float* sinks) const {
    const std::uint64_t key = capture::stream(line_.seed, kSinks, 0);
    for (std::int64_t h = 0; h < p_.num_q_heads; ++h) sinks[h] = 2 * normal(key, static_cast<std::uint64_t>(h));
    sinks[peaky(0) && p_.num_q_heads > 1 ? 1 : 0] = 12;
  }

  bool peaky(std::int64_t head) const {
    return line_.data == DataKind::normal && (static_cast<std::uint64_t>(head) + line_.seed) % 4 == 3;
  }

  void fill_lengths() const {
    std::int64_t start = 0;
    for (std::int64_t r = 0; r < s_.num_reqs; ++r) {
      store_index(c_.batch.query_start_loc, r, start);
      store_index(c_.batch.seq_lens, r, request(r).seq_len());
      if (c_.batch.cached_lens) store_index(c_.batch.cached_lens, r, request(r).cached_len);
      if (c_.batch.causal) static_cast<std::uint8_t*>(c_.batch.causal.data)[r] = request(r).causal ? 1 : 0;
      if (c_.batch.q_begin) store_index(c_.batch.q_begin, r, request(r).q_begin());
      if (c_.batch.key_begin) store_index(c_.batch.key_begin, r, request(r).key_begin);
      if (c_.batch.prefix_lens) store_index(c_.batch.prefix_lens, r, request(r).prefix_len);
      if (c_.batch.tree_lens) store_index(c_.batch.tree_lens, r, request(r).tree_len);
      if (c_.batch.spans) fill_spans(r);
      if (c_.batch.tree_mask) fill_tree(r, start);
      start += request(r).query_len;
    }
    store_index(c_.batch.query_start_loc, s_.num_reqs, start);
  }

  /// Empty spans follow the last.
  void fill_spans(std::int64_t r) const {
    const Request& req = request(r);
    for (std::int64_t i = 0; i < c_.batch.spans.shape[1]; ++i) {
      const Span span = i < req.num_spans ? p_.spans[static_cast<std::size_t>(req.first_span + i)] : Span{};
      store_index(c_.batch.spans, (r * c_.batch.spans.shape[1] + i) * 2, span.begin);
      store_index(c_.batch.spans, (r * c_.batch.spans.shape[1] + i) * 2 + 1, span.end);
    }
  }

  /// A random tree: the parent of a node is one of the nodes before it, or the context. A row sees its node and what is above it;
  /// a row that stands at no node sees all. Bits behind the tree are 1: who reads them is wrong.
  void fill_tree(std::int64_t r, std::int64_t first_token) const {
    const Request& req = request(r);
    const std::uint64_t key = capture::stream(line_.seed, kTree, static_cast<std::uint64_t>(r));
    const std::int64_t num_bytes = c_.batch.tree_mask.shape[1];
    for (std::int64_t i = 0; i < req.query_len; ++i) {
      auto* bits = static_cast<std::uint8_t*>(c_.batch.tree_mask.data) + (first_token + i) * num_bytes;
      std::fill_n(bits, num_bytes, std::uint8_t{0xFF});
      const std::int64_t own = req.first_row() + i - (req.seq_len() - req.tree_len);
      for (std::int64_t b = 0; b < req.tree_len; ++b)
        if (b != own && own < req.tree_len) bits[b / 8] = static_cast<std::uint8_t>(bits[b / 8] & ~(1 << b % 8));
      if (own >= req.tree_len) continue;
      for (std::int64_t node = own; node >= 0; node = parent_of(key, node))
        bits[node / 8] |= static_cast<std::uint8_t>(1 << node % 8);
    }
  }
  /// -1: the context.
  static std::int64_t parent_of(std::uint64_t key, std::int64_t node) {
    return static_cast<std::int64_t>(capture::mix64(key + static_cast<std::uint64_t>(node)) %
                                     static_cast<std::uint64_t>(node + 1)) -
           1;
  }

  /// Deals pages to every position below seq_len; the table shows only those that hold cached tokens.
  void fill_pages() const {
    PageDealer dealer(s_.num_pages, capture::stream(line_.seed, kPages, 0));
    std::vector<std::int64_t> common(static_cast<std::size_t>(s_.common_pages));
    for (std::int64_t& page : common) page = dealer.next();
    std::map<capture::Branch, std::int64_t> branches;
    std::int64_t token = 0;
    for (std::int64_t r = 0; r < s_.num_reqs; ++r) {
      const Request& req = request(r);
      const std::int64_t shared = capture::shared_pages(line_, r);
      std::vector<std::int64_t> pages(common.begin(), common.begin() + std::min(shared, line_.shared_pages));
      while (static_cast<std::int64_t>(pages.size()) < shared) {
        const auto [at, is_new] = branches.try_emplace(capture::branch_of(line_, r, static_cast<std::int64_t>(pages.size())), 0);
        if (is_new) at->second = dealer.next();
        pages.push_back(at->second);
      }
      while (static_cast<std::int64_t>(pages.size()) < semantics::ceil_div(req.seq_len(), p_.page_size))
        pages.push_back(dealer.next());
      const std::int64_t shown = semantics::ceil_div(req.cached_len, p_.page_size);
      const auto [prefix, window, tree] = p_.visible_ranges(req);
      for (std::int64_t i = 0; i < s_.table_width; ++i) {
        const bool is_hidden =
            prefix.end > 0 && window.end > 0 && i * p_.page_size >= prefix.end && (i + 1) * p_.page_size <= window.begin;
        const std::int64_t page = i < shown && !is_hidden ? pages[static_cast<std::size_t>(i)] : capture::kImpossiblePage;
        store_index(c_.batch.block_table, r * s_.table_width + i, page);
      }
      for (std::int64_t key = req.first_row(); key < req.first_row() + req.query_len; ++key, ++token) {
        if (key < 0 || key >= req.seq_len()) {  // a key of another shard, or no key
          store_index(c_.batch.slot_mapping, token, -1);
          continue;
        }
        const std::int64_t page = pages[static_cast<std::size_t>(key / p_.page_size)];
        store_index(c_.batch.slot_mapping, token, page * p_.page_size + key % p_.page_size);
      }
    }
    while (token < s_.num_tokens) store_index(c_.batch.slot_mapping, token++, -1);
  }

  void poison_floats() const {
    for (const Tensor* t :
         {&c_.batch.query, &c_.batch.output, &c_.batch.key, &c_.batch.value, &c_.batch.lse, &c_.cache.k, &c_.cache.v})
      if (t->present()) fill_unread(*t);
    for (const Tensor* t : {&c_.cache.k_scale, &c_.cache.v_scale})
      if (t->rank == 3) fill_unread(*t);
    for (const Tensor* t : {&c_.cache.k_block_scale, &c_.cache.v_block_scale})
      if (t->present()) fill_unread(*t);
  }

  void fill_query() const {
    std::int64_t row = 0;
    for (std::int64_t r = 0; r < s_.num_reqs; ++r) {
      const std::uint64_t key = capture::stream(line_.seed, kQuery, static_cast<std::uint64_t>(r));
      const std::int64_t first = request(r).q_begin();
      for (std::int64_t position = first; position < first + request(r).query_len; ++position, ++row) {
        for (std::int64_t h = 0; h < p_.num_q_heads; ++h) {
          const float factor = (peaky(h) ? kPeakyFactor : 1.0f) / q_scale_of(h);
          const std::int64_t at = (row * p_.num_q_heads + h) * p_.head_dim;
          for (std::int64_t d = 0; d < p_.head_dim; ++d)
            semantics::store(c_.batch.query.data, p_.q_dtype, at + d,
                             factor * draw(key, (position * p_.num_q_heads + h) * p_.head_dim + d));
        }
      }
    }
  }

  float q_scale_of(std::int64_t h) const {
    const Tensor& t = c_.batch.q_scale;
    if (!t.present()) return 1.0f;
    return static_cast<const float*>(t.data)[t.rank == 0 ? 0 : h / p_.group()];
  }

  float draw(std::uint64_t key, std::int64_t element) const {
    const auto index = static_cast<std::uint64_t>(element);
    return line_.data == DataKind::tiny ? capture::tiny(key, index) : normal(key, index);
  }

  std::int64_t dims_of(What what) const { return what == kKey ? p_.head_dim : p_.out_dim(); }

  /// A real K or V value.
  float kv_value(What what, std::uint64_t key, std::int64_t position, std::int64_t h, std::int64_t d) const {
    return magnitude(what, position, h) * block_magnitude(what, d) * magnitude_of_block(position, d) *
           draw(key, (position * p_.num_kv_heads + h) * dims_of(what) + d);
  }

  /// Blocks of a row of fp8_ds_mla differ, and no block has the magnitude of the same block one token on: a scale of another
  /// block or token shows.
  float magnitude_of_block(std::int64_t position, std::int64_t d) const {
    namespace row = semantics::latent_row;
    if (p_.kv_dtype != DType::fp8_ds_mla || d >= row::kLatentDims) return 1.0f;
    constexpr float kMagnitudes[row::kNumBlocks] = {1.0f, 2.0f, 0.5f, 4.0f};
    return kMagnitudes[(d / row::kBlockDims + position) % row::kNumBlocks];
  }

  /// Real K or V values are draw() times this power of two: with scales, V is larger than K, and neighbouring heads and tokens
  /// differ, so that a swapped, dropped or shared scale shows.
  float magnitude(What what, std::int64_t position, std::int64_t h) const {
    const ScaleKind kind = what == kKey ? p_.k_scale : p_.v_scale;
    const float base = kind != ScaleKind::none && what == kValue ? 2.0f : 1.0f;
    const std::int64_t turn = kind == ScaleKind::per_token || is_four_bit(type_of(what)) ? (h + position) % 3
                              : kind == ScaleKind::per_head                              ? h % 3
                                                                                         : 0;
    return turn == 0 ? base : turn == 1 ? 2 * base : base / 2;
  }

  /// Neighbouring blocks differ too, so that a block scale in another's place shows.
  float block_magnitude(What what, std::int64_t d) const {
    const std::int64_t size = block_size(type_of(what));
    if (size == 0) return 1.0f;
    const std::int64_t turn = d / size % 3;
    return turn == 0 ? 1.0f : turn == 1 ? 0.25f : 2.0f;
  }

  std::uint64_t kv_stream(What what, std::int64_t r, std::int64_t position) const {
    const bool shared = position < capture::shared_pages(line_, r) * p_.page_size;
    if (!shared) return capture::stream(line_.seed, what, static_cast<std::uint64_t>(r));
    const capture::Branch branch = capture::branch_of(line_, r, position / p_.page_size);
    return capture::stream(line_.seed, what, kSharedPrefix - static_cast<std::uint64_t>((branch.level << 32) + branch.group));
  }

  /// key / value: rows that the cache does not hold yet.
  void fill_new_rows(const Tensor& rows, What what) const {
    if (!rows.present()) return;
    std::int64_t row = 0;
    for (std::int64_t r = 0; r < s_.num_reqs; ++r) {
      const Request& req = request(r);
      for (std::int64_t j = req.context_len; j < req.seq_len(); ++j, ++row) {
        if (j < req.cached_len) continue;
        const std::int64_t position = req.key_begin + j;
        const std::uint64_t key = kv_stream(what, r, j);
        for (std::int64_t h = 0; h < p_.num_kv_heads; ++h) {
          const std::int64_t first = (row * p_.num_kv_heads + h) * dims_of(what);
          for (std::int64_t d = 0; d < dims_of(what); ++d)
            semantics::store(rows.data, rows.dtype, first + d, kv_value(what, key, position, h, d));
        }
      }
    }
  }

  /// Calls visit(page, offset, stream key, position) for every cached key that some row sees.
  template <typename Visit>
  void for_each_cached(What what, Visit&& visit) const {
    for (std::int64_t r = 0; r < s_.num_reqs; ++r) {
      const semantics::IndexView pages = semantics::index_row(c_.batch.block_table, r);
      const auto walk = [&](std::int64_t from, std::int64_t to) {
        semantics::for_each_page_run(pages, p_.page_size, from, to,
                                     [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                       for (std::int64_t i = 0; i < count; ++i)
                                         visit(page, offset + i, kv_stream(what, r, position + i),
                                               request(r).key_begin + position + i);
                                     });
      };
      capture::read_pages(p_, c_.batch, r).for_each_range(request(r).cached_len, walk);
    }
  }

  /// k_scale / v_scale: amax over what is stored, divided by the largest value of the type (1 for types that need no scale).
  void fill_scale(const Tensor& scale, What what) const {
    std::vector<float> amax(static_cast<std::size_t>(p_.num_kv_heads), 0.0f);
    for_each_cached(what, [&](std::int64_t, std::int64_t, std::uint64_t key, std::int64_t position) {
      for (std::int64_t h = 0; h < p_.num_kv_heads; ++h) {
        float& most = amax[static_cast<std::size_t>(h)];
        for (std::int64_t d = 0; d < dims_of(what); ++d) most = std::max(most, std::fabs(kv_value(what, key, position, h, d)));
      }
    });
    if (p_.num_kv_heads > 1 && scale.rank == 0) amax[0] = *std::max_element(amax.begin(), amax.end());
    const DType type = type_of(what);
    // A 4-bit cache stores amax as the largest e2m1 code, 6, times the largest e4m3 block scale, 448.
    const float largest = is_code(type) ? semantics::largest_code(type) : is_four_bit(type) ? 6.0f * 448.0f : 1.0f;
    for (std::int64_t i = 0; i < scale.num_elements(); ++i) {
      const float most = amax[static_cast<std::size_t>(i)];
      static_cast<float*>(scale.data)[i] = most > 0 ? most / largest : 1.0f;
    }
  }

  /// The scale that append() gives to the row.
  float token_scale(What what, std::uint64_t key, std::int64_t position, std::int64_t h) const {
    semantics::RowScale row;
    for (std::int64_t d = 0; d < dims_of(what); ++d) row.add(kv_value(what, key, position, h, d));
    return row.of(type_of(what));
  }

  void fill_any_scale(const Tensor& scale, What what) const {
    if (scale.rank == 3) return fill_token_scales(scale, what);
    fill_scale(scale, what);
  }

  void fill_token_scales(const Tensor& scale, What what) const {
    const semantics::TokenScales scales = semantics::token_scales(scale);
    for_each_cached(what, [&](std::int64_t page, std::int64_t offset, std::uint64_t key, std::int64_t position) {
      for (std::int64_t h = 0; h < p_.num_kv_heads; ++h) scales.at(page, offset, h) = token_scale(what, key, position, h);
    });
  }

  /// The row as append() stores it: 4-bit codes and the scales of their blocks.
  void fill_blocks(const Tensor& cache, const semantics::BlockScales& scales, std::int64_t row, std::int64_t page,
                   std::int64_t offset, std::int64_t h, const std::vector<float>& values) const {
    const std::int64_t size = block_size(cache.dtype), count = static_cast<std::int64_t>(values.size());
    for (std::int64_t first = 0; first < count; first += size) {
      semantics::BlockScale found;
      for (std::int64_t d = first; d < first + size; ++d) found.add(values[static_cast<std::size_t>(d)]);
      const std::uint8_t code = found.code(cache.dtype);
      scales.code_at(page, offset, h, first / size) = code;
      const float scale = semantics::block_scale_decode(cache.dtype, code);
      for (std::int64_t d = first; d < first + size; ++d)
        semantics::store_code4(cache.data, row + d, semantics::encode_in_block(values[static_cast<std::size_t>(d)], scale));
    }
  }

  void fill_cache(const Tensor& cache, const semantics::KvStrides& strides, const Tensor& scale, What what) const {
    const semantics::TokenScales token_scales = semantics::token_scales(scale);
    const semantics::BlockScales block_scales =
        what == kKey ? semantics::k_block_scales(c_.cache) : semantics::v_block_scales(c_.cache);
    if (scale.present()) fill_any_scale(scale, what);
    for_each_cached(what, [&](std::int64_t page, std::int64_t offset, std::uint64_t key, std::int64_t position) {
      for (std::int64_t h = 0; h < p_.num_kv_heads; ++h) {
        const std::int64_t row = strides.row(page, h, offset);
        const float divisor = token_scales.present() ? token_scales.at(page, offset, h)
                              : scale.present()      ? static_cast<const float*>(scale.data)[scale.rank == 0 ? 0 : h]
                                                     : 1.0f;
        if (is_four_bit(cache.dtype)) {
          std::vector<float> values(static_cast<std::size_t>(dims_of(what)));
          for (std::int64_t d = 0; d < dims_of(what); ++d)
            values[static_cast<std::size_t>(d)] = kv_value(what, key, position, h, d) / divisor;
          fill_blocks(cache, block_scales, row, page, offset, h, values);
          continue;
        }
        for (std::int64_t d = 0; d < dims_of(what); ++d)
          semantics::store(cache.data, cache.dtype, row + strides.element(d), kv_value(what, key, position, h, d) / divisor);
      }
    });
  }

  /// Rows as append() writes them.
  void fill_latent_rows() const {
    namespace latent = semantics::latent_row;
    const semantics::KvStrides strides = semantics::k_strides(c_.cache);
    for_each_cached(kKey, [&](std::int64_t page, std::int64_t offset, std::uint64_t key, std::int64_t position) {
      auto* row = static_cast<std::uint8_t*>(c_.cache.k.data) + strides.row(page, 0, offset);
      latent::write_latent(row, [&](std::int64_t d) { return kv_value(kKey, key, position, 0, d); });
      for (std::int64_t d = 0; d < latent::kRopeDims; ++d)
        latent::store_rope(row, d, kv_value(kKey, key, position, 0, latent::kLatentDims + d));
    });
  }

  const Request& request(std::int64_t r) const { return p_.reqs[static_cast<std::size_t>(r)]; }

  const ProblemLine& line_;
  const Problem& p_;
  const Sizes s_;
  Case c_;
  bool failed_ = false;
};

}  // namespace

Result<Case> make_case(const ProblemLine& line) {
  try {
    // The parser is the one place that knows which sizes and combinations are legal.
    if (Result<ProblemLine> parsed = parse_problem_line(to_string(line)); !parsed.ok()) return parsed.status();
    const Sizes sizes = sizes_of(line);
    if (Status s = check_sizes(line, sizes); !s.ok()) return s;
    Result<Case> made = Maker(line, sizes).make();
    if (!made.ok() || line.data != DataKind::tiny) return made;
    if (Status s = poison_case(made.value(), PoisonKind::zero); !s.ok()) return s;
    return made;
  } catch (...) {
    return batch::caught("make_case");
  }
}

}  // namespace quire
