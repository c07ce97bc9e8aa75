// SPDX-License-Identifier: Apache-2.0
// Importing arrays: one function per way in, all ending in a checked view.
#include "arrays.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "errors.hpp"
#include "quire/plan.hpp"
#include "torch_exchange.hpp"

namespace quire_python {
namespace {

using quire::Backend;
using quire::Code;
using quire::DType;
using quire::Memory;
using quire::Tensor;

/// Element type as the array's library spells it, before it means anything to Quire.
struct Element {
  std::string name;  ///< "float32", "bfloat16", "uint8", ...
  std::int64_t itemsize = 0;
};

struct NameRow {
  std::string_view name;
  DType dtype;
};
constexpr NameRow kNames[] = {
    {"float32", DType::f32},
    {"float16", DType::f16},
    {"bfloat16", DType::bf16},
    {"float8_e4m3fn", DType::fp8_e4m3fn},
    {"float8_e4m3fnuz", DType::fp8_e4m3fnuz},
    {"float8_e5m2", DType::fp8_e5m2},
    {"float8_e5m2fnuz", DType::fp8_e5m2fnuz},
    {"float8_e8m0fnu", DType::fp8_e8m0},
    {"int32", DType::i32},
    {"int64", DType::i64},
};
/// Types that a role expects, in words, and a dtype to convert to.
struct Expected {
  const char* dtypes;
  const char* convert_to;
};
Expected expected_of(Role role) {
  switch (role) {
    case Role::rows: return {"float32, float16 or bfloat16", "np.float32"};
    case Role::index: return {"int32 or int64", "np.int64"};
    case Role::f32: return {"float32", "np.float32"};
    case Role::flags: return {"bool or uint8", "np.uint8"};
    case Role::cache:
      return {"float32, float16, bfloat16, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz or int8", "np.float32"};
    case Role::any: break;
  }
  return {"float32, float16, bfloat16, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, int32 or int64", nullptr};
}

/// Request to read an array.
struct Reading {
  const std::string& name;   ///< name of the tensor
  const std::string& asked;  ///< dtype of raw bits, may be empty
  Role role;
  bool torch = false;  ///< a torch tensor, which has other words for a conversion
};

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw_error(Code::invalid_argument, name + ": " + why);
}

std::string class_of(nb::handle object) { return nb::cast<std::string>(nb::handle(object.type()).attr("__name__")); }
std::string module_of(nb::handle object) { return nb::cast<std::string>(nb::handle(object.type()).attr("__module__")); }
bool has(nb::handle object, const char* attribute) { return PyObject_HasAttrString(object.ptr(), attribute) == 1; }
std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

bool is_raw_bits(const std::string& name) {
  for (std::string_view raw : {"uint8", "int8", "uint16", "int16", "void8", "void16"})
    if (name == raw) return true;
  return false;
}

/// A type of real numbers, which astype() does not cut in two.
bool is_real(const std::string& name) {
  return name.rfind("float", 0) == 0 || name.rfind("int", 0) == 0 || name.rfind("uint", 0) == 0;
}

std::optional<DType> typed(const std::string& name) {
  for (const NameRow& row : kNames)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

[[noreturn]] void refuse_dtype(const Reading& reading, const Element& element) {
  const Expected expected = expected_of(reading.role);
  std::string hint;
  const bool may_be_bits = reading.role != Role::index && reading.role != Role::f32 && reading.role != Role::flags;
  if (may_be_bits && is_raw_bits(element.name)) {
    const bool byte = element.itemsize == 1;
    hint = std::string("; for raw bits, name the type: dtype=\"") + (byte ? "fp8_e4m3fn" : "bf16") + "\" or the like";
    if (byte && reading.role == Role::cache)
      hint += ". Codes with zero points are no part of Quire: those of int8 have scales alone";
  } else if (expected.convert_to != nullptr && is_real(element.name)) {
    const std::string type = expected.convert_to;  // "np.float32"
    hint =
        "; convert it: " + reading.name + (reading.torch ? ".to(torch" + type.substr(type.find('.')) : ".astype(" + type) + ")";
  }
  refuse(reading.name, "dtype " + element.name + ", expected " + expected.dtypes + hint);
}

DType resolve_dtype(const Reading& reading, const Element& element) {
  const auto& [name, asked, role, torch] = reading;
  const std::optional<DType> own = typed(element.name);
  if (role == Role::flags) {
    if (element.name == "bool" || element.name == "uint8") return DType::u8;
    refuse_dtype(reading, element);
  }
  if (asked.empty()) {
    if (own) return *own;
    if (role == Role::cache && element.name == "int8") return DType::i8;  // in other places, int8 is raw bits
    refuse_dtype(reading, element);
  }
  const std::optional<DType> spelled = asked == "int8" ? DType::i8 : typed(asked);  // spelling of the array libraries
  const std::optional<DType> want = spelled ? spelled : quire::dtype_from_name(asked);
  if (!want)
    refuse(name, "dtype=\"" + asked + "\" is not a Quire dtype (f32, f16, bf16, fp8_e4m3fn, fp8_e4m3fnuz, fp8_e5m2, ...)");
  if (role == Role::cache && !quire::is_cached(*want) && *want != DType::fp8_ds_mla)
    refuse(name, "dtype=\"" + asked + "\" is no type of a cache, expected " + expected_of(role).dtypes +
                     ", by name also nvfp4, mxfp4 and fp8_ds_mla; codes with zero points are no part of Quire");
  if (own && *own != *want) refuse(name, "the array is " + element.name + " but dtype=\"" + asked + "\" was given");
  if (!own && (!is_raw_bits(element.name) || element.itemsize != quire::itemsize(*want)))
    refuse(name, "dtype " + element.name + " cannot hold the bits of dtype=\"" + asked + "\"");
  return *want;
}

void set_rank(Tensor& view, const std::string& name, std::size_t rank) {
  if (rank > Tensor::kMaxRank) refuse(name, "rank " + std::to_string(rank) + ", at most 5 is possible");
  view.rank = static_cast<int>(rank);
}

std::int64_t element_stride(const std::string& name, std::int64_t bytes, std::int64_t itemsize) {
  if (bytes % itemsize != 0) refuse(name, "stride of " + std::to_string(bytes) + " bytes is no multiple of the element size");
  return bytes / itemsize;
}

/// Strides in bytes become strides in elements; absent (None) means row-major.
void set_strides(Tensor& view, const std::string& name, nb::handle byte_strides) {
  if (byte_strides.is_none()) {
    view = Tensor::from_shape(view.data, view.dtype, view.shape, view.rank);
    return;
  }
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d)
    view.stride[d] = element_stride(name, nb::cast<std::int64_t>(byte_strides[d]), quire::itemsize(view.dtype));
}

/// Anything with __array_interface__, given what its elements are.
ArrayRef from_interface(nb::handle object, const nb::dict& interface, const Reading& reading, const Element& element) {
  const std::string& name = reading.name;
  ArrayRef array;
  array.owner = nb::borrow(object);
  array.view.dtype = resolve_dtype(reading, element);
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  array.view.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));  // NOLINT(performance-no-int-to-ptr)
  array.writable = !nb::cast<bool>(data[1]);
  const nb::tuple shape = nb::cast<nb::tuple>(interface["shape"]);
  set_rank(array.view, name, shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) array.view.shape[d] = nb::cast<std::int64_t>(shape[d]);
  nb::object strides = interface.contains("strides") ? nb::object(interface["strides"]) : nb::none();
  set_strides(array.view, name, strides);
  return array;
}

