// The page Concurrency: limits, requests in flight, queues and latency.

import { Chart } from "../chart.js";
import { card, el, linkTo, showText } from "../dom.js";
import { NONE, compactCount, count, microseconds, percent, plural, rate } from "../format.js";
import { historyValues } from "../rates.js";
import { Table, UsedBar } from "../tables.js";

const nameOf = ({ domain, path }) => `${domain}\n${path}`;

export default function concurrency(params) {
  const wanted = nameOf({ domain: params.get("domain"), path: params.get("path") });
  const table = limitTable();
  const title = el("h2", { class: "chosen", "data-test": "chosen" });
  const [load, latency] = charts();
  const parts = requesterTables();
  const note = el("p", { class: "muted" });
  const detail = el(
    "div",
    { hidden: true },
    title,
    el("div", { class: "columns wide" }, load.element, latency.element),
    parts.element,
  );
  return {
    title: "Concurrency",
    element: el("div", {}, card("Concurrency limits", table.element, note), detail),
    sources: [{ name: "concurrency", path: "concurrency" }],
    update({ concurrency: { limits, omitted } }) {
      table.show(limits);
      showText(note, omitted ? `${plural(omitted, "more limit")} not shown.` : "");
      const chosen = limits.find((limit) => nameOf(limit) === wanted) ?? limits[0];
      detail.hidden = !chosen;
      if (!chosen) return;
      limits.forEach((limit) => table.row(limit).classList.toggle("chosen", limit === chosen));
      showText(title, chosen.path);
      load.set(historyValues(chosen.history, ["limit", "in_flight", "waiting"]));
      latency.set(historyValues(chosen.history, ["rtt_us"]));
      parts.show(chosen.requesters);
    },
    close: () => [load, latency].forEach((chart) => chart.close()),
  };
}

// The users of the busiest bucket of the limit at this replica. Hidden without classes and fair parts.
function requesterTables() {
  const number = (title, cell) => ({ title, kind: "number", cell });
  const counts = [
    number("In flight", ({ in_flight }) => count(in_flight)),
    number("Queue", ({ waiting }) => count(waiting)),
  ];
  const name = (title, key) => ({ title, header: true, kind: "key", cell: key });
  const classes = new Table({
    caption: "Classes",
    test: "classes",
    empty: "This limit has no classes.",
    rowKey: (row) => row.class,
    columns: [
      name("Class", (row) => row.class),
      number("Part", ({ part }) => count(part)),
      ...counts,
      number("Rejected", ({ rejected }) => count(rejected)),
    ],
  });
  const customerOf = ({ customer }) => customer ?? "all others together";
  const customers = new Table({
    caption: "Customers",
    test: "customers",
    empty: "This limit has no fair parts, or no requests.",
    // Hidden names are equal.
    rowKey: ({ rank }) => rank,
    columns: [name("Customer", customerOf), number("Weight", ({ weight }) => count(weight)), ...counts],
  });
  const element = el(
    "div",
    { class: "columns wide", hidden: true },
    card("Classes", classes.element),
    card("Customers with the most requests", customers.element),
  );
  return {
    element,
    show(requesters) {
      element.hidden = !requesters;
      classes.show(requesters?.classes ?? []);
      customers.show((requesters?.customers ?? []).map((row, rank) => ({ ...row, rank })));
    },
  };
}

function charts() {
  const load = new Chart({
    title: "Requests",
    series: [
      { label: "limit", color: "deny", dash: true },
      { label: "in flight", color: "allow", fill: true },
      { label: "in the queue", color: "near" },
    ],
    format: compactCount,
    test: "load-chart",
  });
  const latency = new Chart({
    title: "Latency (RTT)",
    series: [{ label: "RTT", color: "shadow", fill: true }],
    format: microseconds,
    test: "rtt-chart",
  });
  return [load, latency];
}

function limitTable() {
  const bars = new Map();
  const bar = (limit) => bars.get(nameOf(limit)) ?? bars.set(nameOf(limit), new UsedBar()).get(nameOf(limit));
  const table = new Table({
    caption: "Concurrency limits",
    test: "concurrency",
    empty: "No concurrency limit was used recently.",
    rowKey: nameOf,
    columns: [
      {
        title: "Limit",
        header: true,
        kind: "key",
        key: nameOf,
        cell: ({ domain, path }) => linkTo("concurrency", { domain, path }, path),
      },
      {
        title: "In flight",
        kind: "number",
        cell: ({ in_flight, limit, rate_per_second }) =>
          rate_per_second == null
            ? `${count(in_flight)} of ${count(limit)}`
            : `${count(in_flight)}, at ${rate(rate_per_second)}`,
      },
      { title: "Used", key: nameOf, cell: (limit) => bar(limit).element },
      { title: "Queue", kind: "number", cell: ({ waiting }) => count(waiting) },
      { title: "RTT", kind: "number", cell: ({ rtt_us }) => microseconds(rtt_us) },
      { title: "Min RTT", kind: "number minor", cell: ({ min_rtt_us }) => microseconds(min_rtt_us) },
      {
        title: "Share of the fleet's limit",
        kind: "number",
        cell: ({ fleet }) => (fleet ? `${count(fleet.share)} of ${count(fleet.fleet_limit)}` : NONE),
      },
      { title: "Replicas", kind: "number minor", cell: ({ fleet }) => count(fleet?.replicas) },
    ],
  });
  const show = (limits) => {
    table.show(limits);
    for (const limit of limits) {
      // A pace has no largest number in flight.
      const isPaced = limit.rate_per_second != null;
      const share = limit.limit > 0 && !isPaced ? limit.in_flight / limit.limit : null;
      bar(limit).show(share, percent(share));
    }
  };
  return { element: table.element, show, row: (limit) => table.row(limit) };
}
