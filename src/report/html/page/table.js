// SPDX-License-Identifier: Apache-2.0
// Tables that sort, filter and open: one component for cases, planted faults and everything else that has rows.
const kRowsAtOnce = 50;
const kFewRows = 12;

// columns: {title, cell(row) -> node or text, sort(row) -> value, class}; detail(row) -> node, built when a row is opened; a
// compact table is as wide as it needs to be and starts with a few rows.
function dataTable({label, columns, rows, detail, compact}) {
  const atFirst = compact && rows.length > kFewRows + 3 ? kFewRows : kRowsAtOnce;
  const head = el("tr");
  const body = el("tbody");
  const more = el("button", {type: "button", class: "quiet more"});
  const state = {rows, limit: atFirst, column: -1, down: false};

  columns.forEach((column, index) => {
    const button = column.sort && el("button", {type: "button", onclick: () => sortBy(index)}, column.title);
    head.append(el("th", {scope: "col", class: column.class}, button || column.title));
  });
  function sortBy(index) {
    state.down = state.column === index ? !state.down : false;
    state.column = index;
    fill();
  }
  function sorted() {
    const column = columns[state.column];
    if (!column || !column.sort) return state.rows;
    const keyed = state.rows.map((row) => [column.sort(row), row]);
    const compare = (a, b) =>
        (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true}));
    keyed.sort((a, b) => (state.down ? -1 : 1) * compare(a[0], b[0]));
    return keyed.map((pair) => pair[1]);
  }
  function fill() {
    [...head.children].forEach((cell, index) => {
      if (columns[index].sort)
        cell.setAttribute("aria-sort", index !== state.column ? "none" : state.down ? "descending" : "ascending");
    });
    const visible = sorted().slice(0, state.limit);
    body.replaceChildren(...visible.map(makeRow));
    const left = state.rows.length - visible.length;
    more.textContent = `Show ${Math.min(left, kRowsAtOnce)} more of ${left}`;
    more.classList.toggle("hidden", left <= 0);
  }
  function makeRow(row) {
    const cells = columns.map((column) => el("td", {class: column.class}, column.cell(row)));
    const line = el("tr", {}, cells);
    if (detail) makeOpening(line, row, cells[0]);
    return line;
  }
  function makeOpening(line, row, first) {
    const button =
        el("button", {type: "button", class: "expand", "aria-expanded": "false", "aria-label": `Details: ${first.textContent}`});
    first.replaceChildren(el("span", {class: "first"}, button, el("span", {}, ...first.childNodes)));
    line.classList.add("opens");
    let panel = null;
    const toggle = () => {
      panel = panel || el("tr", {class: "detail"}, el("td", {colspan: columns.length}));
      const open = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(open));
      line.classList.toggle("opened", open);
      if (!open) return panel.remove();
      line.after(panel);
      if (!panel.firstChild.hasChildNodes()) panel.firstChild.append(el("div", {class: "box"}, detail(row)));
    };
    line.addEventListener("click", (event) => {
      const selecting = String(window.getSelection()) !== "";
      if (event.target === button || (!selecting && !event.target.closest("button, a, input"))) toggle();
    });
  }
  // Up and down walk through the rows, as in a list box.
  body.addEventListener("keydown", (event) => {
    const buttons = [...body.querySelectorAll(".expand")];
    const at = buttons.indexOf(event.target);
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (at < 0 || !step || !buttons[at + step]) return;
    event.preventDefault();
    buttons[at + step].focus();
  });
  more.addEventListener("click", () => {
    state.limit += kRowsAtOnce;
    fill();
  });
  fill();
  const table = el("table", {}, el("caption", {class: "unseen"}, label), el("thead", {}, head), body);
  const node =
      el("div", {class: compact && "compact"},
         el("div", {class: "table", role: "region", "aria-label": label, tabindex: 0}, table), more);
  return {node, show: (list) => ((state.rows = list), (state.limit = atFirst), fill())};
}

// A search box and groups of chips above a table. groups: {label, of(row) -> text}; text(row) is what the search looks into.
function filters({rows, groups, text, table, noun}) {
  const wanted = groups.map(() => "");
  const count = el("span", {class: "shown", role: "status"});
  const search = el("input", {type: "search", placeholder: "Filter by any word", "aria-label": `Filter ${noun} by text`});
  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter(
        (row) => groups.every((group, g) => !wanted[g] || group.of(row) === wanted[g]) &&
            words.every((word) => text(row).toLowerCase().includes(word)));
    count.textContent =
        shown.length === rows.length ? plural(rows.length, noun) : `${whole(shown.length)} of ${plural(rows.length, noun)}`;
    table.show(shown);
  }
  function chips(group, g) {
    const values = [...new Set(rows.map(group.of))].filter(Boolean);
    if (values.length < 2) return null;
    if (values.length > 5) return choices(group, g, values);
    const buttons = values.map((value) => {
      const n = rows.filter((row) => group.of(row) === value).length;
      return el(
          "button", {type: "button", class: "chip", "aria-pressed": "false", onclick: () => pick(value)}, `${value} ${whole(n)}`);
    });
    function pick(value) {
      wanted[g] = wanted[g] === value ? "" : value;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(values[i] === wanted[g])));
      apply();
    }
    return buttons;
  }
  function choices(group, g, values) {
    const select =
        el("select", {"aria-label": group.label}, el("option", {value: ""}, `any ${group.label}`),
           values.map((v) => el("option", {value: v}, v)));
    select.addEventListener("change", () => ((wanted[g] = select.value), apply()));
    return select;
  }
  search.addEventListener("input", apply);
  const node = el("div", {class: "tools"}, search, groups.map(chips).flat(), count);
  apply();
  return node;
}
