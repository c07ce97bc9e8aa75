// SPDX-License-Identifier: Apache-2.0
// append() of 16-bit rows whose dims are neighbours: unchanged into a cache of their type, or as e4m3fn or e5m2 codes. A thread
// moves a word of 8 dims of one token. Values of a packed cache, whose tokens are neighbours, are moved by columns: one dim of 8
// tokens, in the widest words that their slots allow. append_piece() computes all values that depend on the kernel's arguments
// alone before the first read, so that it can overlap with the kernel ahead. The bits are those of append.h.
#pragma once

#include "backend/gpu/runtime.h"

#include <type_traits>

#include "backend/gpu/append_words_args.h"
#include "semantics/dtype.h"

namespace quire::gpu {

/// 8 dims of a row, or their codes.
template <int kBytes>
struct alignas(kBytes) AppendParts {
  std::uint32_t part[kBytes / 4];
};

/// A copy keeps every bit but one: a signalling NaN becomes quiet, as decoding and encoding make it.
template <DType kRows>
QUIRE_DEVICE std::uint32_t quiet_pair(std::uint32_t pair) {
  constexpr std::uint32_t kBelowNan =
      kRows == DType::bf16 ? 0x007F007Fu : 0x03FF03FFu;  // carries into bit 15 from the first NaN on
  constexpr int kToQuietBit = kRows == DType::bf16 ? 9 : 6;
  return pair | (((pair & 0x7FFF7FFFu) + kBelowNan) & 0x80008000u) >> kToQuietBit;
}

template <DType kRows>
QUIRE_DEVICE float decode_row(std::uint32_t code) {
  if constexpr (kRows == DType::bf16) return semantics::bf16_decode(static_cast<std::uint16_t>(code));
  return f16_decode(static_cast<std::uint16_t>(code));
}

/// Two codes in 16 bits, the first below. Hardware converts as fp8_encode() does, but for the sign of a NaN
/// (compared for every float: bench/results/h100-append.json).
template <DType kStored>
QUIRE_DEVICE std::uint32_t encode_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t codes;
  if constexpr (kStored == DType::fp8_e4m3fn)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes | (semantics::float_to_bits(first) >> 24 & 0x80u) | (semantics::float_to_bits(second) >> 16 & 0x8000u);
#else
  using Format = std::conditional_t<kStored == DType::fp8_e4m3fn, semantics::E4m3fn, semantics::E5m2>;
  return static_cast<std::uint32_t>(semantics::fp8_encode<Format>(first) | semantics::fp8_encode<Format>(second) << 8);
#endif
}

/// Divides all values by one number. On CUDA by the steps of a correctly rounded division with one reciprocal for all, where no
/// step can leave the range of f32 (2^17 rows by 14590 scales equal divisions, bench/results/h100-append.json).
QUIRE_DEVICE void divide_all(float (&value)[kAppendDims], float divisor) {
#if defined(__CUDA_ARCH__)
  constexpr std::uint32_t kLeast = 0x21800000u, kMost = 0x5D800000u;  // 2^-60 and 2^60
  bool is_plain = divisor >= 0x1p-60f && divisor <= 0x1p60f;
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) is_plain &= (semantics::float_to_bits(value[i]) & 0x7FFFFFFFu) - kLeast <= kMost - kLeast;
  if (is_plain) {
    float about;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(divisor));
    const float reciprocal = fma(about, fma(about, -divisor, 1.0f), about);
    QUIRE_UNROLL
    for (int i = 0; i < kAppendDims; ++i) {
      const float quotient = value[i] * reciprocal;
      value[i] = fma(reciprocal, fma(quotient, -divisor, value[i]), quotient);
    }
    return;
  }
#endif
  QUIRE_UNROLL
  for (int i = 0; i < kAppendDims; ++i) value[i] /= divisor;
}

/// Rows of type kRows into a cache of type kStored.
template <DType kRows, DType kStored>
struct AppendMove {
  static constexpr bool kIsCopy = kRows == kStored;
  static constexpr int kStoredBytes = kIsCopy ? 2 : 1;
  using Word = AppendParts<kAppendDims * kStoredBytes>;

  /// 8 elements as they are stored, from 8 of rows.
  QUIRE_DEVICE static Word word(const AppendParts<16>& rows, float divisor) {
    Word to;
    if constexpr (kIsCopy) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) to.part[i] = quiet_pair<kRows>(rows.part[i]);
    } else {
      float value[kAppendDims];
      QUIRE_UNROLL
      for (int i = 0; i < kAppendDims; ++i) value[i] = decode_row<kRows>(rows.part[i / 2] >> i % 2 * 16 & 0xFFFFu);
      if (divisor != 1.0f) divide_all(value, divisor);
      QUIRE_UNROLL
      for (int i = 0; i < kStoredBytes * 2; ++i)
        to.part[i] =
            encode_pair<kStored>(value[4 * i], value[4 * i + 1]) | encode_pair<kStored>(value[4 * i + 2], value[4 * i + 3]) << 16;
    }
    return to;
  }
};

