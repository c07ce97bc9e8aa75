// SPDX-License-Identifier: Apache-2.0
// Puts the page together: reads the data, picks the kind of report, theme and navigation.
const report = recordOf(JSON.parse(document.getElementById("data").textContent));
const kinds = [
  ["quire_verify", 1, "Conformance", verifyPage, () => textOf(report.target)],
  ["quire_diagnose", 2, "Diagnosis", diagnosePage, () => textOf(report.file)],
  ["quire_bench", 1, "Speed", benchPage, () => textOf(recordOf(report.machine).cpu)],
];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme"), other = theme === "dark" ? "light" : "dark";
  button.textContent = other === "dark" ? "Dark" : "Light";
  button.setAttribute("aria-label", `Switch to ${other} colours`);
  gridMaps.forEach((paint) => paint());
}
function startTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const preferred = () => chosen || (dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(preferred()));
  document.getElementById("theme").addEventListener(
      "click", () => setTheme((chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark")));
  window.addEventListener("beforeprint", () => setTheme("light"));
  window.addEventListener("afterprint", () => setTheme(preferred()));
  setTheme(preferred());
}

// A link to a folded section opens it, and paper shows all of them.
function startFolds() {
  const folds = [...document.querySelectorAll("details.fold")];
  const openTarget = () => {
    const target = folds.find((fold) => `#${fold.id}` === location.hash);
    if (target) target.open = true;
  };
  const openBefore = new Map();
  document.getElementById("nav").addEventListener("click", (event) => {
    const link = event.target.closest("a"), target = link && folds.find((fold) => `#${fold.id}` === link.hash);
    if (target) target.open = true;
  });
  window.addEventListener("hashchange", openTarget);
  window.addEventListener("beforeprint", () => folds.forEach((fold) => (openBefore.set(fold, fold.open), (fold.open = true))));
  window.addEventListener("afterprint", () => folds.forEach((fold) => (fold.open = openBefore.get(fold) === true)));
  openTarget();
}

function start() {
  startTheme();
  const kind = kinds.find(([key, version]) => report[key] === version);
  if (!kind) return;
  const [, , title, page, subject] = kind;
  document.title = ["Quire", title.toLowerCase(), subject(), textOf(report.verdict)].filter(Boolean).join(" \u00b7 ");
  const main = document.getElementById("content");
  add(main, page(report));
  document.querySelector(".brand").textContent = `Quire \u00b7 ${title}`;
  add(document.getElementById("nav"), sections.map(({id, title: name}) => el("a", {href: `#${id}`}, name)));
  startFolds();
  add(document.getElementById("foot"), "Made by Quire ", textOf(report.version),
      textOf(report.date) && `, ${textOf(report.date)}`, ". Self-contained: this file loads nothing and sends nothing.");
}
start();
