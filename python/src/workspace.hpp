// SPDX-License-Identifier: Apache-2.0
// Workspaces and streams of calls, as Python hands them over.
#pragma once

#include <cstddef>
#include <span>

#include "torch_exchange.hpp"
#include "types.hpp"

namespace quire_python {

/// The stream of a GPU call as a number: the argument's, or the current one of the library that the array comes from. Null for
/// arrays of the host.
void* stream_for(nb::handle stream, const ArrayRef& like);

/// The memory that the caller gave, or memory of this thread, grown to the largest plan so far: steady state allocates nothing.
std::span<std::byte> host_workspace(const quire::Plan& plan, const ArrayRef& given);

/// Any contiguous writable array serves as workspace; raw bytes are the usual choice. Absent if None.
ArrayRef import_workspace(nb::handle workspace);

/// Raises ArgumentError if the workspace is not where the query is.
void check_workspace(const ArrayRef& query, const ArrayRef& workspace);

/// The workspace of a GPU call, and what keeps it.
struct DeviceWorkspace {
  ArrayRef array;
  TorchBytes fresh;
  std::span<std::byte> bytes;
};
/// Workspace that the caller gave, or one from the library of the query, which frees it when work enqueued by then is done.
DeviceWorkspace device_workspace(const ArrayRef& query, std::size_t bytes, nb::handle given, nb::handle stream);

/// The outcome of a call whose workspace is new: ask() is its attend_status(), which tells once of earlier calls. Those that it
/// finds in new memory are of a workspace that was freed, so that the second answer is of this call.
template <class Ask>
quire::Status status_in_new_workspace(Ask&& ask) {
  const quire::Status first = ask();
  return first.ok() ? first : ask();
}

std::span<std::byte> bytes_of(const ArrayRef& workspace);

}  // namespace quire_python
