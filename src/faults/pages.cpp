// SPDX-License-Identifier: Apache-2.0
// Faults in the page of a position: the block table, page ids and page sizes misread.
#include <algorithm>

#include "faults/families.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kOneRequest = "there is one request";

using Table = std::function<std::int64_t(std::int64_t req, std::int64_t column)>;
Plant table(Table wrong) {
  return [wrong = std::move(wrong)](Model& m) { m.table = wrong; };
}

/// Columns [first, last] of the table that the rows of a request read.
Range columns(const Facts& f, std::int64_t req) {
  const Range positions = cached_range(f, req);
  if (positions.empty()) return {};
  return {positions.first / f.page_size, positions.last / f.page_size};
}

/// Does some visible column name another page under `wrong`?
bool differs(const Facts& f, const Table& wrong) {
  return any_request(f, [&](std::int64_t r) {
    const Range range = columns(f, r);
    for (std::int64_t j = range.first; j <= range.last; ++j)
      if (wrong(r, j) != f.page(r, j)) return true;
    return false;
  });
}

Suspects if_differs(const Clues& e, const Table& wrong, const char* why_not, std::string detail = {}) {
  if (!any_cached(e.facts)) return cannot_show(kNotCached);
  if (!differs(e.facts, wrong)) return cannot_show(why_not);
  return one(table(wrong), std::move(detail));
}

Suspects neighbour_request(const Clues& e) {
  const Facts* f = &e.facts;
  const std::int64_t n = f->num_reqs;
  if (n < 2) return cannot_show(kOneRequest);
  Suspects s;
  for (const std::int64_t by : {1, -1}) {
    const Table wrong = [f, n, by](std::int64_t r, std::int64_t j) { return f->page((r + by + n) % n, j); };
    if (differs(*f, wrong)) s.list.push_back({by == 1 ? "the next one's" : "the previous one's", table(wrong)});
  }
  return std::move(s).or_why_not("the rows of all requests hold the same pages");
}

Suspects first_request(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->num_reqs < 2) return cannot_show(kOneRequest);
  return if_differs(e, [f](std::int64_t, std::int64_t j) { return f->page(0, j); }, "all requests read the pages of request 0");
}

Suspects shifted(const Clues& e) {
  const Facts* f = &e.facts;
  Suspects s;
  for (const std::int64_t by : {-1, 1}) {
    const Table wrong = [f, by](std::int64_t r, std::int64_t j) { return f->page(r, std::max<std::int64_t>(j + by, 0)); };
    if (differs(*f, wrong)) s.list.push_back({by == 1 ? "column j + 1" : "column j - 1", table(wrong)});
  }
  return std::move(s).or_why_not(any_cached(*f) ? "no request reads a second page" : kNotCached);
}

Suspects first_page(const Clues& e) {
  const Facts* f = &e.facts;
  return if_differs(e, [f](std::int64_t r, std::int64_t) { return f->page(r, 0); }, "every row reads the first page only");
}

/// Do rows tell the two halves of pages j and j + 1 of a request apart? Softmax does not see a permutation of keys that all
/// count: only a mask between them, or positions in the score, show it.
bool order_shows(const Facts& f, std::int64_t req, std::int64_t j, std::int64_t span) {
  if (f.options.alibi_slopes.present()) return true;
  const std::int64_t first = j * f.page_size, last = (j + span) * f.page_size - 1;
  if (last >= f.seq_lens[Facts::at(req)] || last >= f.cached_lens[Facts::at(req)]) return true;
  for (std::int64_t i = 0; i < f.query_len(req); ++i) {
    std::int64_t seen = 0;
    for (const Span& range : f.seen_by(req, f.first_position(req) + i))
      seen += std::max<std::int64_t>(0, std::min(range.end, last + 1) - std::max(range.begin, first));
    if (seen != 0 && seen != last + 1 - first) return true;
  }
  return false;
}

