// The page Overview: checks, latency, the store, replicas and proxies.

import { Chart } from "../chart.js";
import { card, el, facts, linkTo, setText } from "../dom.js";
import { NONE, count, duration, effectText, microseconds, percent, rate, shortTime } from "../format.js";
import { LatencyMeter, LiveTail, RateMeter, historyRates } from "../rates.js";
import { Table, badge, targetLink } from "../tables.js";
import { topTable } from "./key.js";

const CHARTED = ["allow", "deny", "shadow_deny"];

const VERDICTS = [
  { name: "allow", title: "Allowed" },
  { name: "deny", title: "Denied" },
  { name: "shadow_deny", title: "Shadow denied" },
  { name: "error", title: "Errors" },
];

const SHOWN_STORE_FIELDS = ["kind", "failure"];

export default function overview() {
  const tiles = tileRow();
  const problems = el("div", { class: "problems", "data-test": "problems" });
  const chart = new Chart({
    title: "Checks per second, last hour",
    series: [
      { label: "allowed", color: "allow", fill: true },
      { label: "denied", color: "deny" },
      { label: "shadow denied", color: "shadow", dash: true },
    ],
    format: rate,
    test: "checks-chart",
  });
  const [store, process] = [facts(), facts()];
  const [replicas, envoys, changes] = [replicaTable(), envoyTable(), changeTable()];
  const limited = topTable("Denied hits", "limited-now");
  const side = el(
    "div",
    { class: "columns" },
    card("Store", store.element),
    card("This replica", process.element),
  );
  const tail = new LiveTail();
  const meters = { rates: new RateMeter(), latency: new LatencyMeter() };
  return {
    title: "Overview",
    element: el(
      "div",
      {},
      problems,
      tiles.element,
      card("Who is limited now: denied in the last minute", limited.element),
      chart.element,
      side,
      card("Replicas", replicas.element),
      el(
        "div",
        { class: "columns" },
        card("Envoys", envoys.element),
        card("Changes in effect", changes.element),
      ),
    ),
    sources: [
      { name: "overview", path: "overview" },
      { name: "actions", path: "actions", every: 10_000 },
      { name: "top", path: "top", params: { window: "minute", limit: 5 }, every: 6_000 },
    ],
    update({ overview: data, actions, top }) {
      if (actions) changes.show(actions.actions);
      if (top) limited.show(top.denied);
      if (!data) return;
      const rates = tiles.show(data, meters);
      const history = historyRates(data.history, CHARTED);
      chart.set(tail.append(history, data.history?.step_s, rates.slice(0, CHARTED.length)));
      showStore(store, data);
      showProcess(process, data);
      replicas.show(data.replicas);
      envoys.show(data.envoys);
      showProblems(problems, data);
    },
    close: () => chart.close(),
  };
}

function tileRow() {
  const tile = (title, test) => {
    const [value, note] = [el("b", { "data-test": test }), el("span", { class: "muted" })];
    return { element: el("div", { class: "tile" }, el("span", {}, title), value, note), value, note };
  };
  const checks = tile("Checks/s", "rate-checks");
  const verdicts = VERDICTS.map(({ name, title }) => tile(`${title}/s`, `rate-${name}`));
  const [p50, p99] = [tile("Latency p50", "latency-p50"), tile("Latency p99", "latency-p99")];
  const all = [checks, ...verdicts, p50, p99];
  const show = (data, meters) => {
    const reporting = data.replicas.filter((row) => row.checks != null);
    meters.rates.setOrigin(data.scope, ...reporting.map(({ replica }) => replica));
    const rates = VERDICTS.map(({ name }) => meters.rates.add(name, data.checks[name] ?? 0));
    // A shadow denial is counted as a verdict of its own, so the sum has each check once.
    const sum = rates.includes(null) ? null : rates.reduce((total, one) => total + one, 0);
    setText(checks.value, rate(sum));
    setText(checks.note, data.scope === "fleet" ? "all replicas" : "this replica");
    verdicts.forEach(({ value, note }, at) => {
      setText(value, rate(rates[at]));
      setText(note, sum ? percent(rates[at] / sum) : "");
    });
    const latency = data.latency ? meters.latency.add(data.latency) : {};
    setText(p50.value, microseconds(latency.p50));
    setText(p99.value, microseconds(latency.p99));
    for (const { note } of [p50, p99]) setText(note, "this replica");
    return rates;
  };
  return {
    element: el(
      "div",
      { class: "tiles" },
      all.map(({ element }) => element),
    ),
    show,
  };
}

