// SPDX-License-Identifier: Apache-2.0
// The problem line: one text form of a batch's shape for tests, bench, CLI and bug reports (problem_line.md).
//
// Parsing is strict: every key once, every number whole and in range, every combination one that Quire can run. A parsed problem
// can be planned and filled with data without any size overflowing 64 bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "batch/caught.h"
#include "quire/problem.hpp"
#include "semantics/latent_row.h"
#include "semantics/mask.h"
#include "text/formatted.h"
#include "text/names.h"
#include "text/parse.h"

namespace quire {
namespace {

using text::float_text;
using text::parse_float;
using text::parse_int;
using text::quote;

/// Lengths and sizes fit an int32, as index tensors of that type must hold them.
constexpr std::int64_t kMaxSize = 2147483647;
constexpr std::int64_t kMaxRequests = 1 << 20;  // limits memory for a hostile line such as 999999999x1
/// Bound on the sum of query_len * seq_len, which keeps pair counts and their products with small factors in 64 bits.
constexpr std::int64_t kMaxPairs = std::int64_t{1} << 56;

Status fail(std::string_view key, std::string_view got, std::string_view expected) {
  return {Code::parse_error, formatted("problem line: {}={}: expected {}", key, quote(got), expected)};
}

constexpr std::string_view kSwitchNames[] = {"0", "1"};
std::string_view name(bool on) { return name_in(kSwitchNames, on); }
constexpr std::string_view kScaleNames[] = {"none", "tensor", "head", "token"};
std::string_view name(ScaleKind kind) { return name_in(kScaleNames, kind, "invalid"); }
constexpr std::string_view kDataNames[] = {"normal", "tiny"};
std::string_view name(DataKind data) { return name_in(kDataNames, data, "invalid"); }

constexpr bool kSwitch[] = {false, true};
constexpr DType kQueryTypes[] = {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3fn};
constexpr DType kCacheTypes[] = {DType::f32,          DType::f16,      DType::bf16,         DType::fp8_e4m3fn,
                                 DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz, DType::i8,
                                 DType::nvfp4,        DType::mxfp4,    DType::fp8_ds_mla};
constexpr DType kIndexTypes[] = {DType::i32, DType::i64};
constexpr CacheLayout kLayouts[] = {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::packed};
constexpr ScaleKind kQueryScaleKinds[] = {ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head};
constexpr ScaleKind kScaleKinds[] = {ScaleKind::none, ScaleKind::per_tensor, ScaleKind::per_head, ScaleKind::per_token};
constexpr Padding kPaddings[] = {Padding::left, Padding::zero};
constexpr DataKind kDataKinds[] = {DataKind::normal, DataKind::tiny};

/// Sets one of the choices, by name.
template <typename Value, std::size_t n>
Status set_choice(std::string_view key, std::string_view text, const Value (&choices)[n], Value& out) {
  std::array<std::string_view, n> names;
  for (std::size_t i = 0; i < n; ++i) {
    names[i] = name(choices[i]);
    if (names[i] == text) return out = choices[i], Status();
  }
  return fail(key, text, formatted("one of {}", fmt::join(names, ", ")));
}

Status set_size(std::string_view key, std::string_view text, std::int64_t least, std::int64_t& out) {
  const auto value = parse_int(text);
  if (!value || *value < least || *value > kMaxSize) {
    return fail(key, text, formatted("an integer in [{}, {}]", least, kMaxSize));
  }
  return out = *value, Status();
}

Status set_heads(std::string_view key, std::string_view text, ProblemLine& line) {
  const std::size_t colon = text.find(':');
  const auto q = parse_int(text.substr(0, colon));
  const auto kv = colon == text.npos ? q : parse_int(text.substr(colon + 1));
  if (!q || !kv || *q < 1 || *kv < 1 || *q > kMaxSize || *q % *kv != 0) {
    return fail(key, text, "num_q_heads:num_kv_heads, both >= 1, the first a multiple of the second (e.g. 32:8)");
  }
  line.problem.num_q_heads = *q;
  line.problem.num_kv_heads = *kv;
  return {};
}

/// Cuts the part after `mark` off `text`; nullopt if there is no such mark.
std::optional<std::string_view> cut_after(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  const std::string_view rest = text.substr(at + 1);
  text = text.substr(0, at);
  return rest;
}

struct RequestRun {
  std::int64_t count = 1;
  Request request;
};

/// context_len from `@ context_len`, or from `: seq_len` of a request whose keys may be fewer than its rows.
std::optional<std::int64_t> parse_context(std::optional<std::string_view> context, std::optional<std::string_view> keys,
                                          std::int64_t query_len) {
  if (!keys) return parse_int(context.value_or("0"));
  const auto seq_len = parse_int(*keys);
  if (context || !seq_len || *seq_len < 0 || query_len > kMaxSize) return std::nullopt;
  return *seq_len - query_len;
}

/// One item of reqs: [count x] query_len [@ context_len | : seq_len] [/ cached_len].
Status parse_request(std::string_view item, RequestRun& run) {
  constexpr std::string_view kForm =
      "[count x] query_len [@ context_len | : seq_len] [/ cached_len], e.g. 64x1@2048, 8@100/100 or 8:3";
  std::string_view rest = item;
  const auto cached_text = cut_after(rest, '/');
  const auto keys_text = cut_after(rest, ':');
  const auto context_text = cut_after(rest, '@');
  std::string_view count_text = "1";
  if (const auto after_count = cut_after(rest, 'x')) {
    count_text = rest;
    rest = *after_count;
  }
  const auto count = parse_int(count_text);
  const auto query = parse_int(rest);
  const auto context = query ? parse_context(context_text, keys_text, *query) : std::nullopt;
  if (!count || !query || !context || *count < 1 || *query < 0 || (*context < 0 && !keys_text)) return fail("reqs", item, kForm);
  if (*query > kMaxSize || *context > kMaxSize - *query) {
    return fail("reqs", item, formatted("query_len + context_len <= {}", kMaxSize));
  }
  const auto cached = cached_text ? parse_int(*cached_text) : std::optional(*query + *context);
  if (!cached) return fail("reqs", item, kForm);
  const std::int64_t least = std::max<std::int64_t>(0, *context);
  if (*cached < least || *cached > *context + *query) {
    return fail("reqs", item, formatted("cached_len in [context_len, seq_len] = [{}, {}]", least, *context + *query));
  }
  run = {*count, {*query, *context, *cached}};
  return {};
}

Status set_reqs(std::string_view, std::string_view text, ProblemLine& line) {
  if (text == "none") return {};
  std::vector<Request>& reqs = line.problem.reqs;
  std::int64_t pairs = 0;
  for (bool more = true; more;) {
    std::string_view item = text;
    const auto rest = cut_after(item, ',');
    more = rest.has_value();
    text = rest.value_or("");
    RequestRun run;
    if (Status s = parse_request(item, run); !s.ok()) return s;
    if (run.count > kMaxRequests - static_cast<std::int64_t>(reqs.size())) {
      return fail("reqs", item, formatted("at most {} requests in all", kMaxRequests));
    }
    const std::int64_t budget = (kMaxPairs - pairs) / run.count;  // query_len * seq_len < 2^62: no overflow
    if (run.request.query_len * run.request.seq_len() > budget) {
      return fail("reqs", item, formatted("at most {} pairs of query row and key in all", kMaxPairs));
    }
    pairs += run.count * run.request.query_len * run.request.seq_len();
    reqs.insert(reqs.end(), static_cast<std::size_t>(run.count), run.request);
  }
  return {};
}

/// A value for each request: one for all, or a list of [count x] value. `is_list`: not the plain value.
Status parse_by_request(std::string_view key, std::string_view text, std::size_t num_reqs, std::int64_t most,
                        std::vector<std::int64_t>& values, bool& is_list) {
  const std::string form = formatted("an integer in [0, {}] for all requests, or a list of count x value, e.g. 3x0,1x{}", most,
                                     std::min<std::int64_t>(most, 64));
  is_list = text.find_first_of("x,") != text.npos;
  for (std::string_view rest = text; !rest.empty() || values.empty();) {
    std::string_view item = rest;
    rest = cut_after(item, ',').value_or("");
    std::string_view value = item;
    std::int64_t count = is_list ? 1 : static_cast<std::int64_t>(num_reqs);
    if (const auto after_count = cut_after(value, 'x')) {
      count = parse_int(value).value_or(0);
      value = *after_count;
      if (count < 1) return fail(key, text, form);
    }
    const auto parsed = parse_int(value);
    if (!parsed || *parsed < 0 || *parsed > most) return fail(key, text, form);
    if (count > static_cast<std::int64_t>(num_reqs - values.size()))
      return fail(key, text, formatted("as many values as requests, {}", num_reqs));
    values.insert(values.end(), static_cast<std::size_t>(count), *parsed);
    if (num_reqs == 0) return {};
  }
  return values.size() == num_reqs ? Status() : fail(key, text, formatted("as many values as requests, {}", num_reqs));
}

/// Gives each request its value by set(request, value), which returns what it expected of a value that does not fit, or nothing.
template <typename Set>
Status set_by_request(std::string_view key, std::string_view text, Problem& p, std::int64_t most, bool& is_list, Set&& set) {
  std::vector<std::int64_t> values;
  if (Status s = parse_by_request(key, text, p.reqs.size(), most, values, is_list); !s.ok()) return s;
  for (std::size_t r = 0; r < p.reqs.size(); ++r)
    if (const std::string expected = set(p.reqs[r], values[r]); !expected.empty()) return fail(key, text, expected);
  return {};
}

Status set_causal(std::string_view key, std::string_view text, ProblemLine& line) {
  Problem& p = line.problem;
  Status s = set_by_request(key, text, p, 1, p.has_causal, [](Request& req, std::int64_t flag) {
    req.causal = flag != 0;
    return std::string();
  });
  if (s.ok() && !p.has_causal) p.causal = text != "0";
  return s;
}

Status set_key_begin(std::string_view key, std::string_view text, ProblemLine& line) {
  bool is_list = false;
  line.problem.has_key_begin = true;
  return set_by_request(key, text, line.problem, kMaxSize, is_list, [](Request& req, std::int64_t begin) {
    req.key_begin = begin;
    return begin > kMaxSize - req.seq_len() ? formatted("key_begin + seq_len <= {}", kMaxSize) : std::string();
  });
}

/// Sets Request::shift from q_begin. Call it after key_begin is set, because the shift depends on key_begin.
Status set_q_begin(std::string_view key, std::string_view text, ProblemLine& line) {
  bool is_list = false;
  line.problem.has_q_begin = true;
  return set_by_request(key, text, line.problem, kMaxSize, is_list, [](Request& req, std::int64_t begin) {
    req.shift = begin - req.key_begin - req.context_len;
    return begin > kMaxSize - req.query_len ? formatted("q_begin + query_len <= {}", kMaxSize) : std::string();
  });
}

Status set_prefix(std::string_view key, std::string_view text, ProblemLine& line) {
  Problem& p = line.problem;
  p.has_prefix = true;
  Status s = set_by_request(key, text, p, kMaxSize, p.has_prefix_lens, [](Request& req, std::int64_t len) {
    req.prefix_len = len;
    return std::string();
  });
  if (s.ok() && !p.reqs.empty() && !p.has_prefix_lens) p.prefix_len = p.reqs.front().prefix_len;
  return s;
}

Status set_tree(std::string_view key, std::string_view text, ProblemLine& line) {
  Problem& p = line.problem;
  bool is_list = false;
  p.has_tree = true;
  return set_by_request(key, text, p, semantics::kMaxTreeKeys, is_list, [&](Request& req, std::int64_t len) {
    req.tree_len = len;
    return len > req.seq_len() ? formatted("at most the keys of request {}, {}", &req - p.reqs.data(), req.seq_len())
                               : std::string();
  });
}

/// request : begin - end; false if the text has another form.
bool parse_span(std::string_view text, std::int64_t& request, Span& span) {
  const auto positions = cut_after(text, ':');
  if (!positions) return false;
  std::string_view begin = *positions;
  const auto end = cut_after(begin, '-');
  const std::array values = {parse_int(text), parse_int(begin), end ? parse_int(*end) : std::nullopt};
  if (std::any_of(values.begin(), values.end(), [](const auto& v) { return !v || *v < 0 || *v > kMaxSize; })) return false;
  request = *values[0];
  span = {*values[1], *values[2]};
  return span.begin < span.end;
}

/// spans: request : begin - end, by requests and then by positions.
Status set_spans(std::string_view key, std::string_view text, ProblemLine& line) {
  constexpr std::string_view kForm = "request:begin-end, ascending and disjoint within a request: 0:4-9,0:20-30,2:0-16, or none";
  Problem& p = line.problem;
  p.has_spans = true;
  std::int64_t last_request = 0;
  for (std::string_view rest = text == "none" ? "" : text; !rest.empty();) {
    std::string_view item = rest;
    rest = cut_after(item, ',').value_or("");
    std::int64_t request = 0;
    Span span;
    if (!parse_span(item, request, span) || request < last_request || request >= static_cast<std::int64_t>(p.reqs.size()))
      return fail(key, text, kForm);
    Request& req = p.reqs[static_cast<std::size_t>(request)];
    if (req.num_spans > 0 && span.begin < p.spans.back().end) return fail(key, text, kForm);
    if (req.num_spans++ == 0) req.first_span = static_cast<std::int64_t>(p.spans.size());
    p.spans.push_back(span);
    last_request = request;
  }
  return {};
}

Status set_positive(std::string_view key, std::string_view text, std::optional<float>& out) {
  const auto value = parse_float(text);
  if (!value || !std::isfinite(*value) || !(*value > 0)) {
    return fail(key, text, "a finite number > 0; leave the key out for the default");
  }
  out = value;
  return {};
}

/// A number of keys or tokens that may be absent. `what` it counts; `absent`: what a line without the key means.
Status set_optional(std::string_view key, std::string_view text, std::int64_t least, std::optional<std::int64_t>& out,
                    std::string_view what, std::string_view absent) {
  std::int64_t value = 0;
  if (!set_size(key, text, least, value).ok())
    return fail(key, text, formatted("the number of {}, in [{}, {}]; leave the key out for {}", what, least, kMaxSize, absent));
  out = value;
  return {};
}

Status set_window(std::string_view key, std::string_view text, ProblemLine& line) {
  return set_optional(key, text, 1, line.problem.sliding_window, "visible keys, own key included", "all");
}
Status set_window_right(std::string_view key, std::string_view text, ProblemLine& line) {
  return set_optional(key, text, 0, line.problem.window_right, "visible keys after the own one", "all");
}
Status set_chunk(std::string_view key, std::string_view text, ProblemLine& line) {
  return set_optional(key, text, 1, line.problem.attention_chunk, "tokens of a chunk", "none");
}

/// pad: num_padding_rows [: left | zero].
Status set_padding(std::string_view key, std::string_view text, ProblemLine& line) {
  constexpr std::string_view kForm = "the number of padding rows, then how they are treated: 8, 8:left or 8:zero";
  std::string_view count = text;
  const std::string_view how = cut_after(count, ':').value_or("left");
  if (Status s = set_size(key, count, 0, line.problem.num_padding_rows); !s.ok()) return fail(key, text, kForm);
  if (Status s = set_choice(key, how, kPaddings, line.problem.padding); !s.ok()) return fail(key, text, kForm);
  return {};
}

/// kv: type of K and V [/ type of V].
Status set_cache_types(std::string_view key, std::string_view text, ProblemLine& line) {
  std::string_view k = text;
  const std::optional<std::string_view> v = cut_after(k, '/');
  if (Status s = set_choice(key, k, kCacheTypes, line.problem.kv_dtype); !s.ok()) return s;
  return v ? set_choice(key, *v, kCacheTypes, line.problem.v_dtype) : Status();
}

constexpr std::size_t kMaxBranches = 16;

/// share: pages { , requests x pages }.
Status set_share(std::string_view key, std::string_view text, ProblemLine& line) {
  std::string_view item = text;
  std::optional<std::string_view> rest = cut_after(item, ',');
  if (Status s = set_size(key, item, 0, line.shared_pages); !s.ok()) return s;
  std::int64_t total = line.shared_pages;
  while (rest) {
    item = *rest;
    rest = cut_after(item, ',');
    const auto pages = cut_after(item, 'x');
    const auto requests = parse_int(item), count = pages ? parse_int(*pages) : std::nullopt;
    total += count.value_or(0);
    if (!requests || !count || *requests < 1 || *requests > kMaxSize || *count < 1 || *count > kMaxSize || total > kMaxSize)
      return fail(key, text, "pages that all requests share, then requests x pages for further pages of neighbours: 4,8x2,2x1");
    line.branches.push_back({*requests, *count});
    if (line.branches.size() > kMaxBranches) return fail(key, text, formatted("at most {} levels of branches", kMaxBranches));
  }
  return {};
}

Status set_seed(std::string_view key, std::string_view text, ProblemLine& line) {
  const auto seed = text::parse_uint(text);
  if (!seed) return fail(key, text, "an integer in [0, 2^64)");
  return line.seed = *seed, Status();
}

// Setters of a member of the problem, or of the line.
template <auto kMember>
auto& member_of(ProblemLine& line) {
  if constexpr (std::is_invocable_v<decltype(kMember), ProblemLine&>)
    return line.*kMember;
  else
    return line.problem.*kMember;
}
template <auto kMember, const auto& kChoices>
Status set_one_of(std::string_view key, std::string_view text, ProblemLine& line) {
  return set_choice(key, text, kChoices, member_of<kMember>(line));
}
template <auto kMember, std::int64_t kLeast = 1>
Status set_extent(std::string_view key, std::string_view text, ProblemLine& line) {
  return set_size(key, text, kLeast, member_of<kMember>(line));
}
template <auto kMember>
Status set_factor(std::string_view key, std::string_view text, ProblemLine& line) {
  return set_positive(key, text, line.problem.*kMember);
}

struct Key {
  std::string_view name;
  std::string_view meaning;  ///< meaning of a key that every line must have; empty: the key may be missing
  std::string_view aliases;  ///< names in other projects
  Status (*set)(std::string_view key, std::string_view text, ProblemLine& line);
  bool of_requests = false;  ///< values for the requests, which have to be known
};

constexpr Key kKeys[] = {
    {"q", "query type", "dtype", set_one_of<&Problem::q_dtype, kQueryTypes>},
    {"kv", "", "kv_cache_dtype kv_dtype", set_cache_types},
    {"heads", "num_q_heads:num_kv_heads", "num_heads", set_heads},
    {"d", "head_dim", "head_dim head_size", set_extent<&Problem::head_dim>},
    {"dv", "", "v_head_dim head_dim_v", set_extent<&Problem::v_head_dim>},
    {"page", "page_size", "page_size block_size", set_extent<&Problem::page_size>},
    {"layout", "", "", set_one_of<&Problem::layout, kLayouts>},
    {"reqs", "requests", "batch requests", set_reqs},
    {"out", "", "output_dtype output", set_one_of<&Problem::output_dtype, kQueryTypes>},
    {"scale", "", "softmax_scale", set_factor<&Problem::softmax_scale>},
    {"window", "", "sliding_window window_left", set_window},
    {"causal", "", "is_causal", set_causal, true},
    {"wright", "", "window_right", set_window_right},
    {"kbegin", "", "key_begin", set_key_begin, true},
    {"qbegin", "", "q_begin q_offset", set_q_begin, true},
    {"chunk", "", "attention_chunk attention_chunk_size", set_chunk},
    {"prefix", "", "prefix_len prefix_lens", set_prefix, true},
    {"spans", "", "", set_spans, true},
    {"beyond", "", "spans_beyond_window", set_one_of<&Problem::spans_beyond_window, kSwitch>},
    {"tree", "", "tree_lens", set_tree, true},
    {"cap", "", "logits_soft_cap softcap soft_cap", set_factor<&Problem::logits_soft_cap>},
    {"alibi", "", "alibi_slopes", set_one_of<&Problem::alibi, kSwitch>},
    {"sinks", "", "", set_one_of<&Problem::sinks, kSwitch>},
    {"lse", "", "", set_one_of<&Problem::lse, kSwitch>},
    {"qscale", "", "q_scale", set_one_of<&Problem::q_scale, kQueryScaleKinds>},
    {"kscale", "", "k_scale", set_one_of<&Problem::k_scale, kScaleKinds>},
    {"vscale", "", "v_scale", set_one_of<&Problem::v_scale, kScaleKinds>},
    {"pad", "", "padding num_padding_rows", set_padding},
    {"latent", "", "", set_one_of<&Problem::latent, kSwitch>},
    {"pages", "", "num_pages num_blocks", set_extent<&ProblemLine::num_pages, 0>},
    {"share", "", "", set_share},
    {"index", "", "", set_one_of<&ProblemLine::index_dtype, kIndexTypes>},
    {"data", "", "", set_one_of<&ProblemLine::data, kDataKinds>},
    {"seed", "", "", set_seed},
};
constexpr std::size_t kNumKeys = std::size(kKeys);

std::array<std::string_view, kNumKeys> key_names() {
  std::array<std::string_view, kNumKeys> names;
  for (std::size_t i = 0; i < kNumKeys; ++i) names[i] = kKeys[i].name;
  return names;
}

Status unknown_key(std::string_view key) {
  const auto names = key_names();
  std::string_view guess = text::nearest(key, names);
  for (const Key& ours : kKeys)
    if (!key.empty() && formatted(" {} ", ours.aliases).find(formatted(" {} ", key)) != std::string::npos) guess = ours.name;
  const std::string hint = guess.empty() ? "" : formatted("; did you mean {}=?", guess);
  return {Code::parse_error, formatted("problem line: unknown key {}{} (keys: {})", quote(key), hint, fmt::join(names, " "))};
}

/// The values of the keys of a line, by their place in kKeys.
using Values = std::array<std::optional<std::string_view>, kNumKeys>;

Status take_word(std::string_view word, ProblemLine& line, Values& values) {
  std::string_view key = word;
  const auto value = cut_after(key, '=');
  if (!value) return {Code::parse_error, formatted("problem line: {}: expected key=value", quote(word))};
  const auto* row = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) { return k.name == key; });
  if (row == std::end(kKeys)) return unknown_key(key);
  std::optional<std::string_view>& known = values[static_cast<std::size_t>(row - kKeys)];
  if (known) return {Code::parse_error, formatted("problem line: {}={}: the key is given twice", key, quote(*value))};
  known = value;
  return row->of_requests ? Status() : row->set(key, *value, line);
}

