// SPDX-License-Identifier: Apache-2.0
// See machine.h.
#include "amd_emulator/machine.h"

#include <immintrin.h>
#include <ucontext.h>

#include <csetjmp>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "amd_emulator/guarded_memory.h"
#include "amd_emulator/wave.h"

namespace quire::amd {
namespace {

// One machine runs at a time; a signal handler has no other way to reach it.
sigjmp_buf g_before_step;
volatile sig_atomic_t g_in_step = 0;
std::uint64_t g_fault_address = 0;
bool g_fault_is_write = false;

/// Leaves the instruction that faulted. Faults of anybody else take their usual course: returning with the default action set
/// repeats them.
void on_fault(int signal, siginfo_t* info, void* context) {
  if (g_in_step == 0) {
    std::signal(signal, SIG_DFL);
    return;
  }
  g_fault_address = reinterpret_cast<std::uint64_t>(info->si_addr);
  constexpr greg_t kWriteBit = 2;  // write bit of the page fault's error code
  g_fault_is_write = (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
  siglongjmp(g_before_step, 1);
}

/// Handles page faults during a launch.
class FaultHandler {
 public:
  FaultHandler() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (std::size_t i = 0; i < 2; ++i) ::sigaction(kSignals[i], &action, &before_[i]);
  }
  ~FaultHandler() {
    for (std::size_t i = 0; i < 2; ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  FaultHandler(const FaultHandler&) = delete;
  FaultHandler& operator=(const FaultHandler&) = delete;

 private:
  static constexpr int kSignals[2] = {SIGSEGV, SIGBUS};
  struct sigaction before_[2] = {};
};

void call(const Step& step, const std::array<void*, 6>& all) {
  void* a[6] = {};
  int n = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    if ((step.operand >> i & 1) != 0) a[n++] = all[i];
  using F1 = void (*)(void*);
  using F2 = void (*)(void*, void*);
  using F3 = void (*)(void*, void*, void*);
  using F4 = void (*)(void*, void*, void*, void*);
  using F5 = void (*)(void*, void*, void*, void*, void*);
  using F6 = void (*)(void*, void*, void*, void*, void*, void*);
  switch (n) {
    case 1: return reinterpret_cast<F1>(step.function)(a[0]);
    case 2: return reinterpret_cast<F2>(step.function)(a[0], a[1]);
    case 3: return reinterpret_cast<F3>(step.function)(a[0], a[1], a[2]);
    case 4: return reinterpret_cast<F4>(step.function)(a[0], a[1], a[2], a[3]);
    case 5: return reinterpret_cast<F5>(step.function)(a[0], a[1], a[2], a[3], a[4]);
    default: return reinterpret_cast<F6>(step.function)(a[0], a[1], a[2], a[3], a[4], a[5]);
  }
}

enum class Turn { used_up, waits, ended, stopped };

/// Up to `turn` instructions of one wave.
Turn run_wave(const Launch& launch, Wave& wave, std::uint32_t turn, Stop& stop) {
  constexpr std::uint64_t kEnded = ~std::uint64_t{0};  // program counter that the function of s_endpgm leaves
  const auto stopped = [&](StopKind kind) {
    stop.kind = kind;
    stop.pc = wave.pc();
    stop.block = wave.block;
    stop.wave = wave.number;
    return Turn::stopped;
  };
  for (std::uint32_t i = 0; i < turn; ++i) {
    const std::uint64_t pc = wave.pc();
    if (pc == kEnded) return Turn::ended;
    const std::uint64_t word = (pc - launch.code) / 4;
    if (pc < launch.code || word >= launch.code_words) return stopped(kWild);
    const Step* step = &launch.steps[word];
    if (step->kind == kUnknown) {
      const unsigned int mode = _mm_getcsr();
      _mm_setcsr(mode & ~0x8040u);
      const int failed = launch.decode(pc);
      _mm_setcsr(mode);
      if (failed != 0 || step->kind == kUnknown) return stopped(kNotDecoded);
    }
    if (++stop.instructions > launch.instruction_limit) return stopped(kEndless);
    ++launch.executed[word];
    if (step->kind == kSkip) {
      wave.set_pc(pc + step->operand);
      continue;
    }
    g_in_step = 1;
    call(*step, wave.arguments);
    g_in_step = 0;
    if (step->kind == kCallAndWait) return Turn::waits;
  }
  return wave.pc() == kEnded ? Turn::ended : Turn::used_up;
}

/// run_wave() with faults caught. A function of its own: nothing that it holds changes between setjmp and longjmp.
Turn run_wave_guarded(const Launch& launch, Wave& wave, std::uint32_t turn, Stop& stop) {
  if (sigsetjmp(g_before_step, 1) != 0) {
    g_in_step = 0;
    stop.kind = kFault;
    stop.pc = wave.pc();
    stop.block = wave.block;
    stop.wave = wave.number;
    stop.address = g_fault_address;
    stop.is_write = g_fault_is_write ? 1 : 0;
    return Turn::stopped;
  }
  return run_wave(launch, wave, turn, stop);
}

/// The workgroups that are on the device at the moment.
class Residents {
 public:
  Residents(const Launch& launch, Random& random) : launch_(launch), random_(random) {}

  void run(Stop& stop) {
    for (;;) {
      while (groups_.size() < launch_.resident_blocks && next_block_ < launch_.blocks) admit(next_block_++);
      if (groups_.empty()) return;
      const std::size_t g = random_.below(static_cast<std::uint32_t>(groups_.size()));
      if (!run_turn(groups_[g], stop)) return;
      if (groups_[g].waves.empty()) groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(g));
    }
  }

 private:
  struct Group {
    std::unique_ptr<GuardedArray> shared;
    std::vector<std::unique_ptr<Wave>> waves;  ///< waves that have not ended
  };

  void admit(std::uint32_t block) {
    Group group;
    group.shared = std::make_unique<GuardedArray>("shared memory", launch_.shared_bytes, Against::back);
    for (std::uint32_t w = 0; w < launch_.threads / launch_.wave_size; ++w)
      group.waves.push_back(std::make_unique<Wave>(launch_, block, w, group.shared->data(), random_));
    groups_.push_back(std::move(group));
  }

  /// One wave of the group that does not wait runs for a while. False: the launch stops.
  bool run_turn(Group& group, Stop& stop) {
    std::vector<std::size_t> ready;
    for (std::size_t w = 0; w < group.waves.size(); ++w)
      if (!group.waves[w]->waits) ready.push_back(w);
    if (ready.empty()) {  // waves that have not ended are all at the barrier
      for (const std::unique_ptr<Wave>& wave : group.waves) wave->waits = false;
      return true;
    }
    const std::size_t w = ready[random_.below(static_cast<std::uint32_t>(ready.size()))];
    switch (run_wave_guarded(launch_, *group.waves[w], 1 + random_.below(launch_.longest_turn), stop)) {
      case Turn::used_up: break;
      case Turn::waits: group.waves[w]->waits = true; break;
      case Turn::ended: group.waves.erase(group.waves.begin() + static_cast<std::ptrdiff_t>(w)); break;
      case Turn::stopped: return false;
    }
    return true;
  }

  const Launch& launch_;
  Random& random_;
  std::uint32_t next_block_ = 0;
  std::vector<Group> groups_;
};

}  // namespace

extern "C" void amd_run(const Launch* launch, Stop* stop) {
  *stop = {};
  g_fault_address = 0;
  const FaultHandler handler;
  const unsigned int mode = _mm_getcsr();
  if (launch->flush_denormals != 0) _mm_setcsr(mode | 0x8040u);
  Random random(launch->seed);
  Residents(*launch, random).run(*stop);
  _mm_setcsr(mode);
}

std::uint64_t last_fault_address() { return g_fault_address; }

}  // namespace quire::amd
