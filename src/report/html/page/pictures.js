// SPDX-License-Identifier: Apache-2.0
// The pictures of one case: where the error is, what the cache holds, who wrote which rows.

// Classes of |error| / tolerance. The limit is at 1: left of it calm, right of it warm.
const kHeatSteps = [0.01, 0.1, 0.5, 1, 3, 10, 100, 1e4];
const kHeatNames = ["0", "0.01", "0.1", "0.5", "1", "3", "10", "100", "10\u2074"];
const heatOf = (ratio) => kHeatSteps.filter((limit) => ratio > limit).length;
const heatPalette = () => ({
  heat: kHeatNames.map((_, i) => colour(`heat-${i}`)),
  nan: colour("nan"),
  mark: colour("nan-mark"),
  none: colour("void"),
  edge: colour("line")
});

function drawHeat(context, ratio, broken, at, colours) {
  const gap = at.w >= 7 ? 1 : 0, gapY = at.h >= 7 ? 1 : 0;
  context.fillStyle = broken ? colours.nan : isNumber(ratio) ? colours.heat[heatOf(ratio)] : colours.none;
  context.fillRect(at.x, at.y, at.w - gap, at.h - gapY);
  if (!broken) return;
  context.strokeStyle = colours.mark;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(at.x, at.y + at.h - gapY);
  context.lineTo(at.x + at.w - gap, at.y);
  context.stroke();
}

function swatch(paint) {
  const canvas = el("canvas", {width: 28, height: 28, "aria-hidden": "true"});
  const repaint = () => {
    const context = canvas.getContext("2d");
    context.setTransform(2, 0, 0, 2, 0, 0);
    context.clearRect(0, 0, 14, 14);
    paint(context, {x: 0, y: 0, w: 14, h: 14});
  };
  gridMaps.push(repaint);
  repaint();
  return canvas;
}
function heatLegend(withBroken) {
  const steps = kHeatNames.map((name, i) => {
    const bar = el("i");
    bar.style.background = `var(--heat-${i})`;
    return el("span", {class: i === 4 ? "step limit" : "step"}, bar, name);
  });
  const broken = withBroken &&
      el("span", {}, swatch((context, at) => drawHeat(context, null, true, at, heatPalette())), "NaN or infinity out of place");
  return el("div", {class: "legend"}, steps, el("span", {}, "\u00d7 tolerance"), broken && el("span", {class: "gap"}), broken);
}

// As large as there is room for: up to `height` pixels high and as wide as the page.
function heatShape(rows, columns, left, height) {
  return (width) => {
    const cellWidth = Math.min(96, Math.max(3, Math.floor((width - left - 4) / Math.max(1, columns))));
    return {rows, columns, cellWidth, cellHeight: Math.min(26, Math.max(5, Math.floor(height / rows))), left, top: 18};
  };
}
const kDimMapHeight = 700;

function requestHeadMap(data, height) {
  const requests = recordsOf(data.requests), heads = listOf(data.heads).map(listOf), worst = listOf(data.worst).map(listOf),
        broken = listOf(data.nonfinite).map(listOf), wrong = listOf(data.wrong).map(listOf);
  if (requests.length === 0 || heads.length === 0) return null;
  const headName = (j) =>
      (heads[j][0] === heads[j][1] ? textOf(heads[j][0]) : `${textOf(heads[j][0])}\u2013${textOf(heads[j][1])}`);
  const ratio = (i, j) => listOf(worst[i])[j], count = (i, j) => numberOf(listOf(broken[i])[j]);
  const lengths = (r) => `${textOf(r.query_len)}@${textOf(r.context_len)}`;
  const numHeads = numberOf(heads[heads.length - 1][1], heads.length - 1) + 1;
  const cellsOf = (i, j) => numberOf(requests[i].rows) * (numberOf(heads[j][1]) - numberOf(heads[j][0]) + 1);
  const wrongOf = (i, j) => isNumber(listOf(wrong[i])[j]) && `${whole(wrong[i][j])} of ${plural(cellsOf(i, j), "cell")} wrong`;
  return gridMap({
    label: "Worst error by request and head",
    axis: "head",
    start:
        `${plural(requests.length, "request")} (query_len@context_len) by ${plural(numHeads, "head")}: the worst error of each.`,
    shape: heatShape(requests.length, heads.length, 104, height),
    exists: () => true,
    palette: heatPalette,
    draw: (context, i, j, at, colours) => drawHeat(context, ratio(i, j), count(i, j) > 0, at, colours),
    rowLabel: (i) => `${textOf(requests[i].req)}   ${lengths(requests[i])}`,
    columnLabel: (j) => headName(j).split("\u2013")[0],
    describe: (i, j) => `request ${textOf(requests[i].req)} (${lengths(requests[i])}), head ${headName(j)}: ` +
        [
          wrongOf(i, j), count(i, j) > 0 && `${plural(count(i, j), "element")} NaN or infinite out of place`,
          isNumber(ratio(i, j)) && `worst error ${times(ratio(i, j))} tolerance`
        ].filter(Boolean)
            .join("; "),
  });
}

