// SPDX-License-Identifier: Apache-2.0
// From token positions to slots: the block table, read as the index type it has.
#pragma once

#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/ceil_div.h"
#include "semantics/dtype.h"
#include "semantics/qualifiers.h"

namespace quire::semantics {

/// A 1-D int32 or int64 array with a stride.
struct IndexView {
  const void* data = nullptr;
  DType dtype = DType::i32;
  std::int64_t stride = 1;

  QUIRE_HD std::int64_t operator[](std::int64_t i) const { return load_index(data, dtype, i * stride); }
};

/// A 1-D u8 array of 0 and 1 with a stride.
struct FlagView {
  const std::uint8_t* data = nullptr;
  std::int64_t stride = 1;

  QUIRE_HD bool operator[](std::int64_t i) const { return data[i * stride] != 0; }
};

inline FlagView flag_view(const Tensor& t) { return {static_cast<const std::uint8_t*>(t.data), t.stride[0]}; }

inline IndexView index_view(const Tensor& t) { return {t.data, t.dtype, t.stride[0]}; }

/// Row r of a [rows, columns] index tensor. A table without columns may have no memory, and nothing is added to null.
inline IndexView index_row(const Tensor& t, std::int64_t r) {
  if (t.shape[1] == 0) return {t.data, t.dtype, t.stride[1]};
  const auto* base = static_cast<const std::uint8_t*>(t.data);
  return {base + r * t.stride[0] * itemsize(t.dtype), t.dtype, t.stride[1]};
}

/// Columns of a table of `width` columns that hold the first `num_keys` keys of a request. A table may be narrower than its
/// requests are long where no row sees the rest: who walks a request's columns asks here how many there are.
constexpr QUIRE_HD std::int64_t columns_held(std::int64_t num_keys, std::int64_t page_size, std::int64_t width) {
  const std::int64_t needed = num_keys > 0 ? ceil_div(num_keys, page_size) : 0;
  return needed < width ? needed : width;
}

/// A request's row of the block table, as kernels read it: an entry that is no page, or that the table is too narrow to have, is
/// page 0. No row sees a key of such an entry, but the key has a place in a tile, which needs an address.
struct PageRow {
  IndexView entries;
  std::int64_t columns = 0, num_pages = 0;

  QUIRE_HD std::int64_t operator[](std::int64_t column) const {
    const std::int64_t page = column < columns ? entries[column] : 0;
    return page >= 0 && page < num_pages ? page : 0;
  }
};

/// Calls visit(page, offset, count, position) for each run of positions [begin, end) that lies within one page.
/// Reads only the table entries of pages that hold a position of the range. Pages: IndexView or PageRow.
template <typename Pages, typename Visit>
QUIRE_HD void for_each_page_run(const Pages& pages, std::int64_t page_size, std::int64_t begin, std::int64_t end, Visit&& visit) {
  std::int64_t index = begin / page_size, offset = begin % page_size;
  for (std::int64_t position = begin; position < end; ++index, offset = 0) {
    const std::int64_t left_in_page = page_size - offset;
    const std::int64_t count = left_in_page < end - position ? left_in_page : end - position;
    visit(pages[index], offset, count, position);
    position += count;
  }
}

}  // namespace quire::semantics
