// The start: signed in or not, and which page is shown. Pages are loaded when they are first opened.
import { html, render, signal, effect, useEffect } from "./lib/ui.js";
import { connection, hasParts, me, overview, want } from "./lib/live.js";
import { path } from "./lib/route.js";
import { Shell } from "./parts/shell.js";
import { ProblemNotice, Empty } from "./parts/basics.js";
import "./parts/theme.js";

// page -> its module, and what it needs of the live view beside the overview
const pages = {
  overview: ["./pages/overview.js", []],
  jobs: ["./pages/jobs.js", []],
  job: ["./pages/job.js", ["nodes"]],
  submit: ["./pages/submit.js", ["queues"]],
  map: ["./pages/map.js", ["nodes"]],
  nodes: ["./pages/node.js", ["nodes"]],
  gantt: ["./pages/gantt.js", []],
  queues: ["./pages/queues.js", ["queues"]],
  batching: ["./pages/batching.js", []],
  usage: ["./pages/usage.js", []],
  fleets: ["./pages/fleets.js", []],
  access: ["./pages/access.js", ["queues"]],
  events: ["./pages/events.js", []],
  "sign-in": ["./pages/sign-in.js", []],
};
const modules = signal({});
const problem = signal(null);

function pageName() {
  const [first = "overview", second] = path.value;
  return first === "jobs" && second ? "job" : first;
}

effect(() => {
  const name = connection.value === "signed-out" ? "sign-in" : pageName();
  const [file, parts] = pages[name] || [];
  if (!file) return;
  if (name !== "sign-in") want(parts);
  if (!modules.peek()[name])
    import(file).then(found => { modules.value = { ...modules.peek(), [name]: found.default }; problem.value = null; }).catch(error => { problem.value = error; });
});

function App() {
  const isOut = connection.value === "signed-out" || pageName() === "sign-in";
  const name = isOut ? "sign-in" : pageName();
  const Page = modules.value[name];
  useEffect(() => { document.title = `${name[0].toUpperCase()}${name.slice(1)} · Corral`; }, [name]);
  if (isOut) return Page ? html`<${Page} />` : null;
  if (!me.value || !overview.value) return html`<p class="starting" role="status">Connecting…</p>`;
  if (!pages[name]) return html`<${Shell}><${Empty} title="There is no such page"><a href="#/overview">Go to the overview</a></${Empty}></${Shell}>`;
  return html`<${Shell}><${ProblemNotice} problem=${problem.value} />${Page && hasParts(pages[name][1]) ? html`<div class="page" data-page=${name}><${Page} key=${name} /></div>` : html`<p class="dim">Loading…</p>`}</${Shell}>`;
}

render(html`<${App} />`, document.getElementById("app"));
