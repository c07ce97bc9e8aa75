// SPDX-License-Identifier: Apache-2.0
// See workspace.hpp.
#include "workspace.hpp"

#include <cstdlib>
#include <new>
#include <optional>
#include <string>

#include "errors.hpp"

namespace quire_python {
namespace {

using quire::Code;

constexpr std::size_t kAlignment = 64;

class ThreadWorkspace {
 public:
  ~ThreadWorkspace() { std::free(data_); }
  std::span<std::byte> at_least(std::size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_));
      if (data_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return {data_, size_};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

void* stream_for(nb::handle stream, const ArrayRef& like) {
  if (like.ordinal < 0) return nullptr;
  if (stream.is_none() && like.torch_data != nullptr)
    if (const std::optional<void*> current = current_torch_stream(like.view.memory, like.ordinal)) return *current;
  static const auto* const stream_of = new nb::object(arrays_function("stream_of"));  // leaked, as the classes are
  const nb::object number = (*stream_of)(stream, like.object, like.ordinal);
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number));  // NOLINT(performance-no-int-to-ptr)
}

std::span<std::byte> bytes_of(const ArrayRef& workspace) {
  const auto bytes = static_cast<std::size_t>(workspace.view.num_elements() * quire::itemsize(workspace.view.dtype));
  return {static_cast<std::byte*>(workspace.view.data), bytes};
}

std::span<std::byte> host_workspace(const quire::Plan& plan, const ArrayRef& given) {
  static thread_local ThreadWorkspace own;
  return given ? bytes_of(given) : own.at_least(quire::workspace_bytes(plan));
}

ArrayRef import_workspace(nb::handle workspace) {
  if (workspace.is_none()) return {};
  const nb::object view = arrays_function("as_bytes")(workspace);
  ArrayRef array = import_array(view, "workspace", Access::write, "fp8_e4m3fn");
  if (!array.view.is_contiguous()) throw_error(Code::invalid_argument, "workspace: the array is not contiguous");
  return array;
}

void check_workspace(const ArrayRef& query, const ArrayRef& workspace) {
  if (workspace.view.memory != query.view.memory)
    throw_error(Code::invalid_argument, "workspace: is in " + std::string(quire::name(workspace.view.memory)) +
                                            " memory, but the batch is in " + std::string(quire::name(query.view.memory)) +
                                            " memory");
  check_same_gpu(query, "query", workspace, "workspace");
}

DeviceWorkspace device_workspace(const ArrayRef& query, std::size_t bytes, nb::handle given, nb::handle stream) {
  DeviceWorkspace made;
  if (given.is_none() && stream.is_none() && query.torch_data != nullptr)
    if ((made.fresh = new_torch_bytes(query.view.memory, query.ordinal, bytes))) {
      made.bytes = {made.fresh.data(), bytes};
      return made;
    }
  static const auto* const empty = new nb::object(arrays_function("empty_bytes_like"));  // leaked, as the classes are
  made.array = given.is_none() ? import_array((*empty)(query.object, bytes, stream), "workspace", Access::write, "fp8_e4m3fn")
                               : import_workspace(given);
  check_workspace(query, made.array);
  made.bytes = bytes_of(made.array);
  return made;
}

}  // namespace quire_python
