// SPDX-License-Identifier: Apache-2.0
// Batches that break one rule of lengths or tables each: a device must notice, and write nothing.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "quire/tools/capture.hpp"

namespace quire::test {

/// int64 indices and cached_lens, so that any mutation can be written.
inline constexpr const char* kLineToBreak =
    "q=f32 kv=f32 layout=nhd heads=4:2 d=8 page=8 window=20 lse=1 index=i64 reqs=3@20/21,5@9,0@4,1@37";

/// Makes the case of a line without slot_mapping, whose rules attention does not need.
inline Case without_slots(const std::string& line) {
  Case c = make_case(parse_problem_line(line).value()).value();
  c.batch.slot_mapping = {};
  return c;
}

struct Mutation {
  std::string rule;
  std::function<void(Case&)> apply;  ///< breaks a case of kLineToBreak
};

inline std::vector<Mutation> mutations() {
  const auto index = [](Tensor Batch::* tensor, std::initializer_list<std::int64_t> at, std::int64_t value) {
    return [=, where = std::vector<std::int64_t>(at)](Case& c) {
      const Tensor& t = c.batch.*tensor;
      static_cast<std::int64_t*>(t.data)[where.size() == 1 ? where[0] * t.stride[0] : where[0] * t.stride[0] + where[1]] = value;
    };
  };
  return {
      {"Q-T01", index(&Batch::query_start_loc, {0}, 1)},
      {"Q-T02", index(&Batch::query_start_loc, {2}, 2)},
      {"Q-T02", index(&Batch::query_start_loc, {1}, -5000000000)},
      {"Q-T04", index(&Batch::query_start_loc, {4}, 8)},
      {"Q-T06", index(&Batch::seq_lens, {1}, 4)},
      {"Q-T06", index(&Batch::seq_lens, {1}, -5000000000)},
      {"Q-T07", index(&Batch::seq_lens, {1}, std::int64_t{1} << 40)},
      {"Q-T08", index(&Batch::cached_lens, {0}, 19)},
      {"Q-T08", index(&Batch::cached_lens, {0}, 24)},
      {"Q-T09", [](Case& c) { c.batch.key = c.batch.value = {}; }},
      {"Q-T10", [](Case& c) { c.batch.block_table.shape[1] = 4; }},
      {"Q-T03", index(&Batch::block_table, {3, 2}, -1)},
      {"Q-T03", index(&Batch::block_table, {0, 0}, 100000)},
      {"Q-T03", index(&Batch::block_table, {3, 4}, std::int64_t{1} << 33)},
  };
}

/// Line of a sound batch in which mask_mutations() breaks the rules of causal, q_begin and key_begin.
inline constexpr const char* kMasksToBreak =
    "q=f32 kv=f32 layout=nhd heads=4:2 d=8 page=8 window=20 lse=1 index=i64 reqs=3:21,5:0,2@4/5,1:37 causal=1x1,1x0,1x1,1x0 "
    "kbegin=1x16,1x0,1x8,1x3 qbegin=1x20,1x9,1x12,1x60";

/// Line of a sound batch in which shape_mutations() breaks the rules of spans, prefixes and trees that kernels check.
inline constexpr const char* kShapesToBreak =
    "q=f32 kv=f32 layout=nhd heads=4:2 d=8 page=8 window=6 lse=1 index=i64 reqs=3@30,5@4,2@20 prefix=1x9,1x0,1x3 "
    "spans=0:2-9,0:12-20,1:0-7 tree=1x0,1x5,1x4";

inline std::vector<Mutation> shape_mutations() {
  const auto index = [](Tensor Batch::* tensor, std::int64_t at, std::int64_t value) {
    return [=](Case& c) { static_cast<std::int64_t*>((c.batch.*tensor).data)[at] = value; };
  };
  return {
      {"Q-V06", index(&Batch::spans, 2, 8)},
      {"Q-V06", index(&Batch::spans, 1, 1)},
      {"Q-V06", index(&Batch::spans, 0, -1)},
      {"Q-V06", index(&Batch::spans, 3, std::int64_t{1} << 31)},
      {"Q-V06", index(&Batch::spans, 15, 3)},
      {"Q-V07", index(&Batch::prefix_lens, 0, -1)},
      {"Q-V08", index(&Batch::tree_lens, 2, -1)},
      {"Q-V08", index(&Batch::tree_lens, 1, 10)},
      {"Q-V08", index(&Batch::tree_lens, 0, std::int64_t{1} << 40)},
      {"Q-T03", index(&Batch::block_table, 0, 100000)},
  };
}

inline std::vector<Mutation> mask_mutations() {
  const auto index = [](Tensor Batch::* tensor, std::int64_t at, std::int64_t value) {
    return [=](Case& c) { static_cast<std::int64_t*>((c.batch.*tensor).data)[at] = value; };
  };
  return {
      {"Q-T06", index(&Batch::seq_lens, 1, -1)},
      {"Q-T06", [](Case& c) { c.batch.q_begin = {}, static_cast<std::uint8_t*>(c.batch.causal.data)[1] = 1; }},
      {"Q-T08", index(&Batch::cached_lens, 2, 3)},
      {"Q-T08", index(&Batch::cached_lens, 1, -1)},
      {"Q-T18", [](Case& c) { static_cast<std::uint8_t*>(c.batch.causal.data)[3] = 2; }},
      {"Q-T19", index(&Batch::q_begin, 0, -1)},
      {"Q-T19", index(&Batch::q_begin, 3, std::int64_t{1} << 31)},
      {"Q-T19", index(&Batch::q_begin, 3, -(std::int64_t{1} << 62))},
      {"Q-T20", index(&Batch::key_begin, 3, -1)},
      {"Q-T20", index(&Batch::key_begin, 0, 0x7FFFFFFF - 20)},
      {"Q-T21", index(&Batch::q_begin, 2, 13)},
      {"Q-T21", index(&Batch::key_begin, 2, 9)},
      {"Q-T03", index(&Batch::block_table, 0, 100000)},
  };
}

}  // namespace quire::test
