// Two rounds: every candidate of every fault on a few exhibits, then the best ones on all of them.
#include "diagnose/rank.h"

#include <algorithm>
#include <cmath>

#include "diagnose/parallel.h"

namespace quire::cause {
namespace {

using fault::Facts;
using fault::Fault;
using fault::Model;
using fault::Suspect;
using fault::Suspects;

constexpr std::size_t kScreening = 3;   // exhibits of each kind in the first round
constexpr std::size_t kFinalists = 40;  // candidates in the second round: those that explain something, and a few more
constexpr std::size_t kMinFinalists = 6;
constexpr double kExplainsSomething = 0.05;
constexpr std::size_t kAll = 1000;
constexpr std::size_t kFirstFaults = 4;      // of a combination
constexpr double kWorthCombining = 0.02;     // a first fault explains at least this
constexpr double kCombinationMustAdd = 0.1;  // a second one adds at least this
constexpr double kSame = 0.005;              // shares closer than this are the same

struct Candidate {
  std::vector<const Fault*> faults;
  std::vector<const Suspect*> suspects;
  Fit fit;

  Model model(const Facts& facts) const {
    Model m(facts);
    for (const Suspect* suspect : suspects) suspect->plant(m);
    return m;
  }
  std::string detail() const {
    std::string text;
    for (const Suspect* suspect : suspects)
      if (!suspect->detail.empty()) text += (text.empty() ? "" : "; ") + suspect->detail;
    return text;
  }
  int rank() const {
    int worst = 0;
    for (const Fault* fault : faults) worst = std::max(worst, static_cast<int>(fault->rank));
    return worst;
  }
};

/// By explained share; equals by rank. Stable: the rest is the order of the catalogue.
void sort(std::vector<Candidate>& list) {
  const auto share = [](const Candidate& c) { return std::llround(c.fit.explained / kSame); };
  std::stable_sort(list.begin(), list.end(), [&](const Candidate& a, const Candidate& b) {
    return share(a) != share(b) ? share(a) > share(b) : a.rank() < b.rank();
  });
}

void measure(const Facts& facts, const Evidence& evidence, std::size_t exhibits, std::vector<Candidate>& list,
             std::size_t count) {
  for_each_index(std::min(count, list.size()),
                 [&](std::size_t i) { list[i].fit = evidence.fit(list[i].model(facts), exhibits); });
}

/// Both rounds. Afterwards the finalists are first, best first.
void contest(const Facts& facts, const Evidence& evidence, std::vector<Candidate>& list) {
  measure(facts, evidence, kScreening, list, list.size());
  sort(list);
  std::size_t count = 0;
  while (count < std::min(kFinalists, list.size()) && (count < kMinFinalists || list[count].fit.explained >= kExplainsSomething))
    ++count;
  measure(facts, evidence, kAll, list, count);
  std::vector<Candidate> finalists(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count));
  sort(finalists);
  std::move(finalists.begin(), finalists.end(), list.begin());
}

Hypothesis hypothesis(const Candidate& c) { return {c.faults, c.detail(), {}, c.fit}; }

std::vector<Candidate> combinations(const std::vector<Candidate>& singles) {
  std::vector<Candidate> pairs;
  std::vector<const Fault*> used;
  for (const Candidate& first : singles) {
    if (first.fit.explained < kWorthCombining || used.size() == kFirstFaults) break;
    if (std::find(used.begin(), used.end(), first.faults.front()) != used.end()) continue;
    used.push_back(first.faults.front());
    for (const Candidate& second : singles) {
      if (second.faults.front() == first.faults.front()) continue;
      pairs.push_back({{first.faults.front(), second.faults.front()}, {first.suspects.front(), second.suspects.front()}, {}});
    }
  }
  return pairs;
}

}  // namespace

std::vector<Hypothesis> rank(const Facts& facts, const Evidence& evidence) {
  const fault::Evidence seen{facts, evidence.samples()};
  const std::vector<Fault>& faults = fault::catalogue();
  std::vector<Suspects> suspects;
  for (const Fault& fault : faults) suspects.push_back(fault.suspects(seen));

  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < faults.size(); ++i)
    for (const Suspect& suspect : suspects[i].list) candidates.push_back({{&faults[i]}, {&suspect}, {}});
  contest(facts, evidence, candidates);

  std::vector<Hypothesis> ranking;
  if (candidates.empty() || candidates.front().fit.explained < kCause) {
    std::vector<Candidate> pairs = combinations(candidates);
    contest(facts, evidence, pairs);
    const double alone = candidates.empty() ? 0 : candidates.front().fit.explained;
    if (!pairs.empty() && pairs.front().fit.explained > alone + kCombinationMustAdd) ranking.push_back(hypothesis(pairs.front()));
  }
  std::vector<const Fault*> listed;
  for (const Candidate& c : candidates) {
    if (std::find(listed.begin(), listed.end(), c.faults.front()) != listed.end()) continue;
    listed.push_back(c.faults.front());
    ranking.push_back(hypothesis(c));
  }
  for (std::size_t i = 0; i < faults.size(); ++i)
    if (suspects[i].list.empty()) ranking.push_back({{&faults[i]}, {}, suspects[i].why_not, {}});
  return ranking;
}

double best_share(const Facts& facts, const Evidence& evidence, const std::vector<const Fault*>& faults) {
  const fault::Evidence seen{facts, evidence.samples()};
  std::vector<Suspects> suspects;
  for (const Fault* fault : faults) suspects.push_back(fault->suspects(seen));
  std::vector<Candidate> candidates{Candidate{}};
  for (std::size_t i = 0; i < faults.size(); ++i) {
    std::vector<Candidate> longer;
    for (const Candidate& c : candidates)
      for (const Suspect& suspect : suspects[i].list) {
        longer.push_back(c);
        longer.back().faults.push_back(faults[i]);
        longer.back().suspects.push_back(&suspect);
      }
    candidates = std::move(longer);
  }
  if (candidates.empty()) return -1;
  contest(facts, evidence, candidates);
  return candidates.front().fit.explained;
}

}  // namespace quire::cause
