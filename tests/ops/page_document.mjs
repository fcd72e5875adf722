// Runs the page's panels on frames in a document that keeps texts only; prints what each frame shows, as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

class Node {
  constructor(tag) { this.tag = tag; this.children = []; this.attributes = {}; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener() {}
  get text() { return this.children.map((child) => (child instanceof Node ? child.text : String(child))).join(" "); }
}
const places = {};
globalThis.Node = Node;
globalThis.document = {
  createElement: (tag) => new Node(tag),
  createElementNS: (_, tag) => new Node(tag),
  getElementById: (id) => (places[id] ??= new Node(id)),
};
const folder = process.argv[2];
const load = (name) => import(pathToFileURL(`${folder}/${name}`).href);
const panels = await load("panels.js");
const plots = await load("plots.js");
const shown = {};
for (const [name, frame] of Object.entries(JSON.parse(readFileSync(`${folder}/frames.json`, "utf8")))) {
  panels.draw(frame);
  plots.add({ at: Date.now() / 1000, rows_per_second: 5, lag_seconds: 0.5 });
  plots.draw();
  shown[name] = Object.values(places).map((place) => place.text).join("\n");
}
console.log(JSON.stringify(shown));
