// What both pages have: the token's form, and the line that says that there is no news.
import { duration, fill } from "./draw.js";
import { Refusal, get, restart, token } from "./link.js";

const SILENT_SECONDS = 20;
let shownAt = 0;

function complain(text) {
  fill("silence", text);
  document.getElementById("silence").hidden = false;
}

/** Say that what is shown is old: nothing of it may look as if it was true now. */
function age(text) {
  complain(text);
  document.body.classList.add("old");
  fill("state", "no answer");
  document.getElementById("state").className = "badge stands";
  if (!document.title.startsWith("! ")) document.title = `! ${document.title}`;
}

/** Begin a page: `draw` shows a frame, `welcome` is told the token's roles, and `follow` calls back with frames and errors. */
export function begin(draw, welcome, follow) {
  const login = document.getElementById("login");
  const fail = (error) => {
    const isRefused = error instanceof Refusal;
    if (isRefused && (error.code === 401 || error.code === 403)) login.hidden = false;
    if (isRefused) complain(error.message);
    else age("The daemon doesn't answer: it has ended, or this page can't reach it. Its log has its last words. What is shown below is old.");
    if (!isRefused && !(error instanceof TypeError)) console.error(error);
  };
  const show = (frame) => {
    shownAt = performance.now();
    document.getElementById("silence").hidden = true;
    document.body.classList.remove("old");
    draw(frame);
  };
  const greet = async () => {
    const visitor = await get("page/visitor");
    const own = visitor.is_known ? `${visitor.name}: ${visitor.roles.join(", ")}` : "this token isn't known";
    fill("login-says", token.get() ? own : "none: only the status is shown");
    fill("enter", visitor.is_known && token.get() ? visitor.name : "Token");
    await welcome(visitor.roles);
  };
  const use = (value) => {
    token.set(value);
    greet().catch(fail);
    restart();
  };
  document.getElementById("enter").addEventListener("click", () => { login.hidden = !login.hidden; });
  document.getElementById("forget").addEventListener("click", () => use(""));
  login.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = document.getElementById("token");
    use(field.value.trim());
    field.value = "";
  });
  setInterval(() => {
    const seconds = (performance.now() - shownAt) / 1000;
    const isLive = seconds < 5 && !document.body.classList.contains("old");
    fill("age", shownAt ? (isLive ? "live" : `${duration(seconds)} old`) : "");
    if (shownAt && seconds > SILENT_SECONDS && document.getElementById("silence").hidden && !document.hidden) {
      age(`No news for ${duration(seconds)}. What is shown below is old.`);
    }
  }, 1000);
  greet().catch(fail);
  follow(show, fail);
}
