// SPDX-License-Identifier: Apache-2.0
// See rank_captures.h.
#include "diagnose/rank_captures.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "diagnose/fault_model.h"
#include "semantics/ceil_div.h"
#include "semantics/index_tensor.h"
#include "text/formatted.h"

namespace quire {
namespace {

bool parse_number(std::string_view text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Status set_word(RankNote& note, std::string_view word) {
  if (word == "heads=own") {
    note.own_heads = true;
    return {};
  }
  const std::size_t equals = std::min(word.find('='), word.size());
  const std::string_view key = word.substr(0, equals), text = word.substr(std::min(equals + 1, word.size()));
  std::int64_t value = 0;
  const bool known = key == "rank" || key == "world" || key == "interleave" || key == "span";
  if (!known || !parse_number(text, value) || value < 0 || value > INT32_MAX)
    return {Code::parse_error,
            formatted("{}: '{}', expected rank=, world=, interleave= or span= with a number, or heads=own", kRankNote, word)};
  if (key == "rank") note.shard.rank = static_cast<std::int32_t>(value);
  if (key == "world") note.shard.world = static_cast<std::int32_t>(value);
  if (key == "interleave") note.shard.interleave = value;
  if (key == "span") note.shard.span = value;
  return {};
}

}  // namespace

std::string to_string(const RankNote& note) {
  const ContextShard& s = note.shard;
  const std::string order = s.contiguous() ? formatted("span={}", s.span) : formatted("interleave={}", s.interleave);
  return formatted("rank={} world={} {}{}", s.rank, s.world, order, note.own_heads ? " heads=own" : "");
}

Result<RankNote> parse_rank_note(std::string_view text) {
  RankNote note;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0)
      if (Status s = set_word(note, text.substr(0, end)); !s.ok()) return s;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (const Findings findings = check_shard(note.shard); !findings.ok()) return findings.status();
  return note;
}

namespace diagnose_detail {
namespace {

using semantics::index_at;
using semantics::indices_of;

Tensor index_tensor_of(Case& owner, const std::vector<std::int64_t>& values, std::int64_t columns = 0) {
  return semantics::index_tensor(owner, DType::i64, values, columns);
}

/// Numbers by name that all ranks share; texts of types and layouts are numbers of theirs.
using Said = std::vector<std::pair<std::string, std::string>>;

std::string option_text(const std::optional<float>& value) { return value ? formatted("{}", *value) : "absent"; }

void add_values(Said& facts, const char* name, const Tensor& t) {
  if (!t.present()) return facts.emplace_back(name, "absent"), void();
  facts.emplace_back(name, formatted("{}", to_string(t)));
  if (t.rank > 1) return;
  for (std::int64_t i = 0; i < (t.rank == 0 ? 1 : t.shape[0]); ++i) {
    const std::int64_t at = t.rank == 0 ? 0 : i * t.stride[0];
    facts.emplace_back(formatted("{}[{}]", name, i), is_floating(t.dtype)
                                                         ? formatted("{}", semantics::load(t.data, t.dtype, at))
                                                         : formatted("{}", semantics::load_index(t.data, t.dtype, at)));
  }
}

Said facts_of(const Case& c, const RankNote& note) {
  const Options& o = c.options;
  Said facts = {
      {"interleave", formatted("{}", note.shard.interleave)},
      {"span", formatted("{}", note.shard.span)},
      {"query", to_string(c.batch.query)},
      {"layout", std::string(name(c.cache.layout))},
      {"type of cached keys", std::string(name(c.cache.k.dtype))},
      {"type of cached values", std::string(name(c.cache.v.dtype))},
      {"page_size", formatted("{}", page_size(c.cache))},
      {"num_kv_heads", formatted("{}", num_kv_heads(c.cache))},
      {"softmax_scale", option_text(o.softmax_scale)},
      {"logits_soft_cap", option_text(o.logits_soft_cap)},
      {"sliding_window", o.sliding_window ? formatted("{}", *o.sliding_window) : "absent"},
  };
  const std::pair<const char*, const Tensor*> tensors[] = {{"query_start_loc", &c.batch.query_start_loc},
                                                           {"seq_lens", &c.batch.seq_lens},
                                                           {"k_scale", &c.cache.k_scale},
                                                           {"v_scale", &c.cache.v_scale},
                                                           {"q_scale", &c.batch.q_scale},
                                                           {"sinks", &o.sinks},
                                                           {"alibi_slopes", &o.alibi_slopes}};
  for (const auto& [name, tensor] : tensors) add_values(facts, name, *tensor);
  return facts;
}

/// The first element of the query that differs, or empty.
std::string query_difference(const Case& a, const Case& b, const std::string& rank) {
  const Tensor &q = a.batch.query, &other = b.batch.query;
  for (std::int64_t t = 0; t < q.shape[0]; ++t)
    for (std::int64_t h = 0; h < q.shape[1]; ++h)
      for (std::int64_t d = 0; d < q.shape[2]; ++d) {
        const float x = semantics::load(q.data, q.dtype, t * q.stride[0] + h * q.stride[1] + d * q.stride[2]);
        const float y = semantics::load(other.data, other.dtype, t * other.stride[0] + h * other.stride[1] + d * other.stride[2]);
        if (std::memcmp(&x, &y, sizeof x) != 0)
          return formatted("Q-D05 query[{}, {}, {}]: {} on {}, expected {} as on rank 0", t, h, d, y, rank, x);
      }
  return {};
}

/// Element offsets of all dims of one key or value of a rank's cache.
struct KeyPlace {
  std::int64_t page, offset, head;
};
void copy_vector(const Case& from, const KeyPlace& place, Side side, std::byte* to) {
  const Tensor& t = side == Side::key ? from.cache.k : from.cache.v;
  const auto dims = static_cast<std::size_t>(from.batch.query.shape[2]);
  const auto size = static_cast<std::size_t>(itemsize(t.dtype));
  std::vector<std::int64_t> at(dims);
  Place where;
  where.page = place.page;
  where.offset = place.offset;
  elements_as(from.cache.layout, side, t.stride, from.cache.k.shape[4], where, place.head, at);
  for (std::size_t d = 0; d < dims; ++d)
    std::memcpy(to + d * size, static_cast<const std::byte*>(t.data) + at[d] * static_cast<std::int64_t>(size), size);
}

Result<std::int64_t> page_on_rank(const Case& c, std::size_t rank, std::int64_t request, std::int64_t column) {
  const Tensor& table = c.batch.block_table;
  if (column >= table.shape[1])
    return Status(Code::invalid_argument,
                  formatted("{}: block_table has {} pages for a request, but request {} needs page {} there",
                            named(c, static_cast<std::int64_t>(rank)), table.shape[1], request, column));
  const std::int64_t page = index_at(table, request, column);
  if (page < 0 || page >= num_pages(c.cache))
    return Status(Code::invalid_argument,
                  formatted("{}: block_table[{}, {}]: page {}, expected one of the {} of the cache",
                            named(c, static_cast<std::int64_t>(rank)), request, column, page, num_pages(c.cache)));
  return page;
}

Status copy_request(const RankCaptures& captures, std::int64_t request, std::int64_t length, std::int64_t first_page,
                    Case& whole) {
  const std::int64_t size = page_size(whole.cache), heads = num_kv_heads(whole.cache), dims = whole.batch.query.shape[2];
  for (std::int64_t p = 0; p < length; ++p) {
    const ContextShard& any = captures.notes.front().shard;
    const auto owner = static_cast<std::size_t>(any.owner(p));
    const Case& from = *captures.cases[owner];
    const std::int64_t local = any.local_index(p);
    const Result<std::int64_t> page = page_on_rank(from, owner, request, local / size);
    if (!page.ok()) return page.status();
    for (std::int64_t h = 0; h < heads; ++h)
      for (const Side side : {Side::key, Side::value}) {
        const Tensor& to = side == Side::key ? whole.cache.k : whole.cache.v;
        const std::int64_t at = (((first_page + p / size) * size + p % size) * heads + h) * dims * itemsize(to.dtype);
        copy_vector(from, {page.value(), local % size, h}, side, static_cast<std::byte*>(to.data) + at);
      }
  }
  return {};
}

Tensor new_cache(Case& owner, DType dtype, std::int64_t pages, const Case& like) {
  const std::int64_t size = page_size(like.cache), heads = num_kv_heads(like.cache), dims = like.batch.query.shape[2];
  const auto bytes = static_cast<std::size_t>(pages * size * heads * dims * itemsize(dtype));
  std::byte* const data = semantics::new_bytes(owner, bytes);
  std::memset(data, 0, bytes);
  return Tensor::contiguous(data, dtype, pages, size, heads, dims);
}

}  // namespace

namespace {

bool is_index(const Tensor& t, int rank) { return t.rank == rank && (t.dtype == DType::i32 || t.dtype == DType::i64); }

bool is_like(const Tensor& t, const Tensor& query, int rank) {
  return t.rank == rank && is_floating(t.dtype) && std::equal(t.shape.begin(), t.shape.begin() + rank, query.shape.begin());
}

/// Shapes and types that everything below reads without asking; the rules of the contract come later, rank by rank.
Status well_formed(const Case& c, std::int32_t rank) {
  const Batch& b = c.batch;
  const auto wrong = [&](const char* tensor, const Tensor& t, const char* expected) -> Status {
    return {Code::invalid_argument, formatted("{}: {}: {}, expected {}", named(c, rank), tensor, to_string(t), expected)};
  };
  if (b.query.rank != 3 || !is_floating(b.query.dtype)) return wrong("query", b.query, "three axes of a floating type");
  if (!is_index(b.query_start_loc, 1)) return wrong("query_start_loc", b.query_start_loc, "one axis of int32 or int64");
  if (!is_index(b.seq_lens, 1)) return wrong("seq_lens", b.seq_lens, "one axis of int32 or int64");
  if (!is_index(b.block_table, 2) || b.block_table.shape[0] != b.seq_lens.shape[0])
    return wrong("block_table", b.block_table, "int32 or int64 [requests, pages]");
  const int cache_rank = c.cache.layout == CacheLayout::packed ? 5 : 4;
  if (c.cache.k.rank != cache_rank || c.cache.v.rank != 4) return wrong("k_cache", c.cache.k, "the axes of its layout");
  for (const Tensor* scale : {&c.cache.k_scale, &c.cache.v_scale})
    if (scale->rank == 3) return wrong("k_scale or v_scale", *scale, "scalar, [1] or [num_kv_heads] over ranks");
  for (const Tensor* side : {&c.cache.k, &c.cache.v})
    if (is_four_bit(side->dtype)) return wrong("k_cache or v_cache", *side, "more than 4 bits over ranks");
  if (!is_like(c.observed, b.query, 3)) return wrong("observed", c.observed, "a floating type and the shape of query");
  if (!b.lse.present()) return {};
  if (!is_like(b.lse, b.query, 2) || b.lse.dtype != DType::f32) return wrong("lse", b.lse, "f32 [tokens, heads]");
  if (!is_like(b.output, b.query, 3)) return wrong("output", b.output, "a floating type and the shape of query");
  return {};
}

}  // namespace

namespace {

/// File of a capture, or its number among those given.
std::string origin(const Case& c, std::size_t number) {
  const auto file = c.notes.find(std::string(kFileNote));
  return file == c.notes.end() ? formatted("capture {}", number) : file->second;
}

Status in_capture(const Case& c, std::size_t number, const Status& why) {
  return {why.code(), formatted("{}: {}", origin(c, number), why.message()), why.rule()};
}

}  // namespace

Result<RankCaptures> sorted_captures(std::span<const Case> captures) {
  RankCaptures sorted;
  for (const Case& c : captures) {
    const auto note = c.notes.find(std::string(kRankNote));
    if (note == c.notes.end())
      return Status(Code::invalid_argument,
                    formatted("{}: it has no note \"{}\"; quire.distributed.attend(..., capture=) writes one per rank",
                              origin(c, sorted.cases.size()), kRankNote));
    Result<RankNote> parsed = parse_rank_note(note->second);
    if (!parsed.ok()) return in_capture(c, sorted.cases.size(), parsed.status());
    if (!c.observed.present())
      return Status(Code::invalid_argument, formatted("{}: the capture has no observed output", named(c, parsed->shard.rank)));
    if (Status s = well_formed(c, parsed->shard.rank); !s.ok()) return s;
    sorted.cases.push_back(&c);
    sorted.notes.push_back(parsed.value());
  }
  if (sorted.cases.empty()) return Status(Code::invalid_argument, "no capture is given, expected one for each rank");
  const std::int32_t world = sorted.notes.front().shard.world;
  RankCaptures by_rank;
  for (std::int32_t rank = 0; rank < world; ++rank) {
    const auto is_rank = [&](const RankNote& note) { return note.shard.rank == rank; };
    const auto found = std::find_if(sorted.notes.begin(), sorted.notes.end(), is_rank);
    if (found == sorted.notes.end())
      return Status(Code::invalid_argument,
                    formatted("rank {} of {} has no capture here: one of every rank is needed", rank, world));
    by_rank.cases.push_back(sorted.cases[static_cast<std::size_t>(found - sorted.notes.begin())]);
    by_rank.notes.push_back(*found);
  }
  for (const RankNote& note : sorted.notes)
    if (note.shard.world != world)
      return Status(Code::invalid_argument,
                    formatted("world: {} and {}: the captures are of two steps", world, note.shard.world));
  if (sorted.cases.size() != by_rank.cases.size())
    return Status(Code::invalid_argument,
                  formatted("{} captures of {} ranks: a rank is given twice", sorted.cases.size(), world));
  return by_rank;
}

std::string named(const Case& c, std::int64_t rank) {
  const auto file = c.notes.find(std::string(kFileNote));
  return file == c.notes.end() ? formatted("rank {}", rank) : formatted("rank {} ({})", rank, file->second);
}

std::vector<std::string> disagreements_of(const RankCaptures& captures) {
  std::vector<std::string> list;
  const Said first = facts_of(*captures.cases[0], captures.notes[0]);
  for (std::size_t rank = 1; rank < captures.world(); ++rank) {
    const std::size_t before = list.size();
    const std::string where = named(*captures.cases[rank], static_cast<std::int64_t>(rank));
    const Said own = facts_of(*captures.cases[rank], captures.notes[rank]);
    for (std::size_t i = 0; i < std::min(own.size(), first.size()) && list.size() == before; ++i)
      if (own[i] != first[i])
        list.push_back(
            formatted("Q-D05 {}: {} on {}, expected {} as on rank 0", first[i].first, own[i].second, where, first[i].second));
    if (list.size() > before) continue;
    if (std::string text = query_difference(*captures.cases[0], *captures.cases[rank], where); !text.empty())
      list.push_back(std::move(text));
  }
  return list;
}

bool has_part(const Case& c) { return c.batch.lse.present(); }

Result<Case> whole_case(const RankCaptures& captures) {
  const Case& first = *captures.cases[0];
  Case whole;
  whole.batch.query = first.batch.query;
  whole.batch.q_scale = first.batch.q_scale;
  whole.batch.output = first.observed;
  whole.options = first.options;
  const std::int64_t size = page_size(first.cache);
  const std::vector<std::int64_t> lengths = indices_of(first.batch.seq_lens);
  whole.batch.query_start_loc = index_tensor_of(whole, indices_of(first.batch.query_start_loc));
  whole.batch.seq_lens = index_tensor_of(whole, lengths);
  std::int64_t pages = 0, columns = 1;
  for (const std::int64_t length : lengths) {
    pages += semantics::ceil_div(length, size);
    columns = std::max(columns, semantics::ceil_div(length, size));
  }
  whole.cache.layout = CacheLayout::nhd;
  whole.cache.k = new_cache(whole, first.cache.k.dtype, std::max<std::int64_t>(pages, 1), first);
  whole.cache.v = new_cache(whole, first.cache.v.dtype, std::max<std::int64_t>(pages, 1), first);
  whole.cache.k_scale = first.cache.k_scale;
  whole.cache.v_scale = first.cache.v_scale;
  std::vector<std::int64_t> table(lengths.size() * static_cast<std::size_t>(columns), 0);
  std::int64_t next = 0;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    if (Status s = copy_request(captures, static_cast<std::int64_t>(r), lengths[r], next, whole); !s.ok()) return s;
    for (std::int64_t j = 0; j * size < lengths[r]; ++j)
      table[r * static_cast<std::size_t>(columns) + static_cast<std::size_t>(j)] = next++;
  }
  whole.batch.block_table = index_tensor_of(whole, table, columns);
  return whole;
}

Result<Case> own_case(const RankCaptures& captures, std::size_t rank) {
  const Case& c = *captures.cases[rank];
  Result<LocalLengths> local = local_lengths(captures.notes[rank].shard, indices_of(c.batch.query_start_loc),
                                             indices_of(c.batch.seq_lens), c.options.sliding_window);
  if (!local.ok()) return local.status();
  Case own;
  own.batch.query = c.batch.query;
  own.batch.q_scale = c.batch.q_scale;
  own.batch.output = c.batch.output;
  own.cache = c.cache;
  own.options = c.options;
  if (rank != 0) own.options.sinks = Tensor{};
  if (has_part(c)) {
    own.batch.lse = c.batch.lse;
    own.observed = c.batch.output;
    own.observed_lse = c.batch.lse;
  }
  own.batch.query_start_loc = index_tensor_of(own, local->query_start_loc);
  own.batch.seq_lens = index_tensor_of(own, local->seq_lens);
  if (!local->q_begin.empty()) own.batch.q_begin = index_tensor_of(own, local->q_begin);
  if (!local->key_begin.empty()) own.batch.key_begin = index_tensor_of(own, local->key_begin);
  const auto count = static_cast<std::int64_t>(local->causal.size());
  std::byte* const flags = semantics::new_bytes(own, local->causal.size());
  std::copy(local->causal.begin(), local->causal.end(), reinterpret_cast<std::uint8_t*>(flags));
  own.batch.causal = Tensor::contiguous(flags, DType::u8, count);
  const std::int64_t columns = c.batch.block_table.shape[1];
  std::vector<std::int64_t> table;
  for (const std::int64_t request : local->request)
    for (std::int64_t j = 0; j < columns; ++j) table.push_back(index_at(c.batch.block_table, request, j));
  own.batch.block_table = index_tensor_of(own, table, columns);
  return own;
}

}  // namespace diagnose_detail
}  // namespace quire
