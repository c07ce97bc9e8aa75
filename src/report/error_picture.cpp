// SPDX-License-Identifier: Apache-2.0
// Error maps: |error| / tolerance by request x head, and by cell x dim for the worst cells. A cell is one head of one row.
// Values only: src/report/html draws them.
//
// One pass over all compared elements keeps a maximum per (request, bin of heads) and a heap of the worst cells; a second pass
// reads the elements of those few cells.
#include <algorithm>
#include <cmath>
#include <set>

#include "numerics/tolerance.h"
#include "report/lengths.h"
#include "report/pictures.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::report {
namespace {

using json = nlohmann::ordered_json;

/// Error of one element, or the largest of several. NaN and infinity out of place are larger than any ratio.
struct Error {
  std::int64_t nonfinite = 0;
  double ratio = -1;  ///< -1: nothing finite was compared

  void absorb(const Error& other) {
    nonfinite += other.nonfinite;
    ratio = std::max(ratio, other.ratio);
  }
  bool wrong() const { return nonfinite > 0 || ratio > 1; }
  bool operator<(const Error& other) const {
    return nonfinite != other.nonfinite ? nonfinite < other.nonfinite : ratio < other.ratio;
  }
};

/// Four digits are enough for a colour and a tooltip, and keep the page small. A ratio beyond any double (tolerance 0) stays
/// drawable.
json shown(const Error& error) {
  if (error.ratio < 0) return nullptr;
  return error.ratio < 1e-300 ? 0.0 : std::stod(formatted("{:.4g}", error.ratio));
}

/// The judgement of compare(), as a number.
Error judge(double observed, double expected, double tolerance, double overflow) {
  using numerics::ElementVerdict;
  if (numerics::judge(observed, expected, tolerance, overflow) == ElementVerdict::wrong_class) return {1, -1};
  if (std::isnan(expected) || std::isinf(observed) || observed == expected) return {0, 0};
  const double ratio = std::fabs(observed - expected) / tolerance;
  return {0, std::isnan(ratio) ? 0.0 : std::min(ratio, 1e300)};
}

/// Row `index` of the reference, for one head.
struct RowHead {
  std::int64_t index = 0, head = 0;
};

class Errors {
 public:
  Errors(const Tensor& output, const Tensor& lse, const Reference& ref, std::span<const std::int64_t> tokens)
      : output_(output), lse_(lse), ref_(ref), tokens_(tokens), type_(numerics::output_type(ref, output.dtype)) {}

  bool has_lse() const { return lse_.present(); }

  std::int64_t token(std::int64_t index) const { return tokens_.empty() ? index : tokens_[static_cast<std::size_t>(index)]; }

  /// The worst of dims [first, last).
  Error range(const RowHead& at, std::int64_t first, std::int64_t last) const {
    const std::int64_t row = at.index * ref_.num_q_heads + at.head;
    const std::int64_t base = token(at.index) * output_.stride[0] + at.head * output_.stride[1];
    const numerics::RowErrors errors = numerics::row_errors(ref_, row);
    Error worst;
    for (std::int64_t d = first; d < last; ++d) {
      const std::int64_t i = row * ref_.v_head_dim + d;
      worst.absorb(judge(semantics::load(output_.data, output_.dtype, base + d * output_.stride[2]),
                         ref_.out[static_cast<std::size_t>(i)], numerics::output_tolerance(ref_, errors, i, type_),
                         type_.overflow));
    }
    return worst;
  }

  Error lse(const RowHead& at) const {
    const std::int64_t row = at.index * ref_.num_q_heads + at.head;
    return judge(semantics::load(lse_.data, lse_.dtype, token(at.index) * lse_.stride[0] + at.head * lse_.stride[1]),
                 ref_.lse[static_cast<std::size_t>(row)], numerics::lse_tolerance(ref_, row),
                 numerics::output_type(DType::f32).overflow);
  }

  /// The worst of all dims and lse.
  Error cell(const RowHead& at) const {
    Error worst = range(at, 0, ref_.v_head_dim);
    if (has_lse()) worst.absorb(lse(at));
    return worst;
  }

