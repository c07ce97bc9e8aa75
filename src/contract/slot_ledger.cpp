// SPDX-License-Identifier: Apache-2.0
// Record of each slot: writer, position, step, whether the page went back to the pool since; with digests, what was written.
#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch/caught.h"
#include "batch/fields.h"
#include "contract/values.h"
#include "device/staging.h"
#include "quire/contract.hpp"
#include "semantics/index_tensor.h"
#include "semantics/stored_row.h"
#include "text/formatted.h"

namespace quire {
namespace {

/// 24 bytes a slot: `stamp` is step * 2 + recycled.
struct Record {
  std::int64_t request = -1;
  std::int64_t position = -1;
  std::int64_t stamp = -2;
};

/// A cache of one page, which is a view in host memory and a copy of a device's page.
Result<KVCache> page_of(const KVCache& cache, std::int64_t page, device::Staging& staging) {
  KVCache one = cache;
  Status staged;
  const auto narrow = [&](const batch::TensorField& /*field*/, Tensor& t) {
    if (t.rank < 3 || !staged.ok()) return;  // scales of a tensor or head
    t.data = static_cast<std::byte*>(t.data) + page * t.stride[0] * itemsize(t.dtype);
    t.shape[0] = 1;
    staged = staging.stage(t);
  };
  batch::for_each_tensor(narrow, batch::CachePart{one});
  if (!staged.ok()) return staged;
  return one;
}

constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;  // keeps num_pages * page_size far from overflow

}  // namespace

struct SlotLedger::State {
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
  std::int64_t step = 0;
  std::int64_t writes = 0;
  std::atomic<std::int64_t> reads{0};  ///< atomic, because const checks may run at once
  std::vector<Record> slots;
  std::vector<Digest> digests;                                          ///< digest of each slot; empty: digests are not kept
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> readers;  ///< page -> requests that the page was shared with