/// "none", or runs of equal requests as count x query_len @ context_len / cached_len, the last two only where not default.
std::string reqs_text(const std::vector<Request>& reqs) {
  if (reqs.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < reqs.size();) {
    const Request& r = reqs[i];
    std::size_t end = i + 1;
    while (end < reqs.size() && reqs[end] == r) ++end;
    text += formatted("{}{}x{}", i == 0 ? "" : ",", end - i, r.query_len);
    if (r.context_len > 0) text += formatted("@{}", r.context_len);
    if (r.context_len < 0) text += formatted(":{}", r.seq_len());
    if (r.cached_len != r.seq_len()) text += formatted("/{}", r.cached_len);
    i = end;
  }
  return text;
}

/// Runs of equal values as count x value.
template <typename Of>
std::string by_request_text(const std::vector<Request>& reqs, Of&& of) {
  std::string text = reqs.empty() ? "0" : "";
  for (std::size_t i = 0; i < reqs.size();) {
    std::size_t end = i + 1;
    while (end < reqs.size() && of(reqs[end]) == of(reqs[i])) ++end;
    text += formatted("{}{}x{}", i == 0 ? "" : ",", end - i, of(reqs[i]));
    i = end;
  }
  return text;
}

std::string spans_text(const Problem& p) {
  std::string text;
  for (std::size_t r = 0; r < p.reqs.size(); ++r)
    for (std::int64_t i = 0; i < p.reqs[r].num_spans; ++i) {
      const Span& span = p.spans[static_cast<std::size_t>(p.reqs[r].first_span + i)];
      text += formatted("{}{}:{}-{}", text.empty() ? "" : ",", r, span.begin, span.end);
    }
  return text.empty() ? "none" : text;
}

