// SPDX-License-Identifier: Apache-2.0
#include "faults/latent_bytes.h"

#include <cstring>

#include "semantics/dtype.h"

namespace quire::faults_detail {
namespace {

constexpr std::int64_t kLatentAndRope = LatentBytes::kLatentDims + LatentBytes::kRopeDims;

}  // namespace

double LatentBytes::code(std::int64_t d) const { return semantics::load(row, DType::fp8_e4m3fn, d); }

double LatentBytes::scale(std::int64_t block) const {
  float value;
  std::memcpy(&value, row + kScalesAt + block * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

double LatentBytes::rope(std::int64_t d) const { return bf16_at(kRopeAt + 2 * d); }

double LatentBytes::bf16_at(std::int64_t byte) const {
  std::uint16_t code;
  std::memcpy(&code, row + byte, sizeof code);
  return semantics::bf16_decode(code);
}

LatentBytes latent_bytes(const KVCache& cache, Side side, std::int64_t page, std::int64_t offset) {
  const Tensor& t = side == Side::key ? cache.k : cache.v;
  const std::int64_t token = t.stride[cache.layout == CacheLayout::nhd ? 1 : 2];
  return {static_cast<const std::uint8_t*>(t.data) + page * t.stride[0] + offset * token};
}

Tensor RealCache::decoded(const KVCache& stored, Side side, std::vector<float>& memory) const {
  const std::int64_t pages = num_pages(stored), tokens = page_size(stored),
                     dims = side == Side::key ? kLatentAndRope : LatentBytes::kLatentDims;
  memory.resize(static_cast<std::size_t>(pages * tokens * dims));
  float* to = memory.data();
  for (std::int64_t page = 0; page < pages; ++page)
    for (std::int64_t offset = 0; offset < tokens; ++offset) {
      const LatentBytes row = latent_bytes(stored, side, page, offset);
      for (std::int64_t d = 0; d < dims; ++d) *to++ = static_cast<float>(row.value(d));
    }
  return stored.layout == CacheLayout::nhd ? Tensor::contiguous(memory.data(), DType::f32, pages, tokens, 1, dims)
                                           : Tensor::contiguous(memory.data(), DType::f32, pages, 1, tokens, dims);
}

RealCache::RealCache(const KVCache& stored) : real_(stored) {
  if (stored.k.dtype != DType::fp8_ds_mla) return;
  real_.k = decoded(stored, Side::key, k_);
  if (stored.k.data == stored.v.data && stored.k.stride == stored.v.stride) {
    real_.v = real_.k;
    real_.v.shape[3] = LatentBytes::kLatentDims;
  } else {
    real_.v = decoded(stored, Side::value, v_);
  }
}

}  // namespace quire::faults_detail
