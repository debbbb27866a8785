const byId = (id) => document.getElementById(id);
const colors = new Map(); // term -> color
const MOST_ROWS = 100;
let picture, closed, sorted = 0;

function node(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

// Make a parent have one child an item, from a template; those that are there stay, and so does the focus.
function each(parent, template, items, more = () => {}) {
  const had = new Map([...parent.children].map((child) => [child.dataset.id, child]));
  items.forEach((item, at) => {
    const child = had.get(item.id) ?? byId(template).content.firstElementChild.cloneNode(true);
    had.delete(item.id);
    child.dataset.id = item.id;
    for (const part of child.querySelectorAll("*")) {
      if (part.closest("[data-id]") !== child) continue; // of a list within this one
      const text = item[part.dataset.text];
      if (text !== undefined && part.textContent !== text) part.textContent = text;
    }
    more(child, item);
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at]);
  });
  for (const child of had.values()) if (!child.contains(document.activeElement)) child.remove();
}

function bar(parts, terms) {
  if (parts.className) return; // a decision does not change
  parts.className = "bar";
  parts.title = Object.entries(terms).map(([name, value]) => `${name} ${value}`).join("\n");
  for (const [name, value] of Object.entries(terms)) {
    if (!colors.has(name)) {
      colors.set(name, `var(--c${Math.min(colors.size, 6)})`);
      const shown = node("span", name);
      shown.prepend(node("i"));
      shown.firstChild.style.background = colors.get(name);
      byId("legend").append(" ", shown);
    }
    const part = node("i");
    part.style.background = colors.get(name);
    part.style.setProperty("--value", value);
    parts.append(part);
  }
}

// Bars within an element are as long as their share of the longest.
function scale(element, all) {
  const lengths = all.map((terms) => Object.values(terms).reduce((sum, value) => sum + Math.max(value, 0), 0));
  element.style.setProperty("--most", Math.max(1e-9, ...lengths));
}

// What was asked for: words and a table.
function sheet(box, { words, columns, rows }) {
  const table = node("table");
  for (const [at, cells] of [columns, ...rows.slice(0, 50)].entries())
    table.insertRow().append(...cells.map((text) => node(at ? "td" : "th", text)));
  box.replaceChildren(...words.map((text) => node("p", text)), table);
}

function show() {
  const box = byId("pickers"), shown = box.querySelector(":checked") ?? box.querySelector("input");
  shown.checked = true;
  const { fleet, weights, words, policy, unit } = picture.pickers.find(({ id }) => id === shown.parentElement.dataset.id);
  byId("policy").textContent = policy;
  byId("unit").textContent = unit || "places";
  const outs = fleet.filter(({ out }) => out);
  byId("outs").hidden = !outs.length;
  each(byId("out"), "outed", outs);
  byId("words").textContent = words.join("\n");
  const load = ({ running }) => +running.replaceAll(",", ""), most = Math.max(8, ...fleet.map(load));
  const regions = Map.groupBy(fleet, ({ region }) => region);
  each(byId("fleet"), "region", [...regions.keys()].map((id) => ({ id })), (box, { id }) =>
    each(box.lastElementChild, "replica", regions.get(id), (tile, row) => {
      tile.classList.toggle("out", row.out);
      tile.querySelector("progress").value = load(row) / most;
    }));
  each(byId("weights"), "weight", weights, (row, { about, history }) => {
    const values = history.map(([, value]) => value), high = Math.max(...values), low = Math.min(...values);
    const svg = row.querySelector("svg"), age = history[0][0], span = high - low || 1;
    row.title = about;
    svg.setAttribute("viewBox", `${-age} ${-(high + low + span) / 2} ${age || 1} ${span}`);
    // Each value holds until the next.
    svg.firstChild.setAttribute("points", history.flatMap(([ago, value], at) =>
      [`${-ago},${-value}`, `${-(history[at + 1] ?? [0])[0]},${-value}`]).join(" "));
  });
}

// Rates have two digits, latencies and queues three; hits are percents.
const figure = (name, value) => value === null ? "-" : name === "hits" ? `${Math.round(value * 100)}%` : value.toLocaleString("en");

