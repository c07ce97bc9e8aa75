// SPDX-License-Identifier: Apache-2.0
// The stand-in: threads as fibers, blocks, waves, and the hooks that src/backend/gpu/runtime.h calls.
#include "simt/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "backend/gpu/runtime.h"
#include "simt/fiber.h"

namespace quire::simt {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 << 10;
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif

enum class Waits { nothing, barrier, wave, ended };

/// A call in the source.
struct Site {
  const char* file = "";
  int line = 0;
  bool operator==(const Site& o) const { return line == o.line && (file == o.file || std::strcmp(file, o.file) == 0); }
  std::string text() const {
    const char* slash = std::strrchr(file, '/');
    return fmt::format("{}:{}", slash != nullptr ? slash + 1 : file, line);
  }
};

struct Thread {
  Context context;
  int block = 0, index = 0;
  Waits waits = Waits::nothing;
  Site site;                                     ///< site of the wave operation that the thread waits at
  void* brings = nullptr;                        ///< argument that the thread brings to that operation
  std::vector<std::pair<float*, float>> unseen;  ///< stores that no fence has passed
};

/// One piece of shared memory between guards: AddressSanitizer's around exact allocations, words of our own elsewhere.
class Piece {
 public:
  explicit Piece(std::size_t bytes) : bytes_(bytes), memory_(new std::uint8_t[bytes + 2 * kGuard]) {
    std::memset(memory_.get(), kCanary, bytes + 2 * kGuard);
    std::memset(data(), 0xFF, bytes);  // NaN
  }
  std::uint8_t* data() { return memory_.get() + kGuard; }
  std::size_t bytes() const { return bytes_; }
  bool intact() const {
    for (std::size_t i = 0; i < kGuard; ++i)
      if (memory_[i] != kCanary || memory_[kGuard + bytes_ + i] != kCanary) return false;
    return true;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kGuard = 0;
#else
  static constexpr std::size_t kGuard = 256;
#endif
  static constexpr std::uint8_t kCanary = 0xA5;
  std::size_t bytes_;
  std::unique_ptr<std::uint8_t[]> memory_;
};

struct Block {
  std::vector<std::unique_ptr<Piece>> pieces;
  int live = 0;
  int at_barrier = 0;
  Site barrier;  ///< site of the barrier that threads wait at
};

struct Wave {
  int waiting = 0;
  Site site;  ///< site of the operation that threads wait at
};

class Machine {
 public:
  std::string run(const Launch& launch, const std::function<void()>& kernel) {
    begin(launch, kernel);
    while (!ready_.empty() && error_.empty()) {
      current_ = take_ready();
      switch_context(main_, current_->context);
    }
    current_ = nullptr;
    if (error_.empty()) finish();
    for (Thread& t : threads_)
      for (const auto& [to, value] : t.unseen) *to = value;  // a kernel's end is a fence
    blocks_.clear();
    if (!error_.empty()) stacks_.clear();  // threads were stopped in the middle
    return std::exchange(error_, {});
  }

  Thread& current() { return *current_; }
  const Launch& launch() const { return launch_; }

  void barrier(const Site& site) {
    Block& block = blocks_[static_cast<std::size_t>(current_->block)];
    if (launch_.barriers != nullptr || !launch_.fault.removed_barrier.empty()) {
      const std::string name = site.text();
      if (launch_.barriers != nullptr) launch_.barriers->insert(name);
      if (name == launch_.fault.removed_barrier) return;
    }
    if (block.at_barrier == 0) block.barrier = site;
    if (!(block.barrier == site)) {
      std::string text = fmt::format("at barrier {} while others wait at {}", site.text(), block.barrier.text());
      fail(std::move(text));
    }
    current_->waits = Waits::barrier;
    ++block.at_barrier;
    release_if_complete(current_->block);
    suspend();
  }

  /// All lanes of the wave meet, each with what it brings; the last to come acts for all.
  void meet(const Site& site, void* brings, const WaveAct& act) {
    if ((launch_.barriers != nullptr || !launch_.fault.removed_barrier.empty()) && act == nullptr) {
      const std::string name = site.text();
      if (launch_.barriers != nullptr) launch_.barriers->insert(name);
      if (name == launch_.fault.removed_barrier) return;
    }
    current_->waits = Waits::wave;
    current_->brings = brings;
    current_->site = site;
    act_if_complete(act);
    suspend();
  }

