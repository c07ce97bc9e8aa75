// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 whose ranks are threads of one process and whose "GPUs" are host memory: a call returns when its data is there.
// It holds what src/distributed/nccl.cpp calls, and refuses what NCCL would: an unknown id, a rank out of range, a type of
// another size.
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Id {
  std::array<char, 128> internal;
};

/// Ranks meet twice in an exchange: when all have said what they send, and when all have copied.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, arrived = 0;
  std::uint64_t turn = 0;
  std::vector<std::vector<const void*>> sent;  ///< [rank][to]

  void meet() {
    std::unique_lock lock(mutex);
    const std::uint64_t now = turn;
    if (++arrived == size) {
      arrived = 0, ++turn;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return turn != now; });
    }
  }
};

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0;
};

std::mutex g_mutex;
std::map<std::string, std::shared_ptr<World>> g_worlds;
int g_ids = 0;

/// Sends and receives of a group, until it ends.
struct Group {
  bool open = false;
  Comm* comm = nullptr;
  std::vector<const void*> sends;
  std::vector<void*> receives;
  std::size_t bytes = 0;
};
thread_local Group t_group;

constexpr int kSuccess = 0, kInvalidArgument = 4, kUint8 = 1;

}  // namespace

extern "C" {

int ncclGetUniqueId(Id* id) {
  const std::scoped_lock lock(g_mutex);
  id->internal = {};
  const std::string text = "world " + std::to_string(++g_ids);
  std::memcpy(id->internal.data(), text.data(), text.size());
  g_worlds[text] = std::make_shared<World>();
  return kSuccess;
}

/// NCCL's call returns when all ranks have called, and so does this one.
int ncclCommInitRank(void** comm, int size, Id id, int rank) {
  std::shared_ptr<World> world;
  {
    const std::scoped_lock lock(g_mutex);
    const auto found = g_worlds.find(std::string(id.internal.data()));
    if (found == g_worlds.end() || rank < 0 || rank >= size) return kInvalidArgument;
    world = found->second;
  }
  {
    const std::scoped_lock lock(world->mutex);
    world->size = size;
    world->sent.resize(static_cast<std::size_t>(size));
  }
  world->meet();
  *comm = new Comm{world, rank};
  return kSuccess;
}

int ncclCommDestroy(void* comm) {
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

int ncclAllGather(const void* sent, void* received, std::size_t count, int type, void* comm, void*) {
  const Comm& c = *static_cast<Comm*>(comm);
  if (type != kUint8) return kInvalidArgument;
  c.world->sent[static_cast<std::size_t>(c.rank)] = {sent};
  c.world->meet();
  for (std::size_t k = 0; k < c.world->sent.size(); ++k)
    std::memcpy(static_cast<char*>(received) + k * count, c.world->sent[k].front(), count);
  c.world->meet();
  return kSuccess;
}

int ncclGroupStart() {
  t_group = {};
  t_group.open = true;
  return kSuccess;
}

int ncclSend(const void* sent, std::size_t count, int type, int peer, void* comm, void*) {
  if (!t_group.open || type != kUint8 || peer != static_cast<int>(t_group.sends.size())) return kInvalidArgument;
  t_group.comm = static_cast<Comm*>(comm), t_group.bytes = count;
  t_group.sends.push_back(sent);
  return kSuccess;
}

int ncclRecv(void* received, std::size_t count, int type, int peer, void*, void*) {
  if (!t_group.open || type != kUint8 || peer != static_cast<int>(t_group.receives.size()) || count != t_group.bytes)
    return kInvalidArgument;
  t_group.receives.push_back(received);
  return kSuccess;
}

int ncclGroupEnd() {
  const Group group = std::move(t_group);
  t_group = {};
  if (group.comm == nullptr) return kInvalidArgument;
  World& world = *group.comm->world;
  const auto me = static_cast<std::size_t>(group.comm->rank);
  world.sent[me] = group.sends;
  world.meet();
  for (std::size_t k = 0; k < group.receives.size(); ++k) std::memcpy(group.receives[k], world.sent[k][me], group.bytes);
  world.meet();
  return kSuccess;
}

const char* ncclGetErrorString(int result) { return result == kInvalidArgument ? "invalid argument" : "no error"; }

}  // extern "C"
