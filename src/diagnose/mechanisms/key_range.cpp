// SPDX-License-Identifier: Apache-2.0
// Mechanism: a wrong range of keys: too wide, too narrow, shifted, or cut at a tile or page. For each opened cell every end (with
// the right begin) and every begin (with the right end) is tried at the cost of one pass. Fitting ranges become rules that other
// cells can refute.
#include <algorithm>
#include <cmath>
#include <map>

#include "diagnose/mechanisms/mechanism.h"
#include "faults/visible.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

using semantics::round_up;

constexpr std::size_t kBestEnds = 3;  // candidates of one cell: neighbours may fit equally if weights are small
constexpr std::size_t kMostRules = 160;
const char* const kNextKeyRange =
    "compare the first and the last key that the kernel loops over with the mask of docs/design.md, for one wrong row";

struct Bound {
  std::int64_t position = 0;
  double left = 1;
};

/// Numerator and denominator that grow key by key.
struct Running {
  explicit Running(const OpenCell& c) : cell(c), out(c.dims(), 0.0), sum(c.sink_weight) {}
  void add(std::int64_t k) {
    const double weight = cell.weights[Facts::at(k)];
    const double* v = cell.value(k);
    sum += weight;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * v[d];
  }
  double left(double before) const {
    double squares = 0;
    for (std::size_t d = 0; d < out.size(); ++d) {
      const double error = (cell.observed[d] - out[d] / sum) * cell.inverse[d];
      if (cell.inverse[d] != 0) squares += error * error;
    }
    return sum > 0 ? squares / before : 1;
  }
  const OpenCell& cell;
  std::vector<double> out;
  double sum;
};

std::vector<Bound> best(const OpenCell& cell, std::vector<Bound> found) {
  const double all = cell.error();
  std::erase_if(found, [&](const Bound& b) { return !cell.explained_by(b.left * all); });
  std::sort(found.begin(), found.end(), [](const Bound& a, const Bound& b) { return a.left < b.left; });
  if (found.size() > kBestEnds) found.resize(kBestEnds);
  return found;
}

/// Ends (exclusive) of the order that fit with the right begin.
std::vector<Bound> ends(const Facts& f, const OpenCell& cell) {
  const double before = cell.error();
  const std::int64_t own = f.last_key_of(cell.row) + 1;
  Running running(cell);
  std::vector<Bound> found;
  for (std::int64_t k = cell.from; k < cell.end; ++k) {
    if (k < own && !cell.sees(k)) continue;
    running.add(k);
    if (k + 1 != own) found.push_back({k + 1, running.left(before)});
  }
  return best(cell, std::move(found));
}

/// Begins of the window that fit with the right end. Keys before it that the row sees, of a prefix, stay.
std::vector<Bound> begins(const Facts& f, const OpenCell& cell) {
  const double before = cell.error();
  const std::int64_t own = f.first_key(cell.row.q_pos);
  Running running(cell);
  std::vector<Bound> found;
  for (std::int64_t k = 0; k < std::min(own, cell.to); ++k)
    if (cell.sees(k)) running.add(k);
  for (std::int64_t k = cell.to - 1; k >= 0; --k) {
    if (cell.sees(k) != (k >= own)) continue;
    running.add(k);
    if (k != own) found.push_back({k, running.left(before)});
  }
  return best(cell, std::move(found));
}

using End = std::function<std::int64_t(const Row&)>;
struct Rule {
  End begin, end;  ///< [begin, end); absent: the truth
  End masked;      ///< keys from `end` to here have weight 0, and are multiplied: 0 * NaN is NaN
};

class Rules {
 public:
  explicit Rules(const Facts& f) : f_(f), own_([f = &f](const Row& row) { return f->last_key_of(row) + 1; }) {
    for (const std::int64_t tile : {8, 16, 32, 64, 128, 256, 512})
      if (tile != f.page_size) tiles_.push_back(tile);
    tiles_.insert(tiles_.begin(), f.page_size);
  }

