// SPDX-License-Identifier: Apache-2.0
// Laws that hold for any batch whatsoever. A check returns the broken law as text, or "".
//
//   1. check() is memory-safe at every depth, and a deeper check finds no less.
//   2. If the tables are clean, plan() and attend() succeed, and with finite contents the output agrees with the fp64 reference.
//   3. If they are not, plan() refuses, with the status of the findings. For a query on a device it reads no table, and may
//      refuse with those of depth metadata.
//   4. append() and merge() succeed exactly if their checks are clean.
//   5. If the tables are clean, plan_cascade() and attend_cascade() succeed, and agree with the reference as attend() does.
//   6. Key lists keep the laws of list_laws.h.
//   7. diagnose() finds the one wrong element of an output, and reduce_case() makes a clean case of pages of the cache.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "batch_from_bytes.h"
#include "list_laws.h"
#include "quire/cascade.hpp"
#include "quire/plan.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire::fuzz {

/// How often the interesting paths were taken: a fuzzer that never gets through proves nothing.
struct Tally {
  std::int64_t clean = 0, refused = 0, compared = 0, appended = 0, merged = 0;
  std::int64_t lists_clean = 0, lists_compared = 0, cascades = 0;
};

class SerialExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 1; }
  void run(std::int64_t num_tasks, void (*task)(void*, std::int64_t, int), void* context) override {
    for (std::int64_t i = 0; i < num_tasks; ++i) task(context, i, 0);
  }
};

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};

inline std::string attend_law(FuzzBatch& f, bool contents_clean, Tally& tally) {
  PlanSettings settings;
  settings.num_threads = 1;
  const Result<Plan> planned = plan(f.batch, f.cache, f.options, settings);
  if (!planned.ok()) return "tables clean, but plan: " + planned.status().message();
  const std::size_t size = workspace_bytes(planned.value());
  const std::unique_ptr<std::byte, FreeAligned> workspace(static_cast<std::byte*>(::operator new[](size, std::align_val_t{64})));
  SerialExecutor executor;
  AttendOptions attend_options;
  attend_options.executor = &executor;
  const Status status = attend(planned.value(), f.batch, f.cache, f.options, std::span(workspace.get(), size), attend_options);
  if (!status.ok()) return "tables clean, but attend: " + status.message();
  if (!contents_clean || !f.tame_values) return {};
  const Result<Reference> expected = reference(f.batch, f.cache, f.options);
  if (!expected.ok()) return "tables clean, but reference: " + expected.status().message();
  const Comparison comparison = compare(f.batch.output, f.batch.lse, expected.value());
  ++tally.compared;
  return comparison.ok ? "" : "clean, but wrong: " + comparison.text;
}

/// `tally.cascades` counts calls whose requests share pages.
inline std::string cascade_law(FuzzBatch& f, bool contents_clean, Tally& tally) {
  const Result<Cascade> planned = plan_cascade(f.batch, f.cache, f.options, {.plan = {.num_threads = 1}, .always = true});
  if (!planned.ok()) return "tables clean, but plan_cascade: " + planned.status().message();
  const std::size_t size = workspace_bytes(planned.value());
  const std::unique_ptr<std::byte, FreeAligned> workspace(static_cast<std::byte*>(::operator new[](size, std::align_val_t{64})));
  std::memset(workspace.get(), 0xFF, size);
  SerialExecutor executor;
  const Status status =
      attend_cascade(planned.value(), f.batch, f.cache, f.options, std::span(workspace.get(), size), {.executor = &executor});
  // NaN among the data makes an lse that merge_many() refuses.
  if (!contents_clean && status.rule() == "Q-C06") return {};
  if (!status.ok()) return "tables clean, but attend_cascade: " + status.message();
  tally.cascades += planned->shared.shares();
  if (!contents_clean || !f.tame_values) return {};
  const Result<Reference> expected = reference(f.batch, f.cache, f.options);
  if (!expected.ok()) return "tables clean, but reference: " + expected.status().message();
  const Comparison comparison = compare(f.batch.output, f.batch.lse, expected.value());
  return comparison.ok ? "" : "clean, but a cascade is wrong: " + comparison.text;
}

inline std::string broken_batch_law(FuzzBatch& f, Tally& tally) {
  const Findings metadata = f.check(Depth::metadata), tables = f.check(Depth::tables), contents = f.check(Depth::contents);
  if (metadata.total > tables.total || tables.total > contents.total) return "a deeper check found less";
  // plan() knows no ledger.
  const Findings without_ledger = check(f.batch, f.cache, f.options, Depth::tables);
  if (without_ledger.ok()) {
    ++tally.clean;
    if (std::string text = attend_law(f, contents.ok(), tally); !text.empty()) return text;
    return cascade_law(f, contents.ok(), tally);
  }
  ++tally.refused;
  const Result<Plan> planned = plan(f.batch, f.cache, f.options);
  if (planned.ok()) return "plan accepts what check refuses: " + without_ledger.items.front().message;
  const std::string text = planned.status().message();
  const bool of_description =
      f.batch.query.memory != Memory::cpu && text == check(f.batch, f.cache, f.options, Depth::metadata).status().message();
  if (text != without_ledger.status().message() && !of_description) return "plan: another text: " + text;
  return {};
}

inline std::string broken_append_law(FuzzBatch& f, Tally& tally) {
  const Findings findings = f.check_append();
  SerialExecutor executor;
  AppendOptions options;
  options.executor = &executor;
  const Status status = append(f.cache, f.batch.key, f.batch.value, f.batch.slot_mapping, options);
  tally.appended += findings.ok();
  return status.ok() == findings.ok() ? "" : "append and check_append disagree: " + status.message();
}

inline std::string broken_merge_law(const FuzzMerge& m, Tally& tally) {
  const Findings findings = m.check();
  SerialExecutor executor;
  const Status status = m.merge(&executor);
  tally.merged += findings.ok();
  return status.ok() == findings.ok() ? "" : "merge and check_merge disagree: " + status.message();
}

inline std::string broken_law(std::span<const std::uint8_t> data, Tally& tally) {
  FuzzBatch batch(data);
  if (std::string text = broken_batch_law(batch, tally); !text.empty()) return text;
  SerialExecutor executor;
  if (std::string text = broken_list_law(batch, executor, tally.lists_clean, tally.lists_compared); !text.empty()) return text;
  if (std::string text = broken_append_law(batch, tally); !text.empty()) return text;
  return broken_merge_law(FuzzMerge(data), tally);
}

}  // namespace quire::fuzz
