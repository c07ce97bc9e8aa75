// SPDX-License-Identifier: Apache-2.0
// Three rounds: every candidate on a few exhibits, the best ones on more, the best of these on all.
#include "diagnose/rank.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "threads/on_threads.h"

namespace quire::diagnose_detail {
namespace {

using faults_detail::Suspect;
using faults_detail::Suspects;

constexpr std::size_t kFinalists = 48;       // candidates in the second round: those that explain something, and a few more
constexpr std::size_t kMinFinalists = 6;     // finalists even if they explain nothing
constexpr std::size_t kVerifiedAtOnce = 12;  // candidates that are verified at a time
// Share of the error. A candidate this close to the best one is verified on all exhibits, too. Found by trial on the development
// captures: less may leave the cause unverified behind one that few exhibits flatter, more takes time.
constexpr double kNearBest = 0.05;
constexpr double kExplainsSomething = 0.05;      // share of the error that makes a candidate a finalist
constexpr std::size_t kFirst = 4, kSecond = 24;  // candidates of a combination
constexpr double kWorthCombining = 0.02;         // each of the two explains at least this
// Share of the error that the second cause of a combination adds at least. Found by trial on the development captures: less lets
// a second cause fit rounding, more hides a real second fault in few cells.
constexpr double kCombinationMustAdd = 0.1;
constexpr double kSame = 0.005;  // shares closer than this are the same
// Share of an unproven "never written". Without proof by bytes or by a single value, "never written" fits any error and so
// explains almost nothing, unless the batch itself holds evidence for the mistake.
constexpr double kUnproven = 0.5;
// Least ratio of squared errors of the wrong cells to squared residuals (errors 10 times as large). Below, errors are so small
// that wrong predictions of the right size fit, too.
constexpr double kClearBest = 100;
constexpr double kExplainsAll = 0.99;  // share of the error, element by element; the rest is rounding
// Shares of the error from which a claim is likely, the second one only with kLikelyClarity: squared errors over squared
// residuals. Less, and a claim that is right for some of the cells names a cause that is not theirs; more, and causes whose
// details differ at the end of a page or a tile have no name.
constexpr double kNearlyAll = 0.9, kLikely = 0.6, kLikelyClarity = 3;
constexpr double kScopePrecision = 0.95;   // share of wrong cells among those that a scope selects, if the scope is a rule
constexpr std::size_t kRowsForFitted = 3;  // wrong rows; one row fits the words of several mechanisms
constexpr std::int64_t kRightSeen = 16;    // right cells inside a wider scope that a hypothesis must have left alone

struct RankedCandidate {
  std::vector<const Proposal*> parts;  ///< one proposal, or the two of a combination in the order of planting
  Fit fit;
  double share = 0;
  bool scoped = false;
  bool verified = false;  ///< `fit` covers all exhibits
  bool tried = false;     ///< `fit` was measured

  Model model(const Facts& facts) const {
    Model m(facts);
    for (const Proposal* part : parts) part->plant(m);
    return m;
  }
  /// Order among equals: a mistake with evidence in the batch, a known mistake, then fitted ones by number of parameters.
  int order() const {
    int worst = 0;
    for (const Proposal* p : parts) {
      const int own = p->symptom ? 9 : p->fault == nullptr ? 2 + p->parameters : static_cast<int>(p->fault->rank);
      worst = std::max(worst, own);
    }
    return worst;
  }
  /// Whether the candidate has a number, or a choice from a list, that only these rows suggest.
  bool is_fitted() const {
    return std::any_of(parts.begin(), parts.end(), [](const Proposal* p) {
      if (p->fault == nullptr) return p->parameters > 0;
      return p->fault->rank != faults_detail::Rank::mechanism && !p->detail.empty();
    });
  }
  /// Right exhibits that the candidate would break where it is said to hold.
  std::int64_t broken() const { return scoped ? fit.broken_inside : fit.broken; }
  /// Place among equals. If only NaN was observed, "never written" claims no more than the observation: it precedes all causes.
  int place() const {
    const bool says_no_more = fit.unwritten && !fit.unproven && fit.finite + fit.zeros == 0 && parts.size() == 1;
    return says_no_more ? -1 : order();
  }
};

class Contest {
 public:
  Contest(const Scene& scene, const Evidence& evidence, const Pattern* scope, const TimeLimit& limit)
      : facts_(scene.facts), evidence_(evidence), scope_(scope), limit_(limit) {
    std::set<std::int64_t> rows;
    for (const Compared* cell : scene.wrong) rows.insert(cell->token);
    rows_ = rows.size();
  }

