// SPDX-License-Identifier: Apache-2.0
// See subbatch.h.
#include "verify/subbatch.h"

#include <algorithm>
#include <initializer_list>

#include "batch/fields.h"
#include "quire/problem.hpp"
#include "semantics/index_tensor.h"

namespace quire::verify_detail {
namespace {

using semantics::index_at;

Tensor index_tensor(Case& owner, DType dtype, std::initializer_list<std::int64_t> values) {
  return semantics::index_tensor(owner, dtype, std::vector(values));
}

Tensor rows_of(Tensor t, std::int64_t first, std::int64_t count) {
  if (!t.present()) return t;
  t.data = static_cast<std::byte*>(t.data) + first * t.stride[0] * itemsize(t.dtype);
  t.shape[0] = count;
  return t;
}

/// Gives a slice of a request the positions of its rows and keys. Rows may stand before position 0 if the batch has no q_begin:
/// all positions are raised then, by whole chunks.
void move_to_positions(Case& one, const Request& req, std::int64_t row_begin, DType dtype) {
  const std::int64_t first = req.q_begin() + row_begin, chunk = one.options.attention_chunk.value_or(1);
  const std::int64_t raised = first < 0 ? (-first + chunk - 1) / chunk * chunk : 0;
  one.batch.q_begin = index_tensor(one, dtype, {first + raised});
  one.batch.key_begin = index_tensor(one, dtype, {req.key_begin + raised});
  if (raised == 0) return;
  if (req.prefix_len > 0) {
    one.options.prefix_len.reset();
    one.batch.prefix_lens = index_tensor(one, dtype, {req.prefix_len + raised});
  }
  if (!one.batch.spans.present()) return;
  const Batch before = one.batch;
  Tensor spans = Tensor::contiguous(one.allocate(static_cast<std::size_t>((req.num_spans + 1) * 2 * itemsize(DType::i64))),
                                    DType::i64, 1, req.num_spans + 1, 2);
  for (std::int64_t i = 0; i <= req.num_spans; ++i) {
    const Span span = i < req.num_spans ? span_of(before, 0, i) : Span{-raised, -raised};
    static_cast<std::int64_t*>(spans.data)[2 * i] = span.begin + raised;
    static_cast<std::int64_t*>(spans.data)[2 * i + 1] = span.end + raised;
  }
  one.batch.spans = spans;
}

}  // namespace

std::int64_t query_len(const Batch& batch, std::int64_t r) {
  return index_at(batch.query_start_loc, r + 1) - index_at(batch.query_start_loc, r);
}

Case slice(const Case& c, const Tensor& output, const Tensor& lse, std::int64_t r, std::int64_t row_begin, std::int64_t row_end) {
  const Batch& b = c.batch;
  const std::int64_t rows = row_end - row_begin, token = index_at(b.query_start_loc, r) + row_begin;
  const std::int64_t context = index_at(b.seq_lens, r) - query_len(b, r);
  const DType dtype = b.query_start_loc.dtype;
  Case one;
  one.storage = c.storage;
  one.cache = c.cache;
  one.options = c.options;
  const auto cut = [&](const batch::TensorField& f, const Tensor& whole, Tensor& part) {
    part = f.axis == batch::Axis::token     ? rows_of(whole, token, rows)
           : f.axis == batch::Axis::request ? rows_of(whole, r, 1)
                                            : whole;
  };
  batch::for_each_tensor(cut, batch::BatchPart{b}, batch::BatchPart{one.batch});
  one.batch.output = rows_of(output, token, rows);
  one.batch.lse = rows_of(lse, token, rows);
  one.batch.request_ids = one.batch.q_begin = {};
  if (b.q_begin.present() || b.causal.present() || !c.options.causal) one.batch.slot_mapping = {};
  one.batch.query_start_loc = index_tensor(one, dtype, {0, rows});
  one.batch.seq_lens = index_tensor(one, dtype, {context + row_end});
  // If the keys do not end with the chunk's last row, the chunk keeps all keys of the request, and its rows keep their positions.
  const Request req = request_of(b, c.options, r);
  const bool at_end = req.causal && !b.q_begin.present() && req.num_spans == 0, whole = rows == req.query_len;
  if (at_end && req.tree_len > 0)  // the tree begins at the same key
    one.batch.tree_lens = index_tensor(one, dtype, {std::max<std::int64_t>(0, req.tree_len - (req.query_len - row_end))});
  if (!at_end) one.batch.seq_lens = index_tensor(one, dtype, {req.seq_len()});
  if (at_end || (whole && !b.q_begin.present())) return one;
  move_to_positions(one, req, row_begin, dtype);
  return one;
}

}  // namespace quire::verify_detail
