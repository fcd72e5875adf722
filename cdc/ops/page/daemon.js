// The page of one daemon.
import * as events from "./events.js";
import { begin } from "./frame.js";
import { follow, get } from "./link.js";
import * as panels from "./panels.js";
import * as plots from "./plots.js";

let hasHistory = false;
let maySeeRows = false;
let quote = { of: "", text: "" };

async function drawPlots(newest) {
  if (!hasHistory) {
    hasHistory = true;
    plots.restore(await get("page/history"));
    plots.draw();
  } else if (plots.add(newest)) {
    plots.draw();
  }
}

async function learnQuote(frame) {
  const found = maySeeRows ? frame.troubles.find((trouble) => trouble.has_detail) : undefined;
  const of = found?.sentence ?? "";
  if (of === quote.of) return;
  quote = { of, text: "" };
  if (of) quote.text = (await get("page/detail")).detail;
}

begin((frame) => {
  panels.draw(frame, quote.text);
  learnQuote(frame).catch(() => { quote = { of: "", text: "" }; });
  drawPlots(frame.newest).catch(() => { hasHistory = false; });
}, (roles) => {
  maySeeRows = roles.includes("rows");
  return events.draw(roles);
}, follow);
