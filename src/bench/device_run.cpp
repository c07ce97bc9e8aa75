// SPDX-License-Identifier: Apache-2.0
// bench() on a GPU: every case on the device, its variants in turns, as a replayed graph of calls.

#include <algorithm>

#include "bench/ceilings/measure.h"
#include "bench/driver.h"
#include "bench/lane.h"
#include "bench/timing.h"
#include "cases/chosen_rows.h"
#include "cases/device_case.h"
#include "device/staging.h"
#include "quire/attention.hpp"
#include "quire/plan.hpp"
#include "text/formatted.h"

namespace quire::bench_detail {
namespace {

using cases::DeviceBytes;
using cases::DeviceCase;

constexpr std::int64_t kMostCopies = 64, kFewestCalls = 4;  // a graph holds as many calls as there are copies
constexpr int kPlans = 31;

struct Gpu {
  Device device;
  quire::Memory memory = quire::Memory::cpu;
  const device::Runtime* runtime = nullptr;
  const device::BenchProbe* probe = nullptr;
};

Result<Gpu> gpu_named(const std::string& name) {
  for (const Backend backend : {Backend::cuda, Backend::hip}) {
    if (name != quire::name(backend)) continue;
    Gpu gpu;
    gpu.memory = device::memory_of(backend);
    gpu.runtime = device::runtime_of(gpu.memory);
    gpu.probe = device::bench_probe_of(gpu.memory);
    if (gpu.runtime == nullptr) return Status(Code::unsupported, formatted("bench: this build has no {} kernels", name));
    if (gpu.probe == nullptr)
      return Status(Code::unsupported, formatted("bench: this build cannot time {} devices, nor measure their ceilings", name));
    Result<Device> found = device::device_at(gpu.memory, 0);
    if (!found.ok()) return Status(found.status().code(), "bench: " + found.status().message());
    gpu.device = std::move(found).value();
    return gpu;
  }
  return Status(Code::invalid_argument, formatted("bench: no device is called '{}'; there are cpu, cuda, hip", name));
}

BenchMachine machine_of(const Device& d) {
  BenchMachine m;
  m.cpu = d.product;
  m.features = d.name;
  m.cores = d.num_threads;
  m.l2_bytes = d.l2_bytes;
  m.compiler = bench_machine().compiler;
  return m;
}

/// Makes up to `copies` copies of a case's K and V, as many as the device has memory for. The case's own K and V are not used:
/// they keep the alignment of the host's tensors, and TMA copies take up to 50 % longer if rows of 128 bytes straddle lines of
/// memory (docs/kernels/sm90_decode.md). A real cache on a device has the alignment of the device's allocator.
Result<std::vector<KVCache>> copies_of(const Case& c, const DeviceCase& there, const Gpu& gpu, std::int64_t copies,
                                       std::vector<DeviceBytes>& owners) {
  std::vector<KVCache> caches;
  while (static_cast<std::int64_t>(caches.size()) < std::clamp<std::int64_t>(copies, 1, kMostCopies)) {
    KVCache copy = there.cache();
    for (const auto& [from, to] : {std::pair{&c.cache.k, &copy.k}, std::pair{&c.cache.v, &copy.v}}) {
      if (to == &copy.v && cases::is_within(c.cache.v, c.cache.k)) {
        copy.v = cases::moved_with(there.cache().v, there.cache().k, copy.k);
        continue;
      }
      const device::ByteSpan span = device::span_of(*from);
      const auto bytes = static_cast<std::size_t>(span.end - span.begin);
      Result<DeviceBytes> made = DeviceBytes::make(*gpu.runtime, bytes);
      if (!made.ok()) return !caches.empty() ? Result<std::vector<KVCache>>(caches) : made.status();
      if (Status s = gpu.runtime->copy_to_device(made->data(), static_cast<const std::byte*>(from->data) + span.begin, bytes);
          !s.ok())
        return s;
      to->data = made->data() - span.begin;
      owners.push_back(std::move(made).value());
    }
    caches.push_back(copy);
  }
  return caches;
}

/// One variant of a case on the device: plan, workspace, and an output of its own.
class DeviceLane {
 public:
  static Result<DeviceLane> make(const DeviceCase& there, const Gpu& gpu, const BenchVariant& variant) {
    const PlanSettings settings{.kernel = variant.kernel, .batch_invariant = variant.batch_invariant};
    Result<Plan> planned = quire::plan(there.batch(), there.cache(), there.options(), settings);
    if (!planned.ok()) return planned.status();
    DeviceLane lane;
    lane.gpu_ = &gpu;
    lane.variant = variant;
    lane.batch_ = there.batch();
    lane.options_ = there.options();
    lane.plan = std::move(planned).value();
    lane.plan_seconds = seconds_of_plan(there, settings);
    const Tensor output = output_of(there.batch(), there.cache());
    for (const std::size_t bytes : {workspace_bytes(lane.plan), bytes_of(output), bytes_of(there.batch().lse)}) {
      Result<DeviceBytes> made = DeviceBytes::make(*gpu.runtime, bytes);
      if (!made.ok()) return made.status();
      lane.memory_.push_back(std::move(made).value());
    }
    lane.batch_.output = like(output, lane.memory_[1].data());
    lane.batch_.lse = like(there.batch().lse, lane.memory_[2].data());
    return lane;
  }

