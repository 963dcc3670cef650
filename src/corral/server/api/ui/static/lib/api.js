// Requests to the API of this server: one function for all, errors as the API words them, and the session's proof
// that a change comes from this page. Knows no page.

// This file is <root>/ui/<version>/lib/api.js, wherever a proxy has put <root>.
export const root = new URL("../../../", import.meta.url);

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered with ${status}`);
    Object.assign(this, { status, code: body.code || "", hint: body.hint || "", field: body.field || "", faults: body.faults || [] });
  }
}

let csrf = "";
export const listeners = { signedOut: () => {} };

export function address(path, params = {}) {
  const url = new URL(`v1/${path}`, root);
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length))
      url.searchParams.set(name, Array.isArray(value) ? value.join(",") : value);
  }
  return url;
}

export const get = (path, params, more) => request("GET", path, params, undefined, more);
export const post = (path, body, params) => request("POST", path, params, body ?? {});
export const put = (path, body, params) => request("PUT", path, params, body ?? {});
export const remove = (path, params) => request("DELETE", path, params);

export async function request(method, path, params, body, more = {}) {
  const answer = await raw(method, path, params, body, more);
  if (answer.status === 204) return null;
  return answer.json();
}

export async function raw(method, path, params, body, more = {}) {
  const headers = { Accept: "*/*" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  asking(1);
  try { return await answered(method, path, params, body, more, headers); } finally { asking(-1); }
}

// How many requests are not answered yet: for tests, which wait until there are none.
let asked = 0;
function asking(change) {
  asked += change;
  if (asked) document.documentElement.dataset.asking = asked; else delete document.documentElement.dataset.asking;
}

async function answered(method, path, params, body, more, headers) {
  const isSignIn = method === "POST" && (path === "session" || path.startsWith("sign-in/"));
  if (method !== "GET" && !isSignIn) headers["Corral-CSRF"] = csrf || (await proof());
  let answer;
  try {
    answer = await fetch(address(path, params), {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: more.signal, cache: "no-store",
      redirect: method === "GET" ? "follow" : "manual",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the server does not answer", hint: "the page reconnects by itself" });
  }
  if (answer.type === "opaqueredirect")
    throw new Problem(307, { detail: "this server is a standby and cannot change anything", hint: "open the dashboard of the leader" });
  if (answer.ok) return answer;
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401) listeners.signedOut(problem);
  throw problem;
}

async function proof() {
  csrf = (await get("session")).csrf;
  return csrf;
}

export async function signIn(body) {
  const session = await request("POST", "session", {}, body);
  csrf = session.csrf;
  return session;
}

// With an identity provider: go to its page, and come back to this one with a code in the address.
export async function goToProvider(provider) {
  location.assign((await request("POST", "sign-in/browser", {}, { provider })).page);
}

export async function backFromProvider(body) {
  const session = await request("POST", "sign-in/browser/result", {}, body);
  csrf = session.csrf;
  return session;
}

export async function signOut() {
  await raw("DELETE", "session", {}, undefined, {}).catch(() => {});
  csrf = "";
}

// A job may be named with a role or with elements: 35/trainer, 35[3-9].
export const part = name => encodeURIComponent(name);
export const queuePath = name => name.split("/").map(encodeURIComponent).join("/");