std::string shapes_text(const Problem& p) {
  std::string text;
  if (p.attention_chunk) text += formatted(" chunk={}", *p.attention_chunk);
  if (p.has_prefix_lens) text += formatted(" prefix={}", by_request_text(p.reqs, [](const Request& r) { return r.prefix_len; }));
  if (p.has_prefix && !p.has_prefix_lens) text += formatted(" prefix={}", p.prefix_len);
  if (p.has_spans) text += " spans=" + spans_text(p);
  if (p.spans_beyond_window) text += " beyond=1";
  if (p.has_tree) text += formatted(" tree={}", by_request_text(p.reqs, [](const Request& r) { return r.tree_len; }));
  return text;
}

/// Rules Q-M44, Q-T06 and Q-T21.
Status check_masks(const Problem& p) {
  if (p.window_right && p.causal && !p.has_causal)
    return fail("wright", formatted("{}", *p.window_right), "causal=0, or a list with a 0: causal requests see no later key");
  for (const Request& r : p.reqs) {
    if (r.seq_len() < r.query_len && r.causal && !p.has_q_begin)
      return fail("reqs", reqs_text(p.reqs), "at least query_len keys in a causal request without qbegin");
    if (r.cached_len < r.seq_len() && (r.shift != 0 || r.context_len < 0))
      return fail("qbegin", formatted("{}", r.q_begin()),
                  formatted("key_begin + context_len = {}, or every key cached", r.key_begin + r.context_len));
  }
  return {};
}

