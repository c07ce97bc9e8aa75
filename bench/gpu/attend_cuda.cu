// SPDX-License-Identifier: Apache-2.0
// Times attend() on a CUDA device: the whole call, as captured in a CUDA graph and replayed.
//
// usage: attend_cuda [--kernel NAME] [--check | --once | --append] [--key-value] [--invariant] [--unbounded] [--one-tensor]
// [--prepared] [--columns N] [--layers N] [--offset BYTES]
//                    LINE...
//        LINE: a problem line (docs/reference/problem_line.md); with latent=1 V is a view of K, and its bytes are counted once
//
// N(0,1) data, pages in random order, K and V in as many copies as exceed the L2 cache several times, used in turn. The output is
// compared with cuda_generic's, another implementation, on the same data: "agrees" if no element is further off than both may be
// together (bound_of()), "repeats" if the first call and one after the timed ones gave the same bits. --key-value: the cache of
// the next line holds the context alone and this step's rows come from `key` and `value`. --offset: K and V begin so many bytes
// after a multiple of 2 MiB, in all lines that follow. --invariant: so are the plans of the next line (batch_invariant);
// --unbounded: they know no max_query_len and no max_seq_len. --one-tensor: K and V of the next line (nhd or hnd) are the halves
// of the last dimension of one tensor, as vLLM keeps them since 0.26. --prepared: layers of the next line are prepared once
// (quire::prepare), and "us" is of a layer alone. --columns:
// the block table of the next line has so many columns and max_seq_len is what they hold, as an engine captures a graph for its
// longest context. --layers: lines that follow have a "step_us", too: of one of so many calls in a graph, which begins with the
// preparation if they are prepared. Prints one JSON object, with the bandwidth of a plain read
// measured in the same run.
// --check: times nothing, but asks whether 20 repeats give the same bits, whether a graph captured once is right when it is
// replayed after every request has become shorter by up to 40 tokens of context, and whether an infinite value that half of a
// request's rows see leaves the other half as it was.
// --append: times append() of the lines' tokens, and compares what attend() makes of the cache then with what it makes of the
// rows that were appended (fp8: rounded once more).
// --once: times nothing and measures no bandwidth, but calls attend() once and compares, for tools that watch every access
// (sanitize.py).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "numerics/tolerance.h"
#include "quire/quire.hpp"
#include "semantics/dtype.h"

namespace {

using namespace quire;

void must(cudaError_t e) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(e));
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}
void must(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "%s\n", s.message().c_str());
  std::exit(1);
}

__device__ float normal(unsigned long long seed, unsigned long long i) {
  unsigned long long z = seed * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull;  // SplitMix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const float u = (static_cast<float>(z >> 40) + 1.0f) / 16777217.0f, v = static_cast<float>(z & 0xFFFFFF) / 16777216.0f;
  return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
}
__global__ void fill(void* data, DType dtype, std::int64_t count, unsigned long long seed) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    semantics::store(data, dtype, i, normal(seed, i));
}
/// Two implementations may differ by absolute + relative * the larger magnitude.
struct Bound {
  float absolute = 0, relative = 0;
};

/// out[0] = max |a - b|, out[1] = max |b|, as bits, out[2] = elements outside the bound; a difference in class counts as
/// infinite, two of a class as none.
__global__ void compare(const void* a, const void* b, DType dtype, std::int64_t count, Bound bound, unsigned* out) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float x = semantics::load(a, dtype, i), y = semantics::load(b, dtype, i);
    const bool same_class = x == y || (x != x && y != y);
    const float difference = same_class ? 0.0f : fabsf(x - y);
    atomicMax(out, __float_as_uint(difference == difference ? difference : INFINITY));
    atomicMax(out + 1, __float_as_uint(fabsf(y)));
    if (!same_class && !(difference <= bound.absolute + bound.relative * fmaxf(fabsf(x), fabsf(y)))) atomicAdd(out + 2, 1u);
  }
}
__global__ void read_all(const uint4* data, std::int64_t count, unsigned* sink) {
  unsigned x = 0;
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const uint4 v = __ldcs(data + i);
    x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (x == 0x12345678u) *sink = x;
}

