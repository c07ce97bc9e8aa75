// SPDX-License-Identifier: Apache-2.0
// Cuts a case down to what still shows the same cause, so that it can be mailed: a few requests, and only the pages that they
// read.
#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "batch/caught.h"
#include "batch/fields.h"
#include "faults/model.h"
#include "quire/tools/diagnose.hpp"
#include "semantics/ceil_div.h"
#include "semantics/index_tensor.h"

namespace quire {
namespace {

using faults_detail::Facts;

constexpr std::size_t kWrongRequests = 3;
constexpr std::size_t kRightRequests = 1;
constexpr double kSecondsForCheck = 0.1;      // of comparing a reduced case with the reference: more compares more rows
constexpr std::int64_t kNoPage = 2147480000;  // page id in table entries that no kernel may read

/// Slices of `t` along its first dimension, contiguous, in memory of `out`.
Tensor gather(Case& out, const Tensor& t, const std::vector<std::int64_t>& slices) {
  if (!t.present()) return t;
  Tensor shape = t;
  shape.shape[0] = static_cast<std::int64_t>(slices.size());
  const std::int64_t size = itemsize(t.dtype);
  std::byte* const to = semantics::new_bytes(out, static_cast<std::size_t>(shape.num_elements() * size));
  const Tensor result = Tensor::from_shape(to, t.dtype, shape.shape, t.rank);
  if (t.is_contiguous() && t.shape[0] > 0) {
    const auto bytes = static_cast<std::size_t>(t.num_elements() / t.shape[0] * size);
    for (std::size_t i = 0; i < slices.size(); ++i)
      std::memcpy(to + i * bytes, static_cast<const std::byte*>(t.data) + static_cast<std::size_t>(slices[i]) * bytes, bytes);
    return result;
  }
  std::array<std::int64_t, Tensor::kMaxRank> index{};
  for (std::int64_t i = 0; i < result.num_elements(); ++i) {
    std::int64_t rest = i, from = 0;
    for (int dim = t.rank - 1; dim >= 0; --dim) {
      const auto d = static_cast<std::size_t>(dim);
      index[d] = rest % result.shape[d];
      rest /= result.shape[d];
      from += (dim == 0 ? slices[static_cast<std::size_t>(index[d])] : index[d]) * t.stride[d];
    }
    std::memcpy(to + i * size, static_cast<const std::byte*>(t.data) + from * size, static_cast<std::size_t>(size));
  }
  return result;
}

class Cut {
 public:
  Cut(const Case& c, const Facts& facts, std::vector<std::int64_t> requests) : c_(c), f_(facts), requests_(std::move(requests)) {
    for (const std::int64_t r : requests_)
      for (std::int64_t t = f_.query_start_loc[Facts::at(r)]; t < f_.query_start_loc[Facts::at(r + 1)]; ++t) tokens_.push_back(t);
    std::set<std::int64_t> used;
    for (const std::int64_t r : requests_)
      for (std::int64_t j = 0; j < pages_of(r); ++j)
        if (is_page(f_.page(r, j))) used.insert(f_.page(r, j));
    pages_.assign(used.begin(), used.end());
  }

  Case make() const {
    Case out;
    out.options = c_.options;
    out.cache = c_.cache;
    batch::for_each_tensor([&](const batch::TensorField& f, const Tensor& t, Tensor& to) { to = cut(out, f, t); }, c_, out);
    out.batch.slot_mapping = {};
    out.batch.query_start_loc = starts(out);
    out.batch.block_table = table(out);
    out.observed = gather(out, c_.observed, tokens_);
    out.observed_lse = gather(out, c_.observed_lse, tokens_);
    out.notes = c_.notes;
    out.notes.erase("problem");  // it describes the whole batch
    return out;
  }

 private:
  /// Number of table entries that hold cached tokens; 0 for a request without rows, whose length may be anything. Entries left of
  /// the window count, because faults read there.
  std::int64_t pages_of(std::int64_t r) const {
    const std::int64_t cached = f_.query_len(r) > 0 ? f_.cached_lens[Facts::at(r)] : 0;
    return std::min(semantics::ceil_div(cached, f_.page_size), f_.max_pages_per_req);
  }

  /// An entry left of the window may be none, and leads out of the cache.
  bool is_page(std::int64_t id) const { return id >= 0 && id < f_.num_pages; }

