// The dialog that asks for the details of a change and sends it.

import { ApiError, post } from "./api.js";
import { el, setText, showText } from "./dom.js";
import { count, parseDuration, plural, shortTime, spokenDuration, until, visible } from "./format.js";

/**
 * The actions by name. `fields` are the inputs. `effect` describes the change in one sentence.
 * `query` returns the parameters besides domain, descriptor and reason.
 */
const ACTIONS = {
  boost: {
    title: "Boost this key",
    path: "boost",
    fields: ["boost", "duration"],
    effect: (values, target) =>
      `The limit of ${target.descriptor} ${boostText(values, target)} for ${endText(values)}.`,
    query: (values) => ({ [values.kind]: values.amount, for: values.duration }),
    done: (target) => `The key ${target.descriptor} is boosted`,
  },
  unboost: {
    title: "End the boost",
    path: "unboost",
    fields: [],
    effect: (_, target) => `The boost of ${target.descriptor} ends now; its limit applies again.`,
    query: () => ({}),
    done: (target) => `The boost of ${target.descriptor} has ended`,
  },
  deny: forceAction("deny", "Force deny", "denied"),
  allow: forceAction("allow", "Force allow", "allowed"),
  unforce: {
    title: "End the forced decision",
    path: "unforce",
    fields: ["descriptor"],
    effect: (_, target) => `The forced decision of ${subject(target)} ends now; limits decide again.`,
    query: (_, target) => ({ scope: target.scope }),
    done: (target) => `The forced decision of ${subject(target)} has ended`,
  },
  reset: {
    title: "Reset the counter",
    path: "reset",
    fields: [],
    effect: (_, target) => `The counter of ${target.descriptor} becomes empty, in all replicas.`,
    query: () => ({}),
    done: (target) => `The counter of ${target.descriptor} is empty`,
  },
  lift: {
    title: "Lift the ban",
    path: "lift",
    fields: [],
    effect: (_, target) => `${visible(target.descriptor)} is not banned any more, in all replicas.`,
    query: () => ({}),
    done: (target) => `The ban of ${visible(target.descriptor)} is lifted`,
  },
  set: {
    title: "Set the amount",
    path: "set",
    fields: ["amount", "duration"],
    effect: (values, target) =>
      `${rowText(target)} is ${values.amount || "…"} for ${endText(values)}. ` +
      "Then that of the table applies again.",
    query: ({ amount, duration }, { table, id, column }) => ({ table, id, column, amount, for: duration }),
    done: (target, values) => `${rowText(target)} is ${values.amount}`,
  },
  unset: {
    title: "End the set amount",
    path: "unset",
    fields: [],
    effect: (_, target) => `${rowText(target)} is that of the table again.`,
    query: (_, { table, id, column }) => ({ table, id, column }),
    done: (target) => `${rowText(target)} is that of the table again`,
  },
  top_up: {
    title: "Top up the budget",
    path: "top_up",
    fields: ["topUp"],
    effect: (values, target) => `The amount of ${budgetText(target)} grows by ${values.amount || "…"}.`,
    query: ({ amount, id }) => ({ amount, id }),
    done: (target, { amount, id }, { added: isNew }) =>
      isNew
        ? `${amount} added to ${budgetText(target)}`
        : `The top-up ${id} was made before, so nothing changed`,
  },
  refund: {
    title: "Refund hits",
    path: "refund",
    fields: ["hits"],
    effect: (values, target) => `The counter of ${target.descriptor} gets ${hitsText(values)} back.`,
    query: (values) => ({ hits: values.hits }),
    done: (target, values, reply) =>
      `${hitsText(values)} refunded to ${target.descriptor}${missingText(reply)}`,
  },
};

function forceAction(verdict, title, effect) {
  return {
    title,
    path: "force",
    fields: ["descriptor", "duration"],
    effect: (values, target) =>
      `Every check of ${subject(target)} is ${effect} for ` +
      `${endText(values)}. Meanwhile no hits are counted.`,
    query: (values, target) => ({ as: verdict, for: values.duration, scope: target.scope }),
    done: (target) => `${subject(target)} is ${effect} by a forced decision`,
  };
}

