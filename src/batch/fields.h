// SPDX-License-Identifier: Apache-2.0
// The table of a call's fields (fields.inc): a constant for each tensor, and loops over the fields of calls.
// The numbers of members are counted from the structs: a member without a row, or a row without a member, does not compile.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "quire/batch.hpp"

namespace quire::batch {

/// The role of a tensor. `flags` are one byte a request, `bits` some bytes a row. A `scale` has one element, one for each head or
/// one for each token.
enum class Kind { rows, index, flags, bits, floats, scale, cache, block_scale };
/// What the first axis of a tensor counts, so that parts of a call can be cut. A `scale` of pages may be one for all.
enum class Axis { token, request, page, none };
/// `required`: every call and every capture has it. `call_requires`: every call has it; a capture may lack it, and reading the
/// capture makes it.
enum class Presence { required, call_requires, optional };
/// What attend() does with a tensor.
enum class Access { read, written };

/// A row of the table.
struct TensorField {
  std::string_view member;
  std::string_view name;       ///< the tensor's name in messages
  std::string_view stored_as;  ///< the tensor's key in captures
  Kind kind;
  Axis axis;
  Presence presence;
  Access access;
  /// Whether the layers of a step share the tensor, as they do lengths and tables.
  constexpr bool of_step() const noexcept { return kind == Kind::index || kind == Kind::flags || kind == Kind::bits; }
  /// Whether check() and append() alone look at it.
  constexpr bool of_rules() const noexcept { return member == "slot_mapping" || member == "request_ids"; }
};

#define QUIRE_FIELD(member, name, stored_as, kind, axis, presence, access) \
  TensorField { #member, name, stored_as, Kind::kind, Axis::axis, Presence::presence, Access::access }

/// All tensors, those of Batch first, then those of KVCache and Options.
inline constexpr TensorField kTensors[] = {
#define QUIRE_BATCH_TENSOR(...) QUIRE_FIELD(__VA_ARGS__),
#define QUIRE_CACHE_TENSOR(...) QUIRE_FIELD(__VA_ARGS__),
#define QUIRE_OPTIONS_TENSOR(...) QUIRE_FIELD(__VA_ARGS__),
#include "batch/fields.inc"
};
inline constexpr std::size_t kNumTensors = std::size(kTensors);

template <typename T>
concept HasBatch = requires(T& of) { of.batch; };
template <typename T>
concept HasCache = requires(T& of) { of.cache; };
template <typename T>
concept HasOptions = requires(T& of) { of.options; };

/// A call by its parts. A part holds tensors, or what stands for a tensor of the same name: arrays, handles, C structs.
template <typename Batch, typename Cache, typename Options>
struct Call {
  Batch& batch;
  Cache& cache;
  Options& options;
};
template <typename B, typename C, typename O>
Call(B&, C&, O&) -> Call<B, C, O>;

/// One part of a call.
template <typename Batch>
struct BatchPart {
  Batch& batch;
};
template <typename B>
BatchPart(B&) -> BatchPart<B>;
template <typename Cache>
struct CachePart {
  Cache& cache;
};
template <typename C>
CachePart(C&) -> CachePart<C>;
template <typename Options>
struct OptionsPart {
  Options& options;
};
template <typename O>
OptionsPart(O&) -> OptionsPart<O>;

/// Calls visit(field, a.batch.query, b.batch.query ...) for each tensor of the parts (batch, cache, options) that all of `calls`
/// have.
template <typename Visit, typename... Calls>
constexpr void for_each_tensor(Visit&& visit, Calls&&... calls) {
#define QUIRE_BATCH_TENSOR(member, ...) \
  if constexpr ((HasBatch<Calls> && ...)) visit(QUIRE_FIELD(member, __VA_ARGS__), calls.batch.member...);
#define QUIRE_CACHE_TENSOR(member, ...) \
  if constexpr ((HasCache<Calls> && ...)) visit(QUIRE_FIELD(member, __VA_ARGS__), calls.cache.member...);
#define QUIRE_OPTIONS_TENSOR(member, ...) \
  if constexpr ((HasOptions<Calls> && ...)) visit(QUIRE_FIELD(member, __VA_ARGS__), calls.options.member...);
#include "batch/fields.inc"
}

/// Calls visit("layout", a.cache.layout, b.cache.layout ...) for each member of these parts that is no tensor.
template <typename Visit, typename... Calls>
constexpr void for_each_choice(Visit&& visit, Calls&&... calls) {
#define QUIRE_BATCH_CHOICE(member) \
  if constexpr ((HasBatch<Calls> && ...)) visit(std::string_view(#member), calls.batch.member...);
#define QUIRE_CACHE_CHOICE(member) \
  if constexpr ((HasCache<Calls> && ...)) visit(std::string_view(#member), calls.cache.member...);
#define QUIRE_OPTIONS_CHOICE(member) \
  if constexpr ((HasOptions<Calls> && ...)) visit(std::string_view(#member), calls.options.member...);
#include "batch/fields.inc"
}

/// Converts to the type of any member.
struct AnyMember {
  template <typename T>
  operator T() const noexcept;  // NOLINT(google-explicit-constructor): it stands for a member, and is never called
};
template <typename Struct, std::size_t... i>
consteval bool has_members(std::index_sequence<i...> /*count*/) {
  return requires { Struct{(static_cast<void>(i), AnyMember{})...}; };
}
/// Number of members of an aggregate.
template <typename Struct, std::size_t n = 0>
consteval std::size_t num_members() {
  if constexpr (has_members<Struct>(std::make_index_sequence<n + 1>()))
    return num_members<Struct, n + 1>();
  else
    return n;
}

/// Rows of the table for each struct.
// NOLINTBEGIN(bugprone-macro-parentheses): each row is one more term of a sum.
inline constexpr std::size_t kBatchFields = 0
#define QUIRE_BATCH_TENSOR(...) +1
#define QUIRE_BATCH_CHOICE(...) +1
#include "batch/fields.inc"
    ;
inline constexpr std::size_t kCacheFields = 0
#define QUIRE_CACHE_TENSOR(...) +1
#define QUIRE_CACHE_CHOICE(...) +1
#include "batch/fields.inc"
    ;
inline constexpr std::size_t kOptionsFields = 0
#define QUIRE_OPTIONS_TENSOR(...) +1
#define QUIRE_OPTIONS_CHOICE(...) +1
#include "batch/fields.inc"
    ;
// NOLINTEND(bugprone-macro-parentheses)
static_assert(kBatchFields == num_members<Batch>(), "Batch has other members than fields.inc has rows");
static_assert(kCacheFields == num_members<KVCache>(), "KVCache has other members than fields.inc has rows");
static_assert(kOptionsFields == num_members<Options>(), "Options has other members than fields.inc has rows");

#undef QUIRE_FIELD

}  // namespace quire::batch
