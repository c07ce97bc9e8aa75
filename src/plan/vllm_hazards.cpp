// SPDX-License-Identifier: Apache-2.0
// Stage: plan. The peer's known hazards, one function per topic. Facts are from vLLM's sources of 2026-01 (commit 48d3f0b) and
// its issue threads, whose numbers are given; nothing here influences what Quire runs.
#include "plan/vllm_hazards.h"
#include "text/formatted.h"

#include <algorithm>
#include <bit>

namespace quire::plan_detail {

std::string_view vllm_cache_dtype(const Problem& p) {
  if (p.kv_dtype == p.q_dtype) return "auto";
  if (p.kv_dtype == DType::fp8_e4m3fn || p.kv_dtype == DType::fp8_e4m3fnuz) return "fp8";
  if (p.kv_dtype == DType::fp8_e5m2) return "fp8_e5m2";
  return {};
}

namespace {

using Notes = std::vector<std::string>;

void cache_type(const VllmFacts& f, Notes& notes) {
  const Problem& p = f.problem;
  const std::string_view word = vllm_cache_dtype(p);
  if (word.empty()) {
    notes.push_back(
        formatted("vLLM has no {} cache for {} queries: \"auto\" means the query's type and its fp8 words mean e4m3 or e5m2",
                  name(p.kv_dtype), name(p.q_dtype)));
    return;
  }
  if (!is_fp8(p.kv_dtype)) return;
  if (p.kv_dtype == DType::fp8_e5m2) {
    if (f.custom)
      notes.push_back(
          "fails at run time: paged_attention_rocm has a TORCH_CHECK against kv_cache_dtype fp8_e5m2, which the predicate does "
          "not test");
    notes.push_back(
        "an fp8_e5m2 cache must be handed over as uint8: a tensor typed float8_e5m2 fails the wrapper's assert, and "
        "reshape_and_cache has no e5m2 on AMD");
    return;
  }
  const bool has_fp8 = f.arch == "gfx942" || f.arch == "gfx950" || f.arch == "gfx1201";
  if (!has_fp8)
    notes.push_back(formatted("vLLM reports supports_fp8 = false on {}{}", f.arch,
                              f.is_gfx9 ? "; its custom kernel converts in software" : ""));
  const bool reads_fnuz = f.arch == "gfx942";
  if (reads_fnuz && p.kv_dtype == DType::fp8_e4m3fn)
    notes.push_back(
        "silently wrong: vLLM reads \"fp8\" as e4m3fnuz on gfx942, so every e4m3fn value halves and -0 (0x80) becomes NaN "
        "(#45562)");
  if (!reads_fnuz && p.kv_dtype == DType::fp8_e4m3fnuz)
    notes.push_back(formatted(
        "silently wrong: vLLM reads \"fp8\" as e4m3fn on {}, so every e4m3fnuz value doubles and NaN (0x80) becomes -0 (#45562)",
        f.arch));
}

void cache_layout(const VllmFacts& f, Notes& notes) {
  const Problem& p = f.problem;
  const std::int64_t x = packed_x(p.kv_dtype);
  if (p.layout != CacheLayout::packed)
    notes.push_back(
        formatted("these ops need the packed layout; a {} cache belongs to unified_attention (TRITON_ATTN) or FlashAttention",
                  name(p.layout)));
  if (p.head_dim % x != 0)
    notes.push_back(
        formatted("silently wrong: head_dim {} is not a multiple of x = {}, the last {} dims are dropped from the packed cache",
                  p.head_dim, x, p.head_dim % x));
  const std::int64_t chunks = p.num_kv_heads * (p.head_dim / x);
  if (chunks > 512)
    notes.push_back(
        formatted("silently wrong: reshape_and_cache starts at most 512 threads for {} (head, x-chunk) pairs, so from KV head "
                  "{} on nothing is stored",
                  chunks, 512 / std::max<std::int64_t>(1, p.head_dim / x)));
  if (p.k_scale == ScaleKind::per_head || p.v_scale == ScaleKind::per_head)
    notes.push_back("silently wrong: k_scale and v_scale are read as one number (element 0), per-head scales are ignored");
}

void backend_support(const VllmFacts& f, Notes& notes) {
  const Problem& p = f.problem;
  constexpr std::int64_t kHeadDims[] = {32, 64, 96, 128, 160, 192, 224, 256};
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), p.head_dim) == std::end(kHeadDims))
    notes.push_back(formatted(
        "ROCM_ATTN refuses head_dim {} (it takes 32, 64, 96, 128, 160, 192, 224, 256): only a direct call of the ops gets here",
        p.head_dim));
  if (p.page_size % 16 != 0)
    notes.push_back(formatted(
        "ROCM_ATTN refuses page_size {} (it takes multiples of 16): only a direct call of the ops gets here", p.page_size));
  if (!std::has_single_bit(static_cast<std::uint64_t>(p.page_size)))
    notes.push_back(
        formatted("page_size {} is not a power of two: Triton compile error before PR #31380 (2025-12)", p.page_size));
  if (p.logits_soft_cap)
    notes.push_back("silently wrong: neither prefill nor decode op takes a logits soft cap, it is not applied");
  if (p.lse) notes.push_back("neither op returns an lse");
  if (!p.softmax_scale && p.num_q_heads != p.head_dim)
    notes.push_back(
        "pass sm_scale: before PR #31380 (2025-12-27) the op's default was 1/sqrt(num_q_heads), not 1/sqrt(head_dim)");
}

