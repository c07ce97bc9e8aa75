// SPDX-License-Identifier: Apache-2.0
// See device_case.h.
#include "cases/device_case.h"

#include <algorithm>

#include "batch/fields.h"
#include "device/staging.h"
#include "text/formatted.h"

namespace quire::cases {
namespace {

// Guard bytes on each side of a tensor. A multiple of every alignment that kernels ask for, so that guards keep alignments.
constexpr std::int64_t kGuard = 1024;
constexpr std::byte kGuardByte{0xA5};

}  // namespace

Result<DeviceBytes> DeviceBytes::make(const device::Runtime& runtime, std::size_t bytes) {
  Result<void*> address = runtime.allocate(std::max<std::size_t>(bytes, 1));
  if (!address.ok()) return address.status();
  DeviceBytes made;
  made.address_ = std::shared_ptr<void>(address.value(), runtime.release);
  return made;
}

Status DeviceCase::place(Tensor& t) {
  if (!t.present()) return {};
  const device::ByteSpan span = device::span_of(t);
  // The copy has the host address's offset within 256 bytes, because a case may test alignment.
  const std::int64_t within_line = static_cast<std::int64_t>((reinterpret_cast<std::uintptr_t>(t.data) + span.begin) % 256);
  const std::int64_t before = kGuard + within_line, bytes = span.end - span.begin;
  Result<DeviceBytes> made = DeviceBytes::make(*runtime_, static_cast<std::size_t>(before + bytes + kGuard));
  if (!made.ok()) return made.status();
  std::byte* at = made->data();
  const std::vector<std::byte> guard(static_cast<std::size_t>(before), kGuardByte);
  if (Status s = runtime_->copy_to_device(at, guard.data(), guard.size()); !s.ok()) return s;
  if (Status s = runtime_->copy_to_device(at + before + bytes, guard.data(), kGuard); !s.ok()) return s;
  if (bytes > 0)
    if (Status s = runtime_->copy_to_device(at + before, static_cast<const std::byte*>(t.data) + span.begin,
                                            static_cast<std::size_t>(bytes));
        !s.ok())
      return s;
  t.data = at + before - span.begin;
  t.memory = memory_;
  bytes_.push_back(std::move(made).value());
  return {};
}

bool is_within(const Tensor& view, const Tensor& of) {
  if (!view.present() || !of.present()) return false;
  const auto bytes_of = [](const Tensor& t) {
    const device::ByteSpan span = device::span_of(t);
    const auto at = reinterpret_cast<std::uintptr_t>(t.data);
    return std::pair{at + static_cast<std::uintptr_t>(span.begin), at + static_cast<std::uintptr_t>(span.end)};
  };
  const auto inner = bytes_of(view), outer = bytes_of(of);
  return inner.first < inner.second && inner.first >= outer.first && inner.second <= outer.second;
}

Tensor moved_with(const Tensor& view, const Tensor& of, const Tensor& moved) {
  Tensor there = view;
  there.data =
      static_cast<std::byte*>(moved.data) + (static_cast<const std::byte*>(view.data) - static_cast<const std::byte*>(of.data));
  there.memory = moved.memory;
  return there;
}

Result<DeviceCase> DeviceCase::upload(const Case& c, Memory memory) {
  DeviceCase d;
  d.runtime_ = device::runtime_of(memory);
  d.memory_ = memory;
  if (d.runtime_ == nullptr) return Status(Code::unsupported, formatted("this build has no {} kernels", name(memory)));
  d.batch_ = c.batch;
  d.cache_ = c.cache;
  d.options_ = c.options;
  Status status;
  const auto place = [&](const batch::TensorField&, Tensor& t) {
    if (&t == &d.cache_.v && is_within(c.cache.v, c.cache.k)) {
      t = moved_with(c.cache.v, c.cache.k, d.cache_.k);
    } else if (status.ok()) {
      status = d.place(t);
    }
  };
  batch::for_each_tensor(place, batch::Call{d.batch_, d.cache_, d.options_});  // K comes before V.
  if (!status.ok()) return status;
  return d;
}

Result<DeviceBytes> DeviceCase::poisoned(std::size_t bytes) const {
  Result<DeviceBytes> made = DeviceBytes::make(*runtime_, bytes);
  if (!made.ok()) return made.status();
  const std::vector<std::byte> nan(bytes, std::byte{0xFF});
  if (Status s = runtime_->copy_to_device(made->data(), nan.data(), bytes); !s.ok()) return s;
  return made;
}

Status DeviceCase::fetch(const Tensor& from, const Tensor& to) const {
  if (!from.present()) return {};
  const device::ByteSpan span = device::span_of(from);
  const auto bytes = static_cast<std::size_t>(span.end - span.begin);
  const std::byte* at = static_cast<const std::byte*>(from.data) + span.begin;
  std::vector<std::byte> guard(2 * kGuard);
  if (Status s = runtime_->copy_to_host(guard.data(), at - kGuard, kGuard); !s.ok()) return s;
  if (Status s = runtime_->copy_to_host(guard.data() + kGuard, at + bytes, kGuard); !s.ok()) return s;
  if (std::any_of(guard.begin(), guard.end(), [](std::byte b) { return b != kGuardByte; }))
    return {Code::internal_error, "bytes before or after an output on the device were overwritten"};
  if (bytes == 0) return {};
  return runtime_->copy_to_host(static_cast<std::byte*>(to.data) + span.begin, at, bytes);
}

Status DeviceCase::download(const Case& c) const {
  if (Status s = fetch(batch_.output, c.batch.output); !s.ok()) return s;
  return fetch(batch_.lse, c.batch.lse);
}

}  // namespace quire::cases
