// Tables that keep their rows between polls, so that focus and selection survive.

import { el, linkTo, setText } from "./dom.js";
import { visible } from "./format.js";

/**
 * A table. Each column is `{title, kind, cell}`; `kind` is a class such as `number`; `cell` returns
 * a text, an element, or `null`. A cell that returns an element also has `key`, a text that changes
 * if the element must be rebuilt.
 */
export class Table {
  #columns;
  #rowKey;
  #rows = new Map();
  #body = el("tbody");
  #empty;

  constructor({ caption, columns, rowKey, empty, test }) {
    this.#columns = columns;
    this.#rowKey = rowKey;
    const heads = columns.map(({ title, kind }) => el("th", { scope: "col", class: kind }, title));
    this.#empty = el("p", { class: "muted empty" }, empty ?? "Nothing to show.");
    this.table = el(
      "table",
      { "data-test": test, hidden: true },
      caption ? el("caption", { class: "hidden" }, caption) : null,
      el("thead", {}, el("tr", {}, heads)),
      this.#body,
    );
    this.element = el("div", { class: "scroll" }, this.table, this.#empty);
  }

  /** Shows the items in their order. */
  show(items) {
    const rows = items.map((item) => this.#update(item));
    const isSame =
      rows.length === this.#body.children.length && rows.every((row, at) => this.#body.children[at] === row);
    if (!isSame) this.#body.replaceChildren(...rows);
    const keys = new Set(items.map(this.#rowKey));
    for (const key of this.#rows.keys()) if (!keys.has(key)) this.#rows.delete(key);
    this.table.hidden = items.length === 0;
    this.#empty.hidden = items.length !== 0;
  }

  /** Returns the row of an item, which exists after `show`. */
  row(item) {
    return this.#rows.get(this.#rowKey(item))?.row;
  }

  #update(item) {
    const key = this.#rowKey(item);
    if (!this.#rows.has(key)) this.#rows.set(key, this.#create());
    const { row, cells } = this.#rows.get(key);
    this.#columns.forEach((column, at) => updateCell(cells[at], column, item));
    return row;
  }

  #create() {
    const cells = this.#columns.map(({ kind, header }) => ({
      element: el(header ? "th" : "td", { class: kind, scope: header ? "row" : null }),
      key: undefined,
    }));
    return {
      row: el(
        "tr",
        {},
        cells.map(({ element }) => element),
      ),
      cells,
    };
  }
}

function updateCell(cell, column, item) {
  if (!column.key) {
    setText(cell.element, column.cell(item) ?? "");
    return;
  }
  const key = column.key(item);
  if (cell.key === key) return;
  cell.key = key;
  cell.element.replaceChildren(...[column.cell(item)].flat().filter((child) => child != null));
}

/** A bar of the share of a limit that is used, and perhaps of a settled part of it. */
export class UsedBar {
  #bar = el("progress", { max: 1, value: 0 });
  #part = el("progress", { max: 1, value: 0, hidden: true, "aria-hidden": "true" });
  #text = el("span", { class: "number" });

  constructor() {
    this.element = el("span", { class: "used" }, el("span", { class: "bars" }, this.#bar, this.#part), this.#text);
  }

  show(share, text, part = null) {
    const level = share == null ? "none" : share >= 1 ? "full" : share >= 0.8 ? "near" : "low";
    this.#bar.hidden = share == null;
    this.#bar.value = Math.min(1, share ?? 0);
    this.#bar.className = level;
    this.#part.hidden = part == null;
    this.#part.value = Math.min(1, part ?? 0);
    this.#part.className = `part ${level}`;
    this.#bar.setAttribute("aria-label", `Share of the limit used: ${text}`);
    setText(this.#text, text);
  }
}

/** Returns `true` if a value of the descriptor is a hash, which names no counter. */
export function isHashed(descriptor) {
  return /(^|=)~[0-9a-f]{16}(,|$)/.test(descriptor);
}

/** Creates a link to the page of a key, or a text if its values are hashed. */
export function keyLink(domain, descriptor) {
  if (!isHashed(descriptor)) return linkTo("key", { domain, descriptor }, descriptor);
  return el("span", { title: "The values are hashed (setting telemetry.descriptor_values)." }, descriptor);
}

/** Creates a link to the row of a table. */
export function rowLink(table, id, text = visible(id)) {
  return linkTo("tables", { table, id }, text);
}

/** Creates a link to the key of a change, or to the row. */
export function targetLink({ scope, domain, descriptor }) {
  const row = scope === "table" && descriptor.match(/^id=(.*),column=([\w-]+)$/s);
  if (!row) return keyLink(domain, descriptor);
  const id = row[1].replace(/\\([,=\\])/g, "$1");
  return rowLink(domain, id, `${domain} ${visible(id)}: ${row[2]}`);
}

/** Creates a small label. `kind` is `good`, `bad`, `warn` or empty. */
export function badge(text, kind = "") {
  return el("span", { class: `badge ${kind}` }, text);
}