/// Refuses combinations of types that 8-bit queries and outputs cannot have (Q-M12, Q-M20, Q-M26, Q-M40).
Status check_row_types(const Problem& p) {
  const bool fp8_query = p.q_dtype == DType::fp8_e4m3fn;
  const DType out = p.out_dtype();
  if (!fp8_query && out != p.q_dtype && out != DType::fp8_e4m3fn && out != DType::f32)
    return fail("out", name(out), formatted("the query's type ({}), f32 or fp8_e4m3fn", name(p.q_dtype)));
  if (fp8_query && (p.kv_dtype != DType::fp8_e4m3fn || !p.has_equal_types()))
    return fail("kv", p.cache_types(), "fp8_e4m3fn, as the query is");
  if (!fp8_query && p.q_scale != ScaleKind::none)
    return fail("qscale", name(p.q_scale), formatted("none with q={}", name(p.q_dtype)));
  for (const Request& r : p.reqs)
    if (fp8_query && r.cached_len != r.seq_len()) return fail("reqs", reqs_text(p.reqs), "no new rows under an fp8_e4m3fn query");
  return {};
}

/// Rules Q-M50 and Q-M51.
Status check_cache_scales(const Problem& p) {
  for (const auto& [key, kind, type] : {std::tuple{"kscale", p.k_scale, p.kv_dtype}, {"vscale", p.v_scale, p.value_dtype()}}) {
    if (type == DType::i8 && kind == ScaleKind::none)
      return fail(key, "none", formatted("tensor, head or token with kv={}", p.cache_types()));
    if (kind == ScaleKind::per_token && !is_code(type))
      return fail(key, "token", formatted("none, tensor or head with kv={}", p.cache_types()));
  }
  return {};
}

