// SPDX-License-Identifier: Apache-2.0
// The page of a conformance run: verdict, power, matrices, cases, planted faults, peers.
const kCaseOrder = {
  fail: 0,
  refused: 1,
  pass: 2
};
const kVerdicts = {
  pass: "pass",
  fail: "fail",
  mistrusted: "mistrusted",
  stopped: "unknown"
};

function verifyPage(report) {
  const cases = recordsOf(report.cases), power = recordOf(report.power), peers = recordsOf(report.peer);
  return [
    verifyVerdict(report, cases, power),
    powerSection(power, peers),
    matricesSection(recordsOf(report.matrices)),
    casesSection(cases),
    faultsSection(power, peers),
    textOf(report.explain) && section("explain", "Why this kernel", el("pre", {}, textOf(report.explain))),
  ];
}

function verifyVerdict(report, cases, power) {
  const verdict = textOf(report.verdict), kind = kVerdicts[verdict] || "unknown";
  const count = (status) => cases.filter((c) => c.status === status).length;
  const survived = numberOf(power.total) - numberOf(power.killed);
  const right = count("refused") === 0 ? "Every case is right" :
                                         `${whole(count("pass"))} of ${plural(cases.length, "case")} are right, ` +
          `${whole(count("refused"))} were refused`;
  const why = {
    pass: `${right}, and every planted fault was noticed.`,
    fail: `${plural(count("fail"), "case")} of ${whole(cases.length)} ${count("fail") === 1 ? "is" : "are"} wrong.`,
    mistrusted: survived > 0 ? `${plural(survived, "planted fault")} went unnoticed: with this suite, a pass means nothing.` :
                               "No case was served: nothing was shown.",
    stopped: `Stopped after ${plural(cases.length, "case")}: what was not run is not known.`,
  }[verdict];
  const untested = verdict === "pass" && !isNumber(power.total) ?
      `${right}. The power of the suite was not measured.` :
      why;
  return el(
      "div", {id: "verdict"},
      el("div", {class: "verdict"}, sign(kind),
         el("h1", {class: `tone-${(kSigns[kind] || kSigns.unknown).tone}`}, verdict || "no verdict"),
         el("p", {class: "why"}, untested)),
      facts([
        ["target", report.target], ["device", report.device],
        [
          "cases",
          cases.length > 0 && `${whole(count("pass"))} pass, ${whole(count("fail"))} fail, ${whole(count("refused"))} refused`
        ],
        ["power", isNumber(power.total) && `${whole(numberOf(power.killed))} of ${whole(power.total)} faults noticed`],
        ["took", duration(report.seconds)], ["date", report.date], ["quire", report.version]
      ]));
}

// Faults that could have been noticed: asked for, and visible on some line.
const isCounted = (m) => m.asked !== false && m.can_show !== false;

function survivorsOf(power) {
  const mutants = recordsOf(power.mutants), listed = mutants.filter((m) => m.killed === false && isCounted(m));
  return listed.length > 0 ? listed : listOf(power.survivors).map((s) => (typeof s === "string" ? {id: s} : recordOf(s)));
}

const peerStudy = (peer) => numberOf(peer.known_total) > 0 &&
    el("small", {},
       `${whole(numberOf(peer.known_killed))} of the ${whole(peer.known_total)} faults of a published study of that test`);
const peerName = (peer) => textOf(peer.name) || "vLLM's test data";

function powerSection(power, peers) {
  if (!isNumber(power.total) && peers.length === 0) return null;
  const bar = (name, note, killed, total, fill, more) =>
      [el("span", {}, name, note && el("small", {class: "mono"}, note), more),
       el("span", {class: "count"}, `${whole(killed)} of ${whole(total)}`),
       meter([[fill, killed]], total, `${killed} of ${total} faults noticed`)];
  const rows = [];
  if (isNumber(power.total))
    rows.push(bar("this run", "", numberOf(power.killed), power.total, power.killed === power.total ? "pass" : "warn"));
  for (const peer of peers)
    rows.push(
        bar(`${peerName(peer)}, atol ${short(peer.atol)}`, textOf(peer.line), numberOf(peer.killed), numberOf(peer.total), "none",
            peerStudy(peer)));
  const survivors = survivorsOf(power), unasked = recordsOf(power.mutants).filter((m) => m.asked === false).length;
  const hidden = recordsOf(power.mutants).filter((m) => m.can_show === false).length;
  return section(
      "power", "Power of the suite",
      el("p", {class: "note"},
         "Known faults were planted into the reference and went through the same checks. ",
         "A suite that misses one could miss it in a kernel."),
      el("div", {class: "powers"}, rows.flat()),
      unasked > 0 &&
          el("p", {class: "note"},
             `${plural(unasked, "fault")} not counted: only a refused case or a skipped check would show them.`),
      hidden > 0 && el("p", {class: "note"}, `${plural(hidden, "fault")} not counted: no case of this run can show them.`),
      survivors.length > 0 &&
          callout(
              "warn", `${plural(survivors.length, "survivor")}: planted, and not noticed`,
              el("ul", {},
                 survivors.map(
                     (m) => el("li", {}, el("code", {}, textOf(m.id)), textOf(m.text) && `: a kernel that ${textOf(m.text)}`)))));
}