#if defined(__CUDA_ARCH__)
/// Loads that are issued where they stand. The compiler would move one behind a branch on the other: two round trips to memory.
QUIRE_DEVICE AppendParts<16> load_now(const AppendParts<16>* at) {
  AppendParts<16> to;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.part[0]), "=r"(to.part[1]), "=r"(to.part[2]), "=r"(to.part[3])
               : "l"(at));
  return to;
}
QUIRE_DEVICE std::uint64_t load_now(const std::uint64_t* at) {
  std::uint64_t to;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(to) : "l"(at));
  return to;
}
QUIRE_DEVICE std::uint32_t load_now(const std::uint32_t* at) {
  std::uint32_t to;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(to) : "l"(at));
  return to;
}
QUIRE_DEVICE std::uint16_t load_now(const std::uint16_t* at) {
  std::uint16_t to;
  asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(to) : "l"(at));
  return to;
}
QUIRE_DEVICE float load_now(const float* at) {
  float to;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(to) : "l"(at));
  return to;
}
#else
template <class T>
QUIRE_DEVICE T load_now(const T* at) {
  return *at;
}
#endif

/// Piece that one thread moves, with all that it needs once it may read: a short call waits for every instruction after that.
struct AppendPiece {
  const std::uint8_t* rows = nullptr;
  std::uint8_t* cache = nullptr;                                     ///< place of the piece in slot 0
  const std::uint8_t* slots = nullptr;                               ///< the first token's; null: there is nothing to move
  const float* scale = nullptr;                                      ///< null = 1
  std::int64_t row_token = 0, slot_stride = 0, page = 0, token = 0;  ///< bytes
  Divisor page_size;
  std::uint32_t num_slots = 0;
  std::int32_t tokens = 0;
  bool wide_slots = false;
};

/// Makes the piece of an item: `each` tokens of a piece of one side.
QUIRE_DEVICE AppendPiece append_piece(const AppendWords& a, const AppendSide& side, int block, std::int32_t each) {
  const std::uint32_t item = static_cast<std::uint32_t>(block) * kAppendWordThreads + static_cast<std::uint32_t>(thread_index());
  const std::uint32_t group = side.of_token.of(item), piece = item - group * side.of_token.divisor;
  const std::uint32_t head = side.of_row.of(piece), at = piece - head * side.of_row.divisor;
  const std::uint32_t chunk = side.of_chunk.of(at);
  const std::int32_t first = static_cast<std::int32_t>(group) * each;
  if (first >= a.num_tokens) return {};
  AppendPiece p;
  p.rows = side.rows + first * side.row_token + head * side.row_head + at * side.row_piece;
  p.cache = side.cache + head * side.head + chunk * side.chunk + (at - chunk * side.of_chunk.divisor) * side.piece;
  p.slots = a.slots + first * a.slot_stride;
  if (side.scale.data != nullptr) p.scale = side.scale.data + head * side.scale.stride;
  p.row_token = side.row_token, p.slot_stride = a.slot_stride, p.page = side.page, p.token = side.token;
  p.page_size = a.page_size, p.num_slots = a.num_slots, p.wide_slots = a.wide_slots;
  p.tokens = a.num_tokens - first < each ? a.num_tokens - first : each;
  return p;
}

constexpr std::uint32_t kNoSlot = 0xFFFFFFFFu;

/// Slot of token i of the piece: below num_slots, or kNoSlot. As an unsigned number a negative slot is larger than any.
QUIRE_DEVICE std::uint32_t slot_of(const AppendPiece& p, int i) {
  const std::uint8_t* const at = p.slots + i * p.slot_stride;
  const std::uint64_t slot =
      p.wide_slots ? load_now(reinterpret_cast<const std::uint64_t*>(at)) : load_now(reinterpret_cast<const std::uint32_t*>(at));
  return slot < p.num_slots ? static_cast<std::uint32_t>(slot) : kNoSlot;
}
QUIRE_DEVICE std::uint8_t* place_of(const AppendPiece& p, std::uint32_t slot) {
  const std::uint32_t page = p.page_size.of(slot);
  return p.cache + page * p.page + (slot - page * p.page_size.divisor) * p.token;
}

template <class Move>
QUIRE_DEVICE void append_word(const AppendPiece& p) {
  if (p.slots == nullptr) return;
  const AppendParts<16> rows = load_now(reinterpret_cast<const AppendParts<16>*>(p.rows));
  const float divisor = !Move::kIsCopy && p.scale != nullptr ? load_now(p.scale) : 1.0f;
  const std::uint32_t slot = slot_of(p, 0);
  if (slot == kNoSlot) return;
  *reinterpret_cast<typename Move::Word*>(place_of(p, slot)) = Move::word(rows, divisor);
}

