// All jobs: searched, filtered and sorted by the server, read as they come into sight, and kept current. The whole view
// is in the address, so that a link shows the same.
import { html, useEffect, useMemo, useRef, useState } from "../lib/ui.js";
import { get } from "../lib/api.js";
import { may, me, onJobs, useNews } from "../lib/live.js";
import { count, now, span } from "../lib/format.js";
import { go, jobLink, link, nodeLink, params, queueLink, setParams } from "../lib/route.js";
import { useShortcut } from "../lib/keys.js";
import { Empty, Head, State, Time } from "../parts/basics.js";
import { ask, titleOf } from "../parts/job-actions.js";
import { useWindow, VTable } from "../parts/vtable.js";

const STATES = ["waiting", "starting", "running", "stopping", "succeeded", "failed", "cancelled"];
const TIMES = [["", "any time"], ["1", "last hour"], ["24", "last 24 hours"], ["168", "last 7 days"], ["720", "last 30 days"]];
const ENDED = ["succeeded", "failed", "cancelled"];
const runTime = job => (job.started_ms && job.state !== "waiting" ? (job.ended_ms ?? now.value) - job.started_ms : null);
const waited = job => (job.started_ms ?? job.ended_ms ?? now.value) - job.submitted_ms;

const columns = [
  { key: "id", title: "Job", width: "76px", right: true, draw: job => html`<a href=${jobLink(job.id)} class="mono">${job.id}</a>` },
  { key: "name", title: "Name", width: "minmax(150px, 2fr)", sort: "name", draw: job => html`<a class="name" href=${jobLink(job.id)} title=${job.name}>${job.name || "–"}</a>${job.array_size ? html` <span class="tag">× ${count(job.array_size)}</span>` : ""}` },
  { key: "state", title: "State", width: "116px", sort: "state", draw: job => html`<${State} state=${job.state} held=${job.held} />` },
  { key: "gpus", title: "GPUs", width: "70px", right: true, sort: "gpus", draw: job => count(job.gpus) },
  { key: "queue", title: "Queue", width: "minmax(100px, 1fr)", sort: "queue", draw: job => html`<a href=${queueLink(job.queue)}>${job.queue}</a>` },
  { key: "user", title: "User", width: "minmax(80px, .7fr)", sort: "user", draw: job => job.user },
  { key: "priority", title: "Priority", width: "82px", right: true, sort: "priority", draw: job => job.priority, off: true },
  { key: "submitted", title: "Submitted", width: "112px", sort: "submitted", draw: job => html`<${Time} ms=${job.submitted_ms} />` },
  { key: "waited", title: "Waited", width: "92px", right: true, draw: job => span(waited(job)), off: true },
  { key: "started", title: "Started", width: "100px", sort: "started", draw: job => html`<${Time} ms=${job.started_ms} />`, off: true },
  { key: "ended", title: "Ended", width: "100px", sort: "ended", draw: job => html`<${Time} ms=${job.ended_ms} />`, off: true },
  { key: "time", title: "Run time", width: "96px", right: true, draw: job => (runTime(job) === null ? "–" : span(runTime(job))) },
  { key: "attempts", title: "Attempts", width: "82px", right: true, draw: job => count(job.attempts), off: true },
  { key: "labels", title: "Labels", width: "minmax(110px, 1fr)", draw: job => Object.entries(job.labels).map(([key, value]) => html`<span class="tag">${key}=${value}</span> `), off: true },
  { key: "starts", title: "Starts", width: "92px", draw: job => (job.state === "waiting" && job.starts_ms ? html`<${Time} ms=${job.starts_ms} />` : html`<span class="dim">–</span>`) },
  { key: "where", title: "Nodes, or why it waits", width: "minmax(200px, 2.4fr)", draw: job => (job.nodes.length ? html`${job.nodes.slice(0, 3).map((node, n) => html`${n ? ", " : ""}<a href=${nodeLink(node)}>${node}</a>`)}${job.nodes_held > 3 ? ` and ${job.nodes_held - 3} more` : ""}` : html`<span class="dim" title=${job.reason || job.why}>${job.reason || job.why}</span>`) },
];
const usual = columns.filter(column => !column.off).map(column => column.key);