/// Rules Q-M54 and Q-M55.
Status check_blocks(const Problem& p) {
  for (const auto& [key, dims, type] : {std::tuple{"d", p.head_dim, p.kv_dtype}, {"dv", p.out_dim(), p.value_dtype()}}) {
    if (!is_four_bit(type)) continue;
    if (dims % block_size(type) != 0)
      return fail(key, formatted("{}", dims), formatted("a multiple of {} with kv={}", block_size(type), p.cache_types()));
    if (p.layout == CacheLayout::packed) return fail("layout", "packed", formatted("nhd or hnd with kv={}", p.cache_types()));
  }
  return {};
}

/// Rows of fp8_ds_mla have one size, one KV head, and their scales within (Q-R01, Q-R03).
Status check_latent_rows(const Problem& p) {
  if (p.kv_dtype != DType::fp8_ds_mla && p.value_dtype() != DType::fp8_ds_mla) return {};
  if (!p.has_equal_types()) return fail("kv", p.cache_types(), "fp8_ds_mla for K and V both");
  namespace row = semantics::latent_row;
  const auto of_rows = [](std::int64_t n) { return formatted("{} with kv=fp8_ds_mla", n); };
  if (p.head_dim != row::kDims) return fail("d", formatted("{}", p.head_dim), of_rows(row::kDims));
  if (p.out_dim() != row::kLatentDims) return fail("dv", formatted("{}", p.out_dim()), of_rows(row::kLatentDims));
  if (!p.latent) return fail("latent", "0", of_rows(1));
  if (p.num_kv_heads != 1)
    return fail("heads", formatted("{}:{}", p.num_q_heads, p.num_kv_heads), "one KV head with kv=fp8_ds_mla");
  for (const auto& [key, kind] : {std::pair{"kscale", p.k_scale}, {"vscale", p.v_scale}})
    if (kind != ScaleKind::none) return fail(key, name(kind), "none with kv=fp8_ds_mla, whose rows hold scales");
  return {};
}

