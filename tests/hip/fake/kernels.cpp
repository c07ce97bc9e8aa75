// SPDX-License-Identifier: Apache-2.0
// See kernels.h.
#include "hip/fake/kernels.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/gpu/runtime.h"

#include "backend/gpu/append.h"
#include "backend/gpu/append_four_bits.h"
#include "backend/gpu/attend_generic.h"
#include "backend/gpu/check_contents.h"
#include "backend/gpu/fill_rows.h"
#include "backend/gpu/merge.h"
#include "backend/gpu/reset.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"
#include "simt/machine.h"
#include "simt/matrix_gpu.h"

namespace quire::fake {
namespace {

using gpu::AppendArgs;
using gpu::AttendArgs;
using gpu::GenericArgs;
using gpu::MergeArgs;
using gpu::MergeManyArgs;
using gpu::ResetArgs;

struct Model {
  std::string_view name;
  std::size_t bytes;
  /// Blocks wait for each other's work, so that all must be there at once; others run a few at a time.
  bool together;
  unsigned most_blocks;  ///< most blocks that the kernel allows; 0: any number
  void (*run)(const void* argument);
};

constexpr Model kPortable[] = {
    {"quire_reset", sizeof(ResetArgs), false, 1, [](const void* a) { gpu::reset(*static_cast<const ResetArgs*>(a)); }},
    {"quire_validate", sizeof(AttendArgs), false, 0,
     [](const void* a) { gpu::validate(*static_cast<const AttendArgs*>(a), gpu::block_index(), gpu::num_blocks()); }},
    {"quire_schedule", sizeof(AttendArgs), true, 1,
     [](const void* a) { gpu::schedule(*static_cast<const AttendArgs*>(a), gpu::SharedArea()); }},
    {"quire_attend_generic", sizeof(GenericArgs), true, 0,
     [](const void* a) { gpu::attend_generic(*static_cast<const GenericArgs*>(a), gpu::SharedArea()); }},
    {"quire_fill_rows", sizeof(AttendArgs), false, 0, [](const void* a) { gpu::fill_rows(*static_cast<const AttendArgs*>(a)); }},
    {"quire_validate_slots", sizeof(AppendArgs), false, 0,
     [](const void* a) { gpu::validate_slots(*static_cast<const AppendArgs*>(a)); }},
    {"quire_append", sizeof(AppendArgs), false, 0, [](const void* a) { gpu::append(*static_cast<const AppendArgs*>(a)); }},
    {"quire_append_four_bits", sizeof(AppendArgs), false, 0,
     [](const void* a) { gpu::append_four_bits(*static_cast<const AppendArgs*>(a)); }},
    {"quire_merge", sizeof(MergeArgs), false, 0, [](const void* a) { gpu::merge(*static_cast<const MergeArgs*>(a)); }},
    {"quire_merge_many", sizeof(MergeManyArgs), false, 0,
     [](const void* a) { gpu::merge_many(*static_cast<const MergeManyArgs*>(a)); }},
    {"quire_check_contents", sizeof(GenericArgs), false, 0,
     [](const void* a) { gpu::check_contents(*static_cast<const GenericArgs*>(a)); }},
};

const simt::MatrixGpu* matrix_gpu(const std::string& arch) {
  for (const simt::MatrixGpu* gpu : {&simt::kGfx942, &simt::kGfx1100, &simt::kGfx1201})
    if (arch == gpu->name) return gpu;
  return nullptr;
}

/// A row of matrix_kernels.inc.
struct MatrixRow {
  std::string_view name, shape;
  DType type;
  int head_dim;
};
constexpr DType kType_F16 = DType::f16, kType_Bf16 = DType::bf16;
constexpr MatrixRow kMatrixRows[] = {
#define QUIRE_MATRIX_KERNEL(name, shape, type, head_dim, tile_rows, tile_keys) {#name, #shape, kType_##type, head_dim},
#include "backend/hip/matrix_kernels.inc"
#undef QUIRE_MATRIX_KERNEL
};

const MatrixRow* matrix_row(std::string_view name) {
  for (const MatrixRow& row : kMatrixRows)
    if (row.name == name) return &row;
  return nullptr;
}

const simt::MatrixKernel* matrix_kernel(const std::string& arch, std::string_view name) {
  const simt::MatrixGpu* gpu = matrix_gpu(arch);
  const MatrixRow* row = matrix_row(name);
  if (gpu == nullptr || row == nullptr) return nullptr;
  for (const simt::MatrixKernel& kernel : gpu->kernels)
    if (kernel.tall == (row->shape == "tall") && kernel.type == row->type && kernel.head_dim == row->head_dim) return &kernel;
  return nullptr;
}

const Model* portable(std::string_view name) {
  for (const Model& model : kPortable)
    if (model.name == name) return &model;
  return nullptr;
}

std::string run_blocks(const KernelMetadata& metadata, unsigned blocks, bool together, const std::function<void()>& kernel) {
  constexpr unsigned kAtOnce = 4;
  for (unsigned first = 0; first < blocks; first += together ? blocks : kAtOnce) {
    simt::Launch launch;
    launch.blocks = static_cast<int>(together ? blocks : std::min(kAtOnce, blocks - first));
    launch.first_block = static_cast<int>(first);
    launch.grid = static_cast<int>(blocks);
    launch.threads = static_cast<int>(metadata.threads);
    launch.wave = static_cast<int>(metadata.wave);
    launch.shared_bytes = static_cast<int>(metadata.shared_bytes);
    if (std::string e = simt::run(launch, kernel); !e.empty()) return e;
  }
  return {};
}

}  // namespace

std::string run_kernel(const std::string& arch, const std::string& kernel, const KernelMetadata& metadata, unsigned blocks,
                       const void* argument) {
  if (const Model* model = portable(kernel)) return run_blocks(metadata, blocks, model->together, [&] { model->run(argument); });
  const simt::MatrixKernel* matrix = matrix_kernel(arch, kernel);
  if (matrix == nullptr) return "the stand-in has no matrix unit of " + arch;
  return run_blocks(metadata, blocks, true, [&] { matrix->run(*static_cast<const AttendArgs*>(argument)); });
}

std::size_t parameter_bytes(const std::string& kernel) {
  if (const Model* model = portable(kernel)) return model->bytes;
  return matrix_row(kernel) != nullptr ? sizeof(AttendArgs) : 0;
}

unsigned most_blocks(const std::string& kernel) {
  const Model* model = portable(kernel);
  return model != nullptr ? model->most_blocks : 0;
}

std::string pointer_elsewhere(const std::string& kernel, const void* argument, IsDeviceMemory is_device_memory) {
  std::vector<std::pair<const char*, const void*>> pointers;
  if (kernel == "quire_append" || kernel == "quire_append_four_bits") {
    const auto& a = *static_cast<const AppendArgs*>(argument);
    pointers = {{"key", a.key.data},
                {"value", a.value.data},
                {"cache.k", a.cache_k.data},
                {"cache.v", a.cache_v.data},
                {"slots", a.slots.data},
                {"k_block_scale", a.k_block_scale.data},
                {"v_block_scale", a.v_block_scale.data}};
  } else if (kernel == "quire_merge") {
    const auto& a = *static_cast<const MergeArgs*>(argument);
    pointers = {{"out_a", a.out_a.data}, {"out_b", a.out_b.data}, {"lse_a", a.lse_a.data},
                {"lse_b", a.lse_b.data}, {"out", a.out.data},     {"lse", a.lse.data}};
  } else if (kernel == "quire_reset") {
    pointers = {{"state", static_cast<const ResetArgs*>(argument)->state}};
  } else {
    const auto& a = *static_cast<const AttendArgs*>(argument);
    pointers = {{"query", a.query.data},
                {"cache.k", a.cache_k.data},
                {"cache.v", a.cache_v.data},
                {"output", a.output},
                {"lse", a.lse},
                {"outcome", a.outcome},
                {"seq_lens", a.seq_lens.data},
                {"query_start_loc", a.query_start_loc.data},
                {"block_table", a.block_table.data},
                {"slices", a.work.slices},
                {"partial_acc", a.work.max_partials > 0 ? a.work.partial_acc : nullptr}};
    if (parameter_bytes(kernel) == sizeof(GenericArgs)) {
      const auto& generic = *static_cast<const GenericArgs*>(argument);
      pointers.emplace_back("k_block_scale", generic.k_blocks.scales.data);
      pointers.emplace_back("v_block_scale", generic.v_blocks.scales.data);
    }
  }
  for (const auto& [name, address] : pointers)
    if (address != nullptr && !is_device_memory(address)) return name;
  return {};
}

}  // namespace quire::fake
