// SPDX-License-Identifier: Apache-2.0
// The page of a diagnosis: what is wrong, where, by which rule, why, what to do next; the evidence is folded below.
const kDiagnoses = {
  right: ["pass", "Every compared element is within its tolerance."],
  "cause found": ["fail", ""],
  "mechanism likely": ["unknown", ""],
  "unknown cause": ["unknown", ""],
  "broken batch": ["mistrusted", "The batch breaks a rule of the contract; what a kernel makes of it is undefined."],
};
// Pixels: what stands below the map has to fit on the first screen, too.
const kLowHeadMap = 200, kHighHeadMap = 300, kFewEquals = 3;
const kLikely = "mechanism likely", kUnknown = "unknown cause";

function diagnosePage(report) {
  const wrong = recordOf(report.wrong), parts = partsOf(report), verdict = textOf(report.verdict);
  const equals = Math.max(0, ...parts.map((part) => part.suspicions.filter((s) => textOf(s.refutation) === "").length - 1));
  const pictures = picturesOf(report.pictures, parts.length > 1 || verdict === kUnknown || equals > kFewEquals ? kLowHeadMap : kHighHeadMap);
  const isWrong = verdict !== "right" && verdict !== "broken batch";
  return [
    el("div", {class: "brief"}, diagnoseVerdict(report, verdict, wrong), whereSection(report, pictures, verdict),
       isWrong && causeSection(report, verdict, parts), isWrong && nextSection(report, verdict, parts)),
    folded("dims", "By dim", "the worst cells, dim by dim", pictures.byDim),
    requestsSection(wrong),
    lawsSection(recordsOf(report.laws)),
    folded("pages", "Cache", "what its pages hold", pictures.pages),
    folded("rows", "Batch", "request by request", pictures.rows),
    refutedSections(parts),
    folded("explain", "Why this kernel", "", textOf(report.explain) && el("pre", {}, textOf(report.explain))),
    folded("again", "Problem line", "", textOf(report.problem) && commandLine("", textOf(report.problem))),
  ].flat();
}

// "118 of 215 rows are wrong: 120 of 3440 cells (row x head), 7664 elements."
function wrongWords(report, wrong) {
  if (!isNumber(wrong.rows) || wrong.rows === 0) return "";
  const rows = numberOf(report.compared_rows), error = recordOf(recordOf(report.pictures).error),
        cells = numberOf(error.rows_compared);
  const of = (n, total, noun) => `${whole(n)} ${total > 0 ? `of ${plural(total, noun)}` : n === 1 ? noun : `${noun}s`}`;
  const compared = report.complete === true || rows === 0 ? "" : " compared";
  return `${of(wrong.rows, rows, "row")}${compared} ${wrong.rows === 1 && rows < 2 ? "is" : "are"} wrong: ` +
      [
        isNumber(wrong.cells) && `${of(wrong.cells, cells, "cell")} (row \u00d7 head)`,
        isNumber(wrong.elements) && (wrong.elements === 0 ? "in lse alone" : plural(wrong.elements, "element"))
      ].filter(Boolean)
          .join(", ") +
      ".";
}

// The plain profile, f32 and nothing dequantised, goes without saying.
function profileWords(profile) {
  const types = ["weights", "scores", "accumulator", "parts", "products"].map((key) => textOf(profile[key])).filter(Boolean);
  const plain = types.every((type) => type === "f32") && textOf(profile.dequantised) !== "query type";
  if (plain || !textOf(profile.words)) return "";
  const who = profile.found === true ? ", found from the output itself" : "";
  const worst = isNumber(profile.worst) ? `; the largest right error is ${short(profile.worst)} of the tolerance` : "";
  return `Judged as a kernel that ${textOf(profile.words)}${who}${worst}.`;
}

function diagnoseVerdict(report, verdict, wrong) {
  const [kind, words] = kDiagnoses[verdict] || ["unknown", ""], profile = recordOf(report.profile);
  const findings = listOf(report.findings).map((f) => textOf(f) || textOf(recordOf(f).message)).filter(Boolean);
  const why = [words, wrongWords(report, wrong), profileWords(profile)].filter(Boolean).join(" ");
  return el(
      "div", {id: "verdict"},
      el("div", {class: "verdict"}, sign(kind),
         el("h1", {class: `tone-${(kSigns[kind] || kSigns.unknown).tone}`}, verdict || "no verdict"),
         why && el("p", {class: "why"}, why)),
      facts([
        ["file", report.file], ["compared with the reference", coverageOf(report)],
        [
          "a wrong factor on every output shows",
          verdict === "right" && isNumber(profile.least_factor) && `from ${percent(profile.least_factor)} on`
        ],
        ["took", duration(report.seconds)]
      ]),
      findings.length > 0 && callout("warn", "Broken rules", el("ul", {}, findings.map((text) => el("li", {}, text)))));
}

const coverageOf = (report) => report.complete === true ?
    "every row" :
    isNumber(report.compared_rows) && `${plural(report.compared_rows, "row")} of the batch`;

function whereSection(report, pictures, verdict) {
  const patterns = recordsOf(report.pattern).filter((p) => textOf(p.text));
  if (!pictures.byHead && patterns.length === 0) return null;
  return section(
      "where", verdict === "right" ? "Error by request and head" : "Where", pictures.byHead,
      patterns.length > 0 &&
          el("div", {class: "pattern"}, el("h3", {}, "The pattern"), patterns.map(patternOf)));
}

