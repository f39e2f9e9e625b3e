// The page Rules: the rules of all domains as a tree, with their live rates.

import { el, linkTo, setText } from "../dom.js";
import { concurrencyText, limitText, percent, plural, rate, until } from "../format.js";
import { RateMeter } from "../rates.js";
import { UsedBar, badge } from "../tables.js";

// The titles of the columns, with their classes.
const COLUMNS = [
  ["Rule"],
  ["Limit", "minor"],
  ["Checks/s", "number"],
  ["Denied/s", "number"],
  ["Shadow/s", "number minor"],
  ["Used"],
  ["State"],
];

export default function rules() {
  const filter = el("input", {
    type: "search",
    id: "rules-filter",
    placeholder: "path, name or file",
    "data-test": "rules-filter",
  });
  const note = el("p", { class: "muted" });
  const heads = COLUMNS.map(([title, kind]) => el("th", { scope: "col", class: kind }, title));
  const table = el(
    "table",
    { "data-test": "rules" },
    el("caption", { class: "hidden" }, "Rules by domain"),
    el("thead", {}, el("tr", {}, heads)),
  );
  const tree = new RuleTree(table);
  filter.addEventListener("input", () => tree.filter(filter.value));
  return {
    title: "Rules",
    aside: el("div", { class: "tools" }, el("label", { for: "rules-filter" }, "Filter"), filter),
    element: el("div", {}, el("section", { class: "card" }, el("div", { class: "scroll" }, table), note)),
    sources: [{ name: "rules", path: "rules" }],
    update({ rules: data }) {
      const partial = data.replicas_with_omitted_rules;
      // Totals without a replica's omitted rules are no totals of the same origin.
      tree.show(data.rules, data.scope, [...data.replicas, partial]);
      tree.filter(filter.value);
      const omitted = data.omitted ? ` ${plural(data.omitted, "more rule")} not shown.` : "";
      const scope = data.scope === "fleet" ? "all replicas" : "this replica";
      const some = partial ? ` ${plural(partial, "replica")} reported only the busiest rules.` : "";
      setText(note, `${plural(data.rules.length, "rule")}; the rates are of ${scope}.${omitted}${some}`);
    },
  };
}

/** The rows of the table: one body for each domain, rebuilt only if the rules change. */
class RuleTree {
  #table;
  #meter = new RateMeter();
  #rows = new Map();
  #signature = null;

  constructor(table) {
    this.#table = table;
  }

  show(list, scope, counted) {
    this.#meter.setOrigin(scope, ...counted);
    const signature = list.map(({ domain, path, location }) => `${domain}\t${path}\t${location}`).join("\n");
    if (signature !== this.#signature) this.#build(list);
    this.#signature = signature;
    for (const rule of list) this.#update(rule);
  }

  /** Hides the rules without the text, and the domains without rules. */
  filter(text) {
    const wanted = text.trim().toLowerCase();
    for (const { row, words } of this.#rows.values()) row.hidden = !words.includes(wanted);
    for (const body of this.#table.tBodies) {
      body.hidden = ![...body.rows].slice(1).some((row) => !row.hidden);
    }
  }

  #build(list) {
    this.#rows.clear();
    const bodies = [...Map.groupBy(list, ({ domain }) => domain)].map(([domain, ofDomain]) => {
      const head = el(
        "th",
        { colspan: COLUMNS.length, scope: "rowgroup" },
        domain,
        el("span", { class: "muted" }, ` ${plural(ofDomain.length, "rule")}`),
      );
      const rows = levels(domain, ofDomain).map(({ rule, label, level }) => this.#create(rule, label, level));
      return el("tbody", {}, el("tr", { class: "group" }, head), rows);
    });
    for (const body of [...this.#table.tBodies]) body.remove();
    this.#table.append(...bodies);
  }

  #create(rule, label, level) {
    const { domain, path } = rule;
    const [checks, denied] = [1, 2].map(() => el("td", { class: "number" }));
    const shadow = el("td", { class: "number minor" });
    const [bar, state] = [new UsedBar(), el("td")];
    const link = linkTo("rule", { domain, path }, label);
    link.title = path;
    const row = el(
      "tr",
      { "data-test": "rule-row", "data-path": path },
      el("th", { scope: "row", class: `level-${Math.min(level, 6)}` }, link),
      el("td", { class: "muted minor" }, limitSummary(rule)),
      checks,
      denied,
      shadow,
      el("td", {}, bar.element),
      state,
    );
    const words =
      `${path} ${rule.location} ${rule.limits.map(({ name }) => name ?? "").join(" ")}`.toLowerCase();
    this.#rows.set(`${domain}\n${path}`, { row, checks, denied, shadow, bar, state, words });
    return row;
  }

  #update(rule) {
    const { domain, path, counts } = rule;
    const cells = this.#rows.get(`${domain}\n${path}`);
    const perSecond = (name, total) => this.#meter.add(`${domain}\n${path}\n${name}`, total);
    const denied = counts.deny + counts.fallback_deny;
    setText(
      cells.checks,
      rate(perSecond("all", counts.allow + denied + counts.shadow_deny + counts.fallback_allow)),
    );
    const deniedRate = perSecond("deny", denied);
    setText(cells.denied, rate(deniedRate));
    cells.denied.classList.toggle("denies", deniedRate > 0);
    setText(cells.shadow, rate(perSecond("shadow", counts.shadow_deny)));
    cells.bar.show(rule.used, percent(rule.used));
    showState(cells.state, rule);
  }
}

/** Returns the limits of a rule as lines. */
function limitSummary({ limits, concurrency }) {
  const lines = limits.map(
    (limit) => `${limitText(limit)}${limit.mode === "exact" ? "" : `, ${limit.mode}`}`,
  );
  if (concurrency) lines.push(concurrencyText(concurrency));
  return (lines.length === 0 ? ["unlimited"] : lines).map((line) => el("div", {}, line));
}

function showState(cell, { forced, shadow, quota }) {
  const key = [forced && `${forced.verdict} ${until(forced.until_unix_ms)}`, shadow, quota].join();
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  const force = forced ? badge(`forced ${forced.verdict}`, forced.verdict === "deny" ? "bad" : "warn") : null;
  if (force) force.title = `until ${until(forced.until_unix_ms)}`;
  cell.replaceChildren(
    ...[force, shadow ? badge("shadow mode", "warn") : null, quota ? badge("quota") : null].filter(Boolean),
  );
}

/**
 * Sorts the rules of a domain into a tree. A rule is below another one if its path continues
 * the other path. The label is the rest of the path, because values may contain dots.
 */
function levels(domain, list) {
  const parents = [];
  const sorted = list.toSorted((a, b) => (a.path < b.path ? -1 : 1));
  return sorted.map((rule) => {
    while (parents.length > 0 && !rule.path.startsWith(`${parents.at(-1)}.`)) parents.pop();
    const parent = parents.at(-1) ?? domain;
    const label = rule.path.startsWith(`${parent}.`) ? rule.path.slice(parent.length + 1) : rule.path;
    const level = parents.length + 1;
    parents.push(rule.path);
    return { rule, label, level };
  });
}
