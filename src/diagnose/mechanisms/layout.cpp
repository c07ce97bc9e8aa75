// SPDX-License-Identifier: Apache-2.0
// K or V read in another order: of the axes of a page, of tiles within a head's part of a page, by the strides of the other
// tensor, or one in place of the other.
#include <set>
#include <utility>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

/// Element offsets of one (page, slot, head) inside a page whose elements are taken to lie in another order.
struct ElementOrder {
  std::string text;
  std::function<std::int64_t(const Facts&, const Place&, std::int64_t head, std::int64_t dim, std::int64_t dims)>
      inside;  ///< offset in a page of contiguous elements
};

std::vector<ElementOrder> orders() {
  using N = std::int64_t;
  return {{"[slots, heads, dims]",
           [](const Facts& f, const Place& p, N h, N d, N n) { return (p.offset * f.num_kv_heads + h) * n + d; }},
          {"[heads, slots, dims]",
           [](const Facts& f, const Place& p, N h, N d, N n) { return (h * f.page_size + p.offset) * n + d; }},
          {"[heads, dims, slots]",
           [](const Facts& f, const Place& p, N h, N d, N n) { return (h * n + d) * f.page_size + p.offset; }},
          {"[dims, heads, slots]",
           [](const Facts& f, const Place& p, N h, N d, N) { return (d * f.num_kv_heads + h) * f.page_size + p.offset; }},
          {"[slots, dims, heads]",
           [](const Facts& f, const Place& p, N h, N d, N n) { return (p.offset * n + d) * f.num_kv_heads + h; }},
          {"[dims, slots, heads]",
           [](const Facts& f, const Place& p, N h, N d, N) { return (d * f.page_size + p.offset) * f.num_kv_heads + h; }}};
}

/// The element of a head's [slots, dims] that is read as (slot, dim), whatever lies around that head: slot * dims + dim.
struct HeadOrder {
  std::string text;
  std::function<std::int64_t(std::int64_t slot, std::int64_t dim, std::int64_t dims)> index;
};

/// Transposed, and in tiles of matrix instructions; written in rows and read in tiles, and the reverse.
std::vector<HeadOrder> orders_within_head(const Facts& f, std::int64_t dims) {
  using N = std::int64_t;
  std::vector<HeadOrder> list{{"[dims, slots] within a head", [size = f.page_size](N s, N d, N) { return d * size + s; }}};
  // Slots and dims of a tile: vectors of 16 bytes, and the fragments of MFMA, WMMA and WGMMA.
  for (const N t : std::set<N>{8, 16, 32, f.page_size})
    for (const N u : {8, 16, 32}) {
      if (t < 2 || f.page_size % t != 0 || dims % u != 0 || u >= dims) continue;
      list.push_back({formatted("tiles of [{} slots, {} dims] within a head", t, u),
                      [t, u](N s, N d, N n) { return ((s / t * (n / u) + d / u) * t + s % t) * u + d % u; }});
      list.push_back(
          {formatted("[slots, dims] within a head, where tiles of [{} slots, {} dims] lie", t, u), [t, u](N s, N d, N n) {
             const N flat = s * n + d, tile = flat / (t * u), inner = flat % (t * u);
             return (tile / (n / u) * t + inner / u) * n + tile % (n / u) * u + inner % u;
           }});
    }
  return list;
}

const char* const kNextLayout =
    "name the layout (nhd, hnd, packed) where the cache is allocated, and compare it with the kernel's";

void add(Proposals& list, Sides sides, std::string text, std::string detail, const char* next,
         std::function<void(Side, const Place&, std::int64_t head, std::span<std::int64_t> at)> elements) {
  list.push_back({"layout", std::move(text), std::move(detail), next, 0,
                  function_changed(&Model::elements,
                                   [sides, elements = std::move(elements)](const auto& before, Side side, const Place& place,
                                                                           std::int64_t head, std::span<std::int64_t> at) {
                                     sides.has(side) ? elements(side, place, head, at) : before(side, place, head, at);
                                   })});
}

void propose_orders(const Facts& f, Proposals& list) {
  const Facts* facts = &f;
  for (const ElementOrder& order : orders())
    for (const Sides sides : kSideSets)
      add(list, sides, formatted("reads {} in another layout", sides.text()), formatted("a page taken for {}", order.text),
          kNextLayout, [facts, order](Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
            for (std::size_t d = 0; d < at.size(); ++d)
              at[d] = place.page * facts->strides(side)[0] +
                      order.inside(*facts, place, head, static_cast<std::int64_t>(d), facts->dims_of(side));
          });
}