function subject({ scope, limit, descriptor }) {
  return scope === "rule" ? `the rule ${limit}` : `the key ${descriptor}`;
}

function rowText({ table, id, column }) {
  return `The amount ${column} of ${visible(id)} in ${table}`;
}

function budgetText({ domain, descriptor }) {
  return `${visible(descriptor)} in ${domain}`;
}

function hitsText({ hits }) {
  return hits ? plural(Number(hits), "hit") : "…";
}

/** Says how many hits must still return before a check of one hit is allowed. */
function missingText({ to_refund: hits }) {
  return hits ? `, which is still denied: refund ${plural(hits, "more hit")}` : "";
}

function boostText({ kind, amount }, { requests, period }) {
  const per = period ? ` per ${period}` : "";
  if (!amount) return "becomes …";
  if (kind === "limit") return `becomes ${count(Number(amount))} requests${per}`;
  const product = requests == null ? "" : `, ${count(requests * Number(amount))} requests${per},`;
  return `is multiplied by ${amount}${product}`;
}

function endText({ duration }) {
  const end = parseDuration(duration);
  return end == null ? "…" : `${spokenDuration(duration)}, until ${shortTime(Date.now() + end)}`;
}

const FIELDS = {
  amount: amountField,
  boost: boostFields,
  descriptor: descriptorField,
  duration: durationField,
  hits: hitsField,
  topUp: topUpFields,
};

function amountField() {
  const input = el("input", {
    type: "text",
    name: "amount",
    id: "act-amount",
    required: true,
    pattern: "\\d+|unlimited|blocked",
    autocomplete: "off",
    placeholder: "600, unlimited or blocked",
    title: "A whole number, unlimited or blocked",
    "data-test": "act-amount",
  });
  return [label("act-amount", "Amount"), input];
}

function boostFields() {
  const kind = el(
    "select",
    { name: "kind", id: "act-kind", "data-test": "act-kind" },
    el("option", { value: "factor" }, "Multiply the limit by"),
    el("option", { value: "limit" }, "Set the limit to (requests)"),
  );
  const amount = el("input", {
    type: "number",
    name: "amount",
    id: "act-amount",
    min: 2,
    step: 1,
    value: 2,
    required: true,
    "data-test": "act-amount",
  });
  kind.addEventListener("input", () => {
    const isFactor = kind.value === "factor";
    amount.min = isFactor ? 2 : 1;
    amount.value = isFactor ? 2 : "";
  });
  return [label("act-kind", "Change"), kind, label("act-amount", "Value"), amount];
}

function durationField() {
  const choices = ["10m", "1h", "8h", "1d"].map((text) => el("option", { value: text }));
  const input = el("input", {
    type: "text",
    name: "duration",
    id: "act-duration",
    value: "1h",
    required: true,
    list: "act-durations",
    pattern: "(\\d+(ms|s|m|h|d))+",
    autocomplete: "off",
    title: "A duration such as 10m or 1h30m, at most a day",
    "data-test": "act-duration",
  });
  return [label("act-duration", "Duration"), input, el("datalist", { id: "act-durations" }, choices)];
}

function topUpFields({ unit }) {
  const amount = el("input", {
    type: "text",
    name: "amount",
    id: "act-amount",
    required: true,
    pattern: "\\d+(\\.\\d+)?[kMG]? +[A-Za-z_]+",
    autocomplete: "off",
    placeholder: `20 ${unit}`,
    title: `A number and the unit, such as 20 ${unit}`,
    "data-test": "act-amount",
  });
  const id = el("input", {
    type: "text",
    name: "id",
    id: "act-id",
    required: true,
    minlength: 16,
    maxlength: 128,
    pattern: "[0-9A-Za-z._\\-]+",
    value: `top-up-${randomHex()}`,
    autocomplete: "off",
    spellcheck: "false",
    title: "0-9A-Za-z._-, such as the number of an invoice",
    "data-test": "act-id",
  });
  return [label("act-amount", "Amount"), amount, label("act-id", "Id: a repeated one adds nothing"), id];
}

