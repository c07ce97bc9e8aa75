// SPDX-License-Identifier: Apache-2.0
// See judge.h.
#include "verify/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "cases/chosen_rows.h"
#include "cases/device_case.h"
#include "semantics/dtype.h"
#include "text/formatted.h"
#include "verify/subbatch.h"

namespace quire::verify_detail {
namespace {

constexpr std::int64_t kSliceWork = 40'000'000;  // visible pairs x heads x dims up to which requests are run again one by one
constexpr std::int64_t kChunk = 7;               // rows of a chunk in check "chunks"; divides no tile height

constexpr std::int64_t kMostViewed = std::int64_t{1} << 30;  ///< bytes of inputs that are copied to become views
constexpr PoisonKind kPoisonBetween[] = {PoisonKind::nan, PoisonKind::finite_garbage};

const char* words_of(PoisonKind kind) { return kind == PoisonKind::nan ? "NaN" : "finite garbage"; }

/// Hash of all bytes of an input, sensitive to the order of words.
std::uint64_t hash_of(const Tensor& t) {
  if (!t.present() || !t.is_contiguous()) return 0;
  const auto* data = static_cast<const std::byte*>(t.data);
  const auto bytes = static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype));
  std::uint64_t hash = bytes, word = 0;
  for (std::size_t i = 0; i < bytes; i += 8) {
    word = 0;
    std::memcpy(&word, data + i, std::min<std::size_t>(8, bytes - i));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::uint64_t hash_of_inputs(const Case& c) {
  std::uint64_t hash = 0;
  cases::for_each_input(c, [&](std::string_view, const Tensor& t) { hash = hash * 31 + hash_of(t); });
  return hash;
}

Tensor with_data(const Tensor& like, const std::vector<std::byte>& bytes) {
  return Tensor::from_shape(const_cast<std::byte*>(bytes.data()), like.dtype, like.shape, like.rank);
}

/// "12 of 448 elements change, first output[token 3, head 1, dim 0]: 0.5 -> nan".
std::string difference(const Tensor& like, const std::vector<std::byte>& a, const std::vector<std::byte>& b, const char* name) {
  const std::int64_t size = itemsize(like.dtype), n = static_cast<std::int64_t>(a.size()) / size;
  std::int64_t count = 0, first = -1;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::memcmp(a.data() + i * size, b.data() + i * size, static_cast<std::size_t>(size)) == 0) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return {};
  const std::int64_t dims = like.rank == 3 ? like.shape[2] : 1, heads = like.shape[1];
  const std::string dim = like.rank == 3 ? formatted(", dim {}", first % dims) : std::string();
  return formatted("{} of {} elements change, first {}[token {}, head {}{}]: {:.6g} -> {:.6g}", count, n, name,
                   first / dims / heads, first / dims % heads, dim, semantics::load(a.data(), like.dtype, first),
                   semantics::load(b.data(), like.dtype, first));
}

/// Text of a failed comparison; rows of a sample get their numbers in the batch.
std::string finding(const Comparison& c, const std::vector<std::int64_t>& tokens) {
  if (c.ok) return {};
  if (tokens.empty()) return c.text;
  const Mismatch& w = c.worst;
  const std::string dim = w.dim < 0 ? std::string() : formatted(", dim {}", w.dim);
  return formatted(
      "{} of {} compared elements are wrong, {} of them in NaN or infinity; worst {}[token {}, head {}{}]: observed "
      "{:.9g}, expected {:.9g}, tolerance {:.3g}",
      c.num_mismatches, c.num_elements, c.num_nonfinite_mismatches, w.dim < 0 ? "lse" : "output",
      tokens[static_cast<std::size_t>(w.token)], w.head, dim, w.observed, w.expected, w.tolerance);
}

}  // namespace

const std::vector<std::string>& check_names() {
  static const std::vector<std::string> names = {"values",         "lse",     "rows",     "nan_poison",
                                                 "garbage_poison", "repeat",  "canaries", "strides",
                                                 "strided_inputs", "threads", "alone",    "chunks"};
  return names;
}

std::set<std::string> asked_checks(const Target& target, const std::vector<std::string>& disabled) {
  std::set<std::string> asked(check_names().begin(), check_names().end());
  for (const std::string& check : disabled) asked.erase(check);
  for (const auto& [check, reason] : target.skip) asked.erase(check);
  return asked;
}

