// The page Audit: the changes of operators.

import { card, el, linkTo, pageLink, showText } from "../dom.js";
import { dateTime, plural } from "../format.js";
import { Table, targetLink } from "../tables.js";

const MAX_ENTRIES = 500;

export default function audit(params) {
  const [domain, descriptor] = [params.get("domain") ?? "", params.get("descriptor") ?? ""];
  const table = auditTable({ withKey: true });
  const words = el("input", {
    type: "search",
    id: "audit-words",
    placeholder: "operator, action, reason",
    "data-test": "audit-filter",
  });
  const note = el("p", { class: "muted", "data-test": "audit-note" });
  let entries = [];
  const show = () => {
    const wanted = words.value.trim().toLowerCase();
    const shown = entries.filter((entry) => Object.values(entry).join(" ").toLowerCase().includes(wanted));
    table.show(shown);
  };
  words.addEventListener("input", show);
  return {
    title: "Audit",
    aside: el("div", { class: "tools" }, el("label", { for: "audit-words" }, "Filter"), words),
    element: el("div", {}, filterForm(domain, descriptor), card("Changes", table.element, note)),
    sources: [
      { name: "audit", path: "audit", params: { limit: MAX_ENTRIES, domain, descriptor }, every: 4_000 },
    ],
    update({ audit: data }) {
      if (!data) return;
      entries = data.entries;
      show();
      const survival = data.survives_restart
        ? "The store keeps them over restarts."
        : "They are in memory and end with this process; the log has them, too.";
      const failure = data.store_failure ? " The store is unavailable, so entries may be missing." : "";
      showText(note, `${plural(entries.length, "entry", "entries")}. ${survival}${failure}`);
    },
  };
}

function filterForm(domain, descriptor) {
  const input = (name, value) =>
    el("input", { type: "text", id: `audit-${name}`, name, value, autocomplete: "off", spellcheck: "false" });
  const form = el(
    "form",
    { class: "card row", "data-test": "audit-form" },
    el("div", {}, el("label", { for: "audit-domain" }, "Domain"), input("domain", domain)),
    el(
      "div",
      { class: "grow" },
      el("label", { for: "audit-descriptor" }, "Descriptor"),
      input("descriptor", descriptor),
    ),
    el("button", { type: "submit" }, "Show"),
    domain || descriptor ? linkTo("audit", {}, "Show all") : null,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const fields = new FormData(form);
    location.hash = pageLink("audit", {
      domain: fields.get("domain").trim(),
      descriptor: fields.get("descriptor").trim(),
    });
  });
  return form;
}

/** The table of audit entries, on this page and on that of a key. */
export function auditTable({ withKey }) {
  const keyColumn = {
    title: "Key",
    kind: "key",
    key: ({ descriptor }) => descriptor ?? "",
    cell: (entry) => (entry.descriptor ? targetLink(entry) : null),
  };
  const ruleColumn = {
    title: "Rule",
    kind: "key",
    key: ({ limit }) => limit ?? "",
    cell: ({ domain, limit }) => (limit ? linkTo("rule", { domain, path: limit }, limit) : null),
  };
  const entryKey = (entry) =>
    [entry.at_unix_ms, entry.by, entry.replica, entry.action, entry.limit, entry.descriptor].join("\n");
  return new Table({
    caption: "Changes of operators, newest first",
    test: "audit",
    empty: "No changes.",
    rowKey: entryKey,
    columns: [
      { title: "Time", header: true, kind: "nowrap", cell: ({ at_unix_ms }) => dateTime(at_unix_ms) },
      { title: "By", cell: ({ by }) => by },
      { title: "Action", cell: ({ action, detail }) => (detail ? `${action}: ${detail}` : action) },
      ...(withKey ? [keyColumn] : []),
      ruleColumn,
      { title: "Until", kind: "nowrap", cell: ({ until_unix_ms }) => dateTime(until_unix_ms) },
      { title: "Reason", kind: "text", cell: ({ reason }) => reason },
      { title: "Replica", kind: "minor", cell: ({ replica }) => replica },
    ],
  });
}
