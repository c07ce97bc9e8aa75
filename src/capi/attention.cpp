// SPDX-License-Identifier: Apache-2.0
// C ABI: append, attend and merge, on Quire's threads or the caller's.
#include "quire/attention.hpp"

#include <optional>
#include <span>
#include <vector>

#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "text/formatted.h"

using quire::Code;
using quire::Status;
using quire::Tensor;
using quire::capi::CallerExecutor;
using quire::capi::guarded;
using quire::capi::require;

namespace {

/// Storage that AppendOptions points into.
struct AppendSetup {
  quire::SlotLedger* ledger = nullptr;
  std::optional<CallerExecutor> executor;
  std::vector<quire::WriteTag> tags;
  void* stream = nullptr;
};

Status read_append_options(const quire_append_options* o, AppendSetup& setup) {
  if (o == nullptr) return {};
  if (Status s = quire::capi::check_struct(o, o->struct_size, sizeof *o, "options"); !s.ok()) return s;
  auto executor = quire::capi::read_executor(o->executor);
  if (!executor.ok()) return executor.status();
  setup.executor = executor.value();
  setup.stream = o->stream;
  if (o->num_tags < 0) return {Code::invalid_argument, quire::formatted("options.num_tags: {}, expected >= 0", o->num_tags)};
  if (o->ledger == nullptr) {
    if (o->num_tags == 0) return {};
    return {Code::invalid_argument, quire::formatted("options.num_tags: {} tags, but no ledger to record them in", o->num_tags)};
  }
  setup.ledger = &o->ledger->ledger;
  if (o->num_tags == 0) return {};
  if (Status s = require({{o->requests, "options.requests"}, {o->positions, "options.positions"}}); !s.ok()) return s;
  setup.tags.reserve(static_cast<std::size_t>(o->num_tags));
  for (std::int64_t t = 0; t < o->num_tags; ++t) setup.tags.push_back({o->requests[t], o->positions[t]});
  return {};
}

struct Given {
  const quire_tensor* tensor;
  const char* name;
  bool may_be_null = false;  ///< absent then
};

/// Reads `from` into the first elements of `to`.
Status read_tensors(std::initializer_list<Given> from, std::span<Tensor> to) {
  for (std::size_t i = 0; const auto& [tensor, name, may_be_null] : from) {
    Tensor& out = to[i++];
    if (tensor == nullptr && may_be_null) continue;
    auto read = quire::capi::read_tensor(tensor, name);
    if (!read.ok()) return read.status();
    out = read.value();
  }
  return {};
}

/// attend(), prepare() and attend_status() take the same arguments.
using WithPlan = Status (*)(const quire::Plan&, const quire::Batch&, const quire::KVCache&, const quire::Options&,
                            std::span<std::byte>, const quire::AttendOptions&);

quire_code call_with_plan(WithPlan call, const quire_plan* plan, const quire_batch* batch, const quire_cache* cache,
                          const quire_options* options, void* workspace, size_t workspace_bytes,
                          const quire_attend_options* attend_options) {
  return guarded({{plan, "plan"}}, [&]() -> Status {
    if (workspace_bytes > 0)
      if (Status s = require({{workspace, "workspace"}}); !s.ok()) return s;
    auto inputs = quire::capi::read_inputs(batch, cache, options);
    if (!inputs.ok()) return inputs.status();
    auto read = quire::capi::read_call_options(attend_options);
    if (!read.ok()) return read.status();
    quire::capi::CallOptions& o = read.value();
    std::vector<quire::RowCount> rows;
    Status status =
        call(plan->plan, inputs->batch, inputs->cache, inputs->options, {static_cast<std::byte*>(workspace), workspace_bytes},
             {.executor = o.executor ? &*o.executor : nullptr,
              .rows = o.rows_written != nullptr ? &rows : nullptr,
              .stream = o.stream,
              .nan_if_refused = o.nan_if_refused,
              .prepared = o.prepared});
    if (o.rows_written != nullptr) {
      *o.rows_written = 0;
      for (const quire::RowCount& count : rows) *o.rows_written += count.rows;
    }
    return status;
  });
}

}  // namespace