/// V can be the leading dims of K's rows.
Status check_latent(const Problem& p) {
  if (!p.latent) return {};
  if (!p.has_equal_types()) return fail("kv", p.cache_types(), "one type with latent=1");
  if (p.layout == CacheLayout::packed) return fail("latent", "1", "0 with layout=packed: tokens of a dim of V are neighbours");
  if (p.out_dim() > p.head_dim)
    return fail("dv", formatted("{}", p.out_dim()), formatted("at most d ({}) with latent=1", p.head_dim));
  return {};
}

Status check_combinations(const ProblemLine& line) {
  const Problem& p = line.problem;
  for (const auto check : {check_latent, check_latent_rows, check_row_types, check_masks, check_cache_scales, check_blocks})
    if (Status s = check(p); !s.ok()) return s;
  if ((p.kv_dtype == DType::f32 || p.value_dtype() == DType::f32) && p.q_dtype != DType::f32) {
    return fail("kv", p.cache_types(), formatted("the query's type ({}), a 16-bit type or an fp8 type", name(p.q_dtype)));
  }
  if (p.layout == CacheLayout::packed && p.head_dim % packed_x(p.kv_dtype) != 0) {
    return fail("layout", "packed",
                formatted("d to be a multiple of {} with kv={}; d is {}", packed_x(p.kv_dtype), p.cache_types(), p.head_dim));
  }
  return {};
}