function matricesSection(matrices) {
  if (matrices.length === 0) return null;
  const number = (title, key) => ({title, class: "number", cell: (m) => whole(numberOf(m[key])), sort: (m) => numberOf(m[key])});
  const share = (m) => meter(
      [["fail", numberOf(m.failed)], ["pass", numberOf(m.passed)], ["none", numberOf(m.refused)]], numberOf(m.cases),
      `${numberOf(m.passed)} passed, ${numberOf(m.failed)} failed, ${numberOf(m.refused)} refused`);
  const columns = [
    {title: "matrix", cell: (m) => textOf(m.name), sort: (m) => textOf(m.name)}, number("cases", "cases"),
    number("passed", "passed"), number("failed", "failed"), number("refused", "refused"),
    {title: "", class: "wide share-bar", cell: share}
  ];
  return section("matrices", "Matrices", dataTable({label: "Matrices", columns, rows: matrices, compact: true}).node);
}

const worstOf = (c) => Math.max(-1, ...recordsOf(c.checks).map((check) => numberOf(check.worst_ratio, -1)));

function casesSection(cases) {
  if (cases.length === 0) return null;
  const rows = cases.map((c, i) => ({...c, at: i}))
                   .sort((a, b) => (kCaseOrder[a.status] ?? 3) - (kCaseOrder[b.status] ?? 3) || a.at - b.at);
  const columns = [
    {title: "status", cell: (c) => badge(textOf(c.status)), sort: (c) => kCaseOrder[c.status] ?? 3},
    {title: "matrix", class: "wide", cell: (c) => textOf(c.matrix), sort: (c) => textOf(c.matrix)},
    {title: "case", cell: (c) => textOf(c.name), sort: (c) => textOf(c.name)},
    {title: "worst / tol.", class: "number", cell: (c) => (worstOf(c) < 0 ? "\u2013" : short(worstOf(c))), sort: worstOf},
    {title: "kernel", class: "wide mono", cell: (c) => textOf(c.kernel), sort: (c) => textOf(c.kernel)},
    {title: "time", class: "number wide", cell: (c) => duration(c.seconds), sort: (c) => numberOf(c.seconds)},
    {title: "problem line", class: "clip wide mono", cell: (c) => textOf(c.line)},
  ];
  const table = dataTable({label: "Cases", columns, rows, detail: caseDetail});
  const words = (c) => [c.name, c.matrix, c.line, c.kernel, c.reason, c.status,
                        ...recordsOf(c.checks).map((check) => `${textOf(check.check)} ${textOf(check.text)}`)]
                           .map(textOf)
                           .join(" ");
  const groups = [{label: "status", of: (c) => textOf(c.status)}, {label: "matrix", of: (c) => textOf(c.matrix)}];
  return section("cases", "Cases", filters({rows, groups, text: words, table, noun: "case"}), table.node);
}

function caseDetail(c) {
  const checks = recordsOf(c.checks);
  const columns = [
    {
      title: "check",
      cell: (check) => badge(textOf(check.state) === "skipped" ? "refused" : textOf(check.state), textOf(check.check))
    },
    {
      title: "worst / tol.",
      class: "number wide",
      cell: (check) => (numberOf(check.worst_ratio) > 0 ? short(check.worst_ratio) : "\u2013")
    },
    {title: "finding", cell: (check) => textOf(check.text) || (textOf(check.state) === "skipped" ? "skipped" : "")},
  ];
  const drawn = picturesOf(c.pictures);
  return [
    textOf(c.reason) && callout("none", "Refused", el("p", {}, textOf(c.reason))),
    textOf(c.line) && commandLine("problem line", textOf(c.line)),
    textOf(c.reduced_line) && commandLine("reduced to", textOf(c.reduced_line)),
    textOf(c.reduced_finding) && el("p", {class: "soft"}, `There: ${textOf(c.reduced_finding)}`),
    numberOf(c.num_compared) > 0 &&
        el("p", {class: "soft"},
           `${whole(c.num_compared)} of ${plural(numberOf(c.num_elements, c.num_compared), "element")} compared with the `,
           "fp64 reference; all had to be written and finite."),
    checks.length > 0 && dataTable({label: `Checks of ${textOf(c.name)}`, columns, rows: checks, compact: true}).node,
    drawn.byHead && [el("h3", {}, "Error by request and head"), drawn.byHead],
    drawn.byDim && [el("h3", {}, "Error of the worst cells by dim"), drawn.byDim],
    drawn.pages && [el("h3", {}, "What the cache holds"), drawn.pages],
    drawn.rows && [el("h3", {}, "Who wrote which rows"), drawn.rows],
  ].flat(2);
}

