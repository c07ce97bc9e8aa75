// SPDX-License-Identifier: Apache-2.0
// C ABI: from the plain structs of quire.h to the C++ types and back. Every number is checked before it becomes an enum.
#pragma once

#include "capi/guard.h"
#include "quire/batch.hpp"
#include "quire/executor.hpp"
#include "quire/plan.hpp"
#include "quire/status.hpp"

namespace quire::capi {

struct Inputs {
  Batch batch;
  KVCache cache;
  Options options;
};
/// `options` may be null. Fails with invalid_argument or unsupported, naming the member.
Result<Inputs> read_inputs(const quire_batch* batch, const quire_cache* cache, const quire_options* options);
Result<KVCache> read_cache(const quire_cache* cache);
Result<Tensor> read_tensor(const quire_tensor* tensor, const char* name);
/// Null gives the defaults.
Result<PlanSettings> read_settings(const quire_plan_settings* settings);

quire_tensor to_c(const Tensor& tensor);
/// Fill the members of a struct that was started with its initialiser; its struct_size stays.
Status write_batch(const Batch& from, quire_batch* to);
Status write_cache(const KVCache& from, quire_cache* to);
Status write_options(const Options& from, quire_options* to);

/// invalid_argument or unsupported unless struct_size is plausible and the bytes past what this library knows are zero.
Status check_struct(const void* bytes, std::size_t struct_size, std::size_t known_size, const char* name);

/// The caller's threads behind the C++ interface.
class CallerExecutor final : public Executor {
 public:
  explicit CallerExecutor(const quire_executor& executor) : executor_(executor) {}
  int num_threads() const noexcept override { return executor_.num_threads; }
  void run(std::int64_t num_tasks, void (*task)(void*, std::int64_t, int), void* context) override {
    executor_.run(executor_.context, num_tasks, task, context);
  }

 private:
  quire_executor executor_;
};
/// Null gives an empty optional: Quire's own pool.
Result<std::optional<CallerExecutor>> read_executor(const quire_executor* executor);

/// quire_attend_options, read.
struct CallOptions {
  std::optional<CallerExecutor> executor;
  std::int64_t* rows_written = nullptr;
  void* stream = nullptr;
  bool nan_if_refused = false;
  bool prepared = false;
};
/// Null gives the defaults.
Result<CallOptions> read_call_options(const quire_attend_options* options);

}  // namespace quire::capi
