// SPDX-License-Identifier: Apache-2.0
// Faults that mechanisms fit, each planted from its equation: the search has to name mechanism and parameters.
#include <gmock/gmock.h>

#include "diagnose/equation.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

struct PlantedFault {
  const char* name;
  const char* line;
  void (*plant)(Equation&);
  const char* mechanism;
  const char* words;  ///< words of the text or the detail
};

const char* const kPlain = "q=f32 heads=6:2 d=32 page=8 reqs=9@47,1@55,5@51,1@70 seed=1";
const char* const kNewRows = "q=f32 heads=4:2 d=32 page=8 reqs=9@42/42,1@53/53,5@35/35,1@27/27 seed=2";
const char* const kLatent = "q=f32 heads=8:1 d=72 dv=48 latent=1 page=8 reqs=9@47,1@55,5@51 seed=3";
const char* const kPrefix = "q=f32 heads=4:2 d=32 page=32 window=12 prefix=13,5,22,30 reqs=9@47,1@55,5@51,1@70 seed=8";
const char* const kChunk = "q=f32 heads=4:2 d=32 page=8 chunk=32 reqs=19@47,1@55,25@51,1@70 seed=9";
const char* const kTokenScales = "q=bf16 kv=i8 kscale=token vscale=token heads=4:2 d=32 page=8 reqs=9@47,1@55,5@51 seed=14";
const char* const kSpans = "q=f32 heads=4:2 d=32 page=8 spans=0:14-22,2:9-17 reqs=40@10,1@55,25@6,1@70 seed=10";

double float_of(DType type, double x) {
  float stored = 0;
  semantics::store(&stored, type, 0, static_cast<float>(x));
  return semantics::load(&stored, type, 0);
}

/// Dim d of x rotated by an angle of position * 10000^(-2i / dims), in pairs (first + i, first + i + dims / 2) or neighbours.
double turned(const std::function<double(std::int64_t)>& x, std::int64_t d, std::int64_t first, std::int64_t dims, bool halves,
              double position) {
  const std::int64_t at = d - first, half = dims / 2;
  if (at < 0 || at >= dims) return x(d);
  const std::int64_t pair = halves ? at % half : at / 2, apart = halves ? half : 1;
  const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(dims));
  const bool is_first = halves ? at < half : at % 2 == 0;
  return is_first ? x(d) * std::cos(angle) - x(d + apart) * std::sin(angle)
                  : x(d) * std::cos(angle) + x(d - apart) * std::sin(angle);
}

void turn_query(Equation& e, std::int64_t first, std::int64_t dims, bool halves, double (*position)(const EquationRow&)) {
  e.query = [=, &e](const EquationRow& r, std::int64_t d) {
    return turned([&](std::int64_t i) { return e.query_at(r.token, r.head, i); }, d, first, dims, halves, position(r));
  };
}

void turn_new_keys(Equation& e, double (*position)(const EquationRow&, std::int64_t k)) {
  e.key = [=, &e](const EquationRow& r, std::int64_t k, std::int64_t d) {
    const auto right = [&](std::int64_t i) { return e.stored(r, k, i, false); };
    return k < r.cached_len ? right(d) : turned(right, d, 0, 32, true, position(r, k));
  };
}

/// K and V of this step's rows from other rows of key and value.
void other_new_row(Equation& e, std::int64_t (*token)(const EquationRow&, std::int64_t k)) {
  for (const bool of_value : {false, true})
    (of_value ? e.value : e.key) = [=, &e](const EquationRow& r, std::int64_t k, std::int64_t d) {
      return k < r.cached_len ? e.stored(r, k, d, of_value) : e.new_row(of_value, token(r, k), e.kv_head(r.head), d);
    };
}

/// K and V of every key from (page, slot).
void other_slot(Equation& e, std::pair<std::int64_t, std::int64_t> (*slot)(const Equation&, const EquationRow&, std::int64_t k)) {
  for (const bool of_value : {false, true})
    (of_value ? e.value : e.key) = [=, &e](const EquationRow& r, std::int64_t k, std::int64_t d) {
      const auto [page, offset] = slot(e, r, k);
      return e.cached(of_value, page, offset, e.kv_head(r.head), d);
    };
}

