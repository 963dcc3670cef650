// Submit a job: a form for the common keys and the job file beside it, each following the other. The server checks the
// text as it is typed, and a dry run shows what would happen before anything is sent.
import { html, useEffect, useRef, useState } from "../lib/ui.js";
import { get, part, post, Problem, put, remove } from "../lib/api.js";
import { may, overview, prices, queues } from "../lib/live.js";
import { clock, count, money, plural } from "../lib/format.js";
import { go, jobLink, params } from "../lib/route.js";
import { Head, Notice, Panel, ProblemNotice, Time } from "../parts/basics.js";
import { confirm, toast } from "../parts/dialog.js";
import { toYaml } from "../parts/yaml.js";

const FIRST = { name: "train", queue: "default", command: "python train.py", gpus: 1, time_limit: "1h" };
// key, title, kind, note
const FIELDS = [
  ["name", "Name", "text", ""], ["queue", "Queue", "queue", ""], ["command", "Command", "command", "run by a shell on every task"],
  ["gpus", "GPUs", "text", "for each task; a number, or 2xH100"], ["tasks", "Tasks", "text", "a gang: all start together; 2..8 may shrink and grow"], ["cpus", "CPUs", "text", "for each task"], ["memory", "Memory", "text", "64GB"],
  ["time_limit", "Time limit", "text", "2h, 30m; lets others plan around it"], ["priority", "Priority", "number", "higher first"], ["array", "Array", "text", "0-9, or 0-99%10"], ["directory", "Directory", "text", "where it runs"],
  ["image", "Image", "text", "of a container"], ["within", "Within", "text", "a level of the topology, such as rack"], ["after", "After", "text", "jobs it waits for: 35, or ok 35"],
];
const LISTS = new Set(["after"]);
const numeric = text => (/^-?\d+$/.test(text) ? Number(text) : text);

function useCheck(text) {
  const [found, setFound] = useState({ documents: [], faults: [] });
  useEffect(() => { let over = false; const timer = setTimeout(() => post("jobs/check", { text }).then(answer => !over && setFound(answer)).catch(() => {}), 250); return () => { over = true; clearTimeout(timer); }; }, [text]);
  return found;
}

function useTemplates() {
  const [found, setFound] = useState([]);
  const again = () => get("templates").then(answer => setFound(answer.templates)).catch(() => {});
  useEffect(() => { again(); }, []);
  return [found, again];
}

// Templates of the site and of the viewer: begin with one, keep what is written as one.
function Templates({ text, onUse }) {
  const [found, again] = useTemplates(), [chosen, setChosen] = useState("");
  const key = each => `${each.site ? "site" : "own"}/${each.name}`, at = found.find(each => key(each) === chosen), mayChange = at && (!at.site || may("jobs.unbounded"));
  const use = event => { setChosen(event.target.value); const each = found.find(one => key(one) === event.target.value); if (each) onUse(each.text); };
  const keep = () => confirm({ title: "Save as a template", action: "Save", body: html`<p>The job file as it is now is kept on the server under this name; a template that has the name is replaced.</p><label class="field">Name<input name="name" required autofocus value=${at ? at.name : ""} maxlength="64" /></label>${may("jobs.unbounded") && html`<label class="check"><input type="checkbox" name="site" checked=${Boolean(at?.site)} />For all users, as a template of the site</label>`}`,
    run: async form => { const site = form.get("site") === "on", name = form.get("name"); await put(`templates/${part(name)}`, { text }, { site }); toast(`Template ${name} was saved.`); await again(); setChosen(`${site ? "site" : "own"}/${name}`); } });
  const drop = () => confirm({ title: `Remove the template ${at.name}?`, danger: true, action: "Remove", body: html`<p>${at.site ? "No user can begin with it any more." : "You cannot begin with it any more."} Jobs are not changed.</p>`, run: async () => { await remove(`templates/${part(at.name)}`, { site: at.site }); setChosen(""); toast("The template was removed."); await again(); } });
  const group = (title, list) => list.length > 0 && html`<optgroup label=${title}>${list.map(each => html`<option value=${key(each)}>${each.name}</option>`)}</optgroup>`;
  return html`<div class="row tight templates"><select aria-label="Begin with a template" value=${chosen} onChange=${use}><option value="">${found.length ? "Begin with a template…" : "No templates yet"}</option>${group("Yours", found.filter(each => !each.site))}${group("Of the site", found.filter(each => each.site))}</select><button class="small" onClick=${keep}>Save as…</button>${mayChange && html`<button class="small danger" onClick=${drop}>Remove…</button>`}</div>`;
}