  /// Runs all rounds. Afterwards the finalists stand first, best first. Candidates that time left no room for are gone.
  void run(std::vector<RankedCandidate>& list) {
    measure(list, Stage::screening);
    for (const RankedCandidate& c : list)
      if (!c.tried) not_tried_.insert(name_of(c));
    std::erase_if(list, [](const RankedCandidate& c) { return !c.tried; });
    sort(list);
    std::size_t count = 0;
    while (count < std::min(kFinalists, list.size()) && (count < kMinFinalists || list[count].share >= kExplainsSomething))
      ++count;
    const std::span<RankedCandidate> finalists(list.data(), count);
    measure(finalists, Stage::ranking);
    sort(finalists);
    // A share that more exhibits lower makes room for others, which few exhibits flatter as much.
    for (std::vector<RankedCandidate*> next = to_verify(finalists); !next.empty(); next = to_verify(finalists)) {
      const bool done = limit_.run(
          [&] { threads::for_each_index(next.size(), [&](std::size_t i) { measure(*next[i], Stage::verification); }); });
      sort(finalists);
      if (done) continue;
      for (const RankedCandidate* c : to_verify(finalists)) not_tried_.insert(name_of(*c));
      break;
    }
  }

  /// Names of what was not tried, or not to the end.
  const std::set<std::string>& not_tried() const { return not_tried_; }

  bool is_certain(const RankedCandidate& c) const {
    const Fit& fit = c.fit;
    if (!not_tried_.empty() || !c.verified || fit.wrong == 0 || fit.whole < fit.wrong || fit.clarity < kClearBest ||
        fit.explained < kExplainsAll)
      return false;
    // Rows that one of two faults never writes hold what the other one cannot explain, whatever it is. A number that was fitted
    // to what another fault leaves, or to hardly a row, may describe that row and nothing else.
    if (c.parts.size() > 1 && (fit.unwritten || c.is_fitted())) return false;
    if (c.is_fitted() && rows_ < kRowsForFitted) return false;
    // NaN explains NaN, whatever made it; zeros are the answer of a row that sees no key, of a factor of 0, and of a cleared
    // buffer that nobody wrote to; and "never written" explains anything: some number has to be explained, or the batch has to
    // hold evidence.
    const bool has_evidence = fit.unwritten && !c.scoped && c.order() == static_cast<int>(faults_detail::Rank::mechanism);
    if ((fit.finite == 0 || fit.unproven) && !has_evidence) return false;
    if (c.broken() > 0) return false;
    return !c.scoped || scope_->precision() >= kScopePrecision || fit.right_inside >= kRightSeen;
  }

  /// Explains the wrong cells as well as a cause could.
  static bool is_whole(const RankedCandidate& c) {
    return c.fit.wrong > 0 && c.fit.whole == c.fit.wrong && c.fit.clarity >= kClearBest && c.fit.explained >= kExplainsAll &&
           c.fit.finite > 0 && !c.fit.unwritten && c.parts.size() == 1;
  }
  /// Breaks none of the rows that have a wrong cell: a kernel of these rows alone may have the fault.
  static bool is_beside(const RankedCandidate& c) { return is_whole(c) && c.fit.broken_beside == 0; }

  /// Explains nearly all that it is about, and breaks nothing. A claim that rows were never written, which neither bytes nor
  /// other rows prove, says too much; NaN is no proof.
  static bool is_likely(const RankedCandidate& c) {
    const Fit& fit = c.fit;
    const bool unproved = fit.unwritten && fit.finite == 0 && (fit.unproven || fit.by_nan);
    if (!c.verified || c.broken() > 0 || unproved) return false;
    if (fit.numbers == 0) return fit.whole == fit.wrong && says_where(c);
    return c.share >= kNearlyAll || (c.share >= kLikely && fit.clarity >= kLikelyClarity);
  }

  /// Zeros and NaN in every wrong cell are what many causes give.
  static bool is_alike(const RankedCandidate& c) {
    return c.fit.wrong > 0 && c.fit.numbers == 0 && c.fit.whole == c.fit.wrong && c.share >= kNearlyAll && c.broken() == 0;
  }

