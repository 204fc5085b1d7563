// Learning a class from images, and the progress of the learning job.

import { call, form, json, watch } from "./api.js";
import { $, acceptFiles, announce, counted, element, isImage, quoted, sharpen } from "./dom.js";

const MAX_PREVIEWS = 40;

let selected = [];
let previousState = null;

export function startLearning(reload) {
  $("teach").hidden = false;
  acceptFiles($("learn-files"), (files) => select([...selected, ...files.filter(isImage)]));
  $("remove-images").addEventListener("click", () => {
    select([]);
    $("learn-files").focus();
  });
  $("learn-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!selected.length) return showOutcome("problem", "Select images of the class first.");
    learn(() => json("/learn", { method: "POST", body: form(selected, $("name").value) }));
  });
  $("learn-corrections").addEventListener("click", () => learn(() => json("/learn/corrections", { method: "POST" })));
  $("stop").addEventListener("click", () =>
    call("/learn", { method: "DELETE" }).catch((error) => showOutcome("problem", error.message)));
  watch("/learn/events", (status) => showStatus(status, reload));
}

function select(files) {
  document.querySelectorAll("#selected-images img").forEach((image) => URL.revokeObjectURL(image.src));
  selected = files;
  const images = files.slice(0, MAX_PREVIEWS).map((file) =>
    element("li", {}, sharpen(element("img", { src: URL.createObjectURL(file), alt: file.name }))));
  const more = files.length - images.length;
  $("selected-images").replaceChildren(...images, ...(more > 0 ? [element("li", { class: "more" }, `and ${more} more`)] : []));
  $("remove-images").hidden = !files.length;
  $("learn").textContent = files.length ? `Learn ${counted(files.length, "image")}` : "Learn";
  if (files.length) announce(`${counted(files.length, "image")} selected`);
}

async function learn(send) {
  showOutcome();
  setBusy(true);
  $("progress-text").textContent = "Uploading images…";
  $("bar").removeAttribute("value");
  $("progress").scrollIntoView({ block: "nearest" });
  try {
    const { skipped = [] } = await send();
    select([]);
    $("name").value = "";
    if (skipped.length) showOutcome("problem", `${counted(skipped.length, "file")} skipped: ${skipped[0].file}: ${skipped[0].error}`);
  } catch (error) {
    setBusy(false);
    showOutcome("problem", error.message);
  }
}

function setBusy(busy) {
  $("progress").hidden = !busy;
  for (const id of ["learn", "learn-corrections"]) $(id).disabled = busy;
}

function showOutcome(kind = "", message = "") {
  $("outcome").hidden = !message;
  $("outcome").className = kind;
  $("outcome").textContent = message;
  if (message) announce(message);
}

const duration = (seconds) => {
  const rounded = Math.max(1, Math.round(seconds));
  return rounded < 60 ? `${rounded} s` : `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
};

// The page shows every learning job, also one that was started elsewhere or before the page was opened.
function showStatus(status, reload) {
  const { state, classes, images, progress, seconds_left: left, error } = status;
  const busy = state === "learning" || state === "loading";
  const previous = previousState;
  previousState = state;
  if (busy) {
    setBusy(true);
    const done = progress === null ? "" : `: ${Math.round(100 * progress)} %`;
    const time = left === null ? "" : `, about ${duration(left)} left`;
    $("progress-text").textContent = state === "loading"
      ? "Loading the new model…"
      : `Learning ${quoted(classes)} from ${counted(images, "image")}${done}${time}`;
    if (progress === null) $("bar").removeAttribute("value");
    else $("bar").value = progress;
    $("stop").hidden = state === "loading";
    if (previous !== state) announce($("progress-text").textContent);
    return;
  }
  setBusy(false);
  if (previous !== "learning" && previous !== "loading") return;
  if (state === "learnt") {
    showOutcome("success", `Learnt: ${quoted(classes)}. Classify an image above to try it.`);
    reload();
  } else {
    showOutcome("problem", state === "stopped" ? "Stopped. The model has not changed." : `Learning failed: ${error}.`);
  }
}
