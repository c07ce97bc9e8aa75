// SPDX-License-Identifier: Apache-2.0
// A batch that owns its memory: made from a problem line, or read from and written to a capture file (capture.md).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/batch.hpp"
#include "quire/cascade.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// Views plus the storage behind them. Movable; the views stay valid as long as the Case lives.
struct Case {
  Batch batch;
  KVCache cache;
  Options options;
  Tensor observed;      ///< optional: the output that somebody's kernel produced, [num_tokens, num_q_heads, v_head_dim]
  Tensor observed_lse;  ///< optional: lse of that kernel, [num_tokens, num_q_heads] f32, natural log
  std::map<std::string, std::string> notes;  ///< free metadata carried by the file, e.g. "producer"
  std::vector<std::shared_ptr<std::byte[]>> storage;

  /// 64-byte aligned, uninitialised bytes owned by this case; null if the machine has no more memory.
  std::byte* allocate(std::size_t bytes);
};

/// Fills a problem with data; the same bits from every compiler and machine (capture.md, "Made cases").
///
/// Query, key and value are N(0,1); about every fourth query head is *peaky* (times 8, so that few keys dominate its softmax).
/// Element (request, position, head, dim) depends on the seed and its own coordinates only: not on layout, page order, chunking
/// or whether the cache or `key`/`value` holds it. Pages are shuffled. Memory that no correct kernel reads holds NaN: unused
/// pages, page tails, positions >= cached_len or left of every row's window, key/value rows of cached positions. Table entries
/// past ceil(cached_len / page_size), and those of pages between a prefix and the window, are 2147480000; output and lse are
/// NaN. With kscale/vscale set, scales are amax / largest finite value for fp8 caches and amax for others, per tensor or per
/// head; V is then drawn twice as large as K, and heads differ. With data=tiny: uniform in +-1e-3, no peaky heads, and
/// PoisonKind::zero instead of NaN. notes["problem"] is the canonical line. Errors: parse_error for a line that
/// parse_problem_line() would refuse, invalid_argument for too few pages, unsupported if the tensors do not fit this machine's
/// memory.
Result<Case> make_case(const ProblemLine& line);
/// find_shared_prefixes() (cascade.hpp) for the case of a problem line, whose share= says what requests have in common. Makes no
/// tensor.
SharedPrefixes shared_prefixes_of(const ProblemLine& line, const SharingCosts& costs);

/// Content of memory that no correct kernel reads. Table entries of keys that no row sees lead to a page that no row reads.
enum class PoisonKind : std::int32_t {
  nan = 0,             ///< NaN elements, 2147480000 in table entries past the end
  finite_garbage = 1,  ///< +-1e4 (fp8: +-largest finite value), a valid but wrong page id in table entries past the end
  zero = 2,            ///< zeros, a valid but wrong page id in table entries past the end; output and lse hold NaN
};

/// Overwrites all memory that no correct kernel reads (list at make_case(), output and lse included) and nothing else: attend()
/// must give the same bits for every kind. The batch must satisfy the contract at depth tables, else returns the first finding.
Status poison_case(Case& c, PoisonKind kind);

/// Reads a capture; rejects truncated, overlapping, overflowing or incomplete files with a message that says where.
Result<Case> read_capture(const std::string& path);
Result<Case> parse_capture(std::span<const std::byte> bytes);  ///< the bytes of a whole file
/// Reads a capture, but leaves large tensors in the file (mmap, private): pages of a cache that no one looks at are never read.
/// The file must keep its length while the case lives: an access past a new end is SIGBUS.
Result<Case> map_capture(const std::string& path);
/// Writes atomically (temporary file, then rename). Non-contiguous tensors are written contiguous, the cache in its layout.
Status write_capture(const std::string& path, const Case& c);

}  // namespace quire