const std::vector<PlantedFault>& planted() {
  using Row = EquationRow;
  static const std::vector<PlantedFault> list = {
      {"QueryTurnedTwiceInHalfOfItsDims", kPlain,
       [](Equation& e) { turn_query(e, 0, 16, false, [](const Row& r) { return static_cast<double>(r.position); }); }, "rope",
       "query twice base 10000, pairs of neighbours of dims 0-15"},
      {"RopePartOfALatentQueryNotTurned", kLatent,
       [](Equation& e) { turn_query(e, 48, 24, true, [](const Row& r) { return -static_cast<double>(r.position); }); }, "rope",
       "of the query out base 10000, pairs of halves of dims 48-71"},
      {"NewKeysNotTurned", kNewRows,
       [](Equation& e) { turn_new_keys(e, [](const Row&, std::int64_t k) { return -static_cast<double>(k); }); }, "rope",
       "leaves the rotary embedding of this step's keys out"},
      {"NewKeysTurnedOnePositionLate", kNewRows,
       [](Equation& e) { turn_new_keys(e, [](const Row&, std::int64_t) { return 1.0; }); }, "rope",
       "this step's keys by their position +1"},
      {"NewKeysOfAShardTurnedFromPosition0",
       "q=f32 heads=4:2 d=32 page=8 reqs=9@42/45,1@53/53,5@35/37,1@27/27 kbegin=40,40,40,40 seed=13",
       [](Equation& e) { turn_new_keys(e, [](const Row& r, std::int64_t) { return -static_cast<double>(r.cached_len + 40); }); },
       "rope", "this step's keys as if their chunk began at position 0"},
      {"NewRowsCountedFromRowZero", kNewRows,
       [](Equation& e) { other_new_row(e, [](const Row& r, std::int64_t k) { return k - r.context_len(); }); }, "page_contents",
       "this step's rows elsewhere counted from row 0 of the batch"},
      {"ContextLeftOut", "q=f32 heads=4:2 d=32 page=8 reqs=9@42/45,1@53/53,5@35/37,1@27/27 seed=12",
       [](Equation& e) { e.sees = [](const Row& r, std::int64_t k) { return k <= r.position && k >= r.cached_len; }; },
       "key_range", "sees this step's rows alone"},
      {"PartsOfALatentRowExchanged", kLatent,
       [](Equation& e) { e.query = [&e](const Row& r, std::int64_t d) { return e.query_at(r.token, r.head, (d + 48) % 72); }; },
       "dims", "its first 48 dims behind the others"},
      {"DimsInTheMiddleLeftOut", "q=f32 heads=6:2 d=64 page=8 reqs=9@47,1@55,5@51,1@70 seed=4",
       [](Equation& e) {
         e.query = [&e](const Row& r, std::int64_t d) { return d >= 24 && d < 40 ? 0.0 : e.query_at(r.token, r.head, d); };
       },
       "dims", "leaves dims out of the dot product dims 24-39"},
      {"QueryHeadsTransposed", kPlain,
       [](Equation& e) {
         e.query = [&e](const Row& r, std::int64_t d) { return e.query_at(r.token, r.head % 2 * 3 + r.head / 2, d); };
       },
       "query_head", "heads of [2, 3] are read as [3, 2]"},
      {"QueryRowModuloATile", "q=f32 heads=4:2 d=32 page=8 reqs=21@47,1@55,15@51,1@70 seed=5",
       [](Equation& e) { e.query = [&e](const Row& r, std::int64_t d) { return e.query_at(r.token % 16, r.head, d); }; },
       "query_row", "row t mod 16"},
      {"QueryReadAsTheOtherType", "q=bf16 heads=4:2 d=32 page=8 reqs=9@47,1@55,5@51,1@70 seed=6",
       [](Equation& e) {
         e.query = [&e](const Row& r, std::int64_t d) {
           const std::uint16_t bits = semantics::bf16_encode(static_cast<float>(e.query_at(r.token, r.head, d)));
           return static_cast<double>(semantics::f16_decode(bits));
         };
       },
       "element_type", "reads the query as another type bf16 as f16"},
      {"PackedRowsModuloTheRows", kPlain,
       [](Equation& e) {
         e.sees = [](const Row& r, std::int64_t k) { return k <= r.context_len() + (r.index * 3 + r.head % 3) % r.rows; };
       },
       "positions", "packed with the 3 heads of a group, modulo query_len in place of divided"},
      {"TableOfFiveColumns", kPlain,
       [](Equation& e) {
         other_slot(e, [](const Equation& o, const Row& r, std::int64_t k) {
           return std::pair(o.page(r.request, std::min<std::int64_t>(k / 8, 4)), k % 8);
         });
       },
       "page", "block_table has 5 columns, later ones repeat the last"},
      {"SlotsOfAnotherPageSize", kPlain,
       [](Equation& e) {
         other_slot(e, [](const Equation& o, const Row& r, std::int64_t k) {
           const std::int64_t slot = o.page(r.request, std::min<std::int64_t>(k / 16, 8)) * 16 + k % 16,
                              slots = 8 * o.k_cache().shape[0];
           return std::pair(slot % slots / 8, slot % 8);
         });
       },
       "page", "as if page_size were 16"},
      {"TableOfOneColumnMore", "q=f32 heads=4:2 d=32 page=8 reqs=9@47,1@55,5@51,1@44,1@70 seed=7",
       [](Equation& e) {
         other_slot(e, [](const Equation& o, const Row& r, std::int64_t k) {
           const std::int64_t flat = r.request * (o.columns() + 1) + k / 8;
           const std::int64_t page = flat < 5 * o.columns() ? o.page(flat / o.columns(), flat % o.columns()) : 0;
           return std::pair(page >= 0 && page < o.k_cache().shape[0] ? page : 0, k % 8);
         });
       },
       "table_row", "block_table with another number of columns 11 columns in place of 10"},
      {"PageIdsOfFourBits", kPlain,
       [](Equation& e) {
         other_slot(
             e, [](const Equation& o, const Row& r, std::int64_t k) { return std::pair(o.page(r.request, k / 8) % 16, k % 8); });
       },
       "page", "too few bits of page ids 4 bits"},
      {"PrefixOfTheRequestBefore", kPrefix,
       [](Equation& e) { e.prefix = [&e](const Row& r) { return e.prefix_len((r.request + 3) % 4); }; }, "mask",
       "another prefix of request r - 1"},
      {"PrefixRoundedUpToTiles", kPrefix,
       [](Equation& e) { e.prefix = [&e](const Row& r) { return (e.prefix_len(r.request) + 15) / 16 * 16; }; }, "mask",
       "another prefix rounded up to a multiple of 16"},
      {"ChunksCountedFromTheFirstRow", kChunk,
       [](Equation& e) {
         e.chunk_of = [](const Row& r, std::int64_t position) { return (position - r.context_len() + 32 * 8) / 32; };
       },
       "mask", "another chunk for the row's chunks are counted from the request's first row"},
      {"ChunkOfTheFirstRow", kChunk,
       [](Equation& e) {
         e.sees = [](const Row& r, std::int64_t k) { return k <= r.position && k / 32 == r.context_len() / 32; };
       },
       "mask", "the chunk of the request's first row"},
      {"SpansCountedFromTheFirstRow", kSpans,
       [](Equation& e) {
         e.spans = [&e](const Row& r) {
           std::vector<Span> moved = e.spans_of(r.request);
           for (Span& s : moved) s = {s.begin + r.context_len(), s.end + r.context_len()};
           return moved;
         };
       },
       "mask", "takes other spans counted from the request's first row"},
      {"NewValuesFromTheCache", kNewRows,
       [](Equation& e) { e.value = [&e](const Row& r, std::int64_t k, std::int64_t d) { return e.cached_at(r, true, k, d); }; },
       "page_contents", "reads V of this step's rows elsewhere from the cache"},
      {"FirstNewRowFromTheCache", kNewRows,
       [](Equation& e) {
         for (const bool of_value : {false, true})
           (of_value ? e.value : e.key) = [&e, of_value](const Row& r, std::int64_t k, std::int64_t d) {
             return k <= r.cached_len ? e.cached_at(r, of_value, k, d) : e.stored(r, k, d, of_value);
           };
       },
       "page_contents", "this step's rows elsewhere the first one from the cache"},
      {"FnReadAsFnuzWithoutNaN", "q=bf16 kv=fp8_e4m3fn heads=4:2 d=32 page=8 reqs=9@47,1@55,5@51,1@70 seed=11",
       [](Equation& e) {
         for (const bool of_value : {false, true})
           (of_value ? e.value : e.key) = [&e, of_value](const Row& r, std::int64_t k, std::int64_t d) {
             return e.stored(r, k, d, of_value) / 2;  // fnuz has one more exponent bias, and its NaN, -0 of fn, is 0 here
           };
       },
       "element_type", "reads K and V as another type as fp8_e4m3fnuz, codes of NaN and infinity as 0"},
      {"TokenScaleOfTheSlotBehind", kTokenScales,
       [](Equation& e) {
         e.key = [&e](const Row& r, std::int64_t k, std::int64_t d) {
           const std::int64_t page = e.page(r.request, k / 8), next = page * 8 + k % 8 + 1, head = e.kv_head(r.head);
           return e.code(false, page, k % 8, head, d) * e.scale_at(false, next / 8, next % 8, head);
         };
       },
       "page_contents", "uses the scale of a neighbouring token the slot behind, k_scale"},
      {"DenominatorInBf16", "q=f32 heads=4:2 d=32 page=8 reqs=9@147,1@255,5@151,1@170 seed=13",
       [](Equation& e) { e.sum = [](double so_far, double exact) { return float_of(DType::bf16, so_far + exact); }; }, "rounded",
       "the denominator in bf16 rounded after every key, relative to the row's maximum"},
      {"OutputRoundedToFp8", kPlain,
       [](Equation& e) { e.store = [](const Row&, std::int64_t, double x) { return float_of(DType::fp8_e4m3fn, x); }; },
       "rounded", "rounds the output to fp8_e4m3fn"},
      {"WeightsTimes256RoundedToFp8", kPlain,
       [](Equation& e) { e.weight = [](double w) { return float_of(DType::fp8_e4m3fn, 256 * w) / 256; }; }, "rounded",
       "fp8_e4m3fn after a factor of 256"},
  };
  return list;
}