  void of_end(const OpenCell& cell, std::int64_t end) {
    const Row& r = cell.row;
    const std::int64_t own = own_(r);
    add_end(formatted("{} key{} {} the row's own", std::abs(end - own), std::abs(end - own) == 1 ? "" : "s",
                      end < own ? "short of" : "past"),
            [by = end - own, last = own_](const Row& row) { return last(row) + by; });
    add_end(formatted("to seq_len {:+}", end - r.seq_len), [by = end - r.seq_len](const Row& row) { return row.seq_len + by; });
    add_end(formatted("to context_len {:+}", end - r.context_len()),
            [by = end - r.context_len()](const Row& row) { return row.context_len() + by; });
    add_end(formatted("to {} keys at most", end), [end, last = own_](const Row& row) { return std::min(last(row), end); });
    add_end(formatted("to {} keys at least", end), [end, last = own_](const Row& row) { return std::max(last(row), end); });
    add_end("to the row's index in its request", [](const Row& row) { return row.token - row.first_token + 1; });
    const std::int64_t g = f_.group, index = r.token - r.first_token, first = r.q_pos - index;
    if (g > 1 && end == first + index / g + 1)
      add_end(formatted("at the row's index in its request divided by {}, the query heads of a KV head", g), [g](const Row& row) {
        const std::int64_t i = row.token - row.first_token;
        return row.q_pos - i + i / g + 1;
      });
    for (const std::int64_t t : tiles_) {
      const std::string name = t == f_.page_size ? formatted("whole pages of {}", t) : formatted("whole tiles of {}", t);
      if (end == own / t * t) add_end("rounded down to " + name, [t, last = own_](const Row& row) { return last(row) / t * t; });
      if (end == r.q_pos / t * t) add_end("without the own one of " + name, [t](const Row& row) { return row.q_pos / t * t; });
      if (end == round_up(own, t))
        add_end("rounded up to " + name, [t, last = own_](const Row& row) { return round_up(last(row), t); });
      if (end == std::min(round_up(own, t), r.seq_len))
        add_end("rounded up to " + name + ", within seq_len",
                [t, last = own_](const Row& row) { return std::min(round_up(last(row), t), row.seq_len); });
      if (end == std::min(own, r.seq_len / t * t))
        add_end("seq_len rounded down to " + name,
                [t, last = own_](const Row& row) { return std::min(last(row), row.seq_len / t * t); });
      if (end == round_up(r.seq_len, t))
        add_end("seq_len rounded up to " + name, [t](const Row& row) { return round_up(row.seq_len, t); });
      if (end == r.context_len() / t * t + own - r.context_len())
        add_end("context_len rounded down to " + name,
                [t, last = own_](const Row& row) { return row.context_len() / t * t + last(row) - row.context_len(); });
    }
  }

  void of_begin(const OpenCell& cell, std::int64_t begin) {
    const Row& r = cell.row;
    add_begin(formatted("from position {}", begin), [begin](const Row&) { return begin; });
    add_begin(formatted("the last {} keys: a window of that length", r.q_pos + 1 - begin),
              [window = r.q_pos + 1 - begin](const Row& row) { return row.q_pos + 1 - window; });
    add_begin(formatted("from context_len {:+}", begin - r.context_len()),
              [by = begin - r.context_len()](const Row& row) { return row.context_len() + by; });
    add_begin(formatted("from seq_len {:+}", begin - r.seq_len),
              [by = begin - r.seq_len](const Row& row) { return row.seq_len + by; });
    const Facts* f = &f_;
    for (const std::int64_t t : tiles_) {
      const std::string name = t == f_.page_size ? formatted("whole pages of {}", t) : formatted("whole tiles of {}", t);
      const std::int64_t first = f->first_key(r.q_pos);
      if (begin == first / t * t)
        add_begin("from the first key rounded down to " + name,
                  [f, t](const Row& row) { return f->first_key(row.q_pos) / t * t; });
      if (begin == round_up(first, t))
        add_begin("from the first key rounded up to " + name,
                  [f, t](const Row& row) { return round_up(f->first_key(row.q_pos), t); });
      if (begin == r.q_pos / t * t) add_begin("the own one only of " + name, [t](const Row& row) { return row.q_pos / t * t; });
      if (begin == r.context_len() / t * t)
        add_begin("from context_len rounded down to " + name, [t](const Row& row) { return row.context_len() / t * t; });
    }
  }

