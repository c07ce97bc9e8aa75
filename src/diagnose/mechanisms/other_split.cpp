// SPDX-License-Identifier: Apache-2.0
// See other_split.h. Sums over runs of keys of both cells give every size of splits without reading a key again.
#include "diagnose/mechanisms/other_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "diagnose/mechanisms/other_cell.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kRunOfSplit = 16;            // keys; splits that are tried are multiples of it
constexpr std::int64_t kMostKeysOtherSplit = 4096;  // visible keys of the other cell: bounds the time
const char* const kNextOtherSplit = "index partial results by [row][head][split] with the strides with which they were written";

/// The split that is taken from elsewhere.
enum class Which { first, second, last };
constexpr Which kWhich[] = {Which::first, Which::second, Which::last};

const char* text_of(Which which) {
  return which == Which::first ? "the first split" : which == Which::second ? "the second split" : "the last split";
}

/// Keys of that split; none if the sequence has fewer splits.
Span keys_of(Which which, std::int64_t size, std::int64_t seq_len) {
  const std::int64_t last = (seq_len - 1) / size;
  const std::int64_t split = which == Which::first ? 0 : which == Which::second ? 1 : last;
  if (last == 0 || split > last) return {0, 0};
  return {split * size, std::min((split + 1) * size, seq_len)};
}

/// Sums of a cell over its keys before each multiple of kRunOfSplit.
class RunSums {
 public:
  explicit RunSums(const OpenCell& cell) : dims_(cell.dims()), max_(cell.max), to_(cell.to), weights_{0}, outs_(dims_) {
    for (std::int64_t begin = 0; begin < cell.to; begin += kRunOfSplit) {
      const Partial run = partial(cell, begin, std::min(begin + kRunOfSplit, cell.to));
      weights_.push_back(weights_.back() + run.weight);
      for (std::size_t d = 0; d < dims_; ++d) outs_.push_back(outs_[outs_.size() - dims_] + run.out[d]);
    }
  }
  /// Adds `factor` times the sums over a split, in weights relative to `max`.
  void add(const Span& keys, double factor, double max, std::vector<double>& out, double& weight) const {
    const std::size_t from = index(keys.begin), to = index(keys.end);
    const double scale = factor * std::exp(max_ - max);
    weight += scale * (weights_[to] - weights_[from]);
    for (std::size_t d = 0; d < dims_; ++d) out[d] += scale * (outs_[to * dims_ + d] - outs_[from * dims_ + d]);
  }

 private:
  std::size_t index(std::int64_t key) const { return Facts::at(semantics::ceil_div(std::min(key, to_), kRunOfSplit)); }

  std::size_t dims_;
  double max_;
  std::int64_t to_;
  std::vector<double> weights_, outs_;
};

/// Sums of cells by (row, head); none of a cell that was not compared, or has too many keys.
class OtherSums {
 public:
  explicit OtherSums(const Scene& scene) : scene_(scene) {}
  const RunSums* of(const RowHead& at) {
    const auto [known, is_new] = sums_.try_emplace({at.token, at.head});
    const std::vector<std::int64_t>& tokens = scene_.where.tokens;
    const auto row = std::lower_bound(tokens.begin(), tokens.end(), at.token);
    if (is_new && row != tokens.end() && *row == at.token) {
      const auto i = Facts::at((row - tokens.begin()) * scene_.facts.num_q_heads + at.head);
      const OpenCell cell = open_cell(scene_.facts, scene_.observed, scene_.where, scene_.where.rows[i], kMostKeysOtherSplit);
      if (cell.end > 0) known->second.emplace(cell);
    }
    return known->second ? &*known->second : nullptr;
  }

 private:
  const Scene& scene_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::optional<RunSums>> sums_;
};

