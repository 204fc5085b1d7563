// The page: what the server offers decides what it shows.

import { askAgain, showCorrections, startAnswers, startCorrections } from "./answers.js";
import { hasToken, json, useToken, whenTokenIsWanted } from "./api.js";
import { $, counted, element } from "./dom.js";
import { startTeaching } from "./teaching.js";

let started = false;

async function showClasses() {
  const { classes } = await json("/classes");
  $("count").textContent = `(${classes.length})`;
  $("classes").replaceChildren(...classes.map((one) => {
    const facts = [
      ...(one.images === null ? [] : [counted(one.images, "image")]),
      ...(one.accuracy === null ? [] : [`${Math.round(one.accuracy)} % right`]),
    ];
    return element("li", {}, one.class, ...(facts.length ? [element("small", {}, facts.join(", "))] : []));
  }));
  $("class-names").replaceChildren(...classes.map((one) => element("option", { value: one.class })));
}

async function showHealth() {
  const health = await json("/health");
  $("model").textContent = health.model;
  document.title = `${health.model} – drcil`;
  const trust = health.calibrated ? "probabilities are calibrated" : "probabilities are not calibrated";
  $("about").textContent = `Knows ${counted(health.classes, "class").replace(/classs$/, "classes")}; ${trust}.`;
  return health;
}

async function renew() {
  await Promise.all([showHealth(), showClasses(), showCorrections()]);
  askAgain();
}

function askForToken(wrong) {
  $("token-form").hidden = false;
  $("ask").hidden = true;
  $("token-problem").hidden = !wrong;
  $("token-problem").textContent = wrong ? "That is not the token." : "";
  $("token").value = "";
  $("token").focus();
}

async function begin() {
  const health = await showHealth();
  if (health.token && !hasToken()) return askForToken(false);
  try {
    await showClasses();
  } catch (problem) {
    if (problem.status === 401) return;
    throw problem;
  }
  $("token-form").hidden = true;
  $("ask").hidden = $("known").hidden = false;
  if (started) return;
  started = true;
  startAnswers(health, showCorrections);
  if (health.collects) {
    startCorrections();
    await showCorrections();
  }
  if (health.teaches) startTeaching(renew);
}

whenTokenIsWanted(askForToken);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value.trim());
  begin();
});
begin().catch((problem) => {
  $("about").textContent = `Something is wrong: ${problem.message}.`;
});
