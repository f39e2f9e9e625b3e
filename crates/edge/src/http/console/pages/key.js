// The page of one key: its counter now, its changes, and the buttons that change it.

import { Chart } from "../chart.js";
import { card, el, facts, linkTo, pageLink, showText } from "../dom.js";
import { NONE, compactCount, count, duration, effectText, percent, period, until } from "../format.js";
import { Table, UsedBar, keyLink } from "../tables.js";
import { auditTable } from "./audit.js";

// Half an hour at one poll every two seconds.
const MAX_POINTS = 900;

export default function key(params, app) {
  const [domain, descriptor] = [params.get("domain") ?? "", params.get("descriptor") ?? ""];
  return domain && descriptor ? oneKey(domain, descriptor, app) : chooseKey(domain, descriptor);
}

/** The form, and the keys with the most hits. */
function chooseKey(domain, descriptor) {
  const [denied, all] = [topTable("Denied hits", "top-denied"), topTable("Hits", "top-all")];
  const note = el("p", { class: "muted" });
  return {
    title: "Key",
    element: el(
      "div",
      {},
      keyForm(domain, descriptor),
      el(
        "div",
        { class: "columns wide" },
        card("Denied in the last minute", denied.element),
        card("Most hits in the last minute", all.element),
      ),
      note,
    ),
    sources: [{ name: "top", path: "top", params: { window: "minute", limit: 20 } }],
    update({ top }) {
      denied.show(top.denied);
      all.show(top.all);
      const notes = {
        hashed: "Values are hashed (setting telemetry.descriptor_values).",
        hidden: "Top keys are not counted (setting telemetry.descriptor_values).",
      };
      showText(note, notes[top.keys]);
    },
  };
}

function keyForm(domain, descriptor) {
  const input = (name, value, placeholder) =>
    el("input", {
      type: "text",
      id: `key-${name}`,
      name,
      value,
      placeholder,
      required: true,
      autocomplete: "off",
      spellcheck: "false",
      "data-test": `key-${name}`,
    });
  const form = el(
    "form",
    { class: "card row", "data-test": "key-form" },
    el("div", {}, el("label", { for: "key-domain" }, "Domain"), input("domain", domain, "shop")),
    el(
      "div",
      { class: "grow" },
      el("label", { for: "key-descriptor" }, "Descriptor"),
      input("descriptor", descriptor, "api_key=partner,path=/checkout"),
    ),
    el("button", { type: "submit", class: "primary" }, "Show"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const fields = new FormData(form);
    location.hash = pageLink("key", {
      domain: fields.get("domain").trim(),
      descriptor: fields.get("descriptor").trim(),
    });
  });
  return form;
}

/** The keys with the most hits. `title` is the head of the column with the number. */
export function topTable(title, test) {
  return new Table({
    caption: title,
    test,
    empty: "No keys.",
    rowKey: ({ domain, path, descriptor }) => `${domain}\n${path}\n${descriptor}`,
    columns: [
      {
        title: "Key",
        header: true,
        kind: "key",
        key: ({ descriptor }) => descriptor,
        cell: ({ domain, descriptor }) => keyLink(domain, descriptor),
      },
      {
        title: "Rule",
        kind: "key",
        key: ({ path }) => path,
        cell: ({ domain, path }) => linkTo("rule", { domain, path }, path),
      },
      { title, kind: "number", cell: ({ hits, error }) => (error ? `≤ ${count(hits)}` : count(hits)) },
    ],
  });
}

function oneKey(domain, descriptor, app) {
  const [about, limits, chart] = [facts(), limitPanel(), historyChart()];
  const actions = actionPanel(app, domain, descriptor);
  const audit = auditTable({ withKey: false });
  const params = { domain, descriptor };
  return {
    title: "Key",
    heading: descriptor,
    element: el(
      "div",
      {},
      keyForm(domain, descriptor),
      el(
        "div",
        { class: "columns first" },
        card("Counter now", about.element, limits.element),
        actions.element,
      ),
      chart.element,
      card("Changes of this key", audit.element),
    ),
    sources: [
      { name: "counter", path: "counter", params },
      { name: "explain", path: "explain", params, every: 30_000 },
      { name: "actions", path: "actions", every: 6_000 },
      { name: "audit", path: "audit", params: { ...params, limit: 50 }, every: 6_000 },
    ],
    update(data) {
      const canonical = data.explain?.descriptors[0]?.descriptor ?? descriptor;
      // Changes and audit entries have this form, so a descriptor in another form would miss them.
      if (canonical !== descriptor) {
        location.replace(pageLink("key", { domain, descriptor: canonical }));
        return;
      }
      if (data.explain) showRule(about, domain, data.explain);
      if (data.counter) showCounter(about, limits, chart, data.counter);
      if (data.counter) actions.setCounter(data.counter);
      if (data.actions) actions.show(data.actions.actions);
      if (data.audit) audit.show(data.audit.entries);
    },
    close: () => chart.close(),
  };
}