/// The size of a request's splits under which a cell shows the mistake; 0 if none does.
std::int64_t size_shown(const CellOfRequest& c, const RunSums& own, const RunSums& other, Which which) {
  const OpenCell& cell = c.cell;
  double least = std::numeric_limits<double>::infinity();
  std::int64_t best = 0;
  std::vector<double> out(cell.dims());
  for (const std::int64_t size : c.sizes) {
    const Span keys = keys_of(which, size, cell.row.seq_len);
    if (keys.begin == keys.end) continue;
    double weight = cell.denominator;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] = cell.expected[d] * cell.denominator;
    own.add(keys, -1, cell.max, out, weight);
    other.add(keys, 1, cell.max, out, weight);
    for (double& value : out) value /= weight;
    if (const double left = cell.distance(out); left < least) least = left, best = size;
  }
  return cell.explained_by(least) ? best : 0;
}

/// Adds a result to a merge of results, whose lse is that of all that were added.
void merge(RowResult& all, const std::vector<double>& out, double lse) {
  if (!(lse > faults_detail::kNegInf)) return;
  const double top = std::max(all.lse, lse), before = std::exp(all.lse - top), more = std::exp(lse - top);
  for (std::size_t d = 0; d < out.size(); ++d) all.out[d] = (before * all.out[d] + more * out[d]) / (before + more);
  all.lse = top + std::log(before + more);
}

Plant taken_from(const OtherCell& other, Which which, const SplitSizes& sizes) {
  return [=](Model& m) {
    const auto of_split = [sizes, which](const Row& row, std::int64_t k) {
      const Span keys = keys_of(which, size_of_splits(sizes, row.req), row.seq_len);
      return k >= keys.begin && k < keys.end;
    };
    Model rest = m, part = m;
    for (Model* one : {&rest, &part}) {
      one->sink = [](const Row&) { return faults_detail::kNegInf; };
      one->keys = [before = m.keys, of_split, inside = one == &part](const Row& row, std::vector<Key>& keys) {
        before(row, keys);
        std::erase_if(keys, [&](const Key& key) { return of_split(row, key.position) != inside; });
      };
    }
    m.finish = [=, f = m.facts, sink = m.sink, before = m.finish](const Row& row, RowResult& result) {
      before(row, result);
      const Span keys = keys_of(which, size_of_splits(sizes, row.req), row.seq_len);
      if (keys.begin == keys.end) return;
      const RowHead own{row.token, row.head}, from = other.at(*f, row);
      const RowResult kept = evaluate(rest, std::span(&own, 1)).front(), taken = evaluate(part, std::span(&from, 1)).front();
      result.out.assign(result.out.size(), 0.0);
      result.lse = faults_detail::kNegInf;
      merge(result, kept.out, kept.lse);
      merge(result, taken.out, taken.lse);
      merge(result, std::vector<double>(result.out.size(), 0.0), sink(row));
    };
  };
}

}  // namespace

void propose_other_splits(const Scene& scene, std::span<const CellOfRequest> cells, Proposals& list) {
  std::vector<RunSums> own;
  for (const CellOfRequest& c : cells) own.emplace_back(c.cell);
  OtherSums sums(scene);
  for (const OtherCell& other : other_cells())
    for (const Which which : kWhich) {
      SplitSizes sizes;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const OpenCell& cell = cells[i].cell;
        const RowHead at = other.at(scene.facts, cell.row);
        const bool itself = at.token == cell.at.token && at.head == cell.at.head;
        const RunSums* taken = itself ? nullptr : sums.of(at);
        const std::int64_t size = taken == nullptr ? 0 : size_shown(cells[i], own[i], *taken, which);
        if (size == 0) break;
        sizes[cell.row.req] = size;
      }
      if (sizes.size() != cells.size() || cells.empty()) continue;
      list.push_back({"split", "merges the partial result of another row or head",
                      formatted("{} {}, {}", text_of(which), other.text, text_of(sizes)), kNextOtherSplit, 2,
                      taken_from(other, which, sizes)});
    }
}

}  // namespace quire::diagnose_detail
