// SPDX-License-Identifier: Apache-2.0
// Conversions between f32 and fp8. gfx942 computes with the FNUZ formats, gfx950 and gfx12 with OCP's.
#include <cmath>
#include <iterator>

#include "amd_emulator/models.h"

namespace quire::amd {
namespace {

/// Place of a decoding instruction's byte, or for pairs of its 16 bits: 8 or 16 bits times `part`.
struct Decoding {
  std::uint32_t destination = 0, source = 0, part = 0, bytes = 0;
};

Decoding decoding_at(const std::uint32_t* word, bool pair) {
  constexpr std::uint32_t kVop1 = 0x3F, kSdwa = 0xF9;
  if (word[0] >> 25 != kVop1) {  // VOP3; a byte's number is op_sel with its bits exchanged
    const std::uint32_t high = word[0] >> 11 & 1, low = word[0] >> 12 & 1;
    return {word[0] & 0xFF, word[1] & 0x1FF, pair ? high : 2 * high + low, 8};
  }
  const std::uint32_t destination = word[0] >> 17 & 0xFF, code = word[0] & 0x1FF;
  if (code != kSdwa) return {destination, code, 0, 4};
  const bool scalar = (word[1] >> 23 & 1) != 0;
  constexpr std::uint32_t kWord1 = 5;  // index of WORD_1 in BYTE_0 to BYTE_3, WORD_0, WORD_1, DWORD
  const std::uint32_t selected = word[1] >> 16 & 7;
  return {destination, (word[1] & 0xFF) + (scalar ? 0 : kFirstVector), pair ? (selected == kWord1 ? 1u : 0u) : selected % 4, 8};
}

template <DType kType, int lanes, bool kPair>
void decode(std::uint32_t* scalars, std::uint32_t* vectors, void*, void*, void*, std::uint32_t*) {
  const Decoding at = decoding_at(words_at_pc(scalars), kPair);
  for (int lane = 0; lane < lanes; ++lane) {
    if (!active(scalars, lane)) continue;
    const std::uint32_t bits = source(scalars, vectors, at.source, lanes, lane) >> (at.part * (kPair ? 16 : 8));
    std::uint32_t* to = vectors + at.destination * lanes + lane;
    to[0] = semantics::float_to_bits(decode_bits<kType>(bits));
    if (kPair) to[lanes] = semantics::float_to_bits(decode_bits<kType>(bits >> 8));
  }
  advance(scalars, at.bytes);
}

/// Rounds to nearest even. Beyond the largest finite value: infinity if the format has one, else NaN (bit FP16_OVFL is clear).
template <DType kType>
std::uint32_t encoded(float value) {
  std::uint8_t code = 0;
  semantics::store(&code, kType, 0, value);  // saturates
  const float largest = std::fabs(decode_bits<kType>(code));
  if (std::isnan(value) || std::fabs(value) <= largest) return code;
  // From halfway to the next value of the format on, were there one, rounding overflows.
  const float step = largest - std::fabs(decode_bits<kType>(code - 1u));
  if (std::fabs(value) < largest + step / 2) return code;
  if (kType == DType::fp8_e5m2) return (code & 0x80u) | 0x7Cu;
  return kType == DType::fp8_e4m3fn ? (code & 0x80u) | 0x7Fu : 0x80u;
}

template <DType kType, int lanes>
void encode_pair(std::uint32_t* scalars, std::uint32_t* vectors, void*, void*, void*, std::uint32_t*) {
  constexpr std::uint32_t kLiteral = 255;
  const std::uint32_t* word = words_at_pc(scalars);
  const std::uint32_t codes[2] = {word[1] & 0x1FF, word[1] >> 9 & 0x1FF};
  const bool upper = (word[0] >> 14 & 1) != 0, literal = codes[0] == kLiteral || codes[1] == kLiteral;
  for (int lane = 0; lane < lanes; ++lane) {
    if (!active(scalars, lane)) continue;
    std::uint32_t pair = 0;
    for (std::uint32_t i = 0; i < 2; ++i) {
      std::uint32_t bits = codes[i] == kLiteral ? word[2] : source(scalars, vectors, codes[i], lanes, lane);
      if ((word[0] >> (8 + i) & 1) != 0) bits &= 0x7FFFFFFF;
      if ((word[1] >> (29 + i) & 1) != 0) bits ^= 0x80000000;
      pair |= encoded<kType>(semantics::bits_to_float(bits)) << (8 * i);
    }
    std::uint32_t& to = vectors[(word[0] & 0xFF) * lanes + static_cast<std::uint32_t>(lane)];
    to = upper ? (to & 0xFFFF) | pair << 16 : (to & 0xFFFF0000) | pair;
  }
  advance(scalars, literal ? 12 : 8);
}

struct Row {
  std::string_view mnemonic;  ///< mnemonic without the suffix of its encoding
  Model fnuz, ocp_wave64, ocp_wave32;
};

constexpr DType kFn = DType::fp8_e4m3fn, kE5m2 = DType::fp8_e5m2, kFnuz = DType::fp8_e4m3fnuz, kE5m2Fnuz = DType::fp8_e5m2fnuz;

constexpr Row kRows[] = {
    {"v_cvt_f32_fp8", decode<kFnuz, 64, false>, decode<kFn, 64, false>, decode<kFn, 32, false>},
    {"v_cvt_f32_bf8", decode<kE5m2Fnuz, 64, false>, decode<kE5m2, 64, false>, decode<kE5m2, 32, false>},
    {"v_cvt_pk_f32_fp8", decode<kFnuz, 64, true>, decode<kFn, 64, true>, decode<kFn, 32, true>},
    {"v_cvt_pk_f32_bf8", decode<kE5m2Fnuz, 64, true>, decode<kE5m2, 64, true>, decode<kE5m2, 32, true>},
    {"v_cvt_pk_fp8_f32", encode_pair<kFnuz, 64>, encode_pair<kFn, 64>, encode_pair<kFn, 32>},
    {"v_cvt_pk_bf8_f32", encode_pair<kE5m2Fnuz, 64>, encode_pair<kE5m2, 64>, encode_pair<kE5m2, 32>},
};

}  // namespace

Model conversion_model(std::string_view target, std::string_view mnemonic) {
  for (const std::string_view suffix : {"_e32", "_e64", "_sdwa"})
    if (mnemonic.ends_with(suffix)) mnemonic.remove_suffix(suffix.size());
  for (const Row& row : kRows) {
    if (row.mnemonic != mnemonic) continue;
    return target == "gfx942" ? row.fnuz : target == "gfx950" ? row.ocp_wave64 : target == "gfx1201" ? row.ocp_wave32 : nullptr;
  }
  return nullptr;
}

extern "C" void* amd_model(const char* target, const char* mnemonic) {
  Model model = matrix_model(target, mnemonic);
  if (model == nullptr) model = conversion_model(target, mnemonic);
  if (model == nullptr) model = multiply_add_model(target, mnemonic);
  return reinterpret_cast<void*>(model);
}

}  // namespace quire::amd
