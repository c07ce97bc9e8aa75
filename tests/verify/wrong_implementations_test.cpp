// SPDX-License-Identifier: Apache-2.0
// Twenty-nine wrong implementations that somebody else wrote to see what this suite misses: the quick suite notices every one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>

#include "semantics/dtype.h"
#include "text/formatted.h"
#include "verify/judge.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

const AttendCase& right() {
  static const AttendCase attend = backend_target("cpu").value().attend;
  return attend;
}

/// A row of a case: its request's number and lengths, and its own number in it.
struct Row {
  std::size_t req;
  Request lens;
  std::int64_t row, token;
};

template <typename Visit>
void for_each_row(const Case& c, Visit&& visit) {
  const Problem p = problem_of(c.batch, c.cache, c.options);
  std::int64_t token = 0;
  for (std::size_t r = 0; r < p.reqs.size(); ++r)
    for (std::int64_t i = 0; i < p.reqs[r].query_len; ++i) visit(Row{r, p.reqs[r], i, token++});
}

/// Element (token, head, dim) of the output times a factor, plus a little where it is 0.
void spoil(const Case& c, std::int64_t token, std::int64_t head, double factor) {
  const Tensor& o = c.batch.output;
  for (std::int64_t d = 0; d < o.shape[2]; ++d) {
    const std::int64_t at = token * o.stride[0] + head * o.stride[1] + d * o.stride[2];
    semantics::store(o.data, o.dtype, at, static_cast<float>(factor * semantics::load(o.data, o.dtype, at)));
  }
}

void spoil_row(const Case& c, std::int64_t token, double factor) {
  for (std::int64_t h = 0; h < c.batch.output.shape[1]; ++h) spoil(c, token, h, factor);
}

/// Right, and then the rows that `wrong` names off by a factor.
AttendCase rows_off(std::function<bool(const Case&, const Row&)> wrong, double factor) {
  return [=](const Case& c, std::string& kernel) {
    const Status s = right()(c, kernel);
    if (s.ok())
      for_each_row(c, [&](const Row& row) {
        if (wrong(c, row)) spoil_row(c, row.token, factor);
      });
    return s;
  };
}

std::int64_t page_of(const Case& c, std::size_t req, std::int64_t j) {
  const Tensor& t = c.batch.block_table;
  return semantics::load_index(t.data, t.dtype, static_cast<std::int64_t>(req) * t.stride[0] + j * t.stride[1]);
}

bool reads_page(const Case& c, const Row& row, std::int64_t page) {
  for (std::int64_t j = 0; j * page_size(c.cache) < row.lens.cached_len; ++j)
    if (page_of(c, row.req, j) == page) return true;
  return false;
}

/// Decode rows as if there were no window.
Status window_ignored_in_decode(const Case& c, std::string& kernel) {
  Case open = c;
  open.options.sliding_window.reset();
  const Tensor& o = c.batch.output;
  std::vector<std::byte> bytes(static_cast<std::size_t>(o.num_elements() * itemsize(o.dtype)));
  open.batch.output = Tensor::contiguous(bytes.data(), o.dtype, o.shape[0], o.shape[1], o.shape[2]);
  open.batch.lse = {};
  if (Status s = right()(open, kernel); !s.ok()) return right()(c, kernel);  // stale pages: nothing to read there
  if (Status s = right()(c, kernel); !s.ok()) return s;
  for_each_row(c, [&](const Row& row) {
    if (row.lens.query_len != 1) return;
    for (std::int64_t i = 0; i < o.shape[1] * o.shape[2]; ++i)
      semantics::store(o.data, o.dtype, row.token * o.stride[0] + i / o.shape[2] * o.stride[1] + i % o.shape[2] * o.stride[2],
                       semantics::load(bytes.data(), o.dtype, row.token * o.shape[1] * o.shape[2] + i));
  });
  return {};
}

AttendCase lse_off(std::function<bool(const Case&, const Row&)> wrong, float by) {
  return [=](const Case& c, std::string& kernel) {
    const Status s = right()(c, kernel);
    const Tensor& lse = c.batch.lse;
    if (s.ok() && lse.present())
      for_each_row(c, [&](const Row& row) {
        for (std::int64_t h = 0; h < lse.shape[1] && wrong(c, row); ++h) {
          const std::int64_t at = row.token * lse.stride[0] + h * lse.stride[1];
          semantics::store(lse.data, lse.dtype, at, by + semantics::load(lse.data, lse.dtype, at));
        }
      });
    return s;
  };
}

/// Right, and then one more thing.
AttendCase and_then(const std::function<void(const Case&)>& more) {
  return [=](const Case& c, std::string& kernel) {
    const Status s = right()(c, kernel);
    if (s.ok() && c.batch.output.num_elements() > 0) more(c);
    return s;
  };
}