function rowDimMap(data) {
  const rows = recordsOf(data.rows), ratios = listOf(data.ratio).map(listOf), bin = numberOf(data.bin, 1);
  const last = Math.max(0, ...ratios.map((list) => list.length)), lse = listOf(data.lse);
  if (rows.length === 0 || last === 0) return null;
  const columns = last + (lse.length > 0 ? 1 : 0);
  const dims = (j) =>
      (j === last    ? "lse" :
           bin === 1 ? `dim ${j}` :
                       `dims ${j * bin}\u2013${Math.min((j + 1) * bin, numberOf(data.dims)) - 1}`);
  const ratio = (i, j) => (j === last ? lse[i] : listOf(ratios[i])[j]);
  const place = (row) => `request ${textOf(row.req)}, position ${textOf(row.q_pos)}`;
  const nameOf = (row) => `token ${textOf(row.token)} (${place(row)}), head ${textOf(row.head)}`;
  return gridMap({
    label: "Error of the worst cells by dim",
    axis: "dim",
    start: `The ${plural(rows.length, "worst cell")}, token and head, in order, by ${textOf(data.dims)} dims${
        lse.length > 0 ? "; lse is last" : ""}.`,
    shape: heatShape(rows.length, columns, 104, kDimMapHeight),
    exists: () => true,
    palette: heatPalette,
    draw: (context, i, j, at, colours) => drawHeat(context, ratio(i, j), !isNumber(ratio(i, j)), at, colours),
    rowLabel: (i) => `${textOf(rows[i].token)}  h${textOf(rows[i].head)}`,
    columnLabel: (j) => (j === last ? "lse" : String(j * bin)),
    describe: (i, j) => `${nameOf(rows[i])}, ${dims(j)}: ` +
        (isNumber(ratio(i, j)) ? `error ${times(ratio(i, j))} tolerance` : "NaN or infinite out of place"),
  });
}

const hasBroken = (data) => listOf(recordOf(data).nonfinite).flat().some((n) => n > 0);

// What a colour means, what was compared, and what is not drawn.
function errorNote(all, part) {
  const compared = isNumber(all.rows_compared) && isNumber(all.rows_total) &&
      `${whole(all.rows_compared)} of ${plural(all.rows_total, "cell")} (row \u00d7 head) compared`;
  const note = [compared, textOf(part.text)].filter(Boolean).join("; ");
  return `Largest |error| / tolerance. ${note && `${note}.`}`;
}

// Two figures: by request and head, and by dim.
function errorFigures(error, headMapHeight) {
  const all = recordOf(error), broken = hasBroken(all.request_head);
  const byHead = requestHeadMap(recordOf(all.request_head), headMapHeight), byDim = rowDimMap(recordOf(all.row_dim));
  const key = (part) => el("div", {class: "key"}, heatLegend(broken), el("p", {class: "note"}, errorNote(all, recordOf(part))));
  return {
    byHead: byHead && el("figure", {}, byHead, key(all.request_head)),
    byDim: byDim && el("figure", {}, byDim, key(all.row_dim)),
  };
}

