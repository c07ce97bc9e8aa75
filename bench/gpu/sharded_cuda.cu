// SPDX-License-Identifier: Apache-2.0
// ShardedStep over NCCL from C++, a thread for each GPU: checks rows against fp64, then times a layer beside one GPU's attend().
//
// usage: sharded_cuda [--gpus N] [--stream]
//
// Checks: partial results in f32 against reference() with its tolerance; in bf16 against those of f32, which differ by half an
// ulp of the partial outputs and of the result; equal bits on every rank; both exchanges. Times: 8 layers in a CUDA graph, each
// with a cache of its own, bf16, 32:8 heads, d 128, page 16, interleaved by pages; one GPU and all GPUs in turn. --stream:
// enqueued, not replayed from a graph. Prints one JSON; the exit status is 1 if a row is wrong. What happens is said on stderr.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/distributed.hpp"
#include "quire/quire.hpp"
#include "semantics/dtype.h"

namespace {

using namespace quire;

void must(cudaError_t e) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "sharded_cuda: %s\n", cudaGetErrorString(e));
  std::_Exit(1);
}
void must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "sharded_cuda: %s\n", s.message().c_str());
  std::_Exit(1);
}
template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

constexpr std::int64_t kPage = 16;  ///< tokens; also the interleave
constexpr std::int64_t kQHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int kLayers = 8;  ///< layers of one graph

/// Device memory of the current GPU.
class Device {
 public:
  explicit Device(std::size_t bytes) { must(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1))); }
  Device(const void* from, std::size_t bytes) : Device(bytes) { must(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice)); }
  Device(Device&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Device& operator=(Device&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~Device() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

Tensor on_gpu(Tensor t, void* data) {
  t.data = data;
  t.memory = Memory::cuda;
  return t;
}

/// Roughly N(0,1): the sum of eight uniform numbers, from a hash of the index.
__global__ void fill_normal(__nv_bfloat16* to, std::int64_t count, unsigned seed) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * blockDim.x) {
    unsigned long long h = (static_cast<unsigned long long>(i) + seed) * 0x9E3779B97F4A7C15ull;
    float sum = 0;
    for (int k = 0; k < 8; ++k) {
      h ^= h >> 29, h *= 0xBF58476D1CE4E5B9ull, h ^= h >> 32;
      sum += static_cast<float>(h >> 40) * 0x1p-24f - 0.5f;
    }
    to[i] = __float2bfloat16(sum * 1.2247f);
  }
}

Device normal(std::int64_t count, unsigned seed) {
  Device memory(static_cast<std::size_t>(count) * 2);
  fill_normal<<<512, 256>>>(static_cast<__nv_bfloat16*>(memory.data()), count, seed);
  must(cudaDeviceSynchronize());
  return memory;
}

/// Decode rows of requests of one length, on the current GPU: `keys` of them here, of `length` in all.
struct Decode {
  Decode(std::int64_t reqs, std::int64_t length, std::int64_t keys, int layers)
      : pages((keys + kPage - 1) / kPage),
        query(normal(reqs * kQHeads * kDim, 1)),
        output(static_cast<std::size_t>(reqs * kQHeads * kDim * 2)),
        starts(reqs + 1),
        lengths(reqs, length),
        device_starts(0),
        device_lengths(0),
        table(0) {
    for (std::int64_t r = 0; r <= reqs; ++r) starts[r] = r;
    std::vector<std::int32_t> rows(reqs * pages);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>((i * 7919) % rows.size());
    if (rows.size() % 7919 == 0) std::swap(rows, rows);
    device_starts = Device(starts.data(), starts.size() * 8), device_lengths = Device(lengths.data(), lengths.size() * 8);
    table = Device(rows.data(), rows.size() * 4);
    batch.query = on_gpu(Tensor::contiguous(nullptr, DType::bf16, reqs, kQHeads, kDim), query.data());
    batch.output = on_gpu(Tensor::contiguous(nullptr, DType::bf16, reqs, kQHeads, kDim), output.data());
    batch.query_start_loc = on_gpu(Tensor::contiguous(nullptr, DType::i64, reqs + 1), device_starts.data());
    batch.seq_lens = on_gpu(Tensor::contiguous(nullptr, DType::i64, reqs), device_lengths.data());
    batch.block_table = on_gpu(Tensor::contiguous(nullptr, DType::i32, reqs, pages), table.data());
    const std::int64_t all = reqs * pages;
    for (int layer = 0; layer < layers; ++layer) {
      memory.push_back(normal(2 * all * kPage * kKvHeads * kDim, 2 + static_cast<unsigned>(layer)));
      KVCache cache;
      auto* const data = static_cast<std::byte*>(memory.back().data());
      cache.k = on_gpu(Tensor::contiguous(nullptr, DType::bf16, all, kPage, kKvHeads, kDim), data);
      cache.v = on_gpu(cache.k, data + all * kPage * kKvHeads * kDim * 2);
      caches.push_back(cache);
    }
  }
  Decode(const Decode&) = delete;