/// What was allocated since the line at hand began.
std::vector<void*> of_line;

void* allocate(std::int64_t bytes) {
  void* p = nullptr;
  must(cudaMalloc(&p, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 256))));
  of_line.push_back(p);
  return p;
}
void free_line() {
  for (void* p : of_line) must(cudaFree(p));
  of_line.clear();
}
Tensor random_tensor(DType dtype, std::array<std::int64_t, Tensor::kMaxRank> shape, int rank, unsigned long long seed,
                     std::int64_t offset = 0) {
  Tensor t = Tensor::from_shape(nullptr, dtype, shape, rank);
  t.data = static_cast<std::byte*>(allocate(t.num_elements() * itemsize(dtype) + offset)) + offset;
  t.memory = Memory::cuda;
  fill<<<2048, 256>>>(t.data, dtype, t.num_elements(), seed);
  return t;
}
Tensor index_tensor(const std::vector<std::int32_t>& values, std::array<std::int64_t, Tensor::kMaxRank> shape, int rank) {
  Tensor t = Tensor::from_shape(allocate(static_cast<std::int64_t>(values.size()) * 4), DType::i32, shape, rank);
  t.memory = Memory::cuda;
  must(cudaMemcpy(t.data, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return t;
}

/// `count` values between `from` and `to`.
Tensor float_range(std::int64_t count, float from, float to) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = from + (to - from) * static_cast<float>(i + 1) / static_cast<float>(values.size() + 1);
  Tensor t = Tensor::from_shape(allocate(count * 4), DType::f32, {count}, 1);
  t.memory = Memory::cuda;
  must(cudaMemcpy(t.data, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return t;
}
/// At most 1, so that bound_of() holds for them.
Tensor scale_tensor(ScaleKind kind, std::int64_t num_kv_heads) {
  return kind == ScaleKind::none ? Tensor{} : float_range(kind == ScaleKind::per_tensor ? 1 : num_kv_heads, 0.5f, 1.0f);
}

/// Of 8-bit outputs.
constexpr float kOutputScale = 0x1p-8f;

double median_ms(cudaStream_t stream, cudaGraphExec_t graph, int rounds) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < rounds; ++i) {
    must(cudaEventRecord(begin, stream));
    must(cudaGraphLaunch(graph, stream));
    must(cudaEventRecord(end, stream));
    must(cudaStreamSynchronize(stream));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}
template <typename Enqueue>
double graph_ms(int calls, Enqueue&& enqueue) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) enqueue(i, stream);
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&executable, graph, 0));
  const double ms = median_ms(stream, executable, 22) / calls;
  must(cudaGraphExecDestroy(executable));
  must(cudaGraphDestroy(graph));
  must(cudaStreamDestroy(stream));
  return ms;
}

double read_ceiling() {
  constexpr std::int64_t kBytes = std::int64_t{4} << 30;
  auto* data = static_cast<uint4*>(allocate(kBytes));
  must(cudaMemset(data, 0, kBytes));  // initcheck would report every unwritten word
  auto* sink = static_cast<unsigned*>(allocate(4));
  double best = 0;
  for (const int blocks : {8, 16, 32}) {
    const double ms = graph_ms(1, [&](int, cudaStream_t s) { read_all<<<132 * blocks, 512, 0, s>>>(data, kBytes / 16, sink); });
    best = std::max(best, static_cast<double>(kBytes) / ms * 1e-9);
  }
  free_line();
  return best;
}

/// How the lines that follow are asked.
struct Asked {
  std::string kernel;
  bool key_value = false, invariant = false, unbounded = false, one_tensor = false, prepared = false;
  std::int64_t offset = 0, columns = 0, layers = 0;
};

struct Work {
  Batch batch;
  std::vector<KVCache> caches;
  Options options;
};