/// Puts numbers of an older step where no row looks; poison would hide which of it a kernel reads.
void fill_unseen(Case& c) {
  ASSERT_TRUE(poison_case(c, PoisonKind::zero).ok());
  for (const Tensor& t : {c.cache.k, c.cache.v})
    for (std::int64_t i = 0; t.dtype == DType::f32 && i < t.num_elements(); ++i)
      if (float& x = static_cast<float*>(t.data)[i]; x == 0) x = 1.5f * std::sin(13.0f * static_cast<float>(i % 8191));
}

class Mechanisms : public testing::TestWithParam<PlantedFault> {};

TEST_P(Mechanisms, NamesWhatWasPlanted) {
  Case c = made(GetParam().line);
  fill_unseen(c);
  Equation equation(c);
  equation.write();
  EXPECT_EQ(diagnosed(c).verdict, DiagnosisVerdict::right);
  GetParam().plant(equation);
  equation.write();
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  ASSERT_FALSE(d.suspicions.empty());
  EXPECT_EQ(d.suspicions[0].mechanism, GetParam().mechanism) << to_string(d);
  EXPECT_THAT(d.suspicions[0].text + " " + d.suspicions[0].detail, HasSubstr(GetParam().words));
}

/// The output of a right kernel, added to what the buffer held.
TEST(MechanismsOfTheBuffer, AnOutputThatIsAddedIsNamed) {
  Case c = made(kPlain);
  Equation equation(c);
  const Tensor& o = c.batch.output;
  for (std::int64_t i = 0; i < o.num_elements(); ++i) semantics::store(o.data, o.dtype, i, static_cast<float>(i % 7) - 2.5f);
  equation.store = [&o](const EquationRow& r, std::int64_t d, double x) {
    return x + semantics::load(o.data, o.dtype, (r.token * o.shape[1] + r.head) * o.shape[2] + d);
  };
  equation.write();
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_THAT(d.suspicions[0].text, HasSubstr("adds its output to what the buffer held"));
}