Suspects swapped_pages(const Clues& e) {
  const Facts* f = &e.facts;
  Suspects s;
  bool any = false;
  for (const std::int64_t r : requests_to_try(e)) {
    const Range range = columns(*f, r);
    for (std::int64_t j = range.last - 1; j >= range.first; --j) {
      any = true;
      if (s.list.size() >= kMaxCandidates || f->page(r, j) == f->page(r, j + 1) || !order_shows(*f, r, j, 2)) continue;
      s.list.push_back({formatted("logical pages {} and {} of request {}", j, j + 1, r),
                        table([f, r, j](std::int64_t req, std::int64_t column) {
                          const bool hit = req == r && (column == j || column == j + 1);
                          return f->page(req, hit ? 2 * j + 1 - column : column);
                        })});
    }
  }
  return std::move(s).or_why_not(any ? "no mask falls between two pages, and there is no ALiBi: their order does not matter"
                                     : "no request reads two pages");
}

Suspects reversed(const Clues& e) {
  const Facts* f = &e.facts;
  const auto shows = [f](std::int64_t r) {
    const Range range = columns(*f, r);
    return range.last > range.first && order_shows(*f, r, 0, range.last + 1);
  };
  if (!any_request(*f, shows)) return cannot_show("no request reads two pages that a mask or ALiBi tells apart");
  return one(table([f](std::int64_t r, std::int64_t j) {
    const std::int64_t last = columns(*f, r).last;
    return f->page(r, j <= last ? last - j : j);
  }));
}

Suspects ignored_pages(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_cached(*f)) return cannot_show(kNotCached);
  std::vector<std::int64_t> first(Facts::at(f->num_reqs) + 1, 0);
  for (std::int64_t r = 0; r < f->num_reqs; ++r)
    first[Facts::at(r + 1)] = first[Facts::at(r)] + semantics::ceil_div(f->seq_lens[Facts::at(r)], f->page_size);
  Suspects s;
  const Table packed = [first](std::int64_t r, std::int64_t j) { return first[Facts::at(r)] + j; };
  const Table padded = [f](std::int64_t r, std::int64_t j) { return r * f->max_pages_per_req + j; };
  if (differs(*f, packed)) s.list.push_back({"pages of a request follow each other, requests too", table(packed)});
  if (differs(*f, padded)) s.list.push_back({"request r starts at page r * max_pages_per_req", table(padded)});
  return std::move(s).or_why_not("the pages lie in order");
}

/// Rows of the table addressed as if they were as long as the longest request needs.
Suspects row_stride(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->num_reqs < 2) return cannot_show(kOneRequest);
  std::int64_t needed = 1;
  for (const std::int64_t n : f->cached_lens) needed = std::max(needed, semantics::ceil_div(n, f->page_size));
  const std::int64_t width = f->max_pages_per_req;
  if (needed == width) return cannot_show("rows of block_table are as long as the longest request needs");
  return if_differs(
      e,
      [f, needed, width](std::int64_t r, std::int64_t j) { return f->page((r * needed + j) / width, (r * needed + j) % width); },
      "every request still finds its pages", formatted("rows of {} entries instead of {}", needed, width));
}

Suspects narrow_ids(const Clues& e) {
  const Facts* f = &e.facts;
  Suspects s;
  const auto add = [&](std::string type, auto narrow) {
    const Table wrong = [f, narrow](std::int64_t r, std::int64_t j) { return narrow(f->page(r, j)); };
    if (differs(*f, wrong)) s.list.push_back({std::move(type), table(wrong)});
  };
  add("uint8", [](std::int64_t id) -> std::int64_t { return static_cast<std::uint8_t>(id); });
  add("int8", [](std::int64_t id) -> std::int64_t { return static_cast<std::int8_t>(id); });
  add("uint16", [](std::int64_t id) -> std::int64_t { return static_cast<std::uint16_t>(id); });
  add("int16", [](std::int64_t id) -> std::int64_t { return static_cast<std::int16_t>(id); });
  for (int bits = 4; bits < 15 && !e.wrong.empty(); ++bits)  // mutants are those of types
    if (const std::int64_t mask = (std::int64_t{1} << bits) - 1; bits != 8)
      add(formatted("{} bits", bits), [mask](std::int64_t id) { return id >= 0 ? id & mask : id; });
  return std::move(s).or_why_not(any_cached(*f) ? "every page id in use fits into 7 bits" : kNotCached);
}

