// SPDX-License-Identifier: Apache-2.0
// Padding rows: names of what becomes of them, and where they begin.
#include "quire/batch.hpp"
#include "semantics/page_walk.h"

namespace quire {

std::string_view name(Padding padding) noexcept {
  switch (padding) {
    case Padding::refused: return "refused";
    case Padding::left: return "left";
    case Padding::zero: return "zero";
  }
  return "invalid";
}

std::optional<Padding> padding_from_name(std::string_view text) noexcept {
  for (const Padding padding : {Padding::refused, Padding::left, Padding::zero})
    if (name(padding) == text) return padding;
  return std::nullopt;
}

std::int64_t num_request_rows(const Batch& batch) noexcept {
  if (batch.padding == Padding::refused) return batch.query.shape[0];
  return semantics::index_view(batch.query_start_loc)[batch.seq_lens.shape[0]];
}

}  // namespace quire