  std::int64_t pages;
  Device query, output;
  std::vector<std::int64_t> starts, lengths;
  Device device_starts, device_lengths, table;
  std::vector<Device> memory;
  std::vector<KVCache> caches;
  Batch batch;
};

bool g_graphs = true;  ///< times come from replays of a graph

/// Work that is enqueued again and again.
class Graph {
 public:
  explicit Graph(std::function<void(cudaStream_t)> enqueue) : enqueue_(std::move(enqueue)) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    enqueue_(stream_);  // a first run outside the graph loads modules that load lazily
    must(cudaStreamSynchronize(stream_));
    must(cudaEventCreate(&begin_)), must(cudaEventCreate(&end_));
    if (!g_graphs) return;
    cudaGraph_t graph = nullptr;
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue_(stream_);
    must(cudaStreamEndCapture(stream_, &graph));
    must(cudaGraphInstantiate(&replay_, graph, 0));
    must(cudaGraphDestroy(graph));
  }
  Graph(const Graph&) = delete;
  /// NCCL's communicator waits for graphs that captured its exchanges.
  ~Graph() {
    if (replay_ != nullptr) cudaGraphExecDestroy(replay_);
    cudaEventDestroy(begin_), cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  /// Replays of one timing follow a first one, which brings the ranks together.
  double us() {
    again();
    must(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < 4; ++i) again();
    must(cudaEventRecord(end_, stream_));
    must(cudaEventSynchronize(end_));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3 / (4 * kLayers);
  }

 private:
  void again() {
    if (replay_ == nullptr) return enqueue_(stream_);
    must(cudaGraphLaunch(replay_, stream_));
  }

  std::function<void(cudaStream_t)> enqueue_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t replay_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// Means of a rank's thread.
struct Rank {
  int index;
  int world;
  Communicator& group;
  Exchange& nccl;
  std::barrier<>& all;
};

/// us of a layer on one GPU (rank 0 measures) and on all of them.
std::pair<double, double> time_case(const Rank& rank, std::int64_t reqs, std::int64_t length) {
  std::vector<double> one, sharded;
  if (rank.index == 0) {
    Decode whole(reqs, length, length, kLayers);
    const Plan plan = must(quire::plan(whole.batch, whole.caches[0], {}, {.max_query_len = 1, .max_seq_len = length}));
    const Device workspace(workspace_bytes(plan));
    const std::span<std::byte> bytes(static_cast<std::byte*>(workspace.data()), workspace_bytes(plan));
    Graph graph([&](cudaStream_t stream) {
      for (const KVCache& cache : whole.caches) must(attend(plan, whole.batch, cache, {}, bytes, {.stream = stream}));
    });
    for (int i = 0; i < 9; ++i) one.push_back(graph.us());
  }
  rank.all.arrive_and_wait();
  const ContextShard shard{.rank = rank.index, .world = rank.world, .interleave = kPage};
  Decode part(reqs, length, shard.local_length(length), kLayers);
  const HostLengths lengths{part.starts, part.lengths};
  const std::size_t bytes = must(ShardedStep::memory_bytes(shard, part.batch, part.caches[0], {}, lengths));
  const Device memory(bytes);
  const ShardedStep step = must(ShardedStep::make(rank.group, shard, part.batch, part.caches[0], {}, lengths,
                                                  {static_cast<std::byte*>(memory.data()), bytes}));
  const Device workspace(step.workspace_bytes());
  const std::span<std::byte> room(static_cast<std::byte*>(workspace.data()), step.workspace_bytes());
  Graph graph([&](cudaStream_t stream) {
    for (const KVCache& cache : part.caches) must(step.run(rank.nccl, part.batch, cache, {}, room, stream));
  });
  for (int i = 0; i < 9; ++i) {
    rank.all.arrive_and_wait();
    sharded.push_back(graph.us());
  }
  rank.all.arrive_and_wait();
  return {one.empty() ? 0.0 : median(one), median(sharded)};
}

/// A made case as one rank holds it: pages in order, NaN where it holds no key.
struct Part {
  Part(const Case& c, const ContextShard& shard, int gpu) {
    const Tensor& k = c.cache.k;
    const std::int64_t reqs = c.batch.seq_lens.shape[0], row = k.shape[2] * k.shape[3];
    starts.assign(static_cast<const std::int32_t*>(c.batch.query_start_loc.data),
                  static_cast<const std::int32_t*>(c.batch.query_start_loc.data) + reqs + 1);
    lengths.assign(static_cast<const std::int32_t*>(c.batch.seq_lens.data),
                   static_cast<const std::int32_t*>(c.batch.seq_lens.data) + reqs);
    std::int64_t pages = 1;
    for (const std::int64_t n : lengths) pages = std::max(pages, shard.local_length(n) / kPage + 1);
    const std::int64_t elements = reqs * pages * kPage * row;
    std::vector<std::uint16_t> bits(2 * elements, 0xFFFF);
    std::vector<std::int32_t> rows(reqs * pages);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
    for (std::int64_t r = 0; r < reqs; ++r)
      for (std::int64_t p = 0; p < lengths[r]; ++p) {
        if (!shard.holds(p)) continue;
        const std::int64_t j = shard.local_index(p), to = ((r * pages + j / kPage) * kPage + j % kPage) * row;
        const std::int64_t page = static_cast<const std::int32_t*>(
            c.batch.block_table.data)[r * c.batch.block_table.stride[0] + p / k.shape[1] * c.batch.block_table.stride[1]];
        const std::int64_t from = page * k.stride[0] + p % k.shape[1] * k.stride[1];
        std::memcpy(&bits[to], static_cast<const std::uint16_t*>(k.data) + from, row * 2);
        std::memcpy(&bits[elements + to], static_cast<const std::uint16_t*>(c.cache.v.data) + from, row * 2);
      }
    must(cudaSetDevice(gpu));
    const auto hold = [&](const void* data, std::size_t bytes) {
      memory.emplace_back(data, bytes);
      return memory.back().data();
    };
    const Tensor& q = c.batch.query;
    batch.query = on_gpu(q, hold(q.data, q.num_elements() * 2));
    std::vector<std::uint16_t> blank(q.num_elements(), 0xFFFF);
    batch.output = on_gpu(q, hold(blank.data(), blank.size() * 2));
    std::vector<float> none(q.shape[0] * q.shape[1], NAN);
    batch.lse = on_gpu(Tensor::contiguous(nullptr, DType::f32, q.shape[0], q.shape[1]), hold(none.data(), none.size() * 4));
    options = c.options;
    if (options.sinks.present())
      options.sinks = on_gpu(options.sinks, hold(options.sinks.data, options.sinks.num_elements() * 4));
    batch.query_start_loc = on_gpu(Tensor::contiguous(nullptr, DType::i64, reqs + 1), hold(starts.data(), starts.size() * 8));
    batch.seq_lens = on_gpu(Tensor::contiguous(nullptr, DType::i64, reqs), hold(lengths.data(), lengths.size() * 8));
    batch.block_table = on_gpu(Tensor::contiguous(nullptr, DType::i32, reqs, pages), hold(rows.data(), rows.size() * 4));
    auto* const data = static_cast<std::byte*>(hold(bits.data(), bits.size() * 2));
    cache.k = on_gpu(Tensor::contiguous(nullptr, DType::bf16, reqs * pages, kPage, k.shape[2], k.shape[3]), data);
    cache.v = on_gpu(cache.k, data + elements * 2);
  }

  std::vector<std::int64_t> starts, lengths;
  std::vector<Device> memory;
  Batch batch;
  KVCache cache;
  Options options;
};

/// Output and lse of one step of a case on this rank.
struct Rows {
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
  bool operator==(const Rows&) const = default;
};

Rows run_case(const Rank& rank, const Case& c, const ShardedSettings& settings) {
  const ContextShard shard{.rank = rank.index, .world = rank.world, .interleave = kPage};
  Part part(c, shard, rank.index);
  const HostLengths lengths{part.starts, part.lengths};
  const std::size_t bytes = must(ShardedStep::memory_bytes(shard, part.batch, part.cache, part.options, lengths, settings));
  const Device memory(bytes);
  const ShardedStep step = must(ShardedStep::make(rank.group, shard, part.batch, part.cache, part.options, lengths,
                                                  {static_cast<std::byte*>(memory.data()), bytes}, settings));
  const Device workspace(step.workspace_bytes());
  must(step.run(rank.nccl, part.batch, part.cache, part.options,
                {static_cast<std::byte*>(workspace.data()), step.workspace_bytes()}));
  must(cudaDeviceSynchronize());
  Rows rows{std::vector<std::uint16_t>(part.batch.output.num_elements()), std::vector<float>(part.batch.lse.num_elements())};
  must(cudaMemcpy(rows.out.data(), part.batch.output.data, rows.out.size() * 2, cudaMemcpyDeviceToHost));
  must(cudaMemcpy(rows.lse.data(), part.batch.lse.data, rows.lse.size() * 4, cudaMemcpyDeviceToHost));
  return rows;
}

/// "" or what is wrong with the rows of one line. Every rank calls it.
std::string check_line(const Rank& rank, const char* line, std::vector<Rows>& shared) {
  Case c = must(make_case(must(parse_problem_line(line))));
  c.batch.cached_lens = c.batch.key = c.batch.value = c.batch.slot_mapping = Tensor{};
  Rows wide = run_case(rank, c, {.partials = DType::f32});
  Rows swapped = run_case(rank, c, {.swap_heads = true, .partials = DType::f32});
  Rows narrow = run_case(rank, c, {});
  shared[rank.index] = narrow;
  rank.all.arrive_and_wait();
  const bool equal = std::all_of(shared.begin(), shared.end(), [&](const Rows& r) { return r == shared[0]; });
  rank.all.arrive_and_wait();
  if (!equal) return "ranks have other bits";
  if (!(swapped == wide)) return "all-to-all gives other bits than all-gather";
  const Tensor& q = c.batch.query;
  const Comparison compared = compare(Tensor::contiguous(wide.out.data(), DType::bf16, q.shape[0], q.shape[1], q.shape[2]),
                                      Tensor::contiguous(wide.lse.data(), DType::f32, q.shape[0], q.shape[1]),
                                      must(reference(c.batch, c.cache, c.options)));
  if (!compared.ok) return compared.text;
  float largest = 0;  // bound of a partial output: the largest value that it sums
  for (std::int64_t i = 0; i < c.cache.v.num_elements(); ++i)
    if (const float v = semantics::load(c.cache.v.data, DType::bf16, i); v == v) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < wide.out.size(); ++i) {
    const float a = semantics::load(narrow.out.data(), DType::bf16, static_cast<std::int64_t>(i));
    const float b = semantics::load(wide.out.data(), DType::bf16, static_cast<std::int64_t>(i));
    // Half an ulp of a partial output, of weights rounded to 16 bits in prefill, and an ulp of the result.
    if (!(std::abs(a - b) <= std::ldexp(largest, -8) + std::ldexp(largest, -8) + std::ldexp(std::abs(b), -7)))
      return "16-bit partial results: element " + std::to_string(i) + " is " + std::to_string(a) + ", expected " +
             std::to_string(b);
  }
  return {};
}

