// SPDX-License-Identifier: Apache-2.0
// Record of each slot: writer, position, step, and whether the page went back to the pool since.
#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch/caught.h"
#include "quire/contract.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// 24 bytes a slot: `stamp` is step * 2 + recycled.
struct Record {
  std::int64_t request = -1;
  std::int64_t position = -1;
  std::int64_t stamp = -2;
};

constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;  // keeps num_pages * page_size far from overflow

}  // namespace

struct SlotLedger::State {
  std::int64_t num_pages = 0;
  std::int64_t page_size = 0;
  std::int64_t step = 0;
  std::int64_t writes = 0;
  std::atomic<std::int64_t> reads{0};  ///< several const checks may run at once
  std::vector<Record> slots;
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> readers;  ///< page -> requests that the page was shared with

  bool has_page(std::int64_t page) const noexcept { return page >= 0 && page < num_pages; }
  bool has_slot(std::int64_t slot) const noexcept { return slot >= 0 && slot < static_cast<std::int64_t>(slots.size()); }
};

SlotLedger::SlotLedger(std::int64_t num_pages, std::int64_t page_size) : state_(new State) {
  if (Result<SlotLedger> made = create(num_pages, page_size); made.ok()) *this = std::move(made).value();
}

SlotLedger::SlotLedger(State* state) noexcept : state_(state) {}

Result<SlotLedger> SlotLedger::create(std::int64_t num_pages, std::int64_t page_size) try {
  if (num_pages < 0) return Status(Code::invalid_argument, formatted("SlotLedger num_pages: {}, expected >= 0", num_pages));
  if (page_size < 1) return Status(Code::invalid_argument, formatted("SlotLedger page_size: {}, expected >= 1", page_size));
  if (num_pages > kMaxSlots / page_size)
    return Status(Code::out_of_memory, formatted("SlotLedger: no memory for {} pages of {} slots", num_pages, page_size));
  auto state = std::make_unique<State>();
  state->slots.resize(static_cast<std::size_t>(num_pages * page_size));
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
  ++state_->writes;
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

std::int64_t SlotLedger::num_pages() const noexcept { return state_->num_pages; }
std::int64_t SlotLedger::page_size() const noexcept { return state_->page_size; }
std::int64_t SlotLedger::slots_written() const noexcept { return state_->writes; }
std::int64_t SlotLedger::slots_read() const noexcept { return state_->reads.load(std::memory_order_relaxed); }
void SlotLedger::note_reads(std::int64_t count) const noexcept { state_->reads.fetch_add(count, std::memory_order_relaxed); }

}  // namespace quire