// Pages: fill level by height, state by colour and mark.
const kPageStates = {
  owned: "read by one request",
  shared: "read by several requests",
  hidden: "owned, but hidden by the window",
  unwritten: "read, but with slots never written",
  recycled: "owned by nobody, holds something",
  clean: "owned by nobody, never written",
};
function pagePalette() {
  const colours = {mark: colour("page-mark"), edge: colour("page-edge"), pick: colour("page-pick")};
  for (const state of Object.keys(kPageStates)) colours[state] = colour(`page-${state}`);
  return colours;
}
function drawPage(context, state, fill, at, colours) {
  const w = at.w - 2, h = at.h - 2;
  context.fillStyle = colours.clean;
  context.fillRect(at.x, at.y, w, h);
  const owned = state !== "clean" && state !== "recycled";
  const height = owned && state !== "unwritten" ? Math.max(2, h * Math.min(1, fill)) : h;
  context.fillStyle = colours[state] || colours.clean;
  context.fillRect(at.x, at.y + h - height, w, height);
  context.strokeStyle = state === "recycled" || state === "hidden" ? colours.edge : colours.mark;
  context.fillStyle = colours.mark;
  context.lineWidth = 1.5;
  const x = at.x + w / 2, y = at.y + h / 2, r = Math.min(w, h) * 0.24;
  context.beginPath();
  if (state === "unwritten")
    context.moveTo(x - r, y - r), context.lineTo(x + r, y + r), context.moveTo(x + r, y - r), context.lineTo(x - r, y + r);
  if (state === "hidden") context.moveTo(x - r, y), context.lineTo(x + r, y);
  if (state === "recycled") context.moveTo(x - r, y + r), context.lineTo(x + r, y - r);
  context.stroke();
  if (state === "shared") context.beginPath(), context.arc(x, y, r * 0.7, 0, 7), context.fill();
  if (state !== "clean") return;
  context.strokeStyle = colours.edge;
  context.lineWidth = 1;
  context.strokeRect(at.x + 0.5, at.y + 0.5, w - 1, h - 1);
}

// Cells arrive as arrays; `columns` says which place is what, `states` what the state numbers mean.
function pageCells(data) {
  const columns = listOf(data.columns), states = listOf(data.states);
  return listOf(data.cells).map(listOf).map((cell) => {
    const at = (name) => cell[columns.indexOf(name)];
    return {
      page: numberOf(at("page")),
      state: textOf(states[at("state")]),
      filled: numberOf(at("filled")),
      unwritten: numberOf(at("unwritten")),
      numOwners: numberOf(at("num_owners")),
      owners: listOf(at("owners")).map(listOf)
    };
  });
}
function describePage(cell, size, bin) {
  const owners = cell.owners.map(([req, logical]) => `request ${textOf(req)}, logical page ${textOf(logical)}`).join("; ");
  const more = cell.numOwners > cell.owners.length ? ` and ${whole(cell.numOwners - cell.owners.length)} more` : "";
  const who = owners ? `${owners}${more}` : "no owner";
  const filled = owners ? `; ${whole(cell.filled)} of ${plural(size * bin, "slot")} filled` : "";
  const unwritten = cell.unwritten > 0 ? `; ${whole(cell.unwritten)} read but never written` : "";
  const page = `page ${cell.page}${bin > 1 ? ` (worst of ${bin})` : ""}`;
  return `${page}: ${kPageStates[cell.state] || cell.state}; ${who}${filled}${unwritten}`;
}

