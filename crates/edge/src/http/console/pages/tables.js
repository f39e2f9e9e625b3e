// The page Tables: the numbers of each customer, their state, and the amounts of one id.

import { card, el, facts, linkTo, pageLink, setText, showText } from "../dom.js";
import { NONE, count, dateTime, duration, plural, shortTime, visible } from "../format.js";
import { Table, badge, rowLink } from "../tables.js";

const MAX_ROWS = 100;

// The fields of a row that are not amounts.
const FIELDS = ["id", "plan", "until"];

const EXAMPLE = `# server.yaml
tables:
  - name: customers
    source: file:///etc/sluicegate/customers.csv
    plans:
      gold: {api: 5000}

# a rule in the limits file
rate_limit: {unit: minute, requests_per_unit: 60, from: customers.api}`;

export default function tables(params, app) {
  const [name, id, plan] = ["table", "id", "plan"].map((field) => params.get(field) ?? "");
  return name ? oneTable(name, id, plan, app) : allTables();
}

function allTables() {
  const list = new Table({
    caption: "Tables",
    test: "tables",
    rowKey: ({ name }) => name,
    columns: [
      {
        title: "Table",
        header: true,
        key: ({ name }) => name,
        cell: ({ name }) => linkTo("tables", { table: name }, name),
      },
      { title: "Rows", kind: "number", cell: ({ rows }) => count(rows) },
      { title: "Confirmed", kind: "nowrap minor", cell: ({ confirmed_ms_ago: age }) => ago(age) },
      {
        title: "State",
        kind: "key",
        key: (state) => `${stateOf(state)} ${state.error}`,
        cell: (state) => [...stateBadges(state), el("div", { class: "muted" }, visible(state.error ?? ""))],
      },
      { title: "Source", kind: "text minor", cell: ({ source }) => visible(source) },
    ],
  });
  const help = el(
    "div",
    { hidden: true, "data-test": "no-tables" },
    el("p", {}, "No table is configured. With one, each customer can have a limit of its own:"),
    el("pre", { class: "diff" }, EXAMPLE),
    el("p", { class: "muted" }, "The guide: docs/guides/limit-each-customer.md."),
  );
  return {
    title: "Tables",
    element: card(null, list.element, help),
    sources: [{ name: "tables", path: "tables" }],
    update({ tables: { tables: all } }) {
      // A list of one table would only be one more click.
      const [first, ...rest] = all;
      if (first?.rows != null && rest.length === 0)
        return location.replace(pageLink("tables", { table: first.name }));
      list.element.hidden = all.length === 0;
      help.hidden = all.length > 0;
      list.show(all);
    },
  };
}

function ago(ms) {
  return ms == null ? NONE : `${duration(Math.ceil(ms / 1_000) * 1_000)} ago`;
}

/** Returns the words about the state of a table; `current` if nothing is wrong. */
function stateOf({ rows, from_copy: isFromCopy, error, bad_rows: bad }) {
  const words = [
    rows == null ? "not loaded" : null,
    isFromCopy ? "from the copy on disk" : null,
    error ? "the source fails" : null,
    bad ? plural(bad, "bad row") : null,
  ].filter(Boolean);
  return words.length === 0 ? ["current"] : words;
}

function stateBadges(state) {
  const kind = state.rows == null || state.error ? "bad" : "warn";
  return stateOf(state).map((text) => badge(text, text === "current" ? "good" : kind));
}

function oneTable(name, id, plan, app) {
  const [about, rows] = [stateCard(), id ? amountCard(name, id, app) : rowCard(name, plan)];
  const cards = id ? [rows, about] : [about, rows];
  return {
    title: "Tables",
    heading: name,
    element: el("div", {}, searchForm(name, id), cards.map(({ element }) => element)),
    sources: [{ name: "tables", path: "tables" }, rows.source],
    update({ tables: data, rows: found }) {
      const state = data?.tables.find((one) => one.name === name);
      if (data) about.show(state);
      if (state) rows.setState?.(state);
      if (found) rows.show(found);
    },
  };
}

