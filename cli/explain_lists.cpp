// SPDX-License-Identifier: Apache-2.0
// quire explain --lists: the batch that stands for key lists.
#include <charconv>

#include "commands.h"
#include "quire/sparse.hpp"
#include "text/formatted.h"

namespace quire::cli {
namespace {

/// "slot:2048", "page:64", "page:64:head".
std::optional<ListShape> shape_of(std::string_view text) {
  ListShape shape;
  for (const ListUnit unit : {ListUnit::slot, ListUnit::page}) {
    const std::string_view word = name(unit);
    if (!text.starts_with(word) || text.substr(word.size(), 1) != ":") continue;
    shape.unit = unit;
    text.remove_prefix(word.size() + 1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), shape.width);
    if (error != std::errc() || shape.width < 1) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    shape.by_head = text == ":head";
    if (!text.empty() && !shape.by_head) return std::nullopt;
    return shape;
  }
  return std::nullopt;
}

}  // namespace

Result<Problem> problem_of_lists_asked_for(const std::string& lists, const Problem& problem, std::string& said) {
  const std::optional<ListShape> shape = shape_of(lists);
  if (!shape)
    return Status(Code::invalid_argument,
                  formatted("--lists {}: expected slot:N, page:N, slot:N:head or page:N:head, N entries of 1 or more", lists));
  said = formatted("lists     up to {}{}; they stand as block tables of this problem{}\n", to_string(*shape),
                   shape->unit == ListUnit::slot ? " (the cache is seen as pages of one token)" : "",
                   shape->by_head ? formatted(", once for each of {} KV heads", problem.num_kv_heads) : "");
  return problem_of_lists(problem, *shape);
}

}  // namespace quire::cli
