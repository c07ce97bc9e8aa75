// SPDX-License-Identifier: Apache-2.0
// Faults of a stale page: one logical page of one request is read from another physical page, which was recycled too early or
// whose table entry is not yet updated.
//
// The search for the page folds every page of the cache once into a partial softmax of a wrong row, and then replaces every
// logical page by every physical page without reading the cache again.
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "quire/interrupt.hpp"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr std::int64_t kPagesSearched = 4096;               // pages of the cache that are tried; bounds the time
constexpr std::size_t kSamplesSearched = 2, kBestKept = 3;  // wrong rows that are searched; candidates kept of each

Suspect stale(const Facts& f, std::int64_t req, std::int64_t column, std::int64_t page) {
  return {formatted("logical page {} of request {} read from page {} instead of {}", column, req, page, f.page(req, column)),
          function_changed(&Model::table,
                           [req, column, page](const auto& before, std::int64_t r, std::int64_t j) {
                             return r == req && j == column ? page : before(r, j);
                           }),
          false};
}

/// Numerator and denominator of some keys; weights are exp(score - max).
struct Partial {
  double max = 0, sum = 0;
  std::vector<double> out;
};

/// A wrong row as the reference computes it, page by page.
class Search {
 public:
  Search(const Facts& f, const Sample& sample) : f_(f), sample_(sample), truth_(f), row_(truth_.row(sample.token, sample.head)) {
    truth_.place = [this](const Model&, const Row&, Side, std::int64_t k) {
      Place place;
      place.page = k / f_.page_size;
      place.offset = k % f_.page_size;
      return place;
    };
    const RowResult right = evaluate(Model(f), std::span<const RowHead>(&at_, 1))[0];
    total_ = right;
  }

  struct Found {
    double left = 0;  ///< squared distance to the observed rows
    std::int64_t column = 0, page = 0;
  };

  /// The best replacements, best first; none if the row holds NaN.
  std::vector<Found> best() {
    std::vector<Found> found;
    const double before = distance(total_.out);
    if (!std::isfinite(before) || before == 0 || total_.lse == kNegInf) return found;
    const std::int64_t end = f_.batch.key.present() ? row_.cached_len : row_.seq_len;
    for (const Span& seen : f_.seen_by(row_.req, row_.q_pos))
      for (std::int64_t k = seen.begin; k < std::min(seen.end, end); ++k) {
        if (columns_.empty() || columns_.back().index != k / f_.page_size) columns_.push_back({k / f_.page_size, {}, {}});
        columns_.back().offsets.push_back(k % f_.page_size);
      }
    for (Column& column : columns_) column.own = fold(f_.page(row_.req, column.index), column.offsets, column.index);
    const std::int64_t pages = std::min(f_.num_pages, kPagesSearched);
    for (std::int64_t page = 0; page < pages; ++page) try_page(page, before, found);
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.left < b.left; });
    if (found.size() > kBestKept) found.resize(kBestKept);
    return found;
  }

 private:
  struct Column {
    std::int64_t index;
    std::vector<std::int64_t> offsets;  ///< slots of the page that the row sees
    Partial own;
  };

  double distance(const std::vector<double>& out) const {
    double sum = 0;
    for (std::size_t d = 0; d < out.size(); ++d) sum += (out[d] - sample_.observed[d]) * (out[d] - sample_.observed[d]);
    return sum;
  }

  /// Scores and V of all slots of a page, without the bias, which depends on where the page stands.
  void load(std::int64_t page) {
    const auto dims = Facts::at(f_.v_head_dim), slots = Facts::at(f_.page_size);
    scores_.resize(slots);
    values_.resize(slots * dims);
    std::vector<double> key(Facts::at(f_.head_dim));
    for (std::size_t o = 0; o < slots; ++o) {
      const std::int64_t at = page * f_.page_size + static_cast<std::int64_t>(o);
      load_vector(truth_, row_, Side::key, at, scratch_, key);
      double dot = 0;
      for (std::size_t d = 0; d < key.size(); ++d) dot += truth_.query(row_, static_cast<std::int64_t>(d)) * key[d];
      scores_[o] = truth_.cap(row_, truth_.softmax_scale(row_) * dot);
      load_vector(truth_, row_, Side::value, at, scratch_, std::span(values_).subspan(o * dims, dims));
    }
    loaded_ = page;
  }

  Partial fold(std::int64_t page, const std::vector<std::int64_t>& offsets, std::int64_t column) {
    end_if_interrupted();
    if (loaded_ != page) load(page);
    const auto dims = Facts::at(f_.v_head_dim);
    Partial p;
    p.out.assign(dims, 0.0);
    p.max = total_.lse;
    const auto score = [&](std::int64_t o) { return scores_[Facts::at(o)] + truth_.bias(row_, column * f_.page_size + o); };
    for (const std::int64_t o : offsets) p.max = std::max(p.max, score(o));
    for (const std::int64_t o : offsets) {
      const double weight = std::exp(score(o) - p.max);
      p.sum += weight;
      for (std::size_t d = 0; d < dims; ++d) p.out[d] += weight * values_[Facts::at(o) * dims + d];
    }
    return p;
  }

  void try_page(std::int64_t page, double before, std::vector<Found>& found) {
    const bool moves = f_.options.alibi_slopes.present();
    Partial full;
    std::vector<double> out(total_.out.size());
    for (const Column& column : columns_) {
      end_if_interrupted();
      if (f_.page(row_.req, column.index) == page) continue;
      const bool whole = std::ssize(column.offsets) == f_.page_size && !moves;
      Partial part;
      if (whole && full.out.empty()) full = fold(page, column.offsets, column.index);
      if (!whole) part = fold(page, column.offsets, column.index);
      const Partial& other = whole ? full : part;
      // A page full of garbage may dominate: everything is taken relative to its maximum. Own keys never exceed the lse.
      const double kept = std::exp(total_.lse - other.max), sum = kept * (1 - column.own.sum) + other.sum;
      for (std::size_t d = 0; d < out.size(); ++d) out[d] = (kept * (total_.out[d] - column.own.out[d]) + other.out[d]) / sum;
      const double left = distance(out);
      if (left < before / 4) found.push_back({left, column.index, page});
    }
  }

  const Facts& f_;
  const Sample& sample_;
  Model truth_;
  Row row_;
  RowHead at_{sample_.token, sample_.head};
  RowResult total_;
  std::vector<Column> columns_;
  std::vector<std::int64_t> scratch_;
  std::vector<double> scores_, values_;
  std::int64_t loaded_ = -1;
};