constexpr std::string_view kBlanks = " \t\r\n";

}  // namespace

Result<ProblemLine> parse_problem_line(std::string_view text) try {
  ProblemLine line;
  Values values;
  for (std::size_t at = text.find_first_not_of(kBlanks); at != text.npos; at = text.find_first_not_of(kBlanks)) {
    const std::size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
    if (Status s = take_word(text.substr(at, end - at), line, values); !s.ok()) return s;
    text.remove_prefix(end);
  }
  for (std::size_t i = 0; i < kNumKeys; ++i) {
    if (!kKeys[i].meaning.empty() && !values[i]) {
      return Status(Code::parse_error, formatted("problem line: key {}= ({}) is missing; q=, heads=, d=, page= and reqs= are "
                                                 "required, e.g. q=bf16 heads=32:8 d=128 page=16 reqs=1x4096,64x1@2048",
                                                 kKeys[i].name, kKeys[i].meaning));
    }
  }
  for (std::size_t i = 0; i < kNumKeys; ++i) {
    if (kKeys[i].name == "kv" && !values[i]) line.problem.kv_dtype = line.problem.q_dtype;
    if (!kKeys[i].of_requests || !values[i]) continue;
    if (Status s = kKeys[i].set(kKeys[i].name, *values[i], line); !s.ok()) return s;
  }
  if (line.problem.output_dtype == line.problem.q_dtype) line.problem.output_dtype = DType::none;
  if (line.problem.v_head_dim == line.problem.head_dim) line.problem.v_head_dim = 0;
  if (line.problem.v_dtype == line.problem.kv_dtype) line.problem.v_dtype = DType::none;
  if (Status s = check_combinations(line); !s.ok()) return s;
  return line;
} catch (...) {
  return batch::caught("parse_problem_line");
}