const CheckResult* failed_check(const std::vector<CheckResult>& checks) {
  const auto failed = std::ranges::find(checks, CheckState::fail, &CheckResult::state);
  return failed == checks.end() ? nullptr : &*failed;
}

Judge::Judge(const Target& target, const Prepared& p, std::set<std::string> asked)
    : target_(target), p_(p), asked_(std::move(asked)) {}

void Judge::report(const std::string& check, CheckState state, std::string text, double worst_ratio) {
  if (!asks(check)) return;
  const auto known = std::find_if(results_.begin(), results_.end(), [&](const CheckResult& r) { return r.check == check; });
  if (known == results_.end()) {
    results_.push_back({check, state, worst_ratio, std::move(text)});
  } else if (known->state != CheckState::fail) {
    *known = {check, state, std::max(worst_ratio, known->worst_ratio), std::move(text)};
  }
}

bool Judge::wants_lse() const { return p_.c.batch.lse.present() && !target_.skip.contains("lse"); }

Written Judge::call(const AttendCase& attend, Spread spread, Case c) const {
  Guarded out(p_.c.batch.output, spread);
  std::optional<Guarded> lse;
  if (wants_lse()) lse.emplace(p_.c.batch.lse, spread);
  c.batch.output = out.view;
  c.batch.lse = lse ? lse->view : Tensor{};
  Written w;
  try {
    w.status = attend(c, w.kernel);
  } catch (const std::exception& e) {
    w.status = {Code::internal_error, std::string("exception: ") + e.what()};
  }
  w.out = out.take();
  if (lse) w.lse = lse->take();
  w.damaged = out.damaged() + (lse ? lse->damaged() : 0);
  return w;
}

Tensor Judge::output() const { return with_data(p_.c.batch.output, first_.out); }

bool Judge::moved_an_element() const {
  if (!first_.status.ok()) return true;
  const Tensor& like = p_.c.batch.output;
  const std::int64_t row = like.shape[1] * like.shape[2];
  const bool eight_bits = like.dtype == DType::fp8_e4m3fn;
  const double unit = eight_bits ? 0x1p-3 : like.dtype == DType::f32 ? 0x1p-23 : like.dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  // The smallest subnormal.
  const double least = eight_bits ? 0x1p-9 : like.dtype == DType::f16 ? 0x1p-24 : 0x1p-126 * unit;
  for (std::int64_t i = 0; i < p_.expected.num_tokens; ++i) {
    const std::int64_t token = p_.tokens.empty() ? i : p_.tokens[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < row; ++j) {
      const auto at = static_cast<std::size_t>(i * row + j);
      const double expected = p_.expected.out[at];
      const double observed = semantics::load(first_.out.data(), like.dtype, token * row + j);
      if (std::isnan(expected) && std::isnan(observed)) continue;
      const double allowed = unit * std::fabs(expected) + least + 0x1p-16 * p_.expected.abs_pv[at];
      if (!(std::fabs(observed - expected) <= allowed)) return true;
    }
  }
  return wants_lse() && judge_lse_moved();
}

/// Whether the call moved an lse, where a difference of d changes weights by a factor of exp(d).
bool Judge::judge_lse_moved() const {
  const std::int64_t heads = p_.c.batch.output.shape[1];
  for (std::int64_t i = 0; i < p_.expected.num_tokens * heads; ++i) {
    const std::int64_t token = p_.tokens.empty() ? i / heads : p_.tokens[static_cast<std::size_t>(i / heads)];
    const double expected = p_.expected.lse[static_cast<std::size_t>(i)];
    const double observed = semantics::load(first_.lse.data(), DType::f32, token * heads + i % heads);
    if (expected == observed || (std::isnan(expected) && std::isnan(observed))) continue;
    if (!(std::fabs(observed - expected) <= 0x1p-16 * std::max(1.0, std::fabs(expected)))) return true;
  }
  return false;
}

void Judge::on_zeros() {
  const bool hash = !p_.sparse && asks("canaries");
  const std::uint64_t before = hash ? hash_of_inputs(p_.c) : 0;
  first_ = call(target_.attend, Spread::contiguous);
  refused_ = first_.status.code() == Code::unsupported;
  if (refused_) reason_ = first_.status.message();
  if (refused_) return;
  if (!first_.status.ok()) return report("values", CheckState::fail, "the call failed: " + first_.status.message());
  judge_values(first_, "values", "lse");
  judge_rows();
  if (hash && before != hash_of_inputs(p_.c)) report("canaries", CheckState::fail, "the call changed one of its inputs");
  if (first_.damaged != 0) report("canaries", CheckState::fail, formatted("{} bytes outside the output changed", first_.damaged));
  report("canaries", CheckState::pass, {});
}