void window(const VllmFacts& f, Notes& notes) {
  const Problem& p = f.problem;
  if (!p.sliding_window) return;
  const std::int64_t w = *p.sliding_window;
  if (w == 1)
    notes.push_back(
        "silently wrong: the ROCM_ATTN backend passes W - 1 = 0, which the op reads as \"no window\"; the window condition then "
        "holds");
  else
    notes.push_back(
        formatted("silently wrong: the ROCM_ATTN backend passes W - 1, so a query sees {} keys instead of {}", w - 1, w));
  if (f.prefill_reqs > 0 && p.alibi)
    notes.push_back(
        formatted("silently wrong: the ALiBi prefill kernel has no window, sliding_window = {} is ignored for its rows", w));
  notes.push_back(
      "keys outside the window are masked with -10000, not -inf: they leak in when the visible scores are below about -9900");
  if (!f.custom && f.decode_reqs > 0)
    notes.push_back(
        "kernel_paged_attention_2d walks every page and loads those left of the window too: slow, and NaN there reaches the "
        "output (#53628, #30887)");
}

void alibi_and_sinks(const VllmFacts& f, Notes& notes) {
  const Problem& p = f.problem;
  if (!p.alibi || f.prefill_reqs == 0) return;
  if (p.sinks) notes.push_back("fails at run time: context_attention_fwd asserts that sinks and ALiBi do not come together");
  notes.push_back(
      "silently wrong for negative slopes: the ALiBi prefill kernel hides every past key and gives NaN in rows with context or "
      "with row index >= 128");
}

void row_lengths(const VllmFacts& f, Notes& notes) {
  const auto& reqs = f.problem.reqs;
  if (f.empty_reqs > 0 && !f.custom)
    notes.push_back(
        "silently wrong: kernel_paged_attention_2d skips query_len > 1 only, so a request with query_len 0 overwrites the first "
        "row of the next request (or one row past the end)");
  const auto starved =
      std::find_if(reqs.begin(), reqs.end(), [](const Request& r) { return r.query_len == 1 && r.cached_len < r.seq_len(); });
  if (starved != reqs.end())
    notes.push_back(
        formatted("silently wrong: decode rows read everything from the cache, but request {} has cached_len {} of {}; its own "
                  "key must be appended first",
                  starved - reqs.begin(), starved->cached_len, starved->seq_len()));
  const auto speculative = [](const Request& r) { return r.query_len >= 2 && r.query_len <= 16 && r.context_len > 0; };
  if (std::any_of(reqs.begin(), reqs.end(), speculative))
    notes.push_back(
        "\"decode\" means query_len == 1 exactly: short (speculative) rows of 2 and more go through the prefill kernel");
  if (f.decode_reqs == 0)
    notes.push_back("no request has query_len 1: the decode kernel is launched all the same and serves no row");
}

void page_tails(const VllmFacts& f, Notes& notes) {
  const std::int64_t page = f.problem.page_size;
  const auto partial = [page](const Request& r) { return r.query_len == 1 && r.seq_len() % page != 0; };
  if (!std::any_of(f.problem.reqs.begin(), f.problem.reqs.end(), partial)) return;
  notes.push_back(
      formatted("{} multiplies the stale tail of a last page by 0: NaN or Inf left there reaches the output (fixed by {})",
                f.custom ? "paged_attention_rocm" : "kernel_paged_attention_2d", f.custom ? "#53856, 2026-08" : "#47305, 2026"));
}

void whole_batch_choice(const VllmFacts& f, Notes& notes) {
  const auto& reqs = f.problem.reqs;
  const auto too_long = [](const Request& r) { return r.seq_len() > 131072; };
  const auto long_reqs = std::count_if(reqs.begin(), reqs.end(), too_long);
  if (f.custom)
    notes.push_back(
        "the choice holds while the longest request of the batch stays within 131072 tokens: one longer request moves every "
        "decode row to kernel_paged_attention_2d, bits included");
  else if (long_reqs > 0 && long_reqs < static_cast<std::ptrdiff_t>(reqs.size()))
    notes.push_back(formatted("{} of {} requests pass 131072 tokens and change the kernel, and the bits, for all the others",
                              long_reqs, reqs.size()));
  if (!f.custom && f.decode_reqs > 0 && f.problem.max_seq_len() >= 8192)
    notes.push_back(
        "kernel_paged_attention_2d does not split over keys: time per token grows with the context (#34579, #50264: 82.5 -> "
        "235.3 ms at 32K)");
}

void partition_buffers(const VllmFacts& f, Notes& notes) {
  if (!f.custom) return;
  const Problem& p = f.problem;
  const std::int64_t partitions = (p.max_seq_len() + 255) / 256;
  const double elements =
      static_cast<double>(p.reqs.size()) * static_cast<double>(p.num_q_heads * partitions) * static_cast<double>(p.head_dim);
  const double limit = f.is_gfx9 ? 4294967296.0 : 2147483648.0;
  if (elements >= limit)
    notes.push_back(
        formatted("silently wrong: tmp_out has {:.3g} elements, past the 32-bit index of the kernel ({:.3g})", elements, limit));
  else if (elements * 2 >= 1073741824.0)
    notes.push_back(formatted("tmp_out alone takes {:.1f} GiB: it is sized for every request at the longest length",
                              elements * 2 / 1073741824.0));
}

int severity_of(const std::string& note) {
  if (note.starts_with("fails at run time")) return 0;
  return note.starts_with("silently wrong") ? 1 : 2;
}

}  // namespace

std::vector<std::string> vllm_hazards(const VllmFacts& facts) {
  Notes notes;
  for (auto* topic : {cache_type, cache_layout, backend_support, window, alibi_and_sinks, row_lengths, page_tails,
                      whole_batch_choice, partition_buffers})
    topic(facts, notes);
  Notes ordered;
  for (int severity = 0; severity < 3; ++severity)
    for (const std::string& note : notes)
      if (severity_of(note) == severity) ordered.push_back(note);
  return ordered;
}

}  // namespace quire::plan_detail