function chosenColumns() {
  const stated = params.value.get("columns") || stored();
  const keys = stated ? stated.split(",") : usual;
  return columns.filter(column => keys.includes(column.key));
}
const stored = () => { try { return localStorage.getItem("corral-columns"); } catch { return null; } };

function query() {
  const stated = params.value, hours = Number(stated.get("hours"));
  return {
    search: stated.get("search"), states: stated.get("states"), queue: stated.get("queue"), user: stated.get("user"), labels: stated.get("labels"),
    node: stated.get("node"), gpu_model: stated.get("gpu_model"), since_ms: hours ? Math.round(Date.now() / 60000) * 60000 - hours * 3600000 : null,
    sort: stated.get("sort") || "submitted", descending: (stated.get("up") ? false : true),
  };
}

function Columns() {
  const [open, setOpen] = useState(false), shown = chosenColumns().map(column => column.key);
  const toggle = key => {
    const next = columns.map(column => column.key).filter(each => (each === key) !== shown.includes(each));
    try { localStorage.setItem("corral-columns", next.join(",")); } catch { /* not kept */ }
    setParams({ columns: next.join(",") });
  };
  return html`<div class="menu-anchor"><button type="button" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>Columns</button>${open && html`<div class="popup" role="group" aria-label="Columns">${columns.map(column => html`<label class="check item"><input type="checkbox" checked=${shown.includes(column.key)} onChange=${() => toggle(column.key)} />${column.title}</label>`)}</div>`}</div>`;
}