void Judge::judge_values(const Written& w, const std::string& values_check, const std::string& lse_check) {
  const Tensor& like = p_.c.batch.output;
  std::vector<std::byte> out_rows, lse_rows;
  const Comparison values = compare(cases::rows_of(with_data(like, w.out), p_.tokens, out_rows), {}, p_.expected);
  report(values_check, values.ok ? CheckState::pass : CheckState::fail, finding(values, p_.tokens), values.worst_ratio);
  if (!p_.tokens.empty() && values.ok) {
    // Rows that are not compared are at least finite: their data is.
    const std::int64_t n = num_request_rows(p_.c.batch) * like.shape[1] * like.shape[2];
    for (std::int64_t i = 0; i < n; ++i)
      if (!std::isfinite(semantics::load(w.out.data(), like.dtype, i))) {
        report(values_check, CheckState::fail,
               formatted("output[token {}, head {}, dim {}] is {}", i / like.shape[2] / like.shape[1],
                         i / like.shape[2] % like.shape[1], i % like.shape[2], semantics::load(w.out.data(), like.dtype, i)));
        break;
      }
  }
  if (!wants_lse()) {
    const auto skipped = target_.skip.find("lse");
    return skip(lse_check, skipped != target_.skip.end() ? skipped->second : "the case asks for none");
  }
  const Tensor lse = with_data(p_.c.batch.lse, w.lse);
  const Comparison logs = compare_lse(cases::rows_of(lse, p_.tokens, lse_rows), p_.expected);
  report(lse_check, logs.ok ? CheckState::pass : CheckState::fail, finding(logs, p_.tokens), logs.worst_ratio);
}

/// Padding rows that are to be left hold what Guarded filled them with, in output and lse.
std::string Judge::written_padding() const {
  const Tensor &out = p_.c.batch.output, &lse = p_.c.batch.lse;
  if (p_.c.batch.padding != Padding::left) return {};
  const std::int64_t first = num_request_rows(p_.c.batch), rows = out.shape[0] - first;
  const auto is_left = [&](const Tensor& t, const std::vector<std::byte>& bytes, std::int64_t elements) {
    const std::vector<std::byte> unwritten = fill_pattern(t.dtype, rows * elements);
    return std::equal(unwritten.begin(), unwritten.end(), bytes.end() - static_cast<std::ptrdiff_t>(unwritten.size()));
  };
  if (!is_left(out, first_.out, out.shape[1] * out.shape[2]))
    return formatted("the output of a padding row was written: tokens from {} on are to be left as they are", first);
  if (wants_lse() && !is_left(lse, first_.lse, lse.shape[1]))
    return formatted("the lse of a padding row was written: tokens from {} on are to be left as they are", first);
  return {};
}

void Judge::judge_rows() {
  if (!target_.in_place) return skip("rows", "the target returns memory of its own");
  const Tensor& like = p_.c.batch.output;
  const auto head_bytes = static_cast<std::size_t>(like.shape[2] * itemsize(like.dtype));
  const std::vector<std::byte> unwritten = fill_pattern(like.dtype, like.shape[2]);
  const std::int64_t tokens = p_.c.batch.padding == Padding::left ? num_request_rows(p_.c.batch) : like.shape[0];
  std::int64_t count = 0, first = -1;
  for (std::int64_t i = 0; i < tokens * like.shape[1]; ++i) {
    if (std::memcmp(first_.out.data() + static_cast<std::size_t>(i) * head_bytes, unwritten.data(), head_bytes) != 0) continue;
    if (count++ == 0) first = i;
  }
  if (count > 0)
    return report("rows", CheckState::fail,
                  formatted("{} of {} rows (token x head) were never written, first output[token {}, head {}]", count,
                            tokens * like.shape[1], first / like.shape[1], first % like.shape[1]));
  const std::string padding = written_padding();
  report("rows", padding.empty() ? CheckState::pass : CheckState::fail, padding);
}

