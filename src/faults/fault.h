// SPDX-License-Identifier: Apache-2.0
// An entry of the catalogue: a text for people, and the ways in which the fault could have happened on a given batch.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "faults/model.h"
#include "quire/tools/faults.hpp"

namespace quire::faults_detail {

/// An output row that is known to be wrong or right, for faults whose parameters are searched for. Empty when mutants are
/// planted.
struct Sample {
  std::int64_t token = 0, head = 0;
  std::vector<double> observed;  ///< v_head_dim values
};
/// A batch, and what is known of a wrong output.
struct Clues {
  const Facts& facts;
  std::vector<Sample> wrong;  ///< a few of the wrong rows
};

/// Plants a fault: changes the model of a right kernel into the model of a wrong one.
using Plant = std::function<void(Model&)>;

/// Plants `wrong` in place of one function of a model.
template <typename AnyModel, typename Function, typename Wrong>
auto function_set(Function AnyModel::* function, Wrong wrong) {
  return [function, wrong = std::move(wrong)](AnyModel& m) { m.*function = wrong; };
}
/// Plants `wrong` in place of one function of a model, and passes that function as its first argument.
template <typename AnyModel, typename Function, typename Wrong>
auto function_changed(Function AnyModel::* function, Wrong wrong) {
  return [function, wrong = std::move(wrong)](AnyModel& m) {
    m.*function = [wrong, before = m.*function](auto&&... arguments) {
      return wrong(before, std::forward<decltype(arguments)>(arguments)...);
    };
  };
}

/// A way in which a fault could have happened on this batch.
struct Suspect {
  std::string detail;  ///< parameters in words; empty if there are none
  Plant plant;
  bool rows_only = false;  ///< replaces `row` only: every row that it leaves alone is right
};

/// Suspects of one fault on one batch, or why it cannot show here ("no sliding window", "query_start_loc is int32").
struct Suspects {
  std::vector<Suspect> list;  ///< the first is the one that is planted as a mutant
  std::string why_not;
  /// Sets the reason if there are none.
  Suspects or_why_not(std::string why) && {
    if (list.empty()) why_not = std::move(why);
    return std::move(*this);
  }
};
inline Suspects cannot_show(std::string why) { return {{}, std::move(why)}; }
inline Suspects one(Plant plant, std::string detail = {}) { return {{{std::move(detail), std::move(plant)}}, {}}; }
inline Suspects rows_only(Plant plant, std::string detail = {}) { return {{{std::move(detail), std::move(plant), true}}, {}}; }

/// Specificity of a fault. Among suspects that explain a batch equally well the more specific one is named first.
enum class Rank : int {
  mechanism = 0,  ///< names a concrete mistake and has evidence for it in this batch (an int64 tensor, an odd group)
  mistake = 1,    ///< names a concrete mistake
  symptom = 2,    ///< describes what happened without saying why (a row was never written)
};

struct Fault {
  FaultInfo info;
  Rank rank = Rank::mistake;
  std::function<Suspects(const Clues&)> suspects;
};

/// The whole catalogue: catalogue.cpp calls every family once.
const std::vector<Fault>& catalogue();
const Fault* find(std::string_view id);

}  // namespace quire::faults_detail
