// SPDX-License-Identifier: Apache-2.0
// The checked contract: every assumption Quire makes about its input is a rule with an id (contract.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/batch.hpp"
#include "quire/status.hpp"

namespace quire {

/// Depth of a check. Each depth includes the ones before it.
enum class Depth : std::int32_t {
  metadata = 0,  ///< dtypes, ranks, shapes, strides, devices, option ranges: no tensor data is read
  tables = 1,    ///< index tensors and scales: O(num_reqs + pages in use)
  contents = 2,  ///< every visible element is finite, and no request sees a slot twice: O(bytes)
};

/// A broken rule at one place.
struct Finding {
  std::string rule;                 ///< "Q-T03"
  std::string tensor;               ///< "block_table"
  std::vector<std::int64_t> index;  ///< {5, 2}; empty if the tensor as a whole is meant
  std::string value;                ///< value that was found: "page 913"
  std::string expected;             ///< "in [0, 512)"
  std::string message;              ///< the full text: `Q-T03 block_table[5][2]: page 913 outside [0, 512)`
};

/// All findings. At most `kMaxPerRule` per rule are listed; `total` counts every one.
struct Findings {
  static constexpr std::int64_t kMaxPerRule = 16;
  std::vector<Finding> items;  ///< findings by rule, then by index
  std::int64_t total = 0;
  Status failure;  ///< reason why rules were not applied: no memory, or an unreadable device (counts in `total`)
  bool ok() const noexcept { return total == 0; }
  /// OK, or contract_violation with the first finding's text and "(and N more)", in rule order.
  Status status() const;
};

/// A rule as documented. contract.md is generated from these.
struct Rule {
  std::string_view id;
  Depth depth;
  std::string_view statement;
  std::string_view why;
  std::string_view example;  ///< smallest breaking example
};
std::span<const Rule> rules() noexcept;  ///< rules in the order of findings

class SlotLedger;

/// Applies every rule up to `depth` and returns all findings. Never throws, never stops at the first, writes nothing.
/// Rules that would read through something already found broken (a wrong rank, say) are left out.
/// With a ledger (depth tables or deeper), also finds reads of slots never written, foreign, misplaced or recycled; call it after
/// this step's append then. `total` 1 with no items means that the rules were not applied, for the reason that `failure` gives
/// (out_of_memory, say). Tensors in device memory are copied to the host for the rules that read them, after waiting for the
/// device: the findings are the same wherever the batch lives. At depth contents the device looks first, and the cache is copied
/// only if something is wrong, or if the ledger has digests to compare it with.
Findings check(const Batch& batch, const KVCache& cache, const Options& options, Depth depth = Depth::contents,
               const SlotLedger* ledger = nullptr);

struct WriteTag;

/// Rules for one append call: key/value against the cache, slots in range, no slot written twice. With a ledger (depth tables):
/// the ledger is that of this cache, and the tags of written rows name a request and a position.
Findings check_append(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
                      Depth depth = Depth::tables, const SlotLedger* ledger = nullptr, std::span<const WriteTag> tags = {});

/// Rules for one merge call (attention.hpp): shapes, dtypes and memory of both sides and of output_scale, its value, and no NaN
/// or +inf in an lse.
Findings check_merge(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
                     const Tensor& lse, Depth depth = Depth::contents, const Tensor& output_scale = {});

/// Rules for one merge_many call, as for check_merge().
Findings check_merge_many(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                          Depth depth = Depth::contents, const Tensor& output_scale = {});

/// Rule Q-M37 for the workspace of one attend call, in the memory of the batch: workspace and tensors share no byte. Needs
/// tensors that check() has found sound; attend() applies the rule after check().
Findings check_workspace(const Batch& batch, const KVCache& cache, const Options& options, std::span<const std::byte> workspace);

/// Writer of a slot: `request` is a stable id, `position` the token's position in that request.
struct WriteTag {
  std::int64_t request = -1;
  std::int64_t position = -1;
};

/// Record of the writer and the step of each slot; opt-in, fed by append(), consulted by check(). Host memory, 24 bytes a slot.
///
/// Rules: a read of position p of request r from slot s is sound iff s was written (Q-L01), by r or by a request that
/// shared the page with r (Q-L02), for position p (Q-L03), and since the page was last handed out (Q-L04).
///
/// A ledger with digests also knows what was written: 64 bits of K and 64 of V, block scales and scales of tokens included, taken
/// after each append() and compared by check() at depth contents (Q-L07). Digests take 24 bytes more for each slot, and append()
/// and check() read each slot once more for them. A slot of a device's cache is read through a copy of its page, which waits for
/// the device. A change goes unseen once in 2^64.
class SlotLedger {
 public:
  /// Does what create() does. A ledger that create() would refuse has 0 pages, which Q-L05 reports.
  SlotLedger(std::int64_t num_pages, std::int64_t page_size, bool digests = false);
  /// Makes a ledger of num_pages >= 0 pages of page_size >= 1 slots. Errors: invalid_argument for other numbers, out_of_memory.
  static Result<SlotLedger> create(std::int64_t num_pages, std::int64_t page_size, bool digests = false);
  ~SlotLedger();
  SlotLedger(SlotLedger&&) noexcept;
  SlotLedger& operator=(SlotLedger&&) noexcept;

