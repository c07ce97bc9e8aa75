// AMX needs the instructions, an operating system that saves the tiles, and its permission for this process.
#include "bench/ceilings/loops.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire::benchmark {

#if defined(__x86_64__) && defined(__linux__)
namespace {

bool processor_has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || ((c >> 27) & 1u) == 0) return false;  // OSXSAVE
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr std::uint32_t kTileState = 3u << 17;  // XTILECFG, XTILEDATA
  if ((low & kTileState) != kTileState) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return ((d >> 22) & 1u) != 0 && ((d >> 24) & 1u) != 0;  // AMX-BF16, AMX-TILE
}

/// Linux hands tile registers out on request (Documentation/arch/x86/xstate.rst). Granted to all threads of the process.
bool system_grants_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool amx_permitted() {
  static const bool permitted = processor_has_amx_bf16() && system_grants_tiles();
  return permitted;
}
#else
bool amx_permitted() { return false; }
#endif

}  // namespace quire::benchmark
