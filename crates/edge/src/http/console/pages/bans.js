// The page Bans: the keys that a `penalty` bans, with a button that lifts a ban.

import { card, el, linkTo, showText } from "../dom.js";
import { dateTime, plural, visible } from "../format.js";
import { Table, keyLink } from "../tables.js";

const MAX_ROWS = 500;

const EXAMPLE = `# a limits file
domain: shop
descriptors:
  - key: api_key
    rate_limit:
      unit: minute
      requests_per_unit: 600
      penalty: {after: 100, within: 1m, for: 10m, status: 403}`;

export default function bans(_params, app) {
  const table = banTable(app);
  const note = el("p", { class: "muted", "data-test": "bans-note" });
  const help = el(
    "div",
    { hidden: true, "data-test": "no-bans" },
    el("p", {}, "No key is banned. A limit with a penalty, in a limits file:"),
    el("pre", { class: "diff" }, EXAMPLE),
    el("p", { class: "muted" }, "The guide: docs/guides/ban-repeat-offenders.md."),
  );
  return {
    title: "Bans",
    element: card(null, table.element, help, note, app.whyNot()),
    sources: [{ name: "bans", path: "bans", params: { limit: MAX_ROWS }, every: 4_000 }],
    update({ bans: page }) {
      if (!page) return;
      const isShown = page.values === "shown";
      table.show(page.bans.map((ban) => ({ ...ban, isShown })));
      table.element.hidden = page.count === 0;
      help.hidden = page.count > 0;
      showText(note, page.count ? noteText(page, isShown) : "");
    },
  };
}

function noteText({ bans: shown, count }, isShown) {
  const more = count > shown.length ? `; the first ${shown.length} are shown` : "";
  const values = isShown
    ? ""
    : " Values are not shown (setting telemetry.descriptor_values): lift with `sluicegate ban lift`.";
  return `${plural(count, "banned key")}${more}.${values}`;
}

function banTable(app) {
  const nameOf = ({ domain, descriptor, limit }) => `${domain}\n${descriptor}\n${limit}`;
  return new Table({
    caption: "Banned keys, those that are banned longest first",
    test: "bans",
    rowKey: nameOf,
    columns: [
      {
        title: "Key",
        header: true,
        kind: "key",
        key: nameOf,
        cell: ({ domain, descriptor, isShown }) => [
          isShown ? keyLink(domain, descriptor) : descriptor,
          el("div", { class: "muted" }, visible(domain)),
        ],
      },
      {
        title: "Limit",
        kind: "key",
        key: ({ limit }) => limit,
        cell: ({ domain, rule, limit }) => linkTo("rule", { domain, path: rule }, limit),
      },
      { title: "Until", kind: "nowrap", cell: ({ until_unix_ms: until }) => dateTime(until) },
      {
        title: "",
        kind: "actions",
        key: nameOf,
        cell: (ban) => (ban.isShown ? app.actionButton("lift", "Lift…", () => ban) : null),
      },
    ],
  });
}
