// SPDX-License-Identifier: Apache-2.0
// What the short and the complete text of a diagnosis have in common: names of suspects, and which of them predict the same.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/tools/diagnose.hpp"
#include "text/formatted.h"

namespace quire::report {

inline constexpr double kPrintedAsAll = 0.9995;  // share of the error that is printed as 100 %
inline constexpr std::string_view kRounding = "rounding";
inline constexpr const char* kNextAfterNaN =
    "NaN does not tell a read of what must not be read from a row that was never written; repeat with finite garbage in place "
    "of NaN (poisoned_cache does, in its second run)";

inline std::string share_text(double share) { return formatted("{:.3g} %", 100 * std::max(0.0, share)); }
/// Whether it explains every cell, none of which holds a number: other causes give 0 or NaN, too.
inline bool is_one_of_many(const Suspicion& s) { return s.standing == Standing::open && !s.likely && !s.certain; }
inline constexpr const char* kOneOfMany = "unknown: these cells hold 0 or NaN alone, which many causes give";
inline constexpr const char* kNextAfterZeros =
    "fill the output with a number before the call: cells that keep it were never written, the others were computed";
inline bool is_nothing(double share) { return share < 0.005; }  ///< printed as 0 %

inline const std::string& id_of(const Suspicion& s) { return s.fault.empty() ? s.mechanism : s.fault; }
inline std::string named(const Suspicion& s) {
  return formatted("{} ({}){}", s.text, id_of(s), s.detail.empty() ? "" : ": " + s.detail);
}

/// Suspects that predict the same as the first one. One that only fits another one's number head by head is left out.
struct AsGood {
  std::vector<const Suspicion*> others;
  bool by_head = false;  ///< a suspect that fits a head's number was left out
};
inline AsGood as_good(std::span<const Suspicion> own) {
  AsGood list;
  const auto end = std::ranges::find_if(own, [](const Suspicion& s) { return s.standing != Standing::open; });
  const auto open = own.first(std::max<std::size_t>(1, static_cast<std::size_t>(end - own.begin())));
  for (const Suspicion& s : open.subspan(1)) {
    const bool repeats = std::ranges::any_of(open, [&](const Suspicion& o) {
      return s.mechanism == o.mechanism && s.fault == o.fault && s.text == o.text + ", by head";
    });
    list.by_head = list.by_head || repeats;
    if (!repeats) list.others.push_back(&s);
  }
  return list;
}

/// Number of suspects that were tested, and the most that one of them explains.
struct Tested {
  std::size_t count = 0;
  double most = 0;
};
inline Tested tested(std::span<const Suspicion> own) {
  Tested t;
  for (const Suspicion& s : own) {
    t.most = std::max(t.most, s.explained);
    t.count += s.standing == Standing::cannot_show || s.fault == kRounding ? 0 : 1;
  }
  return t;
}

/// Suspects that this batch could have shown, by what they explain; what no bytes prove comes behind all others, rounding last.
std::vector<const Suspicion*> refuted_of(std::span<const Suspicion> own);

/// "right", or "right for a kernel that rounds its softmax weights to bf16 (worst 0.63 of the tolerance)".
std::string diagnosis_verdict_text(const Diagnosis& d);
/// How many rows were compared.
std::string coverage_text(const Diagnosis& d);

}  // namespace quire::report
