// SPDX-License-Identifier: Apache-2.0
// The random matrix: problem lines over the whole grammar. std::mt19937_64 and integer arithmetic only, so that a seed means the
// same lines everywhere.
#include <algorithm>
#include <array>
#include <random>

#include "semantics/ceil_div.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

constexpr std::int64_t kMaxWorkRandom = 3'000'000;  ///< visible pairs x query heads x head_dim of one case
constexpr std::int64_t kMaxFarWork = 300'000'000;   ///< limit for a line with far requests or large sizes
constexpr std::int64_t kFarOneIn = 24;

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t index) : random_(seed * 0x9E3779B97F4A7C15u + index) {}

  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }
  std::int64_t between(std::int64_t least, std::int64_t most) { return least + below(most - least + 1); }
  bool chance(std::int64_t one_in) { return below(one_in) == 0; }
  template <typename T, std::size_t n>
  T of(const std::array<T, n>& list) {
    return list[static_cast<std::size_t>(below(static_cast<std::int64_t>(n)))];
  }
  std::uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

void draw_types(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  p.q_dtype = draw.of(std::array{DType::f32, DType::f16, DType::bf16});
  p.kv_dtype = draw.of(std::array{p.q_dtype, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2,
                                  DType::fp8_e5m2fnuz});
  p.layout = draw.of(std::array{CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed});
  const std::array kinds{ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head};
  p.k_scale = draw.of(kinds);
  p.v_scale = draw.of(kinds);
  line.index_dtype = draw.chance(2) ? DType::i64 : DType::i32;
}

/// A cache of i8 or fp8 with scales of tokens on one side or on both.
void draw_token_scales(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  if (p.q_dtype == DType::fp8_e4m3fn) return;
  p.kv_dtype = draw.of(std::array{DType::i8, DType::i8, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2});
  const std::array kinds{ScaleKind::per_token, ScaleKind::per_token, ScaleKind::per_head, ScaleKind::per_tensor};
  p.k_scale = draw.of(kinds);
  p.v_scale = draw.of(kinds);
  if (p.layout != CacheLayout::packed) return;
  const std::int64_t x = packed_x(p.kv_dtype);
  p.head_dim = (p.head_dim + x - 1) / x * x;
}

/// A V of another type than K's.
void draw_unlike_types(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  if (p.q_dtype == DType::fp8_e4m3fn || p.latent) return;
  p.v_dtype = draw.of(std::array{DType::i8, p.q_dtype, DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz,
                                 DType::fp8_e5m2, DType::fp8_e5m2fnuz});
  if (p.v_dtype == p.kv_dtype) p.v_dtype = DType::none;
  const std::array kinds{ScaleKind::per_tensor, ScaleKind::per_head, ScaleKind::per_token};
  if (p.value_dtype() == DType::i8 && p.v_scale == ScaleKind::none) p.v_scale = draw.of(kinds);
  if (!is_code(p.value_dtype()) && p.v_scale == ScaleKind::per_token) p.v_scale = ScaleKind::none;
}

/// A side or both of nvfp4 or mxfp4.
void draw_four_bits(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  if (p.q_dtype == DType::fp8_e4m3fn || p.layout == CacheLayout::packed) return;
  const DType v = p.value_dtype();
  const std::array types{DType::nvfp4, DType::mxfp4};
  const std::int64_t sides = p.latent ? 3 : draw.between(1, 3);
  if ((sides & 1) != 0) p.kv_dtype = draw.of(types);
  p.v_dtype = p.latent ? p.kv_dtype : (sides & 2) != 0 ? draw.of(types) : v;
  const std::int64_t dv = p.out_dim();
  if (is_four_bit(p.kv_dtype)) p.head_dim = semantics::round_up(p.head_dim, block_size(p.kv_dtype));
  p.v_head_dim = is_four_bit(p.v_dtype) ? semantics::round_up(dv, block_size(p.v_dtype)) : dv;
  if (p.v_head_dim == p.head_dim) p.v_head_dim = 0;
  if (p.v_dtype == p.kv_dtype) p.v_dtype = DType::none;
  const auto settle = [](DType type, ScaleKind& kind) {
    if (!is_code(type) && kind == ScaleKind::per_token) kind = ScaleKind::none;
  };
  settle(p.kv_dtype, p.k_scale);
  settle(p.value_dtype(), p.v_scale);
}

