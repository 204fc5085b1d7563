// Sorts tables by their columns, and shows the runs behind a cell in a dialog.
"use strict";

const DETAILS = JSON.parse(document.getElementById("details").textContent);
const DIALOG = document.querySelector("dialog");
// Names of methods by the alphabet, numbers within them by size.
const WORDS = new Intl.Collator("en", { numeric: true });

function element(tag, text, style) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (style) node.className = style;
  return node;
}

function sortBy(table, column) {
  const heading = table.tHead.rows[table.tHead.rows.length - 1].cells[column];
  // Numbers: the largest first, and names from A to Z; a second time the other way round.
  const before = heading.getAttribute("aria-sort");
  const up = before ? before === "descending" : column === 0;
  const number = (row) => parseFloat(row.cells[column].dataset.order ?? "NaN");
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    if (column === 0) return WORDS.compare(a.cells[0].textContent.trim(), b.cells[0].textContent.trim()) * (up ? 1 : -1);
    const [first, second] = [number(a), number(b)];
    if (isNaN(first) || isNaN(second)) return isNaN(first) - isNaN(second);
    return (first - second) * (up ? 1 : -1);
  });
  for (const cell of heading.parentNode.cells) cell.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
}

function factsOf(run) {
  const list = element("dl");
  for (const [name, value] of run.facts) {
    const shown = element("dd");
    shown.append(name === "command" ? element("code", value) : value);
    list.append(element("dt", name), shown);
  }
  return list;
}

function figuresOf(cells) {
  const frame = element("div", undefined, "scroll");
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const name of cells[0]) head.append(element("th", name));
  const body = table.createTBody();
  for (const cell of cells.slice(1)) {
    const row = body.insertRow();
    for (const value of cell) row.append(element("td", value));
  }
  frame.append(table);
  return frame;
}

function chartsOf(run) {
  const maps = element("div", undefined, "maps");
  for (const [caption, chart] of run.charts) {
    const figure = element("figure");
    const frame = element("div", undefined, "chart");
    frame.dataset.label = caption;
    show(frame, chart);
    figure.append(element("figcaption", caption), frame);
    maps.append(figure);
  }
  return maps;
}

function runDetails(run, open) {
  const details = element("details", undefined, "run");
  details.append(element("summary", run.state ? `${run.name}: ${run.state}` : run.name));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    if (run.figures) details.append(figuresOf(run.figures));
    details.append(factsOf(run));
    if (run.charts) details.append(chartsOf(run));
  });
  details.open = open;
  return details;
}

function openRuns(number) {
  const { title, text, runs } = DETAILS.openers[number];
  document.getElementById("runs-title").textContent = title;
  document.getElementById("runs-text").textContent = text;
  DIALOG.showModal();
  DIALOG.scrollTop = 0;
  document.getElementById("runs").replaceChildren(...runs.map((run, at) => runDetails(DETAILS.runs[run], at === 0)));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.matches(".open")) openRuns(Number(button.dataset.open));
  else if (button?.matches(".sort")) sortBy(button.closest("table"), button.closest("th").cellIndex);
  // Beside the dialog is outside of it.
  else if (event.target === DIALOG) DIALOG.close();
});
// The whole cell opens, not only the words in it.
for (const cell of document.querySelectorAll("td:has(.open)")) {
  cell.addEventListener("click", (event) => event.target === cell && cell.querySelector(".open").click());
}
