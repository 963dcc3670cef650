"""The documentation page: the OpenAPI description, rendered by a short script that is part of the page.

Self-contained: the page loads nothing from elsewhere, and its content security policy forbids it. Knows nothing about
routes: it reads the same description as every other client.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; --get: #2a7de1; --post: #1a8a4a; --put: #b26a00;
  --delete: #c0392b; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); text-transform: capitalize; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: #8881; padding: .7rem; border-radius: 6px; overflow: auto; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } summary code { margin: 0 .6rem; }
.method { display: inline-block; width: 4.2rem; font-weight: 700; font-size: 12px; }
.get { color: var(--get); } .post { color: var(--post); } .put { color: var(--put); } .delete { color: var(--delete); }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .6rem .2rem 0;
  vertical-align: top; border-bottom: 1px solid var(--line); }
.dim { color: var(--dim); }
"""

SCRIPT = """
const make = (tag, text, kind) => { const node = document.createElement(tag); if (text) node.textContent = text;
  if (kind) node.className = kind; return node; };
const add = (parent, ...children) => { parent.append(...children); return parent; };
const named = reference => reference.split('/').pop();
const typeOf = schema => !schema ? '' : schema.$ref ? named(schema.$ref) : schema.anyOf ?
  schema.anyOf.map(typeOf).join(' or ') : schema.enum ? schema.enum.map(word => JSON.stringify(word)).join(' | ') :
  schema.type === 'array' ? 'list of ' + typeOf(schema.items || (schema.prefixItems || [])[0]) :
  schema.type || ('const' in schema ? JSON.stringify(schema.const) : 'anything');
const table = (rows, heads) => { const node = make('table');
  add(node, add(make('tr'), ...heads.map(head => make('th', head))));
  for (const row of rows) add(node, add(make('tr'), ...row.map((cell, n) =>
    add(make('td'), n ? document.createTextNode(cell) : make('code', cell))))); return node; };
const fields = schema => Object.entries(schema.properties || {}).map(([name, each]) =>
  [name, typeOf(each), ((schema.required || []).includes(name) ? 'required. ' : '') + (each.description || '')]);
const operation = (path, method, about) => {
  const node = make('details'), head = make('summary');
  add(head, make('span', method.toUpperCase(), 'method ' + method), make('code', path),
    make('span', about.summary, 'dim'));
  add(node, head);
  if (about.description) add(node, make('p', about.description));
  if (about.parameters.length) add(node, table(about.parameters.map(each =>
    [each.name, each.in, (each.required ? 'required, ' : '') + typeOf(each.schema)]), ['parameter', 'in', 'type']));
  const body = about.requestBody && about.requestBody.content['application/json'];
  if (body) { add(node, make('p', 'Body: ' + typeOf(body.schema)));
    if (body.example) add(node, make('pre', JSON.stringify(body.example, null, 2))); }
  const answers = Object.entries(about.responses).map(([status, each]) => [status, each.description,
    Object.entries(each.content || {}).map(([kind, one]) => typeOf(one.schema) + ' (' + kind + ')').join(', ')]);
  return add(node, table(answers, ['status', 'meaning', 'content']));
};
const draw = document_ => {
  const main = document.querySelector('main');
  add(main, make('h1', document_.info.title + ' ' + document_.info.version), make('p', document_.info.description),
    make('p', 'Send the header Authorization: Bearer corral_<id>_<secret>.'));
  for (const tag of document_.tags) { add(main, make('h2', tag.name));
    for (const [path, methods] of Object.entries(document_.paths))
      for (const [method, about] of Object.entries(methods))
        if (about.tags.includes(tag.name)) add(main, operation(path, method, about)); }
  add(main, make('h2', 'shapes'));
  for (const [name, schema] of Object.entries(document_.components.schemas).sort()) {
    const node = make('details'); add(node, add(make('summary'), make('code', name)));
    if (schema.description) add(node, make('p', schema.description));
    add(main, add(node, table(fields(schema), ['field', 'type', '']))); }
};
fetch('openapi.json').then(answer => answer.json()).then(draw)
  .catch(error => add(document.querySelector('main'), make('p', 'The description cannot be read: ' + error)));
"""

PAGE = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Corral: the interface</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<style>{STYLE}</style></head><body><main></main><script>{SCRIPT}</script></body></html>\n"
)


def _mark(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


#: Allows only this style, this script, and requests to this server.
POLICY = (
    f"default-src 'none'; script-src {_mark(SCRIPT)}; style-src {_mark(STYLE)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
