// The record of everything that happened, newest first: the audit log. Read backwards in pages, filtered by the server.
import { html, useEffect, useState } from "../lib/ui.js";
import { get } from "../lib/api.js";
import { seq, useNews } from "../lib/live.js";
import { count, fullTime } from "../lib/format.js";
import { params, setParams } from "../lib/route.js";
import { Empty, Head, Panel, ProblemNotice, Time } from "../parts/basics.js";
import { EventText } from "../parts/event-list.js";

const KINDS = { "": "everything", jobs: "jobs", nodes: "nodes and health", access: "users, roles, tokens, secrets", queues: "queues" };
const TYPES = { jobs: "JobSubmitted,JobEnded,JobCancelled,GangPlaced,GangStarted,GangStopped,GangEvicted,GangRequeued", nodes: "NodeAdded,NodeRemoved,NodeLost,NodeReturned,NodeHealthChanged,GpuHealthChanged,NodeDrained,NodeUndrained", access: "UserSet,UserRemoved,RoleGranted,RoleRevoked,TokenIssued,TokenRevoked,SecretSet,SecretRemoved,AccessRefused,Read", queues: "QueueSet,QueueRemoved" };
const BACK = 1000;

export default function Events() {
  const kind = params.value.get("kind") || "", queue = params.value.get("queue") || "", user = params.value.get("by") || "";
  const turn = useNews(), [found, setFound] = useState([]), [from, setFrom] = useState(null), [problem, setProblem] = useState(null), [open, setOpen] = useState(null);
  const read = async (upto, before) => {
    try {
      let first = upto, all = [];
      for (let n = 0; n < 10 && first > 0 && all.length < 100; n++) {
        const after = Math.max(0, first - BACK), answer = await get("events", { after, limit: 1000, types: TYPES[kind], queue });
        all = [...all, ...answer.events.filter(each => each.seq <= first && !before.has(each.seq)).reverse()];
        first = after;
      }
      setFrom(first);
      setProblem(null);
      return all;
    } catch (each) { setProblem(each); return []; }
  };
  useEffect(() => { let over = false; read(seq.peek(), new Set()).then(all => { if (!over) setFound(all); }); return () => { over = true; }; }, [kind, queue, turn]);
  const more = async () => { const known = new Set(found.map(each => each.seq)); const next = await read(from, known); setFound([...found, ...next.filter(each => !known.has(each.seq))]); };
  const shown = found.filter(each => !user || each.actor === user || each.user === user);
  return html`<${Head} title="Events" note="Everything that happened, and who did it; each record is chained to the one before it">
    <select aria-label="Kind" value=${kind} onChange=${event => setParams({ kind: event.target.value })}>${Object.entries(KINDS).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select><input aria-label="Queue" placeholder="Queue" value=${queue} style=${{ width: "110px" }} onChange=${event => setParams({ queue: event.target.value.trim() })} /><input aria-label="User" placeholder="User" value=${user} style=${{ width: "110px" }} onChange=${event => setParams({ by: event.target.value.trim() })} /></${Head}>
    <${ProblemNotice} problem=${problem} /><${Panel} flush foot=${from > 0 && html`<button class="link" onClick=${more}>Earlier events</button>`}>${shown.length ? html`<div class="scrolls" tabindex="0"><table><thead><tr><th class="r">Record</th><th>When</th><th>Who</th><th>What</th><th class="wide-only">Type</th></tr></thead><tbody>${shown.slice(0, 2000).map(event => html`<tr key=${event.seq}><td class="r dim">${count(event.seq)}</td><td class="nowrap"><${Time} ms=${event.at_ms} /></td><td>${event.actor}</td><td class="wrap"><${EventText} event=${event} />${open === event.seq && html`<div class="dim">${fullTime(event.at_ms)}</div><pre>${JSON.stringify(event.data, null, 2)}</pre>`}</td><td class="wide-only"><button class="link" aria-expanded=${String(open === event.seq)} onClick=${() => setOpen(open === event.seq ? null : event.seq)}>${event.type}</button></td></tr>`)}</tbody></table></div>` : html`<${Empty} title="No events">Nothing of this kind has happened, or you may not see it.</${Empty}>`}</${Panel}>`;
}
