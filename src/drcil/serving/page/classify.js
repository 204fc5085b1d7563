// Classified images: a card for each with probabilities, similar exemplars, and a form to correct the class.

import { call, form, json, picture } from "./api.js";
import { $, acceptFiles, announce, counted, element, isImage, quoted, sharpen } from "./dom.js";

const PARALLEL_REQUESTS = 2;
const NEAREST = 5;
const MAX_CARDS = 60;

const queue = [];
let requests = 0;
let cards = 0;
let server = {};
let onCorrection = () => {};

export function startClassifying(health, afterCorrection) {
  server = health;
  onCorrection = afterCorrection;
  acceptFiles($("classify-files"), classify);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    classify([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files].filter(isImage);
    if (pasted.length) classify(pasted);
  });
  $("clear").addEventListener("click", () => {
    for (const card of [...$("results").children]) removeCard(card);
    $("clear").hidden = true;
    $("classify-files").focus();
  });
}

// Classifies the images on the page again after the model has changed.
export function classifyAgain() {
  for (const card of $("results").children) enqueue(card);
}

function classify(files) {
  for (const file of files) {
    const card = element("li", {}, element("h3", {}, "…"));
    card.file = file;
    card.source = URL.createObjectURL(file);
    card.number = ++cards;
    $("results").prepend(card);
    enqueue(card);
  }
  for (const card of [...$("results").children].slice(MAX_CARDS)) removeCard(card);
  $("clear").hidden = false;
}

function removeCard(card) {
  URL.revokeObjectURL(card.source);
  card.querySelectorAll(".exemplars img").forEach((image) => URL.revokeObjectURL(image.src));
  card.remove();
}

function enqueue(card) {
  queue.push(card);
  next();
}

async function next() {
  if (requests >= PARALLEL_REQUESTS || !queue.length) return;
  const card = queue.shift();
  requests++;
  card.setAttribute("aria-busy", "true");
  try {
    const answer = await json(`/predict?top=3&nearest=${NEAREST}`, { method: "POST", body: form([card.file]) });
    show(card, answer.images[0]);
  } catch (error) {
    card.replaceChildren(preview(card), element("h3", {}, card.file.name), element("p", { class: "problem" }, error.message));
    announce(`${card.file.name}: ${error.message}`);
  } finally {
    card.removeAttribute("aria-busy");
    requests--;
    next();
  }
}

const percent = (share) => `${(100 * share).toFixed(share > 0.999 || share < 0.0005 ? 0 : 1)} %`;

function preview(card) {
  return sharpen(element("img", { class: "preview", alt: `uploaded image ${card.file.name}`, src: card.source }));
}

function show(card, { classes, nearest }) {
  const best = classes[0].class;
  const heading = element("h3", {}, best, element("small", {}, card.file.name));
  const bars = element("ul", { class: "bars", "aria-label": "Most probable classes" }, ...classes.map(bar));
  const exemplars = element("div", { class: "exemplars" });
  card.replaceChildren(preview(card), heading, bars, exemplars);
  if (card.correction) card.append(corrected(card));
  else if (server.collects) card.append(correctionForm(card, best));
  fill(exemplars, nearest, best);
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
  const images = pictures.filter(Boolean).map((src, index) =>
    sharpen(element("img", { src, alt: `${name}, exemplar ${index + 1}` })));
  if (images.length) row.append(element("span", {}, "Similar exemplars:"), ...images);
}

const corrected = (card) => element("p", { class: "correct success" }, `Corrected to ${quoted([card.correction])}.`);

function correctionForm(card, best) {
  const id = `correct-${card.number}`;
  const input = element("input", { id, required: true, maxLength: 100, autocomplete: "off" });
  input.setAttribute("list", "class-names");
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const button = element("button", { type: "submit" }, "Save");
  const fields = element("form", {}, element("label", { htmlFor: id }, "Correct class"),
    element("div", { class: "row" }, input, button), problem);
  const details = element("details", { class: "correct" }, element("summary", {}, `Not ${quoted([best])}?`), fields);
  details.addEventListener("toggle", () => details.open && input.focus());
  fields.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const { label } = await json("/corrections", { method: "POST", body: form([card.file], input.value) });
      card.correction = label;
      details.replaceWith(corrected(card));
      announce(`Corrected to ${label}`);
      onCorrection();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      button.disabled = false;
    }
  });
  return details;
}

// The collected corrections: to learn, download or delete.
export async function showCorrections() {
  if (!server.collects) return;
  const { corrections } = await json("/corrections");
  $("collected").hidden = !corrections.length;
  $("corrections").replaceChildren(...corrections.map(({ label, images, known }) =>
    element("li", {}, label, element("small", {}, `${counted(images, "image")}${known ? "" : ", new class"}`))));
  $("learn-corrections").hidden = !server.teaches;
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
    announce("Corrections deleted");
    await showCorrections();
    $("classify-files").focus();
  });
}
