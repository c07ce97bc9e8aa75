// SPDX-License-Identifier: Apache-2.0
// The fp64 reference and the comparison that judge an output.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.hpp"
#include "profile.hpp"
#include "types.hpp"
#include "without_gil.hpp"

namespace quire_python {
namespace {

using quire::Comparison;
using quire::Mismatch;
using quire::Reference;

/// A read-only NumPy view of one of the reference's vectors; the view keeps the reference alive.
template <typename T>
auto vector_view(std::vector<T> Reference::* member, bool per_dim) {
  return [member, per_dim](nb::handle self) {
    const Reference& r = nb::cast<const Reference&>(self);
    const std::size_t shape[] = {static_cast<std::size_t>(r.num_tokens), static_cast<std::size_t>(r.num_q_heads),
                                 static_cast<std::size_t>(r.v_head_dim)};
    return nb::ndarray<nb::numpy, const T>((r.*member).data(), per_dim ? 3 : 2, shape, self);
  };
}

Reference reference(const PyBatch& batch, const PyCache& cache, const PyOptions* options,
                    const std::optional<std::vector<std::int64_t>>& tokens, const std::optional<std::string>& profile) {
  const quire::NumericsProfile rounded = profile_from(profile).value_or(quire::NumericsProfile{});
  const BatchForCall call = batch.to_read(cache);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  return unwrap(
      without_gil([&] { return tokens ? quire::reference(b, c, o, *tokens, rounded) : quire::reference(b, c, o, rounded); }));
}

Comparison compare(nb::handle output, nb::handle lse, const Reference& expected, const std::optional<std::string>& dtype,
                   const std::optional<std::string>& weights) {
  const ArrayRef out = import_array(output, "output", Access::read, dtype.value_or(""));
  const ArrayRef log_sum = import_array(lse, "lse");
  if (!out) throw_error(quire::Code::invalid_argument, "output: is None, expected an array like the query");
  const std::optional<quire::DType> rounded = weights ? quire::dtype_from_name(*weights) : quire::DType::f32;
  if (rounded != quire::DType::f32 && rounded != quire::DType::f16 && rounded != quire::DType::bf16)
    throw_error(quire::Code::invalid_argument, "weights: \"" + *weights + "\" is none of f32, f16, bf16");
  const nb::gil_scoped_release unlocked;
  if (rounded == quire::DType::f32) return quire::compare(out.view, log_sum.view, expected);
  Reference wider = expected;
  quire::allow_rounded_weights(wider, *rounded);
  return quire::compare(out.view, log_sum.view, wider);
}

std::string number_text(double value) { return nb::cast<std::string>(nb::str("{:.4g}").attr("format")(value)); }

}  // namespace

void bind_diagnose(nb::module_& m) {
  nb::class_<Reference>(m, "Reference", "fp64 attention of the stored (quantised) cache; arrays are read-only NumPy views.")
      .def_ro("num_tokens", &Reference::num_tokens)
      .def_ro("num_q_heads", &Reference::num_q_heads)
      .def_ro("head_dim", &Reference::head_dim)
      .def_ro("v_head_dim", &Reference::v_head_dim)
      .def_prop_ro("out", vector_view(&Reference::out, true), "[num_tokens, num_q_heads, v_head_dim] f64.")
      .def_prop_ro("lse", vector_view(&Reference::lse, false), "[num_tokens, num_q_heads] f64.")
      .def_prop_ro("abs_pv", vector_view(&Reference::abs_pv, true), "sum_k p_k |V_k|, like out.")
      .def_prop_ro("score_mag", vector_view(&Reference::score_mag, false), "Magnitude of the largest score, like lse.")
      .def_prop_ro(
          "profile", [](const Reference& r) { return quire::to_string(r.profile); },
          "What the tolerance pays for besides f32 arithmetic: \"plain\", \"weights=bf16\", ...")
      .def_prop_ro("num_keys", vector_view(&Reference::num_keys, false), "Visible keys, like lse, int64.")
      .def("__repr__", [](const Reference& r) {
        return "<Reference num_tokens=" + std::to_string(r.num_tokens) + " num_q_heads=" + std::to_string(r.num_q_heads) +
               " head_dim=" + std::to_string(r.head_dim) + ">";
      });
  nb::class_<Mismatch>(m, "Mismatch", "One place where an output is wrong.")
      .def_ro("token", &Mismatch::token)
      .def_ro("head", &Mismatch::head)
      .def_ro("dim", &Mismatch::dim)
      .def_ro("observed", &Mismatch::observed)
      .def_ro("expected", &Mismatch::expected)
      .def_ro("tolerance", &Mismatch::tolerance)
      .def("__repr__", [](const Mismatch& w) {
        return "<Mismatch token " + std::to_string(w.token) + " head " + std::to_string(w.head) + " dim " +
               std::to_string(w.dim) + ": observed " + number_text(w.observed) + ", expected " + number_text(w.expected) +
               " +- " + number_text(w.tolerance) + ">";
      });
  nb::class_<Comparison>(m, "Comparison", "The verdict of compare(); str() is a paragraph for people.")
      .def_ro("ok", &Comparison::ok)
      .def_ro("num_elements", &Comparison::num_elements)
      .def_ro("num_mismatches", &Comparison::num_mismatches)
      .def_ro("num_nonfinite_mismatches", &Comparison::num_nonfinite_mismatches)
      .def_ro("worst_ratio", &Comparison::worst_ratio, "Largest |error| / tolerance over finite elements.")
      .def_ro("worst", &Comparison::worst)
      .def_ro("first", &Comparison::first, "Up to 16 mismatches, in index order.")
      .def_ro("text", &Comparison::text)
      .def("__bool__", [](const Comparison& c) { return c.ok; })
      .def("__str__", [](const Comparison& c) { return c.text; })
      .def("__repr__", [](const Comparison& c) {
        return std::string("<Comparison ") + (c.ok ? "ok" : "WRONG") + ": " + std::to_string(c.num_mismatches) + " of " +
               std::to_string(c.num_elements) + " elements over, worst error " + number_text(c.worst_ratio) +
               " of its tolerance>";
      });
  m.def("reference", &reference, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(),
        nb::arg("tokens") = nb::none(), nb::arg("profile") = nb::none(),
        "The fp64 oracle: two passes, shares nothing with the kernels but dtype decode. Checks metadata and tables first "
        "(ContractError). Slow by design; the GIL is released. With tokens, row i of the result is row tokens[i] of the batch; "
        "ArgumentError for a token outside the batch. profile: what the kernel to be judged may round, in the words of "
        "numerics.md: \"weights=bf16\", \"weights=f16,dequantised\", \"products=tf32\"; compare() then pays for it.");
  m.def("compare", &compare, nb::arg("output").none(), nb::arg("lse").none(), nb::arg("reference"), nb::arg("dtype") = nb::none(),
        nb::arg("weights") = nb::none(),
        "Compares NaN and infinity positions first, then every element against its derived tolerance (numerics.md). "
        "lse may be None. dtype: type of a raw uint16 output. weights: \"f16\" or \"bf16\" for kernels that round softmax "
        "weights to "
        "that type before they meet V, as FlashAttention and vLLM's kernels do.");
}

}  // namespace quire_python
