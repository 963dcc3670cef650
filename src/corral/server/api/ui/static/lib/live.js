// The live connection: one request gives the whole view, then changes follow. After any break everything comes again,
// so that what is shown is never an old state with new changes on top. Knows no page; pages read its signals.
import { batch, signal, useEffect, useState } from "./ui.js";
import { address, get, listeners } from "./api.js";
import { serverNow, setServerTime } from "./format.js";

export const connection = signal("connecting"); // connecting, live, broken, signed-out
export const me = signal(null);
export const overview = signal(null);
export const events = signal([]);
export const nodes = signal(new Map());
export const levels = signal([]);
export const jobsOnMap = signal({});
export const queues = signal([]);
export const seq = signal(0);
export const have = signal(""); // the parts that the view shown was asked with
export const leads = signal(true);
export const prices = signal(null); // of GPU-hours, if the site has set any
export const leader = signal(""); // its address, where this server is a standby
export const version = signal("");
export const signedOutWhy = signal("");

const EVENTS_KEPT = 50; // as many as a new view has
const RETRY_MS = 1000;
const jobListeners = new Set();
let source = null, parts = "", retry = 0, lastTick = Date.now();

export const may = verb => Boolean(me.value) && me.value.verbs.includes(verb);

// Called with the jobs that changed, as they are now, and whether there are more; and after every reconnection.
export function onJobs(listener) { jobListeners.add(listener); return () => jobListeners.delete(listener); }

// A number that changes after every record, but at most every few seconds: for what is read again after any change.
export function useNews(everyMs = 2000) {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let timer = 0;
    const undo = seq.subscribe(() => { if (!timer) timer = setTimeout(() => { timer = 0; setTurn(n => n + 1); }, everyMs); });
    return () => { undo(); clearTimeout(timer); };
  }, []);
  return turn;
}

// Whether the view has what a page needs.
export const hasParts = wanted => wanted.every(part => have.value.split(",").includes(part));

// Open the connection with what a page needs. Nothing happens if it has that already.
export function want(wanted) {
  const text = [...wanted].sort().join(",");
  if (text === parts && source) return;
  parts = text;
  open();
}

export function reopen() { if (connection.value !== "signed-out") open(); }
export function signedIn() { connection.value = "connecting"; open(); }

function open() {
  clearTimeout(retry);
  if (source) source.close();
  if (connection.value === "live") connection.value = "connecting";
  const asked = parts, opened = (source = new EventSource(address("live", { follow: true, parts })));
  opened.addEventListener("me", message => { if (opened === source) me.value = JSON.parse(message.data); });
  opened.addEventListener("view", message => { if (opened === source) takeView(JSON.parse(message.data), asked); });
  opened.addEventListener("change", message => { if (opened === source) takeChange(JSON.parse(message.data)); });
  opened.onerror = () => { if (opened === source) broken(); };
}

// A browser does not tell why a stream ended: ask, and try again until it works or the session is over.
async function broken() {
  if (source) source.close();
  source = null;
  if (connection.value !== "signed-out") connection.value = connection.value === "connecting" && !me.value ? "connecting" : "broken";
  clearTimeout(retry);
  try { await get("whoami"); } catch (problem) { if (problem.status === 401) return; }
  clearTimeout(retry);
  if (connection.value !== "signed-out") retry = setTimeout(open, RETRY_MS + Math.random() * 500);
}

listeners.signedOut = problem => {
  if (source) source.close();
  source = null;
  clearTimeout(retry);
  signedOutWhy.value = me.value ? problem.message : "";
  batch(() => { me.value = null; connection.value = "signed-out"; });
};

function takeView(view, asked) {
  batch(() => {
    have.value = asked;
    setServerTime(view.at_ms);
    seq.value = view.seq;
    version.value = view.version;
    leads.value = view.leads;
    prices.value = view.prices || null;
    leader.value = view.leader || "";
    overview.value = view.overview;
    events.value = view.events;
    if (view.topology) {
      levels.value = view.topology.levels;
      nodes.value = new Map(view.topology.nodes.map(node => [node.name, node]));
      jobsOnMap.value = view.topology.jobs;
    }
    if (view.queues) queues.value = view.queues;
    connection.value = "live";
  });
  for (const listener of jobListeners) listener([], true);
}

function takeChange(change) {
  batch(() => {
    setServerTime(change.at_ms); // in the batch: one drawing for all that has changed
    seq.value = change.seq;
    if (change.overview) overview.value = change.overview;
    const known = events.value[0]?.seq ?? 0, fresh = change.events.filter(event => event.seq > known);
    if (fresh.length) events.value = [...fresh, ...events.value].slice(0, EVENTS_KEPT);
    if (change.nodes.length || change.nodes_in_order) {
      let next = new Map(nodes.value);
      for (const node of change.nodes) next.set(node.name, node);
      if (change.nodes_in_order) next = new Map(change.nodes_in_order.filter(name => next.has(name)).map(name => [name, next.get(name)]));
      nodes.value = next;
    }
    if (change.nodes.length || change.nodes_in_order || Object.keys(change.jobs_on_map).length)
      jobsOnMap.value = named(nodes.value, { ...jobsOnMap.value, ...change.jobs_on_map });
    if (change.queues) queues.value = change.queues;
  });
  if (change.jobs.length || change.more_jobs) for (const listener of jobListeners) listener(change.jobs, change.more_jobs);
}

// Only the jobs that are still on some GPU, as in a new view.
function named(map, jobs) {
  const found = {};
  for (const node of map.values()) for (const job of node.jobs) if (job && jobs[job]) found[job] = jobs[job];
  return found;
}

// A laptop that slept, or a network that came back, does not wait for the old connection to time out.
setInterval(() => {
  const gone = Date.now() - lastTick;
  lastTick = Date.now();
  if (gone > 20000) reopen();
}, 5000);
// A connection may have been made to a server that did not lead yet, or has been led by another since: where this
// address leads to the leader by now, connect again.
setInterval(async () => {
  if (leads.value || connection.value !== "live" || document.hidden) return;
  try { if ((await get("health")).role === "leader" && !leads.value) reopen(); } catch { /* asked again */ }
}, 5000);
addEventListener("online", reopen);
addEventListener("pageshow", event => { if (event.persisted) reopen(); });
export const serverTime = serverNow;
