// Draws time series with uPlot. Colors come from the style sheet.

import { el, setText } from "./dom.js";
import { NONE, clock, hourMinute } from "./format.js";

const HEIGHT = 190;

/** A chart with a title and a legend, which shows the last values or those below the pointer. */
export class Chart {
  #series;
  #format;
  #span;
  #values;
  #plot = null;
  #box = el("div", { class: "plot" });
  #data = null;
  #redraw = () => this.#plot?.redraw(false);
  #observer = new ResizeObserver(() => this.#resize());

  /**
   * `series` is a list of `{label, color, dash, fill}`; `color` is a variable of the style sheet.
   * `format` formats a value. `span_s` is the shortest range of time, in seconds.
   */
  constructor({ title, series, format, span_s = 600, test }) {
    this.#series = series;
    this.#format = format;
    this.#span = span_s;
    this.#values = series.map(() => el("b", {}, NONE));
    const entries = series.map(({ label, color, dash }, at) =>
      el(
        "li",
        {},
        el("span", { class: `swatch ${color}${dash ? " dashed" : ""}` }),
        `${label} `,
        this.#values[at],
      ),
    );
    const head = el("figcaption", {}, el("h2", {}, title), el("ul", { class: "legend" }, entries));
    this.element = el("figure", { class: "card chart", "data-test": test }, head, this.#box);
    this.#observer.observe(this.#box);
    document.addEventListener("theme", this.#redraw);
  }

  /** Sets the data: Unix times in seconds, and a list of values for each series. */
  set(data) {
    this.#data = data;
    if (this.#plot) this.#plot.setData(data);
    else this.#resize();
    this.#show(null);
  }

  close() {
    this.#observer.disconnect();
    document.removeEventListener("theme", this.#redraw);
    this.#plot?.destroy();
  }

  #resize() {
    const width = this.#box.clientWidth;
    if (!this.#data || width === 0) return;
    if (this.#plot) this.#plot.setSize({ width, height: HEIGHT });
    else this.#plot = new uPlot(this.#options(width), this.#data, this.#box);
  }

  /** Shows the values at the index, or the last ones. */
  #show(index) {
    const last = this.#data[0].length - 1;
    this.#series.forEach((_, at) => {
      const value = this.#data[at + 1][index ?? last];
      setText(this.#values[at], value == null ? NONE : this.#format(value));
    });
  }

  #timeRange() {
    const last = this.#data[0].at(-1) ?? Date.now() / 1_000;
    return [Math.min(this.#data[0].at(0) ?? last, last - this.#span), last];
  }

  #options(width) {
    const times = this.#span < 600 ? clock : hourMinute;
    return {
      width,
      height: HEIGHT,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false },
      hooks: { setCursor: [(plot) => this.#show(plot.cursor.idx)] },
      scales: {
        x: { range: () => this.#timeRange() },
        y: { range: (_, min, max) => [0, max > 0 ? max * 1.08 : 1] },
      },
      axes: [
        axis({ size: 24, space: 80, values: (_, splits) => splits.map((at) => times(at * 1_000)) }),
        axis({ size: 58, space: 36, values: (_, splits) => splits.map((at) => this.#format(at)) }),
      ],
      series: [{}, ...this.#series.map(line)],
    };
  }
}

function axis(options) {
  return {
    font: "11px system-ui, sans-serif",
    stroke: () => variable("--muted"),
    grid: { stroke: () => variable("--line"), width: 1 },
    ticks: { show: false },
    ...options,
  };
}

function line({ label, color, dash, fill }) {
  return {
    label,
    stroke: () => variable(`--${color}`),
    fill: fill ? () => variable(`--${color}-fill`) : undefined,
    width: 1.5,
    dash: dash ? [5, 4] : undefined,
    // Two points make no visible line.
    points: { show: (plot) => plot.data[0].length < 3, size: 4 },
  };
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