// The table of the last 5 minutes and the last hour, by what it is grouped and sorted by.
function showPast() {
  const { figures, groups } = picture.past, group = document.querySelector("#groups :checked").value;
  each(byId("figures"), "figure", [group, ...figures].map((id, at) => ({ id: `${at}`, title: id })), (th, { id }) =>
    +id === sorted ? th.setAttribute("aria-sort", sorted ? "descending" : "ascending") : th.removeAttribute("aria-sort"));
  const key = ([name, recent]) => sorted ? -(recent[sorted - 1] ?? -1) : name;
  const rows = groups[group].toSorted((a, b) => (b[0] === "all") - (a[0] === "all") || (key(a) < key(b) ? -1 : 1));
  byId("more").textContent = rows.length > MOST_ROWS ? `and ${rows.length - MOST_ROWS} more` : "";
  each(byId("totals"), "total", rows.slice(0, MOST_ROWS).map(([id, recent, hour]) => ({ id, recent, hour })), (row, { id, recent, hour }) =>
    row.replaceChildren(node("td", id), ...figures.map((name, at) => {
      const cell = node("td", figure(name, recent[at]));
      cell.append(node("small", figure(name, hour[at])));
      cell.dataset.title = name;
      cell.classList.toggle("bad", name === "err/s" && recent[at] > 0);
      return cell;
    })));
}

new EventSource("ui/events").onmessage = ({ data, target }) => {
  picture = JSON.parse(data);
  byId("state").textContent = byId("state").className = "live";
  target.onerror = () => (byId("state").textContent = "reconnecting", byId("state").className = "");
  each(byId("pickers"), "picker", picture.pickers);
  each(byId("links"), "link", Object.entries(picture.links).map(([id, href]) => ({ id, href })), (link, { href }) => (link.firstChild.href = href));
  byId("waiting").hidden &&= !picture.queue.length;
  const flows = Map.groupBy(picture.queue, ([priority, flow]) => `${priority} ${flow}`);
  each(byId("queue"), "flow", [...flows].map(([id, rows]) => ({
    id, priority: `${rows[0][0]}`, flow: rows[0][1],
    requests: rows.reduce((sum, row) => sum + row[3], 0).toLocaleString("en"),
    oldest: `${Math.max(...rows.map((row) => row[4])).toFixed(1)} s`,
    engines: rows.slice(0, 3).map((row) => `${row[2]} (${row[3]})`).join(", ") + (rows[3] ? ", …" : "") })));
  if (!byId("other").length) byId("other").append(...picture.policies.map((name) => new Option(name)));
  if (!byId("pause").checked) {
    each(byId("rows"), "row", picture.decisions, (row, { terms }) => bar(row.querySelector("div"), terms));
    scale(byId("rows"), picture.decisions.map(({ terms }) => terms));
    each(byId("failures"), "failure", picture.failures.map(([model, endpoint, why, decision, at, count]) => ({
      id: [model, endpoint, why].join(), decision, time: new Date(at * 1000).toISOString().slice(11, 19),
      count: `${count}`, model: model || "-", endpoint: endpoint || "-", why })), (row, { decision }) => {
      row.dataset.decision = decision;
      row.querySelector("button").disabled = !decision;
    });
  }
  show();
  if (closed !== (closed = JSON.stringify(picture.past))) showPast();
};

byId("pickers").onchange = show;
byId("groups").onchange = showPast;
byId("figures").onclick = ({ target }) => (sorted = +target.closest("th").dataset.id, showPast());
byId("rows").onclick = byId("failures").onclick = async ({ target }) => {
  const { id: row, decision: id = row } = target.closest("tr").dataset;
  if (!id) return;
  const answer = await fetch(`decisions/${id}?explained`), found = await answer.json();
  sheet(byId("explain").firstChild, answer.ok ? found : { words: [`${id}: ${found.error}`], columns: [], rows: [] });
  byId("explain").showModal();
  byId("explain").scrollTo(0, 0); // what has the focus is at its end
};
byId("ask").onsubmit = async (event) => {
  event.preventDefault();
  byId("opinion").textContent = "asking …";
  sheet(byId("opinion"), await (await fetch(`ui/opinion?policy=${byId("other").value}`)).json());
};

function step(by) {
  const all = [...document.querySelectorAll("#rows button")];
  all[Math.min(Math.max(all.indexOf(document.activeElement) + by, 0), all.length - 1)]?.focus();
}
function cycle() {
  const all = [...byId("groups").querySelectorAll("input")];
  all[(all.findIndex(({ checked }) => checked) + 1) % all.length].click();
}
const sortNext = () => (sorted = (sorted + 1) % (picture.past.figures.length + 1), showPast());
const keys = { g: cycle, s: sortNext, f: () => document.querySelector("#failures button:enabled")?.focus(), j: () => step(1), k: () => step(-1), p: () => byId("pause").click(), o: () => byId("other").focus() };
document.onkeydown = ({ key, target, ctrlKey, altKey, metaKey }) => {
  if (!(ctrlKey || altKey || metaKey || target.closest("select, dialog"))) keys[key]?.();
};