const outcomeOf = (m) =>
    (m.asked === false    ? ["refused", "not asked"] :
         m.can_show === false ? ["refused", "cannot show"] :
         m.killed             ? ["pass", "noticed"] :
                                ["mistrusted", "survived"]);

// How many faults of each family were noticed; families with survivors first.
function familiesTable(mutants) {
  const families = new Map();
  for (const m of mutants.filter(isCounted)) {
    const family = families.get(textOf(m.family)) || {name: textOf(m.family), killed: 0, total: 0};
    family.killed += m.killed ? 1 : 0;
    family.total += 1;
    families.set(family.name, family);
  }
  if (families.size < 2) return null;
  const missed = (f) => f.total - f.killed;
  const share = (f) => meter([["pass", f.killed], ["warn", missed(f)]], f.total, `${f.killed} of ${f.total} noticed`);
  const columns = [
    {title: "family", cell: (f) => f.name, sort: (f) => f.name},
    {title: "planted", class: "number", cell: (f) => whole(f.total), sort: (f) => f.total},
    {title: "noticed", class: "number", cell: (f) => whole(f.killed), sort: (f) => f.killed},
    {title: "", class: "wide share-bar", cell: share},
  ];
  const rows = [...families.values()].sort((a, b) => missed(b) - missed(a));
  return [el("h3", {}, "By family"), dataTable({label: "Planted faults by family", columns, rows, compact: true}).node];
}

function faultsSection(power, peers) {
  const mutants = recordsOf(power.mutants);
  if (mutants.length === 0) return null;
  const verdicts = peers.map((peer) => new Map(recordsOf(peer.mutants).map((m) => [m.id, m])));
  const peerCell = (m) => verdicts.map((map) => map.get(m.id))
                              .map(
                                  (seen) =>
                                      (!seen           ? "not run" :
                                           seen.killed ? "noticed" :
                                                         "missed"));
  const columns = [
    {title: "fault", cell: (m) => el("code", {}, textOf(m.id)), sort: (m) => textOf(m.id)},
    {title: "family", class: "wide", cell: (m) => textOf(m.family), sort: (m) => textOf(m.family)},
    {title: "a kernel that \u2026", class: "wide", cell: (m) => textOf(m.text), sort: (m) => textOf(m.text)},
    {
      title: "noticed by",
      cell: (m) => badge(outcomeOf(m)[0], m.killed ? textOf(m.check) || "noticed" : outcomeOf(m)[1]),
      sort: (m) => (m.killed ? textOf(m.check) : "")
    },
    ...peers.map(
        (peer, p) =>
            ({title: peerName(peer), class: "wide", cell: (m) => peerBadge(peerCell(m)[p]), sort: (m) => peerCell(m)[p]})),
  ];
  const detail = (m) => [el("p", {}, "A kernel that ", textOf(m.text), "."),
                         textOf(m.finding) && el("p", {class: "soft"}, textOf(m.finding)),
                         textOf(m.line) && commandLine(textOf(m.name) || "problem line", textOf(m.line)),
                         peers.map((peer, p) => {
                           const seen = verdicts[p].get(m.id);
                           return seen &&
                               el("p", {class: "soft"},
                                  `${peerName(peer)}: largest error ${short(seen.max_error)} against atol ${short(peer.atol)}, `,
                                  seen.killed ? "noticed." : "missed.");
                         }),
  ].flat();
  const table = dataTable({label: "Planted faults", columns, rows: mutants, detail});
  const groups = [{label: "outcome", of: (m) => outcomeOf(m)[1]}, {label: "family", of: (m) => textOf(m.family)}];
  const words = (m) => [m.id, m.family, m.text, m.check, m.finding].map(textOf).join(" ");
  return section("faults", "Planted faults", familiesTable(mutants), el("h3", {}, "Every fault"), filters({rows: mutants, groups, text: words, table, noun: "fault"}), table.node);
}
const peerBadge = (outcome) =>
    (outcome === "noticed"    ? badge("pass", outcome) :
         outcome === "missed" ? badge("fail", outcome) :
                                el("span", {class: "soft"}, outcome));
