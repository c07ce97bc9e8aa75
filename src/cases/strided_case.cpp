// SPDX-License-Identifier: Apache-2.0
// See strided_case.h.
#include "cases/strided_case.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "capture/spoiler.h"
#include "cases/device_case.h"

namespace quire::cases {
namespace {

/// Gaps between rows of engines are multiples of this many bytes. Kernels that copy 16 bytes at once take no other rows: with
/// another number they would never be asked.
constexpr std::int64_t kGap = 16;

/// The way in which the elements of a tensor, or of tensors that share memory, lie in memory.
struct Arrangement {
  std::array<int, Tensor::kMaxRank> order{0, 1, 2, 3, 4};       ///< dimensions, that of the largest stride first
  std::array<std::int64_t, Tensor::kMaxRank + 1> gap_behind{};  ///< elements behind a run of dimension order[i]
  std::int64_t step = 1;                                        ///< elements from one to its neighbour
  bool backwards = false;                                       ///< the first dimension runs from its end
};

/// Returns an arrangement that engines have, by turns: slices of fused rows, another order of dimensions, gaps behind rows.
Arrangement engine_form(const Tensor& t, std::uint64_t turn) {
  Arrangement a;
  const std::int64_t aligned = std::max<std::int64_t>(1, kGap / itemsize(t.dtype));
  if (t.rank < 2) return a;
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (turn % 3 == 0 || t.rank == 2) a.gap_behind[1] = 3 * aligned;
  if (turn % 3 == 1 && t.rank > 2) std::swap(a.order[t.rank == 3 ? 0 : 1], a.order[t.rank == 3 ? 1 : 2]);
  if (turn % 3 != 0 && t.rank > 2) a.gap_behind[last] = aligned;
  return a;
}

/// Returns an arrangement that no engine has, and that the contract allows. Bytes of a row that hold two dims each, or a row of
/// MLA, stay neighbours.
Arrangement odd_form(const Tensor& t, std::uint64_t turn) {
  const bool has_rows_of_bytes = is_four_bit(t.dtype) || t.dtype == DType::fp8_ds_mla;
  Arrangement a;
  a.backwards = turn % 2 == 0;
  a.step = has_rows_of_bytes ? 1 : a.backwards ? 2 : 3;
  for (std::size_t i = 1; i < static_cast<std::size_t>(t.rank); ++i)
    a.gap_behind[i] = t.dtype == DType::fp8_ds_mla ? kGap : static_cast<std::int64_t>(i);
  if (!a.backwards && t.rank > 1 && !has_rows_of_bytes) std::reverse(a.order.begin(), a.order.begin() + t.rank);
  return a;
}

/// Copies elements to the view `to` of the same shape.
void scatter(const Tensor& from, const Tensor& to) {
  const std::int64_t size = itemsize(from.dtype), count = from.num_elements();
  const auto last = static_cast<std::size_t>(from.rank - 1);
  const bool whole_rows = from.stride[last] == 1 && to.stride[last] == 1;
  const std::int64_t run = whole_rows ? from.shape[last] : 1;
  std::array<std::int64_t, Tensor::kMaxRank> at{};
  for (std::int64_t done = 0; done < count; done += run) {
    std::int64_t source = 0, target = 0;
    for (std::size_t i = 0; i <= last; ++i) source += at[i] * from.stride[i], target += at[i] * to.stride[i];
    std::memcpy(static_cast<std::byte*>(to.data) + target * size, static_cast<const std::byte*>(from.data) + source * size,
                static_cast<std::size_t>(run * size));
    at[last] += run;
    for (std::size_t i = last; i > 0 && at[i] == from.shape[i]; --i) at[i] = 0, ++at[i - 1];
  }
}

/// Fills memory with poison of this kind: a pattern of 64 elements, repeated.
void fill(std::byte* data, std::int64_t elements, DType dtype, PoisonKind kind) {
  constexpr std::int64_t kPattern = 64;  // elements; a power of two
  const Tensor memory = Tensor::contiguous(data, dtype, elements);
  const std::int64_t dims = std::min(elements, kPattern) * (is_four_bit(dtype) ? 2 : 1);
  const capture::Spoiler spoil(memory, kind);
  for (std::int64_t i = 0; i < dims; ++i) spoil(i);
  const std::int64_t bytes = elements * itemsize(dtype);
  for (std::int64_t done = std::min(elements, kPattern) * itemsize(dtype); done < bytes; done *= 2)
    std::memcpy(data + done, data, static_cast<std::size_t>(std::min(done, bytes - done)));
}

/// Dimensions from the first on that have one shape in both, at most all but the last.
int common_dims(const Tensor& a, const Tensor& b) {
  int common = 0;
  while (common < std::min(a.rank, b.rank) - 1 &&
         a.shape[static_cast<std::size_t>(common)] == b.shape[static_cast<std::size_t>(common)])
    ++common;
  return common;
}

/// Gives tensors of one type new memory in which they take turns: after `common` dimensions comes one member behind the other.
void place(Case& owner, const std::vector<Tensor*>& members, int common, const Arrangement& a, PoisonKind between) {
  std::vector<Tensor> placed;
  std::vector<std::int64_t> first;
  std::int64_t total = 0, elements = 0;
  for (const Tensor* t : members) {
    Tensor view = *t;
    std::int64_t extent = a.step;
    for (int i = t->rank - 1; i >= common; --i) {
      const auto dim = static_cast<std::size_t>(a.order[static_cast<std::size_t>(i)]);
      view.stride[dim] = extent;
      extent = extent * view.shape[dim] + a.gap_behind[static_cast<std::size_t>(i)];
    }
    first.push_back(total);
    total += extent;
    elements += t->num_elements();
    placed.push_back(view);
  }
  for (int i = common - 1; i >= 0; --i) {
    const auto dim = static_cast<std::size_t>(a.order[static_cast<std::size_t>(i)]);
    for (Tensor& view : placed) view.stride[dim] = total;
    total = total * placed[0].shape[dim] + a.gap_behind[static_cast<std::size_t>(i)];
  }
  const DType dtype = placed[0].dtype;
  if (a.backwards) total += elements;  // A contiguous read may begin at the last row.
  std::byte* const memory = semantics::new_bytes(owner, static_cast<std::size_t>(total * itemsize(dtype)));
  fill(memory, total, dtype, between);
  for (std::size_t m = 0; m < members.size(); ++m) {
    Tensor& view = placed[m];
    std::int64_t at = first[m];
    if (a.backwards && view.shape[0] > 0) at += (view.shape[0] - 1) * view.stride[0], view.stride[0] = -view.stride[0];
    view.data = memory + at * itemsize(dtype);
    scatter(*members[m], view);
    *members[m] = view;
  }
}

class ViewMaker {
 public:
  ViewMaker(const Case& c, const Views& views) : made_(c), views_(views) {}

