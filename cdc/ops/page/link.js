// The connection to the daemon: requests with the token, and the stream of what the page shows.

const KEY = `tarantool-cdc ${location.pathname}`;
const POLL_SECONDS = 30;
const RETRY_SECONDS = 3;

/** The token, which is kept until the tab is closed. */
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** An answer other than success. */
export class Refusal extends Error {
  constructor(code, message, retrySeconds) {
    super(message);
    this.code = code;
    this.retrySeconds = retrySeconds;
  }
}

async function request(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", ...options, headers });
  if (answer.ok) return answer;
  const text = await answer.text();
  let sentence = text.trim();
  try { sentence = JSON.parse(text).error ?? sentence; } catch { /* it isn't JSON: the text is the sentence */ }
  throw new Refusal(answer.status, sentence, Number(answer.headers.get("Retry-After")) || 0);
}

/** Return the JSON at a path. */
export async function get(path) {
  return (await request(path)).json();
}

/** Send an order, and return the answer. */
export async function order(path, body) {
  return (await request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

let stopping = new AbortController();

/** Begin again at once, for instance with another token. */
export function restart() {
  stopping.abort();
}

/** Call `show` with each frame, and `fail` with what prevents them. A page that nobody sees asks for nothing. */
export async function follow(show, fail) {
  for (;;) {
    stopping = new AbortController();
    const signal = stopping.signal;
    let seconds = RETRY_SECONDS;
    try {
      if (document.hidden) {
        await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
        continue;
      }
      const hide = () => document.hidden && stopping.abort();
      document.addEventListener("visibilitychange", hide);
      try {
        for await (const frame of events(await request("page/stream", { signal }))) show(frame);
      } finally {
        document.removeEventListener("visibilitychange", hide);
      }
    } catch (error) {
      if (signal.aborted) continue;
      if (error instanceof Refusal && error.code === 503) {
        seconds = error.retrySeconds || POLL_SECONDS;
        try { show(await get("page/state")); } catch (other) { fail(other); }
      } else {
        fail(error);
        if (error instanceof Refusal) seconds = POLL_SECONDS;
      }
    }
    // Many pages lose a daemon at the same moment. They come back one after the other.
    const waiting = pause(seconds * (0.7 + 0.6 * Math.random()));
    await Promise.race([waiting, new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }))]);
  }
}