/// Rows of 8 bits: outputs, or queries if every key is cached.
void draw_row_types(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  p.output_dtype = DType::fp8_e4m3fn;
  if (p.kv_dtype != DType::fp8_e4m3fn) return;
  p.q_dtype = DType::fp8_e4m3fn;
  p.output_dtype = draw.of(std::array{DType::fp8_e4m3fn, DType::bf16, DType::f16, DType::f32});
  p.q_scale = draw.of(std::array{ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head});
  for (Request& r : p.reqs) r.cached_len = r.seq_len();
}

/// Keys of another shard, of another sequence, or of none: as many as are drawn, and rows that stand anywhere beside them.
void draw_place(Draw& draw, Request& r, bool may_lack_keys) {
  constexpr std::array<std::int64_t, 6> kShifts{-200, -40, -3, 0, 5, 90};
  if (may_lack_keys && draw.chance(6)) {
    const std::int64_t keys = draw.chance(2) ? 0 : draw.between(0, r.query_len);
    r.context_len = keys - r.query_len;
    r.cached_len = keys;
  }
  const bool cached = r.cached_len == r.seq_len();
  if (cached) r.shift = std::max(draw.of(kShifts), -(r.key_begin + r.context_len));
}

/// Requests that are not causal, shards of a context, or rows elsewhere.
void draw_masks(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  switch (draw.below(4)) {
    case 0: break;
    case 1: p.causal = false; break;
    default: p.has_causal = true; break;
  }
  if (draw.chance(2)) p.has_key_begin = true;
  p.has_q_begin = draw.chance(2);
  if ((!p.causal || p.has_causal) && draw.chance(2)) p.window_right = draw.of(std::array<std::int64_t, 5>{0, 1, 4, 30, 500});
  for (Request& r : p.reqs) {
    r.causal = p.has_causal ? draw.chance(2) : p.causal;
    if (p.has_key_begin && draw.chance(2)) r.key_begin = draw.of(std::array<std::int64_t, 4>{1, 16, 333, 70000});
    const bool may_lack_keys = !r.causal || p.has_q_begin;
    if (p.has_q_begin) {
      draw_place(draw, r, may_lack_keys);
    } else if (may_lack_keys && draw.chance(4)) {
      r.context_len = draw.between(0, r.query_len) - r.query_len;
      r.cached_len = r.seq_len();
    }
  }
}

/// Up to three spans of a request, ascending, within and around the positions of its keys.
void draw_spans(Draw& draw, Problem& p, Request& r) {
  std::int64_t at = r.key_begin + draw.between(0, std::max<std::int64_t>(0, r.first_row()));
  for (std::int64_t i = draw.between(0, 3); i > 0; --i) {
    const std::int64_t begin = at + draw.between(0, 9), length = draw.of(std::array<std::int64_t, 4>{1, 3, 17, 70});
    if (r.num_spans++ == 0) r.first_span = static_cast<std::int64_t>(p.spans.size());
    p.spans.push_back({begin, begin + length});
    at = begin + length + draw.between(0, 2);
  }
}

/// A chunk, a prefix, spans or a tree, alone or together. Masks are drawn before.
void draw_shapes(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  if (draw.chance(3)) p.attention_chunk = draw.of(std::array<std::int64_t, 6>{1, 3, 16, 33, 100, 8192});
  p.has_prefix = draw.chance(2);
  p.has_prefix_lens = p.has_prefix && draw.chance(2);
  p.has_spans = draw.chance(2);
  p.spans_beyond_window = p.has_spans && draw.chance(2);
  p.has_tree = draw.chance(2);
  const std::array<std::int64_t, 6> prefixes{0, 1, 4, 16, 65, 1000};
  p.prefix_len = p.has_prefix && !p.has_prefix_lens ? draw.of(prefixes) : 0;
  for (Request& r : p.reqs) {
    r.prefix_len = p.has_prefix_lens ? draw.of(prefixes) : p.prefix_len;
    if (p.has_spans) draw_spans(draw, p, r);
    if (p.has_tree && draw.chance(2))
      r.tree_len = std::min({draw.of(std::array<std::int64_t, 5>{1, 7, 8, 60, 256}), r.seq_len(),
                             draw.chance(2) ? std::max<std::int64_t>(r.query_len, 1) : std::int64_t{256}});
  }
}

void draw_sizes(Draw& draw, Problem& p) {
  p.num_kv_heads = draw.of(std::array<std::int64_t, 5>{1, 1, 2, 3, 4});
  p.num_q_heads = p.num_kv_heads * draw.of(std::array<std::int64_t, 7>{1, 1, 2, 3, 4, 5, 8});
  p.head_dim = draw.of(std::array<std::int64_t, 12>{1, 3, 8, 16, 16, 24, 32, 48, 64, 80, 128, 160});
  p.page_size = draw.of(std::array<std::int64_t, 10>{1, 2, 3, 4, 8, 16, 16, 32, 48, 128});
  if (p.layout == CacheLayout::packed) {
    const std::int64_t x = packed_x(p.kv_dtype);
    p.head_dim = semantics::round_up(p.head_dim, x);
  }
}