/// K and V of one copy of the cache. `latent`: V is the first dims of K's rows.
KVCache make_cache(const Problem& p, std::int64_t pages, const Asked& asked, bool latent, unsigned long long seed) {
  const std::int64_t heads = p.num_kv_heads, tokens = p.page_size, x = 16 / itemsize(p.kv_dtype);
  const bool nhd = p.layout == CacheLayout::nhd;
  KVCache cache;
  cache.layout = p.layout;
  if (p.layout == CacheLayout::packed) {
    cache.k = random_tensor(p.kv_dtype, {pages, heads, p.head_dim / x, tokens, x}, 5, seed, asked.offset);
    cache.v = random_tensor(p.kv_dtype, {pages, heads, p.out_dim(), tokens}, 4, seed + 30, asked.offset);
    return cache;
  }
  const std::int64_t dims = asked.one_tensor ? 2 * p.head_dim : p.head_dim;
  std::array<std::int64_t, Tensor::kMaxRank> shape{pages, nhd ? tokens : heads, nhd ? heads : tokens, dims};
  cache.k = random_tensor(p.kv_dtype, shape, 4, seed, asked.offset);
  if (asked.one_tensor) {
    cache.v = cache.k;
    cache.v.data = static_cast<std::byte*>(cache.k.data) + p.head_dim * itemsize(p.kv_dtype);
    cache.k.shape[3] = cache.v.shape[3] = p.head_dim;
  } else if (latent) {
    cache.v = cache.k;
    cache.v.shape[3] = p.out_dim();
  } else {
    shape[3] = p.out_dim();
    cache.v = random_tensor(p.kv_dtype, shape, 4, seed + 30, asked.offset);
  }
  return cache;
}

Work make_work(const ProblemLine& line, const Asked& asked) {
  const Problem& p = line.problem;
  Work w;
  std::vector<std::int32_t> starts{0}, lens, cached;
  std::int64_t width = 1, pages = 0;
  for (const Request& r : p.reqs) {
    starts.push_back(starts.back() + static_cast<std::int32_t>(r.query_len));
    lens.push_back(static_cast<std::int32_t>(r.seq_len()));
    cached.push_back(static_cast<std::int32_t>(r.context_len));
    const std::int64_t needed = (r.seq_len() + p.page_size - 1) / p.page_size;
    width = std::max(width, needed), pages += needed;
  }
  width = std::max(width, asked.columns);
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(line.seed));
  const auto num_reqs = static_cast<std::int64_t>(p.reqs.size());
  // A page that no row sees may have been given away: its entry is an address that faults. --check moves windows by up to 40
  // keys.
  constexpr std::int32_t kGone = 1 << 30;
  constexpr std::int64_t kSlack = 48;
  std::vector<std::int32_t> table(static_cast<std::size_t>(num_reqs * width), kGone);
  std::size_t next = 0;
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const std::int64_t window = p.sliding_window.value_or(p.reqs[r].seq_len());
    const std::int64_t first_seen = std::max<std::int64_t>(0, p.reqs[r].context_len + 1 - window - kSlack);
    for (std::int64_t c = first_seen / p.page_size; (c * p.page_size) < p.reqs[r].seq_len(); ++c)
      table[r * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)] = order[next++];
  }
  const std::int64_t tokens = p.num_tokens();
  w.batch.query = random_tensor(p.q_dtype, {tokens, p.num_q_heads, p.head_dim}, 3, line.seed + 1);
  w.batch.q_scale = scale_tensor(p.q_scale, p.num_kv_heads);
  w.batch.output = random_tensor(p.out_dtype(), {tokens, p.num_q_heads, p.out_dim()}, 3, 0);
  if (p.out_dtype() == DType::fp8_e4m3fn) w.batch.output_scale = float_range(1, kOutputScale, kOutputScale);
  w.batch.query_start_loc = index_tensor(starts, {num_reqs + 1}, 1);
  w.batch.seq_lens = index_tensor(lens, {num_reqs}, 1);
  w.batch.block_table = index_tensor(table, {num_reqs, width}, 2);
  if (asked.key_value) {
    w.batch.cached_lens = index_tensor(cached, {num_reqs}, 1);
    w.batch.key = random_tensor(p.q_dtype, {tokens, p.num_kv_heads, p.head_dim}, 3, line.seed + 2);
    w.batch.value = random_tensor(p.q_dtype, {tokens, p.num_kv_heads, p.out_dim()}, 3, line.seed + 3);
  }
  w.options.sliding_window = p.sliding_window;
  w.options.logits_soft_cap = p.logits_soft_cap;
  w.options.softmax_scale = p.softmax_scale;
  if (p.alibi) w.options.alibi_slopes = float_range(p.num_q_heads, 0.0f, 0.001f);  // 30 at 30k keys
  if (p.sinks) w.options.sinks = float_range(p.num_q_heads, -1.0f, 1.0f);
  if (p.lse) w.batch.lse = random_tensor(DType::f32, {tokens, p.num_q_heads}, 2, 0);
  const std::int64_t bytes = pages * p.page_size * p.num_kv_heads * p.kv_bytes();
  const int copies = static_cast<int>(std::clamp<std::int64_t>(400'000'000 / std::max<std::int64_t>(bytes, 1) + 1, 1, 16));
  for (int i = 0; i < copies; ++i) {
    KVCache cache = make_cache(p, pages, asked, p.latent, line.seed + 10 + static_cast<unsigned>(i));
    cache.k_scale = scale_tensor(p.k_scale, p.num_kv_heads);
    cache.v_scale = scale_tensor(p.v_scale, p.num_kv_heads);
    w.caches.push_back(cache);
  }
  return w;
}

