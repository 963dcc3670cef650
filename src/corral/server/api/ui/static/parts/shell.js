// The frame around every page: navigation, search, the state of the connection, and who is signed in.
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { get, signOut } from "../lib/api.js";
import { connection, leader, leads, may, me, overview, reopen, version } from "../lib/live.js";
import { go, jobLink, link, nodeLink, path, queueLink } from "../lib/route.js";
import { allShortcuts, shortcut } from "../lib/keys.js";
import { count } from "../lib/format.js";
import { Notice, State } from "./basics.js";
import { confirm, Overlays } from "./dialog.js";
import { Icon } from "./icons.js";
import { theme, toggle } from "./theme.js";

// page, text, key after "g", icon, the right without which it is not offered
const pages = [
  ["overview", "Overview", "o"], ["jobs", "Jobs", "j"], ["submit", "Submit", "s", "jobs.submit"], null,
  ["map", "Map", "m"], ["gantt", "Gantt", "t"], ["queues", "Queues", "q"], ["batching", "Batching", "b"], ["usage", "Usage", "u", "usage.read"], ["fleets", "Fleets", "f", "fleets.read"], null,
  ["access", "Access", "a"], ["events", "Events", "e"],
];
const groups = ["", "Cluster", "People"];
const offered = page => page && (!page[3] || may(page[3]));

function Side({ open, onClose }) {
  const at = path.value[0] || "overview", here = { nodes: "map" }[at] || at;
  let group = 0;
  return html`<nav class="side ${open ? "open" : ""}" aria-label="Pages" onClick=${onClose}>
    <a class="brand" href=${link("overview")}><img src=${new URL("../icon.svg", import.meta.url).href} alt="" />Corral</a>
    ${pages.map(page => page === null ? html`<div class="group">${groups[++group]}</div>` : offered(page) && html`<a class="nav" href=${link(page[0])} aria-current=${here === page[0] ? "page" : null}>
      <${Icon} name=${page[0]} />${page[1]}${page[0] === "jobs" && overview.value ? html`<span class="count" title="waiting gangs">${count(overview.value.gangs_waiting)} waiting</span>` : null}</a>`)}
    <div class="foot">Corral ${version.value}<br /><a href="v1/docs">API</a> · <button class="link" onClick=${help}>Keyboard</button></div></nav>`;
}

function help() {
  const keys = [["/", "Search"], ["?", "This list"], ...allShortcuts().filter(([each]) => !["/", "?"].includes(each))];
  confirm({ title: "Keyboard", body: html`<table><tbody>${keys.map(([each, what]) => html`<tr><td class="nowrap">${each.split(" ").map(key => html`<kbd>${key}</kbd> `)}</td><td>${what}</td></tr>`)}</tbody></table>` });
}

const words = { live: "Live", connecting: "Connecting…", broken: "Reconnecting…" };
const Connection = () => html`<span class="link-state ${connection.value === "live" ? "" : connection.value === "broken" ? "off" : "wait"}" role="status" title=${words[connection.value]}><i></i><span>${words[connection.value]}</span></span>`;

// ---- search as you type ----

