// Fleets: nodes that other systems provide, wanted and present, with the trouble each has.
import { html, useEffect, useState } from "../lib/ui.js";
import { get, part, post, remove } from "../lib/api.js";
import { may, useNews } from "../lib/live.js";
import { count, plural } from "../lib/format.js";
import { nodeLink } from "../lib/route.js";
import { Empty, Facts, Head, Notice, Panel, ProblemNotice, Time } from "../parts/basics.js";
import { confirm, toast } from "../parts/dialog.js";

const resize = fleet => confirm({ title: `Resize ${fleet.name}`, action: "Resize", body: html`<div class="form"><label class="field">At least<input name="nodes_min" type="number" min="0" value=${fleet.nodes_min} /></label><label class="field">At most<input name="nodes_max" type="number" min="0" value=${fleet.nodes_max} /></label></div><p class="dim">A node above the minimum is given back when it has been idle for ${count(Math.round(fleet.idle_ms / 60000))} minutes.</p>`, run: async form => { await post(`fleets/${part(fleet.name)}/scale`, { nodes_min: Number(form.get("nodes_min")), nodes_max: Number(form.get("nodes_max")) }); toast(`Fleet ${fleet.name} was resized.`); } });
const recall = fleet => confirm({ title: `Give all nodes of ${fleet.name} back?`, danger: true, action: "Give back", body: html`<p>${plural(fleet.joined, "node")} will be given back, each when its jobs have left.</p>`, run: async () => { await remove(`fleets/${part(fleet.name)}`); toast(`Fleet ${fleet.name} is given back.`); } });

export default function Fleets() {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null), turn = useNews();
  useEffect(() => { let over = false; get("fleets").then(answer => { if (!over) { setFound(answer.fleets); setProblem(null); } }).catch(each => !over && setProblem(each)); return () => { over = true; }; }, [turn]);
  return html`<${Head} title="Fleets" note="Nodes from Slurm, Ray, SSH or a cloud" /><${ProblemNotice} problem=${problem} />
    ${found && !found.length ? html`<${Panel}><${Empty} title="No fleets"><p>Get nodes from another system, for example: <code>corral fleet up slurm</code></p></${Empty}></${Panel}>` : html`<div class="stack">${(found || []).map(fleet => html`<${Panel} title=${fleet.name} actions=${may("fleets.change") && html`<button class="small" onClick=${() => resize(fleet)}>Resize…</button><button class="small danger" onClick=${() => recall(fleet)}>Give back…</button>`}><div class="stack s">${fleet.trouble && html`<${Notice} level="error">${fleet.trouble}</${Notice}>`}<${Facts} facts=${[["Provider", fleet.on], ["Nodes", `${count(fleet.joined)} of ${count(fleet.wanted)} wanted`], ["Between", `${fleet.nodes_min} and ${fleet.nodes_max}`], ["Cost so far", fleet.price_milli ? (fleet.cost_milli / 1000).toFixed(2) : "–"], ["Owner", fleet.owner]]} />
    ${fleet.pilots.length > 0 && html`<div class="scrolls" tabindex="0"><table><thead><tr><th>Pilot</th><th>Phase</th><th>Where</th><th>Ordered</th><th>Until</th><th>Note</th></tr></thead><tbody>${fleet.pilots.map(pilot => html`<tr><td>${pilot.node ? html`<a href=${nodeLink(pilot.name)}>${pilot.name}</a>` : pilot.name}</td><td>${pilot.phase}</td><td>${pilot.where}</td><td><${Time} ms=${pilot.ordered_ms} /></td><td><${Time} ms=${pilot.until_ms} /></td><td class="dim">${pilot.why}</td></tr>`)}</tbody></table></div>`}</div></${Panel}>`)}</div>`}`;
}
