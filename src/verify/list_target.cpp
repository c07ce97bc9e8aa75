// SPDX-License-Identifier: Apache-2.0
// A case by attend_sparse(): what masks leave to a row is its list, in any order, and the batch beside the lists hides nothing.
// Attention over such lists is attention, so every hazard, fault and tolerance of the suite judges it.
#include "verify/own_targets.h"

#include <algorithm>
#include <random>
#include <vector>

#include "quire/sparse.hpp"
#include "semantics/index_tensor.h"

namespace quire::verify_detail {
namespace {

/// Keys of a row, counted from the first key of its request.
struct RowKeys {
  std::int64_t request = 0, begin = 0, end = 0;
};

std::vector<RowKeys> keys_of_rows(const Problem& p) {
  std::vector<RowKeys> rows;
  for (std::size_t r = 0; r < p.reqs.size(); ++r)
    for (std::int64_t i = 0; i < p.reqs[r].query_len; ++i) {
      const KeyPositions seen = p.visible_keys(p.reqs[r], i, i);
      rows.push_back({static_cast<std::int64_t>(r), seen.begin, seen.end});
    }
  return rows;
}

/// Why a case has no lists; empty if it has.
std::string has_no_lists(const Problem& p) {
  if (p.alibi) return "ALiBi goes with no list";
  if (p.has_shapes()) return "chunks, prefixes, spans and trees go with no list here";
  if (p.layout == CacheLayout::packed) return "packed slots go with no list";
  for (const Request& r : p.reqs)
    if (r.cached_len != r.seq_len()) return "keys beside the cache go with no list";
  return {};
}

/// A case as lists of rows. Forms take turns from case to case: slots, or pages where every row sees keys from the first on;
/// one list for all KV heads, or one for each, in an order of its own; counted, or ended by -1.
class AsLists {
 public:
  AsLists(const Case& c, const Problem& p) : case_(c), rows_(keys_of_rows(p)), page_size_(p.page_size), heads_(p.num_kv_heads) {
    const std::int64_t turn = p.num_tokens() + p.max_seq_len();
    const bool from_first = std::all_of(rows_.begin(), rows_.end(), [](const RowKeys& r) { return r.begin == 0; });
    of_pages_ = from_first && turn % 2 == 1;
    by_head_ = heads_ > 1 && turn % 3 == 0;
    counted_ = of_pages_ || turn % 5 != 0;
    make_batch();
    make_lists(p.max_seq_len());
  }
  const Batch& batch() const { return batch_; }
  const Options& options() const { return options_; }
  const KeyLists& lists() const { return lists_; }

 private:
  void make_batch() {
    batch_ = case_.batch, options_ = case_.options;
    for (Tensor* t : {&batch_.cached_lens, &batch_.key, &batch_.value, &batch_.causal, &batch_.q_begin, &batch_.key_begin,
                      &batch_.slot_mapping})
      *t = Tensor{};
    options_.causal = false;
    options_.sliding_window.reset(), options_.window_right.reset();
  }

  void make_lists(std::int64_t longest) {
    const std::int64_t n = case_.batch.query.shape[0], heads = by_head_ ? heads_ : 1;
    const std::int64_t width = of_pages_ ? (longest + page_size_ - 1) / page_size_ : longest;
    ids_.assign(static_cast<std::size_t>(n * heads * width), -1);
    num_keys_.assign(static_cast<std::size_t>(n * heads), 0);
    std::mt19937 random(1);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t at = static_cast<std::int64_t>(i) * heads + h;
        fill(ids_.data() + at * width, rows_[i], random);
        num_keys_[static_cast<std::size_t>(at)] = rows_[i].end - rows_[i].begin;
      }
    lists_.unit = of_pages_ ? ListUnit::page : ListUnit::slot;
    lists_.ids = by_head_ ? Tensor::contiguous(ids_.data(), DType::i64, n, heads, width)
                          : Tensor::contiguous(ids_.data(), DType::i64, n, width);
    if (!counted_) return;
    lists_.num_keys = by_head_ ? Tensor::contiguous(num_keys_.data(), DType::i64, n, heads)
                               : Tensor::contiguous(num_keys_.data(), DType::i64, n);
  }

  void fill(std::int64_t* list, const RowKeys& row, std::mt19937& random) const {
    const Tensor& t = case_.batch.block_table;
    const auto page = [&](std::int64_t column) { return semantics::index_at(t, row.request, column); };
    std::int64_t count = 0;
    if (!of_pages_) {
      for (std::int64_t k = row.begin; k < row.end; ++k) list[count++] = page(k / page_size_) * page_size_ + k % page_size_;
      return std::shuffle(list, list + count, random);
    }
    for (std::int64_t k = row.begin; k < row.end; k += page_size_) list[count++] = page(k / page_size_);
    const bool last_is_partial = row.end % page_size_ != 0;  // a partial page stands last (Q-K10)
    std::shuffle(list, list + count - (last_is_partial && count > 0 ? 1 : 0), random);
  }

  const Case& case_;
  std::vector<RowKeys> rows_;
  std::int64_t page_size_, heads_;
  bool of_pages_ = false, by_head_ = false, counted_ = true;
  Batch batch_;
  Options options_;
  std::vector<std::int64_t> ids_, num_keys_;
  KeyLists lists_;
};

Status attend_by_lists(const Case& c, int num_threads, Executor& executor, std::string& kernel) {
  const Problem problem = problem_of(c.batch, c.cache, c.options);
  if (const std::string why = has_no_lists(problem); !why.empty()) return {Code::unsupported, why};
  const AsLists made(c, problem);
  const Result<Sparse> planned =
      plan_sparse(made.batch(), c.cache, made.options(), made.lists(), {.plan = {.num_threads = num_threads}});
  const bool has_no_slots = !planned.ok() && planned.status().rule() == "Q-K04";  // K and V that are stored unlike
  if (has_no_slots) return {Code::unsupported, planned.status().message()};
  if (!planned.ok()) return planned.status();
  kernel = planned->plans.empty() ? std::string() : std::string(planned->plans[0].kernel.name());
  const PoisonedWorkspace workspace(workspace_bytes(planned.value()));
  return attend_sparse(planned.value(), made.batch(), c.cache, made.options(), made.lists(), workspace.span(),
                       {.executor = &executor});
}

}  // namespace

std::optional<Result<Target>> list_target(const std::string& name, int num_threads) {
  if (name != "cpu_lists") return std::nullopt;
  const std::shared_ptr<Executor> executor = make_thread_pool(num_threads);
  Target target =
      target_of(name, [=](const Case& c, std::string& kernel) { return attend_by_lists(c, num_threads, *executor, kernel); });
  target.unlike_types = false;
  target.skip["StalePagesLeftOfWindow"] = "the batch beside the lists has no window, and its whole table is read";
  return target;
}

}  // namespace quire::verify_detail
