// Puts the page together: reads the data, picks the kind of report, theme and navigation.
const report = recordOf(JSON.parse(document.getElementById("data").textContent));
const kinds = [
  ["quire_verify", "Conformance", verifyPage, () => textOf(report.target)],
  ["quire_diagnose", "Diagnosis", diagnosePage, () => textOf(report.file)],
  ["quire_bench", "Speed", benchPage, () => textOf(recordOf(report.machine).cpu)],
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

function start() {
  startTheme();
  const kind = kinds.find(([key]) => report[key] === 1);
  if (!kind) return;
  const [, title, page, subject] = kind;
  document.title = ["Quire", title.toLowerCase(), subject(), textOf(report.verdict)].filter(Boolean).join(" \u00b7 ");
  const main = document.getElementById("content");
  add(main, page(report));
  document.querySelector(".brand").textContent = `Quire \u00b7 ${title}`;
  add(document.getElementById("nav"), sections.map(({id, title: name}) => el("a", {href: `#${id}`}, name)));
  add(document.getElementById("foot"), "Made by Quire ", textOf(report.version),
      textOf(report.date) && `, ${textOf(report.date)}`, ". Self-contained: this file loads nothing and sends nothing.");
}
start();
