// The output of a job: all ranks in order of time, or one task from any place of a log of any size. Lines are drawn only
// where they are seen; a log is read in parts; searching never blocks the page. Knows lines, not jobs' states.
import { html, useEffect, useMemo, useRef, useState } from "../lib/ui.js";
import { address, part, Problem, raw } from "../lib/api.js";
import { bytes, clock, count } from "../lib/format.js";
import { pieces, plainText } from "../lib/ansi.js";
import { Empty, ProblemNotice, Switch } from "./basics.js";
import { toast } from "./dialog.js";

const LINE = 18, TAIL = 1000, TAIL_MAX = 10000, LINES_MAX = 20000, CHUNK = 262144, LENGTH_MAX = 4000, SAVED_MAX = 256 << 20;
const WRONG = /\b(error|exception|traceback|fatal|failed|panic|out of memory|nan loss|segmentation fault|killed)\b/i;

// ---- where lines come from ----

// A stream of parts: a line of JSON, then as many bytes as it says. Calls `take(head, text)` for each part.
async function readParts(stream, take, stop) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let held = new Uint8Array(0);
  const more = async () => { const { value, done } = await reader.read(); if (done) return false; const next = new Uint8Array(held.length + value.length); next.set(held); next.set(value, held.length); held = next; return true; };
  try {
    while (!stop.aborted) {
      let end;
      while ((end = held.indexOf(10)) < 0) if (!(await more())) return false;
      const head = JSON.parse(decoder.decode(held.subarray(0, end)));
      held = held.subarray(end + 1);
      while (held.length < (head.size || 0)) if (!(await more())) return false;
      take(head, decoder.decode(held.subarray(0, head.size || 0)));
      held = held.subarray(head.size || 0);
      if (head.over) return true;
    }
  } finally { reader.cancel().catch(() => {}); }
  return false;
}

const toLines = (text, who, stream, at) => text.replace(/\n$/, "").split("\n").map(line => ({ text: line.slice(0, LENGTH_MAX), who, stream, at }));

// All output of a job, the last lines first, then what is written. Follows until the job has ended.
function useOutput(job, stream, tail, attempt, active) {
  const [state, setState] = useState({ lines: [], over: false, problem: null, loading: true });
  useEffect(() => {
    if (!active) return undefined;
    const stop = new AbortController();
    let lines = [], over = false, timer = 0;
    const show = () => { timer = 0; if (lines.length > LINES_MAX) lines = lines.slice(-LINES_MAX); setState({ lines: [...lines], over, problem: null, loading: false }); };
    const take = (head, text) => {
      if (head.over) over = true;
      if (text) for (const line of toLines(text, head.label || String(head.rank ?? head.task ?? ""), head.stream, head.at_ms)) lines.push(line);
      if (!timer) timer = setTimeout(show, 50);
    };
    const follow = async () => {
      while (!stop.signal.aborted && !over) {
        try {
          lines = [];
          const answer = await raw("GET", `jobs/${part(job)}/output`, { tail, stream, attempt, follow: true }, undefined, { signal: stop.signal });
          if (await readParts(answer.body, take, stop.signal)) break;
        } catch (problem) {
          if (stop.signal.aborted) return;
          if (problem instanceof Problem) { setState({ lines, over: false, problem, loading: false }); if (problem.status && problem.status < 500) return; }
        }
        await new Promise(next => setTimeout(next, 1500));
      }
    };
    setState({ lines: [], over: false, problem: null, loading: true });
    follow();
    return () => { stop.abort(); clearTimeout(timer); };
  }, [job, stream, tail, attempt, active]);
  return state;
}

// Lines that end in the middle of a line, where a part was read, are continued by the next part.
function joined(before, after, isOpen) {
  if (!isOpen || !before.length || !after.length) return [...before, ...after];
  const last = before[before.length - 1];
  return [...before.slice(0, -1), { ...last, text: (last.text + after[0].text).slice(0, LENGTH_MAX) }, ...after.slice(1)];
}