/// Classes looked up once; leaked, because static Python objects would outlive the interpreter.
const nb::object& numpy_class() {
  static const auto* const cls = new nb::object(nb::module_::import_("numpy").attr("ndarray"));
  return *cls;
}
bool is_exact_numpy(nb::handle object) { return nb::handle(object.type()).is(numpy_class()); }
bool is_numpy(nb::handle object) { return is_exact_numpy(object) || PyObject_IsInstance(object.ptr(), numpy_class().ptr()) == 1; }

nb::dict array_interface(nb::handle object) { return nb::cast<nb::dict>(object.attr("__array_interface__")); }

/// NumPy computes dtype.name in Python, so the answers are kept; the dtype objects too, or another could take their address.
const Element& numpy_element(nb::handle dtype, const std::string& name) {
  struct Known {
    nb::object dtype;
    Element element;
  };
  static auto* const known = new std::unordered_map<PyObject*, Known>;
  constexpr std::size_t kEnough = 64;
  if (const auto found = known->find(dtype.ptr()); found != known->end()) return found->second.element;
  const Element element{nb::cast<std::string>(dtype.attr("name")), nb::cast<std::int64_t>(dtype.attr("itemsize"))};
  if (!nb::cast<bool>(dtype.attr("isnative"))) refuse(name, "dtype " + element.name + " is not in native byte order");
  if (known->size() >= kEnough) known->clear();
  return known->emplace(dtype.ptr(), Known{nb::borrow(dtype), element}).first->second.element;
}

