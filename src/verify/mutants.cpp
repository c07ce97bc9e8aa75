// SPDX-License-Identifier: Apache-2.0
// See mutants.h.
#include "verify/mutants.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>

#include "cases/device_case.h"
#include "cases/strided_case.h"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/faults.hpp"
#include "semantics/ceil_div.h"
#include "semantics/dtype.h"
#include "semantics/index_tensor.h"
#include "text/formatted.h"
#include "verify/own_targets.h"

namespace quire::verify_detail {
namespace {

/// Mistakes in storing the rows of the reference.
struct Store {
  double factor = 1;           ///< multiplies the output; 1 + 4e-7 changes bits of an f32 within its tolerance
  bool skip_last_row = false;  ///< leaves the last token's rows as they are
  bool skip_lse = false;
  bool dense = false;  ///< takes the output for contiguous
  bool add = false;    ///< adds to what the output holds
};

constexpr double kOtherBits = 1 + 4e-7;

Status attend_reference(const Case& c, const Store& how) {
  const Result<Reference> r = reference(c.batch, c.cache, c.options);
  if (!r.ok()) return r.status();
  const Tensor& o = c.batch.output;
  const std::int64_t tokens = r->num_tokens - (how.skip_last_row ? 1 : 0);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < r->num_q_heads; ++h) {
      const std::int64_t row = t * r->num_q_heads + h;
      for (std::int64_t d = 0; d < r->v_head_dim; ++d) {
        const std::int64_t at = how.dense ? row * r->v_head_dim + d : t * o.stride[0] + h * o.stride[1] + d * o.stride[2];
        const double before = how.add ? semantics::load(o.data, o.dtype, at) : 0;
        semantics::store(o.data, o.dtype, at,
                         static_cast<float>(how.factor * r->out[static_cast<std::size_t>(row * r->v_head_dim + d)] + before));
      }
      const Tensor& lse = c.batch.lse;
      if (lse.present() && !how.skip_lse)
        semantics::store(lse.data, lse.dtype, t * lse.stride[0] + h * lse.stride[1],
                         static_cast<float>(r->lse[static_cast<std::size_t>(row)]));
    }
  return {};
}

AttendCase stored(Store how) {
  return [how](const Case& c, std::string&) { return attend_reference(c, how); };
}

Target call(std::string name, AttendCase attend) {
  Target t = target_of(std::move(name), std::move(attend));
  t.batch_invariant = true;
  return t;
}

void set_first_element(const Tensor& t, std::int64_t element, float value) {
  if (t.num_elements() > 0) semantics::store(t.data, t.dtype, element, value);
}

/// Five neighbouring calls have five different bits, within the tolerance of an f32.
AttendCase noisy() {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  return [calls](const Case& c, std::string&) { return attend_reference(c, {.factor = 1 + 2e-7 * (++*calls % 5 - 2)}); };
}

AttendCase bits_if(bool (*changes)(const Batch&)) {
  return [changes](const Case& c, std::string&) { return attend_reference(c, {.factor = changes(c.batch) ? kOtherBits : 1}); };
}

Status write_past_end(const Case& c, std::string&) {
  const Tensor& o = c.batch.output;
  set_first_element(o, o.shape[0] * o.stride[0], 1.0f);
  return attend_reference(c, {});
}

/// A kernel whose grid follows the shape of the output, not the starts.
Status write_padding_rows(const Case& c, std::string&) {
  const Tensor& o = c.batch.output;
  if (num_request_rows(c.batch) < o.shape[0]) set_first_element(o, (o.shape[0] - 1) * o.stride[0], 1.0f);
  return attend_reference(c, {});
}

Status change_the_cache(const Case& c, std::string&) {
  // The most visible of changes: the first element of K becomes what it was not.
  const Tensor& k = c.cache.k;
  set_first_element(k, 0, semantics::load(k.data, k.dtype, 0) == 1.0f ? 2.0f : 1.0f);
  return attend_reference(c, {});
}

Status demand_a_full_table(const Case& c, std::string&) {
  const Tensor& table = c.batch.block_table;
  for (std::int64_t r = 0; r < table.shape[0]; ++r)
    for (std::int64_t j = 0; j < table.shape[1]; ++j)
      if (semantics::index_at(table, r, j) >= num_pages(c.cache)) return {Code::internal_error, "page id out of range"};
  return attend_reference(c, {});
}

/// A kernel whose loop over tiles of 64 keys begins at the tile that holds the first visible key, and asks the table for all of
/// it.
Status read_whole_first_tile(const Case& c, std::string&) {
  constexpr std::int64_t kTile = 64;
  const Problem p = problem_of(c.batch, c.cache, c.options);
  const Tensor& table = c.batch.block_table;
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const Request& req = p.reqs[r];
    const std::int64_t first_key = p.visible_keys(req).begin;
    for (std::int64_t k = first_key / kTile * kTile; k < first_key && req.query_len > 0; ++k)
      if (semantics::index_at(table, static_cast<std::int64_t>(r), k / p.page_size) >= num_pages(c.cache))
        return {Code::internal_error, formatted("request {}: the page of position {} is out of range", r, k)};
  }
  return attend_reference(c, {});
}

