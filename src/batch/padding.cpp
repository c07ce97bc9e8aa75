// SPDX-License-Identifier: Apache-2.0
// Padding rows: names of what becomes of them, and where they begin.
#include "quire/batch.hpp"
#include "semantics/page_walk.h"
#include "text/names.h"

namespace quire {

static constexpr std::string_view kPaddings[] = {"refused", "left", "zero"};

std::string_view name(Padding padding) noexcept { return name_in(kPaddings, padding, "invalid"); }

std::optional<Padding> padding_from_name(std::string_view text) noexcept { return value_in<Padding>(kPaddings, text); }

std::int64_t num_request_rows(const Batch& batch) noexcept {
  if (batch.padding == Padding::refused) return batch.query.shape[0];
  return semantics::index_view(batch.query_start_loc)[batch.seq_lens.shape[0]];
}

}  // namespace quire