extern "C" {

quire_tensor quire_contiguous(void* data, quire_dtype dtype, int32_t rank, const int64_t* shape) {
  quire_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  if (rank < 0 || rank > QUIRE_MAX_RANK) return t;
  if (shape == nullptr && rank > 0) {
    t.rank = -1;
    return t;
  }
  int64_t stride = 1;
  for (int32_t i = rank - 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    // Wraps instead of overflowing: absurd shapes are for the contract to refuse, not for this line to trip over.
    stride = static_cast<int64_t>(static_cast<uint64_t>(stride) * static_cast<uint64_t>(shape[i]));
  }
  return t;
}

quire_code quire_append(const quire_cache* cache, const quire_tensor* key, const quire_tensor* value,
                        const quire_tensor* slot_mapping, const quire_append_options* options) {
  return guarded([&]() -> Status {
    auto c = quire::capi::read_cache(cache);
    if (!c.ok()) return c.status();
    Tensor rows[3];
    if (Status s = read_tensors({{key, "key"}, {value, "value"}, {slot_mapping, "slot_mapping"}}, rows); !s.ok()) return s;
    AppendSetup setup;
    if (Status s = read_append_options(options, setup); !s.ok()) return s;
    return quire::append(c.value(), rows[0], rows[1], rows[2],
                         {.executor = setup.executor ? &*setup.executor : nullptr,
                          .ledger = setup.ledger,
                          .tags = setup.tags,
                          .stream = setup.stream});
  });
}

quire_code quire_attend(const quire_plan* plan, const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                        void* workspace, size_t workspace_bytes, const quire_attend_options* attend_options) {
  return call_with_plan(&quire::attend, plan, batch, cache, options, workspace, workspace_bytes, attend_options);
}

quire_code quire_prepare(const quire_plan* plan, const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                         void* workspace, size_t workspace_bytes, const quire_attend_options* attend_options) {
  return call_with_plan(&quire::prepare, plan, batch, cache, options, workspace, workspace_bytes, attend_options);
}

quire_code quire_attend_status(const quire_plan* plan, const quire_batch* batch, const quire_cache* cache,
                               const quire_options* options, void* workspace, size_t workspace_bytes,
                               const quire_attend_options* attend_options) {
  return call_with_plan(&quire::attend_status, plan, batch, cache, options, workspace, workspace_bytes, attend_options);
}

quire_code quire_merge(const quire_tensor* out_a, const quire_tensor* lse_a, const quire_tensor* out_b, const quire_tensor* lse_b,
                       const quire_tensor* out, const quire_tensor* lse) {
  return quire_merge_on_stream(out_a, lse_a, out_b, lse_b, out, lse, /*stream=*/nullptr);
}

quire_code quire_merge_on_stream(const quire_tensor* out_a, const quire_tensor* lse_a, const quire_tensor* out_b,
                                 const quire_tensor* lse_b, const quire_tensor* out, const quire_tensor* lse, void* stream) {
  return quire_merge_quantised(out_a, lse_a, out_b, lse_b, out, lse, /*output_scale=*/nullptr, stream);
}

quire_code quire_merge_quantised(const quire_tensor* out_a, const quire_tensor* lse_a, const quire_tensor* out_b,
                                 const quire_tensor* lse_b, const quire_tensor* out, const quire_tensor* lse,
                                 const quire_tensor* output_scale, void* stream) {
  return guarded([&]() -> Status {
    Tensor t[7];
    Status s = read_tensors({{out_a, "out_a"},
                             {lse_a, "lse_a"},
                             {out_b, "out_b"},
                             {lse_b, "lse_b"},
                             {out, "out"},
                             {lse, "lse", true},
                             {output_scale, "output_scale", true}},
                            t);
    if (!s.ok()) return s;
    return quire::merge(t[0], t[1], t[2], t[3], t[4], t[5], {.stream = stream, .output_scale = t[6]});
  });
}

quire_code quire_merge_many(const quire_tensor* outs, const quire_tensor* lses, const quire_tensor* out, const quire_tensor* lse,
                            const quire_tensor* output_scale, void* stream) {
  return guarded([&]() -> Status {
    Tensor t[5];
    Status s =
        read_tensors({{outs, "outs"}, {lses, "lses"}, {out, "out"}, {lse, "lse", true}, {output_scale, "output_scale", true}}, t);
    if (!s.ok()) return s;
    return quire::merge_many(t[0], t[1], t[2], t[3], {.stream = stream, .output_scale = t[4]});
  });
}

}  // extern "C"
