// Numbers and times as people read them, in the viewer's language and time zone. Pure, apart from the clock `now`.
import { signal } from "./ui.js";

export const now = signal(Date.now());
let skew = 0; // by how much the server's clock is ahead of this one
export function setServerTime(ms) { skew = ms - Date.now(); now.value = ms; }
export const serverNow = () => Date.now() + skew;
setInterval(() => { if (!document.hidden) now.value = serverNow(); }, 5000);

const units = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];

// 2 h 5 m, 3 m 12 s, 240 ms: at most two units.
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  ms = Math.max(0, Math.round(ms));
  if (ms < 1000) return ms === 0 ? "0 s" : `${ms} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1).replace(/\.0$/, "")} s`;
  const first = units.findIndex(([, size]) => ms >= size);
  const [name, size] = units[first];
  const head = Math.floor(ms / size), next = units[first + 1];
  const rest = next ? Math.floor((ms % size) / next[1]) : 0;
  return rest ? `${head} ${name} ${rest} ${next[0]}` : `${head} ${name}`;
}

export function ago(ms, at = now.value) {
  if (!ms) return "–";
  const gone = at - ms;
  if (gone < -1500) return `in ${short(-gone)}`;
  return gone < 5000 ? "now" : `${short(gone)} ago`;
}

export function short(ms) {
  for (const [name, size] of units) if (ms >= size) return `${Math.floor(ms / size)} ${name}`;
  return "0 s";
}

const today = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export function clock(ms) {
  if (!ms) return "–";
  return (Math.abs(now.value - ms) < 43200000 ? today : days).format(ms);
}
export const fullTime = ms => (ms ? whole.format(ms) : "");

const plain = new Intl.NumberFormat();
const oneDigit = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
export const count = n => (n === null || n === undefined ? "–" : plain.format(n));
export const gpus = milli => oneDigit.format(milli / 1000);
export const hours = gpuMs => { const n = gpuMs / 3600000; return n === 0 ? "0" : n < 0.01 ? "< 0.01" : n < 10 ? String(+n.toPrecision(2)) : plain.format(Math.round(n)); };
// What GPU time costs at the prices of the site; "" without prices.
export function money(prices, model, gpuMs) {
  const each = prices ? prices.gpu_hour_milli[model] ?? prices.other_milli : 0;
  return each ? `${((each / 1000) * (gpuMs / 3600000)).toFixed(2)}${prices.currency ? ` ${prices.currency}` : ""}` : "";
}
export const percent = n => (n === null || n === undefined ? "–" : `${Math.round(n)} %`);
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function mib(n) {
  if (n === null || n === undefined) return "–";
  return n >= 1048576 ? `${oneDigit.format(n / 1048576)} TiB` : n >= 1024 ? `${oneDigit.format(n / 1024)} GiB` : `${count(n)} MiB`;
}
export function bytes(n) { return n >= 1048576 ? mib(n / 1048576) : n >= 1024 ? `${oneDigit.format(n / 1024)} KiB` : `${count(n)} B`; }

export function value(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size >= 100000) return new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(x);
  return size >= 100 || Number.isInteger(x) ? plain.format(Math.round(x)) : size >= 0.01 || size === 0 ? String(+x.toPrecision(3)) : x.toExponential(1);
}