export default function Jobs() {
  const asked = query(), key = JSON.stringify(asked);
  const view = useWindow((offset, limit) => get("jobs", { ...asked, offset, limit }).then(found => ({ rows: found.jobs, total: found.total })), key);
  const [selected, setSelected] = useState(new Map()), [at, setAt] = useState(null), [text, setText] = useState(asked.search || "");
  const states = (asked.states || "").split(",").filter(Boolean), timer = useRef(0), field = useRef(null);
  useEffect(() => { setSelected(new Map()); setAt(null); }, [key]);
  useEffect(() => { setText(asked.search || ""); }, [asked.search]);
  useEffect(() => {
    const due = () => { if (!timer.current) timer.current = setTimeout(() => { timer.current = 0; if (!document.hidden) view.again(); }, 2000); };
    const undo = onJobs((jobs, more) => {
      const changed = new Map(jobs.map(job => [job.id, job]));
      const known = new Set(view.rows().map(job => job.id));
      view.patch(row => { const next = changed.get(row.id); return next && (next.state === "waiting" && row.state === "waiting" ? { ...next, reason: next.reason || row.reason, starts_ms: next.starts_ms ?? row.starts_ms } : next); });
      if (more || jobs.some(job => !known.has(job.id)) || states.length) due();
    });
    return () => { undo(); clearTimeout(timer.current); timer.current = 0; };
  }, [key]);
  const news = useNews(5000); // why a job waits changes with what others do
  useEffect(() => { if (news && !document.hidden) view.again(); const later = setTimeout(() => { if (!document.hidden) view.again(); }, 10000); return () => clearTimeout(later); }, [news]);
  const search = useMemo(() => { let wait = 0; return value => { clearTimeout(wait); wait = setTimeout(() => setParams({ search: value.trim() }), 200); }; }, []);
  const filtered = ["search", "states", "queue", "user", "labels", "node", "gpu_model", "hours"].some(name => params.value.get(name));
  // Those that have ended cannot be changed: of the states that are chosen only the others count.
  const unfinished = states.filter(state => !ENDED.includes(state)), canFilter = !states.length || unfinished.length > 0;
  const offersAll = may("jobs.change") && filtered && canFilter && view.total > 1;
  useShortcut("f", "Filter the jobs", () => field.current?.focus());
  useShortcut("c", "Cancel the selected jobs", () => selected.size && act("cancel"));
  useShortcut("C", "Cancel all jobs that match", () => offersAll && actAll("cancel"));
  useShortcut("a", "Select the jobs that are read so far", () => may("jobs.change") && setSelected(new Map(view.rows().filter(job => !ENDED.includes(job.state)).map(job => [job.id, job]))));
  const toggle = row => setSelected(before => { const next = new Map(before); if (!next.delete(row.id)) next.set(row.id, row); return next; });
  const act = deed => ask(deed, { jobs: [...selected.keys()] }, [...selected.values()].map(job => `${job.id} ${job.name}`), () => { setSelected(new Map()); setTimeout(view.again, 300); });
  const actAll = deed => ask(deed, { filter: { states: unfinished, search: asked.search || null, node: asked.node || null, gpu_model: asked.gpu_model || null, user: asked.user || null, queue: asked.queue || null, labels: asked.labels ? asked.labels.split(",") : [], since_ms: asked.since_ms } }, null, () => setTimeout(view.again, 300));
  const sortBy = name => setParams(asked.sort === name ? { up: asked.descending ? "1" : "" } : { sort: name === "submitted" ? "" : name, up: ["name", "queue", "user", "state"].includes(name) ? "1" : "" });
  const Field = ({ name, label, width }) => html`<input class="wide-only" aria-label=${label} placeholder=${label} value=${params.value.get(name) || ""} style=${{ width }} onChange=${event => setParams({ [name]: event.target.value.trim() })} />`;
  const empty = filtered ? html`<${Empty} title="No job matches"><div class="row"><button onClick=${() => go("jobs")}>Clear the filters</button></div></${Empty}>`
    : html`<${Empty} title="No jobs yet"><p>Submit one here, or with <code>corral submit --gpus 1 -- python train.py</code>.</p>${may("jobs.submit") && html`<div class="row"><a class="button primary" href=${link("submit")}>Submit a job</a></div>`}</${Empty}>`;
  return html`<${Head} title="Jobs" note=${view.total === null ? "…" : `${count(view.total)} ${filtered ? "match" : "in all"}`}><button onClick=${() => setParams({ user: asked.user ? "" : me.value.user })} class="chip" aria-pressed=${String(asked.user === me.value.user)}>Mine</button><${Columns} />${may("jobs.submit") && html`<a class="button primary" href=${link("submit")}>Submit</a>`}</${Head}>
    <div class="filters" role="group" aria-label="Filters"><input ref=${field} type="search" aria-label="Name, number, queue or user" placeholder="Name, number, queue or user" style=${{ width: "240px" }} value=${text} onInput=${event => { setText(event.target.value); search(event.target.value); }} />
      <div class="chips" role="group" aria-label="States">${STATES.map(state => html`<button class="chip" type="button" aria-pressed=${String(states.includes(state))} onClick=${() => setParams({ states: (states.includes(state) ? states.filter(each => each !== state) : [...states, state]).join(",") })}><${State} state=${state} /></button>`)}</div>
      <${Field} name="queue" label="Queue" width="110px" /><${Field} name="user" label="User" width="90px" /><${Field} name="labels" label="label=value" width="110px" /><${Field} name="node" label="Node" width="90px" /><${Field} name="gpu_model" label="GPU model" width="100px" />
      <select aria-label="Submitted" value=${params.value.get("hours") || ""} onChange=${event => setParams({ hours: event.target.value })}>${TIMES.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select>
      ${filtered && html`<button class="small plain" onClick=${() => go("jobs")}>Clear</button>`}</div>
    ${may("jobs.change") && (selected.size > 0 || offersAll) && html`<div class="selection no-print" role="group" aria-label="Selection">${selected.size > 0 ? html`<b>${count(selected.size)} selected</b>${["cancel", "hold", "release", "requeue", "priority"].map(deed => html`<button class="small ${deed === "cancel" ? "danger" : ""}" onClick=${() => act(deed)}>${titleOf(deed)}</button>`)}<button class="small plain" onClick=${() => setSelected(new Map())}>Clear</button>` : html`<span>All ${count(view.total)} that match:</span>${["cancel", "hold", "release", "requeue", "priority"].map(deed => html`<button class="small ${deed === "cancel" ? "danger" : ""}" onClick=${() => actAll(deed)}>${titleOf(deed)}…</button>`)}`}</div>`}
    <${VTable} columns=${chosenColumns()} view=${view} label="Jobs" rowKey="id" sort=${asked.sort} descending=${asked.descending} onSort=${sortBy} selected=${selected} onToggle=${may("jobs.change") ? toggle : null} onOpen=${row => go(`jobs/${row.id}`)} at=${at} onAt=${setAt} empty=${empty} />`;
}