  /// Starts step `step`, which later writes carry. Steps only grow.
  void begin_step(std::int64_t step);
  /// Records that the slot was written for `tag` in the current step. Ignores slots out of range (append refuses them first). The
  /// bytes are unknown until remember() is called.
  void record(std::int64_t slot, WriteTag tag);
  /// Records that slot `to[i]` now has what slot `from[i]` had, tokens that were moved or copied: writer, position and digest.
  /// All of `from` are read before any of `to` is written. A member of `tags[i]` that is not negative replaces that of the
  /// source. invalid_argument, and nothing recorded, for lists of unlike lengths, slots outside the ledger, or one slot twice in
  /// `to`.
  Status move(std::span<const std::int64_t> from, std::span<const std::int64_t> to, std::span<const WriteTag> tags = {});
  /// Records digests of what the cache holds in these slots now; append() does so for the slots that it writes. Ignores slots out
  /// of range, as record() does. Errors: invalid_argument for a ledger without digests; contract_violation for a broken cache, or
  /// one of other sizes.
  Status remember(const KVCache& cache, std::span<const std::int64_t> slots);
  /// Lets `request` read what others wrote in this page, from now on (prefix sharing).
  void share(std::int64_t page, std::int64_t request);
  /// Records that the page went back to the pool: its slots are stale for every request until written again.
  void recycle(std::int64_t page);

  struct Entry {
    std::int64_t request = -1;  ///< -1 never written
    std::int64_t position = -1;
    std::int64_t step = -1;
    bool recycled = false;  ///< page was recycled after this write
  };
  Entry entry(std::int64_t slot) const;                             ///< default values for a slot out of range
  bool shared_with(std::int64_t page, std::int64_t request) const;  ///< whether share(page, request) was called

  /// Digests of a slot's K and V as the ledger knows them; both are 0 if nobody recorded them.
  struct Digest {
    std::uint64_t k = 0, v = 0;
    std::int64_t moved_from = -1;  ///< slot from which move() brought the content; -1: the content was written here
  };
  bool has_digests() const noexcept;
  Digest digest(std::int64_t slot) const;

  std::int64_t num_pages() const noexcept;
  std::int64_t page_size() const noexcept;      ///< tokens
  std::int64_t slots_written() const noexcept;  ///< calls of record() so far, plus slots that move() filled
  std::int64_t slots_read() const noexcept;     ///< slots that check() looked up so far

  void note_reads(std::int64_t count) const noexcept;  ///< used by check()

 private:
  struct State;
  explicit SlotLedger(State* state) noexcept;
  State* state_;
};

}  // namespace quire
