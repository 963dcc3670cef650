// Queues as a tree with what each is guaranteed, uses, borrows and lends; the line in the order of service; and changes
// of settings, with what they would mean now.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, put, queuePath, remove } from "../lib/api.js";
import { may, onJobs, overview, queues } from "../lib/live.js";
import { count, gpus, hours, plural } from "../lib/format.js";
import { jobLink, link, params, setParams } from "../lib/route.js";
import { Empty, Facts, Head, Notice, Panel, ProblemNotice, Switch, Tabs, Time } from "../parts/basics.js";
import { Chart, ChartKey, RANGES, useSeries } from "../parts/chart.js";
import { confirm, toast } from "../parts/dialog.js";

const milli = (amounts, none = "–") => (amounts.gpu_milli === undefined ? none : gpus(amounts.gpu_milli));
const short = name => name.split("/").pop() || "all";

const Share = ({ queue, most }) => {
  const used = queue.used.gpu_milli || 0, borrowed = queue.borrowed.gpu_milli || 0, own = used - borrowed, scale = amount => `${Math.min(100, (100 * amount) / most)}%`;
  return html`<div class="share" role="img" aria-label="${gpus(used)} GPUs in use, ${gpus(borrowed)} of them borrowed, guarantee ${milli(queue.guarantee)}"><i style=${{ width: scale(own) }}></i>${borrowed > 0 && html`<i class="borrowed" style=${{ left: scale(own), width: scale(borrowed) }}></i>`}${queue.guarantee.gpu_milli > 0 && html`<u style=${{ left: `calc(${scale(queue.guarantee.gpu_milli)} - 1px)` }} title="guarantee"></u>`}</div>`;
};

function Tree({ chosen }) {
  const list = queues.value, most = Math.max(1000, (overview.value?.gpus.total || 0) * 1000);
  const lent = queue => Math.max(0, (queue.guarantee.gpu_milli || 0) - (queue.used.gpu_milli || 0));
  return html`<${Panel} title="Queues" flush actions=${html`<div class="legend"><span class="key"><i class="swatch g-running"></i>in use</span><span class="key"><i class="swatch" style=${{ background: "var(--purple)" }}></i>borrowed</span><span class="key"><b>|</b> guarantee</span></div>`}><div class="scrolls" tabindex="0"><table class="tree"><thead><tr><th>Queue</th><th style=${{ width: "26%" }}>GPUs in use</th><th class="r">In use</th><th class="r">Guarantee</th><th class="r">Limit</th><th class="r">Borrowed</th><th class="r">Unused guarantee</th><th class="r">Weight</th><th class="r">Running</th><th class="r">Waiting</th></tr></thead><tbody>${list.map(queue => html`<tr key=${queue.name}><td class="name" style=${{ paddingLeft: `${12 + 18 * (queue.name ? queue.name.split("/").length : 0)}px` }}><a href=${link("queues", { queue: queue.name || "" })} aria-current=${queue.name === chosen ? "true" : null}>${short(queue.name)}</a></td><td><${Share} queue=${queue} most=${most} /></td><td class="r">${milli(queue.used, "0")}</td><td class="r">${milli(queue.guarantee)}</td><td class="r">${milli(queue.limit, "none")}</td><td class="r">${milli(queue.borrowed, "0")}</td><td class="r">${queue.name && queue.guarantee.gpu_milli ? gpus(lent(queue)) : "–"}</td><td class="r">${queue.terms.weight}</td><td class="r">${count(queue.gangs_running)}</td><td class="r">${count(queue.gangs_waiting)}</td></tr>`)}</tbody></table></div></${Panel}>`;
}

// ---- one queue ----

const KEYS = [["guarantee", "Guarantee", "always available to it"], ["limit", "Limit", "the most it may use, with what it borrows"], ["lend", "Lends at most", "of its unused guarantee"], ["user_limit", "Per user", "the most one user may use"]];

function bodyOf(terms, form) {
  const number = name => (form.get(name) === "" ? undefined : Number(form.get(name)));
  const amount = (key, before) => { const rest = { ...before }; delete rest.gpu_milli; return number(key) === undefined ? rest : { ...rest, gpu_milli: Math.round(number(key) * 1000) }; };
  const body = { ...terms, weight: number("weight") ?? 1, max_jobs: number("max_jobs") ?? null, priority_ceiling: number("priority_ceiling") ?? null };
  for (const [key] of KEYS) body[key] = amount(key, terms[key]);
  return body;
}

