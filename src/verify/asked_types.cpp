// SPDX-License-Identifier: Apache-2.0
// The hazards in types, head_dims and layouts that the caller names, for kernels that take few: each shape once in every type and
// head_dim, with layouts, scale forms and index types in turn.
#include <iterator>
#include <set>

#include "text/formatted.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

/// Combination number `turn`. The counts of layouts, scales and index types share no factor, and each shape starts at another
/// turn, so that every value meets every other.
std::string combination(const TypePair& types, std::size_t turn) {
  constexpr const char* kLayouts[] = {"nhd", "hnd", "packed"};
  constexpr const char* kScales[] = {"", " kscale=head vscale=tensor", " kscale=tensor vscale=tensor",
                                     " kscale=tensor vscale=head", " kscale=head vscale=head"};
  return formatted("q={} kv={} layout={}{}{}", name(types.query), name(types.cache), kLayouts[turn % std::size(kLayouts)],
                   kScales[turn % std::size(kScales)], turn % 4 == 1 ? " index=i64" : "");
}

std::optional<ProblemLine> if_legal(const ProblemLine& line) {
  Result<ProblemLine> legal = parse_problem_line(to_string(line));
  return legal.ok() ? std::optional(std::move(legal).value()) : std::nullopt;
}

/// The line in its layout, or where that does not hold its head_dim as nhd; of asked layouts in the turn's, or in the next that
/// does.
std::optional<ProblemLine> in_layout(ProblemLine line, const std::vector<CacheLayout>& layouts, std::size_t turn) {
  const std::vector<CacheLayout> own = {line.problem.layout, CacheLayout::nhd};
  const std::vector<CacheLayout>& choice = layouts.empty() ? own : layouts;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    line.problem.layout = choice[layouts.empty() ? i : (turn + i) % choice.size()];
    if (std::optional<ProblemLine> legal = if_legal(line)) return legal;
  }
  return std::nullopt;
}

class Matrix {
 public:
  Matrix(const AskedTypes& asked, bool quick) : asked_(asked), quick_(quick) {}

  std::vector<Entry> entries() {
    for (const Hazard& hazard : hazards()) add_hazard(hazard);
    for (const Entry& special : hazard_matrix(/*quick=*/true))
      if (special.special != Special::none) add_special(special);
    add_type_matrices(list_, asked_, quick_);
    return std::move(list_);
  }

 private:
  std::optional<ProblemLine> with_head_dim(ProblemLine line, std::int64_t head_dim) const {
    line.problem.head_dim = head_dim;
    if (!asked_.head_dims.empty()) remove_own_v(line);
    return in_layout(std::move(line), asked_.layouts, turn_);
  }

  void add_hazard(const Hazard& hazard) {
    std::set<std::string> seen;  // shapes that differ in head_dim alone are one shape here
    for (const std::string& shape : hazard.shapes) {
      const std::vector<std::int64_t> dims = dims_of(hazard_line("q=f32", shape, 1).problem.head_dim, hazard.least_dim);
      ProblemLine alike = hazard_line("q=f32", shape, 1);
      alike.problem.head_dim = dims.empty() ? 0 : dims.front();
      if (dims.empty() || !seen.insert(to_string(alike)).second) continue;
      std::size_t left = quick_ ? kQuickTurns : dims.size() * num_combinations();
      for (std::size_t i = quick_ ? turn_ : 0; left > 0; ++i, --left) {
        const std::string types = combination_of(i / dims.size() % num_combinations());
        if (std::optional<ProblemLine> line = with_head_dim(hazard_line(types, shape, ++seed_), dims[i % dims.size()]))
          list_.push_back({"hazards", hazard.name, std::move(*line), Special::none});
        ++turn_;
      }
      ++turn_;
    }
  }

  /// Adds lines for data that no problem line describes. Huge offsets cost gigabytes: they get one pair of types.
  void add_special(const Entry& special) {
    const std::vector<std::int64_t> dims = dims_of(special.line.problem.head_dim, 1);
    std::vector<TypePair> types = asked_.types;
    if (types.empty()) types = {{special.line.problem.q_dtype, special.line.problem.kv_dtype}};
    std::erase_if(types, [&](const TypePair& t) {
      return (special.special == Special::every_fp8_code && t.cache != special.line.problem.kv_dtype) ||
             (special.special == Special::minus_infinite_scores && is_fp8(t.cache));
    });
    const bool once = quick_ || special.special == Special::huge_offsets;
    const std::size_t count = types.size() * dims.size();
    for (std::size_t i = 0; i < (once ? std::min<std::size_t>(1, count) : count); ++i, ++turn_) {
      const std::size_t at = once ? turn_ % count : i;
      ProblemLine line = special.line;
      line.problem.q_dtype = types[at / dims.size()].query;
      line.problem.kv_dtype = types[at / dims.size()].cache;
      line.problem.v_dtype = DType::none;
      if (std::optional<ProblemLine> legal = with_head_dim(std::move(line), dims[at % dims.size()]))
        list_.push_back({"hazards", special.name, std::move(*legal), special.special});
    }
  }

  std::vector<std::int64_t> dims_of(std::int64_t own, std::int64_t least) const {
    if (asked_.head_dims.empty()) return {own};
    std::vector<std::int64_t> dims = asked_.head_dims;
    std::erase_if(dims, [&](std::int64_t d) { return d < least; });
    return dims;
  }

  std::size_t num_combinations() const { return asked_.types.empty() ? type_combinations().size() : asked_.types.size(); }
  std::string combination_of(std::size_t i) const {
    return asked_.types.empty() ? type_combinations()[i] : combination(asked_.types[i], turn_);
  }

  const AskedTypes& asked_;
  const bool quick_;
  std::vector<Entry> list_;
  std::size_t turn_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace

std::optional<ProblemLine> in_asked(ProblemLine line, const AskedTypes& asked, std::size_t turn) {
  Problem& p = line.problem;
  if (!asked.types.empty()) {
    p.q_dtype = asked.types[turn % asked.types.size()].query;
    p.kv_dtype = asked.types[turn % asked.types.size()].cache;
    p.v_dtype = DType::none;
  }
  if (!asked.head_dims.empty()) remove_own_v(line);
  if (!asked.head_dims.empty())
    p.head_dim = asked.head_dims[turn / std::max<std::size_t>(1, asked.types.size()) % asked.head_dims.size()];
  return in_layout(std::move(line), asked.layouts, turn);
}

Status check_asked(const AskedTypes& asked) {
  for (const TypePair& t : asked.types) {
    if (is_four_bit(t.cache))  // most hazards have head_dims that are no whole blocks
      return {Code::invalid_argument,
              formatted("types {}:{}: expected a cache of 8 bits or more; without types, the hazards have "
                        "nvfp4 and mxfp4",
                        name(t.query), name(t.cache))};
    if (const auto line = parse_problem_line(formatted("q={} kv={} heads=1 d=16 page=16 reqs=1", name(t.query), name(t.cache)));
        !line.ok())
      return {Code::invalid_argument, formatted("types {}:{}: {}", name(t.query), name(t.cache), line.status().message())};
  }
  for (const std::int64_t d : asked.head_dims)
    if (const auto line = parse_problem_line(formatted("q=f32 heads=1 d={} page=16 reqs=1", d)); !line.ok())
      return {Code::invalid_argument, formatted("head_dim {}: {}", d, line.status().message())};
  return {};
}

std::vector<Entry> hazard_matrix(const AskedTypes& asked, bool quick) {
  if (asked.empty()) return hazard_matrix(quick);
  return Matrix(asked, quick).entries();
}

}  // namespace quire::verify_detail
