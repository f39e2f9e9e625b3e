// Formats numbers, durations and times. `–` is a missing value.

export const NONE = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const time = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const minute = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const date = new Intl.DateTimeFormat("en-CA", { dateStyle: "short" });

const DURATION = /^(\d+(ms|s|m|h|d))+$/;
const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const UNIT_NAMES = { ms: "millisecond", s: "second", m: "minute", h: "hour", d: "day" };

export function count(number) {
  return number == null ? NONE : whole.format(number);
}

/** Formats a rate per second. */
export function rate(number) {
  if (number == null) return NONE;
  return number >= 100 ? whole.format(number) : short.format(number);
}

export function compactCount(number) {
  return number == null ? NONE : compact.format(number);
}

export function percent(share) {
  if (share == null) return NONE;
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${short.format(share < 0.1 ? Math.round(share * 1000) / 10 : Math.round(share * 100))} %`;
}

export function microseconds(us) {
  if (us == null) return NONE;
  if (us < 1_000) return `${short.format(us)} µs`;
  return us < 1_000_000 ? `${short.format(us / 1_000)} ms` : `${short.format(us / 1_000_000)} s`;
}

/** Formats a duration with its two largest units, such as `2 h 5 min`. */
export function duration(ms) {
  if (ms == null) return NONE;
  const seconds = Math.max(0, Math.round(ms / 1_000));
  if (seconds < 60) return ms > 0 && ms < 1_000 ? `${Math.round(ms)} ms` : `${seconds} s`;
  const parts = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = parts.findIndex(([length]) => length <= seconds);
  const [[large, largeName], [small, smallName]] = parts.slice(first, first + 2);
  const rest = Math.floor((seconds % large) / small);
  const head = `${Math.floor(seconds / large)} ${largeName}`;
  return rest === 0 ? head : `${head} ${rest} ${smallName}`;
}

export function clock(unixMs) {
  return unixMs == null ? NONE : time.format(unixMs);
}

export function hourMinute(unixMs) {
  return minute.format(unixMs);
}

export function dateTime(unixMs) {
  return unixMs == null ? NONE : `${date.format(unixMs)} ${time.format(unixMs)}`;
}

/** Formats a time of today as `14:05:00`, and another one with its date. */
export function shortTime(unixMs) {
  if (unixMs == null) return NONE;
  const isToday = date.format(unixMs) === date.format(Date.now());
  return isToday ? time.format(unixMs) : dateTime(unixMs);
}

/** Formats an end: `14:05:00 (in 9 min 58 s)`. */
export function until(unixMs) {
  return unixMs == null ? NONE : `${shortTime(unixMs)} (in ${duration(unixMs - Date.now())})`;
}

/** Returns the milliseconds of a duration such as `1h30m`, or `null` if the text is none. */
export function parseDuration(text) {
  if (!DURATION.test(text)) return null;
  const parts = [...text.matchAll(/(\d+)(ms|s|m|h|d)/g)];
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNIT_MS[unit], 0);
}

/** Writes out a duration: `1h30m` becomes `1 hour 30 minutes`. */
export function spokenDuration(text) {
  const parts = [...text.matchAll(/(\d+)(ms|s|m|h|d)/g)];
  return parts.map(([, number, unit]) => plural(Number(number), UNIT_NAMES[unit])).join(" ");
}

export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

/** Formats a period in nanoseconds: `minute`, or `10 s` if it is no unit. */
export function period(ns) {
  const unit = Object.keys(UNIT_MS).find((name) => UNIT_MS[name] * 1e6 === ns);
  return unit ? UNIT_NAMES[unit] : duration(ns / 1e6);
}

/** Formats the limit of a rule on requests in flight. */
export function concurrencyText({ limit, mode }) {
  return limit == null ? `adaptive limit in flight, ${mode}` : `${count(limit)} in flight, ${mode}`;
}

/** Formats a limit of `/rules`: `600 per minute, gcra`. */
export function limitText(limit) {
  const per = limit.unit ?? duration(limit.period_s * 1_000);
  const name = limit.name ? `${limit.name}: ` : "";
  return `${name}${count(limit.requests)} per ${per}, ${limit.strategy}`;
}

/**
 * Shows characters that have no width, or that change the direction of the text around them, as
 * `\u{202e}`.
 */
export function visible(text) {
  const escape = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]|(?! )\p{Zs}|^ | $/gu, escape);
}

/** Describes a change of `/actions`. */
export function effectText({ verdict, boost }) {
  if (boost?.amount) return `Set to ${boost.amount}`;
  if (verdict) return `Forced to ${verdict}`;
  return boost?.factor ? `Boosted × ${boost.factor}` : `Boosted to ${count(boost?.limit)} requests`;
}
