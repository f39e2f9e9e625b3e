// Builds elements. All text is set as text, so data is never read as markup.

/**
 * Creates an element. A function is an event listener; `true` is an attribute without a value;
 * `false`, `null` and `undefined` set nothing.
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Sets the text only if it differs, so that a selection and a screen reader are undisturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows the text in `element`, or hides the element if the text is empty. */
export function showText(element, text) {
  setText(element, text ?? "");
  element.hidden = !text;
}

/** Returns an address inside the console, such as `#/rule?domain=shop&path=shop.api_key`. */
export function pageLink(page, params = {}) {
  const set = Object.entries(params).filter(([, value]) => value != null && value !== "");
  const query = new URLSearchParams(set).toString();
  return query ? `#/${page}?${query}` : `#/${page}`;
}

/** Creates a link to another page of the console. */
export function linkTo(page, params, text) {
  return el("a", { href: pageLink(page, params) }, text);
}

/** Creates a card with a heading, if there is a title. */
export function card(title, ...children) {
  return el("section", { class: "card" }, title ? el("h2", {}, title) : null, ...children);
}

/** Creates a list of names and values. `show` sets the values; a `null` value hides its row. */
export function facts() {
  const element = el("dl", { class: "facts" });
  const rows = new Map();
  const row = (name) => {
    const value = el("dd");
    const element_row = el("div", {}, el("dt", {}, name), value);
    rows.set(name, { element_row, value });
    element.append(element_row);
    return rows.get(name);
  };
  const show = (name, content) => {
    const { element_row, value } = rows.get(name) ?? row(name);
    element_row.hidden = content == null;
    if (content instanceof Node) value.replaceChildren(content);
    else setText(value, content ?? "");
  };
  return { element, show };
}
