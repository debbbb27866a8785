"""The page's style sheet: light and dark, no fonts and no files from elsewhere."""

STYLE = """
:root { --bg: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #647084; --line: #e3e7ee; --accent: #d9480f;
  --base: #4a6fa5; --yard: #0f8a7e; --warn: #b42318; --good: #23753b;
  --s0: #2f6fc4; --s1: #8a4fc0; --s2: #2a9d58; --s3: #c2428a; --s4: #9a7b12; --faint: #b9c2d0;
  --r0: #3b6fb6; --r1: #e9a23b; --r2: #4fa58b; --r3: #a267ac; --r4: #d06a5b; --r5: #7f8c9b; --r6: #b7a63c;
  --r7: #5fb0c9; }
@media (prefers-color-scheme: dark) { :root { --bg: #12161d; --card: #1a2029; --ink: #e6eaf1; --soft: #98a4b6;
  --line: #2b3440; --accent: #ff8a4c; --base: #7ea6dd; --yard: #4fc3b4; --warn: #ff8f85; --good: #74c98c;
  --s0: #6fa8f5; --s1: #bb8bef; --s2: #63cf8f; --s3: #f087c0; --s4: #d9b94a; --faint: #3d4858; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 21px; margin: 40px 0 4px; letter-spacing: -0.01em; }
h3 { font-size: 15px; margin: 0 0 2px; }
p { margin: 4px 0; } .soft { color: var(--soft); font-size: 13.5px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin: 14px 0 0; min-width: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 14px; }
.says { border-left: 4px solid var(--accent); } .says ul { margin: 6px 0 0; padding-left: 19px; }
.says li { margin: 3px 0; }
svg { display: block; width: 100%; height: auto; margin-top: 6px; }
svg text { font: 11.5px system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick, svg .hint { fill: var(--soft); font-size: 11px; }
svg .figure { font-size: 11px; fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .unity { stroke: var(--accent); stroke-width: 1.2;
  stroke-dasharray: 3 3; }
svg .name.candidate, svg .end.candidate { fill: var(--accent); font-weight: 650; }
svg .name.yardstick, svg .end.yardstick { fill: var(--yard); font-style: italic; }
svg .whisker { stroke: var(--base); stroke-width: 2; stroke-linecap: round; opacity: .55; }
svg .whisker.yardstick { stroke: var(--yard); }
svg .mark { fill: var(--base); } svg .mark.candidate { fill: var(--accent); }
svg .mark.yardstick { fill: var(--yard); } svg .mark.saturated { fill: var(--card); stroke: var(--warn);
  stroke-width: 2; }
svg .line { fill: none; stroke: var(--faint); stroke-width: 1.2; stroke-linejoin: round; }
svg .line.candidate { stroke: var(--accent); stroke-width: 2.8; }
svg .line.yardstick { stroke: var(--yard); stroke-width: 1.7; stroke-dasharray: 5 4; }
svg .ring { fill: var(--card); stroke: var(--faint); stroke-width: 2; }
svg .ring.candidate { stroke: var(--accent); }
svg .ring.yardstick { stroke: var(--yard); }
svg .leader { fill: none; stroke: var(--line); stroke-width: 1; }
svg .mark.faint { fill: var(--faint); } svg .end.faint { fill: var(--soft); }
svg .bar { fill: var(--base); opacity: .8; } svg .bar.candidate { fill: var(--accent); opacity: 1; }
svg .mark.belief { fill: var(--card); stroke: var(--ink); stroke-width: 1.4; }
svg .replica { stroke: none; opacity: .88; }
table { border-collapse: collapse; width: 100%; font-size: 12.5px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
th { text-align: right; font-weight: 600; color: var(--soft); font-size: 12px; padding: 4px 6px;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
td { text-align: right; padding: 4px 6px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.candidate td { font-weight: 650; } tr.candidate td:first-child { color: var(--accent); }
tr.yardstick td { font-style: italic; color: var(--yard); }
td .meter { display: inline-block; width: 44px; height: 8px; border-radius: 4px; background: var(--line);
  margin-left: 8px; overflow: hidden; vertical-align: middle; }
td .meter i { display: block; height: 100%; background: var(--base); }
.bad { color: var(--warn); } .key { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 6px; }
.key span { display: inline-flex; align-items: center; gap: 6px; font-size: 13px; color: var(--soft); }
.key i { width: 12px; height: 12px; border-radius: 3px; display: inline-block; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
""" + "\n".join(
    [
        *(
            f"svg .line.s{i} {{ stroke: var(--s{i}); stroke-width: 2; }}"
            f"svg .mark.s{i}, svg .end.s{i} {{ fill: var(--s{i}); }}"
            f"svg .ring.s{i} {{ stroke: var(--s{i}); }}"
            for i in range(5)
        ),
        *(f"svg .r{i} {{ fill: var(--r{i}); }} .key .r{i} {{ background: var(--r{i}); }}" for i in range(8)),
    ]
)