/// The fast way in, for all types that the buffer protocol knows (not those of ml_dtypes). Empty if it refuses.
ArrayRef from_numpy_buffer(nb::handle object, const Reading& reading, const Element& element) {
  const std::string& name = reading.name;
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDED_RO) != 0) {
    PyErr_Clear();
    return {};
  }
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> released(&buffer, &PyBuffer_Release);
  ArrayRef array;
  array.owner = nb::borrow(object);
  array.writable = buffer.readonly == 0;
  array.view.dtype = resolve_dtype(reading, element);
  array.view.data = buffer.buf;
  set_rank(array.view, name, static_cast<std::size_t>(buffer.ndim));
  for (std::size_t d = 0; d < static_cast<std::size_t>(buffer.ndim); ++d) {
    array.view.shape[d] = buffer.shape[d];
    array.view.stride[d] = element_stride(name, buffer.strides[d], element.itemsize);
  }
  return array;
}

ArrayRef from_numpy(nb::handle object, const Reading& reading) {
  const std::string& name = reading.name;
  if (!is_exact_numpy(object) && has(object, "mask")) refuse(name, "masked arrays have no meaning here; fill them first");
  const Element& element = numpy_element(object.attr("dtype"), name);
  if (ArrayRef array = from_numpy_buffer(object, reading, element)) return array;
  return from_interface(object, array_interface(object), reading, element);
}

/// Imports an object that offers `__array_interface__` alone, by way of NumPy.
ArrayRef from_other_interface(nb::handle object, const Reading& reading) {
  return from_numpy(arrays_function("from_interface")(object, reading.name), reading);
}

[[noreturn]] void refuse_device(const std::string& name, const std::string& device) {
  const bool gpus = quire::has_backend(Backend::cuda) || quire::has_backend(Backend::hip);
  throw_error(Code::unsupported, name + ": lives on " + device + ", " +
                                     (gpus ? "where this build does not compute" : "but this build has the CPU backend only") +
                                     "; copy it to the host");
}

/// Memory that Quire computes in, or an UnsupportedError that names the array and its device.
Memory usable(Memory memory, const std::string& name, const std::string& device) {
  const bool built = memory == Memory::cpu || quire::has_backend(memory == Memory::cuda ? Backend::cuda : Backend::hip);
  if (!built) refuse_device(name, device);
  return memory;
}

/// Attributes of tensors, by names that are made once; leaked, as the classes are.
struct TorchNames {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* get_device = PyUnicode_InternFromString("get_device");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_cuda = PyUnicode_InternFromString("is_cuda");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
};
const TorchNames& torch_names() {
  static const auto* const names = new TorchNames;
  return *names;
}