function searchForm(table, id) {
  const input = el("input", {
    type: "search",
    id: "table-id",
    // An input would show these characters as the browser does.
    value: visible(id) === id ? id : "",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "acme",
    "data-test": "table-id",
  });
  const form = el(
    "form",
    { class: "card row", role: "search", "data-test": "table-form" },
    el("div", { class: "grow" }, el("label", { for: "table-id" }, "Id"), input),
    el("button", { type: "submit", class: "primary" }, "Show"),
    id ? linkTo("tables", { table }, "All rows") : null,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = pageLink("tables", { table, id: input.value.trim() });
  });
  return form;
}

/** The state of the table: its version, the last error and the bad rows. */
function stateCard() {
  const list = facts();
  const error = el("p", { class: "message bad", "data-test": "table-error", hidden: true });
  const bad = new Table({
    caption: "Bad rows",
    test: "bad-rows",
    rowKey: ({ at }) => at,
    columns: [
      { title: "Bad row", header: true, cell: ({ row }) => visible(row) },
      { title: "Problem", kind: "text", cell: ({ problem }) => visible(problem) },
    ],
  });
  const note = el("p", { class: "muted" });
  const show = (state) => {
    element.hidden = !state;
    if (!state) return;
    showFacts(list, state);
    const rest = state.rows == null ? "" : " The rows before stay.";
    showText(error, state.error ? `The last read failed: ${visible(state.error)}.${rest}` : "");
    const named = state.first_bad_rows.map((row, at) => ({ ...row, at }));
    bad.element.hidden = named.length === 0;
    bad.show(named);
    const more = state.bad_rows - named.length;
    const omitted = more > 0 ? ` ${plural(more, "more bad row")} not shown.` : "";
    showText(note, named.length ? `The last good row of an id stays.${omitted}` : "");
  };
  const problems = el("div", {}, error, bad.element, note);
  const element = card("State", el("div", { class: "columns" }, el("div", {}, list.element), problems));
  return { element, show };
}

function showFacts(list, state) {
  list.show("Data", el("span", { "data-test": "table-state" }, stateBadges(state)));
  list.show("Rows", count(state.rows));
  list.show("Version", state.digest ?? NONE);
  list.show("Confirmed", ago(state.confirmed_ms_ago));
  list.show("Changed", ago(state.changed_ms_ago));
  list.show("Columns", state.columns?.join(", ") || NONE);
  list.show("Source", visible(state.source));
}

/** The first rows, by plan if one is chosen. */
function rowCard(table, plan) {
  const chosen = planForm(table, plan);
  const list = new Table({
    caption: "Rows",
    test: "table-rows",
    empty: "No rows.",
    rowKey: ({ id }) => id,
    columns: [
      { title: "Id", header: true, key: ({ id }) => id, cell: ({ id }) => rowLink(table, id) },
      { title: "Plan", kind: "key", cell: ({ plan: name }) => visible(name ?? NONE) },
      { title: "Own amounts", kind: "key", cell: ownAmounts },
      { title: "Until", kind: "nowrap minor", cell: ({ until: end }) => dateTime(end && Date.parse(end)) },
    ],
  });
  const note = el("p", { class: "muted", "data-test": "row-count" });
  const heading = el("div", { class: "heading" }, el("h2", {}, "Rows"), chosen.element);
  const element = card(null, heading, list.element, note);
  const setState = (state) => {
    element.hidden = state.rows == null;
    chosen.setPlans(state.plans ?? []);
  };
  const show = ({ count: all, rows }) => {
    list.show(rows);
    const shown = all > rows.length ? `; the first ${count(rows.length)} by id` : "";
    setText(note, `${plural(all, "row")}${plan ? ` with the plan ${visible(plan)}` : ""}${shown}.`);
  };
  const source = { name: "rows", path: "tables", params: { table, plan, limit: MAX_ROWS }, every: 10_000 };
  return { element, setState, show, source };
}