/// Element offset of dim 0, head 0 of the cached key in the first slot past the end of request r; none if its last page is full.
std::optional<std::int64_t> key_past_end(const Case& c, std::int64_t r) {
  const std::int64_t len = semantics::index_at(c.batch.seq_lens, r), size = page_size(c.cache);
  if (c.batch.cached_lens.present() || len % size == 0) return std::nullopt;
  const std::int64_t page = semantics::index_at(c.batch.block_table, r, len / size);
  const auto& s = c.cache.k.stride;
  const std::int64_t slot_stride = c.cache.layout == CacheLayout::nhd ? s[1] : c.cache.layout == CacheLayout::hnd ? s[2] : s[3];
  return page * s[0] + len % size * slot_stride;
}

/// Zeros add nothing and NaN is filtered, as kernels do that mask by comparing: only finite garbage shows it.
Status leak_finite_tail(const Case& c, std::string&) {
  Store how;
  for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r) {
    const std::optional<std::int64_t> at = key_past_end(c, r);
    const float tail = at ? semantics::load(c.cache.k.data, c.cache.k.dtype, *at) : 0;
    if (std::isfinite(tail)) how.factor += tail;
  }
  return attend_reference(c, how);
}

}  // namespace

std::vector<Mutant> catalogue_mutants() {
  std::vector<Mutant> list;
  for (const FaultInfo& fault : faults()) {
    Target t;
    t.name = fault.id;
    t.attend = [id = fault.id](const Case& c, std::string&) -> Status {
      const Status s = attend_with_fault(c.batch, c.cache, c.options, id);
      // A kernel with the fault is right on a case where the fault cannot show, although the fault may show with other poison. A
      // returned error would not count as noticed either.
      return s.ok() ? s : attend_reference(c, {});
    };
    // Right rows may come from the reference or from the faults' own model: equal values, not equal bits. So only a wrong value
    // counts as noticed.
    t.deterministic = false;
    list.push_back({fault.id, fault.family, fault.text, std::move(t), {}});
  }
  return list;
}

Target right_target() { return call("reference", stored({})); }

namespace {

const Problem& problem(const Prepared& p) { return p.entry.line.problem; }

bool has_rows(const Prepared& p) { return problem(p).num_tokens() > 0; }
bool has_lse(const Prepared& p) { return has_rows(p) && problem(p).lse; }
/// The other bits of kOtherBits are lost in 16-bit outputs.
bool has_f32_rows(const Prepared& p) { return has_rows(p) && problem(p).q_dtype == DType::f32; }
bool has_several_elements(const Prepared& p) {
  return problem(p).num_tokens() * problem(p).num_q_heads * problem(p).out_dim() > 1;
}

bool has_unused_entries(const Prepared& p) {
  const std::int64_t size = problem(p).page_size, width = p.c.batch.block_table.shape[1];
  return has_rows(p) &&
         std::ranges::any_of(problem(p).reqs, [&](const Request& r) { return semantics::ceil_div(r.cached_len, size) < width; });
}

bool has_a_tail(const Prepared& p) {
  if (!has_rows(p) || p.sparse) return false;
  for (std::int64_t r = 0; r < p.c.batch.seq_lens.shape[0]; ++r)
    if (key_past_end(p.c, r)) return true;
  return false;
}

bool is_sliced(const Prepared& p) { return has_f32_rows(p) && problem(p).reqs.size() > 1; }
/// Requests of more rows than a chunk has, all of them cached.
bool is_chunked(const Prepared& p) { return has_f32_rows(p) && problem(p).num_tokens() >= 8 && !p.c.batch.cached_lens.present(); }
bool has_left_rows(const Prepared& p) { return problem(p).padding == Padding::left && problem(p).num_padding_rows > 0; }
bool has_stale_pages(const Prepared& p) { return p.entry.special == Special::stale_pages; }

}  // namespace