nb::object attribute(nb::handle object, PyObject* name) {
  nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!value.is_valid()) throw nb::python_error();
  return value;
}
nb::object result_of_method(nb::handle object, PyObject* name) {
  nb::object value = nb::steal(PyObject_CallMethodObjArgs(object.ptr(), name, nullptr));
  if (!value.is_valid()) throw nb::python_error();
  return value;
}
bool is_true(const nb::object& value) { return value.ptr() == Py_True; }
std::int64_t integer(PyObject* value) {
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

/// Facts of torch that never change, looked up when the first tensor comes: torch is imported by then.
struct TorchFacts {
  nb::object strided, is_grad_enabled;
  Memory gpu = Memory::cuda;  ///< ROCm builds of torch call their devices cuda, too

  TorchFacts() {
    const nb::module_ torch = nb::module_::import_("torch");
    strided = torch.attr("strided");
    is_grad_enabled = torch.attr("is_grad_enabled");
    if (!torch.attr("version").attr("hip").is_none()) gpu = Memory::hip;
  }
};
const TorchFacts& torch_facts() {
  static const auto* const facts = new TorchFacts;
  return *facts;
}

/// torch's dtypes are single objects, which live for ever.
const Element& torch_element(nb::handle dtype) {
  static auto* const known = new std::unordered_map<PyObject*, Element>;
  if (const auto found = known->find(dtype.ptr()); found != known->end()) return found->second;
  const std::string text = text_of(dtype);
  Element element{text.substr(text.find('.') + 1), nb::cast<std::int64_t>(dtype.attr("itemsize"))};
  dtype.inc_ref();
  return known->emplace(dtype.ptr(), std::move(element)).first->second;
}

/// The place of a tensor: host memory, or a GPU and its number.
void set_torch_place(ArrayRef& array, nb::handle object, const std::string& name) {
  const TorchNames& names = torch_names();
  if (is_true(attribute(object, names.is_cpu))) return;
  const auto device = [&] { return text_of(object.attr("device")); };
  if (!is_true(attribute(object, names.is_cuda))) refuse_device(name, device());
  const Memory memory = torch_facts().gpu;
  if (!quire::has_backend(memory == Memory::cuda ? Backend::cuda : Backend::hip)) refuse_device(name, device());
  array.view.memory = memory;
  array.ordinal = static_cast<int>(integer(result_of_method(object, names.get_device).ptr()));
}

/// Refuses tensors whose state neither attributes of memory nor DLPack show: lazy negation, gradients.
void check_torch_state(nb::handle object, const std::string& name) {
  const TorchNames& names = torch_names();
  if (is_true(result_of_method(object, names.is_neg))) refuse(name, "torch's lazy negation is pending; call resolve_neg() first");
  if (is_true(attribute(object, names.requires_grad)) && nb::cast<bool>(torch_facts().is_grad_enabled()))
    refuse(name, "requires grad, but Quire does not differentiate; use torch.no_grad() or detach()");
}

/// The element type, where DLPack's and the reading's agree; empty where an error may have to be put into words.
std::optional<DType> plain_type(nb::dlpack::dtype type, const std::string& asked) {
  using C = nb::dlpack::dtype_code;
  struct Row {
    C code;
    std::uint8_t bits;
    DType dtype;
  };
  static constexpr Row kRows[] = {{C::Bfloat, 16, DType::bf16},
                                  {C::Float, 16, DType::f16},
                                  {C::Float, 32, DType::f32},
                                  {C::Int, 32, DType::i32},
                                  {C::Int, 64, DType::i64},
                                  {C::Float8_E4M3FN, 8, DType::fp8_e4m3fn},
                                  {C::Float8_E5M2, 8, DType::fp8_e5m2},
                                  {C::Float8_E4M3FNUZ, 8, DType::fp8_e4m3fnuz},
                                  {C::Float8_E5M2FNUZ, 8, DType::fp8_e5m2fnuz}};
  const auto code = static_cast<C>(type.code);
  const auto row =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.code == code && r.bits == type.bits; });
  const std::optional<DType> own = row != std::end(kRows) && type.lanes == 1 ? std::optional(row->dtype) : std::nullopt;
  if (asked.empty()) return own;
  const std::optional<DType> want = quire::dtype_from_name(asked);
  if (own) return own == want ? own : std::nullopt;
  const bool is_bits = type.lanes == 1 && (code == C::UInt || code == C::Int) && want && type.bits == 8 * quire::itemsize(*want);
  return is_bits ? want : std::nullopt;
}

/// Memory of an array by its DLPack device type; nullopt for devices that Quire does not know.
std::optional<Memory> dlpack_memory(std::int32_t type) {
  namespace d = nb::device;
  if (type == d::cpu::value || type == d::cuda_host::value || type == d::rocm_host::value) return Memory::cpu;
  if (type == d::cuda::value || type == d::cuda_managed::value) return Memory::cuda;
  if (type == d::rocm::value) return Memory::hip;
  return std::nullopt;
}