/// A pattern, and the other rules that select the same rows, shortest first.
function patternOf(pattern) {
  const also = listOf(pattern.also).map(textOf).filter(Boolean);
  return [
    el("p", {}, sentence(textOf(pattern.text))),
    also.length > 0 && el("p", {class: "note"}, `The same rows: ${also.join("; ")}.`)
  ];
}

const sentence = (text) => {
  const upper = /^[a-z]+ [a-z0-9]/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
};

function causeSection(report, verdict, parts) {
  const answers = recordsOf(report.answers), observations = listOf(report.observations).map(textOf).filter(Boolean);
  if (verdict !== kUnknown) {
    if (parts.length === 0) return null;
    return section(
        "cause",
        verdict === kLikely  ? "Likely mechanism" :
            parts.length > 1 ? `${parts.length} causes` :
                               "Cause",
        verdict === kLikely &&
            el("p", {class: "note"}, "Not proven: an element of a wrong row stays unexplained, or a right row would break."),
        causesOf(parts));
  }
  const tested = refutedRows(parts).length;
  if (answers.length === 0 && observations.length === 0 && tested === 0) return null;
  return section(
      "cause", "Cause: unknown",
      el("div", {class: "pair"},
         observations.length > 0 &&
             el("div", {}, el("h3", {}, "What was measured"),
                el("ul", {class: "observed"}, observations.map((o) => el("li", {}, o)))),
         el("div", {}, el("h3", {}, `What explains most, of ${plural(tested, "hypothesis", "hypotheses")}`),
            guesses(answers.length > 0 ? answers : parts.flatMap((part) => part.suspicions)))));
}

// What a suspicion recommends; where none does, the rule and the small capture are what one can go on with.
function nextSection(report, verdict, parts) {
  const own = parts.map((part) => recordOf(part.suspicions[0])),
        advice = verdict === kUnknown ? [] : own.map((s) => textOf(s.next));
  const steps = [textOf(report.next), ...advice].filter(Boolean), found = verdict === "cause found",
        reduced = textOf(report.reduced);
  if (steps.length === 0 && !found) steps.push("Read what the kernel does for the wrong cells of the pattern and for no other.");
  if (steps.length === 0 && !reduced) return null;
  return section(
      "next", "Next step", [...new Set(steps)].map((text) => el("p", {}, sentence(text))),
      reduced && commandLine("reduced capture", `quire diagnose ${reduced}`));
}

// "5336", or "5336, 5340\u20135399 and 12 more runs": runs of neighbours, the first few.
function rangesOf(numbers) {
  const runs = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && n <= last[1] + 1)
      last[1] = n;
    else
      runs.push([n, n]);
  }
  const shown = runs.slice(0, 12).map(([a, b]) => (a === b ? String(a) : `${a}\u2013${b}`)).join(", ");
  return runs.length > 12 ? `${shown} and ${runs.length - 12} more runs` : shown;
}
const listText = (list) => (Array.isArray(list) ? rangesOf(list.filter(isNumber)) : textOf(list));

function requestsSection(wrong) {
  const requests = recordsOf(wrong.requests);
  if (requests.length === 0) return null;
  const number = (title, key, print = whole) =>
      ({title, class: "number", cell: (r) => (isNumber(r[key]) ? print(r[key]) : ""), sort: (r) => numberOf(r[key])});
  const columns = [
    {title: "request", class: "number", cell: (r) => textOf(r.req), sort: (r) => numberOf(r.req)},
    {title: "query_len@context_len", cell: (r) => `${textOf(r.query_len)}@${textOf(r.context_len)}`, sort: (r) => numberOf(r.query_len)}, number("wrong rows", "wrong_rows"),
    number("wrong cells", "wrong_cells"), number("wrong elements", "elements"), number("largest error", "largest_error", short),
    {title: "which rows", cell: (r) => listText(r.rows)}, {title: "which heads", class: "wide", cell: (r) => listText(r.heads)},
    {title: "lse", class: "wide", cell: (r) => (r.lse === true ? "wrong" : "")}
  ];
  return folded(
      "requests", "By request", `${plural(requests.length, "request")} with wrong rows`,
      dataTable({label: "Requests with wrong rows", columns, rows: requests, compact: true}).node);
}

function lawRows(law) {
  const counted =
      Array.isArray(law.rows) ? `rows ${rangesOf(law.rows.filter(isNumber))}` : isNumber(law.rows) && plural(law.rows, "row");
  return [counted, textOf(law.tokens)].filter(Boolean).join(": ");
}

function lawsSection(laws) {
  return laws.length > 0 &&
      folded("laws", "Impossible values", "values that no attention can produce, found without the reference",
             el("p", {class: "note"},
                "An output is an average of the V rows that its row may see. It is finite, lies between the smallest and the largest ",
                "of them, and differs from dim to dim as they do. These rows do not:"),
             el("ul", {},
                laws.map(
                    (law) =>
                        el("li", {}, el("b", {}, textOf(law.law)), ": ", lawRows(law),
                           textOf(law.text) && `. ${textOf(law.text)}`))));
}