/// Orders within a head's part of a page. K and V together have equal dims, or no common tiles.
void propose_orders_within_head(const Facts& f, Proposals& list) {
  const Facts* facts = &f;
  for (const Sides sides : kSideSets) {
    if (sides.key && sides.value && !f.has_equal_dims()) continue;
    for (const HeadOrder& order : orders_within_head(f, f.dims_of(sides.key ? Side::key : Side::value)))
      add(list, sides, formatted("reads {} in another layout", sides.text()), formatted("a page taken for {}", order.text),
          kNextLayout, [facts, order](Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
            const std::int64_t dims = facts->dims_of(side);
            std::vector<std::int64_t> row(Facts::at(dims));
            Place other = place;
            other.offset = -1;
            for (std::size_t d = 0; d < at.size(); ++d) {
              const std::int64_t index = order.index(place.offset, static_cast<std::int64_t>(d), dims);
              if (std::exchange(other.offset, index / dims) != index / dims)
                faults_detail::elements_as(facts->cache.layout, side, facts->strides(side), facts->cache.k.shape[4], other, head,
                                           row);
              at[d] = row[Facts::at(index % dims)];
            }
          });
  }
}

/// Strides of K taken for those of V, or the reverse: of pages, of slots, of heads, in every combination that differs.
void propose_strides_of_the_other(const Facts& f, Proposals& list) {
  if (f.cache.layout == CacheLayout::packed) return;  // K has five axes there and V has four
  const Facts* facts = &f;
  const char* const axes[] = {"page", f.cache.layout == CacheLayout::nhd ? "slot" : "head",
                              f.cache.layout == CacheLayout::nhd ? "head" : "slot"};
  const auto own = f.strides(Side::key), others = f.strides(Side::value);
  for (const Side of : {Side::key, Side::value})
    for (unsigned set = 1; set < 8; ++set) {
      std::string text;
      bool differ = true;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        if ((set >> axis & 1) == 0) continue;
        differ = differ && own[axis] != others[axis];
        text += (text.empty() ? "" : ", ") + std::string(axes[axis]);
      }
      if (!differ) continue;
      const Sides sides{of == Side::key, of == Side::value};
      add(list, sides, formatted("steps through {} by strides of {}", sides.text(), of == Side::key ? "V" : "K"),
          formatted("from one {} to the next", text), "take the strides from the tensor, not from another one",
          [facts, set](Side side, const Place& place, std::int64_t head, std::span<std::int64_t> at) {
            auto strides = facts->strides(side);
            const auto other = facts->strides(side == Side::key ? Side::value : Side::key);
            for (std::size_t axis = 0; axis < 3; ++axis)
              if ((set >> axis & 1) != 0) strides[axis] = other[axis];
            faults_detail::elements_as(facts->cache.layout, side, strides, 0, place, head, at);
          });
    }
}

/// K in place of V and V in place of K, each by its own strides. No kernel takes one for the other if their lengths differ.
void propose_exchange(const Facts& facts, Proposals& list) {
  if (!facts.has_equal_dims()) return;
  list.push_back({"layout", "uses K as V and V as K", "", "compare the order of arguments at the call with the declaration", 0,
                  [](Model& m) {
                    m.vector = [f = m.facts](const Row&, Side side, const Place& place, std::int64_t head, std::span<double> v) {
                      const Side other = side == Side::key ? Side::value : Side::key;
                      if (place.kind == Place::Kind::new_row) faults_detail::load_new_row(*f, other, place.token, head, v);
                      if (place.kind != Place::Kind::cache) return;
                      const float* stored = f->decoded.slot(other, place.page, place.offset, head);
                      const double scale = Model(*f).scale(other, place, head);
                      for (std::size_t d = 0; stored != nullptr && d < v.size(); ++d)
                        v[d] = scale * static_cast<double>(stored[d]);
                    };
                  }});
}

}  // namespace

void propose_layout(const Scene& scene, Proposals& list) {
  propose_orders(scene.facts, list);
  propose_orders_within_head(scene.facts, list);
  propose_strides_of_the_other(scene.facts, list);
  propose_exchange(scene.facts, list);
}

}  // namespace quire::diagnose_detail