  /// Rules that need no inversion: what they read may be NaN, which inverts to nothing.
  void always() {
    const Facts* f = &f_;
    for (const std::int64_t t : tiles_) {
      const std::string name = t == f_.page_size ? formatted("whole pages of {}", t) : formatted("whole tiles of {}", t);
      add_end("rounded up to " + name, [t, last = own_](const Row& row) { return round_up(last(row), t); });
      add_end("seq_len rounded up to " + name, [t](const Row& row) { return round_up(row.seq_len, t); });
      add_end("seq_len rounded up to " + name + ", where order hides nothing", [t, last = own_](const Row& row) {
        return row.query_len == 1 || !row.causal ? round_up(row.seq_len, t) : last(row);
      });
    }
    const std::int64_t page = f_.page_size;
    rules_.emplace("ends rounded up to whole pages; masked keys of the last page are multiplied by 0",
                   Rule{{},
                        [page, last = own_](const Row& row) { return round_up(last(row), page); },
                        [page](const Row& row) { return round_up(row.seq_len, page); }});
    for (const std::int64_t shift : {-1, 1}) {
      const auto other = [f, shift](const Row& row) {
        return f->seq_lens[Facts::at((row.req + shift + f->num_reqs) % f->num_reqs)];
      };
      add_end(formatted("within the seq_len of request r {:+}", shift),
              [other, last = own_](const Row& row) { return std::min(last(row), other(row)); });
      add_end(formatted("with the seq_len of request r {:+}", shift),
              [other, last = own_](const Row& row) { return row.query_len == 1 ? other(row) : std::min(last(row), other(row)); });
    }
  }

  void propose(Proposals& list) const {
    const Facts* f = &f_;
    for (const auto& [detail, rule] : rules_) {
      list.push_back({"key_range", rule.end ? "ends its range of keys elsewhere" : "begins its range of keys elsewhere", detail,
                      kNextKeyRange, 1, function_set(&Model::keys, [f, ends = rule](const Row& row, std::vector<Key>& keys) {
                        const std::int64_t capacity = f->max_pages_per_req * f->page_size + f->num_tokens;
                        const std::int64_t begin = ends.begin ? ends.begin(row) : f->first_key(row.q_pos);
                        const std::int64_t end = ends.end ? ends.end(row) : f->last_key_of(row) + 1;
                        faults_detail::keys_within(*f, row, begin, end - 1, keys);
                        const std::int64_t masked = ends.masked ? std::min(ends.masked(row), capacity) : end;
                        for (std::int64_t k = end; k < masked; ++k) keys.push_back({k, 0});
                      })});
    }
  }

 private:
  void add_end(const std::string& detail, End end) {
    if (rules_.size() < kMostRules) rules_.emplace("ends " + detail, Rule{{}, std::move(end)});
  }
  void add_begin(const std::string& detail, End begin) {
    if (rules_.size() < kMostRules) rules_.emplace("begins " + detail, Rule{std::move(begin), {}});
  }

  const Facts& f_;
  End own_;  ///< behind the last key that order leaves
  std::vector<std::int64_t> tiles_;
  std::map<std::string, Rule> rules_;
};

}  // namespace

void propose_key_range(const Scene& scene, Proposals& list) {
  Rules rules(scene.facts);
  for (const OpenCell& cell : scene.cells) {
    for (const Bound& end : ends(scene.facts, cell)) rules.of_end(cell, end.position);
    for (const Bound& begin : begins(scene.facts, cell)) rules.of_begin(cell, begin.position);
  }
  rules.always();
  rules.propose(list);
}

}  // namespace quire::diagnose_detail
