// SPDX-License-Identifier: Apache-2.0
// libamdhip64 without a GPU: the functions of src/backend/hip/api.h over host memory and the stand-in of tests/simt. Every launch
// is held against the metadata of the code object that it came from; what is wrong with it are the words of the error.
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <utility>
#include <vector>

#include "backend/hip/api.h"
#include "hip/fake/kernels.h"
#include "hip/fake/state.h"
#include "text/formatted.h"

namespace quire::fake {
namespace {

using hip::Error;

enum : Error {
  kInvalidValue = 1,
  kOutOfMemoryError = 2,
  kNoDeviceError = 100,
  kInvalidDevice = 101,
  kNoBinary = 209,
  kNotFound = 500,
  kLaunchFailure = 719
};

struct ErrorName {
  Error error;
  const char* name;
};
constexpr ErrorName kNames[] = {{0, "hipSuccess"},
                                {kInvalidValue, "hipErrorInvalidValue"},
                                {kOutOfMemoryError, "hipErrorOutOfMemory"},
                                {kNoDeviceError, "hipErrorNoDevice"},
                                {kInvalidDevice, "hipErrorInvalidDevice"},
                                {kNoBinary, "hipErrorNoBinaryForGpu"},
                                {kNotFound, "hipErrorNotFound"},
                                {kLaunchFailure, "hipErrorLaunchFailure"}};

Error say(Error error, std::string words) {
  state().last_error = error;
  state().words = std::move(words);
  return error;
}

Error planted(const char* function, Error error) {
  if (state().fails != function) return 0;
  return say(error, formatted("{} fails as it was told to", function));
}

std::string arch_of(int device) {
  const std::string& full = state().devices[static_cast<std::size_t>(device)];
  return full.substr(0, full.find(':'));
}

bool is_on_current_device(const void* address) {
  const Allocation* found = state().find(address);
  return found != nullptr && found->device == state().current;
}

Error finished(const std::string& complaint) { return complaint.empty() ? 0 : say(kLaunchFailure, complaint); }

/// What is wrong with a launch; empty: nothing.
std::string complaint_about(const Function& f, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned dynamic_shared,
                            void** arguments, void** extra) {
  constexpr unsigned kMostShared = 64 << 10;
  if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1)
    return formatted("{}: a grid of {} x {} x {}, expected n x 1 x 1", f.name, grid[0], grid[1], grid[2]);
  if (const unsigned most = most_blocks(f.name); most != 0 && grid[0] > most)
    return formatted("{}: {} blocks, it is written for {}", f.name, grid[0], most);
  if (block[0] != f.metadata.threads || block[1] != 1 || block[2] != 1)
    return formatted("{}: blocks of {} x {} x {} threads, the code object wants {} x 1 x 1", f.name, block[0], block[1], block[2],
                     f.metadata.threads);
  if (dynamic_shared + f.metadata.shared_bytes > kMostShared)
    return formatted("{}: {} bytes of shared memory", f.name, dynamic_shared + f.metadata.shared_bytes);
  if (arguments == nullptr || extra != nullptr) return formatted("{}: arguments are passed one by one", f.name);
  if (f.module->device != state().current)
    return formatted("{}: loaded for device {}, device {} is current", f.name, f.module->device, state().current);
  const std::size_t expected = parameter_bytes(f.name);
  if (f.metadata.parameters.size() != 1 || f.metadata.parameters[0] != expected)
    return formatted("{}: the code object has {} parameters, the first of {} bytes; the host has one of {}", f.name,
                     f.metadata.parameters.size(), f.metadata.parameters.empty() ? 0 : f.metadata.parameters[0], expected);
  const std::string elsewhere = pointer_elsewhere(f.name, arguments[0], is_on_current_device);
  return elsewhere.empty() ? "" : formatted("{}: {} is not in this device's memory", f.name, elsewhere);
}

/// On the stand-in, or by whoever has offered to execute code objects.
std::string run(const Function& f, unsigned blocks, const std::vector<unsigned char>& argument) {
  State& s = state();
  if (s.engine == nullptr) return run_kernel(arch_of(f.module->device), f.name, f.metadata, blocks, argument.data());
  std::array<char, 1000> words{};
  const int failed =
      s.engine(f.name.c_str(), blocks, argument.data(), argument.size(), ++s.launches, words.data(), words.size() - 1);
  return failed == 0 ? "" : words.data();
}

/// The image as a file, for an engine that wants one. Code objects end with their table of sections.
void dump(const unsigned char* image) {
  if (state().dump_to.empty()) return;
  std::uint64_t table = 0;
  std::uint16_t size = 0, count = 0;
  std::memcpy(&table, image + 40, sizeof table);
  std::memcpy(&size, image + 58, sizeof size);
  std::memcpy(&count, image + 60, sizeof count);
  std::ofstream file(formatted("{}/{}.co", state().dump_to, state().modules.size()), std::ios::binary);
  file.write(reinterpret_cast<const char*>(image), static_cast<std::streamsize>(table + std::uint64_t{size} * count));
}

Error copy(void* to, const void* from, std::size_t bytes, hip::MemcpyKind kind) {
  const bool to_device = kind == hip::kHostToDevice;
  if (bytes > 0 && ((state().find(to) != nullptr) != to_device || (state().find(from) != nullptr) == to_device))
    return say(kInvalidValue, formatted("a copy {} the device whose sides are elsewhere", to_device ? "to" : "from"));
  const std::shared_ptr<void> opened = state().open();
  if (bytes > 0) std::memcpy(to, from, bytes);
  return 0;
}

}  // namespace
}  // namespace quire::fake

