// The page of a diagnosis: what is wrong, where, why, and what it is not.
const kDiagnoses = {
  right: ["pass", "Every compared element is within its tolerance."],
  "cause found": ["fail", ""],
  "unknown cause": ["unknown", "The output is wrong, and no fault of the catalogue explains it."],
  "broken batch": ["mistrusted", "The batch breaks a rule of the contract; what a kernel makes of it is undefined."],
};
const kSuspectsAtOnce = 12;

function diagnosePage(report) {
  const pictures = picturesOf(report.pictures), suspicions = recordsOf(report.suspicions), wrong = recordOf(report.wrong);
  const found = textOf(report.verdict) === "cause found";
  const served = listOf(recordOf(recordOf(report.pictures).rows).kernels).length > 0;
  const picture = (id, title, figure) => figure && section(id, title, ...[figure].flat());
  return [
    diagnoseVerdict(report, suspicions, wrong, found),
    whereSection(report, wrong, recordOf(recordOf(report.pictures).rows)),
    suspectsSection(suspicions, found),
    picture("error", "Where the error is", pictures.error),
    picture("pages", "What the cache holds", pictures.pages),
    picture("rows", served ? "Who wrote which rows" : "The batch, request by request", pictures.rows),
    textOf(report.explain) && section("explain", "Why this kernel", el("pre", {}, textOf(report.explain))),
    againSection(report),
  ];
}

function diagnoseVerdict(report, suspicions, wrong, found) {
  const verdict = textOf(report.verdict), [kind, words] = kDiagnoses[verdict] || ["unknown", ""],
        cause = found ? suspicions[0] : null;
  const best = suspicions[0];
  const nearest = verdict === "unknown cause" && best &&
      ` The best of ${whole(suspicions.length)}, ${textOf(best.fault)}, explains ${percent(best.explained)} of the error.`;
  const why = cause ?
      [`A kernel that ${textOf(cause.text)}: explains ${percent(cause.explained)} of the error. `, textOf(cause.detail)] :
      [words, nearest];
  const findings = listOf(report.findings).map((f) => textOf(f) || textOf(recordOf(f).message)).filter(Boolean);
  const next = textOf(report.next) || (cause && textOf(cause.next));
  return el(
      "div", {id: "verdict"},
      el("div", {class: "verdict"}, sign(kind),
         el("h1", {class: `tone-${(kSigns[kind] || kSigns.unknown).tone}`}, verdict || "no verdict"),
         el("p", {class: "why"}, why)),
      facts([
        ["file", report.file], ["compared with the reference", coverageOf(report)],
        ["wrong rows", isNumber(wrong.rows) && whole(wrong.rows)],
        ["wrong elements", isNumber(wrong.elements) && whole(wrong.elements)], ["took", duration(report.seconds)],
        ["quire", report.version]
      ]),
      findings.length > 0 && callout("warn", "Broken rules", el("ul", {}, findings.map((text) => el("li", {}, text)))),
      next && callout("none", "Look at next", el("p", {}, next)));
}

const coverageOf = (report) => report.complete === true ?
    "every row" :
    isNumber(report.compared_rows) && plural(report.compared_rows, "row") + " of the batch; laws cover all";

// 5336, or "5336, 5340\u20135399 and 12 more": runs of neighbours, the first few.
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
const rowsText = (rows) =>
    (Array.isArray(rows) ? rangesOf(rows.filter(isNumber)) || "none" :
         isNumber(rows)  ? plural(rows, "row") :
                           textOf(rows));

function lawRows(law) {
  const listed = textOf(law.tokens), counted = rowsText(law.rows);
  return listed ? ` (${counted}: ${listed})` : counted && ` (${Array.isArray(law.rows) ? "rows " : ""}${counted})`;
}

// [first, last] pairs of rows, given as a list of numbers or as text like "0-3, 9".
function rowRanges(rows) {
  if (Array.isArray(rows)) return rows.filter(isNumber).map((n) => [n, n]);
  return [...textOf(rows).matchAll(/(\d+)(?:-(\d+))?/g)].map((m) => [Number(m[1]), Number(m[2] || m[1])]);
}

function whereSection(report, wrong, rows) {
  const laws = recordsOf(report.laws), requests = recordsOf(wrong.requests);
  if (laws.length === 0 && requests.length === 0) return null;
  const number = (title, key) => ({title, class: "number", cell: (r) => whole(numberOf(r[key])), sort: (r) => numberOf(r[key])});
  const columns = [
    {title: "request", cell: (r) => textOf(r.req), sort: (r) => numberOf(r.req)}, number("query_len", "query_len"),
    number("context_len", "context_len"), {title: "wrong rows", cell: (r) => rowsText(r.rows), sort: (r) => countOf(r.rows)},
    {title: "heads", cell: (r) => (Array.isArray(r.heads) ? rangesOf(r.heads.filter(isNumber)) : textOf(r.heads))}
  ];
  return section(
      "where", "What is wrong, and where", batchStrip(rows, requests),
      laws.length > 0 &&
          [
            el("h3", {}, "Laws that it breaks, whatever the oracle says"),
            el("ul", {},
               laws.map(
                   (law) =>
                       el("li", {}, el("b", {}, textOf(law.law)), ": ", textOf(law.text),
                          el("span", {class: "soft"}, lawRows(law)))))
          ],
      requests.length > 0 && [
        el("h3", {}, "Requests with wrong rows"),
        dataTable({label: "Requests with wrong rows", columns, rows: requests, compact: true}).node
      ]);
}

