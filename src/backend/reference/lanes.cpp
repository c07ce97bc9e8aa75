// SPDX-License-Identifier: Apache-2.0
// One body for every vector width, compiled for the instruction sets of 64-bit x86 by function attributes and chosen at run
// time. The build forbids contracting a product and a sum into one rounding here (cmake/isa_flags.cmake).
#include "backend/reference/lanes.h"

#include <cstring>
#include <limits>

// The body must end up inside the function that carries the attribute.
#define QUIRE_INLINE [[gnu::always_inline]] inline

namespace quire::reference_detail {
namespace {

constexpr int kVectors = 4;  // sums of each kind held in registers

template <int kBytes>
struct Simd {
  using Real __attribute__((vector_size(kBytes))) = double;
  using Bits __attribute__((vector_size(kBytes))) = std::int64_t;
  static constexpr std::int64_t kWidth = kBytes / static_cast<int>(sizeof(double));
  static constexpr std::int64_t kStep = kVectors * kWidth;
};

constexpr std::int64_t kAllButSign = std::numeric_limits<std::int64_t>::max();

template <int kBytes>
QUIRE_INLINE void dot_body(const double* k, const double* q, std::int64_t head_dim, Lanes& dot, Lanes& magnitude) {
  using S = Simd<kBytes>;
  for (std::int64_t first = 0; first < kLanes; first += S::kStep) {
    typename S::Real sums[kVectors] = {}, sizes[kVectors] = {};
    for (std::int64_t d = 0; d < head_dim; ++d) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        typename S::Real term;
        std::memcpy(&term, k + d * kLanes + first + j * S::kWidth, sizeof term);
        term = q[d] * term;
        sums[j] += term;
        sizes[j] += (typename S::Real)((typename S::Bits)term & kAllButSign);  // NOLINT: no named cast reinterprets vectors
      }
    }
    std::memcpy(dot.sum + first, sums, sizeof sums);
    std::memcpy(magnitude.sum + first, sizes, sizeof sizes);
  }
}

template <int kBytes>
QUIRE_INLINE void sum_body(const double* v, const double* p, const double* floored, const double* scored_p, std::int64_t count,
                           Lanes& out, Lanes& absolute, Lanes& scored) {
  using S = Simd<kBytes>;
  for (std::int64_t first = 0; first < kLanes; first += S::kStep) {
    typename S::Real sums[kVectors] = {}, sizes[kVectors] = {}, scores[kVectors] = {};
    for (std::int64_t n = 0; n < count; ++n) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        typename S::Real value;
        std::memcpy(&value, v + n * kLanes + first + j * S::kWidth, sizeof value);
        sums[j] += p[n] * value;
        value = (typename S::Real)((typename S::Bits)value & kAllButSign);  // NOLINT: no named cast reinterprets vectors
        sizes[j] += floored[n] * value;
        scores[j] += scored_p[n] * value;
      }
    }
    std::memcpy(out.sum + first, sums, sizeof sums);
    std::memcpy(absolute.sum + first, sizes, sizeof sizes);
    std::memcpy(scored.sum + first, scores, sizeof scores);
  }
}

template <int kBytes>
QUIRE_INLINE void sum_absolute_body(const double* v, const double* p, std::int64_t count, Lanes& absolute) {
  using S = Simd<kBytes>;
  for (std::int64_t first = 0; first < kLanes; first += S::kStep) {
    typename S::Real sums[kVectors] = {};
    for (std::int64_t n = 0; n < count; ++n) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        typename S::Real value;
        std::memcpy(&value, v + n * kLanes + first + j * S::kWidth, sizeof value);
        value = (typename S::Real)((typename S::Bits)value & kAllButSign);  // NOLINT: no named cast reinterprets vectors
        sums[j] += p[n] * value;
      }
    }
    std::memcpy(absolute.sum + first, sums, sizeof sums);
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): an attribute cannot stand in parentheses
#define QUIRE_LOOPS(suffix, attribute, bytes)                                                                          \
  attribute void dot_##suffix(const double* k, const double* q, std::int64_t head_dim, Lanes& dot, Lanes& magnitude) { \
    dot_body<bytes>(k, q, head_dim, dot, magnitude);                                                                   \
  }                                                                                                                    \
  attribute void sum_##suffix(const double* v, const double* p, const double* floored, const double* scored_p,         \
                              std::int64_t count, Lanes& out, Lanes& absolute, Lanes& scored) {                        \
    sum_body<bytes>(v, p, floored, scored_p, count, out, absolute, scored);                                            \
  }                                                                                                                    \
  attribute void sum_absolute_##suffix(const double* v, const double* p, std::int64_t count, Lanes& absolute) {        \
    sum_absolute_body<bytes>(v, p, count, absolute);                                                                   \
  }                                                                                                                    \
  constexpr Loops k_##suffix{#suffix, dot_##suffix, sum_##suffix, sum_absolute_##suffix};

QUIRE_LOOPS(baseline, , 16)
#if defined(__x86_64__)
QUIRE_LOOPS(avx2, [[gnu::target("avx2")]], 32)
QUIRE_LOOPS(avx512, [[gnu::target("avx512f")]], 64)
#endif
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace

std::vector<Loops> available_loops() {
  std::vector<Loops> list;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) list.push_back(k_avx512);
  if (__builtin_cpu_supports("avx2")) list.push_back(k_avx2);
#endif
  list.push_back(k_baseline);
  return list;
}

const Loops& widest_loops() {
  static const Loops loops = available_loops().front();
  return loops;
}

}  // namespace quire::reference_detail