function ownAmounts(row) {
  const own = Object.entries(row).filter(([name]) => !FIELDS.includes(name));
  return own.map(([name, amount]) => `${name} ${amountText(amount)}`).join(", ") || NONE;
}

function amountText(amount) {
  return /^\d+$/.test(amount) ? count(Number(amount)) : amount;
}

function planForm(table, plan) {
  const select = el("select", { id: "table-plan", "data-test": "table-plan" });
  const form = el(
    "form",
    { class: "tools", hidden: true },
    el("label", { for: "table-plan" }, "Plan"),
    select,
    el("button", { type: "submit" }, "Filter"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = pageLink("tables", { table, plan: select.value });
  });
  const setPlans = (plans) => {
    form.hidden = plans.length === 0;
    if (select.options.length === plans.length + 1) return;
    const option = (name) => el("option", { value: name, selected: name === plan }, visible(name) || "all");
    select.replaceChildren(...["", ...plans].map(option));
  };
  return { element: form, setPlans };
}

/** The amounts of one id, and the buttons that set them. */
function amountCard(table, id, app) {
  const [about, note] = [facts(), el("p", { "data-test": "row-note" })];
  const list = amountTable(table, id, app);
  const show = ({ row, has_ended: hasEnded, amounts }) => {
    const unknown = "The table has no row with this id, so the rules' own numbers apply.";
    const none = "Neither the row nor its plan has an amount, so the rules' own numbers apply.";
    const isEmpty = amounts.every(({ amount }) => amount == null);
    showText(note, !row ? unknown : isEmpty ? none : "");
    about.show("Plan", row ? visible(row.plan ?? NONE) : null);
    const end = row?.until ? dateTime(Date.parse(row.until)) : null;
    about.show("Own amounts until", end && (hasEnded ? `${end} (ended)` : end));
    list.show(amounts);
  };
  const source = { name: "rows", path: "tables", params: { table, amounts_of: id }, every: 4_000 };
  const element = card(visible(id), note, about.element, list.element, app.whyNot());
  return { element, show, source };
}

function amountTable(table, id, app) {
  const button = (action, text, column) =>
    app.actionButton(action, text, () => ({ table, id, column }));
  return new Table({
    caption: "Amounts",
    test: "amounts",
    empty: "No limit reads this table, and it has no amounts.",
    rowKey: ({ column }) => column,
    columns: [
      { title: "Amount", header: true, cell: ({ column }) => column },
      {
        title: "Applies",
        kind: "key",
        key: (amount) => `${amount.amount} ${originText(amount)}`,
        cell: (amount) => [
          el("div", { class: "strong" }, amountText(amount.amount ?? "the rule's own number")),
          el("div", { class: "muted" }, originText(amount)),
        ],
      },
      { title: "In the row", kind: "minor", cell: ({ row }) => amountText(row ?? NONE) },
      { title: "In the plan", kind: "minor", cell: ({ plan }) => amountText(plan ?? NONE) },
      { title: "Limits that read it", kind: "text minor", cell: limitNames },
      {
        title: "",
        kind: "actions",
        key: ({ set, limits }) => `${set != null} ${limits > 0}`,
        cell: ({ column, set, limits }) => [
          set ? button("unset", "End…", column) : null,
          " ",
          limits > 0 ? button("set", "Set…", column) : null,
        ],
      },
    ],
  });
}

function originText({ from, set }) {
  const texts = { row: "from its row", plan: "from its plan" };
  if (from !== "set") return texts[from] ?? "";
  return `set by ${visible(set.by)} until ${shortTime(set.until_unix_ms)}: ${visible(set.reason)}`;
}

function limitNames({ limits, first_limits: names }) {
  const more = limits > names.length ? `, and ${count(limits - names.length)} more` : "";
  return limits === 0 ? "none" : `${names.join(", ")}${more}`;
}