/// A page of which some slots hold poison would only make the row NaN, which tells nothing about the page.
bool stays_finite(const Facts& f, std::int64_t req, const Suspect& suspect) {
  Model model(f);
  suspect.plant(model);
  const RowHead last{f.query_start_loc[Facts::at(req + 1)] - 1, 0};
  const RowResult result = evaluate(model, std::span<const RowHead>(&last, 1))[0];
  return std::isfinite(result.lse) &&
         std::all_of(result.out.begin(), result.out.end(), [](double x) { return std::isfinite(x); });
}

/// Mutant: the middle page of the longest request, read from a page of another request.
Suspects planted(const Facts& f) {
  std::int64_t req = -1;
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (!cached_range(f, r).empty() && (req < 0 || f.seq_lens[Facts::at(r)] > f.seq_lens[Facts::at(req)])) req = r;
  if (req < 0) return cannot_show(kNotCached);
  const Range range = cached_range(f, req);
  const std::int64_t middle = (range.first / f.page_size + range.last / f.page_size) / 2;
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    for (std::int64_t j = 0; j < f.max_pages_per_req && j * f.page_size < f.cached_lens[Facts::at(r)]; ++j) {
      if (f.page(r, j) == f.page(req, middle)) continue;
      Suspect suspect = stale(f, req, middle, f.page(r, j));
      if (stays_finite(f, req, suspect)) return {{std::move(suspect)}, {}};
    }
  return cannot_show("no other page in use is full");
}

Suspects stale_page(const Clues& e) {
  if (e.wrong.empty()) return planted(e.facts);
  Suspects s;
  std::vector<std::int64_t> searched;
  for (const Sample& sample : e.wrong) {
    const std::int64_t req = e.facts.req_of(sample.token);
    if (searched.size() >= kSamplesSearched || std::find(searched.begin(), searched.end(), req) != searched.end()) continue;
    searched.push_back(req);
    for (const Search::Found& found : Search(e.facts, sample).best())
      s.list.push_back(stale(e.facts, req, found.column, found.page));
  }
  return std::move(s).or_why_not("no page of the cache in place of another one brings a wrong row closer");
}

}  // namespace

void add_stale_page(std::vector<Fault>& list) {
  const Family add{list, "pages"};
  add("stale_page", "reads one logical page from a physical page that is not its own", "vllm#39444",
      "look at when the page was handed out and when the table entry was written; quire check with a slot ledger names it",
      stale_page, Rank::symptom);
}

}  // namespace quire::faults_detail