/// from_torch() by one C call; empty where that does not do.
std::optional<ArrayRef> from_torch_exchange(nb::handle object, const Reading& reading) {
  if (reading.role == Role::flags) return std::nullopt;  // bytes, of which there are several types
  const std::optional<nb::dlpack::dltensor> tensor = read_torch(object);
  if (!tensor || tensor->ndim > Tensor::kMaxRank || tensor->strides == nullptr) return std::nullopt;
  const std::optional<DType> dtype = plain_type(tensor->dtype, reading.asked);
  const std::optional<Memory> memory = dlpack_memory(tensor->device.device_type);
  if (!dtype || !memory) return std::nullopt;
  if (*memory != Memory::cpu && !quire::has_backend(*memory == Memory::cuda ? Backend::cuda : Backend::hip)) return std::nullopt;
  check_torch_state(object, reading.name);
  ArrayRef array;
  array.owner = nb::borrow(object);
  array.writable = true;
  array.view.dtype = *dtype;
  array.view.memory = *memory;
  if (*memory != Memory::cpu) array.ordinal = tensor->device.device_id;
  array.view.data = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  array.torch_data = array.view.data;
  array.view.rank = tensor->ndim;
  std::copy_n(tensor->shape, tensor->ndim, array.view.shape.begin());
  std::copy_n(tensor->strides, tensor->ndim, array.view.stride.begin());
  return array;
}

ArrayRef from_torch(nb::handle object, const Reading& reading) {
  if (std::optional<ArrayRef> array = from_torch_exchange(object, reading)) return *std::move(array);
  const std::string& name = reading.name;
  const TorchNames& names = torch_names();
  const TorchFacts& facts = torch_facts();
  ArrayRef array;
  set_torch_place(array, object, name);
  if (const nb::object layout = attribute(object, names.layout); !layout.is(facts.strided))
    refuse(name, "torch layout is " + text_of(layout));
  check_torch_state(object, name);
  array.owner = nb::borrow(object);
  array.writable = true;
  array.view.dtype =
      resolve_dtype({reading.name, reading.asked, reading.role, true}, torch_element(attribute(object, names.dtype)));
  array.view.data = reinterpret_cast<void*>(integer(result_of_method(object, names.data_ptr).ptr()));  // NOLINT
  array.torch_data = array.view.data;
  const nb::object shape = attribute(object, names.shape), stride = result_of_method(object, names.stride);
  const auto rank = static_cast<std::size_t>(PyTuple_Size(shape.ptr()));
  set_rank(array.view, name, rank);
  for (std::size_t d = 0; d < rank; ++d) {
    array.view.shape[d] = integer(PyTuple_GetItem(shape.ptr(), static_cast<Py_ssize_t>(d)));
    array.view.stride[d] = integer(PyTuple_GetItem(stride.ptr(), static_cast<Py_ssize_t>(d)));
  }
  return array;
}

std::string device_text(std::int32_t type, std::int32_t id) {
  static constexpr const char* kTypes[] = {"?",    "cpu",       "cuda",   "cuda_host",    "opencl",
                                           "?",    "?",         "vulkan", "metal",        "vpi",
                                           "rocm", "rocm_host", "ext",    "cuda_managed", "oneapi"};
  const bool known = type >= 0 && type < static_cast<std::int32_t>(std::size(kTypes));
  return std::string(known ? kTypes[type] : "device type " + std::to_string(type)) + ":" + std::to_string(id);
}

Element dlpack_element(nb::dlpack::dtype dtype) {
  using C = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(static_cast<int>(dtype.bits));
  std::string name = "DLPack type code " + std::to_string(static_cast<int>(dtype.code));
  switch (static_cast<C>(dtype.code)) {
    case C::Int: name = "int" + bits; break;
    case C::UInt: name = "uint" + bits; break;
    case C::Float: name = "float" + bits; break;
    case C::Bool: name = "bool"; break;
    case C::Bfloat: name = "bfloat" + bits; break;
    case C::Float8_E4M3FN: name = "float8_e4m3fn"; break;
    case C::Float8_E4M3FNUZ: name = "float8_e4m3fnuz"; break;
    case C::Float8_E5M2: name = "float8_e5m2"; break;
    case C::Float8_E5M2FNUZ: name = "float8_e5m2fnuz"; break;
    default: break;
  }
  if (dtype.lanes != 1) name += "x" + std::to_string(static_cast<int>(dtype.lanes));
  return {name, dtype.bits / 8};
}

template <typename NdArray>
ArrayRef from_ndarray(const NdArray& source, const Reading& reading) {
  const std::string& name = reading.name;
  ArrayRef array;
  array.dlpack = nb::ndarray<nb::ro>(source);
  array.view.dtype = resolve_dtype(reading, dlpack_element(source.dtype()));
  array.view.data = const_cast<void*>(static_cast<const void*>(source.data()));
  set_rank(array.view, name, source.ndim());
  for (std::size_t d = 0; d < source.ndim(); ++d) {
    array.view.shape[d] = static_cast<std::int64_t>(source.shape(d));
    array.view.stride[d] = source.stride(d);
  }
  return array;
}

