// SPDX-License-Identifier: Apache-2.0
// The families of the catalogue, one file each, and helpers that several families need.
#pragma once

#include <array>
#include <functional>
#include <string>

#include "faults/fault.h"

namespace quire::faults_detail {

// To add a fault: add it to its family's file. To add a family: add a file, a line here and a line in catalogue.cpp.
void add_index_width(std::vector<Fault>& list);
void add_rows(std::vector<Fault>& list);
void add_starts(std::vector<Fault>& list);
void add_mask(std::vector<Fault>& list);
void add_window(std::vector<Fault>& list);
void add_tokens(std::vector<Fault>& list);
void add_contents(std::vector<Fault>& list);
void add_split(std::vector<Fault>& list);
void add_pages(std::vector<Fault>& list);
void add_stale_page(std::vector<Fault>& list);  ///< family pages
void add_layout(std::vector<Fault>& list);
void add_heads(std::vector<Fault>& list);
void add_scores(std::vector<Fault>& list);
void add_alibi(std::vector<Fault>& list);
void add_softmax(std::vector<Fault>& list);
void add_sinks(std::vector<Fault>& list);
void add_scales(std::vector<Fault>& list);
void add_latent_rows(std::vector<Fault>& list);
void add_formats(std::vector<Fault>& list);
void add_blocks(std::vector<Fault>& list);
void add_positions(std::vector<Fault>& list);
void add_shapes(std::vector<Fault>& list);
void add_head_dims(std::vector<Fault>& list);

/// Suspects of a fault on a batch.
using Find = std::function<Suspects(const Clues&)>;

/// Adds faults of one family to the catalogue. `seen`: where people met the fault, or empty. `next`: advice for the next step.
struct Family {
  std::vector<Fault>& list;
  const char* name;

  void operator()(const char* id, const char* text, const char* seen, const char* next, Find suspects,
                  Rank rank = Rank::mistake) const {
    list.push_back({{id, name, text, seen, next}, rank, std::move(suspects)});
  }
};

/// A fault that may happen in several ways, each with its words: the suspects of all of them. The first is planted.
Find any_of(std::vector<std::pair<std::string, Find>> ways);

inline constexpr const char* kSameKeys = "every row sees the same keys all the same";
inline constexpr const char* kNotCached = "no row reads the cache";
inline constexpr std::size_t kMaxCandidates = 64;  ///< suspects that one fault lists at most; bounds the time of diagnose()

/// The position that a kernel gives to a row by what it believes of the row's request: from q_begin, if that is given, else from
/// the end of the keys.
std::int64_t position_of(const Facts& facts, const Row& row);
/// The row as a decode kernel computes it that takes it for request `req`.
Row decode_row(const Facts& facts, Row row, std::int64_t req);

// Plants that change what one function of a model gave so far.

Plant row_changed(std::function<void(Row&)> change);
Plant keys_changed(std::function<void(const Row&, std::vector<Key>&)> change);
/// Leaves out the keys for which `drop` is true.
Plant keys_dropped(std::function<bool(const Row&, std::int64_t position)> drop);
/// Lets the window begin at first(row) and order end at last(row); the rest of the mask stays true.
Plant keys_between(std::function<std::int64_t(const Row&)> first, std::function<std::int64_t(const Row&)> last);
/// The place that lies `by` slots further in memory; behind the cache's last slot comes its first.
Place beside(const Facts& facts, Place place, std::int64_t by);
using ChangePlace = std::function<void(const Model&, const Row&, Side, std::int64_t position, Place&)>;
/// Changes places in the cache.
Plant cached_place_changed(ChangePlace change);
Plant result_changed(std::function<void(const Row&, RowResult&)> change);

/// Whether a mutant changes an output so much that a comparison rejects it.
bool shows(const Facts& f, const Plant& plant);
/// A suspect, if it lets one of the first rows fold in other keys than the truth does.
Suspects if_it_changes_a_row(const Facts& f, Plant plant, const char* why_not = kSameKeys);
/// A suspect that changes rows only, if one of the first rows then folds in other keys.
Suspects rows_only_if_changed(const Facts& f, std::function<void(Row&)> change);

/// Is `holds` true for a request that has rows?
template <typename Predicate>
bool any_request(const Facts& f, Predicate&& holds) {
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (f.query_len(r) > 0 && holds(r)) return true;
  return false;
}
/// Is `holds` true for the position of some output row? Stops at the first.
template <typename Predicate>
bool any_row(const Facts& f, Predicate&& holds) {
  return any_request(f, [&](std::int64_t r) {
    for (std::int64_t i = 0; i < f.query_len(r); ++i)
      if (holds(r, f.first_position(r) + i)) return true;
    return false;
  });
}
/// The longest context_len + query_len of a request that has rows.
std::int64_t longest(const Facts& f);
/// Positions [first, last] that some row of the request takes from the cache; last < first if there are none.
struct Range {
  std::int64_t first = 0, last = -1;
  bool empty() const { return last < first; }
};
Range cached_range(const Facts& f, std::int64_t req);
/// The first position that some row of the request sees; seq_len if there is none.
std::int64_t first_seen(const Facts& f, std::int64_t req);
bool any_cached(const Facts& f);
/// Do scores matter? Not where every row sees one key and there is no sink: its weight is 1.
bool scores_matter(const Facts& f);
inline constexpr const char* kOneKey = "every row sees one key: its score does not matter";
/// Positions that some row takes from key / value.
bool any_new_row(const Facts& f);

/// Requests with rows, those of the wrong rows first; at most kMaxCandidates.
std::vector<std::int64_t> requests_to_try(const Clues& e);
/// Smaller numbers of dims that a loop might stop at: powers of two, multiples of vector widths.
std::vector<std::int64_t> shorter_dims(std::int64_t dims);
std::int64_t floor_power_of_two(std::int64_t n);
std::int64_t ceil_power_of_two(std::int64_t n);
inline bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/// A mutant must move some output by so many units of its type's rounding: tolerances are a few dozen.
inline constexpr double kPlainChange = 256;
/// Largest change of any output element that planting brings to a few rows, in units of the rounding of the output's type:
/// |changed - true| / (roundoff * max(|true|, 1e-3)). Infinity if a NaN appears.
double largest_change(const Facts& f, const Model& planted);

/// "0 880 -880 1290 ..." (the first ten).
std::string first_values(const std::vector<std::int64_t>& values);
/// The differences of a query_start_loc, likewise.
std::string lengths_seen(const std::vector<std::int64_t>& query_start_loc);
/// A kernel whose query_start_loc is `seen`: later requests overwrite earlier ones; rows of no request are never written.
Suspects starts_seen(const Clues& e, std::vector<std::int64_t> seen);
/// A kernel whose seq_lens are `seen`. cached_len follows if the batch has no cached_lens.
Suspects seq_lens_seen(const Clues& e, std::vector<std::int64_t> seen);
/// Word `i` of an int64 tensor whose elements are read as 32-bit words.
std::int64_t word_of(const Tensor& t, std::int64_t i);
/// A suspect whose mutant changes an output by at least so many units of its type's rounding (largest_change()).
Suspects if_it_changes_by(const Clues& e, double least, Plant plant, const char* why_not);
/// Strides of a contiguous cache of these sizes, rows of `head_dim` elements; x belongs to packed K.
std::array<std::int64_t, 5> contiguous_strides(CacheLayout layout, Side side, std::int64_t heads, std::int64_t page_size,
                                               std::int64_t head_dim, std::int64_t x);
std::string name_of(DType dtype);

}  // namespace quire::faults_detail
