// SPDX-License-Identifier: Apache-2.0
// Finds the HIP runtime. See api.h.
#include "backend/hip/api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "text/formatted.h"

namespace quire::hip {
namespace {

/// ROCm 7 and 6; without a number: what torch's wheels bring, and a development package's link.
constexpr const char* kLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

Status not_found(const std::string& why) {
  return {Code::unsupported, formatted("no AMD GPU can be used: the HIP runtime of ROCm 6 or newer is missing ({})", why)};
}

/// Two runtimes in one process would not know each other's memory, so one that is there comes first.
Result<void*> open_library() {
  if (const char* named = std::getenv("QUIRE_HIP_LIBRARY"); named != nullptr && *named != '\0') {
    if (void* library = dlopen(named, RTLD_NOW | RTLD_LOCAL)) return library;
    return not_found(formatted("QUIRE_HIP_LIBRARY: {}", dlerror()));
  }
  for (const int also : {RTLD_NOLOAD, 0})
    for (const char* name : kLibraries)
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | also)) return library;
  return not_found(formatted("{}", dlerror()));
}

/// Loads all functions; fails with the names of those that the library lacks.
Result<Api> load() {
  const Result<void*> library = open_library();
  if (!library.ok()) return library.status();
  Api api;
  std::string missing;
  const auto find = [&]<class F>(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library.value(), symbol));
    if (function == nullptr) missing += formatted("{}{}", missing.empty() ? "" : ", ", symbol);
  };
#define QUIRE_HIP_FIND(member, symbol, result, parameters) find(api.member, #symbol);
  QUIRE_HIP_FUNCTIONS(QUIRE_HIP_FIND)
#undef QUIRE_HIP_FIND
  if (!missing.empty()) return not_found(formatted("the libamdhip64 that was found has no {}", missing));
  return api;
}

}  // namespace

Result<const Api*> api() {
  static const Result<Api> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

Status status_of(const Api& api, Error error, const char* what) {
  if (error == kSuccess) return {};
  (void)api.get_last_error();
  const Code code = error == kOutOfMemory ? Code::out_of_memory : Code::device_error;
  return {code, formatted("{}: {} ({})", what, api.get_error_string(error), api.get_error_name(error))};
}

Result<int> current_device() {
  int ordinal = 0;
  if (Status s = call(&Api::get_device, "hipGetDevice", &ordinal); !s.ok()) return s;
  return ordinal;
}

}  // namespace quire::hip