/// DLPack producers (CuPy, JAX, ...) and the buffer protocol (memoryview, array.array).
ArrayRef from_dlpack(nb::handle object, const Reading& reading) {
  const std::string& name = reading.name;
  Memory memory = Memory::cpu;
  int ordinal = -1;
  if (has(object, "__dlpack_device__")) {
    const nb::tuple device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
    const auto type = nb::cast<std::int32_t>(nb::int_(device[0]));
    const auto id = nb::cast<std::int32_t>(nb::int_(device[1]));
    const std::optional<Memory> known = dlpack_memory(type);
    if (!known) refuse_device(name, device_text(type, id));
    memory = usable(*known, name, device_text(type, id));
    if (memory != Memory::cpu) ordinal = id;
  }
  const auto placed = [&](ArrayRef array) {
    array.view.memory = memory;
    array.ordinal = ordinal;
    return array;
  };
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable)) {
    ArrayRef array = placed(from_ndarray(writable, reading));
    // JAX arrays are immutable, whatever their DLPack flags say.
    array.writable = module_of(object).rfind("jax", 0) != 0;
    return array;
  }
  nb::ndarray<nb::ro> readable;
  if (nb::try_cast(object, readable)) return placed(from_ndarray(readable, reading));
  refuse(name, "a " + module_of(object) + "." + class_of(object) + " could not be read through DLPack or as a buffer");
}

/// Never imports torch: a torch tensor can exist only if the program has imported torch.
bool is_torch(nb::handle object) {
  static const nb::object* cls = nullptr;
  if (cls == nullptr) {
    const nb::dict modules = nb::cast<nb::dict>(nb::module_::import_("sys").attr("modules"));
    if (!modules.contains("torch") || !has(modules["torch"], "Tensor")) return false;
    cls = new nb::object(modules["torch"].attr("Tensor"));
  }
  return PyObject_IsInstance(object.ptr(), cls->ptr()) == 1;
}

ArrayRef import_any(nb::handle object, const Reading& reading) {
  const std::string& name = reading.name;
  if (is_torch(object)) return from_torch(object, reading);
  if (is_numpy(object)) return from_numpy(object, reading);
  if (has(object, "__dlpack__")) return from_dlpack(object, reading);
  if (has(object, "__cuda_array_interface__")) refuse_device(name, "a CUDA device");
  if (has(object, "__array_interface__")) return from_other_interface(object, reading);
  if (PyObject_CheckBuffer(object.ptr()) != 0) return from_dlpack(object, reading);
  refuse(name, "expected an array (NumPy, torch, or anything with DLPack or the array interface), got " + class_of(object));
}

/// A NumPy array over a view; 16-bit types as uint16 if asked, fp8 as uint8.
nb::object raw_numpy(const Tensor& view, nb::handle owner, bool as_uint16) {
  std::size_t shape[Tensor::kMaxRank];
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) shape[d] = static_cast<std::size_t>(view.shape[d]);
  nb::dlpack::dtype dtype = nb::dtype<std::uint8_t>();
  if (view.dtype == DType::f32) dtype = nb::dtype<float>();
  if (view.dtype == DType::i32) dtype = nb::dtype<std::int32_t>();
  if (view.dtype == DType::i64) dtype = nb::dtype<std::int64_t>();
  if (view.dtype == DType::i8) dtype = nb::dtype<std::int8_t>();
  if (view.dtype == DType::f16) dtype = {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
  if (as_uint16) dtype = nb::dtype<std::uint16_t>();
  const nb::ndarray<nb::numpy> raw(view.data, static_cast<std::size_t>(view.rank), shape, owner, view.stride.data(), dtype);
  return nb::cast(raw, nb::rv_policy::reference);
}

}  // namespace

nb::object arrays_function(const char* name) {
  static const auto* const module = new nb::object(nb::module_::import_("quire._arrays"));  // leaked, as the classes are
  return module->attr(name);
}

ArrayRef import_array(nb::handle object, const std::string& name, Access access, const std::string& dtype, Role role) {
  if (!object.is_valid() || object.is_none()) return {};
  ArrayRef array = import_any(object, {name, dtype, role});
  array.object = nb::borrow(object);
  if (access == Access::write && !array.writable) refuse(name, "the array is read-only, but it is written");
  return array;
}

