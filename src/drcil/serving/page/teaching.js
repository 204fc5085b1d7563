// Teaching: a name, images of it, and how the learning goes.

import { call, form, json, watch } from "./api.js";
import { $, announce, counted, element, isImage, quoted, sharpen, takesFiles } from "./dom.js";

const SHOWN = 40;

let chosen = [];
let before = null;

export function startTeaching(renewed) {
  $("teach").hidden = false;
  takesFiles($("lesson-files"), (files) => choose([...chosen, ...files.filter(isImage)]));
  $("unchoose").addEventListener("click", () => {
    choose([]);
    $("lesson-files").focus();
  });
  $("lesson").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!chosen.length) return tell("problem", "Choose images of the class first.");
    begin(() => json("/learn", { method: "POST", body: form(chosen, $("name").value) }));
  });
  $("teach-corrections").addEventListener("click", () => begin(() => json("/learn/corrections", { method: "POST" })));
  $("stop").addEventListener("click", () => call("/learn", { method: "DELETE" }));
  watch("/learn/events", (status) => show(status, renewed));
}

function choose(files) {
  document.querySelectorAll("#chosen img").forEach((image) => URL.revokeObjectURL(image.src));
  chosen = files;
  const images = files.slice(0, SHOWN).map((file) =>
    element("li", {}, sharpen(element("img", { src: URL.createObjectURL(file), alt: file.name }))));
  const more = files.length - images.length;
  $("chosen").replaceChildren(...images, ...(more > 0 ? [element("li", { class: "more" }, `and ${more} more`)] : []));
  $("unchoose").hidden = !files.length;
  $("begin").textContent = files.length ? `Teach with ${counted(files.length, "image")}` : "Teach";
  if (files.length) announce(`${counted(files.length, "image")} chosen`);
}

async function begin(ask) {
  tell();
  working(true);
  $("progress-text").textContent = "Sending the images …";
  $("bar").removeAttribute("value");
  $("progress").scrollIntoView({ block: "nearest" });
  try {
    const { skipped = [] } = await ask();
    choose([]);
    $("name").value = "";
    if (skipped.length) tell("problem", `${counted(skipped.length, "file")} left out: ${skipped[0].file}: ${skipped[0].error}`);
  } catch (problem) {
    working(false);
    tell("problem", problem.message);
  }
}

function working(busy) {
  $("progress").hidden = !busy;
  for (const id of ["begin", "teach-corrections"]) $(id).disabled = busy;
}

function tell(kind = "", sentence = "") {
  $("outcome").hidden = !sentence;
  $("outcome").className = kind;
  $("outcome").textContent = sentence;
  if (sentence) announce(sentence);
}

const duration = (seconds) => {
  const whole = Math.max(1, Math.round(seconds));
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
};

// The page hears of every lesson, also of those that were begun elsewhere or before it was opened.
function show(status, renewed) {
  const { state, classes, images, share, left, why } = status;
  const busy = state === "learning" || state === "loading";
  const was = before;
  before = state;
  if (busy) {
    working(true);
    const done = share === null ? "" : `: ${Math.round(100 * share)} %`;
    const time = left === null ? "" : `, about ${duration(left)} left`;
    $("progress-text").textContent = state === "loading"
      ? "Learnt; the new model is being loaded …"
      : `Learning ${quoted(classes)} from ${counted(images, "image")}${done}${time}`;
    if (share === null) $("bar").removeAttribute("value");
    else $("bar").value = share;
    $("stop").hidden = state === "loading";
    if (was !== state) announce($("progress-text").textContent);
    return;
  }
  working(false);
  if (was !== "learning" && was !== "loading") return;
  if (state === "learnt") {
    tell("success", `Learnt: ${quoted(classes)}. Drop an image above to try it.`);
    renewed();
  } else {
    tell("problem", state === "stopped" ? "Stopped; the model is as it was." : `Not learnt: ${why}.`);
  }
}