function pagesFigure(pages) {
  const data = recordOf(pages), cells = pageCells(data), size = numberOf(data.page_size, 1), bin = numberOf(data.bin, 1);
  if (cells.length === 0) return null;
  const columnsIn = (width) => Math.max(8, [64, 48, 40, 32, 24, 16].find((n) => 52 + n * 14 <= width) || 8);
  let columns = 64;
  const index = (row, column) => row * columns + column;
  const owner = (cell) => (cell && cell.owners.length > 0 ? cell.owners[0][0] : null);
  const map = gridMap({
    label: "Pages of the cache",
    axis: "",
    columnLabel: () => "",
    start:
        "One square per physical page; its height shows how many slots are filled. Point at one to see all pages of its owner.",
    shape: (width) =>
        ((columns = Math.min(columnsIn(width), Math.max(8, cells.length))),
         {rows: Math.ceil(cells.length / columns), columns, cellWidth: 14, cellHeight: 14, left: 48, top: 0}),
    exists: (row, column) => index(row, column) < cells.length,
    palette: pagePalette,
    draw: (context, row, column, at, colours, cursor) => {
      const cell = cells[index(row, column)], picked = cursor && owner(cells[index(cursor.row, cursor.column)]);
      drawPage(context, cell.state, cell.filled / (size * bin), at, colours);
      if (!isNumber(picked) || !cell.owners.some(([req]) => req === picked)) return;
      context.strokeStyle = colours.pick;
      context.lineWidth = 1.5;
      context.strokeRect(at.x - 0.25, at.y - 0.25, at.w - 1.5, at.h - 1.5);
    },
    rowLabel: (row) => textOf(recordOf(cells[index(row, 0)]).page),
    describe: (row, column) => describePage(cells[index(row, column)], size, bin),
  });
  const counts = recordOf(data.counts);
  const legend =
      Object.entries(kPageStates)
          .filter(([state]) => numberOf(counts[state]) > 0)
          .map(
              ([state, words]) =>
                  el("span", {},
                     swatch((context, at) => drawPage(context, state, 1, {x: at.x, y: at.y, w: 15, h: 15}, pagePalette())),
                     `${words}: ${whole(counts[state])}`));
  const outside =
      numberOf(data.outside) > 0 &&
      callout(
          "fail", "Outside the cache",
          el("p", {},
             `${plural(data.outside, "table entry", "table entries")} outside the ${whole(numberOf(data.num_pages))} pages.`));
  const note =
      `${plural(numberOf(data.num_pages), "page")} of ${plural(size, "slot")}. ` + (textOf(data.text) && `${textOf(data.text)}.`);
  return [el("p", {class: "note"}, note), map, el("div", {class: "legend spaced"}, legend), outside];
}

function rowsFigure(rows) {
  const data = recordOf(rows), kernels = recordsOf(data.kernels), requests = recordsOf(data.requests),
        expected = numberOf(data.expected);
  if (kernels.length === 0 && requests.length === 0) return null;
  const total = kernels.reduce((sum, kernel) => sum + numberOf(kernel.rows), 0), right = total === expected;
  const served = kernels.map(
      (kernel) =>
          [el("span", {class: "mono"}, textOf(kernel.kernel)), el("span", {class: "count"}, plural(numberOf(kernel.rows), "row")),
           meter(
               [[right ? "pass" : "fail", numberOf(kernel.rows)]], Math.max(total, expected),
               `${whole(numberOf(kernel.rows))} of ${whole(expected)}`)]);
  const sum = kernels.length > 0 &&
      el("p", {class: "note"}, badge(right ? "pass" : "fail", right ? "every row was counted once" : "the counts do not add up"),
         ` (${whole(total)} counted, ${whole(expected)} in the batch)`);
  const only = kernels.length === 0 && textOf(data.kernel) &&
      el("p", {class: "note"}, "Served by ", el("code", {}, textOf(data.kernel)), ".");
  const number = (title, key) =>
      ({title, class: "number", cell: (row) => whole(numberOf(row[key])), sort: (row) => numberOf(row[key])});
  const first = (row) => (numberOf(row.count, 1) > 1 ? `${row.req}\u2013${row.req + row.count - 1}` : textOf(row.req));
  const table = requests.length > 0 &&
      dataTable({
        label: "Requests of the batch",
        rows: requests,
        compact: true,
        columns: [
          {title: "request", cell: first, sort: (row) => numberOf(row.req)}, number("query_len", "query_len"),
          number("context_len", "context_len"), number("cached_len", "cached_len"), number("cells (row \u00d7 head)", "rows")
        ],
      }).node;
  return [
    only, served.length > 0 && el("div", {class: "powers"}, served.flat()), sum, table,
    textOf(data.text) && el("p", {class: "note"}, textOf(data.text))
  ];
}

function picturesOf(pictures, headMapHeight = 400) {
  let data = pictures;
  if (typeof data === "string") {
    try {
      data = JSON.parse(data);
    } catch {
      data = null;
    }
  }
  data = recordOf(data);
  return {...errorFigures(data.error, headMapHeight), pages: pagesFigure(data.pages), rows: rowsFigure(data.rows)};
}