  /// Seconds of each of so many replays of a graph of so many calls, each on the next copy.
  Result<std::vector<double>> replay(const std::vector<KVCache>& caches, std::int64_t calls_each, int times) const {
    const auto enqueue = [&](void* stream) -> Status {
      AttendOptions how;
      how.stream = stream;
      for (std::int64_t i = 0; i < calls_each; ++i)
        if (Status s = attend(plan, batch_, caches[static_cast<std::size_t>(i) % caches.size()], options_, workspace(), how);
            !s.ok())
          return s;
      return {};
    };
    Result<std::vector<double>> seconds = gpu_->probe->replay_seconds(enqueue, times);
    if (!seconds.ok()) return seconds.status();
    // Fails unless the last call counted all rows and found no broken rule.
    if (Status s = attend_status(plan, batch_, caches[0], options_, workspace()); !s.ok()) return s;
    return seconds;
  }

  Status poison() const {
    for (const Tensor* t : {&batch_.output, &batch_.lse}) {
      const std::vector<std::byte> nan(bytes_of(*t), std::byte{0xFF});
      if (nan.empty()) continue;
      if (Status s = gpu_->runtime->copy_to_device(t->data, nan.data(), nan.size()); !s.ok()) return s;
    }
    return {};
  }

  /// The output as it is now, and whether it has the bits of the first question.
  Result<bool> fetch() {
    output_.resize(bytes_of(batch_.output));
    lse_.resize(bytes_of(batch_.lse));
    for (const auto& [from, to] : {std::pair{&batch_.output, &output_}, std::pair{&batch_.lse, &lse_}})
      if (!to->empty())
        if (Status s = gpu_->runtime->copy_to_host(to->data(), from->data, to->size()); !s.ok()) return s;
    if (first_.empty()) first_ = output_;
    return first_ == output_;
  }
  Tensor output() { return on_host(batch_.output, output_); }
  Tensor lse() { return on_host(batch_.lse, lse_); }

  BenchVariant variant;
  Plan plan;
  double plan_seconds = 0;
  std::int64_t rounds = 1;
  Timing timing{.clock = BenchClock::device};

 private:
  static std::size_t bytes_of(const Tensor& t) {
    return t.present() ? static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype)) : 0;
  }
  static Tensor like(const Tensor& t, void* data) {
    if (!t.present()) return t;
    Tensor dense = Tensor::from_shape(data, t.dtype, t.shape, t.rank);
    dense.memory = t.memory;
    return dense;
  }
  static Tensor on_host(const Tensor& t, std::vector<std::byte>& bytes) {
    return t.present() ? Tensor::from_shape(bytes.data(), t.dtype, t.shape, t.rank) : t;
  }
  static double seconds_of_plan(const DeviceCase& there, const PlanSettings& settings) {
    std::vector<double> seconds;
    for (int i = 0; i < kPlans; ++i) {
      const Moment begin = Moment::begin();
      const Result<Plan> planned = quire::plan(there.batch(), there.cache(), there.options(), settings);
      seconds.push_back(sample_between(begin, Moment::end(), 1, 1).seconds);
    }
    return median(std::move(seconds));
  }
  std::span<std::byte> workspace() const { return {memory_[0].data(), workspace_bytes(plan)}; }

  const Gpu* gpu_ = nullptr;
  Batch batch_;
  Options options_;
  std::vector<DeviceBytes> memory_;
  std::vector<std::byte> output_, lse_, first_;
};

Status run_block(DeviceLane& lane, const std::vector<KVCache>& caches, std::int64_t calls) {
  if (Status s = lane.poison(); !s.ok()) return s;
  Result<std::vector<double>> seconds = lane.replay(caches, calls, static_cast<int>(lane.rounds));
  if (!seconds.ok()) return seconds.status();
  lane.timing.calls += calls * lane.rounds;
  lane.timing.blocks.push_back(median(std::move(seconds).value()) / static_cast<double>(calls));
  const Result<bool> same = lane.fetch();
  if (!same.ok()) return same.status();
  lane.timing.same_bits = lane.timing.same_bits && same.value();
  return {};
}