struct Prepared {
  Plan plan;
  std::span<std::byte> workspace;
};
/// As an engine plans, which knows how long its longest request is, and no more.
Prepared prepare(const Work& w, const Problem& problem, const Asked& asked) {
  PlanSettings settings;
  settings.batch_invariant = asked.invariant;
  settings.kernel = asked.kernel;
  if (!asked.unbounded) {
    settings.max_query_len = problem.max_query_len();
    settings.max_seq_len = std::max(problem.max_seq_len(), asked.columns * problem.page_size);
  }
  Prepared p{must(plan(w.batch, w.caches[0], w.options, settings)), {}};
  const std::size_t bytes = workspace_bytes(p.plan);
  p.workspace = {static_cast<std::byte*>(allocate(static_cast<std::int64_t>(bytes))), bytes};
  return p;
}

/// Largest difference of two outputs, the largest magnitude of the second, and how many elements are outside the bound.
struct Difference {
  float off, largest;
  unsigned outside;
};
Difference difference(const Tensor& a, const Tensor& b, const Bound& bound = {}) {
  auto* const result = static_cast<unsigned*>(allocate(sizeof(Difference)));
  must(cudaMemset(result, 0, sizeof(Difference)));
  compare<<<1024, 256>>>(a.data, b.data, b.dtype, b.num_elements(), bound, result);
  Difference found;
  must(cudaMemcpy(&found, result, sizeof found, cudaMemcpyDeviceToHost));
  return found;
}

