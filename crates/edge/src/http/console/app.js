// Shows the page of the address, keeps it up to date, and asks for the token.

import { openAction } from "./actions.js";
import { askTabs, get, setToken, signOut, takeLinkToken, token } from "./api.js";
import { el, setText, showText } from "./dom.js";
import { clock } from "./format.js";
import { Poller } from "./poller.js";
import audit from "./pages/audit.js";
import bans from "./pages/bans.js";
import budgets from "./pages/budgets.js";
import concurrency from "./pages/concurrency.js";
import configuration from "./pages/configuration.js";
import key from "./pages/key.js";
import overview from "./pages/overview.js";
import rule from "./pages/rule.js";
import rules from "./pages/rules.js";
import tables from "./pages/tables.js";

const PAGES = { audit, bans, budgets, concurrency, configuration, key, overview, rule, rules, tables };

// The page of the menu that contains a page.
const MENU = { rule: "rules" };

const byId = (id) => document.getElementById(id);
const main = byId("main");

let page = null;
let poller = null;
let lastData = null;
let identity = null;

/** The functions that pages use. */
const app = {
  /** Creates a button that opens the dialog of an action. `target` returns the action's target. */
  actionButton(name, text, target) {
    const open = () =>
      openAction(name, target(), (done) => {
        showText(byId("notice"), `${done}, by ${identity?.name ?? "you"}.`);
        poller?.start();
      });
    const button = el(
      "button",
      { type: "button", click: open, "data-changes": true, "data-test": `action-${name}` },
      text,
    );
    enableButton(button);
    return button;
  },
  /** Creates the sentence that explains disabled buttons. */
  whyNot() {
    const sentence = el("p", { class: "muted", "data-why-not": true, "data-test": "why-not" });
    explainButtons(sentence);
    return sentence;
  },
};

function enableButton(button) {
  button.disabled = !identity?.can_change;
  button.title = identity && !identity.can_change ? whyNotText() : "";
}

function explainButtons(sentence) {
  const isHidden = !identity || identity.can_change;
  showText(sentence, isHidden ? "" : `The buttons are disabled: ${whyNotText()}.`);
}

function whyNotText() {
  return identity.why_not ?? "this token may only view";
}

async function identify() {
  try {
    identity = await get("whoami");
  } catch {
    // The poller shows the same error.
    identity = null;
  }
  setText(byId("identity"), identity ? `${identity.name} · ${identity.role}` : "");
  byId("sign-out").hidden = !token();
  document.querySelectorAll("[data-changes]").forEach(enableButton);
  document.querySelectorAll("[data-why-not]").forEach(explainButtons);
}

function openPage() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const known = Object.hasOwn(PAGES, name) ? name : "overview";
  closePage();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (MENU[known] ?? known)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.querySelector("nav [aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
  page = PAGES[known](new URLSearchParams(query), app);
  document.title = `${page.title} · Sluicegate`;
  const heading = el("h1", {}, page.heading ?? page.title);
  main.replaceChildren(el("div", { class: "heading" }, heading, page.aside), page.element);
  main.dataset.page = known;
  main.hidden = false;
  byId("sign-in").hidden = true;
  poller = new Poller(page.sources, showRound);
  if (!document.hidden) poller.start();
  identify();
}

function closePage() {
  poller?.stop();
  page?.close?.();
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
  lastData = null;
  showText(byId("error"), "");
  showText(byId("notice"), "");
  setText(byId("freshness"), "");
  main.classList.remove("stale");
}

function showRound(data, error) {
  if (error?.status === 401) return askForToken();
  if (Object.keys(data).length > 0) error ??= update(data);
  page.element.hidden = lastData == null && [403, 404].includes(error?.status);
  main.classList.toggle("stale", error != null && lastData != null);
  const age = error && lastData ? ` The data below is from ${clock(lastData)}.` : "";
  showText(byId("error"), error ? error.message + age : "");
  if (lastData) setText(byId("freshness"), `Updated ${clock(lastData)}`);
}

/** Shows the data. Returns an error if the page cannot show it, such as that of another version. */
function update(data) {
  lastData = Date.now();
  try {
    page.update(data);
    return null;
  } catch (error) {
    console.error(error);
    return new Error(`This page cannot show the reply of the admin port (${error.message}).`);
  }
}

function askForToken() {
  closePage();
  page = null;
  main.hidden = true;
  const wrong = token() != null;
  setToken(null);
  const reason = wrong ? "The admin port does not accept this token." : "The admin port requires a token.";
  setText(byId("sign-in-reason"), reason);
  byId("sign-out").hidden = true;
  byId("sign-in").hidden = false;
  byId("token").value = "";
  byId("token").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value.trim());
  openPage();
});

byId("sign-out").addEventListener("click", () => {
  signOut();
  openPage();
});

// A plain link to `#main` would change the page.
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) poller?.stop();
  else if (page) poller?.start();
});

window.addEventListener("hashchange", () => {
  takeLinkToken();
  openPage();
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
});

takeLinkToken();
await askTabs();
openPage();
