// The page Budgets: what requests settled and hold, and the top-ups of prepaid budgets.

import { card, el, linkTo, pageLink, setText, showText } from "../dom.js";
import { NONE, dateTime, percent, plural, visible } from "../format.js";
import { Table, UsedBar } from "../tables.js";

const MAX_ROWS = 200;

const EXAMPLE = `# a limits file
domain: llm
descriptors:
  - key: org
    budget: {amount: 1M tokens, unit: day}`;

const nameOf = ({ domain, descriptor, unit }) => `${domain}\n${descriptor}\n${unit}`;

export default function budgets(params, app) {
  const [domain, descriptor] = ["domain", "descriptor"].map((name) => params.get(name) ?? "");
  const list = budgetTable(app);
  const [findings, note] = [el("div"), el("p", { class: "muted", "data-test": "budget-note" })];
  const help = helpText();
  const filter = filterField(() => show());
  let shown = [];
  const show = () => {
    const wanted = filter.value.trim().toLowerCase();
    const words = (budget) => `${nameOf(budget)} ${budget.path}`.toLowerCase();
    list.show(shown.filter((budget) => words(budget).includes(wanted)));
  };
  return {
    title: "Budgets",
    heading: descriptor ? visible(descriptor) : "Budgets",
    aside: descriptor
      ? linkTo("budgets", {}, "All budgets")
      : el("div", { class: "tools" }, el("label", { for: "budgets-filter" }, "Filter"), filter),
    element: el(
      "div",
      {},
      searchForm(domain, descriptor),
      findings,
      card(null, list.element, help, note, app.whyNot()),
    ),
    sources: [
      descriptor
        ? { name: "budgets", path: "budgets", params: { domain, descriptor }, every: 4_000 }
        : { name: "budgets", path: "budgets", params: { domain, limit: MAX_ROWS }, every: 10_000 },
    ],
    update({ budgets: page }) {
      if (!page) return;
      shown = page.budgets;
      show();
      list.element.hidden = shown.length === 0;
      help.hidden = shown.length > 0;
      showFindings(findings, page.findings);
      showText(note, descriptor ? "" : noteText(page));
    },
  };
}

function noteText({ budgets: shown, omitted }) {
  const more = omitted ? `; ${plural(omitted, "more budget")} not shown` : "";
  const scope = "that requests of this replica met since its start, the most used first";
  const held = "The light part of a bar is held.";
  return shown.length ? `${plural(shown.length, "budget")} ${scope}${more}. ${held}` : "";
}

function helpText() {
  return el(
    "div",
    { hidden: true, "data-test": "no-budgets" },
    el("p", {}, "No request of this replica met a budget since its start. A budget in a limits file:"),
    el("pre", { class: "diff" }, EXAMPLE),
    el("p", { class: "muted" }, "The guide: docs/guides/budgets-for-llm-gateways.md."),
  );
}

function showFindings(element, texts) {
  const key = texts.join("\n");
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...texts.map((text) => el("p", { class: "message bad" }, visible(text))));
}

function filterField(onInput) {
  const input = el("input", {
    type: "search",
    id: "budgets-filter",
    placeholder: "domain, name or path",
    "data-test": "budgets-filter",
  });
  input.addEventListener("input", onInput);
  return input;
}

function searchForm(domain, descriptor) {
  const input = (name, value, placeholder) =>
    el("input", {
      type: "text",
      id: `budget-${name}`,
      name,
      // An input would show these characters as the browser does.
      value: visible(value) === value ? value : "",
      placeholder,
      required: name === "descriptor",
      autocomplete: "off",
      spellcheck: "false",
      "data-test": `budget-${name}`,
    });
  const form = el(
    "form",
    { class: "card row", role: "search", "data-test": "budget-form" },
    el("div", {}, el("label", { for: "budget-domain" }, "Domain"), input("domain", domain, "the only one")),
    el(
      "div",
      { class: "grow" },
      el("label", { for: "budget-descriptor" }, "Descriptor"),
      input("descriptor", descriptor, "org=acme,model=large"),
    ),
    el("button", { type: "submit", class: "primary" }, "Show"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const fields = new FormData(form);
    location.hash = pageLink("budgets", {
      domain: fields.get("domain").trim(),
      descriptor: fields.get("descriptor").trim(),
    });
  });
  return form;
}

/** The table of budgets. Only a budget without periods, a prepaid one, can be topped up. */
function budgetTable(app) {
  const bars = new Map();
  const bar = (budget) => {
    const name = nameOf(budget);
    return bars.get(name) ?? bars.set(name, new UsedBar()).get(name);
  };
  const topUp = (budget) => app.actionButton("top_up", "Top up…", () => budget);
  const table = new Table({
    caption: "Budgets",
    test: "budgets",
    empty: "No budget has this text.",
    rowKey: nameOf,
    columns: [
      {
        title: "Budget",
        header: true,
        kind: "key",
        key: nameOf,
        cell: ({ domain, descriptor }) => [
          linkTo("budgets", { domain, descriptor }, visible(descriptor)),
          el("div", { class: "muted" }, visible(domain)),
        ],
      },
      { title: "Amount", kind: "number minor", cell: ({ amount }) => amount },
      { title: "Settled", kind: "number", cell: ({ settled }) => settled },
      {
        title: "Held",
        kind: "number minor",
        cell: ({ held, open_holds: holds }) => (holds ? `${held} by ${plural(holds, "request")}` : held),
      },
      { title: "Used", key: nameOf, cell: (budget) => bar(budget).element },
      { title: "Spent at this rate", kind: "nowrap minor", cell: spentText },
      { title: "New period", kind: "nowrap minor", cell: ({ ends_unix_ms: end }) => dateTime(end) },
      { title: "", kind: "actions", key: nameOf, cell: (budget) => (isPrepaid(budget) ? topUp(budget) : null) },
    ],
  });
  const show = (budgets) => {
    table.show(budgets);
    for (const budget of budgets) {
      const { amount_number: amount, settled_number: settled, held_number: held } = budget;
      const share = (part) => (amount > 0 ? part / amount : null);
      bar(budget).show(share(settled + held), percent(share(settled + held)), share(settled));
    }
  };
  return { element: table.element, show };
}

function isPrepaid({ ends_unix_ms: end }) {
  return end == null;
}

function spentText({ spent_unix_ms: spent, ...budget }) {
  if (spent != null && budget.settled_number >= budget.amount_number) return "now";
  if (spent != null) return dateTime(spent);
  return isPrepaid(budget) ? NONE : "not in this period";
}
