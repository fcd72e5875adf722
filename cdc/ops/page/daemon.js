// The page of one daemon.
import * as events from "./events.js";
import { begin } from "./frame.js";
import { follow, get } from "./link.js";
import * as panels from "./panels.js";
import * as plots from "./plots.js";

let hasHistory = false;

async function drawPlots(newest) {
  if (!hasHistory) {
    hasHistory = true;
    plots.restore(await get("page/history"));
    plots.draw();
  } else if (plots.add(newest)) {
    plots.draw();
  }
}

begin((frame) => {
  panels.draw(frame);
  drawPlots(frame.newest).catch(() => { hasHistory = false; });
}, events.draw, follow);