/// Rows of requests alone: requests that are called one by one have no padding between them.
void Judge::drop_padding(Written& w) const {
  const Tensor& like = p_.c.batch.output;
  const std::int64_t heads = num_request_rows(p_.c.batch) * like.shape[1];
  w.out.resize(std::min(w.out.size(), static_cast<std::size_t>(heads * like.shape[2] * itemsize(like.dtype))));
  w.lse.resize(std::min(w.lse.size(), static_cast<std::size_t>(heads) * sizeof(float)));
}

/// Runs one call over poison with gaps, which also decides "strides" if nothing is wrong. Makes no call if an earlier one passed.
bool Judge::passes_with_gaps() {
  if (gaps_passed_ || !target_.in_place || !target_.deterministic || !asks("strides")) return false;
  const Written w = call(target_.attend, Spread::gaps);
  gaps_passed_ = w.status.ok() && w.damaged == 0 && w.same_bits(first_);
  if (!gaps_passed_) bits_differed_ = true;  // "repeat" asks whether the gaps or chance are to blame
  return gaps_passed_;
}

Case Judge::view(PoisonKind between, const cases::Chosen& chosen) const {
  const std::uint64_t seed = p_.entry.line.seed, phase = between == PoisonKind::nan ? 0 : 1;
  const bool odd = target_.strides == Strides::any && (seed / 3 + phase) % 2 == 1;
  return cases::with_views(p_.c, {odd ? Strides::any : Strides::rows, seed + phase, between}, chosen);
}

std::string Judge::no_views() const {
  if (target_.strides == Strides::none) return "the target takes contiguous inputs alone";
  if (p_.sparse) return "its cache is sparse";
  std::int64_t bytes = 0;
  cases::for_each_input(p_.c, [&](std::string_view, const Tensor& t) { bytes += t.num_elements() * itemsize(t.dtype); });
  return bytes > kMostViewed ? "the case is large" : "";
}

/// What is wrong with a call on views; empty if nothing is. Other strides may take another path through a kernel, so bits may
/// differ within the tolerance.
std::string Judge::wrong_on_views(const Written& w) const {
  if (!w.status.ok()) return "the call failed: " + w.status.message();
  if (w.damaged != 0 && first_.damaged == 0) return formatted("{} bytes outside the output changed", w.damaged);
  if (w.same_bits(first_)) return {};
  Judge values(target_, p_, {"values", "lse"});
  values.judge_values(w, "values", "lse");
  const CheckResult* const failed = failed_check(values.results_);
  return failed == nullptr ? "" : failed->text;
}

void Judge::judge_views(PoisonKind kind) {
  if (!asks("strided_inputs") || !viewed_.insert(kind).second) return;
  std::string why_not = no_views();
  const Written w = why_not.empty() ? call(target_.attend, Spread::contiguous, view(kind)) : Written{};
  if (w.status.code() == Code::unsupported) why_not = "views are refused: " + w.status.message();
  if (!why_not.empty()) return skip("strided_inputs", why_not);
  const std::string wrong = wrong_on_views(w);
  if (wrong.empty()) return report("strided_inputs", CheckState::pass, {});
  report("strided_inputs", CheckState::fail,
         formatted("inputs as views, with {} between their elements: {}", words_of(kind), wrong));
}

bool Judge::fails_on_views(const std::vector<std::string>& names) const {
  const auto chosen = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  return std::ranges::any_of(kPoisonBetween, [&](PoisonKind kind) {
    return !wrong_on_views(call(target_.attend, Spread::contiguous, view(kind, chosen))).empty();
  });
}

void Judge::judge_poison(const std::string& check, PoisonKind kind) {
  if (refused_ || !first_.status.ok()) return;
  judge_views(kind);
  if (!asks(check)) return;
  if (p_.sparse) return skip(check, "its cache is sparse");
  if (passes_with_gaps()) return report(check, CheckState::pass, {});
  const char* const poison = words_of(kind);
  const Written w = call(target_.attend, Spread::contiguous);
  if (w.damaged != 0 && first_.damaged == 0)
    report("canaries", CheckState::fail, formatted("{} bytes outside the output changed with {}", w.damaged, poison));
  if (!w.status.ok())
    return report(check, CheckState::fail,
                  formatted("the call failed with {} where nothing may be read: {}", poison, w.status.message()));
  if (w.same_bits(first_)) return report(check, CheckState::pass, {});
  bits_differed_ = true;
  // A target that promises no equal bits can fail only by its values.
  Judge values(target_, p_, {"values", "lse"});
  values.judge_values(w, "values", "lse");
  const bool wrong = values.failed();
  if (!wrong && !target_.deterministic) return report(check, CheckState::pass, {});
  std::string text = difference(p_.c.batch.output, first_.out, w.out, "output");
  if (text.empty()) text = difference(p_.c.batch.lse, first_.lse, w.lse, "lse");
  report(check, CheckState::fail,
         formatted("{} where nothing may be read {}: {}", poison, wrong ? "makes the output wrong" : "changes bits", text));
}