ArrayRef import_index(nb::handle object, const std::string& name, nb::handle like) {
  if (PyList_Check(object.ptr()) == 0 && PyTuple_Check(object.ptr()) == 0)
    return import_array(object, name, Access::read, {}, Role::index);
  const nb::object none = nb::none();
  const nb::object array = arrays_function("index_array")(object, name, like.is_valid() ? like : nb::handle(none));
  return import_array(array, name, Access::read, {}, Role::index);
}

ArrayRef import_floats(nb::handle object, const std::string& name, nb::handle like) {
  if (PyList_Check(object.ptr()) == 0 && PyTuple_Check(object.ptr()) == 0)
    return import_array(object, name, Access::read, {}, Role::f32);
  const nb::object none = nb::none();
  const nb::object array = arrays_function("float_array")(object, name, like.is_valid() ? like : nb::handle(none));
  return import_array(array, name, Access::read, {}, Role::f32);
}

ArrayRef import_flags(nb::handle object, const std::string& name, nb::handle like) {
  if (PyBool_Check(object.ptr()) != 0)
    refuse(name, text_of(object) + " is one flag for all requests, which goes into options=quire.Options(causal=" +
                     text_of(object) + "); here it is an array of one flag a request");
  if (PyList_Check(object.ptr()) == 0 && PyTuple_Check(object.ptr()) == 0)
    return import_array(object, name, Access::read, {}, Role::flags);
  return import_array(arrays_function("flag_array")(object, name, like), name, Access::read, {}, Role::flags);
}

std::vector<std::int64_t> index_list(nb::handle values, const char* name) {
  const ArrayRef array = import_index(values, name);
  if (!array) return {};
  if (array.view.rank != 1 || (array.view.dtype != DType::i32 && array.view.dtype != DType::i64))
    throw_error(Code::invalid_argument,
                std::string(name) + ": " + quire::to_string(array.view) + ", expected a list of i32 or i64");
  if (array.ordinal >= 0) refuse(name, "lives on GPU " + std::to_string(array.ordinal) + ", expected host memory");
  std::vector<std::int64_t> list(static_cast<std::size_t>(array.view.shape[0]));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) * array.view.stride[0];
    list[i] = array.view.dtype == DType::i32 ? static_cast<const std::int32_t*>(array.view.data)[at]
                                             : static_cast<const std::int64_t*>(array.view.data)[at];
  }
  return list;
}

void check_same_gpu(const ArrayRef& first, const char* first_name, const ArrayRef& array, const char* name) {
  if (first.ordinal < 0 || array.ordinal < 0 || first.ordinal == array.ordinal) return;
  refuse(name,
         "lives on GPU " + std::to_string(array.ordinal) + ", but " + first_name + " on GPU " + std::to_string(first.ordinal));
}

/// Address of a torch tensor's first element, as it is now.
static const void* torch_data_of(nb::handle tensor) {
  if (const std::optional<nb::dlpack::dltensor> now = read_torch(tensor))
    return static_cast<const std::byte*>(now->data) + now->byte_offset;
  const std::int64_t address = integer(result_of_method(tensor, torch_names().data_ptr).ptr());
  return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void check_still_there(const ArrayRef& array, const char* name) {
  if (array.torch_data != nullptr && array.torch_data != torch_data_of(array.object))
    refuse(name, "the tensor's storage moved since it was passed in (resize_ or set_?); make a new object from it");
}

nb::object to_numpy_bits(const ArrayRef& array) {
  if (array.ordinal >= 0)
    throw_error(Code::unsupported, "the array is in GPU " + std::to_string(array.ordinal) + "'s memory; NumPy cannot view it");
  const nb::object owner = array.owner.is_valid() ? array.owner : nb::cast(array.dlpack);
  nb::object bits = raw_numpy(array.view, owner, quire::itemsize(array.view.dtype) == 2);
  if (!array.writable) bits.attr("flags").attr("writeable") = false;
  return bits;
}

nb::object to_numpy(const Tensor& view, nb::handle owner) {
  if (!view.present()) return nb::none();
  nb::object array = raw_numpy(view, owner, view.dtype == DType::bf16);
  if (view.dtype != DType::bf16 && !quire::is_fp8(view.dtype)) return array;
  return arrays_function("typed_view")(array, std::string(quire::name(view.dtype)));
}

}  // namespace quire_python
