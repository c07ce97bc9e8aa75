// SPDX-License-Identifier: Apache-2.0
// The parts of a report that are pictures, as JSON of bounded size: where an output is wrong, what the cache holds, who served
// which row. Built where the tensors are (verify, diagnose), drawn by page.js. report.md describes every key.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "quire/attention.hpp"
#include "quire/batch.hpp"
#include "quire/problem.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire::report {

/// Pictures that a page draws of a case: "error", "pages", "rows", each as the functions below make them (report.md, "pictures").
struct Pictures {
  nlohmann::ordered_json parts;
};
using SharedPictures = std::shared_ptr<const Pictures>;

/// Pictures as JSON; null if there are none.
inline nlohmann::ordered_json pictures_json(const Pictures* pictures) {
  return pictures == nullptr ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(pictures->parts);
}

inline constexpr std::int64_t kMaxRequests = 64;  ///< rows of the request x head map; beyond: the worst ones, or bins
inline constexpr std::int64_t kMaxHeads = 128;    ///< columns of the request x head map; beyond: bins of neighbours
inline constexpr std::int64_t kMaxRows = 64;      ///< rows of the cell x dim map: the worst cells
inline constexpr std::int64_t kMaxDims = 256;     ///< columns of the cell x dim map; beyond: bins of neighbours
inline constexpr std::int64_t kMaxPages = 4096;   ///< cells of the page map; beyond: bins of neighbours
inline constexpr std::int64_t kMaxServed = 256;   ///< rows of the kernel table: runs of equal requests

/// Worst |error| / tolerance by request x head, with how many cells (row x head) are wrong, and by cell x dim for the worst
/// cells. Row i of `reference` belongs to row tokens[i] of `output` (Batch::output's shape) and of `lse`, which may be absent; no
/// tokens = row i. A ratio is null where a value is NaN or infinite and the
/// reference is not (or the reverse); those are counted apart. Requests without a compared row are left out.
nlohmann::ordered_json error_picture(const Tensor& output, const Tensor& lse, const Reference& reference, const Batch& batch,
                                     std::span<const std::int64_t> tokens = {});

/// Role of every physical page in the batch: owner, logical index, filled slots, and whether its contents agree with that role.
/// Reads a few elements of KV head 0 per slot. Entries that point outside the cache are counted, not followed. `options` gives
/// the window: pages that the window hides from every row need not be written. Null if the cache is not in host memory.
nlohmann::ordered_json page_picture(const Batch& batch, const KVCache& cache, const Options& options);

/// Number of rows that each kernel wrote, beside the requests of the rows. `counts` as from AttendOptions::rows; without counts
/// only `kernel` is named. With an empty `kernel` only the requests are listed.
nlohmann::ordered_json rows_picture(const Problem& problem, const std::string& kernel, std::span<const RowCount> counts = {});

}  // namespace quire::report
