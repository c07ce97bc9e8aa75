// SPDX-License-Identifier: Apache-2.0
// The kernels of this program: the library's, around which a planted fault changes what they are given or what they wrote, and
// the same bodies with steps that can be made wrong.
#include <algorithm>
#include <cstring>

#include "injection/injected.h"
#include "semantics/dtype.h"
#include "semantics/page_walk.h"

namespace quire::test {
namespace {

const Injected* planted = nullptr;

std::int64_t floor_to(std::int64_t n, std::int64_t multiple) { return n / multiple * multiple; }

/// Rows of an item or a merge, which `compute` writes, stored by the fault.
template <class Compute>
std::int64_t store_rows(cpu::AttendArgs args, std::int64_t req, std::int64_t kv_head, std::int64_t row_begin,
                        std::int64_t row_end, Compute&& compute) {
  const cpu::AttendArgs right = args;
  const std::int64_t first = args.query_start_loc[req] + row_begin, tokens = args.query_start_loc[req] + row_end;
  const std::int64_t heads = (kv_head + 1) * args.group, dims = args.v_head_dim;
  std::vector<float> out(static_cast<std::size_t>(tokens * heads * dims)), lse(static_cast<std::size_t>(tokens * heads));
  args.output = out.data();
  args.output_dtype = DType::f32;
  args.output_strides = {0, dims, heads * dims, 0, 1, dims};
  args.lse = lse.data();
  args.lse_token = heads, args.lse_head = 1;
  const std::int64_t rows = compute(args);
  for (std::int64_t token = first; token < tokens; ++token)
    for (std::int64_t head = kv_head * args.group; head < heads; ++head) {
      const auto* values = out.data() + (token * heads + head) * dims;
      StoredRow row{right, req, token, head, {values, values + dims}, lse[static_cast<std::size_t>(token * heads + head)]};
      planted->stored(row);
    }
  return rows;
}

std::int64_t attend(const cpu::KernelEntry& kernel, const cpu::AttendArgs& args, const cpu::WorkItem& item, float* scratch) {
  Given given{args, item, {}, {}, {}};
  if (planted->given != nullptr) planted->given(given);
  const auto compute = [&](const cpu::AttendArgs& a) { return kernel.attend(a, given.item, scratch); };
  if (planted->stored != nullptr && item.partial < 0)
    return store_rows(args, item.req, item.kv_head, item.row_begin, item.row_end, compute);
  const std::int64_t rows = compute(given.args);
  if (planted->step != Step::merged_at_first_part || item.partial < 0 || item.key_begin > 0) return rows;
  const std::int64_t parts = (args.reqs[item.req].seq_len() - 1) / args.split_keys + 1;
  kernel.merge(args, {item.req, item.kv_head, item.row_begin, item.row_end, item.partial, static_cast<std::int32_t>(parts)},
               scratch);
  return rows;
}

std::int64_t merge(const cpu::KernelEntry& kernel, const cpu::AttendArgs& args, const cpu::MergeItem& item, float* scratch) {
  if (planted->step == Step::merged_at_first_part) return (item.row_end - item.row_begin) * args.group;
  Given given{args, {.req = item.req, .kv_head = item.kv_head}, item, {}, {}};
  if (planted->given != nullptr) planted->given(given);
  const auto compute = [&](const cpu::AttendArgs& a) { return kernel.merge(a, given.merge, scratch); };
  if (planted->stored != nullptr) return store_rows(args, item.req, item.kv_head, item.row_begin, item.row_end, compute);
  return compute(given.args);
}

/// A kernel of the library; the same with wrong steps serves while one is planted.
template <const cpu::KernelEntry& kRight, const cpu::KernelEntry& kPlanted>
struct Faulty {
  static const cpu::KernelEntry& now() { return planted->step == Step::none ? kRight : kPlanted; }
  static inline const cpu::KernelEntry entry = {
      kRight.row,
      [](const cpu::AttendArgs& args, const cpu::WorkItem& item, float* scratch) {
        return planted == nullptr ? kRight.attend(args, item, scratch) : attend(now(), args, item, scratch);
      },
      [](const cpu::AttendArgs& args, const cpu::MergeItem& item, float* scratch) {
        return planted == nullptr ? kRight.merge(args, item, scratch) : merge(now(), args, item, scratch);
      }};
};

}  // namespace

Plant::Plant(const Injected& injected) {
  planted = &injected;
  wrong_step = injected.step;
}
Plant::~Plant() {
  planted = nullptr;
  wrong_step = Step::none;
}

Request& Given::req() {
  if (reqs.empty()) reqs.assign(args.reqs, args.reqs + item.req + 1);
  args.reqs = reqs.data();
  return reqs.back();
}

void Given::end_keys_at_multiple_of(std::int64_t keys) {
  const std::int64_t end = floor_to(item.key_end - 1, keys);
  if (end > item.key_begin) item.key_end = end;
}

void shift_pages(Given& given) {
  Tensor& table = given.args.block_table;
  const semantics::IndexView pages = semantics::index_row(table, given.item.req);
  const std::int64_t used = (given.args.reqs[given.item.req].cached_len - 1) / given.args.page_size + 1;
  given.bytes.resize(static_cast<std::size_t>(used) * sizeof(std::int64_t));
  auto* to = reinterpret_cast<std::int64_t*>(given.bytes.data());
  for (std::int64_t i = 0; i < used; ++i) to[i] = pages[std::max<std::int64_t>(i - 1, 0)];
  table.data = to;
  table.dtype = DType::i64;
  table.stride = {0, 1};
}

void repeat_first_query(Given& given) {
  cpu::RowSource& query = given.args.query;
  const std::int64_t first = given.args.query_start_loc[given.item.req] + given.item.row_begin;
  query.data = static_cast<const std::byte*>(query.data) + first * query.strides.token * itemsize(query.dtype);
  query.strides.token = 0;
}

/// V of the first tile at the positions of the others, in a copy of what lies between the first and the last row.
void repeat_first_values(Given& given) {
  cpu::RowSource& v = given.args.cache_v;
  const semantics::IndexView pages = semantics::index_row(given.args.block_table, given.item.req);
  const std::int64_t size = itemsize(v.dtype), tile = given.args.tile_kv, first = floor_to(given.item.key_begin, tile);
  const std::int64_t end = std::min(given.item.key_end, given.args.reqs[given.item.req].cached_len);
  const auto offset = [&](std::int64_t p, std::int64_t d) {
    return (v.strides.row(pages[p / given.args.page_size], given.item.kv_head, p % given.args.page_size) + v.strides.element(d)) *
           size;
  };
  std::int64_t low = offset(given.item.key_begin, 0), high = low;
  for (std::int64_t p = given.item.key_begin; p < end; ++p)
    low = std::min(low, offset(p, 0)), high = std::max(high, offset(p, v.dims - 1) + size);
  const auto* from = static_cast<const std::byte*>(v.data) + low;
  given.bytes.assign(from, from + (high - low));
  for (std::int64_t p = first + tile; p < end; ++p)
    for (std::int64_t d = 0; d < v.dims; ++d)
      std::memcpy(given.bytes.data() + offset(p, d) - low, from + offset(first + p % tile, d) - low,
                  static_cast<std::size_t>(size));
  v.data = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(given.bytes.data()) - static_cast<std::uintptr_t>(low));
}