/// A V with its own head_dim or in K's rows.
void draw_own_v(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  p.v_head_dim = draw.of(std::array<std::int64_t, 12>{1, 5, 8, 16, 24, 32, 40, 64, 96, 128, 144, 272});
  if (p.v_head_dim == p.head_dim) p.v_head_dim = 0;
  p.latent = p.layout != CacheLayout::packed && p.out_dim() <= p.head_dim && draw.chance(2);
}

/// MLA's rows of 656 bytes.
void draw_latent_rows(Draw& draw, ProblemLine& line) {
  Problem& p = line.problem;
  if (p.q_dtype == DType::fp8_e4m3fn) return;
  p.kv_dtype = DType::fp8_ds_mla;
  p.v_dtype = DType::none;
  p.head_dim = 576;
  p.v_head_dim = 512;
  p.latent = true;
  p.num_kv_heads = 1;
  p.num_q_heads = draw.of(std::array<std::int64_t, 4>{1, 3, 16, 20});
  p.k_scale = p.v_scale = ScaleKind::none;
  if (p.layout == CacheLayout::packed) p.layout = CacheLayout::nhd;
}

void draw_options(Draw& draw, Problem& p) {
  if (draw.chance(3)) p.sliding_window = draw.of(std::array<std::int64_t, 8>{1, 2, 3, 7, 16, 33, 100, 5000});
  if (draw.chance(4)) p.logits_soft_cap = draw.of(std::array<float, 3>{1.5f, 8.0f, 50.0f});
  if (draw.chance(6)) p.softmax_scale = draw.of(std::array<float, 3>{0.03125f, 0.25f, 1.0f});
  p.alibi = draw.chance(4);
  p.sinks = draw.chance(4);
  p.lse = draw.chance(2);
}

Request draw_request(Draw& draw) {
  Request r;
  switch (draw.below(6)) {
    case 0: r.query_len = 0; break;
    case 1:
    case 2: r.query_len = 1; break;
    case 3: r.query_len = draw.between(2, 17); break;
    default: r.query_len = draw.between(1, 140); break;
  }
  r.context_len = draw.chance(3) ? 0 : draw.chance(4) ? draw.between(1, 1500) : draw.between(1, 120);
  r.cached_len = r.seq_len();
  if (draw.chance(4)) r.cached_len = r.context_len;
  if (draw.chance(4)) r.cached_len = draw.between(r.context_len, r.seq_len());
  return r;
}

/// Halves the longest request until the case is cheap enough.
void bound_work(Problem& p, std::int64_t most) {
  while (p.visible_pairs() > most / (p.num_q_heads * p.head_dim)) {
    Request& r = *std::max_element(p.reqs.begin(), p.reqs.end(), [](const Request& a, const Request& b) {
      return a.query_len * a.seq_len() < b.query_len * b.seq_len();
    });
    const std::int64_t fresh = (r.seq_len() - r.cached_len) / 2;
    r.query_len = (r.query_len + 1) / 2;
    r.context_len /= 2;
    r.shift /= 2;
    r.cached_len = std::max({r.context_len, r.seq_len() - fresh, std::int64_t{0}});
    if (r.context_len < 0) r.context_len = std::max(r.context_len, -r.query_len), r.cached_len = r.seq_len();
    r.tree_len = std::min(r.tree_len, r.seq_len());
  }
}

/// A part of the grammar that one line of `one_in` draws. A random stream of its own leaves other lines as they are.
struct Rare {
  void (*draw)(Draw& draw, ProblemLine& line);
  std::int64_t one_in;
  std::uint64_t stream;
  bool chooses_types = false;  ///< random types; false where types are asked for
  bool widens_rows = false;    ///< wider rows; false in lines that reach far, whose heads are narrow
};
constexpr Rare kRare[] = {
    {draw_row_types, 8, 0x8B175, /*chooses_types=*/true},
    {draw_token_scales, 10, 0x70C35, /*chooses_types=*/true},
    {draw_masks, 5, 0x3A5C5},
    {draw_shapes, 6, 0x5BA9E},
    {draw_own_v, 6, 0xD1335, /*chooses_types=*/false, /*widens_rows=*/true},
    {draw_unlike_types, 8, 0x0E7BE, /*chooses_types=*/true},
    {draw_four_bits, 8, 0x4B175, /*chooses_types=*/true},
    {draw_latent_rows, 25, 0x656, /*chooses_types=*/true, /*widens_rows=*/true},
};

