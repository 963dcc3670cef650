"""The style sheet of the page, for light and dark. It refers to no other file.

The colours are Okabe and Ito's, which people with any kind of colour vision can tell apart, lightened on dark ground;
lines differ in their dashes as well.
"""

from __future__ import annotations

_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0578d", "#e69f00", "#3fa0dc", "#6b5b95", "#7f7f7f")
_DARK = ("#56a8e6", "#f0803c", "#2fc79b", "#dc8fbd", "#f2b93f", "#8fd0f7", "#a798d4", "#a3a3a3")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


_CLASSES = "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(len(_LIGHT)))

STYLE = f"""
:root{{--ground:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#5b6470;--rule:#dfe3e8;--good:#0b7a4b;{_palette(_LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{--ground:#14171b;--panel:#1c2026;--ink:#e6e9ed;--soft:#9aa4b0;
--rule:#323841;--good:#4fd39a;{_palette(_DARK)}}}}}
{_CLASSES}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}}
main{{max-width:1320px;margin:0 auto;padding:28px 24px 60px}}
h1{{font-size:26px;font-weight:650;margin:0 0 6px;letter-spacing:-.01em;overflow-wrap:anywhere}}
h2{{font-size:18px;font-weight:620;margin:36px 0 12px}}
ul{{list-style:none;margin:0;padding:0}}
.facts{{display:flex;flex-wrap:wrap;color:var(--soft)}}
.facts li{{overflow-wrap:anywhere}}
.facts li+li::before{{content:"·";padding:0 8px}}
.cards{{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:12px;margin-top:18px}}
.card{{background:var(--panel);border:1px solid var(--rule);border-left:4px solid var(--c);border-radius:6px;
padding:12px}}
.card h2{{margin:0 0 6px;font-size:15px;overflow-wrap:anywhere}}
.figures{{display:flex;flex-wrap:wrap;gap:4px 12px}}
.figures b{{display:block;font-size:17px;font-weight:620;font-variant-numeric:tabular-nums;white-space:nowrap}}
.figures span{{color:var(--soft);font-size:12px;white-space:nowrap}}
aside{{margin-top:16px;padding:10px 16px;border-left:4px solid var(--c4);background:var(--panel);border-radius:6px;
font-size:15px}}
aside li{{margin:4px 0}}
#verdict{{margin-top:14px;font-size:17px;font-weight:560;max-width:1000px}}
#verdict p{{margin:6px 0}}
.marks{{color:var(--soft);font-size:13px;margin:0 0 6px}}
.hover{{fill:transparent}}
.hover:hover{{fill:var(--ink);opacity:.12}}
.lost{{fill:#c0392b;fill-opacity:.4;stroke:#c0392b;stroke-width:1;stroke-dasharray:3 2}}
.lost:hover{{stroke-width:2}}
.grid2{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(560px,100%),1fr));gap:16px}}
figure{{margin:0 0 16px;padding:14px 16px 8px;background:var(--panel);border:1px solid var(--rule);border-radius:6px;
min-width:0}}
.grid2 figure{{margin:0}}
figcaption{{font-size:13px;color:var(--soft);overflow-wrap:anywhere}}
figcaption b{{display:block;font-size:15px;font-weight:600;color:var(--ink)}}
svg{{display:block;width:100%;height:auto}}
.key{{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;margin:6px 0}}
.key li{{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}}
.sample{{width:28px;height:10px;flex:none}}
#shares .key .line,#nodes .key .line{{stroke-width:9;stroke-dasharray:none}}
.line{{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}}
.d1{{stroke-dasharray:7 3}}.d2{{stroke-dasharray:2 2.5}}.d3{{stroke-dasharray:9 3 2 3}}
.band{{fill:var(--c);opacity:.14}}
.area{{fill:var(--c);opacity:.85}}
.box{{fill:var(--c);stroke:var(--panel);stroke-width:.5}}
.box:hover{{stroke:var(--ink);stroke-width:1}}
.grid{{stroke:var(--rule);stroke-width:1;fill:none}}
.axis{{stroke:var(--soft);stroke-width:1;fill:none}}
.tick,.note{{fill:var(--soft);font-size:11.5px;font-variant-numeric:tabular-nums}}
.note{{font-size:14px}}
.mid{{text-anchor:middle}}.end{{text-anchor:end}}
.wide{{overflow-x:auto;border:1px solid var(--rule);border-radius:6px}}
table{{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}}
.fit{{width:fit-content;max-width:100%}}.fit th[scope=row]{{padding-right:40px}}.fit td{{min-width:120px}}
th,td{{padding:3px 12px;text-align:right;white-space:nowrap}}
thead th,thead td{{background:var(--panel);border-bottom:1px solid var(--rule);font-weight:600}}
thead th{{max-width:260px;overflow:hidden;text-overflow:ellipsis}}
tbody th{{text-align:left;font-weight:400;max-width:320px;overflow:hidden;text-overflow:ellipsis}}
tbody tr:hover td,tbody tr:hover th[scope=row]{{background:var(--panel)}}
.groups th,.groups td{{padding:3px 7px}}.groups thead th{{white-space:normal;vertical-align:bottom}}
.part th{{font-weight:620;padding-top:12px;border-bottom:1px solid var(--rule)}}
.first th,.first td{{border-top:1px solid var(--rule)}}
th[scope=rowgroup]{{vertical-align:top;font-weight:600}}
.best{{color:var(--good);font-weight:650}}
.best i::before{{content:" ●";font-size:9px;vertical-align:2px}}
td:not(.best)::after{{content:"";display:inline-block;width:11px}}
.dot{{display:inline-block;width:9px;height:9px;border-radius:50%;background:var(--c);margin-right:7px}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;font-size:13.5px;margin:0}}
dt{{font-weight:600}}dd{{margin:0;color:var(--soft)}}
@media (max-width:640px){{dl{{display:block}}dd{{margin-bottom:6px}}main{{padding:16px 12px}}.figures{{gap:14px}}}}
@media print{{figure,.card,table{{break-inside:avoid}}}}
"""