function Settings({ queue, terms }) {
  const [typed, setTyped] = useState(null);
  return html`<div onInput=${event => setTyped(bodyOf(terms, new FormData(event.currentTarget.closest("form"))))}>${!queue && html`<label class="field">Name<input name="name" required placeholder="research/vision" /><small>A queue below another has its name before a slash.</small></label>`}
      <div class="form">${KEYS.map(([key, title, note]) => html`<label class="field">${title} (GPUs)<input name=${key} type="number" min="0" step="any" value=${terms[key].gpu_milli === undefined ? "" : terms[key].gpu_milli / 1000} placeholder="not set" /><small>${note}</small></label>`)}
      <label class="field">Weight<input name="weight" type="number" min="1" value=${terms.weight} /><small>its share of free capacity among its siblings</small></label><label class="field">Most jobs<input name="max_jobs" type="number" min="0" value=${terms.max_jobs ?? ""} placeholder="not set" /><small>unfinished ones</small></label><label class="field">Highest priority<input name="priority_ceiling" type="number" value=${terms.priority_ceiling ?? ""} placeholder="that of the site" /></label></div>
      ${queue && (typed ? html`<${Preview} name=${queue.name} body=${typed} />` : html`<${Notice}>${preview(queue)}</${Notice}>`)}</div>`;
}

function edit(queue) {
  const terms = queue?.terms || { guarantee: {}, limit: {}, lend: {}, user_limit: {}, weight: 1, max_jobs: null, max_jobs_per_user: null, budget: null, changes: [], priority_ceiling: null, time_share: 0, grace_max_ms: null, preemptible: null };
  confirm({
    title: queue ? `Settings of ${queue.name}` : "New queue", action: queue ? "Change" : "Create", wide: true,
    body: html`<${Settings} queue=${queue} terms=${terms} />`,
    run: async form => {
      const name = queue?.name || form.get("name");
      await put(`queues/${queuePath(name)}`, bodyOf(terms, form));
      toast(`Queue ${name} was ${queue ? "changed" : "created"}.`);
    },
  });
}

// What the planner would do with these settings, asked of the server as they are typed. Nothing is changed.
function Preview({ name, body }) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null), text = JSON.stringify(body);
  useEffect(() => { let over = false; const timer = setTimeout(() => put(`queues/${queuePath(name)}`, body, { dry_run: true }).then(answer => { if (!over) { setFound(answer); setProblem(null); } }).catch(each => { if (!over) { setProblem(each); setFound(null); } }), 400); return () => { over = true; clearTimeout(timer); }; }, [name, text]);
  if (problem) return html`<${ProblemNotice} problem=${problem} />`;
  if (!found) return html`<${Notice}>Asking the planner what these settings would mean now…</${Notice}>`;
  const hidden = found.reclaimed.filter(each => !each.gang), starts = found.starts.length + found.starts_hidden;
  if (!found.reclaimed.length && !starts && !found.kept_waiting.length) return html`<${Notice} level="good">With these settings nothing would have to leave or start now.</${Notice}>`;
  return html`<${Notice} level=${found.reclaimed.length ? "warning" : "info"}>${found.reclaimed.length > 0 && html`<b>${plural(found.reclaimed.length, "gang")} would have to leave now, with ${gpus(found.reclaimed.reduce((sum, each) => sum + each.gpu_milli, 0))} GPUs</b><ul>${found.reclaimed.filter(each => each.gang).slice(0, 8).map(each => html`<li><a href=${jobLink(each.job)}>${each.gang}</a> of ${each.user} in ${each.queue}${each.beneficiary ? `, for ${each.beneficiary}` : ""}</li>`)}${hidden.length > 0 && html`<li>${plural(hidden.length, "gang that you may not see", "gangs that you may not see")}</li>`}</ul>`}
    ${starts > 0 && html`<div>${plural(starts, "gang")} would start now${found.starts.length ? `: ${found.starts.slice(0, 8).join(", ")}` : ""}.</div>`}${found.kept_waiting.length > 0 && html`<div>${found.kept_waiting.slice(0, 8).join(", ")} would no longer start now.</div>`}</${Notice}>`;
}

// In short, before anything is typed: those who borrow now.
function preview(queue) {
  const borrowers = queues.value.filter(each => (each.borrowed.gpu_milli || 0) > 0 && each.name && !queue.name.startsWith(`${each.name}/`) && each.name !== queue.name && !each.children.length);
  const free = overview.value?.gpus.free || 0;
  if (!borrowers.length) return `Nobody borrows now: a higher guarantee would make nobody leave. ${plural(free, "GPU is", "GPUs are")} free.`;
  return `Beyond the ${plural(free, "free GPU")}, a higher guarantee that is used at once is taken back from those who borrow now: ${borrowers.map(each => `${each.name} (${milli(each.borrowed)})`).join(", ")}.`;
}

