// Start of the page: shows what the server offers.

import { classifyAgain, showCorrections, startClassifying, startCorrections } from "./classify.js";
import { hasToken, json, useToken, onMissingToken } from "./api.js";
import { $, counted, element } from "./dom.js";
import { startLearning } from "./learning.js";

let started = false;

async function showClasses() {
  const { classes } = await json("/classes");
  $("count").textContent = `(${classes.length})`;
  $("classes").replaceChildren(...classes.map((info) => {
    const facts = [
      ...(info.images === null ? [] : [counted(info.images, "image")]),
      ...(info.accuracy === null ? [] : [`accuracy ${Math.round(info.accuracy)} %`]),
    ];
    return element("li", {}, info.class, ...(facts.length ? [element("small", {}, facts.join(", "))] : []));
  }));
  $("class-names").replaceChildren(...classes.map((info) => element("option", { value: info.class })));
}

async function showHealth() {
  const health = await json("/health");
  $("model").textContent = health.model;
  document.title = `${health.model} – drcil`;
  const calibration = health.calibrated ? "calibrated" : "not calibrated";
  $("about").textContent = `${counted(health.classes, "class", "classes")}, probabilities ${calibration}`;
  return health;
}

async function reload() {
  await Promise.all([showHealth(), showClasses(), showCorrections()]);
  classifyAgain();
}

function askForToken(wrong) {
  $("token-form").hidden = false;
  $("classify").hidden = true;
  $("token-error").hidden = !wrong;
  $("token-error").textContent = wrong ? "This token is not valid." : "";
  $("token").value = "";
  $("token").focus();
}

async function start() {
  const health = await showHealth();
  if (health.token && !hasToken()) return askForToken(false);
  try {
    await showClasses();
  } catch (error) {
    if (error.status === 401) return;
    throw error;
  }
  $("token-form").hidden = true;
  $("classify").hidden = $("known-classes").hidden = false;
  if (started) return;
  started = true;
  startClassifying(health, showCorrections);
  if (health.collects) {
    startCorrections();
    await showCorrections();
  }
  if (health.teaches) startLearning(reload);
}

onMissingToken(askForToken);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value.trim());
  start();
});
start().catch((error) => {
  $("about").textContent = `Error: ${error.message}.`;
});
