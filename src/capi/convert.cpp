// SPDX-License-Identifier: Apache-2.0
// C ABI: conversions. A struct is read member by member into its C++ twin; the first implausible member ends it.
#include "capi/convert.h"
#include "batch/fields.h"
#include "text/formatted.h"

#include <type_traits>
#include <utility>

namespace quire::capi {
namespace {

static_assert(std::is_same_v<std::int32_t, int>, "quire_executor's task and Executor's task are the same function type");
static_assert(QUIRE_MAX_RANK == Tensor::kMaxRank);
static_assert(QUIRE_DTYPE_NONE == static_cast<int>(DType::none) && QUIRE_F32 == static_cast<int>(DType::f32) &&
              QUIRE_F16 == static_cast<int>(DType::f16) && QUIRE_BF16 == static_cast<int>(DType::bf16) &&
              QUIRE_FP8_E4M3FN == static_cast<int>(DType::fp8_e4m3fn) &&
              QUIRE_FP8_E4M3FNUZ == static_cast<int>(DType::fp8_e4m3fnuz) &&
              QUIRE_FP8_E5M2 == static_cast<int>(DType::fp8_e5m2) &&
              QUIRE_FP8_E5M2FNUZ == static_cast<int>(DType::fp8_e5m2fnuz) && QUIRE_I32 == static_cast<int>(DType::i32) &&
              QUIRE_I64 == static_cast<int>(DType::i64) && QUIRE_U8 == static_cast<int>(DType::u8) &&
              QUIRE_I8 == static_cast<int>(DType::i8) && QUIRE_NVFP4 == static_cast<int>(DType::nvfp4) &&
              QUIRE_MXFP4 == static_cast<int>(DType::mxfp4) && QUIRE_FP8_E8M0 == static_cast<int>(DType::fp8_e8m0) &&
              QUIRE_FP8_DS_MLA == static_cast<int>(DType::fp8_ds_mla));
static_assert(QUIRE_MEMORY_CPU == static_cast<int>(Memory::cpu) && QUIRE_MEMORY_CUDA == static_cast<int>(Memory::cuda) &&
              QUIRE_MEMORY_HIP == static_cast<int>(Memory::hip));
static_assert(QUIRE_NHD == static_cast<int>(CacheLayout::nhd) && QUIRE_HND == static_cast<int>(CacheLayout::hnd) &&
              QUIRE_PACKED == static_cast<int>(CacheLayout::packed));
static_assert(QUIRE_PADDING_REFUSED == static_cast<int>(Padding::refused) &&
              QUIRE_PADDING_LEFT == static_cast<int>(Padding::left) && QUIRE_PADDING_ZERO == static_cast<int>(Padding::zero));

/// Reads members of one struct and keeps the first failure.
class Reader {
 public:
  explicit Reader(const char* struct_name) : struct_name_(struct_name) {}

  template <typename Struct>
  bool open(const Struct* s) {
    if (s == nullptr) {
      status_ = {Code::invalid_argument, quire::formatted("{}: NULL, expected a pointer", struct_name_)};
    } else {
      status_ = check_struct(s, s->struct_size, sizeof(Struct), struct_name_);
    }
    return status_.ok();
  }
  void refuse(std::string_view member, std::string_view text, Code code = Code::invalid_argument) {
    if (status_.ok()) status_ = {code, quire::formatted("{}{}{}: {}", struct_name_, member.empty() ? "" : ".", member, text)};
  }
  std::int64_t within(std::string_view member, std::int64_t value, std::int64_t first, std::int64_t last) {
    if (value >= first && value <= last) return value;
    refuse(member, quire::formatted("{}, expected {} to {}", value, first, last));
    return first;
  }
  void reserved(std::string_view member, std::int64_t value) {
    if (value != 0) refuse(member, quire::formatted("{}, but this version knows no meaning for it", value), Code::unsupported);
  }
  bool flag(std::string_view member, std::int64_t value) { return within(member, value, 0, 1) == 1; }
  Tensor tensor(std::string_view member, const quire_tensor& t);
  const Status& status() const { return status_; }
  /// The value that was read, or the first failure.
  template <typename T>
  Result<T> result(T read) const {
    if (!status_.ok()) return status_;
    return read;
  }