 private:
  const Tensor& output_;
  const Tensor& lse_;
  const Reference& ref_;
  std::span<const std::int64_t> tokens_;
  numerics::OutputType type_;
};

/// The worst cells seen so far; of equally bad ones the first.
class WorstRows {
 public:
  void add(const Error& error, const RowHead& at) {
    rows_.insert({error, at});
    if (static_cast<std::int64_t>(rows_.size()) > kMaxRows) rows_.erase(rows_.begin());
  }
  /// Returns the rows in index order, so that neighbours in the batch are neighbours in the picture.
  std::vector<RowHead> take() const {
    std::vector<RowHead> list;
    list.reserve(rows_.size());
    for (const Entry& entry : rows_) list.push_back(entry.at);
    std::sort(list.begin(), list.end(),
              [](const RowHead& a, const RowHead& b) { return a.index != b.index ? a.index < b.index : a.head < b.head; });
    return list;
  }

 private:
  struct Entry {
    Error error;
    RowHead at;
    bool operator<(const Entry& other) const {
      if (error < other.error || other.error < error) return error < other.error;
      return at.index != other.at.index ? at.index > other.at.index : at.head > other.at.head;
    }
  };
  std::set<Entry> rows_;
};

/// Maxima of one request over bins of heads.
struct RequestErrors {
  std::vector<Error> heads;
  std::vector<std::int64_t> wrong;  ///< cells
  std::set<std::int64_t> tokens;
  Error worst;
};

struct Collected {
  std::vector<RequestErrors> requests;
  WorstRows rows;
};

Collected collect(const Errors& errors, const Reference& ref, const Lengths& lengths, std::int64_t bin) {
  Collected all;
  all.requests.resize(static_cast<std::size_t>(lengths.num_reqs()));
  for (std::int64_t index = 0; index < ref.num_tokens; ++index) {
    const std::int64_t req = lengths.req_of(errors.token(index));
    if (req < 0) continue;
    RequestErrors& mine = all.requests[static_cast<std::size_t>(req)];
    mine.heads.resize(static_cast<std::size_t>(semantics::ceil_div(ref.num_q_heads, bin)));
    mine.wrong.resize(mine.heads.size());
    mine.tokens.insert(errors.token(index));
    for (std::int64_t head = 0; head < ref.num_q_heads; ++head) {
      const Error error = errors.cell({index, head});
      const auto column = static_cast<std::size_t>(head / bin);
      mine.heads[column].absorb(error);
      mine.wrong[column] += error.wrong() ? 1 : 0;
      mine.worst.absorb(error);
      all.rows.add(error, {index, head});
    }
  }
  return all;
}

/// The requests to draw, ascending: all that were compared, or the worst of them.
std::vector<std::size_t> chosen(const std::vector<RequestErrors>& requests) {
  std::vector<std::size_t> list;
  for (std::size_t r = 0; r < requests.size(); ++r)
    if (!requests[r].heads.empty()) list.push_back(r);
  std::stable_sort(list.begin(), list.end(), [&](std::size_t a, std::size_t b) { return requests[b].worst < requests[a].worst; });
  if (list.size() > static_cast<std::size_t>(kMaxRequests)) list.resize(static_cast<std::size_t>(kMaxRequests));
  std::sort(list.begin(), list.end());
  return list;
}

json request_head(const std::vector<RequestErrors>& requests, const Lengths& lengths, std::int64_t num_heads, std::int64_t bin) {
  json picture;
  for (const char* list : {"requests", "heads", "worst", "nonfinite", "wrong"}) picture[list] = json::array();
  for (std::int64_t head = 0; head < num_heads; head += bin)
    picture["heads"].push_back({head, std::min(head + bin, num_heads) - 1});
  for (const std::size_t r : chosen(requests)) {
    const auto req = static_cast<std::int64_t>(r);
    picture["requests"].push_back({{"req", req},
                                   {"query_len", lengths.query_len(req)},
                                   {"context_len", lengths.context_len(req)},
                                   {"rows", requests[r].tokens.size()}});
    json ratios = json::array(), counts = json::array();
    for (const Error& error : requests[r].heads) {
      ratios.push_back(shown(error));
      counts.push_back(error.nonfinite);
    }
    picture["worst"].push_back(std::move(ratios));
    picture["nonfinite"].push_back(std::move(counts));
    picture["wrong"].push_back(requests[r].wrong);
  }
  return picture;
}

json row_dim(const Errors& errors, const std::vector<RowHead>& rows, const Lengths& lengths, std::int64_t dims) {
  const std::int64_t bin = bin_size(dims, kMaxDims);
  json picture = {{"rows", json::array()}, {"dims", dims}, {"bin", bin}, {"ratio", json::array()}};
  for (const RowHead& at : rows) {
    const std::int64_t token = errors.token(at.index), req = lengths.req_of(token);
    picture["rows"].push_back({{"token", token},
                               {"req", req},
                               {"q_pos", lengths.first_position(req) + token - lengths.first_token(req)},
                               {"head", at.head}});
    json ratios = json::array();
    for (std::int64_t d = 0; d < dims; d += bin) {
      const Error error = errors.range(at, d, std::min(d + bin, dims));
      ratios.push_back(error.nonfinite > 0 ? json(nullptr) : shown(error));
    }
    picture["ratio"].push_back(std::move(ratios));
    if (!errors.has_lse()) continue;
    const Error lse = errors.lse(at);
    picture["lse"].push_back(lse.nonfinite > 0 ? json(nullptr) : shown(lse));
  }
  return picture;
}

/// Adds a sentence about the elements that the pictures leave out.
void add_left_out(json& picture, const Collected& all, std::int64_t bin) {
  const auto compared = std::count_if(all.requests.begin(), all.requests.end(), [](const auto& r) { return !r.heads.empty(); });
  json &map = picture["request_head"], &dims = picture["row_dim"];
  const std::size_t drawn = map["requests"].size(), cells = dims["rows"].size();
  std::string text;
  if (compared > static_cast<std::ptrdiff_t>(drawn)) text += formatted("the {} worst of {} requests", drawn, compared);
  if (bin > 1) text += formatted("{}{} heads side by side", text.empty() ? "" : ", ", bin);
  map["text"] = text;
  text.clear();
  const auto total = picture["rows_compared"].get<std::int64_t>();
  if (total > static_cast<std::int64_t>(cells)) text += formatted("the {} worst of {} cells", cells, total);
  if (dims["bin"] > 1) text += formatted("{}{} dims side by side", text.empty() ? "" : ", ", dims["bin"].get<std::int64_t>());
  dims["text"] = text;
}

bool drawable_lse(const Tensor& lse, const Tensor& output, const Reference& ref) {
  return !lse.present() ||
         (lse.rank == 2 && is_floating(lse.dtype) && lse.memory == Memory::cpu && lse.shape[0] == output.shape[0] &&
          lse.shape[1] == output.shape[1] && ref.lse.size() == static_cast<std::size_t>(ref.num_tokens * ref.num_q_heads));
}

bool drawable(const Tensor& output, const Reference& ref, const Batch& batch, std::span<const std::int64_t> tokens) {
  const bool shape = output.rank == 3 && output.shape[1] == ref.num_q_heads && output.shape[2] == ref.v_head_dim &&
                     is_floating(output.dtype) && output.memory == Memory::cpu;
  if (!shape || !has_lengths(batch)) return false;
  if (tokens.empty()) return ref.num_tokens <= output.shape[0];
  const auto inside = [&](std::int64_t token) { return token >= 0 && token < output.shape[0]; };
  return static_cast<std::int64_t>(tokens.size()) == ref.num_tokens && std::all_of(tokens.begin(), tokens.end(), inside);
}

}  // namespace

json error_picture(const Tensor& output, const Tensor& lse, const Reference& reference, const Batch& batch,
                   std::span<const std::int64_t> tokens) {
  if (!drawable(output, reference, batch, tokens) || !drawable_lse(lse, output, reference)) return nullptr;
  const Lengths lengths(batch);
  const Errors errors(output, lse, reference, tokens);
  const std::int64_t bin = bin_size(reference.num_q_heads, kMaxHeads);
  const Collected all = collect(errors, reference, lengths, bin);
  json picture;
  picture["request_head"] = request_head(all.requests, lengths, reference.num_q_heads, bin);
  picture["row_dim"] = row_dim(errors, all.rows.take(), lengths, reference.v_head_dim);
  picture["rows_compared"] = reference.num_tokens * reference.num_q_heads;
  picture["rows_total"] = output.shape[0] * output.shape[1];
  add_left_out(picture, all, bin);
  return picture;
}

}  // namespace quire::report