/// Wrong in every nth call.
AttendCase every(int n) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  return and_then([=](const Case& c) {
    if (++*calls % n == 0) spoil_row(c, 0, 1.1);
  });
}

/// Adds a little of the call before.
AttendCase leaks_state() {
  const auto before = std::make_shared<float>(0.0f);
  return and_then([=](const Case& c) {
    const Tensor& o = c.batch.output;
    const float now = semantics::load(o.data, o.dtype, 0);
    semantics::store(o.data, o.dtype, 0, now + 0.1f * *before);
    *before = std::isfinite(now) ? now : 0;
  });
}

/// The first answer to a shape, whatever is asked later.
AttendCase memoised() {
  const auto memory = std::make_shared<std::map<std::string, std::vector<std::byte>>>();
  return [=](const Case& c, std::string& kernel) {
    const Tensor& o = c.batch.output;
    const auto size = static_cast<std::size_t>(o.num_elements() * itemsize(o.dtype));
    const std::string key = formatted("{} {} {} {}", name(o.dtype), o.shape[0], o.shape[1], o.shape[2]);
    const auto known = memory->find(key);
    if (known != memory->end() && o.is_contiguous()) {
      std::memcpy(o.data, known->second.data(), size);
      return Status();
    }
    const Status s = right()(c, kernel);
    if (s.ok() && o.is_contiguous())
      (*memory)[key].assign(static_cast<std::byte*>(o.data), static_cast<std::byte*>(o.data) + size);
    return s;
  };
}

void set_first(const Tensor& t) {
  semantics::store(t.data, t.dtype, 0, semantics::load(t.data, t.dtype, 0) == 1.0f ? 2.0f : 1.0f);
}

void round_to_bf16(const Case& c) {
  const Tensor& o = c.batch.output;
  for (std::int64_t i = 0; i < o.num_elements() && o.is_contiguous(); ++i) {
    std::byte bits[2];
    semantics::store(bits, DType::bf16, 0, semantics::load(o.data, o.dtype, i));
    semantics::store(o.data, o.dtype, i, semantics::load(bits, DType::bf16, 0));
  }
}

void write_past_end(const Case& c) {
  const Tensor& o = c.batch.output;
  semantics::store(o.data, o.dtype, o.shape[0] * o.stride[0], 1.0f);
}

/// As if the output had no gaps.
Status ignore_strides(const Case& c, std::string& kernel) {
  Case dense = c;
  const Tensor& o = c.batch.output;
  dense.batch.output = Tensor::contiguous(o.data, o.dtype, o.shape[0], o.shape[1], o.shape[2]);
  return right()(dense, kernel);
}

bool is_fp8_packed_per_head(const Case& c, const Row&) {
  return c.cache.k.dtype == DType::fp8_e5m2fnuz && c.cache.layout == CacheLayout::packed && c.cache.v_scale.num_elements() > 1;
}

struct Wrong {
  std::string name;
  AttendCase attend;
  bool in_place = false;
};

std::vector<Wrong> of_rows() {
  return {
      {"WindowIgnoredInDecode", window_ignored_in_decode},
      {"PageZero", rows_off([](const Case& c, const Row& r) { return reads_page(c, r, 0); }, 1.05)},
      {"SharedPage", rows_off([](const Case& c, const Row& r) { return r.req > 0 && reads_page(c, r, page_of(c, 0, 0)); }, 1.05)},
      {"LengthIsAMultipleOfThePage",
       rows_off([](const Case& c, const Row& r) { return r.lens.seq_len() % page_size(c.cache) == 0; }, 1.05)},
      {"LengthIsAMultipleOf128", rows_off([](const Case&, const Row& r) { return r.lens.seq_len() % 128 == 0; }, 1.05)},
      {"CachedBetween",
       rows_off([](const Case&,
                   const Row& r) { return r.lens.context_len < r.lens.cached_len && r.lens.cached_len < r.lens.seq_len(); },
                1.05)},
      {"CapAlibiAndWindow", rows_off(
                                [](const Case& c, const Row&) {
                                  return c.options.logits_soft_cap && c.options.alibi_slopes.present() &&
                                         c.options.sliding_window;
                                },
                                1.05)},
      {"OddGroups", rows_off(
                        [](const Case& c, const Row&) {
                          const std::int64_t group = c.batch.query.shape[1] / num_kv_heads(c.cache);
                          return group > 1 && group % 2 == 1;
                        },
                        1.05)},
      {"Fp8E5m2fnuzPackedPerHead", rows_off(is_fp8_packed_per_head, 1.1)},
      {"RowsFrom300On", rows_off([](const Case&, const Row& r) { return r.row >= 300; }, 1.05)},
      {"RequestsFrom33On", rows_off([](const Case&, const Row& r) { return r.req >= 33; }, 1.1)},
      {"RequestsFrom64On", rows_off([](const Case&, const Row& r) { return r.req >= 64; }, 1.1)},
      {"LongerThan5000", rows_off([](const Case&, const Row& r) { return r.lens.seq_len() > 5000; }, 1.1)},
      {"DecodeOf1025To1100Keys", rows_off(
                                     [](const Case&, const Row& r) {
                                       const std::int64_t keys = r.lens.seq_len();
                                       return r.lens.query_len == 1 && keys >= 1025 && keys <= 1100;
                                     },
                                     1.1)},
  };
}

