// A batch that owns its memory: made from a problem line, or read from and written to a capture file (docs/capture.md).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/batch.hpp"
#include "quire/problem.hpp"
#include "quire/status.hpp"

namespace quire {

/// Views plus the storage behind them. Movable; the views stay valid as long as the Case lives.
struct Case {
  Batch batch;
  KVCache cache;
  Options options;
  Tensor observed;      ///< optional: the output that somebody's kernel produced, [num_tokens, num_q_heads, head_dim]
  Tensor observed_lse;  ///< optional
  std::map<std::string, std::string> notes;  ///< free metadata carried by the file, e.g. "producer"
  std::vector<std::shared_ptr<std::byte[]>> storage;

  /// 64-byte aligned bytes owned by this case.
  std::byte* allocate(std::size_t bytes);
};

/// Fills a problem with data: N(0,1) queries, keys and values with some peaky heads, shuffled pages, NaN in every slot and
/// table entry that must not be read, NaN-filled output. Deterministic in the seed. For fp8 caches the scales are amax / max.
Result<Case> make_case(const ProblemLine& line);

/// Reads a capture; rejects truncated, overlapping, overflowing or incomplete files with a message that says where.
Result<Case> read_capture(const std::string& path);
Result<Case> parse_capture(std::span<const std::byte> bytes);
/// Writes atomically (temporary file, then rename). Non-contiguous tensors are written contiguous, the cache in its layout.
Status write_capture(const std::string& path, const Case& c);

}  // namespace quire
