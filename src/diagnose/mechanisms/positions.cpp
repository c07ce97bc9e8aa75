// SPDX-License-Identifier: Apache-2.0
// A row believes to sit at another position: shifted, at the start of its chunk, or where another request's row sits. Mask,
// window and ALiBi follow the position together, which tells it from a range of keys that is cut.
#include <algorithm>

#include "diagnose/mechanisms/mechanism.h"
#include "faults/families.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kShifts = 16;
const char* const kNextPositions =
    "print the position that the kernel gives to a wrong row; it is context_len + the row's index in its request";

}  // namespace

void propose_positions(const Scene& scene, Proposals& list) {
  const Facts* f = &scene.facts;
  const auto add = [&](std::string detail, int parameters, std::function<std::int64_t(const Row&)> position) {
    list.push_back({"positions", "takes another position for the row's own", std::move(detail), kNextPositions, parameters,
                    [position = std::move(position)](Model& m) {
                      row_changed([position](Row& row) { row.q_pos = std::max<std::int64_t>(0, position(row)); })(m);
                      // The loop over keys still ends with the sequence.
                      keys_dropped([](const Row& row, std::int64_t k) { return k >= row.seq_len; })(m);
                    }});
  };
  for (std::int64_t by = 1; by <= kShifts; ++by)
    for (const std::int64_t shift : {-by, by})
      add(formatted("q_pos {:+}", shift), 1, [shift](const Row& r) { return r.q_pos + shift; });
  for (const std::int64_t shift : {-f->page_size, f->page_size})
    add(formatted("q_pos {:+}, a page", shift), 1, [shift](const Row& r) { return r.q_pos + shift; });
  add("the index in its request: positions of a chunk start at 0", 0, [](const Row& r) { return r.q_pos - r.context_len(); });
  add("the position of the first row of its request, for all of them", 0, [](const Row& r) { return r.context_len(); });
  add("the position of the last row of its request, for all of them", 0, [](const Row& r) { return r.seq_len - 1; });
  for (std::int64_t tile = 4; tile <= 128; tile *= 2)
    add(formatted("as if query_len were rounded up to a multiple of {}, with the same seq_len", tile), 1,
        [tile](const Row& r) { return r.q_pos - (semantics::round_up(r.query_len, tile) - r.query_len); });
  if (f->group > 1)  // Heads of a group and rows are packed into one index, row * group + head in its group.
    add(formatted("the index of rows packed with the {} heads of a group, modulo query_len in place of divided", f->group), 0,
        [g = f->group](const Row& r) {
          const std::int64_t index = r.token - r.first_token;
          return r.q_pos - index + (index * g + r.head % g) % std::max<std::int64_t>(r.query_len, 1);
        });
  add("q_pos + query_len: seq_len is taken for context_len", 0, [](const Row& r) { return r.q_pos + r.query_len; });
  for (const std::int64_t shift : {-1, 1})
    add(formatted("as if context_len were that of request r {:+}, within seq_len", shift), 1, [f, shift](const Row& r) {
      const std::int64_t other = (r.req + shift + f->num_reqs) % f->num_reqs;
      return std::min(r.seq_len - 1, f->context_len(other) + r.q_pos - r.context_len());
    });
  add("the positions of its request in reverse order", 0, [](const Row& r) { return r.context_len() + r.seq_len - 1 - r.q_pos; });
  for (const std::int64_t shift : {-1, 1})
    add(formatted("as if context_len were that of request r {:+}", shift), 1, [f, shift](const Row& r) {
      const std::int64_t other = (r.req + shift + f->num_reqs) % f->num_reqs;
      return f->context_len(other) + r.q_pos - r.context_len();
    });
  for (const std::int64_t shift : {-1, 1})
    add(formatted("as if seq_len were that of request r {:+}", shift), 1, [f, shift](const Row& r) {
      const std::int64_t other = (r.req + shift + f->num_reqs) % f->num_reqs;
      return f->seq_lens[Facts::at(other)] - r.query_len + r.q_pos - r.context_len();
    });
}

}  // namespace quire::diagnose_detail
