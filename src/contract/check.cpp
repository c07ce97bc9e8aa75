// The entry points: which rule families apply to which call, and in what order.
#include <array>
#include <exception>

#include "contract/context.h"

namespace quire {
namespace {

using contract::Context;
using contract::NamedTensor;
using contract::Report;

constexpr std::string_view kRequired[] = {"query", "output", "query_start_loc", "seq_lens", "block_table", "cache.k", "cache.v"};

void apply_to_batch(Context& c, Depth depth) {
  const Batch& b = c.batch;
  const std::array<NamedTensor, 17> tensors{{{"query", &b.query},
                                             {"output", &b.output},
                                             {"query_start_loc", &b.query_start_loc},
                                             {"seq_lens", &b.seq_lens},
                                             {"block_table", &b.block_table},
                                             {"cached_lens", &b.cached_lens},
                                             {"key", &b.key},
                                             {"value", &b.value},
                                             {"slot_mapping", &b.slot_mapping},
                                             {"lse", &b.lse},
                                             {"request_ids", &b.request_ids},
                                             {"cache.k", &c.cache.k},
                                             {"cache.v", &c.cache.v},
                                             {"k_scale", &c.cache.k_scale},
                                             {"v_scale", &c.cache.v_scale},
                                             {"alibi_slopes", &c.options.alibi_slopes},
                                             {"sinks", &c.options.sinks}}};
  apply_tensor_rules(c.report, tensors, kRequired);
  apply_shape_rules(c, tensors);
  apply_option_rules(c);
  if (depth < Depth::tables) return;
  apply_table_rules(c);
  apply_scale_rules(c);
}

/// Memory may run out while findings are collected; that must not look like "no findings".
template <typename Apply>
Findings collect(Apply&& apply) noexcept {
  try {
    Report report;
    apply(report);
    return report.take();
  } catch (const std::exception&) {
    Findings failed;
    failed.total = 1;
    return failed;
  }
}

}  // namespace

Findings check(const Batch& batch, const KVCache& cache, const Options& options, Depth depth, const SlotLedger* ledger) {
  return collect([&](Report& report) {
    Context context{batch, cache, options, ledger, report};
    apply_to_batch(context, depth);
  });
}

}  // namespace quire