// One stream of one task, by bytes: any part of a log of any size. Keeps only what is near; at the end of the log it
// follows what is written.
function useTask(job, task, active) {
  const [state, setState] = useState({ lines: [], first: 0, next: 0, isOpen: false, over: false, atEnd: false, loading: true, problem: null });
  const here = useRef(state);
  here.current = state;
  const read = async (offset, limit) => {
    const params = { gang: task.gang, task: task.task, stream: task.stream, limit, ...(offset < 0 ? { tail: -offset } : { offset }) };
    const answer = await raw("GET", `jobs/${part(job)}/logs`, params);
    const text = await answer.text(), next = Number(answer.headers.get("Corral-Log-Next"));
    return { text, lines: text ? toLines(text, "", task.stream, 0) : [], isOpen: Boolean(text) && !text.endsWith("\n"), from: Number(answer.headers.get("Corral-Log-Offset")), next, over: answer.headers.get("Corral-Log-Over") === "true" };
  };
  const put = (found, atEnd) => setState({ lines: found.lines, first: found.from, next: found.next, isOpen: found.isOpen, over: found.over, atEnd, loading: false, problem: null });
  const guarded = run => async (...about) => { setState({ ...here.current, loading: true }); try { await run(...about); } catch (problem) { setState({ ...here.current, loading: false, problem: problem instanceof Problem ? problem : null }); } };
  const later = async () => {
    const before = here.current, found = await read(before.next, CHUNK);
    if (here.current.next !== before.next) return; // another part was read meanwhile
    setState({ ...here.current, lines: joined(before.lines, found.lines, before.isOpen).slice(-LINES_MAX), next: found.next, isOpen: found.text ? found.isOpen : before.isOpen, over: found.over, atEnd: found.text.length < CHUNK / 4, loading: false, problem: null });
  };
  const api = {
    last: guarded(async () => put(await read(-CHUNK, CHUNK), true)),
    at: guarded(async offset => put(await read(Math.max(0, offset), CHUNK), false)),
    earlier: guarded(async () => {
      const before = here.current, from = Math.max(0, before.first - CHUNK);
      if (from === before.first) { setState({ ...before, loading: false }); return; }
      const found = await read(from, before.first - from);
      setState({ ...before, lines: joined(found.lines, before.lines, found.isOpen).slice(0, LINES_MAX), first: found.from, atEnd: false, loading: false });
    }),
    later: guarded(later),
    // Look from a place on, part by part, until `where(text)` gives an index, or the log ends.
    find: async (offset, where, stop, tell) => {
      while (!stop.aborted) {
        const found = await read(offset, 1 << 20), at = where(found.text);
        tell(found.next);
        if (at >= 0) { put(await read(Math.max(0, found.from + bytesOf(found.text.slice(0, at)) - 4096), CHUNK), false); return true; }
        if (found.next <= offset) return false;
        offset = found.next;
        await new Promise(next => setTimeout(next));
      }
      return false;
    },
  };
  useEffect(() => { if (active) api.last(); }, [job, task.gang, task.task, task.stream, active]);
  useEffect(() => {
    if (!active) return undefined;
    const timer = setInterval(() => { const now = here.current; if (now.atEnd && !now.over && !now.loading && !document.hidden) later().catch(() => {}); }, 1000);
    return () => clearInterval(timer);
  }, [job, task.gang, task.task, task.stream, active]);
  return [state, api];
}
const encoder = new TextEncoder(), bytesOf = text => encoder.encode(text).length;

// ---- how they are shown ----

const Piece = ({ kind, text, query }) => {
  if (!query) return kind ? html`<span class=${kind}>${text}</span>` : text;
  const at = text.toLowerCase().indexOf(query);
  return at < 0 ? html`<span class=${kind}>${text}</span>` : html`<span class=${kind}>${text.slice(0, at)}<mark>${text.slice(at, at + query.length)}</mark>${text.slice(at + query.length)}</span>`;
};

