// SPDX-License-Identifier: Apache-2.0
// The stored bytes of one token and KV head: codes in the order of dims, whatever the layout and strides, then the scales that
// are the row's own. Equal bytes are equal real values, up to scales of a tensor or head, which are no part of a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "quire/cache.hpp"
#include "semantics/block_scale.h"
#include "semantics/digest.h"
#include "semantics/latent_row.h"
#include "semantics/layout.h"
#include "semantics/token_scale.h"

namespace quire::semantics {

/// K or V of a sound cache in host memory, as rows of bytes.
class StoredRows {
 public:
  StoredRows(const KVCache& cache, bool is_k)
      : codes_(is_k ? cache.k : cache.v),
        strides_(is_k ? k_strides(cache) : v_strides(cache)),
        dims_(codes_.dtype == DType::fp8_ds_mla ? latent_row::kBytes
              : is_k                            ? head_dim(cache)
                                                : v_head_dim(cache)),
        heads_(num_kv_heads(cache)),
        token_scales_(token_scales(is_k ? cache.k_scale : cache.v_scale)),
        block_scales_(is_k ? k_block_scales(cache) : v_block_scales(cache)) {}

  /// Number of bytes of the codes. They stand before the bytes of the scales.
  std::size_t code_bytes() const noexcept {
    return static_cast<std::size_t>(is_four_bit(codes_.dtype) ? dims_ / 2 : dims_ * itemsize(codes_.dtype));
  }
  std::size_t bytes() const noexcept { return code_bytes() + (token_scales_.present() ? sizeof(float) : 0) + num_blocks(); }

  /// Writes bytes() bytes.
  void copy(std::int64_t page, std::int64_t head, std::int64_t offset, std::byte* to) const noexcept {
    to = copy_codes(strides_.row(page, head, offset), to);
    if (token_scales_.present()) {
      std::memcpy(to, &token_scales_.at(page, offset, head), sizeof(float));
      to += sizeof(float);
    }
    for (std::size_t b = 0; b < num_blocks(); ++b)
      *to++ = static_cast<std::byte>(block_scales_.code_at(page, offset, head, static_cast<std::int64_t>(b)));
  }

  /// Digest of all heads of a token. `row` is scratch memory.
  std::uint64_t slot_digest(std::int64_t page, std::int64_t offset, std::vector<std::byte>& row) const {
    row.resize(bytes());
    Digest digest;
    for (std::int64_t head = 0; head < heads_; ++head) {
      copy(page, head, offset, row.data());
      digest.add(row.data(), row.size());
    }
    return digest.value();
  }

 private:
  std::size_t num_blocks() const noexcept {
    return block_scales_.present() ? static_cast<std::size_t>(dims_ / block_size(codes_.dtype)) : 0;
  }
  std::byte* copy_codes(std::int64_t base, std::byte* to) const noexcept {
    const auto* data = static_cast<const std::byte*>(codes_.data);
    if (is_four_bit(codes_.dtype)) {
      std::memcpy(to, data + base / 2, code_bytes());  // bytes of two codes lie side by side (Q-M55)
      return to + code_bytes();
    }
    const std::int64_t item = itemsize(codes_.dtype);
    for (std::int64_t d = 0; d < dims_; d += strides_.x) {
      const std::int64_t count = std::min(strides_.x, dims_ - d), run = strides_.dim == 1 ? count : 1;
      for (std::int64_t i = 0; i < count; i += run, to += run * item)
        std::memcpy(to, data + (base + strides_.element(d + i)) * item, static_cast<std::size_t>(run * item));
    }
    return to;
  }

  Tensor codes_;
  KvStrides strides_;
  std::int64_t dims_, heads_;
  TokenScales token_scales_;
  BlockScales block_scales_;
};

}  // namespace quire::semantics
