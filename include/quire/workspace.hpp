// SPDX-License-Identifier: Apache-2.0
// Host memory for attend(): aligned as it demands, kept from call to call.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "quire/version.hpp"

namespace quire {

/// A 64-byte aligned block of host memory that grows and never shrinks: one per thread that calls attend().
///
///     quire::Workspace workspace;
///     quire::attend(plan, batch, cache, options, workspace.at_least(quire::workspace_bytes(plan)));
///
/// Contents are not kept when it grows. Throws std::bad_alloc if the host has no memory left.
class Workspace {
 public:
  static constexpr std::size_t kAlignment = 64;  ///< bytes; attend() refuses a workspace that is aligned to less

  Workspace() = default;
  explicit Workspace(std::size_t bytes) { at_least(bytes); }

  /// All bytes of the block, at least `bytes`. Earlier spans dangle if the block had to grow.
  std::span<std::byte> at_least(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlignment})));
      size_ = bytes;
    }
    return {memory_.get(), size_};
  }
  std::size_t size() const noexcept { return size_; }  ///< bytes

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace quire
