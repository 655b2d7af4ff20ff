"""How a report looks: one style sheet, light and dark, for a desk and for a phone.

People who see colours differently can distinguish the colours (blue, orange, green, after Okabe and
Ito), which stand out by 3:1 at least from what is behind them; text by 4.5:1.
"""

STYLE = """
:root{color-scheme:light dark;
--page:#f5f6f8;--card:#fff;--edge:#dfe3e8;--text:#1b2430;--soft:#566273;--grid:#e6e9ee;
--t1:#0067a8;--t2:#c35500;--t3:#007a5a;--t4:#8a4b9e;
--bad:#b3261e;--warn:#a15c00;--note:#0067a8;--good:#007a5a;
--bad-back:#fdecea;--warn-back:#fff4e0;--note-back:#e8f2fa;--good-back:#e4f5ef}
@media(prefers-color-scheme:dark){:root{
--page:#11161d;--card:#1a212b;--edge:#2c3643;--text:#e8edf3;--soft:#a3b0c0;--grid:#2a3440;
--t1:#58b4f0;--t2:#ffa552;--t3:#45cda2;--t4:#cf9be0;
--bad:#ff8a80;--warn:#ffbe5c;--note:#7cc4f5;--good:#5bd6ae;
--bad-back:#3a1d1c;--warn-back:#35290f;--note-back:#14293b;--good-back:#11302a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1160px;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0}
h2{font-size:1.35rem;margin:2.5rem 0 .25rem;overflow-wrap:anywhere;scroll-margin-top:1rem}
h3{font-size:1rem;margin:0 0 .1rem}
p{margin:.25rem 0}
.soft{color:var(--soft)}
.lead{font-size:1rem;margin:.3rem 0 1rem}
a{color:var(--t1)}
code{font:.9em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.tiles{display:grid;gap:.75rem;grid-template-columns:repeat(auto-fit,minmax(min(44%,8.4rem),1fr));
margin:.9rem 0}
.tile,.card{background:var(--card);border:1px solid var(--edge);border-radius:10px}
.tile{padding:.7rem .9rem}
.tile b{display:block;font-size:1.45rem;line-height:1.25;font-weight:650;
font-variant-numeric:tabular-nums;white-space:nowrap}
.tile span{color:var(--soft);font-size:.85rem;display:block}
.cards{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));}
.card{padding:1rem 1.1rem;min-width:0}
.card.full{grid-column:1/-1}
.card>p.soft{font-size:.88rem;margin-bottom:.5rem}
.advice{list-style:none;padding:0;margin:.75rem 0 1rem;display:grid;gap:.55rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr))}
.advice li{border-left:4px solid;border-radius:6px;padding:.55rem .8rem}
.advice b{display:block}
.advice .bad{border-color:var(--bad);background:var(--bad-back)}.bad b{color:var(--bad)}
.advice .warn{border-color:var(--warn);background:var(--warn-back)}.warn b{color:var(--warn)}
.advice .note{border-color:var(--note);background:var(--note-back)}.note b{color:var(--note)}
.advice .good{border-color:var(--good);background:var(--good-back)}.good b{color:var(--good)}
.advice li,.advice b{overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{text-align:right;padding:.32rem .4rem;border-bottom:1px solid var(--grid);
vertical-align:middle}
th{color:var(--soft);font-weight:500;font-size:.82rem;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
td:first-child{overflow-wrap:anywhere;min-width:5rem}
th:first-child,td:first-child{padding-left:0}
td:first-child small{display:block;color:var(--soft)}
tr:last-child td{border-bottom:0}
td{white-space:nowrap}td:first-child{white-space:normal}
td.wide-bar{width:30%;min-width:3rem}
.share{display:block;height:10px;background:var(--grid);border-radius:5px;overflow:hidden}
.share i{display:block;height:100%;border-radius:5px;min-width:2px}
.b1{fill:var(--t1);background:var(--t1)}.b2{fill:var(--t2);background:var(--t2)}
.b3{fill:var(--t3);background:var(--t3)}.b4{fill:var(--t4);background:var(--t4)}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
svg text.marked{fill:var(--text);font-weight:600;paint-order:stroke;stroke:var(--card);
stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--grid)}.ground{stroke:var(--soft);stroke-opacity:.6}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.t1{stroke:var(--t1)}.t2{stroke:var(--t2)}.t3{stroke:var(--t3)}.t4{stroke:var(--t4)}
.dot{stroke-width:3;fill:none}
.area{fill-opacity:.16}.a1{fill:var(--t1)}.a2{fill:var(--t2)}.a3{fill:var(--t3)}
.mark{stroke:var(--text);stroke-width:1.3;stroke-dasharray:4 3}
.hit{fill:transparent}.hit:hover{fill:var(--text);fill-opacity:.06}
g:hover>.hit{fill:var(--text);fill-opacity:.06}
.narrow{display:none}
@media(max-width:36rem){.wide{display:none}.narrow{display:block}
main{padding-top:1rem}.card{padding:.8rem .75rem}td.wide-bar,th.wide-bar{display:none}
th,td{padding:.3rem .25rem}table{font-size:.88rem}}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.2rem 0 .4rem;
padding:0;font-size:.88rem;color:var(--soft)}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:3px;margin-right:.4em;
vertical-align:-.05em}
nav{margin:.6rem 0;display:flex;flex-wrap:wrap;gap:.3rem .9rem}
nav a{overflow-wrap:anywhere}
footer{margin-top:3rem;color:var(--soft);font-size:.85rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.7rem 1.5rem;
margin:.6rem 0 0}
.facts dt{color:var(--soft);font-size:.85rem}
.facts dd{margin:0;font-variant-numeric:tabular-nums}
@media print{body{background:#fff}.card,.tile{break-inside:avoid}}
"""
