// SPDX-License-Identifier: Apache-2.0
// See torch_exchange.hpp.
#include "torch_exchange.hpp"

#include <cstdint>

namespace quire_python {
namespace {

/// The table behind torch.Tensor.__dlpack_c_exchange_api__, field by field as dlpack.h of DLPack 1.3 declares it. A field in
/// another place would be a call of another function, so the major version is asked first.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* earlier;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of_object)(void* object, nb::dlpack::dltensor* view);  ///< may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};
constexpr std::uint32_t kMajor = 1;

struct Torch {
  PyObject* tensor_class = nullptr;
  const ExchangeApi* api = nullptr;
};

const ExchangeApi* api_of(nb::handle tensor_class) {
  const nb::object capsule = nb::getattr(tensor_class, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return api->major == kMajor ? api : nullptr;
}

/// Looked up when the first tensor comes, which is when torch is there; the class is never released.
const Torch& torch() {
  static const Torch found = [] {
    const nb::object tensor_class = nb::module_::import_("torch").attr("Tensor");
    return Torch{nb::borrow(tensor_class).release().ptr(), api_of(tensor_class)};
  }();
  return found;
}

/// A function of the table has failed with a Python error; what it could not do is done, or put into words, another way.
void clear_error() { PyErr_Clear(); }

}  // namespace

std::optional<nb::dlpack::dltensor> read_torch(nb::handle tensor) {
  const Torch& t = torch();
  if (t.api == nullptr || t.api->view_of_object == nullptr || tensor.type().ptr() != t.tensor_class) return std::nullopt;
  nb::dlpack::dltensor view;
  if (t.api->view_of_object(tensor.ptr(), &view) == 0) return view;
  clear_error();
  return std::nullopt;
}

std::optional<void*> current_torch_stream(quire::Memory memory, int ordinal) {
  const Torch& t = torch();
  if (t.api == nullptr || t.api->current_stream == nullptr) return std::nullopt;
  const std::int32_t type = memory == quire::Memory::cuda ? nb::device::cuda::value : nb::device::rocm::value;
  void* stream = nullptr;
  if (t.api->current_stream(type, ordinal, &stream) == 0) return stream;
  clear_error();
  return std::nullopt;
}

}  // namespace quire_python
