// Polls the sources of the open page.

import { get } from "./api.js";

const INTERVAL_MS = 2_000;

// Rates need two polls, so the second one comes earlier.
const FIRST_INTERVAL_MS = 1_000;

/**
 * Polls the sources `{name, path, params, every}` while the page is visible. `every` is in
 * milliseconds; every round by default. A round starts after the last one ended.
 */
export class Poller {
  #sources;
  #onRound;
  #timer = null;
  #abort = null;
  #interval = FIRST_INTERVAL_MS;

  /** `onRound` gets the replies by name and the first error of each round. */
  constructor(sources, onRound) {
    this.#sources = sources.map((source) => ({ ...source, due: 0 }));
    this.#onRound = onRound;
  }

  /** Starts, or starts a round at once. */
  start() {
    this.stop();
    for (const source of this.#sources) {
      if (source.every !== Infinity) source.due = 0;
    }
    this.#round();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #round() {
    const abort = new AbortController();
    this.#abort = abort;
    const now = performance.now();
    const due = this.#sources.filter((source) => source.due <= now);
    const replies = await Promise.allSettled(due.map(({ path, params }) => get(path, params, abort.signal)));
    if (abort.signal.aborted) return;
    this.#timer = setTimeout(() => this.#round(), this.#interval);
    this.#interval = INTERVAL_MS;
    this.#onRound(...this.#sort(due, replies, now));
  }

  #sort(due, replies, now) {
    const data = {};
    let error = null;
    replies.forEach((reply, at) => {
      if (reply.status === "fulfilled") {
        data[due[at].name] = reply.value;
        // Sources without an interval are due in every round.
        due[at].due = now + (due[at].every ?? 0);
      } else {
        error ??= reply.reason;
      }
    });
    return [data, error];
  }
}
