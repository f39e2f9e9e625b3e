// The page of one rule: its last hour, its top keys and its forced decision.

import { Chart } from "../chart.js";
import { card, el, facts, linkTo, setText, showText } from "../dom.js";
import { concurrencyText, count, limitText, percent, rate, until } from "../format.js";
import { LiveTail, RateMeter, historyRates, historyValues } from "../rates.js";
import { Table, isHashed, keyLink } from "../tables.js";

const CHARTED = ["allow", "deny", "shadow_deny"];

export default function rule(params, app) {
  const [domain, path] = [params.get("domain") ?? "", params.get("path") ?? ""];
  const about = facts();
  const forced = forcedPanel(app, domain, path);
  const [verdicts, used] = charts();
  const top = topPanel(app, domain);
  const [meter, tail] = [new RateMeter(), new LiveTail()];
  return {
    title: "Rule",
    heading: path,
    aside: linkTo("rules", {}, "All rules"),
    element: el(
      "div",
      {},
      el("div", { class: "columns" }, card("Rule", about.element), forced.element),
      el("div", { class: "columns wide" }, verdicts.element, used.element),
      top.element,
    ),
    sources: [{ name: "rule", path: "rule", params: { domain, path } }],
    update({ rule: data }) {
      meter.setOrigin(data.scope, ...data.replicas);
      const rates = CHARTED.map((name) => meter.add(name, data.counts[name]));
      showFacts(about, data, rates);
      verdicts.set(tail.append(historyRates(data.history, CHARTED), data.history?.step_s, rates));
      used.set(historyValues(data.history, ["used"]));
      top.show(data.top);
      forced.show(data, exampleOf(data.top));
    },
    close: () => [verdicts, used].forEach((chart) => chart.close()),
  };
}

function charts() {
  const verdicts = new Chart({
    title: "Hits per second, last hour",
    series: [
      { label: "allowed", color: "allow", fill: true },
      { label: "denied", color: "deny" },
      { label: "shadow denied", color: "shadow", dash: true },
    ],
    format: rate,
    test: "rule-chart",
  });
  const used = new Chart({
    title: "Share of the limit used by the busiest key",
    series: [{ label: "used", color: "near", fill: true }],
    format: percent,
    test: "used-chart",
  });
  return [verdicts, used];
}

function showFacts(list, data, rates) {
  list.show("Domain", data.domain);
  list.show("File and line", place(data.location));
  const none = data.concurrency ? null : "unlimited";
  list.show("Limits", data.limits.map(limitText).join("; ") || none);
  list.show("Mode", [...new Set(data.limits.map(({ mode }) => mode))].join(", ") || null);
  list.show(
    "On store failure",
    [...new Set(data.limits.map(({ on_store_failure: on }) => on))].join(", ") || null,
  );
  const { concurrency } = data;
  list.show(
    "Concurrency limit",
    concurrency
      ? linkTo("concurrency", { domain: data.domain, path: data.path }, concurrencyText(concurrency))
      : null,
  );
  list.show(
    "Options",
    [data.shadow ? "shadow mode" : "", data.quota ? "quota" : ""].filter(Boolean).join(", ") || null,
  );
  const { counts } = data;
  const [allowed, denied, shadowDenied] = rates.map(rate);
  list.show("Now", `${allowed} allowed/s, ${denied} denied/s, ${shadowDenied} shadow denied/s`);
  const fallback = counts.fallback_allow + counts.fallback_deny;
  list.show(
    "By fallback",
    fallback === 0
      ? null
      : `${count(counts.fallback_allow)} allowed, ${count(counts.fallback_deny)} denied since the start`,
  );
}

/** The file and line, with a button that copies them, because a page cannot open a local file. */
function place(location) {
  const copy = el("button", { type: "button", class: "quiet" }, "Copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location);
      copy.textContent = "Copied";
    } catch {
      // Browsers allow this only over TLS and on loopback.
      copy.textContent = "Copying is blocked";
    }
  });
  return location ? el("span", {}, el("code", { "data-test": "location" }, location), " ", copy) : null;
}

