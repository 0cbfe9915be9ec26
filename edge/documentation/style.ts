/** The style of the page. Its hash is part of the Content-Security-Policy. */
export const STYLE = `
:root { color-scheme: light dark; --page: #fff; --raised: #f4f6f9; --text: #1b2430; --quiet: #566273; --line: #d8dee6; --link: #0b57a4; --ok: #146c43; --fault: #a4262c; }
@media (prefers-color-scheme: dark) { :root { --page: #10151c; --raised: #19212b; --text: #e4e9ef; --quiet: #a4b0be; --line: #303b48; --link: #82bbf6; --ok: #6fce9b; --fault: #ff9a9a; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0; background: var(--page); color: var(--text); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
a { color: var(--link); text-underline-offset: .15em; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100vw; } .skip:focus { left: 1rem; top: 1rem; z-index: 1; background: var(--page); padding: .5rem 1rem; }
.columns { display: grid; grid-template-columns: 21rem minmax(0, 1fr); max-width: 82rem; margin: 0 auto; }
nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 2rem 1.5rem; border-right: 1px solid var(--line); font-size: .875rem; }
nav ul { list-style: none; margin: 0 0 .9rem; padding: 0; } nav ul ul { margin-top: .2rem; }
nav a { display: block; padding: .15rem 0; text-decoration: none; } nav a:hover { text-decoration: underline; }
nav ul ul a { color: var(--quiet); } nav > ul > li > a { font-weight: 600; }
main { padding: 2rem clamp(1rem, 4vw, 3.5rem) 6rem; max-width: 58rem; }
h1 { font-size: 2.1rem; line-height: 1.15; margin: 0; letter-spacing: -.02em; }
h2 { font-size: 1.5rem; margin: 4rem 0 1rem; padding-top: 1rem; border-top: 3px solid var(--text); }
h3 { font-size: 1.05rem; margin: 0 0 .4rem; } h3 a { color: inherit; text-decoration: none; font-family: ui-monospace, monospace; } h3 a:hover { text-decoration: underline; }
h4 { font-size: .95rem; margin: 1.75rem 0 .5rem; }
p { margin: 0 0 .75rem; } td p { margin: .2rem 0 0; }
.version, .facts { color: var(--quiet); } .facts, .type { font-size: .875rem; } .type { color: var(--text); } summary + .facts { margin-top: .5rem; }
.summary { font-size: 1.1rem; }
.part { margin: 0 0 2rem; padding: 1.75rem 0; border-top: 1px solid var(--line); } h2 + .part { border-top: 0; padding-top: 0; }
.method { display: inline-block; min-width: 4.2rem; margin-right: .4rem; padding: .1rem .5rem; border-radius: .3rem; color: #fff; background: #4d5866; font-size: .8rem; text-align: center; }
.get { background: #0b57a4; } .post { background: #146c43; } .patch, .put { background: #8a5300; } .delete { background: #a4262c; }
code, pre { font-family: ui-monospace, monospace; font-size: .875em; }
p code, td code { background: var(--raised); padding: .1em .3em; border-radius: .25em; }
pre { margin: .5rem 0 1rem; padding: .9rem 1rem; background: var(--raised); border: 1px solid var(--line); border-radius: .4rem; white-space: pre-wrap; line-height: 1.45; }
table { width: 100%; border-collapse: collapse; margin: .25rem 0 1rem; font-size: .95rem; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem .5rem 0; border-bottom: 1px solid var(--line); }
thead th { font-size: .8rem; color: var(--quiet); padding-bottom: .25rem; } th[scope=row] { width: 36%; }
.response { margin: 0; padding: .5rem 0; border-bottom: 1px solid var(--line); } summary { cursor: pointer; }
.status { margin-right: .35rem; color: var(--fault); } .ok { color: var(--ok); } .codes code { font-size: .8rem; }
@media (max-width: 60rem) { .columns { display: block; } nav { position: static; height: auto; border-right: 0; border-bottom: 1px solid var(--line); padding: 1.5rem 1rem; } nav a { padding: .3rem 0; } }
@media print { nav, .skip { display: none; } .columns { display: block; } main { max-width: none; padding: 0; } tr, pre { break-inside: avoid; } h2, h3, h4 { break-after: avoid; } ::details-content { content-visibility: visible; block-size: auto; } .method { border: 1px solid; color: #000; background: none; } }
`;