 private:
  void measure(RankedCandidate& c, Stage stage) const {
    c.fit = evidence_.fit(c.model(facts_), stage);
    c.verified = stage == Stage::verification;
    c.tried = true;
    judge(c);
  }
  /// Measures candidates from both ends of the list in turn: known faults stand first, and proposals that were fitted to these
  /// cells last.
  void measure(std::span<RankedCandidate> list, Stage stage) {
    const bool done = limit_.run([&] {
      threads::for_each_index(list.size(),
                              [&](std::size_t i) { measure(list[i % 2 == 0 ? i / 2 : list.size() - 1 - i / 2], stage); });
    });
    if (!done && stage != Stage::screening)
      for (const RankedCandidate& c : list) not_tried_.insert(name_of(c));
  }
  /// Whether a claim about cells without a number says that the numbers of the buffer are still there, or, without a scope and
  /// without a fitted number, which cells they are.
  static bool says_where(const RankedCandidate& c) {
    const bool kept = c.fit.unwritten && c.fit.kept == c.fit.wrong;
    return kept || (!c.scoped && !c.is_fitted() && c.fit.right > 0);
  }
  static std::string name_of(const RankedCandidate& c) {
    const Proposal& p = *c.parts[0];
    return c.parts.size() > 1 ? "combinations of two" : p.fault != nullptr ? p.fault->info.id : p.mechanism;
  }
  static void sort(std::span<RankedCandidate> list) {
    const auto bin = [](const RankedCandidate& c) { return std::llround(c.share / kSame); };
    std::stable_sort(list.begin(), list.end(), [&](const RankedCandidate& a, const RankedCandidate& b) {
      return bin(a) != bin(b) ? bin(a) > bin(b) : a.place() < b.place();
    });
  }

  /// The first candidates of a sorted list that are not verified and as good as the best one that is.
  static std::vector<RankedCandidate*> to_verify(std::span<RankedCandidate> list) {
    std::vector<RankedCandidate*> next;
    double best = -1;
    for (const RankedCandidate& c : list)
      if (c.verified) best = std::max(best, c.share);
    if (best < 0 && !list.empty()) best = list.front().share;
    for (RankedCandidate& c : list)
      if (!c.verified && (c.share >= best - kNearBest || is_whole(c)) && next.size() < kVerifiedAtOnce) next.push_back(&c);
    return next;
  }

  void judge(RankedCandidate& c) const {
    const double credit = c.fit.unproven && c.order() > static_cast<int>(faults_detail::Rank::mechanism) ? kUnproven : 1;
    c.share = credit * c.fit.explained - c.fit.damage;
    c.scoped = false;
    if (scope_ == nullptr || !scope_->rule) return;
    const double inside = credit * c.fit.explained - c.fit.damage_inside - kScopePenalty;
    // What right cells refute everywhere holds in the scope, or nowhere.
    c.scoped = inside > c.share || c.fit.some_dims || (c.fit.broken > 0 && c.fit.broken_inside == 0);
    if (c.scoped) c.share = inside;
  }

