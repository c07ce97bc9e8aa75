// SPDX-License-Identifier: Apache-2.0
// NCCL as an Exchange: a table of functions of libnccl.so.2 found at run time, so that neither building nor loading Quire needs
// NCCL. Declared by us from NVIDIA's public header (NCCL 2 API reference); all of these functions are there since NCCL 2.7.
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "quire/distributed.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using NcclResult = int;                 ///< ncclResult_t
constexpr NcclResult kNcclSuccess = 0;  ///< ncclSuccess
constexpr int kNcclUint8 = 1;           ///< ncclUint8 of ncclDataType_t
struct NcclId {                         ///< ncclUniqueId, passed by value
  std::array<char, 128> internal{};     ///< NCCL_UNIQUE_ID_BYTES
};
using NcclComm = void*;  ///< ncclComm_t

struct NcclApi {
  NcclResult (*get_unique_id)(NcclId*);
  NcclResult (*comm_init_rank)(NcclComm*, int world, NcclId id, int rank);
  NcclResult (*comm_destroy)(NcclComm);
  NcclResult (*all_gather)(const void* sent, void* received, std::size_t count, int type, NcclComm, void* stream);
  NcclResult (*send)(const void* sent, std::size_t count, int type, int peer, NcclComm, void* stream);
  NcclResult (*recv)(void* received, std::size_t count, int type, int peer, NcclComm, void* stream);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  const char* (*get_error_string)(NcclResult);
};

Status not_found(const std::string& why) {
  return {Code::unsupported, formatted("nccl_exchange: NCCL 2.7 or newer is missing ({}); QUIRE_NCCL_LIBRARY may name it", why)};
}

/// A library that the process has already comes first: torch brings one in its wheel.
Result<void*> open_nccl() {
  if (const char* named = std::getenv("QUIRE_NCCL_LIBRARY"); named != nullptr && *named != '\0') {
    if (void* library = dlopen(named, RTLD_NOW | RTLD_LOCAL)) return library;
    return not_found(formatted("QUIRE_NCCL_LIBRARY: {}", dlerror()));
  }
  for (const int also : {RTLD_NOLOAD, 0})
    if (void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | also)) return library;
  return not_found(dlerror());
}

Result<NcclApi> load_nccl() {
  const Result<void*> library = open_nccl();
  if (!library.ok()) return library.status();
  NcclApi api{};
  std::string missing;
  const auto find = [&]<class F>(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library.value(), symbol));
    if (function == nullptr) missing += formatted("{}{}", missing.empty() ? "" : ", ", symbol);
  };
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank, "ncclCommInitRank");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.all_gather, "ncclAllGather");
  find(api.send, "ncclSend");
  find(api.recv, "ncclRecv");
  find(api.group_start, "ncclGroupStart");
  find(api.group_end, "ncclGroupEnd");
  find(api.get_error_string, "ncclGetErrorString");
  if (!missing.empty()) return not_found(formatted("the libnccl that was found has no {}", missing));
  return api;
}

class NcclExchange final : public Exchange {
 public:
  NcclExchange(const NcclApi& api, NcclComm comm, int world) : api_(api), comm_(comm), world_(world) {}
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;
  ~NcclExchange() override { api_.comm_destroy(comm_); }

  Status all_gather(const void* sent, void* received, std::size_t bytes, void* stream) override {
    return said("ncclAllGather", api_.all_gather(sent, received, bytes, kNcclUint8, comm_, stream));
  }

  Status all_to_all(const void* sent, void* received, std::size_t bytes, void* stream) override {
    NcclResult result = api_.group_start();
    for (int k = 0; k < world_ && result == kNcclSuccess; ++k) {
      const std::size_t at = static_cast<std::size_t>(k) * bytes;
      result = api_.send(static_cast<const std::byte*>(sent) + at, bytes, kNcclUint8, k, comm_, stream);
      if (result == kNcclSuccess) result = api_.recv(static_cast<std::byte*>(received) + at, bytes, kNcclUint8, k, comm_, stream);
    }
    const NcclResult ended = api_.group_end();  // also after an error: the group is open
    return said("ncclSend, ncclRecv", result == kNcclSuccess ? ended : result);
  }

 private:
  Status said(const char* call, NcclResult result) const {
    if (result == kNcclSuccess) return {};
    return {Code::device_error, formatted("{}: {}", call, api_.get_error_string(result))};
  }

  const NcclApi& api_;
  NcclComm comm_;
  int world_;
};

/// Rank 0's id, in every rank's hands. A rank that cannot go on tells the group first.
Result<NcclId> shared_id(Communicator& group, const NcclApi& api) {
  NcclId mine;
  if (group.rank() == 0)
    if (const NcclResult result = api.get_unique_id(&mine); result != kNcclSuccess) {
      const Status status(Code::device_error, formatted("ncclGetUniqueId: {}", api.get_error_string(result)));
      group.fail(status.message());
      return status;
    }
  std::vector<NcclId> all(static_cast<std::size_t>(group.world()));
  if (Status s = group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))); !s.ok()) return s;
  return all.front();
}

}  // namespace

Result<std::unique_ptr<Exchange>> nccl_exchange(Communicator& group) {
  static const Result<NcclApi> api = load_nccl();
  if (!api.ok()) {
    group.fail(api.status().message());
    return api.status();
  }
  const Result<NcclId> id = shared_id(group, api.value());
  if (!id.ok()) return id.status();
  NcclComm comm = nullptr;
  if (const NcclResult result = api->comm_init_rank(&comm, group.world(), id.value(), group.rank()); result != kNcclSuccess) {
    const Status status(Code::device_error, formatted("ncclCommInitRank: {}", api->get_error_string(result)));
    group.fail(status.message());
    return status;
  }
  return std::unique_ptr<Exchange>(std::make_unique<NcclExchange>(api.value(), comm, group.world()));
}

}  // namespace quire