/// Another page size: position / size and position % size with the same table.
Suspect sized(std::int64_t size, std::string detail) {
  return {std::move(detail), cached_place_changed([size](const Model& model, const Row& r, Side, std::int64_t k, Place& place) {
            place.page = model.table(r.req, k / size);
            place.offset = k % size;
          })};
}
/// Does a visible position lie elsewhere? Two pages that are neighbours in memory may make one of twice the size.
bool size_shows(const Facts& f, std::int64_t size) {
  const Model truth(f);
  const auto address = [&](Side side, std::int64_t r, std::int64_t k, std::int64_t tokens) {
    Place place;
    place.page = f.page(r, k / tokens);
    place.offset = k % tokens;
    std::int64_t at = 0;
    truth.elements(side, place, 0, std::span(&at, 1));
    return at;
  };
  return any_request(f, [&](std::int64_t r) {
    const Range range = cached_range(f, r);
    for (std::int64_t k = std::max(range.first, std::min(size, f.page_size)); k <= range.last; ++k)
      for (const Side side : kSides)
        if (address(side, r, k, size) != address(side, r, k, f.page_size)) return true;
    return false;
  });
}

Suspects shift_for_size(const Clues& e) {
  const Facts* f = &e.facts;
  if (is_power_of_two(f->page_size)) return cannot_show(formatted("page_size {} is a power of two", f->page_size));
  Suspects s;
  for (const std::int64_t size : {floor_power_of_two(f->page_size), ceil_power_of_two(f->page_size)})
    if (size_shows(*f, size)) s.list.push_back(sized(size, formatted("as if it were {}", size)));
  return std::move(s).or_why_not("no row reads past the first page");
}

Suspects other_size(const Clues& e) {
  const Facts* f = &e.facts;
  Suspects s;
  std::vector<std::int64_t> sizes = {
      f->page_size * 2, f->page_size / 2, f->page_size / 4, f->page_size * 4, 16, 32, 64, 128, 256};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t size = sizes[i];
    const bool known = std::find(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(i), size) !=
                       sizes.begin() + static_cast<std::ptrdiff_t>(i);
    if (size < 1 || size == f->page_size || known || !size_shows(*f, size)) continue;
    s.list.push_back(sized(size, formatted("page_size {} instead of {}", size, f->page_size)));
  }
  return std::move(s).or_why_not("no row reads past the first page");
}

Suspects slots_reversed(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->page_size == 1) return cannot_show("a page holds one token");
  if (!any_cached(*f)) return cannot_show(kNotCached);
  const auto shows = [f](std::int64_t r) {
    const Range range = columns(*f, r);
    for (std::int64_t j = range.first; j <= range.last; ++j)
      if (order_shows(*f, r, j, 1)) return true;
    return false;
  };
  if (!any_request(*f, shows))
    return cannot_show("no row sees part of a page, and there is no ALiBi: the order of slots does not matter");
  return one(cached_place_changed(
      [f](const Model&, const Row&, Side, std::int64_t, Place& place) { place.offset = f->page_size - 1 - place.offset; }));
}

/// Suspects with the pages of K or of V rotated by one within each request.
Suspects rotated(const Clues& e, Side wrong) {
  const Facts* f = &e.facts;
  if (!any_request(*f, [f](std::int64_t r) { return columns(*f, r).last >= 1; }))
    return cannot_show("no request reads two pages");
  if (wrong == Side::key && !scores_matter(*f)) return cannot_show(kOneKey);
  return one(cached_place_changed([f, wrong](const Model& model, const Row& r, Side side, std::int64_t k, Place& place) {
    if (side != wrong) return;
    const std::int64_t pages = std::max<std::int64_t>(columns(*f, r.req).last + 1, 1);
    place.page = model.table(r.req, (k / f->page_size + 1) % pages);
  }));
}

