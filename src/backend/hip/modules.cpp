// SPDX-License-Identifier: Apache-2.0
// See modules.h.
#include "backend/hip/modules.h"

#include <map>
#include <mutex>
#include <utility>

#include "backend/hip/code_objects.h"
#include "text/formatted.h"

namespace quire::hip {
namespace {

struct Loaded {
  std::mutex guard;
  std::map<std::pair<int, std::string_view>, Module> modules;      ///< (device, source) -> module
  std::map<std::pair<int, std::string_view>, Function> functions;  ///< (device, name) -> function
};

Loaded& loaded() {
  static auto* const all = new Loaded;  // the runtime may be gone when destructors run
  return *all;
}

Result<const CodeObject*> code_object_for(int ordinal, std::string_view source) {
  DeviceProperties properties{};
  if (Status s = call(&Api::get_device_properties, "hipGetDeviceProperties", &properties, ordinal); !s.ok()) return s;
  const std::string target = target_of(properties.arch);
  for (const CodeObject& object : code_objects())
    if (object.target == target && object.source == source) return &object;
  return Status(Code::unsupported, formatted("this build has no kernels for {}: it has {}", target, targets()));
}

/// Under the guard.
Result<Module> find_module(int ordinal, std::string_view source) {
  auto& modules = loaded().modules;
  if (const auto found = modules.find({ordinal, source}); found != modules.end()) return found->second;
  const Result<const CodeObject*> object = code_object_for(ordinal, source);
  if (!object.ok()) return object.status();
  Module module = nullptr;
  const std::string what = formatted("loading code object {} for {}", source, object.value()->target);
  if (Status s = call(&Api::module_load_data, what.c_str(), &module, object.value()->begin); !s.ok()) return s;
  modules.emplace(std::pair{ordinal, object.value()->source}, module);
  return module;
}

}  // namespace

std::string target_of(std::string_view arch) { return std::string(arch.substr(0, arch.find(':'))); }

bool has_target(std::string_view target) noexcept {
  for (const CodeObject& object : code_objects())
    if (object.target == target) return true;
  return false;
}

std::string targets() {
  std::string all;
  std::string_view last;
  for (const CodeObject& object : code_objects()) {
    if (object.target == last) continue;
    last = object.target;
    all += formatted("{}{}", all.empty() ? "" : ", ", last);
  }
  return all;
}

Result<Function> find_function(std::string_view source, const char* kernel) {
  const Result<int> ordinal = current_device();
  if (!ordinal.ok()) return ordinal.status();
  const std::lock_guard<std::mutex> locked(loaded().guard);
  auto& functions = loaded().functions;
  const std::pair<int, std::string_view> key{ordinal.value(), kernel};
  if (const auto found = functions.find(key); found != functions.end()) return found->second;
  const Result<Module> module = find_module(ordinal.value(), source);
  if (!module.ok()) return module.status();
  Function function = nullptr;
  const std::string what = formatted("looking for kernel {} in code object {}", kernel, source);
  if (Status s = call(&Api::module_get_function, what.c_str(), &function, module.value(), kernel); !s.ok()) return s;
  functions.emplace(key, function);
  return function;
}

Result<void*> find_variable(std::string_view source, const char* name, std::size_t bytes) {
  const Result<int> ordinal = current_device();
  if (!ordinal.ok()) return ordinal.status();
  const std::lock_guard<std::mutex> locked(loaded().guard);
  const Result<Module> module = find_module(ordinal.value(), source);
  if (!module.ok()) return module.status();
  void* address = nullptr;
  std::size_t size = 0;
  const std::string what = formatted("looking for {} in code object {}", name, source);
  if (Status s = call(&Api::module_get_global, what.c_str(), &address, &size, module.value(), name); !s.ok()) return s;
  if (size == bytes) return address;
  return Status(Code::internal_error, formatted("{} has {} bytes, expected {}", name, size, bytes));
}

}  // namespace quire::hip