function withChange(document, change) {
  const at = change.indexOf("="), key = change.slice(0, at), value = change.slice(at + 1);
  return at > 0 ? { ...document, [key]: numeric(value) } : document;
}

export default function Submit() {
  const [text, setText] = useState(""), [problem, setProblem] = useState(null), [plan, setPlan] = useState(null), [busy, setBusy] = useState(false), document_ = useRef(FIRST), area = useRef(null);
  const from = params.value.get("from"), set = params.value.get("set");
  useEffect(() => {
    const begin = found => { document_.current = set ? withChange(found, set) : found; setText(toYaml(document_.current)); };
    if (from) get(`jobs/${part(from)}/document`).then(found => begin(found.document)).catch(each => { setProblem(each); begin(FIRST); });
    else begin({ ...FIRST, queue: queues.value.find(queue => queue.name && !queue.children.length)?.name || "default" });
  }, [from]);
  const check = useCheck(text), document = check.documents[0] || document_.current;
  useEffect(() => { if (check.documents[0]) document_.current = check.documents[0]; }, [check]);
  const change = (key, value) => {
    const next = { ...document_.current };
    if (value === "") delete next[key]; else next[key] = LISTS.has(key) ? value.split(",").map(each => each.trim()) : key === "gpus" || key === "tasks" || key === "cpus" || key === "priority" ? numeric(value) : value;
    document_.current = next;
    setText(toYaml(next));
    setPlan(null);
  };
  const jump = fault => { const at = text.split("\n").slice(0, fault.line - 1).join("\n").length + fault.column; area.current.focus(); area.current.setSelectionRange(at, at); };
  const send = async isDry => {
    setBusy(true);
    setProblem(null);
    try {
      const checked = await post("jobs/check", { text });
      if (checked.faults.length) throw new Problem(422, { detail: plural(checked.faults.length, "error"), hint: "they are listed below the job file" });
      const answer = checked.documents.length > 1 ? await post("jobs/batch", { jobs: checked.documents }, { dry_run: isDry }) : await post("jobs", checked.documents[0], { dry_run: isDry });
      if (isDry) setPlan(answer); else { const id = answer.id || answer.jobs[0].id; toast(`Job ${id} was submitted.`); go(`jobs/${id}`); }
    } catch (found) { setProblem(found); setPlan(null); } finally { setBusy(false); }
  };
  const shown = key => { const value = document[key]; return value === undefined || value === null ? "" : Array.isArray(value) ? value.join(key === "command" ? " " : ", ") : typeof value === "object" ? JSON.stringify(value) : String(value); };
  const faultOf = key => check.faults.find(fault => fault.path[0] === key);
  const gpuCount = Number(String(document.gpus ?? 0).replace(/x.*/, "")) * Number(String(document.tasks ?? 1).split("..")[0]) || 0;
  return html`<${Head} title=${from ? `Submit job ${from} again` : "Submit a job"}><button onClick=${() => send(true)} disabled=${busy}>Try it: dry run</button><button class="primary" onClick=${() => send(false)} disabled=${busy || check.faults.length > 0}>Submit</button></${Head}>
    <div class="stack"><${ProblemNotice} problem=${problem} />${plan && html`<${Outcome} plan=${plan} gpus=${gpuCount} limit=${document.time_limit} />`}
    <div class="grid"><div class="w6"><${Panel} title="Form"><div class="form">${FIELDS.map(([key, title, kind, note]) => html`<label class="field ${kind === "command" ? "all" : ""}">${title}
      ${kind === "queue" ? html`<select value=${shown(key)} onChange=${event => change(key, event.target.value)}>${!queues.value.some(queue => queue.name === shown(key)) && html`<option>${shown(key)}</option>`}${queues.value.filter(queue => queue.name).map(queue => html`<option value=${queue.name}>${queue.name}</option>`)}</select>` : kind === "command" ? html`<textarea rows="3" class="mono" value=${shown(key)} onInput=${event => change(key, event.target.value)}></textarea>` : html`<input type=${kind === "number" ? "number" : "text"} value=${shown(key)} onInput=${event => change(key, event.target.value)} />`}
      ${faultOf(key) ? html`<small class="wrong">${faultOf(key).why}</small>` : note && html`<small>${note}</small>`}</label>`)}
      <label class="check"><input type="checkbox" checked=${Boolean(document.checkpoints)} onChange=${event => change("checkpoints", event.target.checked || "")} />It saves checkpoints</label><label class="check"><input type="checkbox" checked=${document.preemptible === false} onChange=${event => change("preemptible", event.target.checked ? false : "")} />It may not be preempted</label></div></${Panel}></div>
    <div class="w6"><${Panel} title="Job file" actions=${html`<${Templates} text=${text} onUse=${next => { setText(next); setPlan(null); }} />`} foot=${check.faults.length ? null : "No errors. Every key is explained in the documentation of the job file."}><div class="editor"><textarea ref=${area} aria-label="Job file in YAML" spellcheck="false" value=${text} onInput=${event => { setText(event.target.value); setPlan(null); }}></textarea></div>
      ${check.faults.length > 0 && html`<ul class="list" aria-live="polite">${check.faults.map(fault => html`<li><button class="link num" onClick=${() => jump(fault)}>${fault.line}:${fault.column}</button><span class="grow"><b>${fault.path.join(".")}</b> ${fault.why}${fault.hint && html` <span class="dim">${fault.hint}</span>`}</span></li>`)}</ul>`}</${Panel}></div></div></div>`;
}

