// SPDX-License-Identifier: Apache-2.0
// One named line per PTX instruction of Hopper (sm_90a) that the sm90 kernels use: mbarriers, tensor copies (TMA) and wgmma (PTX
// ISA 8.x, "mbarrier", "cp.async.bulk.tensor", "Asynchronous warpgroup level matrix instructions").
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/ptx.h"

namespace quire::cuda::hopper {

using Barrier = std::uint64_t;

__device__ inline void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx::shared_address(barrier)), "r"(arrivals));
}
/// Makes initialised barriers known to the copy engine.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx::shared_address(barrier)) : "memory");
}
/// Arrives `count` times.
__device__ inline void arrive(Barrier* barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(ptx::shared_address(barrier)), "r"(count) : "memory");
}
/// Arrives, and lets the phase end only after `bytes` more have been copied.
__device__ inline void arrive_and_expect(Barrier* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx::shared_address(barrier)), "r"(bytes)
               : "memory");
}
/// Returns once the phase with this parity is over.
__device__ inline void wait(Barrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(ptx::shared_address(barrier)),
      "r"(parity)
      : "memory");
}

constexpr std::uint16_t kBoth = 3;                            ///< blocks of a cluster of two
constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;  ///< result of createpolicy.fractional.L2::evict_first for 1.0

/// A box of a 4-dimensional tensor to shared memory; counts its bytes on `barrier`.
__device__ inline void copy_box(void* shared, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
          ptx::shared_address(shared)),
      "l"(map), "r"(ptx::shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
/// Copies a box whose bytes are the first to leave L2: no block reads them again, and what else is there (instructions above all)
/// is needed again.
__device__ inline void copy_box_once(void* shared, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], "
      "[%2], %7;" ::"r"(ptx::shared_address(shared)),
      "l"(map), "r"(ptx::shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(kEvictFirst)
      : "memory");
}
/// Copies a box of a 5-dimensional tensor.
__device__ inline void copy_box_once(void* shared, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3,
                                     int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2], %8;" ::"r"(ptx::shared_address(shared)),
      "l"(map), "r"(ptx::shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(kEvictFirst)
      : "memory");
}
/// Copies a box to both blocks of a cluster of two, at one place, counted on the barriers at one place.
__device__ inline void copy_box_to_pair(void* shared, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, "
      "%6}], [%2], %7;" ::"r"(ptx::shared_address(shared)),
      "l"(map), "r"(ptx::shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(kBoth)
      : "memory");
}

/// Copies a box of a 5-dimensional tensor.
__device__ inline void copy_box_to_pair(void* shared, const CUtensorMap* map, Barrier* barrier, int c0, int c1, int c2, int c3,
                                        int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, "
      "%6, %7}], [%2], %8;" ::"r"(ptx::shared_address(shared)),
      "l"(map), "r"(ptx::shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(kBoth)
      : "memory");
}

/// A box of shared memory to a 4-dimensional tensor, as part of the thread's open group of writes.
__device__ inline void write_box(const CUtensorMap* map, int c0, int c1, int c2, int c3, const void* shared) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(ptx::shared_address(shared)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
__device__ inline void commit_writes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until this thread's writes have read their shared memory.
__device__ inline void await_reads_of_writes() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Waits until this thread's writes are done.
__device__ inline void await_writes() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Four 8x8 matrices of 16 bits, of which each thread has a pair (row lane / 4, columns 2 (lane % 4) and the next); lane l says
/// where row l % 8 of matrix l / 8 goes.
__device__ inline void store_matrices(std::uint32_t row, const std::uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(pairs[0]), "r"(pairs[1]),
               "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// --- clusters; `rank` is of a block in its cluster, and the shared memory of all blocks is laid out alike ---

__device__ inline int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Barrier of all threads of the cluster.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The two halves of a barrier of the cluster that orders nothing but what fence_barrier_init() made known.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void wait_at_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// Address in block `rank` of `shared` of this block.
__device__ inline std::uint32_t address_in_cluster(const void* shared, int rank) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(ptx::shared_address(shared)), "r"(rank));
  return address;
}
/// Orders nothing beyond this block: for memory that was only read. (With .release.cluster, 17 % of prefill's time was spent in
/// it.)
__device__ inline void arrive_in_cluster(Barrier* barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_cluster(barrier, rank)) : "memory");
}
/// Writes `value` to where `to` is in block `rank`; counts 4 bytes on its barrier.
__device__ inline void send(int* to, int value, Barrier* barrier, int rank) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address_in_cluster(to, rank)),
               "r"(value), "r"(address_in_cluster(barrier, rank))
               : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

/// Ordinary writes to shared memory before it are seen by copies and wgmma after it (and after a barrier).
__device__ inline void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Orders this thread's writes before and after it, and its reads, for all threads of the device. __threadfence() is more (one
/// order of all such fences), and takes longer.
__device__ inline void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Adds 1, or returns to 0 where `last` is reached, and returns the value before. Writes of other threads before their count,
/// with a fence between, are visible afterwards.
__device__ inline std::int32_t count(std::int32_t* counter, std::int32_t last) {
  std::int32_t before;
  asm volatile("atom.acquire.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

/// Barrier `id` (1 to 15) among `threads` threads of the block.
template <int kId, int kThreads>
__device__ inline void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

/// Barrier `id` among `threads` threads: arrive and wait, or arrive alone.
__device__ inline void sync_at(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ inline void arrive_at(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/// Returns, in all threads, whether `mine` is true in all.
__device__ inline bool all_at(int id, int threads, bool mine) {
  int all;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "bar.red.and.pred p, %1, %2, p;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return all != 0;
}

/// The warpgroup gives up registers, or takes what others gave up; each thread has kCount afterwards.
template <int kCount>
__device__ inline void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// --- wgmma ---

/// Swizzle of an operand's rows in shared memory.
enum class Swizzle : std::uint64_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };

/// Matrix descriptor: `stride` bytes from one group of 8 rows to the next, `along` bytes from one `Swizzle`-long part of the rows
/// (16 bytes where there is none) to the next, if they are longer than one.
__device__ inline std::uint64_t matrix(Swizzle swizzle, const void* shared, std::uint32_t stride, std::uint32_t along = 16) {
  const std::uint64_t address = (ptx::shared_address(shared) & 0x3FFFFu) >> 4;
  return address | static_cast<std::uint64_t>(along >> 4) << 16 | static_cast<std::uint64_t>(stride >> 4) << 32 |
         static_cast<std::uint64_t>(swizzle) << 62;
}
template <Swizzle kSwizzle>
__device__ inline std::uint64_t matrix(const void* shared, std::uint32_t stride, std::uint32_t along = 16) {
  return matrix(kSwizzle, shared, stride, along);
}
__device__ inline std::uint64_t advanced(std::uint64_t matrix, int bytes) {
  return matrix + static_cast<std::uint64_t>(bytes >> 4);
}

/// `x`, which is the same in all threads of a warp, in a way that tells ptxas so: it computes what follows from it (matrix
/// descriptors, which wgmma takes from there) in uniform registers, if the loops around have uniform bounds, too.
__device__ inline int uniform(int x) { return static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(x))); }

/// Makes the compiler compute values that follow from `x` here, and not before a loop: the loop has no registers for them.
__device__ inline void compute_here(std::uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ inline void compute_here(int& x) { asm volatile("" : "+r"(x)); }

/// Registers written before are seen by the wgmma that follow.
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

}  // namespace quire::cuda::hopper
