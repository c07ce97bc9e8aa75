// SPDX-License-Identifier: Apache-2.0
// Building blocks. Text from the report reaches the document through text nodes only; nothing here parses HTML.
const kSvg = "http://www.w3.org/2000/svg";

// el("p", {class: "soft", onclick: f}, "text", node, ...); null and false children are left out.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on"))
      node.addEventListener(name.slice(2), value);
    else
      node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, ...children);
  return node;
}
function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// Reading a document that may hold anything: the wrong type counts as missing.
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const listOf = (x) => (Array.isArray(x) ? x : []);
const recordOf = (x) => (x !== null && typeof x === "object" && !Array.isArray(x) ? x : {});
const recordsOf = (x) => listOf(x).map(recordOf);
const textOf = (x) => (typeof x === "string" ? x : isNumber(x) || typeof x === "boolean" ? String(x) : "");
const numberOf = (x, missing = 0) => (isNumber(x) ? x : missing);
const countOf = (x) => (Array.isArray(x) ? x.length : numberOf(x));

// Numbers for people.
const kThousands = /\B(?=(\d{3})+(?!\d))/g;
const whole = (n) => String(Math.round(n)).replace(kThousands, "\u202f");
const plural = (n, one, many = one + "s") => `${whole(n)} ${n === 1 ? one : many}`;
function short(x) {
  if (!isNumber(x)) return "\u2013";
  const size = Math.abs(x);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return x.toExponential(1).replace("e+", "e");
  return String(Number(x.toPrecision(3)));
}
const times = (ratio) => (isNumber(ratio) ? `${short(ratio)}\u00d7` : "\u2013");
// 100 % is said only if it is all of it.
function percent(share) {
  if (!isNumber(share)) return "\u2013";
  if (share > 1.005) return `${Math.round(100 * share)}\u202f%`;
  if (share >= 1 || share === 0) return `${share >= 1 ? 100 : 0}\u202f%`;
  const value = share * 100;
  if (Math.abs(value) < 0.1) return `${value < 0 ? "> \u22120.1" : "< 0.1"}\u202f%`;
  return `${Math.min(99.9, value).toFixed(1)}\u202f%`;
}
function duration(seconds) {
  if (!isNumber(seconds)) return "";
  if (seconds < 0.1) return `${short(seconds * 1000)} ms`;
  if (seconds < 100) return `${short(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

// A sign has a shape of its own for every meaning, so that colour is never needed to read it.
const kSigns = {
  pass: {tone: "pass", path: "M7 12.5l3.4 3.4L17 8.8", round: true},
  fail: {tone: "fail", path: "M8.2 8.2l7.6 7.6M15.8 8.2l-7.6 7.6", round: true},
  mistrusted: {tone: "warn", path: "M12 8.5v5.2M12 16.6v.2", round: false},
  refused: {tone: "none", path: "M8 12h8", round: true},
  unknown: {tone: "warn", path: "M9.2 9.6a2.9 2.9 0 1 1 4 2.7c-.8.4-1.2.9-1.2 1.9M12 17v.2", round: true},
};
function sign(kind) {
  const shape = kSigns[kind] || kSigns.refused;
  const svg = document.createElementNS(kSvg, "svg");
  for (const [name, value] of Object.entries({viewBox: "0 0 24 24", "aria-hidden": "true", class: `sign tone-${shape.tone}`}))
    svg.setAttribute(name, value);
  const outline = document.createElementNS(kSvg, "path");
  outline.setAttribute("d", shape.round ? "M12 2a10 10 0 1 1 0 20a10 10 0 1 1 0-20z" : "M12 2.2L23 21.3H1z");
  outline.setAttribute("fill", "currentColor");
  const mark = document.createElementNS(kSvg, "path");
  for (const [name, value] of Object.entries({
         d: shape.path,
         fill: "none",
         stroke: "var(--bg)",
         "stroke-width": 2.2,
         "stroke-linecap": "round",
         "stroke-linejoin": "round"
       }))
    mark.setAttribute(name, value);
  svg.append(outline, mark);
  return svg;
}
const kWords = {
  pass: "pass",
  fail: "fail",
  refused: "refused",
  skipped: "skipped"
};
function badge(kind, word) {
  const known = kSigns[kind] ? kind : "refused";
  return el("span", {class: `badge tone-${kSigns[known].tone}`}, sign(known), word || kWords[kind] || textOf(kind));
}

function copyButton(text) {
  const button = el("button", {type: "button", class: "copy", "aria-label": `Copy: ${text.slice(0, 80)}`}, "Copy");
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    button.textContent = (await copied(text)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return button;
}
// The clipboard is closed to some file:// pages; selecting the text is the next best.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", {class: "unseen", "aria-hidden": "true"});
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
function commandLine(name, text) {
  return el("div", {class: "line"}, name && el("span", {class: "line-name"}, name), el("code", {}, text), copyButton(text));
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== false && textOf(value) !== "");
  return shown.length === 0 ?
      null :
      el("dl", {class: "facts"}, shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}
function callout(tone, title, ...children) { return el("div", {class: `callout tone-${tone}`}, el("b", {}, title), ...children); }
function meter(parts, total, label) {
  const bar = el("span", {class: "meter", role: "img", "aria-label": label});
  for (const [fill, value] of parts) {
    if (value <= 0 || total <= 0) continue;
    const part = el("i", {class: `fill-${fill}`});
    part.style.width = `${Math.min(100, (value / total) * 100)}%`;
    bar.append(part);
  }
  return bar;
}

// Sections register themselves for the navigation.
const sections = [];
function section(id, title, ...children) {
  sections.push({id, title});
  return el("section", {id, "aria-labelledby": `${id}-title`}, el("h2", {id: `${id}-title`}, title), ...children);
}

// A section that is closed until somebody asks for it; null without content. The hint says what is inside.
function folded(id, title, hint, ...children) {
  if (!children.flat().some(Boolean)) return null;
  sections.push({id, title});
  return el(
      "details", {id, class: "fold"}, el("summary", {}, el("h2", {}, title), hint && el("span", {class: "soft"}, hint)),
      el("div", {class: "inside"}, children));
}