  const Facts& facts_;
  const Evidence& evidence_;
  const Pattern* scope_;
  const TimeLimit& limit_;
  std::set<std::string> not_tried_;
  std::size_t rows_ = 0;
};

Hypothesis hypothesis(const RankedCandidate& c, bool certain) {
  Hypothesis h;
  const auto join = [](std::string& text, const std::string& more, const char* between) {
    if (!more.empty()) text += (text.empty() ? "" : between) + more;
  };
  for (const Proposal* p : c.parts) {
    join(h.mechanism, p->mechanism, " + ");
    if (p->fault != nullptr) join(h.fault, p->fault->info.id, " + ");
    join(h.text, p->text, ", and ");
    join(h.detail, p->detail, "; ");
    join(h.next, p->next, "; ");
    h.plants.push_back(p->plant);
  }
  h.fit = c.fit;
  h.share = c.share;
  h.scoped = c.scoped;
  h.certain = certain;
  h.likely = certain || Contest::is_likely(c);
  h.alike = !h.likely && Contest::is_alike(c);
  h.whole = c.verified && Contest::is_whole(c);
  h.beside = certain || (c.verified && Contest::is_beside(c));
  h.place = std::min(c.place(), static_cast<int>(faults_detail::Rank::symptom));
  h.combined = c.parts.size() > 1;
  return h;
}

std::vector<RankedCandidate> combinations(const std::vector<RankedCandidate>& singles) {
  std::vector<RankedCandidate> pairs, firsts, seconds;
  std::set<std::string> used;
  for (const RankedCandidate& c : singles) {
    if (c.fit.explained < kWorthCombining || !used.insert(c.parts[0]->text).second) continue;
    if (firsts.size() < kFirst) firsts.push_back(c);
    if (seconds.size() < kSecond) seconds.push_back(c);
  }
  for (const RankedCandidate& first : firsts)
    for (const RankedCandidate& second : seconds)
      if (first.parts[0] != second.parts[0]) pairs.push_back({{first.parts[0], second.parts[0]}, {}, 0, false});
  return pairs;
}

/// The faults of the catalogue as proposals, and those that cannot show here.
void add_catalogue(const Scene& scene, const Evidence& evidence, const TimeLimit& limit, Proposals& list, Ranking& impossible) {
  const faults_detail::Clues seen{scene.facts, evidence.samples()};
  const std::vector<Fault>& faults = faults_detail::catalogue();
  std::vector<Suspects> suspects(faults.size());
  std::vector<char> done(faults.size());
  limit.run([&] {
    threads::for_each_index(faults.size(), [&](std::size_t i) {
      suspects[i] = faults[i].suspects(seen);
      done[i] = 1;
    });
  });
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const FaultInfo& info = faults[i].info;
    if (done[i] == 0) {
      impossible.not_tried.push_back(info.id);
      continue;
    }
    const std::string mechanism = mechanism_of(info);
    for (const Suspect& s : suspects[i].list)
      list.push_back(
          {mechanism, info.text, s.detail, info.next, 0, s.plant, &faults[i], faults[i].rank == faults_detail::Rank::symptom});
    if (!suspects[i].list.empty()) continue;
    Hypothesis h;
    h.mechanism = mechanism, h.fault = info.id, h.text = info.text, h.why_not = suspects[i].why_not;
    impossible.hypotheses.push_back(std::move(h));
  }
}

/// Numbers far larger than every V in reach are no average of V rows, whatever the weights: an inversion of them finds nothing.
bool is_an_average(const OpenCell& cell) {
  constexpr double kFar = 8;  // ratio of output to largest V; above, the output is no average of V
  const auto largest = [](const std::vector<double>& values) {
    double most = 0;
    for (const double v : values) most = std::isfinite(v) ? std::max(most, std::fabs(v)) : most;
    return most;
  };
  return largest(cell.observed) <= kFar * largest(cell.values);
}

/// Mechanisms that say which keys a row folds in: the remedy is one, to compare the keys with the mask.
bool is_of_keys(const std::string& mechanism) {
  return mechanism == "mask" || mechanism == "key_range" || mechanism == "positions";
}

/// Whether who follows one of them looks at the place of the other.
bool same_remedy(const Hypothesis& a, const Hypothesis& b) {
  const bool unwritten = a.fit.unwritten && b.fit.unwritten;  // both say no more than that nobody wrote these rows
  return a.mechanism == b.mechanism || a.next == b.next || unwritten || (is_of_keys(a.mechanism) && is_of_keys(b.mechanism));
}

/// A claim that leaves something of the error, or explains no number, is not likely beside one of another remedy that explains
/// about as much.
void doubt(std::vector<Hypothesis>& ranking) {
  std::vector<Hypothesis*> doubtful;
  for (Hypothesis& h : ranking) {
    const bool no_number = h.fit.numbers == 0;
    if (!h.likely || h.certain || (h.fit.explained >= kExplainsAll && !no_number)) continue;
    const auto rivals = [&](const Hypothesis& other) {
      const bool stands = no_number ? other.likely : other.broken() == 0 && !other.fit.unproven;
      return stands && other.share > h.share - kNearBest && !same_remedy(h, other);
    };
    if (std::ranges::any_of(ranking, rivals)) doubtful.push_back(&h);
  }
  for (Hypothesis* h : doubtful) h->likely = false, h->alike = h->fit.numbers == 0;
}

/// Marks the certain hypotheses that stand as high as the first one, if not all of them have one remedy.
void tie(std::vector<Hypothesis>& ranking) {
  if (ranking.empty() || !ranking.front().certain) return;
  const Hypothesis& first = ranking.front();
  const auto stands_beside = [&](const Hypothesis& h) { return h.beside && h.place <= first.place; };
  const bool several = std::any_of(ranking.begin(), ranking.end(),
                                   [&](const Hypothesis& h) { return stands_beside(h) && !same_remedy(h, first); });
  for (Hypothesis& h : ranking) h.tied = several && stands_beside(h);
}

}  // namespace

