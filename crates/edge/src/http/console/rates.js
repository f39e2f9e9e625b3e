// Computes rates and quantiles from totals that grow.

// Three polls of two seconds, and some delay.
const WINDOW_MS = 7_000;

// The time for which the last rate is shown while the totals of a new origin have no rate yet.
const KEEP_MS = 10_000;

const MAX_ORIGINS = 4;

/** Computes rates per second from the totals of the last polls. */
export class RateMeter {
  #origins = new Map();
  #samples = new Map();
  #last = new Map();

  /**
   * Sets the origin of the next totals, such as the replicas that report. Totals of different
   * origins are never compared: those of a replica that joins are no hits of this second.
   */
  setOrigin(...parts) {
    const origin = parts.join(" ");
    this.#samples = this.#origins.get(origin) ?? new Map();
    this.#origins.delete(origin);
    this.#origins.set(origin, this.#samples);
    if (this.#origins.size > MAX_ORIGINS) this.#origins.delete(this.#origins.keys().next().value);
  }

  /** Adds a total. Returns the rate, or `null` before the second poll. */
  add(name, total, now = performance.now()) {
    const rate = this.#rate(name, total, now);
    if (rate != null) this.#last.set(name, { rate, now });
    const last = this.#last.get(name);
    return last && now - last.now < KEEP_MS ? last.rate : null;
  }

  #rate(name, total, now) {
    const samples = this.#samples.get(name) ?? [];
    // A total that falls belongs to a restarted process.
    if (samples.length > 0 && total < samples.at(-1).total) samples.length = 0;
    samples.push({ total, now });
    while (samples.length > 2 && now - samples[0].now > WINDOW_MS) samples.shift();
    this.#samples.set(name, samples);
    const [first, last] = [samples[0], samples.at(-1)];
    return last.now > first.now ? ((last.total - first.total) * 1_000) / (last.now - first.now) : null;
  }
}

/** Computes quantiles of the last half minute from cumulative histograms. */
export class LatencyMeter {
  #samples = [];

  /** Adds a histogram. Returns `{p50, p99}` in microseconds; `null` without checks. */
  add(histogram) {
    const restarted = this.#samples.at(-1)?.count > histogram.count;
    if (restarted) this.#samples.length = 0;
    this.#samples.push(histogram);
    if (this.#samples.length > 16) this.#samples.shift();
    const old = this.#samples.length > 1 ? this.#samples[0] : { count: 0, buckets: [] };
    const buckets = difference(histogram.buckets, old.buckets);
    return { p50: quantile(buckets, 0.5), p99: quantile(buckets, 0.99) };
  }
}

/** Continues a history with the rates of this page's polls, because its current step is missing. */
export class LiveTail {
  #points = [];

  /** Adds the rates of now. Returns the columns of the history and the polls after it. */
  append([times, ...columns], step_s, rates, now = Date.now() / 1_000) {
    if (!rates.includes(null)) this.#points.push([now, ...rates]);
    const end = times.length === 0 ? 0 : times.at(-1) + step_s;
    // A replica without a history fills one within a minute.
    this.#points = this.#points.filter(([at]) => at > end).slice(-60);
    return [times, ...columns].map((values, at) => [...values, ...this.#points.map((point) => point[at])]);
  }
}

function difference(buckets, old) {
  return buckets.map(({ le_us, count }, at) => ({ le_us, count: count - (old[at]?.count ?? 0) }));
}

/** Interpolates inside the bucket that has the quantile. The last bucket has no upper bound. */
function quantile(buckets, share) {
  const total = buckets.at(-1)?.count ?? 0;
  if (total <= 0) return null;
  const wanted = total * share;
  const at = buckets.findIndex(({ count }) => count >= wanted);
  const below = at > 0 ? buckets[at - 1] : { le_us: 0, count: 0 };
  const upper = buckets[at].le_us ?? below.le_us;
  const inside = (wanted - below.count) / Math.max(1, buckets[at].count - below.count);
  return below.le_us + (upper - below.le_us) * inside;
}

/** Converts a history of counts per step to rates per second, with Unix times in seconds. */
export function historyRates(history, names) {
  const { step_s = 1, start_unix_s = 0 } = history ?? {};
  const length = Math.max(0, ...names.map((name) => history?.[name]?.length ?? 0));
  const times = Array.from({ length }, (_, at) => start_unix_s + at * step_s);
  const perSecond = (number) => (number == null ? null : number / step_s);
  return [times, ...names.map((name) => times.map((_, at) => perSecond(history?.[name]?.[at])))];
}

/** Returns the values of a history unchanged, with Unix times in seconds. */
export function historyValues(history, names) {
  const { step_s = 1, start_unix_s = 0 } = history ?? {};
  const length = Math.max(0, ...names.map((name) => history?.[name]?.length ?? 0));
  const times = Array.from({ length }, (_, at) => start_unix_s + at * step_s);
  return [times, ...names.map((name) => times.map((_, at) => history?.[name]?.[at] ?? null))];
}