function showRule(list, domain, { descriptors: [explained] }) {
  const { path } = explained?.rule ?? {};
  list.show("Rule", path ? linkTo("rule", { domain, path }, path) : (explained?.outcome ?? NONE));
  list.show("File and line", explained?.rule?.location ?? null);
}

function showCounter(list, limits, chart, counter) {
  const all = counter.limits ?? [counter];
  limits.show(all);
  list.show("Reason", (counter.reason ?? NONE).replaceAll("_", " "));
  const level = levelOf(counter);
  if (level) chart.add(level.used, level.most);
}

/**
 * Returns the hits that the counter has and the most that it allows; `null` during a forced
 * decision, when no hits are counted. With `gcra`, the most is the burst, not the limit.
 */
function levelOf({ reason, requests, remaining, counted }) {
  if (reason === "forced") return null;
  const used = Math.min(counted ?? requests - remaining, requests);
  return { used, most: used + remaining };
}

/** The limits of the key, with the share that is used. */
function limitPanel() {
  const bars = new Map();
  const bar = ({ limit }) => bars.get(limit) ?? bars.set(limit, new UsedBar()).get(limit);
  const table = new Table({
    caption: "Limits of this key",
    test: "counter",
    rowKey: ({ limit }) => limit,
    columns: [
      {
        title: "Limit",
        header: true,
        cell: ({ limit, requests, period_nanoseconds: ns }) =>
          `${limit ? `${limit}: ` : ""}${count(requests)} per ${period(ns)}`,
      },
      { title: "Used", key: ({ limit }) => limit, cell: (row) => bar(row).element },
      { title: "Remaining", kind: "number", cell: ({ remaining }) => count(remaining) },
      { title: "Counted", kind: "number minor", cell: ({ counted }) => count(counted) },
      { title: "Empty in", kind: "number", cell: ({ reset_after_nanoseconds: ns }) => duration(ns / 1e6) },
    ],
  });
  const show = (limits) => {
    table.show(limits);
    for (const row of limits) {
      const level = levelOf(row);
      const share = level && level.most > 0 ? level.used / level.most : null;
      bar(row).show(share, percent(share));
    }
  };
  return { element: table.element, show };
}

function historyChart() {
  const chart = new Chart({
    title: "Hits counted, since this page is open",
    series: [
      { label: "counted", color: "allow", fill: true },
      { label: "denied above", color: "deny", dash: true },
    ],
    format: compactCount,
    span_s: 60,
    test: "key-chart",
  });
  const data = [[], [], []];
  const add = (used, limit) => {
    [Date.now() / 1_000, used, limit].forEach((value, at) => data[at].push(value));
    if (data[0].length > MAX_POINTS) data.forEach((values) => values.shift());
    chart.set(data);
  };
  return { element: chart.element, add, close: () => chart.close() };
}

function actionPanel(app, domain, descriptor) {
  let counter = null;
  let isBoosted = false;
  // A boosted counter reports the boosted limit, but a factor applies to the limit in the file.
  const target = () => ({
    domain,
    descriptor,
    scope: "key",
    requests: isBoosted ? null : counter?.requests,
    period: counter && period(counter.period_nanoseconds),
  });
  const [boostState, forceState] = ["boost-state", "force-state"].map((test) =>
    el("p", { "data-test": test }),
  );
  const buttons = actionButtons(app, target);
  const row = el("div", { class: "buttons" }, Object.values(buttons));
  const show = (actions) => {
    const own = actions.filter(
      (one) => one.scope === "key" && one.domain === domain && one.descriptor === descriptor,
    );
    const boost = own.find(({ action }) => action === "boost");
    const force = own.find(({ action }) => action === "force");
    isBoosted = boost != null;
    showState(boostState, boost, "No boost.");
    showState(forceState, force, "No forced decision of this key.");
    buttons.unboost.hidden = !boost;
    buttons.unforce.hidden = !force;
    buttons.deny.hidden = buttons.allow.hidden = Boolean(force);
  };
  show([]);
  const setCounter = (value) => {
    counter = value;
  };
  return { element: card("Change", boostState, forceState, row, app.whyNot()), show, setCounter };
}

function actionButtons(app, target) {
  const titles = {
    unboost: "End the boost…",
    unforce: "End the forced decision…",
    boost: "Boost…",
    deny: "Force deny…",
    allow: "Force allow…",
    reset: "Reset…",
    refund: "Refund…",
  };
  const buttons = Object.entries(titles).map(([name, title]) => [
    name,
    app.actionButton(name, title, target),
  ]);
  return Object.fromEntries(buttons);
}

function showState(element, action, none) {
  const text = action
    ? `${effectText(action)} until ${until(action.until_unix_ms)}, by ${action.by}: ${action.reason}`
    : none;
  showText(element, text);
  element.classList.toggle("strong", action != null);
}