Scene make_scene(const Facts& facts, const Observed& observed, const Localisation& where, const Evidence& evidence) {
  constexpr std::size_t kOpened = 6;                      // cells; more take time, fewer may share one property
  constexpr std::int64_t kMostKeys = 4096, kFewKeys = 3;  // visible keys of a cell: bounds of time, and of evidence
  Scene scene{facts, observed, where, evidence.wrong_cells(), {}};
  std::set<std::int64_t> requests;
  for (const bool repeat : {false, true})  // cells of different requests first
    for (const Exhibit& e : evidence.wrong()) {
      if (scene.cells.size() == kOpened || e.num_keys < kFewKeys) continue;
      const bool known = requests.contains(facts.req_of(e.at.token));
      if (known != repeat) continue;
      const Compared& cell = where.rows[Facts::at(e.reference_row)];
      if (cell.nonfinite > 0 || cell.wrong_dims == 0) continue;
      OpenCell open = open_cell(facts, observed, where, cell, kMostKeys);
      if (open.end == 0 || !(open.error() > 0) || !is_an_average(open)) continue;
      requests.insert(facts.req_of(e.at.token));
      scene.cells.push_back(std::move(open));
    }
  std::stable_sort(scene.cells.begin(), scene.cells.end(),
                   [](const OpenCell& a, const OpenCell& b) { return a.to - a.from < b.to - b.from; });
  return scene;
}

Ranking rank(const Scene& scene, const Evidence& evidence, const Pattern* scope, const TimeLimit& limit) {
  Proposals proposals;
  Ranking impossible;
  // Shares of the time for the catalogue, and for inversions, which are work for each key of the opened cells. More leaves less
  // for testing what was proposed; less leaves mechanisms of long rows of wide heads untried, and then nothing is certain.
  constexpr double kListing = 0.2, kInverting = 0.4;
  add_catalogue(scene, evidence, limit.part(kListing), proposals, impossible);
  Proposals more = propose_all(scene, limit.part(kInverting), impossible.not_tried);
  std::move(more.begin(), more.end(), std::back_inserter(proposals));

  Contest contest(scene, evidence, scope, limit);
  std::vector<RankedCandidate> candidates;
  for (const Proposal& p : proposals) candidates.push_back({{&p}, {}, 0, false});
  contest.run(candidates);

  std::vector<Hypothesis> ranking;
  if (candidates.empty() || !contest.is_certain(candidates.front())) {
    std::vector<RankedCandidate> pairs = combinations(candidates);
    contest.run(pairs);
    const double alone = candidates.empty() ? 0 : candidates.front().share;
    if (!pairs.empty() && pairs.front().share > alone + kCombinationMustAdd)
      ranking.push_back(hypothesis(pairs.front(), contest.is_certain(pairs.front())));
  }
  // List the best parameters only of each fault or mechanism.
  std::set<std::string> listed;
  for (const RankedCandidate& c : candidates)
    if (listed.insert(c.parts[0]->fault != nullptr ? c.parts[0]->fault->info.id : c.parts[0]->mechanism + c.parts[0]->text)
            .second)
      ranking.push_back(hypothesis(c, contest.is_certain(c)));
  doubt(ranking);
  // What right cells refute explains nothing, whatever its share.
  std::stable_sort(ranking.begin(), ranking.end(), [](const Hypothesis& a, const Hypothesis& b) {
    return std::pair(a.certain, a.likely) > std::pair(b.certain, b.likely);
  });
  tie(ranking);
  std::move(impossible.hypotheses.begin(), impossible.hypotheses.end(), std::back_inserter(ranking));
  std::set<std::string> not_tried = contest.not_tried();
  not_tried.insert(impossible.not_tried.begin(), impossible.not_tried.end());
  if (!not_tried.empty())
    for (Hypothesis& h : ranking) h.certain = h.tied = false;
  return {std::move(ranking), {not_tried.begin(), not_tried.end()}};
}

}  // namespace quire::diagnose_detail