#define FAKE_HIP extern "C" __attribute__((visibility("default")))

using namespace quire::fake;  // the functions below are C
using quire::formatted;
using quire::hip::Error;

/// Not AMD's: who runs kernels from now on.
FAKE_HIP void fake_hip_set_engine(quire::amd::LaunchKernel engine) { state().engine = engine; }

FAKE_HIP Error hipGetDeviceCount(int* count) {
  *count = static_cast<int>(state().devices.size());
  return *count > 0 ? 0 : say(kNoDeviceError, "no ROCm-capable device is detected");
}

FAKE_HIP Error hipGetDevicePropertiesR0600(quire::hip::DeviceProperties* to, int ordinal) {
  if (const Error e = planted("hipGetDevicePropertiesR0600", kInvalidDevice)) return e;
  if (ordinal < 0 || ordinal >= static_cast<int>(state().devices.size())) return say(kInvalidDevice, "invalid device ordinal");
  std::memset(to, 0, sizeof *to - sizeof to->reserve);
  std::strcpy(to->name, "a stand-in");
  std::strncpy(to->arch, state().devices[static_cast<std::size_t>(ordinal)].c_str(), sizeof to->arch - 1);
  to->num_compute_units = 1;  // the plan's blocks are multiples of it, and all their threads exist at once
  to->l2_bytes = 4 << 20;
  return 0;
}

FAKE_HIP Error hipGetDevice(int* ordinal) {
  *ordinal = state().current;
  return 0;
}

FAKE_HIP Error hipSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(state().devices.size())) return say(kInvalidDevice, "invalid device ordinal");
  state().current = ordinal;
  return 0;
}

FAKE_HIP Error hipModuleLoadData(quire::hip::Module* module, const void* image) {
  if (const Error e = planted("hipModuleLoadData", kNoBinary)) return e;
  Module made;
  made.device = state().current;
  if (!read_code_object(static_cast<const unsigned char*>(image), made.object)) return say(kInvalidValue, "no code object");
  if (made.object.arch != arch_of(made.device))
    return say(kNoBinary, formatted("a code object for {} on {}", made.object.arch, arch_of(made.device)));
  state().modules.push_back(std::move(made));
  dump(static_cast<const unsigned char*>(image));
  *module = &state().modules.back();
  return 0;
}

FAKE_HIP Error hipModuleGetFunction(quire::hip::Function* to, quire::hip::Module module, const char* name) {
  if (const Error e = planted("hipModuleGetFunction", kNotFound)) return e;
  const auto& from = *static_cast<const Module*>(module);
  const auto found = from.object.kernels.find(name);
  if (found == from.object.kernels.end()) return say(kNotFound, "named symbol not found");
  state().functions.push_back({&from, name, found->second});
  *to = &state().functions.back();
  return 0;
}