/// A kernel that knows the address and the shape of an input, and makes up its strides.
AttendCase contiguous(Tensor Batch::* input) {
  return [input](const Case& c, std::string& kernel) {
    Case dense = c;
    Tensor& t = dense.batch.*input;
    t = Tensor::from_shape(t.data, t.dtype, t.shape, t.rank);
    return right()(dense, kernel);
  };
}

std::vector<Wrong> of_calls() {
  return {
      {"LastKvHead", and_then([](const Case& c) {
         const std::int64_t heads = c.batch.output.shape[1], group = heads / num_kv_heads(c.cache);
         if (heads > group)
           for (std::int64_t h = heads - group; h < heads; ++h)
             for_each_row(c, [&](const Row& r) { spoil(c, r.token, h, 1.03); });
       })},
      {"Lse", lse_off([](const Case&, const Row&) { return true; }, 1e-3f)},
      {"LseOfDecodeWithSinks",
       lse_off([](const Case& c, const Row& r) { return c.options.sinks.present() && r.lens.query_len == 1; }, 0.1f)},
      {"StateLeak", leaks_state()},
      {"SecondCall", every(2)},
      {"OneCallIn50", every(50)},
      {"CacheModified", and_then([](const Case& c) { set_first(c.cache.k); })},
      {"QueryModified", and_then([](const Case& c) { set_first(c.batch.query); })},
      {"ViaBf16", and_then(round_to_bf16)},
      {"MemoisedByShape", memoised()},
      {"WritesOutsideInPlace", and_then(write_past_end), /*in_place=*/true},
      {"GapsIgnored", ignore_strides, /*in_place=*/true},
      {"ByteAfterTheOutput", and_then(write_past_end)},
      {"BlockTableTakenForContiguous", contiguous(&Batch::block_table)},
      {"QueryTakenForContiguous", contiguous(&Batch::query)},
  };
}

/// Names of what no case of these notices.
std::set<std::string> missed(const std::vector<Entry>& entries) {
  std::vector<Wrong> alive = of_rows();
  for (Wrong& w : of_calls()) alive.push_back(std::move(w));
  EXPECT_EQ(alive.size(), 29u);
  for (const Entry& entry : entries) {
    Result<Prepared> p = prepare(entry);
    EXPECT_TRUE(p.ok()) << p.status().message();
    std::erase_if(alive, [&](const Wrong& w) {
      Target t;
      t.name = w.name;
      t.attend = w.attend;
      t.in_place = w.in_place;
      if (judge(t, p.value(), asked_checks(t, {})).status != CaseStatus::fail) return false;
      p = prepare(entry);  // a wrong call may have changed it
      return true;
    });
  }
  std::set<std::string> names;
  for (const Wrong& w : alive) names.insert(w.name);
  return names;
}

std::vector<Entry> quick_suite() {
  std::vector<Entry> entries = hazard_matrix(/*quick=*/true);
  for (Entry& e : random_matrix(1, 40)) entries.push_back(std::move(e));
  return entries;
}

TEST(WrongImplementations, AreAllNoticed) { EXPECT_EQ(missed(quick_suite()), std::set<std::string>{}); }

// What there was before: these hazards exist for them.
TEST(WrongImplementations, SomeNeedTheHazardsOfSizeAndTypes) {
  std::vector<Entry> entries = hazard_matrix(/*quick=*/true);
  std::erase_if(entries, [](const Entry& e) { return reaches_far(e) || e.name == "EveryTypeLayoutScale"; });
  // RequestsFrom33On is noticed: the line with a NaN in a key of one head has 40 requests.
  EXPECT_EQ(missed(entries),
            (std::set<std::string>{"Fp8E5m2fnuzPackedPerHead", "RowsFrom300On", "RequestsFrom64On", "LongerThan5000"}));
}

}  // namespace
}  // namespace quire::verify_detail
