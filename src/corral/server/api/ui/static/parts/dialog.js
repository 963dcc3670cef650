// Dialogs and short messages. A dialog says exactly what will happen before it happens. Knows no page.
import { html, signal, useEffect, useRef, useState } from "../lib/ui.js";
import { Notice, ProblemNotice } from "./basics.js";

const shown = signal(null);
const toasts = signal([]);
let number = 0;

export function toast(text, level = "good") {
  const id = ++number;
  toasts.value = [...toasts.value, { id, text, level }];
  setTimeout(() => { toasts.value = toasts.value.filter(each => each.id !== id); }, level === "error" ? 9000 : 4500);
}
export const fail = problem => toast(problem.hint ? `${problem.message} (${problem.hint})` : problem.message, "error");

// Ask before something is done. `run` may return a promise; its error is shown in the dialog.
export function confirm({ title, body, action = "OK", danger, run, wide }) { shown.value = { title, body, action, danger, run, wide, id: ++number }; }
export const closeDialog = () => { shown.value = null; };

// Do something at once, and tell how it went.
export async function act(run, done) {
  try { const answer = await run(); if (done) toast(done); return answer; } catch (problem) { fail(problem); return null; }
}

function Dialog({ about }) {
  const element = useRef(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => { element.current.showModal(); }, []);
  const submit = async event => {
    event.preventDefault();
    setBusy(true);
    try {
      await about.run?.(new FormData(event.target));
      if (shown.value === about) closeDialog();
    } catch (found) { setProblem(found); } finally { setBusy(false); }
  };
  return html`<dialog ref=${element} class=${about.wide ? "wide" : ""} aria-label=${about.title} onClose=${closeDialog}>
    <form onSubmit=${submit}><header><h1>${about.title}</h1></header>
    <div class="body"><${ProblemNotice} problem=${problem} />${typeof about.body === "function" ? about.body() : about.body}</div>
    <footer><button type="button" onClick=${closeDialog}>${about.run ? "Back" : "Close"}</button>
    ${about.run && html`<button type="submit" class=${about.danger ? "danger" : "primary"} disabled=${busy}>${about.action}</button>`}</footer></form></dialog>`;
}

export const Overlays = () => html`${shown.value && html`<${Dialog} key=${shown.value.id} about=${shown.value} />`}
  <div class="toasts" aria-live="polite">${toasts.value.map(each => html`<${Notice} key=${each.id} level=${each.level}>${each.text}</${Notice}>`)}</div>`;