/// How far two correct kernels may be apart on this tool's data: twice the tolerance of docs/reference/numerics.md, with bounds
/// in place of what the reference would measure, and once what rounded weights cost, as cuda_generic has none. For N(0,1) data
/// and a row of n keys: sum p |V| is at most the mean of |N(0,1)| and six standard errors of some n / e values, and no value of
/// normal() is above 5.8; |scale| sum |q K| is at most 0.8 |scale| d, and |s - m| below 12.
Bound bound_of(const Problem& p, const Plan& plan) {
  std::int64_t most = 1, fewest = INT64_MAX;
  bool rounds = false;
  for (const Request& r : p.reqs) {
    const std::int64_t window = p.sliding_window.value_or(r.seq_len());
    most = std::max(most, std::min(r.seq_len(), window));
    fewest = std::min({fewest, r.context_len + 1, window});
    rounds = rounds || rounds_weights(plan, r.query_len);
  }
  const double weighted = std::min(5.8, 0.8 + 3.6 * std::sqrt(2.72 / static_cast<double>(fewest)));
  const double scale = p.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  const double score = numerics::score_error(p.head_dim) * (0.8 * scale * static_cast<double>(p.head_dim) + 12);
  const numerics::OutputType output = numerics::output_type(p.out_dtype());
  const double sum = numerics::sum_error(most), unit = p.out_dtype() == DType::fp8_e4m3fn ? kOutputScale : 1;
  const double of_weights = rounds ? numerics::output_type(p.q_dtype == DType::bf16 ? DType::bf16 : DType::f16).roundoff : 0;
  const double of_pv = sum + numerics::kWeightRoundings * numerics::kAccumulatorRoundoff + score;
  return {static_cast<float>(numerics::kSecondOrder * (2 * of_pv + of_weights) * weighted / unit + 2 * output.smallest),
          static_cast<float>(numerics::kSecondOrder * 2 * (sum + score + output.roundoff))};
}

/// Lengths as the device holds them, each seq_len shortened by r % 41 tokens of context.
void shorten(const Work& w, const Problem& p) {
  std::vector<std::int32_t> lens;
  for (std::size_t r = 0; r < p.reqs.size(); ++r)
    lens.push_back(static_cast<std::int32_t>(
        p.reqs[r].seq_len() - std::min<std::int64_t>(p.reqs[r].context_len, static_cast<std::int64_t>((r + 7) % 41))));
  must(cudaMemcpy(w.batch.seq_lens.data, lens.data(), lens.size() * 4, cudaMemcpyHostToDevice));
}

/// Makes dim 3 of one value infinite: in request 0, that of its middle row's token, so that rows before it do not see it. False
/// if the cache's type has no infinity.
bool make_a_value_infinite(const Work& w, const Problem& p) {
  const DType dtype = p.kv_dtype;
  if (dtype != DType::f16 && dtype != DType::bf16) return false;
  std::int32_t seq_len = 0, page = 0;
  must(cudaMemcpy(&seq_len, w.batch.seq_lens.data, 4, cudaMemcpyDeviceToHost));
  const std::int64_t position = seq_len - p.reqs[0].query_len / 2 - 1;
  must(cudaMemcpy(&page, static_cast<const std::int32_t*>(w.batch.block_table.data) + position / p.page_size, 4,
                  cudaMemcpyDeviceToHost));
  const Tensor& v = w.caches[0].v;
  const bool packed = p.layout == CacheLayout::packed;
  const int token_axis = p.layout == CacheLayout::nhd ? 1 : packed ? 3 : 2;
  const std::int64_t at =
      page * v.stride[0] + position % p.page_size * v.stride[token_axis] + 3 * (packed ? v.stride[2] : v.stride[3]);
  const std::uint16_t infinity = dtype == DType::f16 ? 0x7C00 : 0x7F80;
  must(cudaMemcpy(static_cast<std::uint16_t*>(v.data) + at, &infinity, 2, cudaMemcpyHostToDevice));
  return true;
}