FAKE_HIP Error hipModuleGetGlobal(void** address, std::size_t* bytes, quire::hip::Module module, const char* name) {
  auto& from = *static_cast<Module*>(module);
  if (std::strcmp(name, "quire_contents_answer") != 0) return say(kNotFound, "named symbol not found");
  constexpr std::size_t kOutcomeBytes = 48;
  void*& at = from.variables[name];
  if (at == nullptr) at = state().allocate(kOutcomeBytes);
  *address = at;
  *bytes = kOutcomeBytes;
  return 0;
}

FAKE_HIP Error hipModuleLaunchKernel(quire::hip::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes,
                                     quire::hip::Stream stream, void** arguments, void** extra) {
  if (const Error e = planted("hipModuleLaunchKernel", kLaunchFailure)) return e;
  const Function& f = *static_cast<const Function*>(function);
  std::string complaint =
      complaint_about(f, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_shared_bytes, arguments, extra);
  if (!complaint.empty()) return say(kInvalidValue, std::move(complaint));
  const auto* from = static_cast<const unsigned char*>(arguments[0]);
  // The caller's arguments may be gone when the kernel runs.
  auto copied = std::make_shared<std::vector<unsigned char>>(from, from + f.metadata.parameters[0]);
  state().streams[stream].push_back([&f, grid_x, copied] {
    std::string e = run(f, grid_x, *copied);
    return e.empty() ? e : f.name + ": " + e;
  });
  return 0;
}

FAKE_HIP Error hipMemcpy(void* to, const void* from, std::size_t bytes, quire::hip::MemcpyKind kind) {
  if (const Error e = finished(state().drain_all())) return e;
  return copy(to, from, bytes, kind);
}

FAKE_HIP Error hipMemcpyAsync(void* to, const void* from, std::size_t bytes, quire::hip::MemcpyKind kind,
                              quire::hip::Stream stream) {
  state().streams[stream].push_back([=]() -> std::string { return copy(to, from, bytes, kind) == 0 ? "" : state().words; });
  return 0;
}

FAKE_HIP Error hipStreamSynchronize(quire::hip::Stream stream) { return finished(state().drain(stream)); }
FAKE_HIP Error hipDeviceSynchronize() { return finished(state().drain_all()); }

FAKE_HIP Error hipPointerGetAttributes(quire::hip::PointerAttributes* to, const void* address) {
  const Allocation* found = state().find(address);
  to->type = found != nullptr ? quire::hip::kDeviceMemory : 0;
  to->device = found != nullptr ? found->device : 0;
  return 0;
}

FAKE_HIP Error hipMalloc(void** address, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{512} << 20;  // limit: every byte is touched, and other processes use the machine
  if (const Error e = planted("hipMalloc", kOutOfMemoryError)) return e;
  if (bytes > kMost) return say(kOutOfMemoryError, formatted("{} bytes are more than the stand-in has", bytes));
  *address = bytes > 0 ? state().allocate(bytes) : nullptr;
  return 0;
}

FAKE_HIP Error hipStreamIsCapturing(quire::hip::Stream, int* status) {
  *status = quire::hip::kNotCapturing;
  return 0;
}
FAKE_HIP Error hipThreadExchangeStreamCaptureMode(int*) { return 0; }
FAKE_HIP Error hipHostMalloc(void** address, std::size_t bytes, unsigned) {
  static std::list<std::vector<std::byte>> memory;  // host memory, which devices use as well
  *address = memory.emplace_back(bytes).data();
  return 0;
}

FAKE_HIP Error hipFree(void* address) {
  if (const Error e = finished(state().drain_all())) return e;
  state().memory.remove_if([&](const Allocation& a) { return a.memory.data() == address; });
  return 0;
}

FAKE_HIP Error hipGetLastError() { return std::exchange(state().last_error, 0); }
FAKE_HIP const char* hipGetErrorString(Error) { return state().words.c_str(); }

FAKE_HIP const char* hipGetErrorName(Error error) {
  for (const ErrorName& row : kNames)
    if (row.error == error) return row.name;
  return "hipErrorUnknown";
}
