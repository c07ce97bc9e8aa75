// SPDX-License-Identifier: Apache-2.0
// Support of a target, learnt from a function that takes or refuses problem lines. Refused lines are changed to a form that the
// target takes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "quire/tools/verify.hpp"
#include "verify/matrix.h"

namespace quire::verify_detail {

/// Whether the types, head_dim and layout of a line are among those asked for.
bool is_asked(const AskedTypes& asked, const ProblemLine& line);

class Supported {
 public:
  /// Asks `supports` about plain lines and about one change of them at a time. invalid_argument if it says no to every plain
  /// line.
  static Result<Supported> learn(const Supports& supports, const AskedTypes& asked);

  /// The line itself, or the nearest supported one: other types, layout, scale forms, indices, head_dim, pages or heads, without
  /// lse. Options that are a hazard's point stay; `may_drop_options` lets them go. nullopt if there is no such form.
  std::optional<ProblemLine> fit(const Entry& entry, bool may_drop_options);

  /// "f16 over f16, bf16 over bf16; layout nhd; head_dim 64, 128; pages 16, 32; ..." for the verdict.
  std::string text() const;

 private:
  Supported(const Supports& supports, const AskedTypes& asked) : supports_(supports), asked_(asked) {}
  bool accepts(const ProblemLine& line) const;
  void learn_types();
  void learn_values();
  std::optional<ProblemLine> changed(const Entry& entry, bool may_drop_options, std::size_t attempt) const;

  Supports supports_;
  AskedTypes asked_;
  std::vector<ProblemLine> plain_;  ///< a supported line for each pair of types
  std::vector<TypePair> types_;
  std::vector<CacheLayout> layouts_;
  std::vector<std::int64_t> head_dims_, page_sizes_, groups_;
  std::vector<std::pair<ScaleKind, ScaleKind>> scales_, fp8_scales_;
  std::vector<DType> index_;
  bool lse_ = true, window_ = true, cap_ = true, alibi_ = true, sinks_ = true, uncached_ = true, scale_ = true, shared_ = true;
  std::size_t turn_ = 0;
};

}  // namespace quire::verify_detail