Result<std::vector<ProblemLine>> parse_problem_lines(std::string_view text) try {
  std::vector<ProblemLine> lines;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::string_view row = text;
    text = cut_after(row, '\n').value_or("");
    cut_after(row, '#');
    if (row.find_first_not_of(kBlanks) == row.npos) continue;
    Result<ProblemLine> line = parse_problem_line(row);
    if (!line.ok()) return Status(line.status().code(), formatted("line {}: {}", number, line.status().message()));
    lines.push_back(std::move(line).value());
  }
  return lines;
} catch (...) {
  return batch::caught("parse_problem_lines");
}

std::string to_string(const Problem& p) {
  std::string text = formatted("q={} kv={} heads={}:{} d={} page={} layout={} reqs={}", name(p.q_dtype), p.cache_types(),
                               p.num_q_heads, p.num_kv_heads, p.head_dim, p.page_size, name(p.layout), reqs_text(p.reqs));
  if (!p.has_equal_dims()) text += formatted(" dv={}", p.out_dim());
  if (p.out_dtype() != p.q_dtype) text += formatted(" out={}", name(p.out_dtype()));
  if (p.softmax_scale) text += formatted(" scale={}", float_text(*p.softmax_scale));
  if (p.sliding_window) text += formatted(" window={}", *p.sliding_window);
  if (p.has_causal) text += formatted(" causal={}", by_request_text(p.reqs, [](const Request& r) { return r.causal ? 1 : 0; }));
  if (!p.causal) text += " causal=0";
  if (p.window_right) text += formatted(" wright={}", *p.window_right);
  if (p.has_key_begin) text += formatted(" kbegin={}", by_request_text(p.reqs, [](const Request& r) { return r.key_begin; }));
  if (p.has_q_begin) text += formatted(" qbegin={}", by_request_text(p.reqs, [](const Request& r) { return r.q_begin(); }));
  text += shapes_text(p);
  if (p.logits_soft_cap) text += formatted(" cap={}", float_text(*p.logits_soft_cap));
  if (p.alibi) text += " alibi=1";
  if (p.sinks) text += " sinks=1";
  if (p.lse) text += " lse=1";
  if (p.q_scale != ScaleKind::none) text += formatted(" qscale={}", name(p.q_scale));
  if (p.k_scale != ScaleKind::none) text += formatted(" kscale={}", name(p.k_scale));
  if (p.v_scale != ScaleKind::none) text += formatted(" vscale={}", name(p.v_scale));
  if (p.padding != Padding::refused) text += formatted(" pad={}", p.num_padding_rows);
  if (p.padding == Padding::zero) text += ":zero";
  if (p.latent) text += " latent=1";
  return text;
}

std::string to_string(const ProblemLine& line) {
  std::string text = to_string(line.problem);
  if (line.num_pages != 0) text += formatted(" pages={}", line.num_pages);
  if (line.shared_pages != 0 || !line.branches.empty()) text += formatted(" share={}", line.shared_pages);
  for (const SharedBranch& branch : line.branches) text += formatted(",{}x{}", branch.requests, branch.pages);
  if (line.index_dtype != DType::i32) text += formatted(" index={}", name(line.index_dtype));
  if (line.data != DataKind::normal) text += formatted(" data={}", name(line.data));
  return text + formatted(" seed={}", line.seed);
}

}  // namespace quire
