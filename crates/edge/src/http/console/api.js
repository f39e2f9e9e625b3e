// Calls the admin port.

const TIMEOUT_MS = 8_000;
const TOKEN = "sluicegate.token";

// The console may be served below a prefix of a reverse proxy.
const root = new URL("../", import.meta.url);

/** An error reply or a failed connection, with one sentence for the operator. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let tokenInMemory = null;

// Tabs of one browser session share the token, and its end.
const tabs = "BroadcastChannel" in globalThis ? new BroadcastChannel(TOKEN) : null;
tabs?.addEventListener("message", ({ data }) => {
  if (data.asks && token()) tabs.postMessage({ token: token() });
  if (data.ends) setToken(null);
});

/** Takes the token from a sign-in link, which must not stay in the address and the history. */
export function takeLinkToken() {
  const link = location.hash.match(/^#token=(.+)$/);
  if (!link) return;
  history.replaceState(null, "", location.pathname + location.search);
  // A damaged link signs nobody in.
  try {
    setToken(decodeURIComponent(link[1]));
  } catch {}
}

/** Takes the token from another tab that has one. */
export async function askTabs() {
  if (token() || !tabs) return;
  const answered = new AbortController();
  await new Promise((done) => {
    const take = ({ data }) => {
      if (!data.token) return;
      setToken(data.token);
      done();
    };
    tabs.addEventListener("message", take, { signal: answered.signal });
    tabs.postMessage({ asks: true });
    setTimeout(done, 100);
  });
  answered.abort();
}

/** Forgets the token, in all tabs. */
export function signOut() {
  setToken(null);
  tabs?.postMessage({ ends: true });
}

export function token() {
  try {
    return sessionStorage.getItem(TOKEN) ?? tokenInMemory;
  } catch {
    return tokenInMemory;
  }
}

export function setToken(value) {
  tokenInMemory = value;
  // Storage throws if the browser blocks it. The token then lasts until the page is reloaded.
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {}
}

/** Reads a page of JSON. */
export async function get(path, params, signal) {
  const page = await call("GET", path, params, signal);
  // The admin port answers an unknown path with the list of all paths.
  if (typeof page === "string") throw new ApiError(404, `This replica's version has no page /${path}.`);
  return page;
}

/** Sends a change. */
export function post(path, params) {
  return call("POST", path, params);
}

async function call(method, path, params = {}, signal = null) {
  const address = new URL(path, root);
  for (const [name, value] of Object.entries(params)) {
    if (value != null && value !== "") address.searchParams.append(name, value);
  }
  const headers = token() ? { authorization: `Bearer ${token()}` } : {};
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const ends = signal ? AbortSignal.any([signal, timeout]) : timeout;
  const options = { method, headers, signal: ends, cache: "no-store", credentials: "same-origin" };
  const reply = await send(address, options, signal);
  return read(reply, path);
}

async function send(address, options, signal) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    const isTimeout = error.name === "TimeoutError";
    const seconds = TIMEOUT_MS / 1_000;
    const why = isTimeout ? `did not reply within ${seconds} seconds` : "cannot be reached";
    throw new ApiError(0, `The replica ${why}.`);
  }
}

async function read(reply, path) {
  const isJson = reply.headers.get("content-type")?.startsWith("application/json");
  if (reply.ok) return isJson ? reply.json() : reply.text();
  const text = (await reply.text()).trim();
  throw new ApiError(reply.status, sentence(text || `${path} failed with status ${reply.status}`));
}

/** Writes an error text of the admin port as a sentence. */
function sentence(text) {
  const line = text.split("\n", 1)[0].slice(0, 400);
  return line.charAt(0).toUpperCase() + line.slice(1) + (/[.?!]$/.test(line) ? "" : ".");
}
