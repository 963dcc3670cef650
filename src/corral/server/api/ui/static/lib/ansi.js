// Output of programs as a terminal shows it: colours, and lines that overwrite themselves. Pure: text in, pieces out.
// Pieces are [class, text]; the text is only ever drawn as text.

const CONTROL = /[\x00-\x08\x0b-\x1f\x7f]/;
const SEQUENCE = /\x1b(?:\[([0-9;:]*)([A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][A-Za-z0-9]|.)/g;

// What is left of a line after its carriage returns: later text overwrites earlier text from the start.
export function overwritten(line) {
  if (!line.includes("\r")) return line;
  const parts = line.replace(/\r+$/, "").split("\r");
  if (parts.length === 1) return parts[0];
  const last = parts[parts.length - 1], before = parts[parts.length - 2];
  if (last.includes("\x1b") || before.includes("\x1b")) return last;
  return last.length >= before.length ? last : last + before.slice(last.length);
}

export function pieces(line, style = { bold: 0, dim: 0, italic: 0, under: 0, colour: "" }) {
  const text = overwritten(line);
  if (!CONTROL.test(text)) return [[classes(style), text]];
  const found = [];
  let at = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    if (match.index > at) found.push([classes(style), clean(text.slice(at, match.index))]);
    at = match.index + match[0].length;
    if (match[2] === "m") apply(style, match[1]);
  }
  if (at < text.length) found.push([classes(style), clean(text.slice(at))]);
  return found.filter(([, piece]) => piece);
}

export const plainText = line => overwritten(line).replace(SEQUENCE, "").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
const clean = text => text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");

function apply(style, codes) {
  const list = (codes || "0").split(/[;:]/).map(Number);
  for (let n = 0; n < list.length; n++) {
    const code = list[n];
    if (code === 0) Object.assign(style, { bold: 0, dim: 0, italic: 0, under: 0, colour: "" });
    else if (code === 1) style.bold = 1;
    else if (code === 2) style.dim = 1;
    else if (code === 3) style.italic = 1;
    else if (code === 4) style.under = 1;
    else if (code === 22) style.bold = style.dim = 0;
    else if (code === 23) style.italic = 0;
    else if (code === 24) style.under = 0;
    else if (code >= 30 && code <= 37) style.colour = `f${code - 30}`;
    else if (code >= 90 && code <= 97) style.colour = `f${code - 90}`;
    else if (code === 39) style.colour = "";
    else if (code === 38 || code === 48) {
      if (list[n + 1] === 5) { if (code === 38) style.colour = palette(list[n + 2]); n += 2; }
      else if (list[n + 1] === 2) { if (code === 38) style.colour = nearest(list[n + 2], list[n + 3], list[n + 4]); n += 4; }
    }
  }
}

// The 256 colours and true colours become the nearest of the eight that have enough contrast in both themes.
function palette(n) {
  if (n < 16) return `f${n % 8}`;
  if (n >= 232) return "f7";
  const cube = n - 16;
  return nearest(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51);
}
const nearest = (r, g, b) => `f${(r > 127 ? 1 : 0) | (g > 127 ? 2 : 0) | (b > 127 ? 4 : 0)}`;
const classes = style => [style.colour, style.bold && "a1", style.dim && "a2", style.italic && "a3", style.under && "a4"].filter(Boolean).join(" ");