  bool has_page(std::int64_t page) const noexcept { return page >= 0 && page < num_pages; }
  bool has_slot(std::int64_t slot) const noexcept { return slot >= 0 && slot < static_cast<std::int64_t>(slots.size()); }
};

SlotLedger::SlotLedger(std::int64_t num_pages, std::int64_t page_size, bool digests) : state_(new State) {
  if (Result<SlotLedger> made = create(num_pages, page_size, digests); made.ok()) *this = std::move(made).value();
}

SlotLedger::SlotLedger(State* state) noexcept : state_(state) {}

Result<SlotLedger> SlotLedger::create(std::int64_t num_pages, std::int64_t page_size, bool digests) try {
  if (num_pages < 0) return Status(Code::invalid_argument, formatted("SlotLedger num_pages: {}, expected >= 0", num_pages));
  if (page_size < 1) return Status(Code::invalid_argument, formatted("SlotLedger page_size: {}, expected >= 1", page_size));
  if (num_pages > kMaxSlots / page_size)
    return Status(Code::out_of_memory, formatted("SlotLedger: no memory for {} pages of {} slots", num_pages, page_size));
  auto state = std::make_unique<State>();
  state->slots.resize(static_cast<std::size_t>(num_pages * page_size));
  if (digests) state->digests.resize(state->slots.size());
  state->num_pages = num_pages;
  state->page_size = page_size;
  return SlotLedger(state.release());
} catch (...) {
  return batch::caught("SlotLedger");
}

SlotLedger::~SlotLedger() { delete state_; }
SlotLedger::SlotLedger(SlotLedger&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
SlotLedger& SlotLedger::operator=(SlotLedger&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void SlotLedger::begin_step(std::int64_t step) { state_->step = std::max(state_->step, step); }

void SlotLedger::record(std::int64_t slot, WriteTag tag) {
  if (!state_->has_slot(slot)) return;
  state_->slots[static_cast<std::size_t>(slot)] = {tag.request, tag.position, state_->step * 2};
  if (has_digests()) state_->digests[static_cast<std::size_t>(slot)] = {};
  ++state_->writes;
}

Status SlotLedger::move(std::span<const std::int64_t> from, std::span<const std::int64_t> to,
                        std::span<const WriteTag> tags) try {
  if (from.size() != to.size() || (!tags.empty() && tags.size() != to.size()))
    return {Code::invalid_argument,
            formatted("move: {} slots to {} slots with {} tags, expected as many of each", from.size(), to.size(), tags.size())};
  std::unordered_map<std::int64_t, std::size_t> taken;
  std::vector<std::pair<Record, Digest>> moved;
  for (std::size_t i = 0; i < to.size(); ++i) {
    for (const auto& [name, slot] : {std::pair{"from", from[i]}, std::pair{"to", to[i]}})
      if (!state_->has_slot(slot))
        return {Code::invalid_argument, formatted("move: {}[{}]: slot {} outside [0, {})", name, i, slot, state_->slots.size())};
    if (const auto [first, fresh] = taken.emplace(to[i], i); !fresh)
      return {Code::invalid_argument,
              formatted("move: to[{}]: slot {} as to[{}], expected each slot once", i, to[i], first->second)};
    const auto source = static_cast<std::size_t>(from[i]);
    Record record = state_->slots[source];
    if (record.request >= 0) {  // a slot that nobody wrote has nothing to move
      const WriteTag tag = tags.empty() ? WriteTag{} : tags[i];
      record = {tag.request >= 0 ? tag.request : record.request, tag.position >= 0 ? tag.position : record.position,
                state_->step * 2 + (record.stamp & 1)};
    }
    moved.emplace_back(record, has_digests() ? state_->digests[source] : Digest{});
    moved.back().second.moved_from = from[i];
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    state_->slots[static_cast<std::size_t>(to[i])] = moved[i].first;
    if (has_digests()) state_->digests[static_cast<std::size_t>(to[i])] = moved[i].second;
  }
  state_->writes += static_cast<std::int64_t>(to.size());
  return {};
} catch (...) {
  return batch::caught("SlotLedger.move");
}

Status SlotLedger::remember(const KVCache& cache, std::span<const std::int64_t> slots) try {
  if (!has_digests()) return {Code::invalid_argument, "remember: the ledger was made without digests"};
  if (const Findings findings = contract::check_cache(cache, this); !findings.ok()) return findings.status();
  std::optional<std::int64_t> staged;
  std::unique_ptr<device::Staging> staging;
  KVCache page;
  std::vector<std::byte> row;
  for (const std::int64_t slot : slots) {
    if (!state_->has_slot(slot)) continue;
    if (staged != slot / state_->page_size) {
      staging = std::make_unique<device::Staging>();
      Result<KVCache> copy = page_of(cache, slot / state_->page_size, *staging);
      if (!copy.ok()) return copy.status();
      page = copy.value();
      staged = slot / state_->page_size;
    }
    Digest& digest = state_->digests[static_cast<std::size_t>(slot)];
    digest = {.k = semantics::StoredRows(page, true).slot_digest(0, slot % state_->page_size, row),
              .v = semantics::StoredRows(page, false).slot_digest(0, slot % state_->page_size, row)};
  }
  return {};
} catch (...) {
  return batch::caught("SlotLedger.remember");
}

void SlotLedger::share(std::int64_t page, std::int64_t request) {
  if (!state_->has_page(page) || shared_with(page, request)) return;
  try {
    state_->readers[page].push_back(request);
  } catch (const std::exception&) {
    // Out of memory: the reader stays unknown, and its reads become findings (Q-L02) instead of passing unseen.
  }
}

void SlotLedger::recycle(std::int64_t page) {
  if (!state_->has_page(page)) return;
  const auto first = state_->slots.begin() + page * state_->page_size;
  for (Record& record : std::span(first, static_cast<std::size_t>(state_->page_size))) record.stamp |= 1;
  state_->readers.erase(page);
}

SlotLedger::Entry SlotLedger::entry(std::int64_t slot) const {
  if (!state_->has_slot(slot)) return {};
  const Record& record = state_->slots[static_cast<std::size_t>(slot)];
  if (record.request < 0) return {};
  return {record.request, record.position, record.stamp >> 1, (record.stamp & 1) != 0};
}

bool SlotLedger::shared_with(std::int64_t page, std::int64_t request) const {
  const auto found = state_->readers.find(page);
  return found != state_->readers.end() && std::find(found->second.begin(), found->second.end(), request) != found->second.end();
}

bool SlotLedger::has_digests() const noexcept { return !state_->digests.empty(); }
SlotLedger::Digest SlotLedger::digest(std::int64_t slot) const {
  return has_digests() && state_->has_slot(slot) ? state_->digests[static_cast<std::size_t>(slot)] : Digest{};
}

std::int64_t SlotLedger::num_pages() const noexcept { return state_->num_pages; }
std::int64_t SlotLedger::page_size() const noexcept { return state_->page_size; }
std::int64_t SlotLedger::slots_written() const noexcept { return state_->writes; }
std::int64_t SlotLedger::slots_read() const noexcept { return state_->reads.load(std::memory_order_relaxed); }
void SlotLedger::note_reads(std::int64_t count) const noexcept { state_->reads.fetch_add(count, std::memory_order_relaxed); }

Status contract::record_append(SlotLedger& ledger, const KVCache& cache, const Tensor& slot_mapping,
                               std::span<const WriteTag> tags) {
  device::Staging staging;
  Tensor on_host = slot_mapping;
  if (Status s = staging.stage(on_host); !s.ok()) return s;
  const std::vector<std::int64_t> slots = semantics::indices_of(on_host);
  for (std::size_t t = 0; t < slots.size(); ++t)
    if (slots[t] >= 0) ledger.record(slots[t], tags[t]);
  return ledger.has_digests() ? ledger.remember(cache, slots) : Status();
}

}  // namespace quire