constexpr const char* kLines[] = {
    "q=bf16 heads=32:8 d=128 page=16 reqs=1@4000,1@17,1@900,1@333 seed=1",
    "q=bf16 heads=8:2 d=128 page=16 reqs=40@500,1@77,3@1000 seed=2",
    "q=bf16 heads=8:2 d=64 page=16 window=200 sinks=1 cap=20 reqs=1@700,5@300 seed=3",
};
struct Timed {
  const char* name;
  std::int64_t reqs, length;
};
constexpr Timed kTimed[] = {{"B1 128k", 1, 1 << 17}, {"B8 128k", 8, 1 << 17}, {"B1 8k", 1, 1 << 13}, {"B64 8k", 64, 1 << 13}};

void run_rank(int index, int world, Communicator& group, std::barrier<>& all, std::vector<Rows>& shared, std::string& text,
              bool& wrong) {
  must(cudaSetDevice(index));
  const std::unique_ptr<Exchange> nccl = must(nccl_exchange(group));
  const Rank rank{index, world, group, *nccl, all};
  std::string said;
  for (const char* line : kLines) {
    std::fprintf(stderr, "rank %d checks %s\n", index, line);
    const std::string bad = check_line(rank, line, shared);
    if (index != 0) continue;
    said += std::string(said.empty() ? "" : ",\n") + "  {\"line\": \"" + line +
            "\", \"right\": " + (bad.empty() ? "true" : "false") + ", \"why\": \"" + bad + "\"}";
    wrong = wrong || !bad.empty();
  }
  std::string times;
  for (const Timed& t : kTimed) {
    std::fprintf(stderr, "rank %d times %s\n", index, t.name);
    const auto [one, sharded] = time_case(rank, t.reqs, t.length);
    char row[200];
    std::snprintf(row, sizeof row, "  {\"case\": \"%s\", \"one_us\": %.1f, \"sharded_us\": %.1f, \"ratio\": %.3f}", t.name, one,
                  sharded, one > 0 ? sharded / one : 0);
    times += std::string(times.empty() ? "" : ",\n") + row;
  }
  if (index != 0) return;
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0));
  text = std::string("{\"device\": \"") + device.name + "\", \"gpus\": " + std::to_string(world) + ", \"checks\": [\n" + said +
         "\n], \"times\": [\n" + times + "\n]}";
}

}  // namespace

int main(int argc, char** argv) {
  setenv("NCCL_NVLS_ENABLE", "0", /*replace=*/0);  // multicast needs rights that containers often lack
  int world = 0;
  must(cudaGetDeviceCount(&world));
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--stream") == 0) g_graphs = false;
    if (std::strcmp(argv[i], "--gpus") == 0 && i + 1 < argc) world = std::min(world, std::atoi(argv[i + 1]));
  }
  auto group = must(local_group(world, std::chrono::seconds(60)));
  std::barrier<> all(world);
  std::vector<Rows> shared(static_cast<std::size_t>(world));
  std::string text;
  bool wrong = false;
  std::vector<std::thread> threads;
  for (int k = 0; k < world; ++k)
    threads.emplace_back([&, k] { run_rank(k, world, *group[static_cast<std::size_t>(k)], all, shared, text, wrong); });
  for (std::thread& t : threads) t.join();
  std::puts(text.c_str());
  return wrong ? 1 : 0;
}