void StoredRow::store() const {
  const std::int64_t at = args.output_strides.row(0, head, token);
  const float scale = args.output_dtype == DType::fp8_e4m3fn ? args.output_scale : 1.0f;
  for (std::int64_t d = 0; d < args.v_head_dim; ++d)
    semantics::store(args.output, args.output_dtype, at + args.output_strides.element(d),
                     values[static_cast<std::size_t>(d)] / scale);
  if (args.lse != nullptr) args.lse[token * args.lse_token + head * args.lse_head] = lse;
}

void StoredRow::store_padding() const {
  const std::int64_t at = args.output_strides.row(0, head, token);
  for (std::int64_t d = args.v_head_dim; d < args.v_stride; ++d)
    semantics::store(args.output, args.output_dtype, at + d * args.output_strides.dim, 0.0f);
}

void truncate_row(StoredRow& row) {
  for (float& x : row.values) {
    const float scaled = x / row.args.output_scale;
    std::uint8_t code = semantics::fp8_encode<semantics::E4m3fn>(scaled);
    if (std::fabs(semantics::fp8_decode<semantics::E4m3fn>(code)) > std::fabs(scaled)) --code;
    x = semantics::fp8_decode<semantics::E4m3fn>(code) * row.args.output_scale;
  }
  row.store();
}

}  // namespace quire::test

/// Serves this program in place of the library's src/backend/cpu/entries.cpp.
std::span<const quire::cpu::KernelEntry* const> quire::cpu::kernel_entries() noexcept {
  using namespace quire::test;
  static constexpr const KernelEntry* kEntries[] = {
      &Faulty<kGenericEntry, kPlantedGeneric>::entry,
#if defined(__aarch64__)
      &Faulty<kNeonEntry, kPlantedNeon>::entry,
#endif
#if defined(__x86_64__)
      &Faulty<kAvx2Entry, kPlantedAvx2>::entry,
      &Faulty<kAvx512Entry, kPlantedAvx512>::entry,
      &Faulty<kAvx512Bf16Entry, kPlantedAvx512Bf16>::entry,
      &Faulty<kAmxEntry, kPlantedAmx>::entry,
#endif
  };
  return kEntries;
}
