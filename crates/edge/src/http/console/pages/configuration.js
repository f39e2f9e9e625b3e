// The page Configuration: the revision, the findings and the last difference.

import { card, el, facts, setText } from "../dom.js";
import { count, dateTime, plural } from "../format.js";
import { Table, badge } from "../tables.js";

const KINDS = { error: "bad", warning: "warn" };

export default function configuration() {
  const [about, findings] = [facts(), findingTable()];
  const diff = diffPanel();
  const domains = new Table({
    caption: "Domains",
    test: "domains",
    rowKey: ([name]) => name,
    columns: [
      { title: "Domain", header: true, cell: ([name]) => name },
      { title: "Rules", kind: "number", cell: ([, { rules }]) => count(rules) },
    ],
  });
  return {
    title: "Configuration",
    element: el(
      "div",
      {},
      el("div", { class: "columns" }, card("Loaded limits", about.element), card("Domains", domains.element)),
      card("Findings", findings.element),
      diff.element,
    ),
    sources: [
      { name: "config", path: "config" },
      { name: "diff", path: "config/diff", every: 6_000 },
    ],
    update({ config, diff: newDiff }) {
      if (newDiff) diff.show(newDiff);
      if (!config) return;
      showFacts(about, config);
      domains.show(Object.entries(config.domains));
      findings.show(allFindings(config));
    },
  };
}

function showFacts(list, config) {
  list.show("Revision", count(config.revision));
  list.show("Loaded at", dateTime(config.loaded_at ? Date.parse(config.loaded_at) : null));
  const state = config.last_error
    ? badge(`failed at ${dateTime(Date.parse(config.last_error.at))}`, "bad")
    : badge("succeeded", "good");
  list.show("Last load", state);
  list.show("Loads", `${count(config.loads)} succeeded, ${count(config.rejected)} rejected`);
  list.show(
    "Files",
    el(
      "ul",
      { class: "plain" },
      config.files.map((file) => el("li", {}, el("code", {}, file))),
    ),
  );
}

function allFindings({ last_error: error, warnings, more_warnings: more }) {
  const shown = [...(error?.diagnostics ?? []), ...warnings];
  const omitted = (error?.more ?? 0) + (more ?? 0);
  const rest =
    omitted === 0
      ? []
      : [{ severity: "note", code: "", message: `${plural(omitted, "more finding")} not shown` }];
  return [...shown, ...rest].map((finding, at) => ({ ...finding, at }));
}

function findingTable() {
  const place = ({ file, line, column }) => (file ? `${file}:${line}:${column}` : "");
  return new Table({
    caption: "Errors and warnings of the last load",
    test: "findings",
    empty: "No errors and no warnings.",
    rowKey: (finding) => `${finding.at} ${finding.code} ${place(finding)} ${finding.message}`,
    columns: [
      {
        title: "Severity",
        key: ({ severity }) => severity,
        cell: ({ severity }) => badge(severity, KINDS[severity]),
      },
      { title: "Code", cell: ({ code }) => code },
      { title: "Finding", kind: "text", cell: ({ message }) => message },
      { title: "Fix", kind: "text", cell: ({ help }) => help ?? "" },
      { title: "Where", kind: "text", cell: place },
    ],
  });
}

function diffPanel() {
  const title = el("h2", {}, "Last change");
  const lines = el("pre", { class: "diff", "data-test": "diff", tabindex: 0, "aria-label": "Difference" });
  const note = el("p", { class: "muted" });
  const show = ({ from_revision: from, to_revision: to, lines: changed, omitted }) => {
    const isEmpty = changed.length === 0;
    setText(title, isEmpty ? "Last change" : `Revision ${count(from)} to ${count(to)}`);
    lines.hidden = isEmpty;
    const rest = omitted ? `${plural(omitted, "more line")} not shown.` : "";
    setText(note, isEmpty ? "No difference to an earlier revision." : rest);
    if (lines.dataset.key === `${from} ${to}`) return;
    lines.dataset.key = `${from} ${to}`;
    lines.replaceChildren(...changed.map(diffLine));
  };
  return { element: el("section", { class: "card" }, title, note, lines), show };
}

function diffLine(text) {
  const kind = { "+": "ins", "-": "del" }[text[0]] ?? "span";
  return el(kind, {}, `${text}\n`);
}
