// SPDX-License-Identifier: Apache-2.0
// The memory of one call on the pretended device: every tensor of a case copied between guard pages, inputs read-only.
#pragma once

#include <string>
#include <vector>

#include "amd_emulator/guarded_memory.h"
#include "device/staging.h"
#include "quire/tools/capture.hpp"

namespace quire::amd {

enum class Use { input, output };

class Arrays {
 public:
  explicit Arrays(Against side) : side_(side) {}

  /// NaN, or all bits set.
  std::byte* take(const std::string& name, std::size_t bytes) {
    arrays_.emplace_back(name, bytes, side_);
    return arrays_.back().data();
  }

  /// A copy of the tensor's whole extent, gaps included. Tensors too large to copy stay where they are.
  Tensor place(const std::string& name, const Tensor& from, Use use) {
    constexpr std::size_t kLargest = std::size_t{1} << 30;
    if (!from.present()) return from;
    const device::ByteSpan span = device::span_of(from);
    const auto bytes = static_cast<std::size_t>(span.end - span.begin);
    if (bytes > kLargest) return from;
    Tensor to = from;
    std::byte* at = take(name, bytes);
    if (bytes > 0) std::memcpy(at, static_cast<const std::byte*>(from.data) + span.begin, bytes);
    if (use == Use::input) arrays_.back().forbid_writes();
    to.data = at - span.begin;
    return to;
  }

  /// Copies back the bytes that the device left in a placed tensor, gaps included.
  static void fetch(const Tensor& from, const Tensor& to) {
    if (!from.present() || from.data == to.data) return;
    const device::ByteSpan span = device::span_of(from);
    std::memcpy(static_cast<std::byte*>(to.data) + span.begin, static_cast<const std::byte*>(from.data) + span.begin,
                static_cast<std::size_t>(span.end - span.begin));
  }

  /// Describes the place of an address.
  std::string place_of(std::uint64_t address) const {
    for (const GuardedArray& array : arrays_)
      if (std::string place = array.place_of(address); !place.empty()) return place;
    return "in no array";
  }

 private:
  Against side_;
  std::vector<GuardedArray> arrays_;
};

}  // namespace quire::amd