/// Element i of a word.
template <int kBytes, int kStoredBytes>
QUIRE_DEVICE std::uint32_t element_of(const AppendParts<kBytes>& word, int i) {
  return word.part[i * kStoredBytes / 4] >> 8 * (i * kStoredBytes % 4) & (kStoredBytes == 2 ? 0xFFFFu : 0xFFu);
}

/// Elements [kFirst, kFirst + kCount) of a column as one word, if their slots are neighbours and begin at a multiple of kCount.
template <int kFirst, int kCount, class Move>
QUIRE_DEVICE bool append_run(const AppendPiece& p, std::int32_t widest, const std::uint32_t* slots,
                             const typename Move::Word& column) {
  constexpr int kEach = Move::kStoredBytes, kBytes = kCount * kEach;
  const std::uint32_t slot = slots[kFirst];
  bool is_run = kCount <= widest && slot % kCount == 0;
  QUIRE_UNROLL
  for (int i = 1; i < kCount; ++i) is_run &= slots[kFirst + i] == slot + static_cast<std::uint32_t>(i);
  if (!is_run) return false;
  std::uint8_t* const to = place_of(p, slot);
  std::uint32_t part[(kBytes + 3) / 4] = {};
  QUIRE_UNROLL
  for (int i = 0; i < kCount; ++i)
    part[i * kEach / 4] |= element_of<kAppendColumn * kEach, kEach>(column, kFirst + i) << 8 * (i * kEach % 4);
  if constexpr (kBytes == 1)
    *to = static_cast<std::uint8_t>(part[0]);
  else if constexpr (kBytes == 2)
    *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(part[0]);
  else {
    AppendParts<kBytes> word;
    QUIRE_UNROLL
    for (int i = 0; i < kBytes / 4; ++i) word.part[i] = part[i];
    *reinterpret_cast<AppendParts<kBytes>*>(to) = word;
  }
  return true;
}

/// Elements from kFirst on, of which those before `next` are stored.
template <int kFirst, class Move>
QUIRE_DEVICE void append_runs(const AppendPiece& p, std::int32_t widest, const std::uint32_t* slots,
                              const typename Move::Word& column, int next = 0) {
  if constexpr (kFirst < kAppendColumn) {
    constexpr int kLeft = kAppendColumn - kFirst;
    if (kFirst >= next && slots[kFirst] != kNoSlot) {
      int count = 1;
      if (kLeft >= 8 && append_run<kLeft >= 8 ? kFirst : 0, 8, Move>(p, widest, slots, column))
        count = 8;
      else if (kLeft >= 4 && append_run<kLeft >= 4 ? kFirst : 0, 4, Move>(p, widest, slots, column))
        count = 4;
      else if (kLeft >= 2 && append_run<kLeft >= 2 ? kFirst : 0, 2, Move>(p, widest, slots, column))
        count = 2;
      else
        append_run<kFirst, 1, Move>(p, widest, slots, column);
      next = kFirst + count;
    }
    append_runs<kFirst + 1, Move>(p, widest, slots, column, next);
  }
}

/// Moves one dim of kAppendColumn tokens.
template <class Move>
QUIRE_DEVICE void append_column(const AppendPiece& p, std::int32_t widest) {
  if (p.slots == nullptr) return;
  std::uint32_t slots[kAppendColumn];
  AppendParts<2 * kAppendColumn> rows{};
  QUIRE_UNROLL
  for (int i = 0; i < kAppendColumn; ++i) {
    slots[i] = kNoSlot;
    if (i >= p.tokens) continue;
    rows.part[i / 2] |= static_cast<std::uint32_t>(load_now(reinterpret_cast<const std::uint16_t*>(p.rows + i * p.row_token)))
                        << i % 2 * 16;
    slots[i] = slot_of(p, i);
  }
  const float divisor = !Move::kIsCopy && p.scale != nullptr ? load_now(p.scale) : 1.0f;
  append_runs<0, Move>(p, widest, slots, Move::word(rows, divisor));
}

/// Words of keys, then words or columns of values: append_word_blocks() of kAppendWordThreads threads. `wait` returns when what
/// the tensors hold may be read.
template <DType kRows, DType kStored, bool kColumns, class Wait>
QUIRE_DEVICE void append_words(const AppendWords& a, Wait&& wait) {
  using Move = AppendMove<kRows, kStored>;
  const bool is_key = block_index() < a.key_blocks;
  const AppendSide& side = is_key ? a.key : a.value;
  const bool by_columns = kColumns && !is_key;
  const AppendPiece p =
      append_piece(a, side, is_key ? block_index() : block_index() - a.key_blocks, by_columns ? kAppendColumn : 1);
  wait();
  if (by_columns)
    append_column<Move>(p, a.widest_run);
  else
    append_word<Move>(p);
}

}  // namespace quire::gpu
