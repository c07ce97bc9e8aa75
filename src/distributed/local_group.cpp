// SPDX-License-Identifier: Apache-2.0
// The ranks of one process: threads meet at a table, leave the address of what they send, and copy what they receive.
// A call ends when every rank has come and every rank has copied; a rank that does not come in time breaks the group for good.
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "quire/distributed.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

struct Place {
  std::span<const std::byte> sent;
  std::string_view call;
  bool here = false;
};

/// State that the ranks share.
class Table {
 public:
  Table(std::int32_t world, std::chrono::milliseconds limit) : places_(static_cast<std::size_t>(world)), limit_(limit) {}

  std::int32_t world() const noexcept { return static_cast<std::int32_t>(places_.size()); }

  /// copy(places) runs when all ranks have come; no rank leaves before all have copied.
  template <class Copy>
  Status meet(std::int32_t rank, std::string_view call, std::span<const std::byte> sent, Copy&& copy) {
    std::unique_lock lock(mutex_);
    Place& mine = places_[static_cast<std::size_t>(rank)];
    mine = {sent, call, true};
    Status status = wait_for_all(lock);
    if (status.ok()) status = same_call();
    if (!status.ok()) return break_with(std::move(status));
    copy(places_);
    mine.here = false;
    return wait_for_all(lock);  // until all ranks have copied
  }

  void fail(std::int32_t rank, std::string_view reason) {
    const std::scoped_lock lock(mutex_);
    (void)break_with(Status(Code::rank_failed, formatted("rank {} failed: {}", rank, reason)));
  }

 private:
  /// Two ways a turn ends: all have come, or all have gone again.
  Status wait_for_all(std::unique_lock<std::mutex>& lock) {
    if (!broken_.ok()) return broken_;
    const std::uint64_t turn = turn_;
    if (++arrived_ == world()) {
      arrived_ = 0;
      ++turn_;
      changed_.notify_all();
      return {};
    }
    const bool in_time = changed_.wait_for(lock, limit_, [&] { return turn_ != turn || !broken_.ok(); });
    if (turn_ != turn) return {};
    if (in_time) return broken_;
    return break_with(Status(Code::rank_failed,
                             formatted("{}: {} did not come within {} ms", call_of_those_here(), missing(), limit_.count())));
  }

  Status break_with(Status status) {
    if (broken_.ok()) broken_ = std::move(status);
    changed_.notify_all();
    return broken_;
  }

  Status same_call() const {
    for (std::size_t k = 1; k < places_.size(); ++k) {
      const Place &first = places_[0], &other = places_[k];
      if (other.call == first.call && other.sent.size() == first.sent.size()) continue;
      return {Code::rank_failed, formatted("rank {} calls {} with {} bytes, rank 0 calls {} with {} bytes", k, other.call,
                                           other.sent.size(), first.call, first.sent.size())};
    }
    return {};
  }

  std::string_view call_of_those_here() const {
    for (const Place& p : places_)
      if (p.here) return p.call;
    return "exchange";
  }

  std::string missing() const {
    std::string text;
    for (std::size_t k = 0; k < places_.size(); ++k)
      if (!places_[k].here) text += (text.empty() ? "rank " : ", rank ") + std::to_string(k);
    return text.empty() ? "a rank" : text;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
  std::chrono::milliseconds limit_;
  std::int32_t arrived_ = 0;
  std::uint64_t turn_ = 0;
  Status broken_;
};

class LocalRank final : public Communicator {
 public:
  LocalRank(std::shared_ptr<Table> table, std::int32_t rank) : table_(std::move(table)), rank_(rank) {}

  std::int32_t rank() const noexcept override { return rank_; }
  std::int32_t world() const noexcept override { return table_->world(); }

  Status all_gather(std::span<const std::byte> sent, std::span<std::byte> received) override {
    if (received.size() != sent.size() * static_cast<std::size_t>(world()))
      return {Code::invalid_argument, formatted("all_gather: room for {} bytes, expected {} for each of {} ranks",
                                                received.size(), sent.size(), world())};
    return table_->meet(rank_, "all_gather", sent, [&](const std::vector<Place>& places) {
      for (std::size_t k = 0; k < places.size(); ++k) copy(received.subspan(k * sent.size()), places[k].sent);
    });
  }

  Status all_to_all(std::span<const std::byte> sent, std::span<std::byte> received) override {
    const auto ranks = static_cast<std::size_t>(world());
    if (received.size() != sent.size() || sent.size() % ranks != 0)
      return {Code::invalid_argument, formatted("all_to_all: {} bytes sent and {} received, expected {} equal parts", sent.size(),
                                                received.size(), ranks)};
    const std::size_t part = sent.size() / ranks;
    return table_->meet(rank_, "all_to_all", sent, [&](const std::vector<Place>& places) {
      for (std::size_t k = 0; k < ranks; ++k)
        copy(received.subspan(k * part), places[k].sent.subspan(static_cast<std::size_t>(rank_) * part, part));
    });
  }

  void fail(std::string_view reason) override { table_->fail(rank_, reason); }

 private:
  static void copy(std::span<std::byte> to, std::span<const std::byte> from) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }

  std::shared_ptr<Table> table_;
  std::int32_t rank_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> local_group(std::int32_t world, std::chrono::milliseconds limit) {
  if (const Findings findings = check_shard(ContextShard{.rank = 0, .world = world}); !findings.ok()) return findings.status();
  const auto table = std::make_shared<Table>(world, limit);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::int32_t rank = 0; rank < world; ++rank) ranks.push_back(std::make_unique<LocalRank>(table, rank));
  return ranks;
}

}  // namespace quire