  void fence() {
    if (launch_.fault.no_fences) return;
    for (const auto& [to, value] : current_->unseen) *to = value;
    current_->unseen.clear();
  }

  void* shared_piece(int index, std::size_t bytes) {
    auto& pieces = blocks_[static_cast<std::size_t>(current_->block)].pieces;
    const auto i = static_cast<std::size_t>(index);
    if (launch_.fault.short_piece == index) bytes -= launch_.fault.short_bytes;
    if (i == pieces.size()) pieces.push_back(std::make_unique<Piece>(bytes));
    if (i > pieces.size() || pieces[i]->bytes() != bytes)
      fail(fmt::format("shared piece {}: threads ask for different pieces", index));
    return pieces[i]->data();
  }

  [[noreturn]] void fail(std::string text) {
    if (error_.empty()) error_ = fmt::format("block {} thread {}: {}", current_->block, current_->index, text);
    std::string().swap(text);  // suspend() returns no more, so no destructor runs
    suspend(/*ends=*/true);
    std::abort();  // an ended thread is never switched to
  }

  static void thread_main();

 private:
  void begin(const Launch& launch, const std::function<void()>& kernel) {
    launch_ = launch;
    kernel_ = &kernel;
    random_.seed(launch.seed);
    const auto count = static_cast<std::size_t>(launch.blocks * launch.threads);
    while (stacks_.size() < count) stacks_.emplace_back(kStackBytes);
    threads_ = std::vector<Thread>(count);
    blocks_ = std::vector<Block>(static_cast<std::size_t>(launch.blocks));
    waves_ = std::vector<Wave>(count / static_cast<std::size_t>(launch.wave));
    ready_.clear();
    std::vector<Thread*> all;
    for (std::size_t i = 0; i < count; ++i) {
      Thread& t = threads_[i];
      t.block = static_cast<int>(i) / launch.threads;
      t.index = static_cast<int>(i) % launch.threads;
      stacks_[i].prepare(t.context, thread_main);
      all.push_back(&t);
    }
    for (Block& block : blocks_) block.live = launch.threads;
    make_ready(std::move(all));
  }

  void finish() {
    std::size_t stuck = 0, used = 0;
    for (const Thread& t : threads_) stuck += t.waits == Waits::ended ? 0 : 1;
    if (stuck != 0) error_ = fmt::format("deadlock: {} threads wait for others that never come", stuck);
    for (Block& block : blocks_) {
      used = 0;
      for (const auto& piece : block.pieces) {
        used += (piece->bytes() + 15) / 16 * 16;
        if (!piece->intact()) error_ = fmt::format("a write outside a shared piece of {} bytes", piece->bytes());
      }
      if (used > static_cast<std::size_t>(launch_.shared_bytes))
        error_ = fmt::format("{} bytes of shared memory taken, {} declared", used, launch_.shared_bytes);
    }
  }

  void make_ready(std::vector<Thread*> threads) {
    if (launch_.seed != 0) std::shuffle(threads.begin(), threads.end(), random_);
    for (Thread* t : threads) {
      t->waits = Waits::nothing;
      ready_.push_back(t);
    }
  }

  /// In order; with a seed, one time in eight from the other end, so that blocks and waves overtake each other.
  Thread* take_ready() {
    const bool last = launch_.seed != 0 && random_() % 8 == 0;
    Thread* t = last ? ready_.back() : ready_.front();
    last ? ready_.pop_back() : ready_.pop_front();
    return t;
  }

  /// Gives the processor to the next thread that is ready, or to run().
  void suspend(bool ends = false) {
    Thread* me = current_;
    if (ready_.empty() || !error_.empty()) {
      switch_context(me->context, main_, ends);
    } else {
      Thread* next = take_ready();
      if (next != me) {
        current_ = next;
        switch_context(me->context, next->context, ends);
      }
    }
    current_ = me;
  }

  void release_if_complete(int b) {
    Block& block = blocks_[static_cast<std::size_t>(b)];
    if (block.at_barrier == 0 || block.at_barrier != block.live) return;
    block.at_barrier = 0;
    std::vector<Thread*> waiting;
    for (int i = 0; i < launch_.threads; ++i) {
      Thread& t = threads_[static_cast<std::size_t>(b * launch_.threads + i)];
      if (t.waits == Waits::barrier) waiting.push_back(&t);
    }
    make_ready(std::move(waiting));
  }

