// SPDX-License-Identifier: Apache-2.0
// What a census found, beside what the right computation reads: columns of the table read from other pages, positions left out or
// read again, slots of nobody's; rules over page ids that several rows follow; and the words for all of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/census.h"

namespace quire::diagnose_detail {

struct CensusChanges {
  struct Column {
    std::int64_t column = 0, page = 0, read = 0;  ///< logical page `column` was read from page `read`, not from `page`
  };
  struct Again {
    std::int64_t position = 0;
    int times = 0;     ///< reads beyond the right number
    bool seen = true;  ///< false: the row does not see the position, and the right number is 0
  };
  std::vector<Column> columns;
  std::vector<std::int64_t> left_out;  ///< positions, ascending
  std::vector<Again> again;            ///< ascending
  std::vector<CensusUnit> strangers;   ///< slots of pages that are not the request's, read in place of no column
  std::optional<int> sink;             ///< how often the sink was counted, if not once
  bool of_fresh_rows = false;          ///< some rows of this step were read in another place, or as often as they should not
};
CensusChanges changes_of(const Facts& facts, const RowCensus& census);

/// A column of the table whose page this is, as far as the request has keys; -1 if there is none.
std::int64_t column_of(const Facts& f, std::int64_t request, std::int64_t page);
/// " (request 4's)" or " (no request's)"; empty for an own page.
std::string owner(const Facts& f, std::int64_t request, std::int64_t page);

/// A map of page ids.
struct PageIdRule {
  std::string text;  ///< "page ids above 43 as page 43"
  std::function<std::int64_t(std::int64_t)> map;
};
/// The first rule that makes, of the pages that each row is to read, the pages that it has read; none if some row differs
/// otherwise than by whole pages.
std::optional<PageIdRule> page_id_rule(const Facts& facts, const std::vector<RowCensus>& rows);

/// "row 5 read pages 3, 7, 7 of the cache instead of 3, 4, 7: column 1 from page 7": one sentence for each row, at most `most`,
/// or one for all.
std::vector<std::string> words(const Facts& facts, const std::vector<RowCensus>& rows, std::size_t most);

}  // namespace quire::diagnose_detail
