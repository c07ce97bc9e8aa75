// SPDX-License-Identifier: Apache-2.0
// element_offset_32_bit on caches whose pages lie 2^30 elements apart, in address space without memory behind it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "faults/faults_util.h"

namespace quire::test {
namespace {

constexpr std::int64_t kPageStride = std::int64_t{1} << 30;

class SparseBytes {
 public:
  explicit SparseBytes(std::int64_t size) : size_(static_cast<std::size_t>(size)) {
    data_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~SparseBytes() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;

  /// The pages of `t`, apart.
  Tensor spread(const Tensor& t) const {
    Tensor far = t;
    far.data = data_;
    far.stride[0] = kPageStride;
    const std::int64_t bytes = t.stride[0] * itemsize(t.dtype);
    for (std::int64_t page = 0; page < t.shape[0]; ++page)
      std::memcpy(static_cast<char*>(data_) + page * kPageStride * itemsize(t.dtype),
                  static_cast<const char*>(t.data) + page * bytes, static_cast<std::size_t>(bytes));
    return far;
  }
  bool ok() const { return data_ != nullptr; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

TEST(HugeOffsets, KeptIn32BitsShow) {
  for (const char* line : {"q=f32 kv=fp8_e4m3fn heads=4:2 d=16 page=16 layout=nhd reqs=5@20,1@40 seed=1",
                           "q=bf16 kv=fp8_e5m2 heads=2 d=16 page=16 layout=hnd reqs=3@20,1@50 seed=2",
                           "q=f16 kv=fp8_e4m3fnuz heads=4:1 d=16 page=16 layout=packed reqs=3@20,2@50 seed=3"}) {
    SCOPED_TRACE(line);
    Case c = made(line);
    EXPECT_EQ(attend_with_fault(c.batch, c.cache, c.options, "element_offset_32_bit").code(), Code::unsupported);
    const SparseBytes k(num_pages(c.cache) * kPageStride), v(num_pages(c.cache) * kPageStride);
    if (!k.ok() || !v.ok()) GTEST_SKIP() << "no address space";
    c.cache.k = k.spread(c.cache.k);
    c.cache.v = v.spread(c.cache.v);
    const Result<Reference> expected = reference(c.batch, c.cache, c.options);
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    const Status status = attend_with_fault(c.batch, c.cache, c.options, "element_offset_32_bit");
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(compare(c.batch.output, c.batch.lse, expected.value()).ok);
  }
}

}  // namespace
}  // namespace quire::test