function randomHex() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function hitsField() {
  const input = el("input", {
    type: "number",
    name: "hits",
    id: "act-hits",
    min: 1,
    step: 1,
    required: true,
    "data-test": "act-hits",
  });
  return [label("act-hits", "Hits"), input];
}

function descriptorField(target) {
  if (target.scope !== "rule") return [];
  const input = el("input", {
    type: "text",
    name: "descriptor",
    id: "act-descriptor",
    required: true,
    value: target.descriptor ?? "",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "api_key=partner",
    "data-test": "act-descriptor",
  });
  return [label("act-descriptor", "A descriptor that this rule matches"), input];
}

function label(id, text) {
  return el("label", { for: id }, text);
}

/**
 * Asks for the details of a change and sends it. `target` is `{domain, descriptor, scope, limit}`,
 * with `requests` and `period` of its limit if they are known, `{table, id, column}`, or a budget.
 * `onDone` gets a sentence.
 */
export function openAction(name, target, onDone) {
  const action = ACTIONS[name];
  const fields = action.fields.flatMap((field) => FIELDS[field](target));
  const parts = dialogParts(action, fields);
  const values = () => Object.fromEntries(new FormData(parts.form));
  const showEffect = () => setText(parts.effect, action.effect(values(), target));
  parts.form.addEventListener("input", showEffect);
  parts.form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(action, target, values(), parts, onDone);
  });
  parts.dialog.addEventListener("close", () => parts.dialog.remove());
  document.body.append(parts.dialog);
  showEffect();
  parts.dialog.showModal();
}

function dialogParts(action, fields) {
  const reason = el("input", {
    type: "text",
    name: "reason",
    id: "act-reason",
    required: true,
    maxlength: 200,
    autocomplete: "off",
    placeholder: "ticket or cause",
    "data-test": "act-reason",
  });
  const effect = el("p", { class: "effect", "aria-live": "polite", "data-test": "act-effect" });
  const error = el("p", { class: "message bad", role: "alert", hidden: true, "data-test": "act-error" });
  const confirm = el(
    "button",
    { type: "submit", class: "primary", "data-test": "act-confirm" },
    action.title,
  );
  const cancel = el("button", { type: "button", "data-test": "act-cancel" }, "Cancel");
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "act-title" }, action.title),
    effect,
    el("div", { class: "fields" }, fields, label("act-reason", "Reason (required)"), reason),
    error,
    el("div", { class: "buttons" }, cancel, confirm),
  );
  const dialog = el("dialog", { "aria-labelledby": "act-title", "data-test": "act" }, form);
  cancel.addEventListener("click", () => dialog.close());
  return { dialog, form, effect, error, confirm };
}

async function submit(action, target, values, parts, onDone) {
  const reason = values.reason.trim();
  if (!reason) return showText(parts.error, "A reason is required.");
  parts.confirm.disabled = true;
  const descriptor = values.descriptor ?? target.descriptor;
  const params = { domain: target.domain, descriptor, ...action.query(values, target), reason };
  try {
    const reply = await post(action.path, params);
    parts.dialog.close();
    onDone(doneText(action, { ...target, descriptor }, values, reply));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showText(parts.error, error.message);
    parts.confirm.disabled = false;
  }
}

/** Returns the sentence after the change, without its end: the caller adds the operator's name. */
function doneText(action, target, values, reply) {
  const where = replicaText(reply);
  const length = values.duration ? parseDuration(values.duration) : null;
  const end = reply?.until_unix_ms ?? (length == null ? null : Date.now() + length);
  const done = action.done(target, values, reply ?? {});
  return done.charAt(0).toUpperCase() + done.slice(1) + (end == null ? "" : ` until ${until(end)}`) + where;
}

function replicaText({ replicas, store_failure: failure } = {}) {
  if (failure)
    return `, only in this replica, because the store is unavailable (${failure.replaceAll("_", " ")})`;
  return replicas > 1 ? `, in ${count(replicas)} replicas` : "";
}