function forcedPanel(app, domain, path) {
  let example = null;
  const target = () => ({ domain, descriptor: example, scope: "rule", limit: path });
  const state = el("p", { "data-test": "forced" });
  const end = app.actionButton("unforce", "End it…", target);
  const begin = [
    app.actionButton("deny", "Force deny…", target),
    app.actionButton("allow", "Force allow…", target),
  ];
  const element = card("Forced decision", state, el("div", { class: "buttons" }, end, begin), app.whyNot());
  const show = ({ forced, limits }, newExample) => {
    example = newExample ?? example;
    const none =
      limits.length === 0 ? "Only a rule with a rate limit can be forced." : "None: the limits decide.";
    const active = forced && `An operator forces ${forced.verdict} until ${until(forced.until_unix_ms)}.`;
    showText(state, active ?? none);
    state.classList.toggle("strong", forced != null);
    end.hidden = !forced;
    begin.forEach((button) => {
      button.hidden = forced != null || limits.length === 0;
    });
  };
  show({ forced: null, limits: [] }, null);
  showText(state, "");
  return { element, show };
}

/** A descriptor that the rule matches, for the dialog of a forced decision. */
function exampleOf(top) {
  const rows = ["minute", "hour"].flatMap((window) => [
    top?.[window]?.all ?? [],
    top?.[window]?.denied ?? [],
  ]);
  return rows.flat().find(({ descriptor }) => !isHashed(descriptor))?.descriptor ?? null;
}

function topPanel(app, domain) {
  let window = "minute";
  let top = null;
  const denied = keyTable(app, domain, "Denied hits", "top-denied", "No key was denied.");
  const all = keyTable(app, domain, "Hits", "top-all", "No hits.");
  const titles = [el("h3"), el("h3")];
  const show = (newTop) => {
    top = newTop ?? top;
    setText(titles[0], `Denied in the last ${window}`);
    setText(titles[1], `All hits in the last ${window}`);
    denied.show(top?.[window]?.denied ?? []);
    all.show(top?.[window]?.all ?? []);
  };
  const choice = windowChoice(window, (chosen) => {
    window = chosen;
    show(null);
  });
  const element = card(
    null,
    el("div", { class: "heading" }, el("h2", {}, "Top keys"), choice),
    el(
      "div",
      { class: "columns wide" },
      el("div", {}, titles[0], denied.element),
      el("div", {}, titles[1], all.element),
    ),
  );
  return { element, show };
}

function windowChoice(window, onChoice) {
  const buttons = ["minute", "hour"].map((name) =>
    el(
      "button",
      { type: "button", "aria-pressed": String(name === window), "data-test": `last-${name}` },
      `Last ${name}`,
    ),
  );
  ["minute", "hour"].forEach((name, at) =>
    buttons[at].addEventListener("click", () => {
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
      onChoice(name);
    }),
  );
  return el("div", { class: "choice", role: "group", "aria-label": "Time range of the top keys" }, buttons);
}

function keyTable(app, domain, title, test, empty) {
  const target =
    ({ descriptor }) =>
    () => ({ domain, descriptor, scope: "key" });
  return new Table({
    caption: title,
    test,
    empty,
    rowKey: ({ descriptor }) => descriptor,
    columns: [
      {
        title: "Key",
        header: true,
        kind: "key",
        key: ({ descriptor }) => descriptor,
        cell: ({ descriptor }) => keyLink(domain, descriptor),
      },
      { title, kind: "number", cell: ({ hits, error }) => (error ? `≤ ${count(hits)}` : count(hits)) },
      {
        title: "Change",
        kind: "actions",
        key: ({ descriptor }) => descriptor,
        cell: (row) => (isHashed(row.descriptor) ? null : app.actionButton("boost", "Boost…", target(row))),
      },
    ],
  });
}