const UNITS = { w: 604800000, d: 86400000, h: 3600000, m: 60000, s: 1000 };
// What the whole time limit would cost, where all GPUs of the site have one price.
function bound(gpus, limit) {
  const ms = [...String(limit).matchAll(/([0-9.]+) *([wdhms])(?!s)/gi)].reduce((sum, [, n, unit]) => sum + Number(n) * UNITS[unit.toLowerCase()], 0);
  const costs = new Set(overview.value.models.map(line => money(prices.value, line.model, gpus * ms)));
  return ms && costs.size === 1 && [...costs][0] ? `, ${[...costs][0]}` : "";
}

function Outcome({ plan, gpus, limit }) {
  const say = { starts: "starts at once", makes_room: "starts after others have left", waits: "waits" };
  return html`<${Panel} title="What would happen" actions=${html`<span class="dim">asked at ${clock(plan.at_ms)}; nothing was submitted</span>`}><div class="stack s">${plan.gangs.slice(0, 8).map(gang => html`<${Notice} level=${gang.outcome === "starts" ? "good" : gang.outcome === "waits" ? "warning" : "info"}><b>${gang.gang} ${say[gang.outcome]}</b>${gang.starts_ms && gang.outcome === "waits" ? html`, expected <${Time} ms=${gang.starts_ms} />` : ""}
      ${gang.seats.length > 0 && html`<div>on ${[...new Set(gang.seats.map(seat => seat.node))].slice(0, 6).join(", ")}</div>`}
      ${(gang.victims.length > 0 || gang.victims_hidden > 0) && html`<div>It would make leave: ${gang.victims.map(victim => html`<a href=${jobLink(victim.replace(/\D.*$/, ""))}>${victim}</a> `)}${gang.victims_hidden ? plural(gang.victims_hidden, "job that you may not see", "jobs that you may not see") : ""}</div>`}
      ${gang.reasons.map(reason => html`<div>${reason.text}</div>`)}${gang.changes.map(change => html`<div class="dim">${change.text}</div>`)}</${Notice}>`)}${plan.gangs.length > 8 && html`<p class="dim">and ${count(plan.gangs.length - 8)} more gangs</p>`}
    <div class="dim">${limit ? `At most ${count(gpus)} GPUs for ${limit}${bound(gpus, limit)}.` : `${count(gpus)} GPUs without a time limit: the cost has no bound.`}</div>
    ${plan.quota.length > 0 && html`<div class="scrolls" tabindex="0"><table><thead><tr><th>Queue</th><th>Resource</th><th class="r">In use</th><th class="r">Requested</th><th class="r">Guarantee</th><th class="r">Limit</th></tr></thead><tbody>${plan.quota.map(line => html`<tr><td>${line.queue || "all"}</td><td>${line.name}</td><td class="r">${count(line.used)}</td><td class="r">${count(line.asked)}</td><td class="r">${count(line.guarantee)}</td><td class="r">${count(line.limit)}</td></tr>`)}</tbody></table></div>`}</div></${Panel}>`;
}