void Judge::on_bits() {
  if (refused_ || !first_.status.ok()) return;
  for (const PoisonKind kind : kPoisonBetween) judge_views(kind);
  judge_repeat();
  judge_strides_and_threads();
  if (!target_.batch_invariant || !target_.deterministic) return;
  if (is_large()) {
    for (const char* check : {"alone", "chunks"}) skip(check, "the case is large");
    return;
  }
  judge_slices("alone", 0);
  if (p_.c.batch.cached_lens.present()) return skip("chunks", "rows before a chunk would have to be in the cache");
  judge_slices("chunks", kChunk);
}

void Judge::judge_repeat() {
  if (!asks("repeat")) return;
  if (!target_.deterministic) return skip("repeat", "the target does not promise the same bits");
  // Calls over other poison gave the same bits: those were repeats.
  const bool repeated = (asks("nan_poison") || asks("garbage_poison")) && !p_.sparse;
  if (repeated && !bits_differed_) return report("repeat", CheckState::pass, {});
  const Written again = call(target_.attend, Spread::contiguous);
  if (again.same_bits(first_)) return report("repeat", CheckState::pass, {});
  report("repeat", CheckState::fail,
         "a second call on the same input: " + difference(p_.c.batch.output, first_.out, again.out, "output"));
}

/// Runs one call with gaps per variant, which decides both checks if nothing is wrong; large cases run the last variant only.
bool Judge::strides_and_threads_at_once() {
  if (!target_.in_place || target_.variants.empty() || !asks("strides") || !asks("threads")) return false;
  for (std::size_t i = is_large() ? target_.variants.size() - 1 : 0; i < target_.variants.size(); ++i) {
    const Written w = call(target_.variants[i].second, Spread::apart);
    if (!w.status.ok() || w.damaged != 0 || !w.same_bits(first_)) return false;
  }
  for (const char* check : {"strides", "threads"}) report(check, CheckState::pass, {});
  return true;
}

/// Calls that only look for bits cost as much as any other.
bool Judge::is_large() const {
  const Problem& p = p_.entry.line.problem;
  return p.visible_pairs() > kSliceWork / std::max<std::int64_t>(1, p.num_q_heads * p.head_dim);
}

void Judge::judge_strides_and_threads() {
  const auto same = [&](const char* check, const std::string& what, const AttendCase& attend, Spread spread) {
    if (!asks(check)) return;
    const Written w = call(attend, spread);
    if (!w.status.ok()) return report(check, CheckState::fail, formatted("the call {} failed: {}", what, w.status.message()));
    if (w.damaged != 0 && first_.damaged == 0) {  // check "canaries" reports damage by the first call
      const char* hint =
          spread != Spread::contiguous ? "; a kernel that returns memory of its own needs Target::in_place = false" : "";
      return report(check, CheckState::fail, formatted("{} bytes outside the output changed {}{}", w.damaged, what, hint));
    }
    if (w.same_bits(first_)) return report(check, CheckState::pass, {});
    report(check, CheckState::fail, formatted("{}: {}", what, difference(p_.c.batch.output, first_.out, w.out, "output")));
  };
  if (!target_.deterministic) {
    for (const char* check : {"strides", "threads"}) skip(check, "the target does not promise the same bits");
    return;
  }
  if (target_.in_place && !gaps_passed_)
    same("strides", "with gaps between the heads of the output", target_.attend, Spread::gaps);
  if (strides_and_threads_at_once()) return;
  if (!target_.in_place) {
    skip("strides", "the target returns memory of its own");
  } else {
    same("strides", "with gaps between the elements of the output", target_.attend, Spread::apart);
  }
  for (const auto& [name, attend] : target_.variants) same("threads", "with " + name, attend, Spread::contiguous);
}

