// SPDX-License-Identifier: Apache-2.0
// Rows of fp8_ds_mla: which scale belongs to which block of codes, and where the RoPE part lies.
#include <cmath>
#include <functional>

#include "faults/families.h"

namespace quire::faults_detail {
namespace {

using Row656 = LatentBytes;

/// Dim of K or V as a fault reads it from a row.
using WrongDim = std::function<double(const Row656& row, std::int64_t d)>;

/// Calls visit(row) for cached tokens that some row takes; for kMost at most. Stops if it returns false.
template <typename Visit>
void for_each_cached_row(const Facts& f, Visit&& visit) {
  constexpr std::int64_t kMost = 1024;
  const Model truth(f);
  std::int64_t seen = 0;
  for (std::int64_t r = 0; r < f.num_reqs; ++r) {
    const Range range = cached_range(f, r);
    if (range.empty()) continue;
    const Row row = truth.row(f.query_start_loc[Facts::at(r)], 0);
    for (std::int64_t k = range.first; k <= range.last && seen < kMost; ++k, ++seen) {
      const Place place = truth.place(truth, row, Side::key, k);
      visit(latent_bytes(f.stored, Side::key, place.page, place.offset));
    }
  }
}

/// Whether a quarter of the values [from, to) of cached tokens differ plainly.
bool row_differs(const Facts& f, const WrongDim& wrong, std::int64_t from, std::int64_t to) {
  std::int64_t all = 0, plainly = 0;
  for_each_cached_row(f, [&](const Row656& row) {
    for (std::int64_t d = from; d < to; d += 7) {
      const double right = row.value(d);
      if (std::isnan(right)) continue;
      plainly += std::fabs(wrong(row, d) - right) <= 0.2 * std::fabs(right) ? 0 : 1;  // NaN differs
      ++all;
    }
  });
  return 4 * plainly > all;
}

std::function<void(Model&)> row_replaced(const WrongDim& wrong) {
  return [wrong](Model& m) {
    m.vector = [f = m.facts, wrong, before = m.vector](const Row& r, Side side, const Place& place, std::int64_t head,
                                                       std::span<double> to) {
      const bool inside = place.page >= 0 && place.page < f->num_pages && place.offset >= 0 && place.offset < f->page_size;
      if (place.kind == Place::Kind::cache && inside) {
        const Row656 row = latent_bytes(f->stored, side, place.page, place.offset);
        for (std::size_t d = 0; d < to.size(); ++d) {
          const double value = wrong(row, static_cast<std::int64_t>(d));
          const double read = f->dequantised_to_query ? rounded(f->batch.query.dtype, value) : value;
          to[d] = side == Side::value ? read * f->value_unit : read;
        }
      }
      if (before) before(r, side, place, head, to);
    };
  };
}

/// A wrong reading of rows, of which dims [from, to) show it; scores alone know of RoPE dims.
Suspects of_dims(const Clues& e, const char* why_not, std::int64_t from, std::int64_t to, const WrongDim& wrong) {
  const Facts& f = e.facts;
  if (!f.has_latent_rows()) return cannot_show("the cache is not of fp8_ds_mla");
  if (!any_cached(f)) return cannot_show(kNotCached);
  if (from >= Row656::kLatentDims && !scores_matter(f)) return cannot_show(kOneKey);
  return row_differs(f, wrong, from, to) ? one(row_replaced(wrong)) : cannot_show(why_not);
}

/// A wrong reading of codes and their scales: of dims [0, 512).
Find of_latent(const char* why_not, const WrongDim& wrong) {
  return [=](const Clues& e) {
    return of_dims(e, why_not, 0, Row656::kLatentDims,
                   [wrong](const Row656& row, std::int64_t d) { return d < Row656::kLatentDims ? wrong(row, d) : row.value(d); });
  };
}

/// A wrong reading of RoPE dims.
Find of_rope(const char* why_not, const WrongDim& wrong) {
  return [=](const Clues& e) {
    constexpr std::int64_t kFirst = Row656::kLatentDims;
    return of_dims(e, why_not, kFirst, kFirst + Row656::kRopeDims,
                   [wrong](const Row656& row, std::int64_t d) { return d < kFirst ? row.value(d) : wrong(row, d - kFirst); });
  };
}

constexpr const char* kSameScales = "blocks have the same scales";

/// The last block alone: three quarters of the dims are right.
Suspects first_for_last(const Clues& e) {
  constexpr std::int64_t kLast = Row656::kLatentDims - Row656::kBlockDims;
  return of_dims(e, kSameScales, kLast, Row656::kLatentDims, [](const Row656& row, std::int64_t d) {
    return d >= kLast && d < Row656::kLatentDims ? row.code(d) * row.scale(0) : row.value(d);
  });
}

}  // namespace

void add_latent_rows(std::vector<Fault>& list) {
  const Family add{list, "latent_rows"};
  const char* const kScale = "scale b of a row is of dims [128 b, 128 b + 128): print d / 128 beside the address of the scale";
  const char* const kRope = "a row is 512 codes, 16 bytes of scales, 64 elements of bf16: the RoPE part begins at byte 528";
  add("latent_scale_of_next_block", "multiplies the codes of a block of an MLA row by the scale of the next block", "", kScale,
      of_latent(kSameScales, [](const Row656& row, std::int64_t d) {
        return row.code(d) * row.scale((d / Row656::kBlockDims + 1) % Row656::kNumBlocks);
      }));
  add("latent_last_block_takes_first_scale", "multiplies the last block of an MLA row by the scale of its first block", "",
      kScale, first_for_last);
  add("latent_one_scale_for_row", "multiplies all blocks of an MLA row by the scale of the first", "", kScale,
      of_latent(kSameScales, [](const Row656& row, std::int64_t d) { return row.code(d) * row.scale(0); }));
  add("latent_blocks_of_64", "takes a scale of an MLA row for 64 dims instead of 128", "", kScale,
      of_latent(kSameScales, [](const Row656& row, std::int64_t d) {
        return row.code(d) * row.scale(d / (Row656::kBlockDims / 2) % Row656::kNumBlocks);
      }));
  add("latent_scales_dropped", "drops the scales of an MLA row", "", "the four f32 behind the codes are the scales",
      of_latent("all scales are 1", [](const Row656& row, std::int64_t d) { return row.code(d); }));
  add("latent_scales_inverted", "divides by the scales of an MLA row", "", "append divides by a scale, attention multiplies",
      of_latent("all scales are 1",
                [](const Row656& row, std::int64_t d) { return row.code(d) / row.scale(d / Row656::kBlockDims); }));
  add("rope_read_as_codes", "reads the RoPE part of an MLA row as fp8 codes", "", kRope,
      of_rope("the bytes mean the same", [](const Row656& row, std::int64_t d) { return row.code(Row656::kRopeAt + d); }));
  add("rope_read_behind_codes", "reads the RoPE part of an MLA row right behind the codes, where the scales are", "", kRope,
      of_rope("scales and RoPE dims have the same bytes",
              [](const Row656& row, std::int64_t d) { return row.bf16_at(Row656::kScalesAt + 2 * d); }));
  add("rope_scaled", "multiplies the RoPE part of an MLA row by its last scale", "", "the RoPE part is bf16 and has no scale",
      of_rope("the last scale is 1",
              [](const Row656& row, std::int64_t d) { return row.rope(d) * row.scale(Row656::kNumBlocks - 1); }));
}

}  // namespace quire::faults_detail
