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
  const picture = (id, title, figure) => figure && section(id, title, ...[figure].flat());
  return [
    diagnoseVerdict(report, suspicions, wrong, found),
    whereSection(report, wrong, recordOf(recordOf(report.pictures).rows)),
    suspectsSection(suspicions, found),
    picture("error", "Where the error is", pictures.error),
    picture("pages", "What the cache holds", pictures.pages),
    picture("rows", "Who wrote which rows", pictures.rows),
    textOf(report.explain) && section("explain", "Why this kernel", el("pre", {}, textOf(report.explain))),
    againSection(report),
  ];
}

function diagnoseVerdict(report, suspicions, wrong, found) {
  const verdict = textOf(report.verdict), [kind, words] = kDiagnoses[verdict] || ["unknown", ""], cause = found ? suspicions[0] : null;
  const best = suspicions[0];
  const nearest = verdict === "unknown cause" && best && ` The best of ${whole(suspicions.length)}, ${textOf(best.fault)}, explains ${percent(best.explained)} of the error.`;
  const why = cause ? [`A kernel that ${textOf(cause.text)}: explains ${percent(cause.explained)} of the error. `, textOf(cause.detail)] : [words, nearest];
  const findings = listOf(report.findings).map((f) => textOf(f) || textOf(recordOf(f).message)).filter(Boolean);
  const next = textOf(report.next) || (cause && textOf(cause.next));
  return el("div", {id: "verdict"},
    el("div", {class: "verdict"}, sign(kind), el("h1", {class: `tone-${(kSigns[kind] || kSigns.unknown).tone}`}, verdict || "no verdict"), el("p", {class: "why"}, why)),
    facts([["file", report.file], ["wrong rows", isNumber(wrong.rows) && whole(wrong.rows)], ["wrong elements", isNumber(wrong.elements) && whole(wrong.elements)],
           ["elements compared", isNumber(wrong.compared) && whole(wrong.compared)], ["took", duration(report.seconds)], ["quire", report.version]]),
    findings.length > 0 && callout("warn", "Broken rules", el("ul", {}, findings.map((text) => el("li", {}, text)))),
    next && callout("none", "Look at next", el("p", {}, next)));
}

// 5336, or "5336, 5340\u20135399 and 12 more": runs of neighbours, the first few.
function rangesOf(numbers) {
  const runs = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && n <= last[1] + 1) last[1] = n;
    else runs.push([n, n]);
  }
  const shown = runs.slice(0, 12).map(([a, b]) => (a === b ? String(a) : `${a}\u2013${b}`)).join(", ");
  return runs.length > 12 ? `${shown} and ${runs.length - 12} more runs` : shown;
}
const rowsText = (rows) => (Array.isArray(rows) ? rangesOf(rows.filter(isNumber)) || "none" : isNumber(rows) ? plural(rows, "row") : textOf(rows));

function whereSection(report, wrong, rows) {
  const laws = recordsOf(report.laws), requests = recordsOf(wrong.requests);
  if (laws.length === 0 && requests.length === 0) return null;
  const number = (title, key) => ({title, class: "number", cell: (r) => whole(numberOf(r[key])), sort: (r) => numberOf(r[key])});
  const columns = [{title: "request", cell: (r) => textOf(r.req), sort: (r) => numberOf(r.req)}, number("query_len", "query_len"), number("context_len", "context_len"),
                   {title: "wrong rows", cell: (r) => rowsText(r.rows), sort: (r) => countOf(r.rows)}, {title: "heads", cell: (r) => (Array.isArray(r.heads) ? rangesOf(r.heads.filter(isNumber)) : textOf(r.heads))}];
  return section("where", "What is wrong, and where", batchStrip(rows, requests),
    laws.length > 0 && [el("h3", {}, "Laws that it breaks, whatever the oracle says"),
                        el("ul", {}, laws.map((law) => el("li", {}, el("b", {}, textOf(law.law)), ": ", textOf(law.text), law.rows !== undefined && el("span", {class: "soft"}, ` (rows: ${rowsText(law.rows)})`))))],
    requests.length > 0 && [el("h3", {}, "Requests with wrong rows"), dataTable({label: "Requests with wrong rows", columns, rows: requests, compact: true}).node]);
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
    const block = el("div", {class: mine.length > 0 ? "wrong" : "", title: mine.length > 0 ? `${name}; wrong: ${mine.map((r) => rowsText(r.rows)).join(", ")}` : name});
    block.style.flex = `${length} 0 0`;
    const marks = mine.flatMap((r) => listOf(r.rows)).filter((row) => isNumber(row) && row >= first && row < token).slice(0, 400);
    for (const row of marks) {
      const mark = el("i");
      mark.style.left = `min(${((row - first) / length) * 100}%, 100% - 3px)`;
      mark.style.width = `${100 / length}%`;
      block.append(mark);
    }
    return add(block, length > token / 40 && marks.length === 0 && el("span", {}, textOf(run.req)));
  });
  const wrong = requests.map((r) => `request ${textOf(r.req)}`).join(", ");
  return el("figure", {}, el("div", {class: "strip", role: "img", "aria-label": `The rows of the batch by request. Wrong: ${wrong || "none"}.`}, blocks),
            el("figcaption", {class: "note"}, `The ${whole(token)} rows of the batch, request by request; requests with wrong rows are underlined.`));
}

function suspectsSection(suspicions, found) {
  if (suspicions.length === 0) return null;
  const item = (s, i) => {
    const cause = found && i === 0, share = Math.max(0, numberOf(s.explained));
    const numbers = [isNumber(s.largest_move) && `moves a tested element by at most ${short(s.largest_move)}`, isNumber(s.largest_left) && `leaves an error of ${short(s.largest_left)}`].filter(Boolean).join("; ");
    return el("li", {class: cause ? "cause" : ""},
      el("div", {class: "share"}, percent(s.explained)),
      meter([[cause ? "fail" : "none", share]], 1, `explains ${percent(s.explained)}`),
      el("div", {class: "words"},
         el("div", {class: "what"}, textOf(s.text) || textOf(s.fault), " ", el("code", {class: "soft"}, textOf(s.fault))),
         cause && textOf(s.detail) && el("div", {}, textOf(s.detail)),
         el("div", {class: "refuted soft"}, textOf(s.refutation) ? `Refuted: ${textOf(s.refutation)}` : numbers)));
  };
  const list = el("ol", {class: "suspects"}, suspicions.slice(0, kSuspectsAtOnce).map(item));
  const rest = suspicions.slice(kSuspectsAtOnce);
  const more = el("button", {type: "button", class: "quiet more"}, `Show the other ${rest.length}`);
  more.addEventListener("click", () => (add(list, rest.map((s, i) => item(s, i + kSuspectsAtOnce))), more.remove()));
  return section("suspects", "Suspects", el("p", {class: "note"}, `${plural(suspicions.length, "fault")} tested. The share is how much of the observed error a fault explains; right rows that it would break count against it.`),
                 list, rest.length > 0 && more);
}

function againSection(report) {
  if (!textOf(report.problem) && !textOf(report.reduced)) return null;
  return section("again", "See it again", textOf(report.problem) && commandLine("problem line", textOf(report.problem)),
                 textOf(report.reduced) && commandLine("reduced capture", textOf(report.reduced)));
}