function Lines({ lines, query, wanted, showWho, isLive, label }) {
  const box = useRef(null), pinned = useRef(true);
  const [top, setTop] = useState(0), [height, setHeight] = useState(500);
  useEffect(() => { const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight || 500)); watch.observe(box.current); return () => watch.disconnect(); }, []);
  useEffect(() => { if (pinned.current && isLive) box.current.scrollTop = lines.length * LINE; }, [lines, isLive]);
  useEffect(() => { if (wanted !== null) { pinned.current = false; box.current.scrollTop = Math.max(0, wanted * LINE - height / 2); } }, [wanted]);
  const scroll = event => { const at = event.target; pinned.current = at.scrollTop + at.clientHeight > at.scrollHeight - 3 * LINE; setTop(at.scrollTop); };
  const first = Math.max(0, Math.floor(top / LINE) - 20), last = Math.min(lines.length, Math.ceil((top + height) / LINE) + 20);
  return html`<div class="lines" ref=${box} onScroll=${scroll} tabindex="0" role="log" aria-label=${label} aria-live="off"><div style=${{ height: `${lines.length * LINE}px` }}>${lines.slice(first, last).map((line, n) => {
    const at = first + n, isHit = query && line.text.toLowerCase().includes(query);
    return html`<div class="line ${isHit ? "hit" : ""} ${at === wanted ? "now" : ""}" key=${at} style=${{ top: `${at * LINE}px` }}>${showWho && html`<span class="who" title=${line.at ? clock(line.at) : ""}>${line.who}${line.stream === "stderr" ? " err" : ""}</span>`}${pieces(line.text).map(([kind, text]) => html`<${Piece} kind=${kind} text=${text} query=${query} />`)}</div>`;
  })}</div></div>`;
}

