// SPDX-License-Identifier: Apache-2.0
// See view.h.
#include "caches/view.h"

#include <algorithm>

#include "contract/values.h"
#include "text/formatted.h"

namespace quire {

CacheContents contents_of(const Batch& batch, const KVCache& cache) {
  return {.cache = cache,
          .block_table = batch.block_table,
          .lengths = batch.cached_lens.present() ? batch.cached_lens : batch.seq_lens,
          .request_ids = batch.request_ids,
          .heads = {}};
}

namespace caches {
namespace {

bool is_index(const Tensor& t, int rank, std::int64_t first) {
  return t.rank == rank && (t.dtype == DType::i32 || t.dtype == DType::i64) && (first < 0 || t.shape[0] == first) &&
         t.memory == Memory::cpu && (t.data != nullptr || t.num_elements() == 0);
}

Status wrong(const char* name, const char* what, const Tensor& t, const std::string& expected) {
  return {Code::invalid_argument,
          formatted("{}.{}: {}, expected i32 or i64 {} in cpu memory", name, what, to_string(t), expected)};
}

Status refuse(const CacheContents& c, const char* name) {
  if (c.cache.k.memory != Memory::cpu || c.cache.v.memory != Memory::cpu)
    return {Code::unsupported,
            formatted("{}.cache: in {} memory, expected a copy in cpu memory", name, quire::name(c.cache.k.memory))};
  if (const Findings findings = contract::check_cache(c.cache); !findings.ok()) return findings.status();
  if (!is_index(c.lengths, 1, -1)) return wrong(name, "lengths", c.lengths, "[num_reqs]");
  const std::int64_t requests = c.lengths.shape[0];
  if (!is_index(c.block_table, 2, requests)) return wrong(name, "block_table", c.block_table, formatted("[{}, pages]", requests));
  if (c.request_ids.present() && !is_index(c.request_ids, 1, requests))
    return wrong(name, "request_ids", c.request_ids, formatted("[{}]", requests));
  const auto heads = static_cast<std::int64_t>(c.heads.size());
  if (heads != 0 && heads != num_kv_heads(c.cache))
    return {Code::invalid_argument,
            formatted("{}.heads: {} numbers, expected one for each of {} KV heads", name, heads, num_kv_heads(c.cache))};
  return {};
}

std::vector<std::int64_t> numbered(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i);
  return numbers;
}

template <typename List>
std::optional<std::int64_t> index_in(const List& list, std::int64_t value) {
  const auto found = std::find(list.begin(), list.end(), value);
  return found == list.end() ? std::nullopt : std::optional<std::int64_t>(found - list.begin());
}

}  // namespace

Result<View> View::create(const CacheContents& contents, const char* name) {
  if (Status s = refuse(contents, name); !s.ok()) return s;
  View view(contents);
  view.lengths_ = semantics::indices_of(contents.lengths);
  view.ids_ = contents.request_ids.present() ? semantics::indices_of(contents.request_ids) : numbered(view.requests());
  view.heads_ = contents.heads.empty() ? numbered(num_kv_heads(contents.cache)) : contents.heads;
  const std::int64_t room = contents.block_table.shape[1] * view.page_size();
  for (std::int64_t r = 0; r < view.requests(); ++r) {
    if (view.length(r) < 0 || view.length(r) > room)
      return Status(Code::invalid_argument, formatted("{}.lengths[{}]: {} outside [0, {}], the positions of {} pages of {}", name,
                                                      r, view.length(r), room, contents.block_table.shape[1], view.page_size()));
    for (std::int64_t j = 0; j * view.page_size() < view.length(r); ++j)
      if (const auto page = view.page(r, j)) view.listed_[*page].emplace_back(r, j);
  }
  return view;
}

std::optional<std::int64_t> View::request_of(std::int64_t id) const { return index_in(ids_, id); }
std::optional<std::int64_t> View::head_of(std::int64_t model_head) const { return index_in(heads_, model_head); }

std::optional<std::int64_t> View::page(std::int64_t request, std::int64_t column) const noexcept {
  if (column >= contents_.block_table.shape[1]) return std::nullopt;
  const std::int64_t page = semantics::index_at(contents_.block_table, request, column);
  return page >= 0 && page < num_pages(cache()) ? std::optional(page) : std::nullopt;
}

std::optional<Row> View::row(const Place& place) const noexcept {
  if (place.position < 0) return std::nullopt;
  const auto found = page(place.request, place.position / page_size());
  if (!found) return std::nullopt;
  return Row{place.is_k, *found * page_size() + place.position % page_size(), place.head};
}

std::optional<Place> View::place(const Row& row, std::int64_t request) const {
  const auto found = listed_.find(row.slot / page_size());
  if (found == listed_.end()) return std::nullopt;
  const auto own = std::find_if(found->second.begin(), found->second.end(), [&](const auto& at) { return at.first == request; });
  const auto& [r, column] = own != found->second.end() ? *own : found->second.front();
  return Place{row.is_k, r, row.head, column * page_size() + row.slot % page_size()};
}

float View::scale(bool is_k, std::int64_t head) const noexcept {
  const Tensor& scale = is_k ? cache().k_scale : cache().v_scale;
  if (!scale.present() || scale.rank > 1) return 1.0f;
  return static_cast<const float*>(scale.data)[scale.rank == 1 && scale.shape[0] > 1 ? head * scale.stride[0] : 0];
}

std::vector<double> View::values(const Row& row) const {
  const semantics::StoredRows stored(cache(), row.is_k);
  const Tensor& codes = row.is_k ? cache().k : cache().v;
  const DType dtype = codes.dtype;
  std::vector<std::byte> bytes(stored.bytes());
  stored.copy(row.slot / page_size(), row.head, row.slot % page_size(), bytes.data());
  std::vector<double> values(static_cast<std::size_t>(row.is_k ? head_dim(cache()) : v_head_dim(cache())));
  const auto* codes8 = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::uint8_t* scales = codes8 + stored.code_bytes();
  float factor = scale(row.is_k, row.head);
  if ((row.is_k ? cache().k_scale : cache().v_scale).rank == 3) std::memcpy(&factor, scales, sizeof factor);
  for (std::size_t d = 0; d < values.size(); ++d) {
    const auto at = static_cast<std::int64_t>(d);
    if (dtype == DType::fp8_ds_mla)
      values[d] = semantics::latent_row::load(codes8, at);
    else if (is_four_bit(dtype))
      values[d] = semantics::e2m1_decode(semantics::load_code4(codes8, at)) *
                  semantics::block_scale_decode(dtype, scales[at / block_size(dtype)]) * factor;
    else
      values[d] = semantics::load(codes8, dtype, at) * factor;
  }
  return values;
}

void Index::add(std::uint64_t digest, const Row& row, const View& view) {
  rows_.emplace_back(digest, (row.slot * view.heads() + row.head) * 2 + (row.is_k ? 1 : 0));
}

void Index::sort() {
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
}

std::vector<Row> Index::find(std::uint64_t digest, const View& view, std::size_t most) const {
  std::vector<Row> found;
  for (auto at = std::lower_bound(rows_.begin(), rows_.end(), std::pair(digest, std::int64_t{-1}));
       at != rows_.end() && at->first == digest && found.size() < most; ++at)
    found.push_back({at->second % 2 == 1, at->second / 2 / view.heads(), at->second / 2 % view.heads()});
  return found;
}

}  // namespace caches
}  // namespace quire