  Case make(const Chosen& chosen) {
    std::vector<Tensor*> rest;
    for_each_input(made_, [&](std::string_view name, Tensor& t) {
      const bool has_strides = t.present() && t.rank > 0 && t.num_elements() > 1;
      if (has_strides && (!chosen || chosen(name))) rest.push_back(&t);
    });
    place_values(rest);
    place_together(rest, {&made_.batch.query, &made_.batch.key, &made_.batch.value}, 0);
    place_together(rest, {&made_.cache.k, &made_.cache.v}, 2);
    for (std::size_t i = 0; i < rest.size(); ++i) place(made_, {rest[i]}, 0, form_of(*rest[i], views_.turn + i), views_.between);
    return std::move(made_);
  }

 private:
  Arrangement form_of(const Tensor& t, std::uint64_t turn) const {
    return views_.strides == Strides::any ? odd_form(t, turn) : engine_form(t, turn);
  }

  /// Keeps a V that lies in K's rows there: the view of V is made of the view of K.
  void place_values(std::vector<Tensor*>& rest) {
    Tensor &k = made_.cache.k, &v = made_.cache.v;
    if (!is_within(v, k)) return;
    const Tensor before = k;
    std::erase(rest, &v);
    if (std::erase(rest, &k) == 0) return;
    place(made_, {&k}, 0, form_of(k, views_.turn), views_.between);
    const std::int64_t offset =
        (static_cast<const std::byte*>(v.data) - static_cast<const std::byte*>(before.data)) / itemsize(k.dtype);
    v.stride = k.stride;
    v.data = static_cast<std::byte*>(k.data) + offset * k.stride[static_cast<std::size_t>(k.rank - 1)] * itemsize(k.dtype);
  }

  /// Places tensors of one type in each other's rows or pages. In turn `turn` of three they share as many dimensions as they can,
  /// in another turn the first one.
  void place_together(std::vector<Tensor*>& rest, std::vector<Tensor*> members, std::uint64_t turn) {
    std::erase_if(members, [&](const Tensor* t) { return std::ranges::find(rest, t) == rest.end(); });
    const auto unlike = [&](const Tensor* t) { return t->dtype != members[0]->dtype; };
    if (members.size() < 2 || std::ranges::any_of(members, unlike)) return;
    Arrangement a = form_of(*members[0], views_.turn);
    if (!std::ranges::is_sorted(a.order)) return;
    int common = Tensor::kMaxRank;
    for (const Tensor* t : members) common = std::min(common, common_dims(*members[0], *t));
    if (views_.turn % 3 != turn) common = std::min(common, 1);
    if (common == 0) return;
    place(made_, members, common, a, views_.between);
    for (const Tensor* t : members) std::erase(rest, t);
  }

  Case made_;
  Views views_;
};

}  // namespace

Case with_views(const Case& c, const Views& views, const Chosen& chosen) {
  return views.strides == Strides::none ? c : ViewMaker(c, views).make(chosen);
}

}  // namespace quire::cases
