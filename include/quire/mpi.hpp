// SPDX-License-Identifier: Apache-2.0
// Communicator (distributed.hpp) over the ranks of an MPI communicator. Header-only: the program compiles it with the mpi.h of
// its own MPI library, and Quire itself is built without MPI.
#pragma once

#include <mpi.h>

#include <chrono>
#include <climits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "quire/distributed.hpp"

namespace quire {

/// Exchanges host memory. Lives between MPI_Init_thread() and MPI_Finalize(). Every rank of `comm` makes one, in the same order,
/// because the communicator is duplicated. Messages about failures travel on a second duplicate.
class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm = MPI_COMM_WORLD, std::chrono::milliseconds limit = std::chrono::seconds(30))
      : limit_(limit) {
    MPI_Comm_dup(comm, &data_);
    MPI_Comm_dup(comm, &mail_);
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &world_);
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator() override {
    // A broken group has requests that no rank will complete: freeing its communicators would wait for these requests.
    if (!broken_.ok()) return;
    MPI_Comm_free(&mail_);
    MPI_Comm_free(&data_);
  }

  std::int32_t rank() const noexcept override { return rank_; }
  std::int32_t world() const noexcept override { return world_; }

  Status all_gather(std::span<const std::byte> sent, std::span<std::byte> received) override {
    if (received.size() != sent.size() * static_cast<std::size_t>(world_) || sent.size() > INT_MAX)
      return {Code::invalid_argument, "all_gather: expected room for the bytes of every rank, at most 2 GB each"};
    const int count = static_cast<int>(sent.size());
    return wait("all_gather", [&](MPI_Request* request) {
      return MPI_Iallgather(sent.data(), count, MPI_BYTE, received.data(), count, MPI_BYTE, data_, request);
    });
  }

  Status all_to_all(std::span<const std::byte> sent, std::span<std::byte> received) override {
    const auto ranks = static_cast<std::size_t>(world_);
    if (received.size() != sent.size() || sent.size() % ranks != 0 || sent.size() / ranks > INT_MAX)
      return {Code::invalid_argument, "all_to_all: expected as many equal parts as ranks, at most 2 GB each"};
    const int count = static_cast<int>(sent.size() / ranks);
    return wait("all_to_all", [&](MPI_Request* request) {
      return MPI_Ialltoall(sent.data(), count, MPI_BYTE, received.data(), count, MPI_BYTE, data_, request);
    });
  }

  void fail(std::string_view reason) override {
    const std::string text = "rank " + std::to_string(rank_) + " failed: " + std::string(reason.substr(0, kTextBytes / 2));
    if (!broken_.ok()) return;
    broken_ = Status(Code::rank_failed, text);
    sent_.assign(text.begin(), text.end());  // member: the bytes must outlive the messages
    std::vector<MPI_Request> requests(static_cast<std::size_t>(world_), MPI_REQUEST_NULL);
    for (int other = 0; other < world_; ++other)
      if (other != rank_)
        MPI_Isend(sent_.data(), static_cast<int>(sent_.size()), MPI_CHAR, other, kTag, mail_,
                  &requests[static_cast<std::size_t>(other)]);
    // MPI makes progress only inside MPI calls: a program that ended now would never send the reason.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    for (int done = 0; done == 0 && std::chrono::steady_clock::now() < deadline;)
      MPI_Testall(world_, requests.data(), &done, MPI_STATUSES_IGNORE);
  }

 private:
  static constexpr int kTag = 7701;                         // tag of failure messages, on a communicator of their own
  static constexpr int kWaitsTag = 7702;                    // tag of the numbers of exchanges that ranks wait for
  static constexpr std::chrono::milliseconds kMoment{500};  // time to hear them; too short: ranks that wait are named as missing
  static constexpr int kTextBytes = 1024;                   // longest failure message; reasons are cut to half of it

  template <class Start>
  Status wait(const char* what, Start&& start) {
    if (!broken_.ok()) return broken_;
    ++exchanges_;
    MPI_Request request = MPI_REQUEST_NULL;
    if (start(&request) != MPI_SUCCESS) return broken_ = Status(Code::rank_failed, std::string(what) + ": MPI refused the call");
    const auto deadline = std::chrono::steady_clock::now() + limit_;
    for (int turn = 0;; ++turn) {
      int done = 0;
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return broken_ = Status(Code::rank_failed, std::string(what) + ": MPI reports an error");
      if (done != 0) return {};
      if (turn % 64 == 0 && heard_of_a_failure()) return broken_;
      if (std::chrono::steady_clock::now() > deadline) return missing(what);
      std::this_thread::yield();
    }
  }

  /// Tells the others which exchange this rank waits for, and names the ranks that do not say the same within a moment.
  Status missing(const char* what) {
    const auto ranks = static_cast<std::size_t>(world_);
    std::vector<MPI_Request> requests(ranks, MPI_REQUEST_NULL);
    for (int other = 0; other < world_; ++other)  // exchanges_ outlives the messages
      if (other != rank_)
        MPI_Isend(&exchanges_, 1, MPI_LONG_LONG, other, kWaitsTag, mail_, &requests[static_cast<std::size_t>(other)]);
    std::vector<bool> waits(ranks, false);
    waits[static_cast<std::size_t>(rank_)] = true;
    for (const auto end = std::chrono::steady_clock::now() + kMoment; std::chrono::steady_clock::now() < end;) {
      if (heard_of_a_failure()) return broken_;
      int there = 0;
      MPI_Status from{};
      MPI_Iprobe(MPI_ANY_SOURCE, kWaitsTag, mail_, &there, &from);
      if (there == 0) {
        std::this_thread::yield();
        continue;
      }
      long long number = -1;
      MPI_Recv(&number, 1, MPI_LONG_LONG, from.MPI_SOURCE, kWaitsTag, mail_, MPI_STATUS_IGNORE);
      if (number == exchanges_) waits[static_cast<std::size_t>(from.MPI_SOURCE)] = true;
    }
    std::string names;
    for (std::size_t k = 0; k < ranks; ++k)
      if (!waits[k]) names += (names.empty() ? "rank " : ", rank ") + std::to_string(k);
    if (names.empty()) names = "a message";
    return broken_ = Status(Code::rank_failed,
                            std::string(what) + ": " + names + " did not come within " + std::to_string(limit_.count()) + " ms");
  }

  /// Whether another rank reported a failure; its reason is then in broken_.
  bool heard_of_a_failure() {
    int there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kTag, mail_, &there, MPI_STATUS_IGNORE);
    if (there == 0) return false;
    std::vector<char> text(kTextBytes);
    MPI_Status status{};
    MPI_Recv(text.data(), kTextBytes, MPI_CHAR, MPI_ANY_SOURCE, kTag, mail_, &status);
    int count = 0;
    MPI_Get_count(&status, MPI_CHAR, &count);
    broken_ = Status(Code::rank_failed, std::string(text.data(), static_cast<std::size_t>(count)));
    return true;
  }

  MPI_Comm data_ = MPI_COMM_NULL, mail_ = MPI_COMM_NULL;
  int rank_ = 0, world_ = 1;
  std::chrono::milliseconds limit_;
  Status broken_;
  std::vector<char> sent_;
  long long exchanges_ = 0;  ///< exchanges so far; every rank has the same number
};

}  // namespace quire