/// page * page_stride + ... kept in 32 bits.
Suspects offset_32_bit(const Clues& e) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  const Facts* f = &e.facts;
  const auto page_far = [&](Side side) {
    const Tensor& t = side == Side::key ? f->cache.k : f->cache.v;
    return any_request(*f, [&](std::int64_t r) {
      const Range range = columns(*f, r);
      for (std::int64_t j = range.first; j <= range.last; ++j)
        if ((f->page(r, j) + 1) * t.stride[0] > kLimit) return true;
      return false;
    });
  };
  if (!page_far(Side::key) && !page_far(Side::value)) return cannot_show("every element offset in use is below 2^31");
  Suspects s;
  for (const bool is_signed : {false, true})
    s.list.push_back({is_signed ? "int32" : "uint32",
                      function_changed(&Model::elements, [is_signed](const auto& before, Side side, const Place& place,
                                                                     std::int64_t head, std::span<std::int64_t> at) {
                        before(side, place, head, at);
                        for (std::int64_t& i : at)
                          i = is_signed ? static_cast<std::int64_t>(static_cast<std::int32_t>(i))
                                        : static_cast<std::int64_t>(static_cast<std::uint32_t>(i));
                      })});
  return s;
}

}  // namespace

void add_pages(std::vector<Fault>& list) {
  const Family add{list, "pages"};
  const char* const kIndex = "page = block_table[request][position / page_size], offset = position % page_size";
  const char* const kStride = "pass the row stride of block_table; it is not the number of pages in use";
  const char* const kSize = "compare the allocator's page size with the kernel's";
  add("table_row_of_neighbour", "reads the block_table row of the neighbouring request", "", kIndex, neighbour_request);
  add("table_row_of_first_request", "reads the block_table row of request 0 for every request", "", kIndex, first_request);
  add("table_row_stride_too_short", "takes block_table rows for as long as the longest request needs", "vllm#53658", kStride,
      row_stride);
  add("pages_shifted_by_one", "reads the neighbouring logical page", "", kIndex, shifted);
  add("first_page_repeated", "reads the first page again for every later one", "", "look at how the loop over pages advances",
      first_page);
  add("two_pages_swapped", "reads two neighbouring pages in swapped order", "",
      "compare the block table with the allocator's log; quire check with a slot ledger names misplaced reads", swapped_pages);
  add("page_order_reversed", "reads the pages of a request in reverse order", "", kIndex, reversed);
  add("block_table_ignored", "takes the pages of a request for consecutive", "",
      "look for a contiguous-cache kernel called with a paged cache", ignored_pages);
  add("page_id_truncated", "keeps too few bits of page ids", "",
      "look at the type of the page id between the table and the address", narrow_ids);
  add("page_size_shifted", "divides by the page size with a shift", "vllm#31380, vllm#35923",
      "page_size need not be a power of two", shift_for_size, Rank::mechanism);
  add("page_size_confused", "cuts sequences into pages of another size", "vllm#47056", kSize, other_size);
  add("slots_reversed", "reads the slots of a page in reverse order", "", kIndex, slots_reversed);
  add("k_pages_rotated", "reads K one page further than V", "", "K and V share one block table",
      [](const Clues& e) { return rotated(e, Side::key); });
  add("v_pages_rotated", "reads V one page further than K", "", "K and V share one block table",
      [](const Clues& e) { return rotated(e, Side::value); });
  add("element_offset_32_bit", "keeps element offsets in 32 bits", "vllm#50427, vllm#47671, sglang#20389",
      "widen before the multiplication: int64(page) * stride", offset_32_bit, Rank::mechanism);
}

}  // namespace quire::faults_detail
