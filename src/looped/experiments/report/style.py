"""The page's style sheet. Colours of agreement are blue, green and orange of one brightness, told apart by people who
see colours differently; a sign beside the number says the same."""

CSS = """\
:root { color-scheme: light dark; --ink: #1d2329; --soft: #4f5962; --line: #d6dbe0; --ground: #ffffff; --card: #f5f7f9;
  --link: #0b5f8a; --same: #cdeadf; --better: #d7e8f7; --far-better: #a9d0f0; --worse: #fde3c8; --far-worse: #f9c490;
  --open: #eceff2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #b4bdc5; --line: #3a434b; --ground: #14181c;
  --card: #1e2429; --link: #7cc4ee; --same: #16483a; --better: #1c3a54; --far-better: #1d5483; --worse: #553517;
  --far-worse: #7d460c; --open: #2a3138; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; color: var(--ink);
  background: var(--ground); max-width: 84rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: .5rem 0 1rem; max-width: 46rem; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 .8rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, ul { max-width: 46rem; }
h3 + ul { margin-top: .3rem; }
p { margin: .8rem 0; }
li { margin: .25rem 0; }
.lead { font-size: 1.05rem; }
a { color: var(--link); }
code { font-size: .92em; background: var(--card); padding: .05em .3em; border-radius: .2rem; }
nav { margin: 1.5rem 0 0; padding: .6rem 1rem; background: var(--card); border-radius: .5rem; max-width: 60rem; }
nav ul { margin: 0; padding-left: 1.1rem; columns: 2 22rem; column-gap: 2rem; max-width: none; }
nav li { break-inside: avoid; }
.scroll { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; min-width: min(100%, 34rem); font-size: .9rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 .5rem; }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(46rem, calc(100vw - 2rem)); }
th, td { padding: .35rem .5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: bottom; }
thead th { white-space: normal; font-weight: 600; border-bottom: 2px solid var(--soft); vertical-align: bottom; }
thead th.group { text-align: left; }
thead tr:not(:last-child) th.group { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 500; vertical-align: top; }
tbody th, thead tr:first-child th:first-child { position: sticky; left: 0; background: var(--ground); }
.words { text-align: left; } td.words { white-space: normal; min-width: 7rem; }
tr:has(td.words) td { vertical-align: top; }
small { display: block; font-size: .82em; font-weight: 400; color: var(--soft); }
td small.below { white-space: normal; min-width: 5.3rem; }
.sign { font-weight: 600; display: inline-block; min-width: 1em; text-align: center; }
.same { background: var(--same); } .better { background: var(--better); } .far-better { background: var(--far-better); }
.worse { background: var(--worse); } .far-worse { background: var(--far-worse); } .open { background: var(--open); }
figure { margin: 0; break-inside: avoid; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
.figures, .panels { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem),
  1fr)); }
.figures { margin: 1.5rem 0; row-gap: 1.5rem; }
.panel { background: #ffffff; border: 1px solid var(--line); border-radius: .5rem;
  padding: .4rem; }
.panel svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .5rem; max-width: 46rem; }
@media (max-width: 30rem) { body { padding-top: .5rem; } h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; }
  th, td { padding: .35rem .5rem; } tbody th { max-width: 8.5rem; white-space: normal; } }
@media print { :root { --ink: #000000; --soft: #444444; --line: #bbbbbb; --ground: #ffffff; --card: #ffffff;
  --same: #cdeadf; --better: #d7e8f7; --far-better: #a9d0f0; --worse: #fde3c8; --far-worse: #f9c490; --open: #eceff2; }
  @page { size: A4; margin: 14mm; }
  html { font-size: 9.5pt; } body { max-width: none; padding: 0; } nav { display: none; }
  .scroll { overflow: visible; } table { font-size: 6.8pt; } th, td { padding: .2rem .25rem; white-space: normal; }
  td { print-color-adjust: exact; -webkit-print-color-adjust: exact; } tr, figure { break-inside: avoid; }
  thead { display: table-header-group; } h2 { break-after: avoid; }
  .figures, .wide .panels { grid-template-columns: repeat(3, 1fr); } }
"""
