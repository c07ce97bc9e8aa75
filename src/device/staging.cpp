// SPDX-License-Identifier: Apache-2.0
#include "device/staging.h"

#include "device/runtime.h"

namespace quire::device {

ByteSpan span_of(const Tensor& t) noexcept {
  if (t.num_elements() == 0) return {};
  const std::int64_t item = itemsize(t.dtype);
  ByteSpan span{0, item};
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t reach = (t.shape[i] - 1) * t.stride[i] * item;
    (reach < 0 ? span.begin : span.end) += reach;
  }
  return span;
}

Status Staging::stage(Tensor& t) {
  const Runtime* runtime = runtime_of(t.memory);
  if (runtime == nullptr || !t.present()) return {};
  const auto [begin, end] = span_of(t);
  if (t.data == nullptr || begin >= end) {
    t.memory = Memory::cpu;
    return {};
  }
  if (!waited_) {
    // The caller's stream is unknown here: waiting for the whole device ensures that all writes to the tensor are done.
    if (Status s = runtime->synchronize(); !s.ok()) return s;
    waited_ = true;
  }
  const auto bytes = static_cast<std::size_t>(end - begin);
  copies_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  if (Status s = runtime->copy_to_host(copies_.back().get(), static_cast<const std::byte*>(t.data) + begin, bytes); !s.ok())
    return s;
  t.data = copies_.back().get() - begin;
  t.memory = Memory::cpu;
  return {};
}

}  // namespace quire::device