void check_line(const std::string& text, const Asked& asked, bool first) {
  const ProblemLine line = must(parse_problem_line(text));
  const Work w = make_work(line, asked);
  const Prepared p = prepare(w, line.problem, asked), other = prepare(w, line.problem, {.kernel = "cuda_generic"});
  Batch again = w.batch;
  again.output = random_tensor(w.batch.output.dtype, w.batch.output.shape, 3, 99);
  const auto run = [&](const Prepared& how, const Batch& batch, cudaStream_t stream) {
    AttendOptions options;
    options.stream = stream;
    if (asked.prepared && &how == &p) must(prepare(how.plan, batch, w.caches[0], w.options, how.workspace, options));
    options.prepared = asked.prepared && &how == &p;
    // A layer before the one that is compared, into the same output: counters are used by then.
    if (options.prepared) must(attend(how.plan, batch, w.caches.back(), w.options, how.workspace, options));
    must(attend(how.plan, batch, w.caches[0], w.options, how.workspace, options));
  };
  const auto finish = [&](const Prepared& how, const Batch& batch) {
    must(attend_status(how.plan, batch, w.caches[0], w.options, how.workspace));
  };
  run(p, w.batch, nullptr), finish(p, w.batch);
  bool equal = true;
  for (int i = 0; i < 20; ++i) {
    run(p, again, nullptr), finish(p, again);
    equal = equal && difference(again.output, w.batch.output).off == 0.0f;
  }
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  must(cudaStreamCreate(&stream));
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  run(p, again, stream);
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&executable, graph, 0));
  const float before = difference(again.output, w.batch.output).off;
  shorten(w, line.problem);
  must(cudaGraphLaunch(executable, stream));
  must(cudaStreamSynchronize(stream));
  finish(p, again);
  const float moved = difference(again.output, w.batch.output).off;
  run(other, w.batch, nullptr), finish(other, w.batch);
  const auto [replayed, largest, outside] = difference(again.output, w.batch.output, bound_of(line.problem, p.plan));
  std::printf(
      "%s\n  {\"line\": \"%s\", \"kernel\": \"%s\", \"repeats_equal\": %s, \"outputs_moved_by\": %.3g, "
      "\"replay_agrees\": %s, \"replay_difference_from_generic\": %.3g, \"max_output\": %.3g",
      first ? "" : ",", text.c_str(), std::string(p.plan.kernel).c_str(), equal && before == 0.0f ? "true" : "false",
      static_cast<double>(moved), outside == 0 ? "true" : "false", static_cast<double>(replayed), static_cast<double>(largest));
  if (make_a_value_infinite(w, line.problem)) {
    run(p, again, nullptr), finish(p, again);
    run(other, w.batch, nullptr), finish(other, w.batch);
    const auto [off, infinite, beyond] = difference(again.output, w.batch.output, bound_of(line.problem, p.plan));
    std::printf(", \"infinite_value_agrees\": %s, \"infinite_value_difference_from_generic\": \"%.3g\", \"infinite_outputs\": %s",
                beyond == 0 ? "true" : "false", static_cast<double>(off), std::isinf(infinite) ? "true" : "false");
  }
  std::printf("}");
}

/// One call, or a step of three layers, and whether it broke a rule.
void run(const Work& w, const Prepared& how, const Batch& batch, bool prepared = false) {
  AttendOptions options;
  options.prepared = prepared;
  if (prepared) must(prepare(how.plan, batch, w.caches[0], w.options, how.workspace));
  for (int layer = 0; layer < (prepared ? 2 : 0); ++layer)
    must(attend(how.plan, batch, w.caches.back(), w.options, how.workspace, options));
  must(attend(how.plan, batch, w.caches[0], w.options, how.workspace, options));
  must(attend_status(how.plan, batch, w.caches[0], w.options, how.workspace));
}

void run_once(const std::string& text, const Asked& asked, bool first) {
  const ProblemLine line = must(parse_problem_line(text));
  const Work w = make_work(line, asked);
  const Prepared p = prepare(w, line.problem, asked), other = prepare(w, line.problem, {.kernel = "cuda_generic"});
  Batch check = w.batch;
  check.output = random_tensor(w.batch.output.dtype, w.batch.output.shape, 3, 99);
  run(w, p, w.batch, asked.prepared), run(w, other, check);
  const auto [off, largest, outside] = difference(w.batch.output, check.output, bound_of(line.problem, p.plan));
  std::printf("%s\n  {\"line\": \"%s\", \"kernel\": \"%s\", \"agrees\": %s, \"max_difference_from_generic\": %.3g}",
              first ? "" : ",", text.c_str(), std::string(p.plan.kernel).c_str(), outside == 0 ? "true" : "false",
              static_cast<double>(off));
}

