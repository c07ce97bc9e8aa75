// SPDX-License-Identifier: Apache-2.0
// Codes of 4 bits and the scales of their blocks: which nibble is which dim, which scale is whose, and what its byte means.
#include <cmath>
#include <functional>

#include "faults/families.h"
#include "semantics/fp4.h"

namespace quire::faults_detail {
namespace {

bool has_four_bits(const Facts& f, Side side) { return is_four_bit(f.codes(side).dtype); }

constexpr const char* kNoFourBits = "neither K nor V has 4 bits";

/// Suspects with K and V wrong, K alone and V alone, as far as each side `may` be wrong and its mutant shows.
Suspects sides_of(const Clues& e, const char* why_not, bool (*may)(const Facts&, Side),
                  const std::function<std::function<void(Model&)>(bool key, bool value)>& wrong) {
  const Facts& f = e.facts;
  if (!has_four_bits(f, Side::key) && !has_four_bits(f, Side::value)) return cannot_show(kNoFourBits);
  if (!any_cached(f)) return cannot_show(kNotCached);
  const bool k = has_four_bits(f, Side::key) && may(f, Side::key) && scores_matter(f);
  const bool v = has_four_bits(f, Side::value) && may(f, Side::value);
  Suspects s;
  const auto add = [&](const char* detail, bool key, bool value) {
    const std::function<void(Model&)> plant = wrong(key, value);
    Model planted(f);
    plant(planted);
    if (e.wrong.empty() && !(largest_change(f, planted) >= kPlainChange)) return;
    s.list.push_back({detail, plant, false});
  };
  if (k && v) add("K and V", true, true);
  if (k) add("K only", true, false);
  if (v) add("V only", false, true);
  return std::move(s).or_why_not(why_not);
}

bool any_side(const Facts&, Side) { return true; }
bool value_side(const Facts&, Side side) { return side == Side::value; }

/// The scale that a fault takes for that of a block.
using WrongScale = std::function<double(const Facts&, Side, const Place&, std::int64_t head, std::int64_t block)>;

Find scales_by(const char* why_not, const WrongScale& scale, bool (*may)(const Facts&, Side) = any_side) {
  return [=](const Clues& e) {
    const Facts* f = &e.facts;
    return sides_of(e, why_not, may, [f, scale](bool key, bool value) {
      return function_changed(&Model::blocks, [f, scale, key, value](const auto& before, Side side, const Place& place,
                                                                     std::int64_t head, std::span<double> to) {
        if (side == Side::key ? !key : !value) return before(side, place, head, to);
        const auto size = Facts::at(block_size(f->codes(side).dtype));
        for (std::size_t d = 0; d < to.size(); ++d) to[d] *= scale(*f, side, place, head, static_cast<std::int64_t>(d / size));
      });
    });
  };
}

std::int64_t blocks_of(const Facts& f, Side side) { return f.dims_of(side) / block_size(f.codes(side).dtype); }

double scale_at(const Facts& f, Side side, const Place& place, std::int64_t head, std::int64_t block) {
  return block_scale(f.cache, side, place, head, block);
}

/// The byte of a scale: its value, encoded again, as both formats keep their codes apart.
std::uint8_t byte_at(const Facts& f, Side side, const Place& place, std::int64_t head, std::int64_t block) {
  const Tensor& t = f.block_scales(side);
  const std::int64_t at = place.page * t.stride[0] + place.offset * t.stride[1] + head * t.stride[2] + block * t.stride[3];
  return static_cast<const std::uint8_t*>(t.data)[at];
}

/// K's block scales for V.
Suspects scales_of_keys(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->codes(Side::key).dtype != f->codes(Side::value).dtype || !f->has_equal_dims())
    return cannot_show("K and V have other types or head_dims");
  return scales_by(
      "k_block_scale and v_block_scale are the same",
      [](const Facts& facts, Side, const Place& place, std::int64_t head, std::int64_t block) {
        return scale_at(facts, Side::key, place, head, block);
      },
      value_side)(e);
}

/// trtllm-gen wants the block scales of V in another order: those of four tokens side by side. Source: vLLM writes scale s of
/// token t to token t / 4 * 4 + s / (S / 4), place s % (S / 4) * 4 + t % 4, of S scales a row (swizzle_scale_offset() of
/// csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu, commit 0cd789b): where S is a multiple of four, the order below.
Suspects v_interleaved(const Clues& e) {
  if (e.facts.page_size % 4 != 0) return cannot_show("pages are no multiple of four tokens");
  return scales_by(
      "tokens of a page have the same scales",
      [](const Facts& f, Side side, Place place, std::int64_t head, std::int64_t block) {
        const std::int64_t blocks = blocks_of(f, side);
        const std::int64_t at = place.offset / 4 * 4 * blocks + block * 4 + place.offset % 4;
        place.offset = at / blocks;
        return scale_at(f, side, place, head, at % blocks);
      },
      value_side)(e);
}

/// Codes read in another way: `read(index)` gives the value of code `index` of `data`.
Find codes_by(const char* why_not, double (*read)(const void*, std::int64_t)) {
  return [=](const Clues& e) {
    return sides_of(e, why_not, any_side, [read](bool key, bool value) {
      return function_changed(&Model::decode, [read, key, value](const auto& before, Side side, const void* data,
                                                                 std::span<const std::int64_t> at, double* values) {
        if (side == Side::key ? !key : !value) return before(side, data, at, values);
        for (std::size_t i = 0; i < at.size(); ++i) values[i] = read(data, at[i]);
      });
    });
  };
}

double e2m1_at(const void* data, std::int64_t index) { return semantics::e2m1_decode(semantics::load_code4(data, index)); }

void add_codes(const Family& add) {
  const char* const kNibble = "the even dim lies in the low bits of a byte";
  add("nibbles_swapped", "reads the two codes of a byte in the wrong order", "", kNibble,
      codes_by("the codes of a byte are the same",
               [](const void* data, std::int64_t index) { return e2m1_at(data, index ^ 1); }));
  add("fp4_codes_as_integers", "reads e2m1 codes as integers from -8 to 7", "", "e2m1 is 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign",
      codes_by("all codes are 0", [](const void* data, std::int64_t index) {
        const std::uint32_t code = semantics::load_code4(data, index);
        return static_cast<double>(code) - (code >= 8 ? 16 : 0);
      }));
  add("fp4_half_lost", "reads the e2m1 code of 0.5, its one subnormal, as 0", "",
      "look at the conversion: exponent 0 has no leading 1",
      codes_by("hardly any code is 0.5", [](const void* data, std::int64_t index) {
        const double value = e2m1_at(data, index);
        return std::fabs(value) == 0.5 ? 0.0 : value;
      }));
  add("fp4_sign_lost", "loses the sign of e2m1 codes", "", "bit 3 of a nibble is the sign",
      codes_by("no code is negative", [](const void* data, std::int64_t index) { return std::fabs(e2m1_at(data, index)); }));
}

void add_block_scales(const Family& add) {
  const char* const kSlot = "print the address of a scale beside page, offset, head and block";
  add("block_scales_dropped", "drops the block scales", "", "a code says nothing without the scale of its block",
      scales_by("all block scales are 1", [](const Facts&, Side, const Place&, std::int64_t, std::int64_t) { return 1.0; }));
  const auto block_beside = [](std::int64_t by) {
    return scales_by("neighbouring blocks have the same scales",
                     [by](const Facts& f, Side side, const Place& place, std::int64_t head, std::int64_t block) {
                       const std::int64_t blocks = blocks_of(f, side);
                       return scale_at(f, side, place, head, (block + by + blocks) % blocks);
                     });
  };
  add("block_scale_of_neighbour", "uses the scale of a neighbouring block", "", kSlot,
      any_of({{"the block before", block_beside(-1)}, {"the block behind", block_beside(1)}}));
  add("block_scale_of_first_block", "uses the scale of a row's first block for all of its blocks", "", kSlot,
      scales_by("all blocks of a row have the same scale", [](const Facts& f, Side side, const Place& place, std::int64_t head,
                                                              std::int64_t) { return scale_at(f, side, place, head, 0); }));
  const char* const kSameTokens = "neighbouring tokens have the same scales";
  const auto in_memory = [kSameTokens](std::int64_t by) {
    return scales_by(kSameTokens, [by](const Facts& f, Side side, const Place& place, std::int64_t head, std::int64_t block) {
      return scale_at(f, side, beside(f, place, by), head, block);
    });
  };
  add("block_scales_of_neighbour_token", "uses the block scales of a neighbouring token", "", kSlot,
      any_of({{"the token before, within its page",
               scales_by(kSameTokens,
                         [](const Facts& f, Side side, Place place, std::int64_t head, std::int64_t block) {
                           place.offset = place.offset > 0 ? place.offset - 1 : f.page_size - 1;
                           return scale_at(f, side, place, head, block);
                         })},
              {"the slot before", in_memory(-1)},
              {"the slot behind", in_memory(1)}}));
  // Scales of [page_size, num_kv_heads, blocks] read as if they followed an hnd cache: [num_kv_heads, page_size, blocks].
  add("block_scales_by_layout", "reads block scales of [page_size, num_kv_heads] as [num_kv_heads, page_size]", "",
      "pass the strides of the scales; they need not be those of the cache's layout",
      scales_by("heads or tokens of a page have the same scales",
                [](const Facts& f, Side side, Place place, std::int64_t head, std::int64_t block) {
                  const std::int64_t row = head * f.page_size + place.offset;
                  place.offset = row / f.num_kv_heads;
                  return scale_at(f, side, place, row % f.num_kv_heads, block);
                }));
  add("v_block_scales_interleaved", "reads V's block scales as if those of four tokens lay side by side", "vllm#50085",
      "trtllm-gen wants this order of V's scales and no other kernel does; compare the writer with the reader", v_interleaved);
  // 32 elements for 16, or 16 for 32: scales behind the row's are those of the next head.
  add("block_of_other_size", "takes blocks of 32 dims for blocks of 16, or the reverse", "",
      "nvfp4 has a scale for 16 dims, mxfp4 for 32",
      scales_by("all blocks have the same scales",
                [](const Facts& f, Side side, Place place, std::int64_t head, std::int64_t block) {
                  const std::int64_t blocks = blocks_of(f, side);
                  const std::int64_t wrong = f.codes(side).dtype == DType::nvfp4 ? block / 2 : 2 * block;
                  head += wrong / blocks;
                  place.offset = (place.offset + head / f.num_kv_heads) % f.page_size;
                  return scale_at(f, side, place, head % f.num_kv_heads, wrong % blocks);
                }));
  add("e8m0_bias_off_by_one", "reads e8m0 scales with a bias of 126", "", "the value of an e8m0 code is 2^(code - 127)",
      scales_by(
          "no side is mxfp4",
          [](const Facts& facts, Side side, const Place& place, std::int64_t head, std::int64_t block) {
            return 2 * scale_at(facts, side, place, head, block);
          },
          [](const Facts& f, Side side) { return f.codes(side).dtype == DType::mxfp4; }));
  // The byte of an e4m3 scale read as e8m0, or the reverse.
  add("block_scale_type_confused", "reads e4m3 block scales as e8m0, or the reverse", "",
      "the cache's type, nvfp4 or mxfp4, says what a scale's byte means",
      scales_by("the scales mean the same in both types",
                [](const Facts& f, Side side, const Place& place, std::int64_t head, std::int64_t block) -> double {
                  const double right = scale_at(f, side, place, head, block);
                  if (std::isnan(right)) return right;
                  const std::uint8_t byte = byte_at(f, side, place, head, block);
                  return f.codes(side).dtype == DType::nvfp4 ? semantics::e8m0_decode(byte)
                                                             : semantics::fp8_decode<semantics::E4m3fn>(byte);
                }));
  add("block_scales_of_keys", "uses the block scales of keys for values", "",
      "compare the order of arguments at the call with the declaration", scales_of_keys);
}

}  // namespace

void add_blocks(std::vector<Fault>& list) {
  const Family family{list, "block_scales"};
  add_codes(family);
  add_block_scales(family);
}

}  // namespace quire::faults_detail