 private:
  const char* struct_name_;
  Status status_;
};

Tensor Reader::tensor(std::string_view member, const quire_tensor& t) {
  reserved(member, t.reserved);
  within(member.empty() ? "dtype" : quire::formatted("{}.dtype", member), t.dtype, QUIRE_DTYPE_NONE, QUIRE_FP8_DS_MLA);
  within(member.empty() ? "rank" : quire::formatted("{}.rank", member), t.rank, 0, QUIRE_MAX_RANK);
  within(member.empty() ? "memory" : quire::formatted("{}.memory", member), t.memory, QUIRE_MEMORY_CPU, QUIRE_MEMORY_HIP);
  if (!status_.ok()) return {};
  if (t.dtype == QUIRE_DTYPE_NONE) {
    // A forgotten dtype must not turn a given tensor into an absent one.
    if (t.data != nullptr || t.rank != 0) refuse(member, "dtype is QUIRE_DTYPE_NONE (absent), but data or rank is set");
    return {};
  }
  Tensor out;
  out.data = t.data;
  out.dtype = static_cast<DType>(t.dtype);
  out.rank = t.rank;
  out.memory = static_cast<Memory>(t.memory);
  for (int i = 0; i < t.rank; ++i) {
    out.shape[i] = t.shape[i];
    out.stride[i] = t.stride[i];
  }
  return out;
}

/// Fields of quire_batch, quire_cache and quire_options besides the table's: struct_size, reserved members, and has_ flags.
static_assert(batch::num_members<quire_batch>() == batch::kBatchFields + 2,
              "quire_batch has other members than fields.inc has rows");
static_assert(batch::num_members<quire_cache>() == batch::kCacheFields + 2,
              "quire_cache has other members than fields.inc has rows");
static_assert(batch::num_members<quire_options>() == batch::kOptionsFields + 9,
              "quire_options has other members than fields.inc has rows");

/// Reads or writes each tensor of a struct of quire.h and of its C++ twin.
template <typename Ours, typename Theirs>
void read_tensors(Reader& reader, const Theirs& from, const Ours& to) {
  batch::for_each_tensor(
      [&](const batch::TensorField& f, const quire_tensor& t, Tensor& out) { out = reader.tensor(f.member, t); }, from, to);
}
template <typename Ours, typename Theirs>
void write_tensors(const Ours& from, const Theirs& to) {
  batch::for_each_tensor([&](const batch::TensorField&, const Tensor& t, quire_tensor& out) { out = to_c(t); }, from, to);
}

/// A choice that may be absent has a has_ flag; a choice that is true by default has a non_ flag.
template <typename Ours, typename Theirs>
void read_choices(Reader& reader, const Theirs& from, Ours& to) {
#define QUIRE_OPTIONS_CHOICE(member)                                             \
  if constexpr (requires { from.has_##member; }) {                               \
    if (reader.flag("has_" #member, from.has_##member)) to.member = from.member; \
  } else if constexpr (requires { from.non_##member; }) {                        \
    to.member = !reader.flag("non_" #member, from.non_##member);                 \
  } else {                                                                       \
    to.member = reader.flag(#member, from.member);                               \
  }
#include "batch/fields.inc"
}
template <typename Ours, typename Theirs>
void write_choices(const Ours& from, Theirs& to) {
#define QUIRE_OPTIONS_CHOICE(member)                    \
  if constexpr (requires { to.has_##member; }) {        \
    to.has_##member = from.member.has_value();          \
    to.member = from.member.value_or(0);                \
  } else if constexpr (requires { to.non_##member; }) { \
    to.non_##member = from.member ? 0 : 1;              \
  } else {                                              \
    to.member = from.member ? 1 : 0;                    \
  }
#include "batch/fields.inc"
}

Result<Batch> read_batch(const quire_batch* b) {
  Reader reader("batch");
  if (!reader.open(b)) return reader.status();
  Batch out;
  read_tensors(reader, batch::BatchPart{*b}, batch::BatchPart{out});
  out.padding = static_cast<Padding>(reader.within("padding", b->padding, QUIRE_PADDING_REFUSED, QUIRE_PADDING_ZERO));
  reader.reserved("reserved", b->reserved);
  return reader.result(out);
}

Result<Options> read_options(const quire_options* o) {
  Options out;
  if (o == nullptr) return out;
  Reader reader("options");
  if (!reader.open(o)) return reader.status();
  read_choices(reader, *o, out);
  read_tensors(reader, batch::OptionsPart{*o}, batch::OptionsPart{out});
  for (const auto& [name, value] : {std::pair{"reserved", o->reserved}, {"reserved2", o->reserved2}})
    reader.reserved(name, value);
  return reader.result(out);
}

/// Assigns everything but struct_size.
template <typename Struct>
Status write_struct(Struct value, Struct* to, const char* name) {
  Status status = check_struct(to, to->struct_size, sizeof(Struct), name);
  if (!status.ok()) return status;
  value.struct_size = to->struct_size;
  *to = value;
  return {};
}

}  // namespace

Status check_struct(const void* bytes, std::size_t struct_size, std::size_t known_size, const char* name) {
  constexpr std::size_t kPlausible = 1 << 16;  // bytes; a larger struct_size was never initialised
  if (struct_size < known_size || struct_size > kPlausible)
    return {Code::invalid_argument, quire::formatted("{}: struct_size {}, expected {} (start it with its QUIRE_..._INIT)", name,
                                                     struct_size, known_size)};
  for (std::size_t i = known_size; i < struct_size; ++i)
    if (static_cast<const unsigned char*>(bytes)[i] != 0)
      return {Code::unsupported,
              quire::formatted("{}: byte {} is set, but Quire {} knows only the first {}", name, i, QUIRE_VERSION, known_size)};
  return {};
}

Result<KVCache> read_cache(const quire_cache* c) {
  Reader reader("cache");
  if (!reader.open(c)) return reader.status();
  KVCache out;
  read_tensors(reader, batch::CachePart{*c}, batch::CachePart{out});
  out.layout = static_cast<CacheLayout>(reader.within("layout", c->layout, QUIRE_NHD, QUIRE_PACKED));
  reader.reserved("reserved", c->reserved);
  return reader.result(out);
}

Result<Inputs> read_inputs(const quire_batch* batch, const quire_cache* cache, const quire_options* options) {
  Result<Batch> b = read_batch(batch);
  if (!b.ok()) return b.status();
  Result<KVCache> c = read_cache(cache);
  if (!c.ok()) return c.status();
  Result<Options> o = read_options(options);
  if (!o.ok()) return o.status();
  return Inputs{b.value(), c.value(), o.value()};
}

Result<Tensor> read_tensor(const quire_tensor* tensor, const char* name) {
  Reader reader(name);
  if (Status status = require({{tensor, name}}); !status.ok()) return status;
  return reader.result(reader.tensor("", *tensor));
}

Result<PlanSettings> read_settings(const quire_plan_settings* s) {
  PlanSettings out;
  if (s == nullptr) return out;
  Reader reader("settings");
  if (!reader.open(s)) return reader.status();
  if (s->kernel != nullptr) out.kernel = s->kernel;
  out.batch_invariant = reader.flag("batch_invariant", s->batch_invariant);
  out.num_threads = static_cast<int>(reader.within("num_threads", s->num_threads, 0, kMaxThreads));
  out.max_query_len = reader.within("max_query_len", s->max_query_len, 0, INT32_MAX);
  out.max_seq_len = reader.within("max_seq_len", s->max_seq_len, 0, INT32_MAX);
  out.exact_weights = reader.flag("exact_weights", s->exact_weights);
  reader.reserved("reserved", s->reserved);
  return reader.result(out);
}

Result<CallOptions> read_call_options(const quire_attend_options* o) {
  CallOptions out;
  if (o == nullptr) return out;
  Reader reader("attend_options");
  if (!reader.open(o)) return reader.status();
  auto executor = read_executor(o->executor);
  if (!executor.ok()) return executor.status();
  out.executor = executor.value();
  out.rows_written = o->rows_written;
  out.stream = o->stream;
  out.nan_if_refused = reader.flag("nan_if_refused", o->nan_if_refused);
  out.prepared = reader.flag("prepared", o->prepared);
  return reader.result(out);
}

Result<std::optional<CallerExecutor>> read_executor(const quire_executor* executor) {
  if (executor == nullptr) return std::optional<CallerExecutor>();
  Reader reader("executor");
  if (!reader.open(executor)) return reader.status();
  reader.within("num_threads", executor->num_threads, 1, kMaxThreads);
  reader.reserved("reserved", executor->reserved);
  if (executor->run == nullptr) reader.refuse("run", "NULL, expected a function");
  return reader.result(std::optional<CallerExecutor>(*executor));
}

quire_tensor to_c(const Tensor& tensor) {
  quire_tensor out{};
  if (!tensor.present()) return out;
  out.data = tensor.data;
  out.dtype = static_cast<quire_dtype>(tensor.dtype);
  out.rank = tensor.rank;
  out.memory = static_cast<quire_memory>(tensor.memory);
  for (int i = 0; i < tensor.rank; ++i) {
    out.shape[i] = tensor.shape[i];
    out.stride[i] = tensor.stride[i];
  }
  return out;
}

Status write_batch(const Batch& from, quire_batch* to) {
  quire_batch b{};
  write_tensors(batch::BatchPart{from}, batch::BatchPart{b});
  b.padding = static_cast<quire_padding>(from.padding);
  return write_struct(b, to, "batch");
}

Status write_cache(const KVCache& from, quire_cache* to) {
  quire_cache c{};
  write_tensors(batch::CachePart{from}, batch::CachePart{c});
  c.layout = static_cast<quire_layout>(from.layout);
  return write_struct(c, to, "cache");
}

Status write_options(const Options& from, quire_options* to) {
  quire_options o{};
  write_tensors(batch::OptionsPart{from}, batch::OptionsPart{o});
  write_choices(from, o);
  return write_struct(o, to, "options");
}

}  // namespace quire::capi
