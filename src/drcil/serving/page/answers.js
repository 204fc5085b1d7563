// Images and what they show: a card for each, with bars, remembered images that look alike, and a way to correct it.

import { call, form, json, picture } from "./api.js";
import { $, announce, counted, element, isImage, quoted, sharpen, takesFiles } from "./dom.js";

const AT_A_TIME = 2;
const NEAREST = 5;
const CARDS = 60;

const waiting = [];
let asking = 0;
let number = 0;
let offers = {};
let corrected = () => {};

export function startAnswers(health, afterCorrection) {
  offers = health;
  corrected = afterCorrection;
  takesFiles($("ask-files"), ask);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    ask([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files].filter(isImage);
    if (pasted.length) ask(pasted);
  });
  $("clear").addEventListener("click", () => {
    for (const card of [...$("answers").children]) forget(card);
    $("clear").hidden = true;
    $("ask-files").focus();
  });
}

// The images that are shown, asked again: the model has changed.
export function askAgain() {
  for (const card of $("answers").children) enqueue(card);
}

function ask(files) {
  for (const file of files) {
    const card = element("li", {}, element("h3", {}, "…"));
    card.file = file;
    card.source = URL.createObjectURL(file);
    card.number = ++number;
    $("answers").prepend(card);
    enqueue(card);
  }
  for (const card of [...$("answers").children].slice(CARDS)) forget(card);
  $("clear").hidden = false;
}

function forget(card) {
  URL.revokeObjectURL(card.source);
  card.querySelectorAll(".alike img").forEach((image) => URL.revokeObjectURL(image.src));
  card.remove();
}

function enqueue(card) {
  waiting.push(card);
  next();
}

async function next() {
  if (asking >= AT_A_TIME || !waiting.length) return;
  const card = waiting.shift();
  asking++;
  card.setAttribute("aria-busy", "true");
  try {
    const answer = await json(`/predict?top=3&nearest=${NEAREST}`, { method: "POST", body: form([card.file]) });
    show(card, answer.images[0]);
  } catch (problem) {
    card.replaceChildren(shown(card), element("h3", {}, card.file.name), element("p", { class: "problem" }, problem.message));
    announce(`${card.file.name}: ${problem.message}`);
  } finally {
    card.removeAttribute("aria-busy");
    asking--;
    next();
  }
}

const percent = (share) => `${(100 * share).toFixed(share > 0.999 || share < 0.0005 ? 0 : 1)} %`;

function shown(card) {
  return sharpen(element("img", { class: "shown", alt: `your image ${card.file.name}`, src: card.source }));
}

function show(card, { classes, nearest }) {
  const best = classes[0].class;
  const heading = element("h3", {}, best, element("small", {}, card.file.name));
  const bars = element("ul", { class: "bars", "aria-label": "Most probable classes" }, ...classes.map(bar));
  const alike = element("div", { class: "alike" });
  card.replaceChildren(shown(card), heading, bars, alike);
  if (card.noted) card.append(noted(card));
  else if (offers.collects) card.append(correction(card, best));
  fill(alike, nearest, best);
  announce(`${card.file.name}: ${best}, ${percent(classes[0].probability)}`);
}

function bar({ class: name, probability }) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${100 * probability}%`;
  return element(
    "li",
    {},
    element("span", { class: "name", title: name }, name),
    element("span", { class: "track", "aria-hidden": "true" }, fill),
    element("span", { class: "share" }, percent(probability)),
  );
}

async function fill(row, paths, name) {
  if (!paths.length) return;
  const pictures = await Promise.all(paths.map((path) => picture(path).catch(() => null)));
  const images = pictures.filter(Boolean).map((src, place) =>
    sharpen(element("img", { src, alt: `${name}, remembered image ${place + 1}` })));
  if (images.length) row.append(element("span", {}, "It remembers:"), ...images);
}

const noted = (card) => element("p", { class: "correct success" }, `Noted: it is ${quoted([card.noted])}.`);

function correction(card, best) {
  const id = `correct-${card.number}`;
  const input = element("input", { id, required: true, maxLength: 100, autocomplete: "off" });
  input.setAttribute("list", "class-names");
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const button = element("button", { type: "submit" }, "Correct");
  const fields = element("form", {}, element("label", { htmlFor: id }, "What is it really?"),
    element("div", { class: "row" }, input, button), problem);
  const details = element("details", { class: "correct" }, element("summary", {}, `Not ${quoted([best])}?`), fields);
  details.addEventListener("toggle", () => details.open && input.focus());
  fields.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const { label } = await json("/corrections", { method: "POST", body: form([card.file], input.value) });
      card.noted = label;
      details.replaceWith(noted(card));
      announce(`Noted: it is ${label}`);
      corrected();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      button.disabled = false;
    }
  });
  return details;
}

// What was corrected so far, to be taught, fetched or deleted.
export async function showCorrections() {
  if (!offers.collects) return;
  const { corrections } = await json("/corrections");
  $("collected").hidden = !corrections.length;
  $("corrections").replaceChildren(...corrections.map((one) =>
    element("li", {}, one.label, element("small", {}, `${counted(one.images, "image")}${one.known ? "" : ", new"}`))));
  $("teach-corrections").hidden = !offers.teaches;
}

export function startCorrections() {
  $("download").addEventListener("click", async () => {
    const link = element("a", { href: URL.createObjectURL(await (await call("/corrections.zip")).blob()), download: "corrections.zip" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  $("delete").addEventListener("click", async () => {
    if (!confirm("Delete all corrections?")) return;
    await call("/corrections", { method: "DELETE" });
    announce("The corrections are deleted");
    await showCorrections();
    $("ask-files").focus();
  });
}