  /// What the requests of this cut need of a tensor. A scale for each token goes with its page.
  Tensor cut(Case& out, const batch::TensorField& f, const Tensor& t) const {
    switch (f.axis) {
      case batch::Axis::token: return gather(out, t, tokens_);
      case batch::Axis::request: return gather(out, t, requests_);
      case batch::Axis::page: return f.kind == batch::Kind::scale && t.rank != 3 ? all(out, t) : gather(out, t, pages_);
      case batch::Axis::none: break;
    }
    return all(out, t);
  }

  static Tensor all(Case& out, const Tensor& t) {
    if (!t.present() || t.rank == 0) {
      if (!t.present()) return t;
      Tensor copy = t;
      std::byte* const data = semantics::new_bytes(out, static_cast<std::size_t>(itemsize(t.dtype)));
      std::memcpy(data, t.data, static_cast<std::size_t>(itemsize(t.dtype)));
      copy.data = data;
      return copy;
    }
    std::vector<std::int64_t> every(static_cast<std::size_t>(t.shape[0]));
    for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::int64_t>(i);
    return gather(out, t, every);
  }

  Tensor starts(Case& out) const {
    std::vector<std::int64_t> values{0};
    for (const std::int64_t r : requests_) values.push_back(values.back() + f_.query_len(r));
    return semantics::index_tensor(out, c_.batch.query_start_loc.dtype, values);
  }

  Tensor table(Case& out) const {
    Tensor t = gather(out, c_.batch.block_table, requests_);
    for (std::size_t i = 0; i < requests_.size(); ++i)
      for (std::int64_t j = 0; j < t.shape[1]; ++j) {
        const std::int64_t page = f_.page(requests_[i], j);
        const auto at = std::lower_bound(pages_.begin(), pages_.end(), page) - pages_.begin();
        const bool kept = j < pages_of(requests_[i]) && is_page(page);
        semantics::store_index(t, static_cast<std::int64_t>(i) * t.shape[1] + j, kept ? at : kNoPage);
      }
    return t;
  }

  const Case& c_;
  const Facts& f_;
  std::vector<std::int64_t> requests_, tokens_, pages_;
};

/// Returns a few wrong requests and the shortest right one, in batch order.
std::vector<std::int64_t> worth_keeping(const Facts& f, const std::vector<std::int64_t>& wrong_tokens) {
  std::set<std::int64_t> wrong;
  for (const std::int64_t token : wrong_tokens) wrong.insert(f.req_of(token));
  std::vector<std::int64_t> bad(wrong.begin(), wrong.end()), good;
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (!wrong.contains(r) && f.query_len(r) > 0) good.push_back(r);
  const auto shorter = [&](std::int64_t a, std::int64_t b) {
    return f.query_len(a) + f.seq_lens[Facts::at(a)] < f.query_len(b) + f.seq_lens[Facts::at(b)];
  };
  for (auto* list : {&bad, &good}) std::stable_sort(list->begin(), list->end(), shorter);
  bad.resize(std::min(bad.size(), kWrongRequests));
  good.resize(std::min(good.size(), kRightRequests));
  bad.insert(bad.end(), good.begin(), good.end());
  std::sort(bad.begin(), bad.end());
  return bad;
}

/// Does the part still show something wrong, and is its cause that of the whole?
bool shows_the_same(const Case& part, const Diagnosis& whole) {
  DiagnoseOptions options;
  options.reference_seconds = kSecondsForCheck;
  if (whole.verdict != DiagnosisVerdict::cause_found) options.seconds = kSecondsForCheck;  // no cause is asked for
  const Result<Diagnosis> again = diagnose(part, options);
  if (!again.ok() || again->verdict == DiagnosisVerdict::right) return false;
  if (whole.verdict != DiagnosisVerdict::cause_found) return true;
  if (again->verdict != whole.verdict) return false;
  const Suspicion &one = whole.suspicions.front(), &other = again->suspicions.front();
  return one.mechanism == other.mechanism && one.fault == other.fault;
}

}  // namespace

Result<Case> reduce_case(const Case& c, const Diagnosis& diagnosis) try {
  if (diagnosis.verdict == DiagnosisVerdict::broken_batch)
    return Status(Code::invalid_argument, "a batch that breaks the contract cannot be reduced: mail it whole");
  const Facts facts(c.batch, c.cache, c.options);
  Case few = Cut(c, facts, worth_keeping(facts, diagnosis.wrong_tokens)).make();
  if (shows_the_same(few, diagnosis)) return few;
  std::vector<std::int64_t> every;
  for (std::int64_t r = 0; r < facts.num_reqs; ++r) every.push_back(r);
  return Cut(c, facts, every).make();
} catch (...) {
  return batch::caught("reduce_case");
}

}  // namespace quire