Request with_everything_cached(std::int64_t query_len, std::int64_t context_len) {
  return {query_len, context_len, query_len + context_len};
}

/// Far more requests, rows or keys than other lines have, over few and narrow heads.
void reach_far(Draw& draw, Problem& p) {
  const std::int64_t group = std::min<std::int64_t>(p.group(), 3);
  p.num_kv_heads = std::min<std::int64_t>(p.num_kv_heads, 2);
  p.num_q_heads = group * p.num_kv_heads;
  p.head_dim = draw.chance(3) ? 32 : 16;  // the packed layout takes both
  if (draw.chance(2)) p.sliding_window.reset();
  switch (draw.below(3)) {
    case 0:
      p.reqs.clear();
      for (std::int64_t n = draw.between(33, 400); n > 0; --n)
        p.reqs.push_back(with_everything_cached(draw.chance(8) ? draw.between(0, 5) : 1, draw.between(0, 150)));
      break;
    case 1: {
      const std::int64_t rows = draw.of(std::array<std::int64_t, 5>{300, 600, 1200, 2500, 4900}) + draw.below(100);
      p.reqs.push_back(with_everything_cached(rows, draw.chance(2) ? 0 : draw.below(500)));
      break;
    }
    default: {
      const std::int64_t context = draw.of(std::array<std::int64_t, 5>{5000, 9000, 33000, 66000, 130000}) + draw.below(500);
      p.reqs.push_back(with_everything_cached(draw.chance(2) ? 1 : draw.between(2, 9), context));
      break;
    }
  }
  std::swap(p.reqs.back(), p.reqs[static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(p.reqs.size())))]);
}

}  // namespace

void remove_shapes(Problem& p) {
  p.attention_chunk.reset();
  p.has_prefix = p.has_prefix_lens = p.has_spans = p.has_tree = p.spans_beyond_window = false;
  p.prefix_len = 0;
  p.spans.clear();
  for (Request& r : p.reqs) r.prefix_len = r.tree_len = r.first_span = r.num_spans = 0;
}

void remove_masks(Problem& p) {
  remove_shapes(p);
  p.causal = true;
  p.has_causal = p.has_q_begin = p.has_key_begin = false;
  p.window_right.reset();
  for (Request& r : p.reqs) {
    const bool cached = r.cached_len == r.seq_len();
    r.causal = true;
    r.shift = r.key_begin = 0;
    r.context_len = std::max<std::int64_t>(0, r.context_len);
    if (cached) r.cached_len = r.seq_len();
  }
}

std::optional<ProblemLine> random_line(std::uint64_t seed, std::uint64_t index, const AskedTypes& asked) {
  Draw draw(seed, index);
  ProblemLine line;
  draw_types(draw, line);
  draw_sizes(draw, line.problem);
  draw_options(draw, line.problem);
  for (std::int64_t n = draw.between(1, 6); n > 0; --n) line.problem.reqs.push_back(draw_request(draw));
  bound_work(line.problem, kMaxWorkRandom);
  Draw far(~seed, index);
  const bool reaches_far = far.chance(kFarOneIn);
  if (reaches_far) reach_far(far, line.problem);
  if (draw.chance(5)) line.shared_pages = draw.between(1, 4);
  line.seed = draw.bits() % 1000000;
  for (const Rare& rare : kRare) {
    if ((rare.chooses_types && !asked.empty()) || (rare.widens_rows && reaches_far)) continue;
    Draw own(seed ^ rare.stream, index);
    if (own.chance(rare.one_in)) rare.draw(own, line);
  }
  std::optional<ProblemLine> legal = asked.empty() ? line : in_asked(std::move(line), asked, index);
  if (legal) bound_work(legal->problem, reaches_far ? kMaxFarWork : kMaxWorkRandom);
  return legal;
}

std::vector<Entry> random_matrix(std::uint64_t seed, std::int64_t count, const AskedTypes& asked) {
  std::vector<Entry> list;
  for (std::int64_t i = 0; i < count; ++i)
    if (std::optional<ProblemLine> line = random_line(seed, static_cast<std::uint64_t>(i), asked))
      list.push_back({"random", "Random", std::move(*line), Special::none});
  return list;
}

}  // namespace quire::verify_detail
