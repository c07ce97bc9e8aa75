// SPDX-License-Identifier: Apache-2.0
// The causes of a diagnosis: the best of each set of wrong cells, what is as good, and every hypothesis that was refuted.
const kNoCase = "cannot show here: ";
const kSuspectsInSight = 5;

const nameOfCause = (s) => textOf(s.fault) || textOf(s.mechanism);
const isNoCase = (s) => textOf(s.refutation).startsWith(kNoCase);
const isRefuted = (s) => textOf(s.refutation) !== "" && !isNoCase(s);

// Sets of wrong cells. Each has an answer of its own, and a list of suspicions that ends with rounding.
function partsOf(report) {
  const lists = [[]];
  for (const s of recordsOf(report.suspicions)) {
    lists[lists.length - 1].push(s);
    if (textOf(s.fault) === "rounding") lists.push([]);
  }
  const answers = recordsOf(report.answers), own = lists.filter((list) => list.length > 0);
  return own.map((suspicions, i) => ({suspicions, answer: answers[i] || suspicions[0]}));
}

// "reads V in another layout (layout)", and the parameters below it.
function causeItem(share, tone, text, id, ...more) {
  return el(
      "li", {}, el("div", {class: "share"}, percent(share)),
      meter([[tone, Math.max(0, numberOf(share))]], 1, `explains ${percent(share)} of the error`),
      el("div", {class: "words"}, el("span", {class: "what"}, text), " ", id && el("code", {class: "soft"}, id), " ", more));
}

// Parameters and scope.
function detailOf(answer) {
  const scope = textOf(answer.scope_text);
  const words = [textOf(answer.detail), scope && `Only ${scope}`].filter(Boolean).map(sentence).join(" ");
  return words && el("div", {}, words);
}

function partCause({answer, suspicions}, title) {
  const asGood = suspicions.filter((s, i) => i > 0 && textOf(s.refutation) === "");
  const named = asGood.map((s) => el("li", {}, textOf(s.text), " ", el("code", {class: "soft"}, nameOfCause(s))));
  const name = nameOfCause(answer), tone = answer.certain === true ? "fail" : "warn";
  return el(
      "div", {}, title && el("h3", {}, title),
      el("ol", {class: "suspects"},
         causeItem(answer.explained, tone, `A kernel that ${textOf(answer.text) || name}`, name, detailOf(answer))),
      named.length > 0 && [
        el("p", {class: "of"}, "This batch cannot tell it from a kernel that"),
        el("ul", {class: "as-good"}, named.slice(0, kSuspectsInSight),
           named.length > kSuspectsInSight && el("li", {class: "soft"}, `and ${named.length - kSuspectsInSight} more`))
      ]);
}

// Side by side if there are several.
function causesOf(parts) {
  if (parts.length === 1) return partCause(parts[0], "");
  return el("div", {class: "pair narrow"}, parts.map((part, i) => partCause(part, `Set ${i + 1} of ${parts.length}`)));
}

// The best guesses where nothing is known, sorted by the number that is shown.
function guesses(answers) {
  const best = [...answers].filter((a) => numberOf(a.explained) > 0).sort((a, b) => b.explained - a.explained);
  return el(
      "ol", {class: "suspects few"},
      best.slice(0, kSuspectsInSight)
          .map((a) => causeItem(a.explained, "none", textOf(a.text) || nameOfCause(a), nameOfCause(a), textOf(a.detail))));
}

// Which set a hypothesis was tested on is said only if there are several.
function refutedRows(parts) {
  return parts.flatMap((part, i) => part.suspicions.filter(isRefuted).map((s) => ({s, set: i + 1})))
      .sort((a, b) => numberOf(b.s.explained) - numberOf(a.s.explained));
}
function refutedTable(parts) {
  const columns = [
    {title: "explains", class: "number", cell: ({s}) => percent(s.explained), sort: ({s}) => numberOf(s.explained)},
    parts.length > 1 && {title: "set", class: "number", cell: (row) => String(row.set), sort: (row) => row.set},
    {
      title: "a kernel that \u2026",
      cell: ({s}) => [textOf(s.text), " ", el("code", {class: "soft"}, nameOfCause(s))].concat(
          textOf(s.detail) ? el("div", {class: "soft"}, textOf(s.detail)) : []),
      sort: ({s}) => textOf(s.text)
    },
    {title: "why not", class: "wide", cell: ({s}) => textOf(s.refutation)},
  ];
  return dataTable({label: "Refuted suspects", columns: columns.filter(Boolean), rows: refutedRows(parts), compact: true}).node;
}

// Faults that cannot show on this batch, each once, by the reason.
function noCaseReasons(suspicions) {
  const reasons = new Map();
  for (const s of suspicions.filter(isNoCase)) {
    const reason = textOf(s.refutation).slice(kNoCase.length);
    reasons.set(reason, (reasons.get(reason) || new Set()).add(nameOfCause(s)));
  }
  return [...reasons].map(([reason, ids]) => ({reason, ids: [...ids]})).sort((a, b) => b.ids.length - a.ids.length);
}
function noCaseTable(reasons) {
  const columns = [
    {title: "faults", class: "number", cell: (r) => whole(r.ids.length), sort: (r) => r.ids.length},
    {title: "why not here", cell: (r) => r.reason, sort: (r) => r.reason}, {
      title: "which",
      class: "wide mono soft",
      cell: (r) => r.ids.slice(0, 4).join(", ") + (r.ids.length > 4 ? ` and ${r.ids.length - 4} more` : "")
    }
  ];
  return dataTable({label: "Faults that cannot show", columns, rows: reasons, compact: true}).node;
}

function refutedSections(parts) {
  const refuted = refutedRows(parts).length, reasons = noCaseReasons(parts.flatMap((part) => part.suspicions));
  const hidden = reasons.reduce((sum, r) => sum + r.ids.length, 0);
  const sets = parts.length > 1 ? ", each set of wrong cells by itself" : "";
  return [
    refuted > 0 && folded("refuted", "Refuted", plural(refuted, "hypothesis", "hypotheses") + sets, refutedTable(parts)),
    hidden > 0 &&
        folded("cannot", "Cannot show", plural(hidden, "fault") + " that cannot show on this batch", noCaseTable(reasons)),
  ];
}