  /// If a lane never comes, that is a deadlock.
  void act_if_complete(const WaveAct& act) {
    const int first = current_->index / launch_.wave * launch_.wave;
    Wave& wave = waves_[static_cast<std::size_t>((current_->block * launch_.threads + first) / launch_.wave)];
    if (wave.waiting == 0) wave.site = current_->site;
    if (!(wave.site == current_->site)) fail("lanes of one wave at different shuffles, products or wave barriers");
    if (++wave.waiting < launch_.wave) return;
    wave.waiting = 0;
    Thread* const lanes = &threads_[static_cast<std::size_t>(current_->block * launch_.threads + first)];
    std::vector<void*> brought;
    std::vector<Thread*> all;
    for (int i = 0; i < launch_.wave; ++i) {
      brought.push_back(lanes[i].brings);
      all.push_back(&lanes[i]);
    }
    std::string complaint;
    if (act != nullptr) complaint = act(brought);
    if (!complaint.empty()) {
      std::vector<void*>().swap(brought);  // suspend() returns no more, so no destructor runs
      std::vector<Thread*>().swap(all);
      fail(std::move(complaint));
    }
    make_ready(std::move(all));
  }

  Launch launch_;
  const std::function<void()>* kernel_ = nullptr;
  std::vector<Stack> stacks_;
  std::vector<Thread> threads_;
  std::vector<Block> blocks_;
  std::vector<Wave> waves_;
  std::deque<Thread*> ready_;
  Thread* current_ = nullptr;
  Context main_;
  std::mt19937_64 random_;
  std::string error_;
};

Machine the_machine;
Machine& machine() { return the_machine; }

void Machine::thread_main() {
  Machine& m = machine();
  begin_on_own_stack(m.main_);
  (*m.kernel_)();
  Thread& me = *m.current_;
  me.waits = Waits::ended;
  --m.blocks_[static_cast<std::size_t>(me.block)].live;
  m.release_if_complete(me.block);
  m.suspend(/*ends=*/true);
  std::abort();  // an ended thread is never switched to
}

}  // namespace

std::string run(const Launch& launch, const std::function<void()>& kernel) { return machine().run(launch, kernel); }

int thread_index() { return machine().current().index; }
int block_index() { return machine().launch().first_block + machine().current().block; }
int num_blocks() { return machine().launch().grid != 0 ? machine().launch().grid : machine().launch().blocks; }
void barrier(const char* file, int line) { machine().barrier({file, line}); }
void fence() { machine().fence(); }
void buffer_store(float* to, float value) { machine().current().unseen.emplace_back(to, value); }
void* shared_piece(int index, std::size_t bytes) { return machine().shared_piece(index, bytes); }
void wave_barrier(const char* file, int line) { machine().meet({file, line}, nullptr, nullptr); }

void in_wave(void* brings, const char* file, int line, const WaveAct& act) { machine().meet({file, line}, brings, act); }

int wave_size() { return machine().launch().wave; }

std::uint32_t shuffle(std::uint32_t value, int lane, const char* file, int line) {
  if (lane < 0 || lane >= wave_size()) machine().fail(fmt::format("shuffle from lane {}", lane));
  struct Brought {
    std::uint32_t value;
    int from;
  };
  Brought mine{value, lane};
  in_wave(&mine, file, line, [](const std::vector<void*>& lanes) {
    std::vector<std::uint32_t> values;
    for (void* brought : lanes) values.push_back(static_cast<Brought*>(brought)->value);
    for (void* brought : lanes) {
      auto& to = *static_cast<Brought*>(brought);
      to.value = values[static_cast<std::size_t>(to.from)];
    }
    return std::string();
  });
  return mine.value;
}

std::int32_t wave_uniform(std::int32_t value, const char* file, int line) {
  in_wave(&value, file, line, [](const std::vector<void*>& lanes) {
    for (void* lane : lanes)
      if (*static_cast<std::int32_t*>(lane) != *static_cast<std::int32_t*>(lanes[0]))
        return std::string("a value differs from lane to lane");
    return std::string();
  });
  return value;
}

}  // namespace quire::simt