/// Requests one by one, whole (chunk 0) or in chunks; the bits must be those of the batch.
void Judge::judge_slices(const std::string& check, std::int64_t chunk) {
  if (!asks(check)) return;
  const AttendCase& attend = target_.invariant ? target_.invariant : target_.attend;
  const AttendCase one_by_one = [&](const Case& c, std::string& kernel) -> Status {
    for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r) {
      const std::int64_t rows = query_len(c.batch, r), step = chunk > 0 ? chunk : std::max<std::int64_t>(1, rows);
      for (std::int64_t row = 0; row < rows; row += step) {
        const Case part = slice(c, c.batch.output, c.batch.lse, r, row, std::min(rows, row + step));
        if (const Status s = attend(part, kernel); !s.ok()) return s;
      }
    }
    return {};
  };
  Written whole = target_.invariant ? call(attend, Spread::contiguous) : first_;
  Written w = call(one_by_one, Spread::contiguous);
  const std::string what = chunk > 0 ? formatted("requests in chunks of {}", chunk) : std::string("requests one by one");
  if (!w.status.ok()) return report(check, CheckState::fail, what + ": the call failed: " + w.status.message());
  if (target_.invariant && whole.status.ok()) {  // equal bits may be equally wrong, so values are judged, too
    Judge values(target_, p_, {"values", "lse"});
    values.judge_values(whole, "values", "lse");
    if (const CheckResult* const failed = failed_check(values.results_))
      return report(check, CheckState::fail, "the plan for the same bits: " + failed->text);
  }
  drop_padding(whole);
  drop_padding(w);
  if (w.same_bits(whole)) return report(check, CheckState::pass, {});
  std::string text = difference(p_.c.batch.output, whole.out, w.out, "output");
  if (text.empty()) text = difference(p_.c.batch.lse, whole.lse, w.lse, "lse");
  report(check, CheckState::fail, what + ": " + text);
}

CaseResult Judge::result() const {
  const Entry& e = p_.entry;
  const Tensor& out = p_.c.batch.output;
  CaseResult r{.matrix = e.matrix,
               .name = e.name,
               .line = to_string(e.line),
               .status = refused_   ? CaseStatus::refused
                         : failed() ? CaseStatus::fail
                                    : CaseStatus::pass,
               .kernel = first_.kernel,
               .reason = reason_,
               .num_elements = out.num_elements()};
  if (!refused_) r.num_compared = p_.expected.num_tokens * out.shape[1] * out.shape[2];
  for (const std::string& check : check_names())
    for (const CheckResult& known : results_)
      if (known.check == check) r.checks.push_back(known);
  return r;
}

std::string inputs_to_blame(const Target& target, const Prepared& p) {
  Judge judge(target, p, {});
  judge.on_zeros();
  std::vector<std::string> names;
  cases::for_each_input(p.c, [&](std::string_view name, const Tensor& t) {
    if (t.num_elements() > 1) names.emplace_back(name);
  });
  if (!judge.no_views().empty() || !judge.fails_on_views(names)) return {};
  while (names.size() > 1) {
    const auto middle = names.begin() + static_cast<std::ptrdiff_t>(names.size() / 2);
    std::vector<std::string> half(names.begin(), middle), rest(middle, names.end());
    if (!judge.fails_on_views(half)) half.swap(rest);
    if (!judge.fails_on_views(half)) break;  // the failure needs a view of each half
    names.swap(half);
  }
  return formatted("{}", fmt::join(names, ", "));
}

Status poison(Prepared& p, PoisonKind kind) { return p.sparse ? Status() : poison_case(p.c, kind); }

CaseResult judge(const Target& target, Prepared& p, const std::set<std::string>& asked) {
  Judge judge(target, p, asked);
  Status status = poison(p, PoisonKind::zero);
  if (status.ok()) judge.on_zeros();
  if (!judge.refused() && status.ok()) {
    if (asked.contains("nan_poison")) {
      status = poison(p, PoisonKind::nan);
      if (status.ok()) judge.on_nan();
    }
    if (asked.contains("garbage_poison") && status.ok()) {
      status = poison(p, PoisonKind::finite_garbage);
      if (status.ok()) judge.on_garbage();
    }
    if (status.ok()) status = poison(p, PoisonKind::zero);
    if (status.ok()) judge.on_bits();
  }
  CaseResult result = judge.result();
  if (!status.ok()) {
    result.status = CaseStatus::fail;
    result.checks.push_back({"values", CheckState::fail, 0, "the case could not be poisoned: " + status.message()});
  }
  return result;
}

}  // namespace quire::verify_detail