/// append() of the line's tokens, each to the slot of its position: its time, and whether attend() over the cache that it filled
/// gives what attend() gives where this step's rows come from `key` and `value`.
void append_line(const std::string& text, Asked asked, bool first) {
  asked.key_value = true;
  const ProblemLine line = must(parse_problem_line(text));
  const Problem& p = line.problem;
  const Work w = make_work(line, asked);
  const std::int64_t width = w.batch.block_table.shape[1];
  std::vector<std::int32_t> table(static_cast<std::size_t>(w.batch.block_table.num_elements())), slots;
  must(cudaMemcpy(table.data(), w.batch.block_table.data, table.size() * 4, cudaMemcpyDeviceToHost));
  for (std::size_t r = 0; r < p.reqs.size(); ++r)
    for (std::int64_t at = p.reqs[r].context_len; at < p.reqs[r].seq_len(); ++at)
      slots.push_back(static_cast<std::int32_t>(
          table[static_cast<std::size_t>(static_cast<std::int64_t>(r) * width + at / p.page_size)] * p.page_size +
          at % p.page_size));
  const Tensor mapping = index_tensor(slots, {p.num_tokens()}, 1);
  const auto put = [&](int i, cudaStream_t stream) {
    AppendOptions options;
    options.stream = stream;
    must(append(w.caches[static_cast<std::size_t>(i) % w.caches.size()], w.batch.key, w.batch.value, mapping, options));
  };
  const double ms = graph_ms(std::max<int>(16, static_cast<int>(w.caches.size())), put);
  put(0, nullptr);
  Batch whole = w.batch, check = w.batch;
  whole.key = whole.value = whole.cached_lens = Tensor{};
  check.output = random_tensor(w.batch.output.dtype, w.batch.output.shape, 3, 99);
  const Work appended{whole, w.caches, w.options};
  run(appended, prepare(appended, p, {.kernel = "cuda_generic"}), whole);
  run(w, prepare(w, p, {.kernel = "cuda_generic"}), check);
  const auto [off, largest, outside] = difference(whole.output, check.output);
  std::printf(
      "%s\n  {\"line\": \"%s\", \"tokens\": %lld, \"append_us\": %.2f, \"difference_from_key_and_value\": %.3g, "
      "\"max_output\": %.3g}",
      first ? "" : ",", text.c_str(), static_cast<long long>(p.num_tokens()), ms * 1000, static_cast<double>(off),
      static_cast<double>(largest));
}

/// What is asked of every line.
enum class Question { time, check, once, append };