std::vector<Mutant> call_mutants() {
  std::vector<Mutant> list;
  const auto add = [&](std::string id, const char* text, const char* check, AttendCase attend,
                       bool (*can_show)(const Prepared&)) {
    Target t = call(id, std::move(attend));
    list.push_back({std::move(id), "call", text, std::move(t), check, can_show});
  };
  add("last_row_unwritten", "never writes the rows of the last token", "rows", stored({.skip_last_row = true}), has_rows);
  add("lse_unwritten", "never writes the lse that was asked for", "lse", stored({.skip_lse = true}), has_lse);
  add("adds_to_output", "adds to the output instead of setting it", "values", stored({.add = true}), has_rows);
  add("output_taken_for_contiguous", "ignores the strides of the output", "strides", stored({.dense = true}),
      has_several_elements);
  add("writes_past_end", "writes one element past the output", "canaries", write_past_end, has_rows);
  add("writes_padding_rows", "writes a row behind the last start of query_start_loc", "rows", write_padding_rows, has_left_rows);
  add("changes_the_cache", "changes an element of the cache that it was given to read", "canaries", change_the_cache, has_rows);
  add("validates_unused_entries", "fails on a table entry past the end of its request", "nan_poison", demand_a_full_table,
      has_unused_entries);
  add("reads_left_of_window", "looks up pages of the whole tile of 64 keys in which the window begins", "values",
      read_whole_first_tile, has_stale_pages);
  add("leaks_finite_tail", "reads the page past the end of a request and skips only NaN", "garbage_poison", leak_finite_tail,
      has_a_tail);
  add("noise", "gives other bits on a second call", "repeat", noisy(), has_f32_rows);
  add("threads_change_bits", "gives other bits on more threads", "threads", stored({}), has_f32_rows);
  list.back().target.variants = {{"more threads", stored({.factor = kOtherBits})}};
  add("batch_changes_bits", "gives a request other bits in a batch than alone", "alone",
      bits_if([](const Batch& b) { return b.seq_lens.shape[0] > 1; }), is_sliced);
  add("chunk_changes_bits", "gives a prompt other bits in small chunks", "chunks",
      bits_if([](const Batch& b) { return b.query.shape[0] < 8; }), is_chunked);
  return list;
}

namespace {

/// The reference, called with a case whose views `mistake` has changed.
AttendCase misread(std::function<void(Case&)> mistake) {
  return [mistake = std::move(mistake)](const Case& c, std::string&) {
    Case other = c;
    mistake(other);
    return attend_reference(other, {});
  };
}

/// Calls visit for the input of that name.
template <typename AnyCase, typename Visit>
void for_input(AnyCase& c, const std::string& wanted, Visit&& visit) {
  cases::for_each_input(c, [&](std::string_view name, auto& t) {
    if (name == wanted) visit(t);
  });
}

/// Gives K the strides of V, if every read then stays within K.
void read_k_by_strides_of_v(Case& c) {
  const Tensor &k = c.cache.k, &v = c.cache.v;
  if (k.rank != v.rank) return;
  Tensor misread = k;
  misread.stride = v.stride;
  if (cases::is_within(misread, k)) c.cache.k = misread;
}

}  // namespace

std::vector<Mutant> view_mutants() {
  std::vector<Mutant> list;
  const auto add = [&](std::string id, std::string text, std::function<void(Case&)> mistake,
                       std::function<bool(const Prepared&)> applies) {
    Target t = call(id, misread(std::move(mistake)));
    list.push_back(
        {std::move(id), "strides", std::move(text), std::move(t), "strided_inputs", std::move(applies), /*of_views=*/true});
  };
  // output_scale has one element, and check() alone reads request_ids.
  const Case none;
  cases::for_each_input(none, [&](std::string_view input, const Tensor&) {
    if (input == "output_scale" || input == "request_ids") return;
    const std::string name(input);
    const auto as_contiguous = [name](Case& c) {
      for_input(c, name, [](Tensor& t) { t = Tensor::from_shape(t.data, t.dtype, t.shape, t.rank); });
    };
    const auto has_elements = [name](const Prepared& p) {
      bool has = false;
      for_input(p.c, name, [&](const Tensor& t) { has = t.num_elements() > 1; });
      return has;
    };
    add(formatted("reads_{}_as_contiguous", name.substr(name.find('.') + 1)), formatted("reads {} as contiguous", name),
        as_contiguous, has_elements);
  });
  add("reads_k_by_strides_of_v", "reads cache.k by the strides of cache.v", read_k_by_strides_of_v, has_rows);
  return list;
}

}  // namespace quire::verify_detail