function Detail({ queue }) {
  const range = params.value.get("range") || "24h", lines = [{ name: `queue/${queue.name}/gpus_used`, label: "in use", colour: "blue", fill: true }, { name: `queue/${queue.name}/gpus_waiting`, label: "waited for", colour: "amber" }];
  const found = useSeries(queue.name ? lines.map(line => line.name) : ["cluster/gpus_used", "cluster/gpus_waiting"], range);
  const drawn = queue.name ? lines : [{ ...lines[0], name: "cluster/gpus_used" }, { ...lines[1], name: "cluster/gpus_waiting" }];
  const drop = () => confirm({ title: `Remove ${queue.name}?`, danger: true, action: "Remove", body: html`<p>Its roles and secrets are removed with it. A queue with jobs or children cannot be removed.</p>`, run: async () => { await remove(`queues/${queuePath(queue.name)}`); toast("The queue was removed."); setParams({ queue: "" }); } });
  return html`<${Panel} title=${queue.name || "The whole cluster"} actions=${html`<a class="button small" href=${link("jobs", { queue: queue.name })}>Jobs</a>${queue.name && may("queues.change") && html`<button class="small" onClick=${() => edit(queue)}>Settings…</button><button class="small danger" onClick=${drop}>Remove…</button>`}`}>
    <div class="stack"><${Facts} facts=${[["In use", `${milli(queue.used, "0")} GPUs`], ["Guarantee", milli(queue.guarantee, "none")], ["Limit", milli(queue.limit, "none")], ["Lends at most", milli(queue.terms.lend, "all of it")], ["Per user", milli(queue.terms.user_limit, "no limit")], ["Waiting", `${plural(queue.gangs_waiting, "gang")} for ${gpus(queue.gpu_milli_pending)} GPUs`], ["Used, decayed", `${hours(queue.used_gpu_ms)} GPU-hours`], ["Lost to preemption", `${hours(queue.loss_suffered_gpu_ms)} GPU-hours`], ["Made others lose", `${hours(queue.loss_caused_gpu_ms)} GPU-hours`], queue.budget_spent_gpu_ms !== null && ["Budget spent", `${hours(queue.budget_spent_gpu_ms)} of ${hours(queue.terms.budget.gpu_ms)} GPU-hours`]]} />
    <div><div class="row"><h3>History of its share</h3><span class="grow"></span><${ChartKey} lines=${drawn} /><${Switch} label="Time range" options=${RANGES} value=${range} onChange=${key => setParams({ range: key === "24h" ? "" : key })} /></div><${Chart} found=${found} lines=${drawn} height=${150} label="GPUs of the queue" /></div></div></${Panel}>`;
}

function Line({ queue }) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null);
  useEffect(() => {
    let over = false, timer = 0;
    const read = () => { timer = 0; get("line", { queue, limit: 200 }).then(answer => { if (!over) { setFound(answer); setProblem(null); } }).catch(each => !over && setProblem(each)); };
    read();
    const undo = onJobs(() => { if (!timer) timer = setTimeout(read, 3000); });
    return () => { over = true; clearTimeout(timer); undo(); };
  }, [queue]);
  return html`<${ProblemNotice} problem=${problem} /><${Panel} title="The line, in the order of service" flush actions=${found && html`<span class="dim">${plural(found.waiting, "gang waits", "gangs wait")}</span>`}>${found && !found.gangs.length ? html`<${Empty} title="Nothing waits to be served">Held jobs and jobs that wait for others are not in line.</${Empty}>` : html`<div class="scrolls" tabindex="0"><table><thead><tr><th class="r">#</th><th>Job</th><th>Queue</th><th>User</th><th class="r">Priority</th><th class="r">GPUs</th><th>Waits since</th><th>Starts</th><th>Why it waits</th></tr></thead><tbody>${(found?.gangs || []).map(each => html`<tr key=${each.gang}><td class="r">${each.place}</td><td><a href=${jobLink(each.job)}>${each.name || each.gang}</a></td><td>${each.queue}</td><td>${each.user}</td><td class="r">${each.priority}</td><td class="r">${count(each.gpus)}</td><td><${Time} ms=${each.waiting_since_ms} /></td><td>${each.starts_ms ? html`<${Time} ms=${each.starts_ms} />` : html`<span class="dim">–</span>`}</td><td class="dim wrap">${each.reason}</td></tr>`)}</tbody></table></div>`}</${Panel}>`;
}

export default function Queues() {
  const view = params.value.get("view") || "tree", name = params.value.get("queue"), chosen = queues.value.find(queue => queue.name === (name ?? "")) ;
  return html`<${Head} title="Queues" note=${plural(queues.value.filter(queue => queue.name).length, "queue")}>${may("queues.change") && html`<button class="primary" onClick=${() => edit(null)}>New queue…</button>`}</${Head}>
    <${Tabs} label="Views" at=${view} tabs=${[["tree", "Tree", link("queues", { queue: name })], ["line", "Line", link("queues", { view: "line", queue: name })]]} />
    <div class="stack">${view === "line" ? html`<${Line} queue=${name || null} />` : html`<${Tree} chosen=${name} />${chosen ? html`<${Detail} queue=${chosen} key=${chosen.name} />` : null}`}</div>`;
}