void run_line(const std::string& text, const Asked& asked, double ceiling, bool first) {
  const ProblemLine line = must(parse_problem_line(text));
  const Work w = make_work(line, asked);
  const Prepared p = prepare(w, line.problem, asked), other = prepare(w, line.problem, {.kernel = "cuda_generic"});
  Batch check = w.batch, once = w.batch;
  check.output = random_tensor(w.batch.output.dtype, w.batch.output.shape, 3, 99);
  once.output = random_tensor(w.batch.output.dtype, w.batch.output.shape, 3, 98);
  run(w, p, once, asked.prepared), run(w, other, check);
  const auto [off, largest, outside] = difference(once.output, check.output, bound_of(line.problem, p.plan));

  const int calls = std::max<int>(4, static_cast<int>(w.caches.size()));
  bool prepares = false;  // the graph's first layer
  const auto enqueue = [&](int i, cudaStream_t stream) {
    AttendOptions options;
    options.stream = stream;
    const KVCache& cache = w.caches[static_cast<std::size_t>(i) % w.caches.size()];
    if (i == 0 && prepares) must(prepare(p.plan, w.batch, cache, w.options, p.workspace, options));
    options.prepared = asked.prepared;
    must(attend(p.plan, w.batch, cache, w.options, p.workspace, options));
  };
  if (asked.prepared) must(prepare(p.plan, w.batch, w.caches[0], w.options, p.workspace));
  const double ms = graph_ms(calls, enqueue);
  prepares = asked.prepared;
  const double step_ms = asked.layers > 0 ? graph_ms(static_cast<int>(asked.layers), enqueue) : ms;
  must(attend_status(p.plan, w.batch, w.caches[0], w.options, p.workspace));
  run(w, p, w.batch, asked.prepared);
  const bool repeats = difference(w.batch.output, once.output).off == 0;
  double kv_bytes = 0;
  for (const Request& r : line.problem.reqs) {
    const std::int64_t window = line.problem.sliding_window.value_or(r.seq_len());
    const std::int64_t keys = std::min(r.seq_len(), window + r.query_len - 1);
    kv_bytes += static_cast<double>(keys * line.problem.num_kv_heads * line.problem.kv_bytes());
  }
  const double flops = 2.0 * static_cast<double>(line.problem.visible_pairs() * line.problem.num_q_heads *
                                                 (line.problem.head_dim + line.problem.out_dim()));
  std::printf(
      "%s\n  {\"line\": \"%s\", \"key_value\": %s, \"batch_invariant\": %s, \"unbounded\": %s, \"one_tensor\": %s, "
      "\"asked_kernel\": \"%s\", \"kernel\": \"%s\", "
      "\"prepared\": %s, \"columns\": %lld, \"layers\": %lld, \"step_us\": %.2f, "
      "\"us\": %.2f, "
      "\"kv_tb_per_s\": %.3f, \"of_read\": %.3f, \"tflop_per_s\": %.1f, \"agrees\": %s, \"repeats\": %s, "
      "\"max_difference_from_generic\": %.3g, \"max_output\": %.3g}",
      first ? "" : ",", text.c_str(), asked.key_value ? "true" : "false", asked.invariant ? "true" : "false",
      asked.unbounded ? "true" : "false", asked.one_tensor ? "true" : "false", asked.kernel.c_str(),
      std::string(p.plan.kernel).c_str(), asked.prepared ? "true" : "false", static_cast<long long>(asked.columns),
      static_cast<long long>(asked.layers), step_ms * 1000, ms * 1000, kv_bytes / ms * 1e-9, kv_bytes / ms * 1e-9 / ceiling,
      flops / ms * 1e-9, outside == 0 ? "true" : "false", repeats ? "true" : "false", static_cast<double>(off),
      static_cast<double>(largest));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Asked asked;
  Question question = Question::time;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--check") question = Question::check;
    if (std::string(argv[i]) == "--once") question = Question::once;
    if (std::string(argv[i]) == "--append") question = Question::append;
  }
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0));
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const double ceiling = question == Question::once ? 0 : read_ceiling();
  const char* commit = std::getenv("QUIRE_COMMIT");
  std::printf(
      "{\"device\": \"%s\", \"date\": \"%s\", \"commit\": \"%s\", \"read_tb_per_s\": %.3f, \"method\": \"CUDA-graph replay of "
      "whole "
      "attend() calls, median of 20\", \"results\": [",
      device.name, date, commit != nullptr ? commit : "unknown", ceiling);
  bool first = true;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--kernel" && i + 1 < argc)
      asked.kernel = argv[++i];
    else if (word == "--offset" && i + 1 < argc)
      asked.offset = std::atoll(argv[++i]);
    else if (word == "--columns" && i + 1 < argc)
      asked.columns = std::atoll(argv[++i]);
    else if (word == "--layers" && i + 1 < argc)
      asked.layers = std::atoll(argv[++i]);
    else if (word == "--prepared")
      asked.prepared = true;
    else if (word == "--key-value")
      asked.key_value = true;
    else if (word == "--invariant")
      asked.invariant = true;
    else if (word == "--unbounded")
      asked.unbounded = true;
    else if (word == "--one-tensor")
      asked.one_tensor = true;
    else if (word == "--check" || word == "--once" || word == "--append")
      continue;
    else {
      if (question == Question::time) run_line(word, asked, ceiling, first);
      if (question == Question::check) check_line(word, asked, first);
      if (question == Question::once) run_once(word, asked, first);
      if (question == Question::append) append_line(word, asked, first);
      free_line();
      asked.key_value = asked.invariant = asked.unbounded = asked.one_tensor = asked.prepared = first = false;
      asked.columns = 0;
    }
  }
  std::printf("\n]}\n");
}