void time_in_turns(std::vector<DeviceLane>& lanes, const std::vector<KVCache>& caches, double seconds,
                   const std::function<bool()>& keep_going) {
  const std::int64_t calls = std::max(kFewestCalls, static_cast<std::int64_t>(caches.size()));
  for (DeviceLane& lane : lanes) {
    Result<std::vector<double>> probe = lane.replay(caches, calls, 3);
    if (!probe.ok()) lane.timing.status = probe.status();
    if (!probe.ok()) continue;
    const double graph = std::max(1e-6, median(std::move(probe).value()));
    lane.rounds = std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds / static_cast<double>(kBlocks) / graph), 1, 1000);
  }
  in_turns(lanes.size(), keep_going, [&](std::size_t i, std::size_t) {
    if (lanes[i].timing.status.ok()) lanes[i].timing.status = run_block(lanes[i], caches, calls);
  });
}

BenchResult result_of(DeviceLane& lane, const BenchCaseResult& of, const Expected* expected, const Problem& problem) {
  lane.timing.seconds = interval_of(lane.timing.blocks);
  BenchResult r = timed_result(lane.variant, lane.plan, lane.timing, of, problem);
  r.plan_seconds = lane.plan_seconds;
  if (expected != nullptr && r.status != BenchStatus::wrong && !lane.timing.blocks.empty())
    judge(r, *expected, lane.output(), lane.lse(), cases::rounded_rows(lane.plan, problem));
  return r;
}

Result<BenchCaseResult> run_case_on(const Gpu& gpu, const Entry& entry, const std::vector<BenchVariant>& variants,
                                    const BenchOptions& options, const Say& say) {
  if (!say("making the data")) return BenchCaseResult{};
  const Result<Case> c = case_of(entry);
  if (!c.ok()) return c.status();
  const Result<DeviceCase> there = DeviceCase::upload(c.value(), gpu.memory);
  if (!there.ok()) return there.status();
  std::vector<DeviceBytes> owners;
  const Result<std::vector<KVCache>> caches = copies_of(c.value(), there.value(), gpu, entry.copies, owners);
  if (!caches.ok()) return caches.status();
  BenchCaseResult result = untimed(entry, std::ssize(caches.value()));
  std::vector<DeviceLane> lanes = lanes_of<DeviceLane>(
      variants, [&](const BenchVariant& variant) { return DeviceLane::make(there.value(), gpu, variant); }, result);
  time_in_turns(lanes, caches.value(), options.seconds, [&] { return say("timing on the device"); });
  std::optional<Expected> expected;
  if (options.verify && !lanes.empty() && say("fp64 reference")) {
    Result<Expected> made = Expected::make(c.value(), entry.problem, entry.seed);
    if (!made.ok()) return made.status();
    expected = std::move(made).value();
  }
  for (DeviceLane& lane : lanes)
    result.results.push_back(result_of(lane, result, expected ? &*expected : nullptr, entry.problem));
  return result;
}

}  // namespace

Result<BenchReport> run_on_device(std::span<const BenchInput> inputs, const BenchOptions& options) {
  if (!options.threads.empty()) return Status(Code::invalid_argument, "bench: threads are for the CPU; a GPU is timed whole");
  const Result<Gpu> gpu = gpu_named(options.device);
  if (!gpu.ok()) return gpu.status();
  BenchReport report;
  report.machine = machine_of(gpu->device);
  const std::int64_t cold = cold_bytes(report.machine);
  const Result<std::vector<Entry>> made = entries_of(inputs, report.machine.l2_bytes, cold);
  if (!made.ok()) return made.status();
  const std::vector<Entry>& entries = made.value();
  std::vector<std::int64_t> sets;
  for (const Entry& entry : entries) sets.push_back(entry.working_set());
  BenchOptions whole = options;
  whole.threads = {kWholeDevice};
  const std::vector<BenchVariant> variants = variants_of(whole, 1);
  const std::vector<std::int64_t> rungs = rungs_for(sets, cold);
  return run_all(
      std::move(report), entries, options,
      {.whose = "the device's",
       .ceilings = [&]() -> Result<std::vector<Ceilings>> {
         Result<Ceilings> measured = measure_device_ceilings(*gpu->runtime, *gpu->probe, rungs);
         if (!measured.ok()) return measured.status();
         return std::vector<Ceilings>{std::move(measured).value()};
       },
       .run_case = [&](const Entry& entry, const Say& say) { return run_case_on(gpu.value(), entry, variants, options, say); }});
}

}  // namespace quire::bench_detail
