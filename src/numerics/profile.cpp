// SPDX-License-Identifier: Apache-2.0
// Numerics profiles: their words, and what they cost (numerics.md, "Profiles").
#include <array>

#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr const char* kExpected =
    "expected plain, or of weights=, scores=, accumulator=, parts= (f32, f16 or bf16), products= (f32 or tf32) and dequantised "
    "some, with commas between";

struct Typed {
  std::string_view word;
  DType NumericsProfile::* field;
};
constexpr std::array<Typed, 4> kTyped{{{"weights", &NumericsProfile::weights},
                                       {"scores", &NumericsProfile::scores},
                                       {"accumulator", &NumericsProfile::accumulator},
                                       {"parts", &NumericsProfile::parts}}};

bool read_word(std::string_view word, NumericsProfile& profile) {
  if (word == "plain") return true;
  if (word == "dequantised") return profile.dequantised_to_query = true;
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view value = word.substr(equals + 1);
  if (word.substr(0, equals) == "products") {
    profile.tf32_products = value == "tf32";
    return value == "tf32" || value == "f32";
  }
  for (const Typed& typed : kTyped) {
    if (word.substr(0, equals) != typed.word) continue;
    const std::optional<DType> dtype = dtype_from_name(value);
    if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) return false;
    profile.*typed.field = *dtype;
    return true;
  }
  return false;
}

}  // namespace

std::string to_string(const NumericsProfile& profile) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ",") + word; };
  for (const Typed& typed : kTyped)
    if (profile.*typed.field != DType::f32) add(formatted("{}={}", typed.word, name(profile.*typed.field)));
  if (profile.tf32_products) add("products=tf32");
  if (profile.dequantised_to_query) add("dequantised");
  return text.empty() ? "plain" : text;
}

Result<NumericsProfile> parse_profile(std::string_view text) {
  NumericsProfile profile;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!read_word(word, profile)) return Status(Code::parse_error, formatted("profile: \"{}\"; {}", word, kExpected));
    begin = end + 1;
  }
  return profile;
}

std::string in_words(const NumericsProfile& profile) {
  std::vector<std::string> parts;
  if (profile.dequantised_to_query) parts.push_back("rounds cached K and V times their scale to the query's type");
  if (profile.scores != DType::f32) parts.push_back(formatted("stores its scores in {}", name(profile.scores)));
  if (profile.weights != DType::f32) parts.push_back(formatted("rounds its softmax weights to {}", name(profile.weights)));
  if (profile.accumulator != DType::f32) parts.push_back(formatted("sums its products in {}", name(profile.accumulator)));
  if (profile.parts != DType::f32) parts.push_back(formatted("stores partial results in {}", name(profile.parts)));
  if (profile.tf32_products) parts.push_back("multiplies in TF32");
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text.empty() ? "computes in f32" : text;
}

namespace numerics {

ScoreErrors score_errors(const NumericsProfile& profile, std::int64_t head_dim) {
  const double plain = score_error(head_dim), u = output_type(profile.accumulator).roundoff;
  double more = profile.tf32_products ? 2 * kTf32Roundoff : 0;
  if (profile.accumulator != DType::f32) more += gamma(static_cast<double>(head_dim), u);
  return {1 + more / plain, profile.scores == DType::f32 ? 0 : output_type(profile.scores).roundoff, plain};
}

void pay_for(Reference& expected, const NumericsProfile& profile) {
  const auto dims = static_cast<std::size_t>(expected.v_head_dim);
  const std::vector<double> plain_pv = expected.abs_pv;  // rounding weights costs a share of this, and so does the rest
  allow_rounded_weights(expected, profile.weights);
  expected.profile = profile;
  const bool short_sums = profile.accumulator != DType::f32, short_parts = profile.parts != DType::f32;
  if (!short_sums && !short_parts && !profile.tf32_products) return;
  const OutputType part = short_parts ? output_type(profile.parts) : OutputType{0, 0, 0};
  const double u = output_type(profile.accumulator).roundoff, tf32 = profile.tf32_products ? 2 * kTf32Roundoff : 0;
  for (std::size_t row = 0; row < expected.num_keys.size(); ++row) {
    const double roundings = kAccumulatorRoundingsPerKey * static_cast<double>(expected.num_keys[row] + 1);
    const double more = tf32 + part.roundoff + (short_sums ? gamma(roundings, u) : 0);
    const double per_pv = row_errors(expected, static_cast<std::int64_t>(row)).per_pv;
    for (std::size_t i = row * dims; i < (row + 1) * dims; ++i)
      expected.abs_pv[i] += (more * plain_pv[i] + part.smallest) / per_pv;
  }
}

}  // namespace numerics
}  // namespace quire