/// Scales of heads that differ by a tenth: as a mutant that would hide, but an output shows it.
TEST(MechanismsOfScales, TheScaleOfHeadZeroIsNamedWhereHeadsDifferLittle) {
  Case c = made(kTokenScales);
  const Tensor& scales = c.cache.v_scale;
  for (std::int64_t i = 0; i < scales.num_elements(); i += 2)
    static_cast<float*>(scales.data)[i + 1] = 1.1f * static_cast<float*>(scales.data)[i];
  Equation equation(c);
  equation.value = [&](const EquationRow& r, std::int64_t k, std::int64_t d) {
    const std::int64_t page = equation.page(r.request, k / 8);
    return equation.code(true, page, k % 8, equation.kv_head(r.head), d) * equation.scale_at(true, page, k % 8, 0);
  };
  equation.write();
  const Diagnosis d = diagnosed(c);
  const auto named = [](const Suspicion& s) { return s.fault == "scale_of_first_head" && s.refutation.empty(); };
  EXPECT_TRUE(std::any_of(d.suspicions.begin(), d.suspicions.end(), named)) << to_string(d);
}

/// Scales of the logical page, or in an order of axes that they do not have, beside codes of the right slot.
TEST(MechanismsOfScales, ScalesFromElsewhereAreNamed) {
  for (const bool logical : {true, false}) {
    Case c = made(kTokenScales);
    for (const Tensor* t : {&c.cache.k_scale, &c.cache.v_scale})  // scales of pages that no right kernel reads are set, too
      for (std::int64_t n = 0; n < t->num_elements(); ++n)
        if (float& scale = static_cast<float*>(t->data)[n]; !std::isfinite(scale)) scale = 0.01F * static_cast<float>(1 + n % 7);
    Equation equation(c);
    const std::int64_t pages = c.cache.k.shape[0], heads = c.cache.k_scale.shape[2];
    for (const bool of_value : {false, true})
      (of_value ? equation.value : equation.key) = [=, &equation](const EquationRow& r, std::int64_t k, std::int64_t d) {
        const std::int64_t page = equation.page(r.request, k / 8), head = equation.kv_head(r.head);
        const std::int64_t flat = (head * pages + page) * 8 + k % 8;
        const double scale = logical ? equation.scale_at(of_value, k / 8, k % 8, head)
                                     : equation.scale_at(of_value, flat / (8 * heads), flat / heads % 8, flat % heads);
        return equation.code(of_value, page, k % 8, head, d) * scale;
      };
    equation.write();
    const Diagnosis d = diagnosed(c);
    EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
    EXPECT_EQ(d.suspicions[0].text, "takes scales of tokens from elsewhere (K and V)") << to_string(d);
    EXPECT_THAT(d.suspicions[0].detail, HasSubstr(logical ? "logical page" : "[head, page, slot]")) << to_string(d);
  }
}

