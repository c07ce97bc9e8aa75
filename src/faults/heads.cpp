// SPDX-License-Identifier: Apache-2.0
// Faults in the KV head of a query head; the truth is h / (num_q_heads / num_kv_heads), for any group size.
#include <algorithm>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kOneHead = "one KV head: every mapping reads it";
constexpr const char* kNoGroup = "every query head has a KV head of its own";

Plant kv_head(std::function<std::int64_t(std::int64_t query_head)> map) {
  return function_set(&Model::kv_head, [map = std::move(map)](const Row& r, Side) { return map(r.query_head); });
}

Suspects modulo(const Clues& e) {
  const std::int64_t n = e.facts.num_kv_heads;
  if (n == 1) return cannot_show(kOneHead);
  if (e.facts.group == 1) return cannot_show(kNoGroup);
  return one(kv_head([n](std::int64_t h) { return h % n; }));
}

Suspects modulo_for_one_side(const Clues& e) {
  const std::int64_t n = e.facts.num_kv_heads;
  if (n == 1) return cannot_show(kOneHead);
  if (e.facts.group == 1) return cannot_show(kNoGroup);
  Suspects s;
  for (const Side wrong : {Side::value, Side::key})
    s.list.push_back({wrong == Side::value ? "for V only" : "for K only",
                      function_changed(&Model::kv_head, [n, wrong](const auto& before, const Row& r, Side side) {
                        return side == wrong ? r.query_head % n : before(r, side);
                      })});
  return s;
}

Suspects shifted_group(const Clues& e) {
  const std::int64_t group = e.facts.group, last = e.facts.num_kv_heads - 1;
  if (last == 0) return cannot_show(kOneHead);
  if (is_power_of_two(group)) return cannot_show(formatted("the group of {} query heads is a power of two", group));
  Suspects s;
  for (const std::int64_t size : {floor_power_of_two(group), ceil_power_of_two(group)})
    s.list.push_back({formatted("groups of {} instead of {}", size, group),
                      kv_head([size, last](std::int64_t h) { return std::min(last, h / size); })});
  return s;
}

Suspects always_zero(const Clues& e) {
  if (e.facts.num_kv_heads == 1) return cannot_show(kOneHead);
  return one(kv_head([](std::int64_t) { return 0; }));
}

Suspects next_kv_head(const Clues& e) {
  const std::int64_t n = e.facts.num_kv_heads, group = e.facts.group;
  if (n == 1) return cannot_show(kOneHead);
  return one(kv_head([n, group](std::int64_t h) { return (h / group + 1) % n; }));
}

/// Past the last KV head lies the next token, or the next page.
Suspects query_head(const Clues& e) {
  if (e.facts.group == 1) return cannot_show(kNoGroup);
  return one(kv_head([](std::int64_t h) { return h; }));
}

Suspects one_per_group(const Clues& e) {
  const std::int64_t group = e.facts.group;
  if (group == 1) return cannot_show(kNoGroup);
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  return one(row_changed([group](Row& r) { r.query_head = r.query_head / group * group; }));
}

}  // namespace

void add_heads(std::vector<Fault>& list) {
  const Family add{list, "heads"};
  const char* const kMapping = "query head h reads KV head h / (num_q_heads / num_kv_heads); check how K and V were repeated";
  add("kv_head_modulo", "maps query head h to KV head h % num_kv_heads", "", kMapping, modulo);
  add("kv_head_modulo_one_side", "maps query heads to KV heads rightly for one of K and V, and by h % num_kv_heads for the other",
      "", "use repeat_interleave for both, not repeat", modulo_for_one_side);
  add("kv_head_shifted_group", "divides by the group size with a shift", "vllm#18093", kMapping, shifted_group);
  add("kv_head_always_zero", "reads KV head 0 for every query head", "", kMapping, always_zero);
  add("kv_head_off_by_one", "reads the KV head after the right one", "", kMapping, next_kv_head);
  add("kv_head_is_query_head", "takes the query head for the KV head, as if there were no groups", "",
      "look for a kernel written for MHA that is called with fewer KV heads", query_head);
  add("one_query_head_per_group", "computes the first query head of each group and writes it for all of them", "",
      "look at the query pointer of the kernel that serves a whole group at once", one_per_group);
}

}  // namespace quire::faults_detail