function Search() {
  const [text, setText] = useState(""), [found, setFound] = useState(null), [at, setAt] = useState(0), field = useRef(null);
  useEffect(() => shortcut("/", "Search", () => field.current?.focus()), []);
  useEffect(() => {
    if (!text.trim()) { setFound(null); return undefined; }
    const stop = new AbortController();
    const timer = setTimeout(() => get("search", { text: text.trim() }, { signal: stop.signal }).then(answer => { setFound(answer); setAt(0); }).catch(() => {}), 120);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [text]);
  const items = found ? [
    ...found.jobs.map(job => ["Jobs", jobLink(job.id), html`<span class="mono dim">${job.id}</span><span class="grow cut">${job.name || "no name"}</span><${State} state=${job.state} />`]),
    ...found.nodes.map(name => ["Nodes", nodeLink(name), name]), ...found.queues.map(name => ["Queues", queueLink(name), name]), ...found.users.map(name => ["Users", link("jobs", { user: name }), name]),
  ] : [];
  const close = () => { setText(""); setFound(null); };
  const press = event => {
    if (event.key === "Escape") { close(); field.current.blur(); }
    if (event.key === "ArrowDown") { event.preventDefault(); setAt(Math.min(at + 1, items.length - 1)); }
    if (event.key === "ArrowUp") { event.preventDefault(); setAt(Math.max(at - 1, 0)); }
    if (event.key === "Enter") { if (items[at]) location.hash = items[at][1]; else if (text.trim()) go("jobs", { search: text.trim() }); close(); field.current.blur(); }
  };
  let before = "";
  return html`<div class="search" role="search"><input ref=${field} type="search" placeholder="Search jobs, nodes, queues, people" aria-label="Search" value=${text} role="combobox" aria-expanded=${String(Boolean(found))} aria-controls="found"
    onInput=${event => setText(event.target.value)} onKeyDown=${press} onBlur=${() => setTimeout(() => setFound(null), 200)} /><kbd aria-hidden="true">/</kbd>
    ${found && html`<div class="popup" id="found" role="listbox" aria-label="Results">${items.map(([group, href, shown], n) => { const title = group !== before; before = group; return html`${title && html`<div class="group" role="presentation">${group}</div>`}<a role="option" aria-selected=${String(n === at)} href=${href} onClick=${close}>${shown}</a>`; })}
      ${!items.length && html`<div class="item dim" role="option" aria-selected="false">Nothing has “${text}” in its name.</div>`}</div>`}</div>`;
}

function Account() {
  const [open, setOpen] = useState(false);
  useEffect(() => { if (!open) return undefined; const close = () => setOpen(false); addEventListener("click", close); return () => removeEventListener("click", close); }, [open]);
  return html`<div class="menu-anchor"><button class="plain" aria-haspopup="true" aria-expanded=${String(open)} onClick=${event => { event.stopPropagation(); setOpen(!open); }}><${Icon} name="access" /><span class="wide-only">${me.value.user}</span></button>
    ${open && html`<div class="popup"><div class="group">${me.value.user}</div>${me.value.roles.map(each => html`<div class="item dim">${each.role}${each.queue ? ` of ${each.queue}` : " of the cluster"}</div>`)}
    <a href=${link("access/tokens")}>Tokens and sessions</a><button class="item" onClick=${async () => { await signOut(); location.reload(); }}>Sign out</button></div>`}</div>`;
}

export function Shell({ children }) {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const undo = [shortcut("?", "Keyboard", help), shortcut("t", "Light or dark", toggle), ...pages.filter(offered).map(([page, text, key]) => shortcut(`g ${key}`, `Go to ${text}`, () => go(page)))];
    return () => undo.forEach(each => each());
  }, [me.value]);
  return html`<div class="shell"><${Side} open=${open} onClose=${() => setOpen(false)} />
    <div class="main"><div class="bar"><button class="plain menu" aria-label="Pages" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}><${Icon} name="menu" /></button>
      <${Search} /><span class="grow"></span><${Connection} /><button class="plain" aria-label=${theme.value === "dark" ? "Light theme" : "Dark theme"} onClick=${toggle}><${Icon} name=${theme.value === "dark" ? "sun" : "moon"} /></button><${Account} /></div>
      <main class="content">${connection.value === "broken" && html`<div class="stack s"><${Notice} level="warning">The connection to the server is broken. What you see may be out of date; the page reconnects by itself. <button class="link" onClick=${reopen}>Try now</button></${Notice}><div></div></div>`}
      ${!leads.value && html`<${Notice}>This server is a standby: it shows what is in the record, and changes nothing. Output, figures over time and reasons for waiting are at ${/^https?:\/\//.test(leader.value) ? html`<a href=${`${leader.value}/`}>the leader</a>` : "the leader"}.</${Notice}><div class="gap"></div>`}${children}</main></div></div><${Overlays} />`;
}