// All rows of the batch from left to right, one block per run of equal requests; wrong rows are marked.
function batchStrip(rows, requests) {
  const runs = recordsOf(rows.requests).filter((run) => numberOf(run.query_len) > 0);
  if (runs.length === 0 || runs.length > 96) return null;
  let token = 0;
  const blocks = runs.map((run) => {
    const count = numberOf(run.count, 1), length = count * run.query_len, first = token;
    token += length;
    const mine = requests.filter((r) => numberOf(r.req, -1) >= run.req && r.req < run.req + count);
    const name = `request ${run.req}${count > 1 ? `\u2013${run.req + count - 1}` : ""}: rows ${first}\u2013${token - 1}`;
    const block = el("div", {
      class: mine.length > 0 ? "wrong" : "",
      title: mine.length > 0 ? `${name}; wrong: ${mine.map((r) => rowsText(r.rows)).join(", ")}` : name
    });
    block.style.flex = `${length} 0 0`;
    const marks = mine.flatMap((r) => rowRanges(r.rows)).filter(([from, to]) => from >= first && to < token).slice(0, 400);
    for (const [from, to] of marks) {
      const mark = el("i");
      mark.style.left = `min(${((from - first) / length) * 100}%, 100% - 3px)`;
      mark.style.width = `${((to - from + 1) / length) * 100}%`;
      block.append(mark);
    }
    return add(block, length > token / 40 && marks.length === 0 && el("span", {}, textOf(run.req)));
  });
  const wrong = requests.map((r) => `request ${textOf(r.req)}`).join(", ");
  return el(
      "figure", {},
      el("div", {class: "strip", role: "img", "aria-label": `The rows of the batch by request. Wrong: ${wrong || "none"}.`},
         blocks),
      el("figcaption", {class: "note"},
         `The ${whole(token)} rows of the batch, request by request; requests with wrong rows are underlined.`));
}

const kNoCase = "cannot show here: ";

function suspectsSection(suspicions, found) {
  if (suspicions.length === 0) return null;
  const noCase = suspicions.filter((s) => textOf(s.refutation).startsWith(kNoCase)),
        tested = suspicions.filter((s) => !noCase.includes(s));
  const isCause = (s, i) => found && (i === 0 || textOf(s.refutation) === "");
  const item = (s, i) => suspectItem(s, isCause(s, i), i);
  const list = el("ol", {class: "suspects"}, tested.slice(0, kSuspectsAtOnce).map(item));
  const rest = tested.slice(kSuspectsAtOnce);
  const more = el("button", {type: "button", class: "quiet more"}, `Show the other ${rest.length}`);
  more.addEventListener("click", () => (add(list, rest.map((s, i) => item(s, i + kSuspectsAtOnce))), more.remove()));
  return section(
      "suspects", "Suspects",
      el("p", {class: "note"},
         `${plural(tested.length, "suspect")} tested. The share is how much of the observed error a fault explains; `,
         "right rows that it would break count against it."),
      list, rest.length > 0 && more, noCase.length > 0 && noCaseList(noCase));
}

function suspectItem(s, cause, i) {
  const moves = isNumber(s.largest_move) && `moves a tested element by at most ${short(s.largest_move)}`;
  const leaves = isNumber(s.largest_left) && `leaves an error of ${short(s.largest_left)}`;
  return el(
      "li", {class: cause ? "cause" : ""}, el("div", {class: "share"}, percent(s.explained)),
      meter([[cause ? "fail" : "none", Math.max(0, numberOf(s.explained))]], 1, `explains ${percent(s.explained)}`),
      el("div", {class: "words"},
         el("div", {class: "what"}, cause && i > 0 && "As good: ", textOf(s.text) || textOf(s.fault), " ",
            el("code", {class: "soft"}, textOf(s.fault))),
         cause && textOf(s.detail) && el("div", {}, textOf(s.detail)),
         el("div", {class: "refuted soft"},
            textOf(s.refutation) ? `Refuted: ${textOf(s.refutation)}` : [moves, leaves].filter(Boolean).join("; "))));
}

// Faults that this batch gives no chance to show, by the reason.
function noCaseList(suspicions) {
  const reasons = new Map();
  for (const s of suspicions) {
    const reason = textOf(s.refutation).slice(kNoCase.length);
    reasons.set(reason, [...(reasons.get(reason) || []), textOf(s.fault)]);
  }
  const rows = [...reasons].map(([reason, ids]) => ({reason, ids})).sort((a, b) => b.ids.length - a.ids.length);
  const columns = [
    {title: "faults", class: "number", cell: (r) => whole(r.ids.length), sort: (r) => r.ids.length},
    {title: "why not here", cell: (r) => r.reason, sort: (r) => r.reason}, {
      title: "which",
      class: "wide mono soft",
      cell: (r) => r.ids.slice(0, 4).join(", ") + (r.ids.length > 4 ? ` and ${r.ids.length - 4} more` : "")
    }
  ];
  return [
    el("h3", {}, `${plural(suspicions.length, "fault")} that cannot show on this batch`),
    dataTable({label: "Faults that cannot show", columns, rows, compact: true}).node
  ];
}

function againSection(report) {
  if (!textOf(report.problem) && !textOf(report.reduced)) return null;
  return section(
      "again", "See it again", textOf(report.problem) && commandLine("problem line", textOf(report.problem)),
      textOf(report.reduced) && commandLine("reduced capture", textOf(report.reduced)));
}
