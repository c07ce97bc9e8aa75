// SPDX-License-Identifier: Apache-2.0
// C ABI: the ledger, check() and its findings.
#include "quire/contract.hpp"

#include <memory>
#include <utility>

#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "text/formatted.h"

using quire::Code;
using quire::Status;
using quire::capi::guarded;
using quire::capi::require;

namespace {

static_assert(QUIRE_DEPTH_METADATA == static_cast<int>(quire::Depth::metadata) &&
              QUIRE_DEPTH_TABLES == static_cast<int>(quire::Depth::tables) &&
              QUIRE_DEPTH_CONTENTS == static_cast<int>(quire::Depth::contents));

Status within(const char* name, std::int64_t value, std::int64_t end) {
  if (value >= 0 && value < end) return {};
  return {Code::invalid_argument, quire::formatted("{}: {} outside [0, {})", name, value, end)};
}

}  // namespace

extern "C" {

quire_code quire_ledger_create(int64_t num_pages, int64_t page_size, quire_ledger** out) {
  return guarded({{out, "out"}}, [&]() -> Status {
    *out = nullptr;
    quire::Result<quire::SlotLedger> made = quire::SlotLedger::create(num_pages, page_size);
    if (!made.ok()) return made.status();
    *out = new quire_ledger{std::move(made).value()};
    return {};
  });
}

void quire_ledger_free(quire_ledger* ledger) { delete ledger; }

quire_code quire_ledger_begin_step(quire_ledger* ledger, int64_t step) {
  return guarded({{ledger, "ledger"}}, [&]() -> Status {
    if (step < ledger->step)
      return {Code::invalid_argument, quire::formatted("step: {}, expected at least the current step {}", step, ledger->step)};
    ledger->ledger.begin_step(step);
    ledger->step = step;
    return {};
  });
}

quire_code quire_ledger_record(quire_ledger* ledger, int64_t slot, int64_t request, int64_t position) {
  return guarded({{ledger, "ledger"}}, [&]() -> Status {
    const quire::SlotLedger& l = ledger->ledger;
    if (Status s = within("slot", slot, l.num_pages() * l.page_size()); !s.ok()) return s;
    ledger->ledger.record(slot, {request, position});
    return {};
  });
}

quire_code quire_ledger_share(quire_ledger* ledger, int64_t page, int64_t request) {
  return guarded({{ledger, "ledger"}}, [&]() -> Status {
    if (Status s = within("page", page, ledger->ledger.num_pages()); !s.ok()) return s;
    ledger->ledger.share(page, request);
    return {};
  });
}

quire_code quire_ledger_recycle(quire_ledger* ledger, int64_t page) {
  return guarded({{ledger, "ledger"}}, [&]() -> Status {
    if (Status s = within("page", page, ledger->ledger.num_pages()); !s.ok()) return s;
    ledger->ledger.recycle(page);
    return {};
  });
}

quire_code quire_check(const quire_batch* batch, const quire_cache* cache, const quire_options* options, quire_depth depth,
                       const quire_ledger* ledger, quire_findings** findings) {
  if (findings != nullptr) *findings = nullptr;
  return guarded([&]() -> Status {
    auto inputs = quire::capi::read_inputs(batch, cache, options);
    if (!inputs.ok()) return inputs.status();
    if (Status s = within("depth", depth, QUIRE_DEPTH_CONTENTS + 1); !s.ok()) return s;
    auto result = std::make_unique<quire_findings>();
    // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): within() has refused what is no Depth
    result->findings = quire::check(inputs->batch, inputs->cache, inputs->options, static_cast<quire::Depth>(depth),
                                    ledger != nullptr ? &ledger->ledger : nullptr);
    Status status = result->findings.status();
    if (findings != nullptr) *findings = result.release();
    return status;
  });
}

int64_t quire_findings_count(const quire_findings* findings) {
  const quire_code code = guarded([&] { return require({{findings, "findings"}}); });
  return code == QUIRE_OK ? static_cast<int64_t>(findings->findings.items.size()) : -1;
}

int64_t quire_findings_total(const quire_findings* findings) {
  const quire_code code = guarded([&] { return require({{findings, "findings"}}); });
  return code == QUIRE_OK ? findings->findings.total : -1;
}

quire_code quire_findings_get(const quire_findings* findings, int64_t i, quire_finding* out) {
  return guarded({{findings, "findings"}, {out, "out"}}, [&]() -> Status {
    const auto& items = findings->findings.items;
    if (Status s = within("i", i, static_cast<std::int64_t>(items.size())); !s.ok()) return s;
    const quire::Finding& f = items[static_cast<std::size_t>(i)];
    *out = {.rule = f.rule.c_str(),
            .tensor = f.tensor.c_str(),
            .value = f.value.c_str(),
            .expected = f.expected.c_str(),
            .message = f.message.c_str(),
            .index = f.index.data(),
            .num_indices = static_cast<std::int64_t>(f.index.size())};
    return {};
  });
}

void quire_findings_free(quire_findings* findings) { delete findings; }

}  // extern "C"