function showStore(list, { store }) {
  list.show("Kind", store.kind);
  const isHealthy = store.failure == null;
  list.show(
    "State",
    badge(isHealthy ? "available" : store.failure.replaceAll("_", " "), isHealthy ? "good" : "bad"),
  );
  for (const [name, value] of Object.entries(store)) {
    const isShown = !SHOWN_STORE_FIELDS.includes(name) && value !== null && typeof value !== "object";
    if (isShown)
      list.show(name.replaceAll("_", " "), typeof value === "number" ? count(value) : String(value));
  }
}

function showProcess(list, data) {
  list.show("Replica", data.replica);
  list.show("Version", data.version);
  list.show("Running for", duration(data.uptime_s * 1_000));
  list.show("Revision", linkTo("configuration", {}, count(data.revision)));
  const connections = Object.entries(data.connections).map(([port, number]) => `${port} ${count(number)}`);
  list.show("Connections", connections.join(", ") || NONE);
}

function showProblems(box, data) {
  const load = "The last load of the limits failed. The replica keeps the revision before it.";
  const failure = data.store.failure?.replaceAll("_", " ");
  const store = `The store is unavailable (${failure}). Each limit decides by on_store_failure.`;
  const messages = [
    data.load_failed
      ? el("p", { class: "message bad" }, `${load} `, linkTo("configuration", {}, "Show the findings"))
      : null,
    failure ? el("p", { class: "message bad" }, store) : null,
  ].filter(Boolean);
  const key = messages.map((message) => message.textContent).join();
  if (box.dataset.key !== key) box.replaceChildren(...messages);
  box.dataset.key = key;
}

function replicaTable() {
  const meter = new RateMeter();
  const perSecond = ({ replica, checks }, name) =>
    checks == null ? NONE : rate(meter.add(`${replica} ${name}`, checks[name] ?? 0));
  return new Table({
    caption: "Replicas of the fleet",
    test: "replicas",
    empty: "The store has no fleet: this replica runs alone.",
    rowKey: ({ replica }) => replica,
    columns: [
      {
        title: "Replica",
        header: true,
        cell: ({ replica, is_self }) => (is_self ? `${replica} (this one)` : replica),
      },
      { title: "Allowed/s", kind: "number", cell: (row) => perSecond(row, "allow") },
      { title: "Denied/s", kind: "number", cell: (row) => perSecond(row, "deny") },
      { title: "In flight", kind: "number minor", cell: ({ in_flight }) => count(in_flight) },
      { title: "Revision", kind: "number minor", cell: ({ revision }) => count(revision) },
      {
        title: "Heartbeat",
        kind: "number",
        cell: ({ heartbeat_age_ms: age }) => (age == null ? NONE : `${duration(age)} ago`),
      },
      { title: "Build", kind: "minor", cell: ({ build }) => build ?? NONE },
    ],
  });
}

function envoyTable() {
  return new Table({
    caption: "Connected Envoys",
    test: "envoys",
    empty: "No Envoy is connected to this replica.",
    rowKey: ({ address }) => address,
    columns: [
      { title: "Address", header: true, cell: ({ address }) => address },
      { title: "Connections", kind: "number", cell: ({ connections }) => count(connections) },
    ],
  });
}

function changeTable() {
  const link = (change) => {
    const { scope, domain, limit, descriptor } = change;
    if (scope === "everything") return el("strong", {}, "everything");
    return descriptor ? targetLink(change) : linkTo("rule", { domain, path: limit }, limit);
  };
  return new Table({
    caption: "Forced decisions, boosts and set amounts",
    test: "changes",
    empty: "No change is in effect.",
    rowKey: ({ domain, limit, descriptor, action }) => [domain, limit, descriptor, action].join("\n"),
    columns: [
      {
        title: "Rule, key or row",
        header: true,
        key: ({ limit, descriptor }) => `${limit} ${descriptor}`,
        cell: link,
      },
      { title: "Change", cell: effectText },
      { title: "By", cell: ({ by }) => by },
      { title: "Until", cell: ({ until_unix_ms }) => shortTime(until_unix_ms) },
      { title: "Reason", cell: ({ reason }) => reason },
    ],
  });
}