export function LogViewer({ job, tasks, isOver }) {
  const [which, setWhich] = useState("all"), [stream, setStream] = useState(""), [tail, setTail] = useState(TAIL), [query, setQuery] = useState(""), [wanted, setWanted] = useState(null), [jump, setJump] = useState(null), [looking, setLooking] = useState(null);
  const task = which === "all" ? { gang: "", task: 0, stream: "stdout" } : { ...tasks[Number(which)], stream: stream || "stdout" };
  const output = useOutput(job, stream, tail, 0, which === "all");
  const [part_, reader] = useTask(job, task, which !== "all");
  const isAll = which === "all", shown = isAll ? output : part_, lines = shown.lines, text = query.trim().toLowerCase();
  const hits = useMemo(() => (text ? lines.flatMap((line, n) => (plainText(line.text).toLowerCase().includes(text) ? [n] : [])) : []), [lines, text]);
  useEffect(() => { setWanted(null); }, [which, stream, text]);
  const next = step => { if (!hits.length) { if (!isAll && text && step > 0) findOn(); return; } const at = hits.findIndex(each => each >= (wanted ?? -1) + (step > 0 ? 1 : 0)); setWanted(step > 0 ? hits[at < 0 ? 0 : at] : hits[(hits.findIndex(each => each === wanted) - 1 + hits.length) % hits.length]); };
  const look = async (offset, where, jump) => {
    const stop = new AbortController();
    setLooking({ stop, at: offset });
    const found = await reader.find(offset, where, stop.signal, at => setLooking({ stop, at })).catch(() => false);
    setLooking(null);
    if (found) setJump(() => jump); else if (!stop.signal.aborted) toast("Not found up to the end of the log.", "info");
  };
  const isHit = line => plainText(line.text).toLowerCase().includes(text), isWrong = line => WRONG.test(plainText(line.text));
  const findOn = () => look(part_.next, found => found.toLowerCase().indexOf(text), isHit);
  const firstError = () => {
    if (!isAll && part_.first > 0) { look(0, found => found.search(WRONG), isWrong); return; }
    const at = lines.findIndex(isWrong);
    if (at >= 0) setWanted(at); else if (isAll || part_.atEnd) toast(isAll && lines.length >= tail ? "No error in the lines shown; there are earlier lines, and each rank has its whole log." : "No line looks like an error.", "info"); else look(part_.next, found => found.search(WRONG), isWrong);
  };
  // Where a search has led to: the first such line of what was read for it.
  useEffect(() => { if (jump) { const at = lines.findIndex(jump); setJump(null); setWanted(at < 0 ? null : at); } }, [jump, lines]);
  // All ranks are put together here; one stream of one task is sent by the server, whole once it has ended.
  const saveAll = async () => {
    const stop = new AbortController(), found = [];
    let size = 0, cut = false;
    try {
      const answer = await raw("GET", `jobs/${part(job)}/output`, { stream }, undefined, { signal: stop.signal });
      await readParts(answer.body, (head, text) => { if (!text || cut) return; const who = head.label || String(head.rank ?? head.task ?? ""); found.push(tasks.length > 1 ? text.replace(/^(?=.)/gm, `${who}: `) : text); size += text.length; if (size > SAVED_MAX) { cut = true; stop.abort(); } }, stop.signal).catch(problem => { if (!cut) throw problem; });
    } catch (problem) { if (!cut) { toast(problem.message, "error"); return; } }
    const url = URL.createObjectURL(new Blob(found, { type: "text/plain" })), link = document.createElement("a");
    link.href = url;
    link.download = `job-${job}.log`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    if (cut) toast("Only the first 256 MB were saved; the log of each rank can be downloaded whole.", "info");
  };
  const download = isAll ? null : address(`jobs/${part(job)}/logs`, { gang: task.gang, task: task.task, stream: task.stream, ...(isOver ? { follow: true } : { tail: 16777216, limit: 16777216 }) });
  return html`<div class="log"><div class="tools no-print">
    <select aria-label="Which output" value=${which} onChange=${event => setWhich(event.target.value)}><option value="all">All ranks, by time</option>${tasks.map((each, n) => html`<option value=${String(n)}>${each.title}</option>`)}</select>
    <${Switch} label="Streams" options=${[["", isAll ? "Both" : "Output"], ...(isAll ? [["stdout", "Output"]] : []), ["stderr", "Errors"]]} value=${stream} onChange=${setStream} />
    <input type="search" aria-label="Search in the log" placeholder="Search" value=${query} onInput=${event => setQuery(event.target.value)} onKeyDown=${event => event.key === "Enter" && next(event.shiftKey ? -1 : 1)} style=${{ width: "180px" }} />
    ${text && html`<span class="dim num">${count(hits.length)} lines</span><button class="small" aria-label="Previous" onClick=${() => next(-1)}>↑</button><button class="small" aria-label="Next" onClick=${() => next(1)}>↓</button>`}${looking && html`<span class="dim">searching at ${bytes(looking.at)} <button class="link" onClick=${() => looking.stop.abort()}>stop</button></span>`}
    <button class="small" onClick=${firstError}>First error</button><span class="grow"></span>
    ${isAll ? html`${lines.length >= tail && tail < TAIL_MAX && html`<button class="small" onClick=${() => setTail(Math.min(TAIL_MAX, tail * 4))}>Earlier lines</button>`}` : html`<button class="small" onClick=${() => reader.at(0)}>Start</button><button class="small" disabled=${!part_.first} onClick=${reader.earlier}>Earlier</button><button class="small" onClick=${reader.later}>Later</button><button class="small" onClick=${reader.last}>End</button>`}
    ${isAll ? html`<button class="small" onClick=${saveAll}>Download</button>` : html`<a class="button small" href=${download.href} download=${`job-${job}-${task.task}-${task.stream}.log`} title=${isOver ? "the whole log" : "the last 16 MiB; the whole log when the job has ended"}>Download</a>`}</div>
    <${ProblemNotice} problem=${shown.problem} />
    ${lines.length ? html`<${Lines} lines=${lines} query=${text} wanted=${wanted} showWho=${isAll && new Set(lines.slice(-2000).map(line => line.who + line.stream)).size > 1} isLive=${isAll ? !isOver : part_.atEnd && !part_.over} label="Output of job ${job}" />` : html`<${Empty} title=${shown.loading ? "Loading…" : "No output"}>${!shown.loading && "What the job writes appears here as it is written."}</${Empty}>`}
    <div class="tools dim" style=${{ borderTop: "1px solid var(--line)", borderBottom: 0, fontSize: "13px" }} role="status">${count(lines.length)} lines${isAll ? (output.over ? ", complete" : lines.length ? ", following" : "") : ` · bytes ${count(part_.first)}–${count(part_.next)}${part_.over && part_.atEnd ? ", complete" : part_.atEnd ? ", following" : ""}`}</div></div>`;
}