/// Keys and values of a latent row in two tensors, of which V begins K, as engines of two caches hold them.
TEST(MechanismsOfLatentRows, ValuesFromTheLastDimsOfKAreNamed) {
  Case c = made(kLatent);
  const Tensor k = c.cache.k, one = c.cache.v;
  const std::int64_t rows = k.shape[0] * k.shape[1], dims = one.shape[3];
  Tensor own = Tensor::from_shape(c.allocate(static_cast<std::size_t>(rows * dims * 4)), DType::f32, one.shape, one.rank);
  for (std::int64_t i = 0; i < rows * dims; ++i)
    static_cast<float*>(own.data)[i] = static_cast<float*>(k.data)[i / dims * k.shape[3] + i % dims];
  c.cache.v = own;
  Equation equation(c);
  equation.write();
  EXPECT_EQ(diagnosed(c).verdict, DiagnosisVerdict::right);
  equation.value = [&](const EquationRow& r, std::int64_t position, std::int64_t d) {
    return equation.cached_at(r, false, position, k.shape[3] - dims + d);
  };
  equation.write();
  const Diagnosis d = diagnosed(c);
  EXPECT_EQ(d.verdict, DiagnosisVerdict::cause_found) << to_string(d);
  EXPECT_EQ(d.suspicions[0].fault, "v_read_from_last_dims");
}

INSTANTIATE_TEST_SUITE_P(, Mechanisms, testing::ValuesIn(planted()),
                         [](const testing::TestParamInfo<PlantedFault>& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace quire::test
