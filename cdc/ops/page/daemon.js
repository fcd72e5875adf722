// The page of one daemon.
import { duration, fill } from "./draw.js";
import * as events from "./events.js";
import { Refusal, follow, get, restart, token } from "./link.js";
import * as panels from "./panels.js";
import * as plots from "./plots.js";

const SILENT_SECONDS = 10;
let shownAt = 0;
let hasHistory = false;

async function show(frame) {
  shownAt = performance.now();
  document.getElementById("silence").hidden = true;
  panels.draw(frame);
  if (!hasHistory) {
    hasHistory = true;
    plots.restore(await get("page/history"));
    plots.draw();
  } else if (plots.add(frame.newest)) {
    plots.draw();
  }
}

function fail(error) {
  const isRefused = error instanceof Refusal;
  if (isRefused && (error.code === 401 || error.code === 403)) document.getElementById("login").hidden = false;
  const what = isRefused ? error.message : "The daemon doesn't answer: it has ended, or this page can't reach it. What is shown below is old.";
  fill("silence", what);
  document.getElementById("silence").hidden = false;
}

async function greet() {
  const visitor = await get("page/visitor");
  fill("login-says", token.get() ? (visitor.is_known ? `${visitor.name}: ${visitor.roles.join(", ")}` : "this token isn't known") : "none: only the status is shown");
  fill("enter", visitor.is_known && token.get() ? visitor.name : "Token");
  await events.draw(visitor.roles);
}

const login = document.getElementById("login");
document.getElementById("enter").addEventListener("click", () => { login.hidden = !login.hidden; });
login.addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(document.getElementById("token").value.trim());
  document.getElementById("token").value = "";
  greet().catch(fail);
  restart();
});
document.getElementById("forget").addEventListener("click", () => {
  token.set("");
  greet().catch(fail);
  restart();
});
setInterval(() => {
  const seconds = (performance.now() - shownAt) / 1000;
  fill("age", shownAt ? (seconds < 3 ? "live" : `${duration(seconds)} old`) : "");
  if (shownAt && seconds > SILENT_SECONDS && document.getElementById("silence").hidden && !document.hidden) {
    fill("silence", `No news for ${duration(seconds)}.`);
    document.getElementById("silence").hidden = false;
  }
}, 1000);
greet().catch(fail);
follow((frame) => show(frame).catch(fail), fail);
