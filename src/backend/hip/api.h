// SPDX-License-Identifier: Apache-2.0
// The HIP runtime as we call it: a table of functions of libamdhip64 found at run time, so that neither building nor loading
// Quire needs a ROCm package.
//
// Declared by us from AMD's public header (HIP API reference, ROCm 6 and 7: hip_runtime_api.h). Types that changed between major
// versions are taken from the versioned symbol (hipGetDevicePropertiesR0600), whose layout is kept; LLVM's own
// offload-arch reads the same field at the same offset (clang/tools/offload-arch/AMDGPUArchByHIP.cpp, llvm-project PR 167695).
#pragma once

#include <cstddef>

#include "quire/status.hpp"

namespace quire::hip {

using Error = int;  ///< hipError_t
constexpr Error kSuccess = 0, kOutOfMemory = 2;

enum MemcpyKind : int { kHostToDevice = 1, kDeviceToHost = 2 };  ///< hipMemcpyKind

/// hipDeviceProp_tR0600: the four members that are read, at their offsets.
struct DeviceProperties {
  char name[256];
  char before_units[388 - 256];
  int num_compute_units;  ///< multiProcessorCount
  char before_l2[616 - 392];
  int l2_bytes;  ///< l2CacheSize
  char before_arch[1160 - 620];
  char arch[256];  ///< gcnArchName: "gfx942:sramecc+:xnack-"
  char rest[1472 - 1416];
  char reserve[512];  ///< should a runtime ever write more
};
static_assert(offsetof(DeviceProperties, num_compute_units) == 388 && offsetof(DeviceProperties, l2_bytes) == 616 &&
              offsetof(DeviceProperties, arch) == 1160 && offsetof(DeviceProperties, reserve) == 1472);

/// hipPointerAttribute_t.
struct PointerAttributes {
  int type;  ///< hipMemoryType: 0 unregistered, 1 host, 2 device, 3 managed
  int device;
  void* device_pointer;
  void* host_pointer;
  int is_managed;
  unsigned allocation_flags;
  char reserve[64];
};
constexpr int kDeviceMemory = 2, kManagedMemory = 3;
constexpr int kNotCapturing = 0;                ///< hipStreamCaptureStatusNone
constexpr int kCaptureModeRelaxed = 2;          ///< hipStreamCaptureModeRelaxed
constexpr unsigned kHostMemoryOfAll = 1u | 2u;  ///< hipHostMallocPortable, hipHostMallocMapped

using Module = void*;    ///< hipModule_t
using Function = void*;  ///< hipFunction_t
using Stream = void*;    ///< hipStream_t

//   QUIRE_HIP_FUNCTION(member, symbol, return type, parameters)
#define QUIRE_HIP_FUNCTIONS(QUIRE_HIP_FUNCTION)                                                                                 \
  QUIRE_HIP_FUNCTION(get_device_count, hipGetDeviceCount, Error, (int* count))                                                  \
  QUIRE_HIP_FUNCTION(get_device_properties, hipGetDevicePropertiesR0600, Error, (DeviceProperties * to, int ordinal))           \
  QUIRE_HIP_FUNCTION(get_device, hipGetDevice, Error, (int* ordinal))                                                           \
  QUIRE_HIP_FUNCTION(set_device, hipSetDevice, Error, (int ordinal))                                                            \
  QUIRE_HIP_FUNCTION(module_load_data, hipModuleLoadData, Error, (Module * module, const void* image))                          \
  QUIRE_HIP_FUNCTION(module_get_function, hipModuleGetFunction, Error, (Function * to, Module module, const char* name))        \
  QUIRE_HIP_FUNCTION(module_get_global, hipModuleGetGlobal, Error,                                                              \
                     (void** address, std::size_t* bytes, Module module, const char* name))                                     \
  QUIRE_HIP_FUNCTION(module_launch_kernel, hipModuleLaunchKernel, Error,                                                        \
                     (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
                      unsigned block_z, unsigned dynamic_shared_bytes, Stream stream, void** arguments, void** extra))          \
  QUIRE_HIP_FUNCTION(memcpy, hipMemcpy, Error, (void* to, const void* from, std::size_t bytes, MemcpyKind kind))                \
  QUIRE_HIP_FUNCTION(memcpy_async, hipMemcpyAsync, Error,                                                                       \
                     (void* to, const void* from, std::size_t bytes, MemcpyKind kind, Stream stream))                           \
  QUIRE_HIP_FUNCTION(stream_synchronize, hipStreamSynchronize, Error, (Stream stream))                                          \
  QUIRE_HIP_FUNCTION(device_synchronize, hipDeviceSynchronize, Error, ())                                                       \
  QUIRE_HIP_FUNCTION(pointer_get_attributes, hipPointerGetAttributes, Error, (PointerAttributes * to, const void* address))     \
  QUIRE_HIP_FUNCTION(malloc, hipMalloc, Error, (void** address, std::size_t bytes))                                             \
  QUIRE_HIP_FUNCTION(stream_is_capturing, hipStreamIsCapturing, Error, (Stream stream, int* status))                            \
  QUIRE_HIP_FUNCTION(exchange_capture_mode, hipThreadExchangeStreamCaptureMode, Error, (int* mode))                             \
  QUIRE_HIP_FUNCTION(host_malloc, hipHostMalloc, Error, (void** address, std::size_t bytes, unsigned flags))                    \
  QUIRE_HIP_FUNCTION(free, hipFree, Error, (void* address))                                                                     \
  QUIRE_HIP_FUNCTION(get_last_error, hipGetLastError, Error, ())                                                                \
  QUIRE_HIP_FUNCTION(get_error_string, hipGetErrorString, const char*, (Error error))                                           \
  QUIRE_HIP_FUNCTION(get_error_name, hipGetErrorName, const char*, (Error error))

struct Api {
#define QUIRE_HIP_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  QUIRE_HIP_FUNCTIONS(QUIRE_HIP_MEMBER)
#undef QUIRE_HIP_MEMBER
};

/// Opens the runtime of this process once. If that fails, this and every later call return `unsupported`, which names the missing
/// library or symbol.
/// QUIRE_HIP_LIBRARY, if set, names the library; else the one that the process has loaded already (torch brings its own), or the
/// one that the loader finds.
Result<const Api*> api();

/// OK, or device_error: "hipMemcpy: an illegal memory access was encountered (hipErrorIllegalAddress)". Clears the runtime's last
/// error, so that nobody else's check trips over it.
Status status_of(const Api& api, Error error, const char* what);

/// Calls a function of the runtime, and says what failed. Where there is no runtime, that is the failure.
template <class... Parameters, class... Arguments>
Status call(Error (*Api::*function)(Parameters...), const char* what, Arguments... arguments) {
  const Result<const Api*> hip = api();
  if (!hip.ok()) return hip.status();
  return status_of(*hip.value(), (hip.value()->*function)(arguments...), what);
}

/// The device that is current for the calling thread.
Result<int> current_device();

}  // namespace quire::hip
