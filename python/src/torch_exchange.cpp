// SPDX-License-Identifier: Apache-2.0
// See torch_exchange.hpp.
#include "torch_exchange.hpp"

#include <cstdint>

namespace quire_python {

/// DLManagedTensorVersioned of dlpack.h.
struct ManagedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedTensor* self);  ///< may be null
  std::uint64_t flags;
  nb::dlpack::dltensor view;
};

namespace {

/// The table behind torch.Tensor.__dlpack_c_exchange_api__, field by field as dlpack.h of DLPack 1.3 declares it. A field in
/// another place would be a call of another function, so the major version is asked first.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* earlier;
  /// May be null. Fails with what it tells `set_error`.
  int (*allocate)(nb::dlpack::dltensor* like, ManagedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
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

/// Looks torch up when the first tensor comes, by which time torch is imported; never releases the class.
const Torch& torch() {
  static const Torch found = [] {
    const nb::object tensor_class = nb::module_::import_("torch").attr("Tensor");
    return Torch{nb::borrow(tensor_class).release().ptr(), api_of(tensor_class)};
  }();
  return found;
}

std::int32_t device_type(quire::Memory memory) {
  return memory == quire::Memory::cuda ? nb::device::cuda::value : nb::device::rocm::value;
}

/// Clears the Python error of a failed function of the table; the slower path does the work, or reports the error.
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
  void* stream = nullptr;
  if (t.api->current_stream(device_type(memory), ordinal, &stream) == 0) return stream;
  clear_error();
  return std::nullopt;
}

std::byte* TorchBytes::data() const { return static_cast<std::byte*>(tensor_->view.data) + tensor_->view.byte_offset; }

void TorchBytes::Release::operator()(ManagedTensor* tensor) const {
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

TorchBytes new_torch_bytes(quire::Memory memory, int ordinal, std::size_t count) {
  const Torch& t = torch();
  if (t.api == nullptr || t.api->allocate == nullptr) return {};
  auto size = static_cast<std::int64_t>(count);
  nb::dlpack::dltensor like{};
  like.device = {device_type(memory), ordinal};
  like.ndim = 1;
  like.dtype = nb::dtype<std::uint8_t>();
  like.shape = &size;
  ManagedTensor* made = nullptr;
  if (t.api->allocate(&like, &made, nullptr, [](void*, const char*, const char*) {}) == 0 && made != nullptr)
    return TorchBytes(made);
  clear_error();
  return {};
}

}  // namespace quire_python
