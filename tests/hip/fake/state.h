// SPDX-License-Identifier: Apache-2.0
// State of the fake runtime: devices, their memory, loaded modules, and enqueued work of streams that is not done yet.
//
// Device memory lies between unmapped pages, and only code on the device can access it: a host that reads it, or forgets to wait,
// is found. Enqueued work runs only when the host waits for its stream.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "amd_emulator/guarded_memory.h"
#include "amd_emulator/launcher.h"
#include "hip/fake/code_object.h"

namespace quire::fake {

struct Module {
  int device = 0;
  CodeObject object;
  std::map<std::string, void*> variables;
};

struct Function {
  const Module* module = nullptr;
  std::string name;
  KernelMetadata metadata;
};

struct Allocation {
  int device;
  amd::GuardedArray memory;
};

struct State {
  std::vector<std::string> devices;  ///< architectures, spelled like gcnArchName
  std::string fails;                 ///< the function that does
  int current = 0;
  std::list<Allocation> memory;
  std::list<Module> modules;
  std::list<Function> functions;
  std::map<void*, std::deque<std::function<std::string()>>> streams;
  amd::LaunchKernel engine = nullptr;  ///< engine that executes code objects; null: the stand-in runs their sources
  std::uint64_t launches = 0;
  std::string dump_to;  ///< a folder for the code objects that are loaded, or nothing
  int last_error = 0;
  std::string words;  ///< text of the last error

  State();
  const Allocation* find(const void* address) const;
  void* allocate(std::size_t bytes);
  /// Makes device memory accessible while it lives.
  std::shared_ptr<void> open() const;
  /// Does what was enqueued; the first complaint, or nothing.
  std::string drain(void* stream);
  std::string drain_all();
};

State& state();

}  // namespace quire::fake
