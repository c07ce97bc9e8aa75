// SPDX-License-Identifier: Apache-2.0
// A map of cells on a canvas, with a cursor that mouse and arrow keys move, and words for the cell under it above the map.
const gridMaps = [];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// shape(width) -> {rows, columns, cellWidth, cellHeight, left, top}; exists(row, column) -> is there a cell;
// draw(context, row, column, box, colours, cursor) paints one cell with what palette() gave for this painting;
// describe(row, column), rowLabel(row) and columnLabel(column) -> text; axis names the columns.
function gridMap({label, start, shape, exists, palette, draw, describe, rowLabel, columnLabel, axis}) {
  const canvas = el("canvas");
  const tip = el("div", {class: "tip hidden", "aria-hidden": "true"});
  const frame =
      el("div", {
        class: "frame",
        tabindex: 0,
        role: "application",
        "aria-roledescription": "map",
        "aria-label": `${label}. Arrow keys move from cell to cell.`
      },
         canvas, tip);
  const readout = el("p", {class: "readout", role: "status"}, start);
  const scroll = el("div", {class: "scroll"}, frame);
  const node = el("div", {class: "map"}, readout, scroll);
  let size = null, cursor = null;

  function box(row, column) {
    return {x: size.left + column * size.cellWidth, y: size.top + row * size.cellHeight, w: size.cellWidth, h: size.cellHeight};
  }
  function paint() {
    const width = scroll.clientWidth;
    if (width === 0) return;
    size = shape(width);
    const w = Math.ceil(size.left + size.columns * size.cellWidth) + 2, h = Math.ceil(size.top + size.rows * size.cellHeight) + 2;
    const scale = window.devicePixelRatio || 1;
    canvas.width = w * scale;
    canvas.height = h * scale;
    canvas.style.width = `${w}px`;
    canvas.style.height = `${h}px`;
    frame.style.width = `${w}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    paintLabels(context);
    const colours = palette();
    for (let row = 0; row < size.rows; ++row)
      for (let column = 0; column < size.columns; ++column)
        if (exists(row, column)) draw(context, row, column, box(row, column), colours, cursor);
    if (cursor) outline(context);
  }
  function outline(context) {
    const at = box(cursor.row, cursor.column);
    context.strokeStyle = colour("bg");
    context.lineWidth = 4;
    context.strokeRect(at.x, at.y, at.w, at.h);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(at.x, at.y, at.w, at.h);
  }
  function paintLabels(context) {
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(13 / size.cellHeight));
    for (let row = 0; row < size.rows; row += every)
      context.fillText(rowLabel(row), size.left - 8, size.top + (row + 0.5) * size.cellHeight);
    context.textAlign = "center";
    const gap = Math.ceil(34 / size.cellWidth), step = [1, 2, 4, 8, 16, 32, 64, 128, 256].find((n) => n >= gap) || 512;
    for (let column = 0; size.top > 0 && column < size.columns; column += step)
      context.fillText(columnLabel(column), size.left + (column + 0.5) * size.cellWidth, size.top - 9);
    context.textAlign = "right";
    if (axis && size.top > 0) context.fillText(axis, size.left - 8, size.top - 9);
  }
  function moveTo(next, follow) {
    cursor = next && exists(next.row, next.column) ? next : null;
    const text = cursor ? describe(cursor.row, cursor.column) : start;
    readout.textContent = text;
    // The words stand above the map; beside the cell they are needed only if that place is scrolled out of sight.
    tip.classList.toggle("hidden", !cursor || readout.getBoundingClientRect().top > 44);
    paint();
    if (!cursor) return;
    tip.textContent = text;
    const at = box(cursor.row, cursor.column);
    const left = Math.min(at.x + at.w + 8, scroll.scrollLeft + scroll.clientWidth - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(scroll.scrollLeft, left)}px`;
    tip.style.top = `${at.y + at.h + 8}px`;
    if (follow) scroll.scrollLeft = Math.max(0, at.x - scroll.clientWidth / 2);
  }
  function cellUnder(event) {
    const rect = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - rect.left - size.left) / size.cellWidth);
    const row = Math.floor((event.clientY - rect.top - size.top) / size.cellHeight);
    return row >= 0 && row < size.rows && column >= 0 && column < size.columns ? {row, column} : null;
  }
  frame.addEventListener("pointermove", (event) => {
    const next = size && cellUnder(event);
    const same = next && cursor && next.row === cursor.row && next.column === cursor.column;
    if (!same && (next || cursor)) moveTo(next, false);
  });
  frame.addEventListener("pointerleave", () => cursor && moveTo(null, false));
  frame.addEventListener("blur", () => cursor && moveTo(null, false));
  frame.addEventListener("keydown", (event) => {
    const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9]};
    if (event.key === "Escape") return moveTo(null, false);
    if (!steps[event.key] || !size) return;
    event.preventDefault();
    const from = cursor || {row: 0, column: 0}, [down, right] = cursor ? steps[event.key] : [0, 0];
    const row = Math.min(size.rows - 1, Math.max(0, from.row + down));
    let column = Math.min(size.columns - 1, Math.max(0, from.column + right));
    while (column > 0 && !exists(row, column)) --column;
    moveTo({row, column}, true);
  });
  let width = 0;
  new ResizeObserver(() => {
    if (scroll.clientWidth === width) return;
    width = scroll.clientWidth;
    moveTo(null, false);
  }).observe(scroll);
  gridMaps.push(paint);
  return node;
}
