// All that is kept is bounded: rows, and pickers and endpoints that are still there.
const ROWS = 30, GONE_MS = 10000, COLORS = 7;

const byId = (id) => document.getElementById(id);
const pickers = new Map(); // name -> the last frame and what is made of it
const tiles = new Map(); // endpoint -> its elements
const rows = new Map(); // decision -> its row
const colors = new Map(); // term -> color
const opinions = new Map(); // picker -> its answer on the policy asked last
let own = "", shown = "", notCosts = new Set(), paused = false, asked = "", asking = null;

function node(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });
const short = (value) => (value >= 10000 ? `${number(value / 1000)}k` : number(value));
const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const cost = (value) => number(value, Math.abs(value) < 100 ? 1 : 0);
const signed = (value) =>
  value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0, signDisplay: "exceptZero" });
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function colorOf(term) {
  if (!colors.has(term)) {
    colors.set(term, `var(--c${Math.min(colors.size, COLORS - 1)})`);
    const key = node("i");
    key.style.background = colors.get(term);
    byId("legend").append(key, term);
  }
  return colors.get(term);
}

const costs = (terms) => Object.entries(terms).filter(([name]) => !notCosts.has(name));

function bar(terms, most) {
  const made = node("div", "", { class: "bar" });
  for (const [name, value] of costs(terms)) {
    const part = node("i");
    part.style.background = colorOf(name);
    part.style.width = `${(100 * Math.max(value, 0)) / most}%`;
    made.append(part);
  }
  made.title = costs(terms).map(([name, value]) => `${name} ${cost(value)}`).join("\n");
  return made;
}

const length = (terms) => costs(terms).reduce((sum, [, value]) => sum + Math.max(value, 0), 0);

// --- the fleet ---

function newTile(address, region) {
  const tile = node("div", "", { class: "replica" });
  tile.innerHTML =
    '<b></b><small><span class="load"></span><span class="status"></span></small><div class="meter"><i></i></div>' +
    '<small><span class="hit"></span><span class="rtt"></span></small><div class="meter hits"><i></i></div>' +
    '<small><span class="queue"></span><span class="kv"></span></small>';
  const at = `region-${region}`;
  let box = byId(at);
  if (!box) {
    box = node("div", "", { class: "region", id: at });
    box.append(node("h3", region || "no region"), node("div", "", { class: "replicas" }));
    byId("fleet").append(box);
  }
  box.lastChild.append(tile);
  set(tile.querySelector("b"), address);
  const parts = Object.fromEntries(
    ["load", "status", "hit", "rtt", "queue", "kv"].map((name) => [name, tile.querySelector(`.${name}`)]));
  const [loadMeter, hitMeter] = tile.querySelectorAll(".meter i");
  return { tile, region, loadMeter, hitMeter, ...parts };
}

function dropTile(address) {
  const { tile } = tiles.get(address), box = tile.closest(".region");
  tile.remove();
  tiles.delete(address);
  if (!box.lastChild.childElementCount) box.remove();
}

function showFleet({ fleet }) {
  const most = Math.max(8, ...fleet.running);
  fleet.address.forEach((address, at) => {
    if (tiles.has(address) && tiles.get(address).region !== fleet.region[at]) dropTile(address);
    if (!tiles.has(address)) tiles.set(address, newTile(address, fleet.region[at]));
    const tile = tiles.get(address), [prompt, cached] = believed(address);
    const state = fleet.state[at], had = fleet.hit_ratio[at];
    tile.tile.classList.toggle("out", state !== "healthy" && state !== "trial");
    tile.tile.title = `${fleet.class[at]}\nengine had ${share(had ?? 1, 1)} of the hits expected`;
    set(tile.status, state);
    set(tile.load, `${number(fleet.running[at])} running, ${short(fleet.queued[at])} tokens`);
    set(tile.hit, `${share(cached, prompt)} believed hits`);
    set(tile.rtt, `RTT ${number(fleet.rtt_ms[at])} ms`);
    set(tile.queue, `${short(fleet.pending[at])} to prefill, ${number(fleet.engine_waiting[at])} queued`);
    set(tile.kv, `KV ${share(fleet.kv[at] ?? 0, fleet.kv[at] === null ? 0 : 1)}`);
    tile.loadMeter.style.width = `${(100 * fleet.running[at]) / most}%`;
    tile.hitMeter.style.width = `${prompt ? (100 * cached) / prompt : 0}%`;
  });
  const there = new Set(fleet.address);
  for (const address of [...tiles.keys()]) if (!there.has(address)) dropTile(address);
}

// Prompt tokens of the picks that all pickers remember, and those of them believed cached.
function believed(address) {
  const sums = [0, 0];
  for (const { frame } of pickers.values())
    (frame.picked[address] ?? []).forEach((value, at) => (sums[at] += value));
  return sums;
}

// --- pickers ---

function showPickers(now) {
  for (const [name, picker] of pickers) {
    if (now - picker.heard > GONE_MS) {
      picker.button.remove();
      pickers.delete(name);
      if (shown === name) shown = own;
      continue;
    }
    const words = `${name} ${number(picker.rate)}/s` + (picker.frame.leads ? ", leads" : "");
    set(picker.button, words);
    picker.button.setAttribute("aria-pressed", name === shown);
  }
}

function newPicker(name) {
  const button = node("button", name, { title: "the fleet as this picker sees it" });
  button.onclick = () => show(name);
  byId("pickers").append(button);
  return { button, rate: 0 };
}

function show(name) {
  shown = name;
  showPickers(performance.now());
  showFleet(pickers.get(name).frame);
  showWeights(pickers.get(name).frame);
}

// --- decisions ---

function newRow(decision) {
  const row = node("tr", "", { tabindex: 0, role: "button", "data-id": decision.id });
  const cells = [
    clock(decision.at), decision.model || "–", number(decision.tokens), share(decision.cached, decision.tokens),
    decision.region ? `${decision.region} ${decision.to}` : decision.to];
  cells.forEach((text, at) => row.append(node("td", text, at === 2 || at === 3 ? { class: "n" } : {})));
  const terms = node("td");
  const next = decision.next === null ? "–" : signed(decision.next - decision.cost);
  row.append(terms, node("td", cost(decision.cost), { class: "n" }), node("td", next, { class: "n" }));
  row.onclick = () => explain(decision.id);
  return { row, terms, decision };
}

function addRows(decisions) {
  if (paused) return;
  for (const decision of decisions.toReversed()) {
    if (rows.has(decision.id)) continue;
    const made = newRow(decision);
    rows.set(decision.id, made);
    byId("rows").prepend(made.row);
  }
  while (rows.size > ROWS) {
    // The one in focus stays, so that the keyboard does not lose its place.
    const [id, { row }] = [...rows].find(([, { row }]) => row !== document.activeElement);
    row.remove();
    rows.delete(id);
  }
  const most = Math.max(1e-9, ...[...rows.values()].map(({ decision }) => length(decision.terms)));
  for (const { terms, decision } of rows.values()) terms.replaceChildren(bar(decision.terms, most));
  byId("none").hidden = rows.size > 0;
}

async function explain(id) {
  const answer = await fetch(`decisions/${encodeURIComponent(id)}`), box = byId("explain").firstChild;
  const found = await answer.json();
  box.replaceChildren();
  if (answer.ok) box.append(...explained(found));
  else box.append(node("p", `${id}: ${found.error}`));
  if (!byId("explain").open) byId("explain").showModal();
}

function explained(found) {
  const { request, signals, terms, endpoints } = found;
  const of = (at) => Object.fromEntries(Object.entries(terms).map(([name, column]) => [name, column[at]]));
  const order = endpoints.map((_, at) => at).sort((a, b) => found.costs[a] - found.costs[b]).slice(0, 50);
  const most = Math.max(1e-9, ...order.map((at) => length(of(at))));
  const names = Object.keys(terms);
  const table = node("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  const columns = [
    ["endpoint", (at) => `${found.regions[at]} ${endpoints[at]}`],
    ["RTT ms", (at) => number(signals.rtt_ms[at])],
    ["cached", (at) => number(signals.cached_tokens[at])],
    ["uncached", (at) => number(signals.uncached_tokens[at])],
    ["pending", (at) => number(signals.pending_uncached_tokens[at])],
    ["running", (at) => number(signals.running_requests[at])],
    ...names.map((name) => [name, (at) => cost(terms[name][at])]),
    ["cost", (at) => cost(found.costs[at])],
    ["chance", (at) => share(found.probabilities[at], 1)]];
  columns.forEach(([title], at) => head.append(node("th", title, at ? { class: "n" } : {})));
  head.append(node("th", "terms", { class: "wide" }));
  for (const at of order) {
    const row = body.insertRow();
    if (at === found.chosen) row.className = "chosen";
    columns.forEach(([, text], column) => row.append(node("td", text(at), column ? { class: "n" } : {})));
    row.insertCell().append(bar(of(at), most));
  }
  const weights = Object.entries(found.weights).map(([name, value]) => `${name} ${number(value, 3)}`).join(", ");
  const excluded = Object.entries(found.excluded).map(([rule, out]) => `${rule}: ${out.join(", ")} excluded`);
  const words = [
    `${clock(found.at)}, model ${request.model || "–"}, ${number(request.prompt_tokens)} prompt tokens`,
    `policy ${found.policy} (${found.basis})` + (weights && `: ${weights}`),
    found.tied > 1 ? `drawn among ${found.tied} equals` : "",
    found.fallbacks.length ? `then ${found.fallbacks.map((at) => endpoints[at]).join(", ")}` : "", ...excluded];
  return [node("h2", found.id), ...words.filter(Boolean).map((text) => node("p", text)), node("p"), table];
}

// --- weights, tuner, learner ---

function spark(points, now) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const values = points.map(([, value]) => value), low = Math.min(...values), high = Math.max(...values);
  const begin = points[0][0], x = (at) => (100 * (at - begin)) / Math.max(now - begin, 1);
  const y = (value) => (high > low ? 19 - (18 * (value - low)) / (high - low) : 10);
  const steps = points.map(([at, value], place) => `${x(at)},${y(value)} ${x(points[place + 1]?.[0] ?? now)},${y(value)}`);
  line.setAttribute("points", steps.join(" "));
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(line);
  return svg;
}

function showWeights({ at, weights, learned }) {
  set(byId("policy"), `policy ${weights.policy}`);
  byId("weights").replaceChildren(...Object.entries(weights.values).map(([name, value]) => {
    const row = node("tr"), [low, high] = weights.bounds[name], tried = weights.trial?.values[name];
    const figure = node("td", number(value, 3), { class: "n" });
    if (tried !== undefined && tried !== value) figure.append(node("small", ` → ${number(tried, 3)}`));
    const bounds = node("td");
    bounds.append(node("small", `${number(low, 2)} … ${number(high, 2)}`));
    const drawn = node("td");
    const points = weights.history.map(([when, values]) => [when, values[name]]);
    drawn.append(spark(points, at));
    drawn.title = points.map(([when, was]) => `${clock(when)} ${number(was, 3)}`).join("\n");
    row.append(node("td", name), figure, bounds, drawn);
    row.title = `from ${weights.sources[name]}`;
    return row;
  }));
  const { trial } = weights;
  const phase = trial
    ? `trial ${trial.id}: ${trial.kind}, ${trial.arm} serves, until ${clock(trial.until)}`
    : weights.written ? `no trial; weights of ${clock(weights.written)}` : "no weights of a tuner";
  set(byId("tuner"), `Tuner: ${phase}${weights.reason && `. ${weights.reason}`}`);
  const model = learned?.model;
  const words = model ? [`Learner: model ${model.version}, round ${model.round}, ${number(model.samples)} samples, ` +
    `${number(model.age_s)} s old${model.withdrawn && `, withdrawn: ${model.withdrawn}`}`] : [];
  for (const { policy, agreed, differed, difference_ms } of learned?.shadow ?? [])
    words.push(`In shadow ${policy}: ${share(agreed, agreed + differed)} agree, ${signed(difference_ms)} ms`);
  set(byId("learner"), words.join(". "));
}

// --- another policy ---

function showOpinion(answer) {
  if (answer.policy !== asked) return;
  opinions.set(answer.picker, answer);
  const told = [...opinions.values()], good = told.filter((one) => one.decisions), box = byId("opinion");
  const total = (name) => good.reduce((sum, one) => sum + one[name], 0), count = total("decisions");
  box.replaceChildren();
  const errors = told.filter((one) => one.error).map((one) => node("p", one.error));
  const failed = told.reduce((sum, one) => sum + (one.failed ?? 0), 0);
  if (failed) errors.push(node("p", `${number(failed)} could not be asked anew`));
  if (count) {
    const weighted = (f) => good.reduce((sum, one) => sum + f(one), 0);
    const mean = weighted((one) => one.decisions * one.difference_ms) / count;
    const error = Math.sqrt(weighted((one) => (one.decisions * (one.error_ms ?? 0)) ** 2)) / count;
    box.append(node("p", `${share(total("agreed"), count)} of ${number(count)} decisions agree; ` +
      `${signed(mean)} ± ${number(1.96 * error, 1)} ms a request, estimated at learned rates.`));
    const picks = new Map();
    for (const one of good)
      for (const [address, [live, other]] of Object.entries(one.picks)) {
        const had = picks.get(address) ?? [0, 0];
        picks.set(address, [had[0] + live, had[1] + other]);
      }
    const table = node("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    head.append(node("th", "endpoint"), node("th", "picked", { class: "n" }), node("th", asked, { class: "n" }));
    for (const [address, [live, other]] of [...picks].sort((a, b) => b[1][0] - a[1][0]).slice(0, 20)) {
      const row = body.insertRow();
      row.append(node("td", address), node("td", share(live, count), { class: "n" }), node("td", share(other, count), { class: "n" }));
    }
    box.append(table, node("small", "Queues stay as the live picks made them: none is simulated."));
  }
  box.append(...errors);
}

byId("ask").onsubmit = (event) => {
  event.preventDefault();
  asked = byId("other").value;
  opinions.clear();
  byId("opinion").replaceChildren(node("p", "asking …"));
  asking?.close();
  asking = new EventSource(`ui/opinion?policy=${encodeURIComponent(asked)}`);
  asking.addEventListener("opinion", ({ data }) => showOpinion(JSON.parse(data)));
  asking.onerror = () => asking.close(); // all have said theirs
};

// --- events ---

const events = new EventSource("ui/events");
events.onerror = () => { set(byId("state"), "reconnecting"); byId("state").className = ""; };
events.addEventListener("hello", ({ data }) => {
  const { picker, policies, not_costs } = JSON.parse(data);
  own = picker;
  notCosts = new Set(not_costs);
  if (!pickers.has(shown)) shown = own;
  if (!byId("other").length) byId("other").append(...policies.map((name) => node("option", name)));
});
events.addEventListener("frame", ({ data }) => {
  const frame = JSON.parse(data), now = performance.now(), name = frame.picker;
  if (!pickers.has(name)) pickers.set(name, newPicker(name));
  const picker = pickers.get(name);
  if (picker.frame && frame.at > picker.frame.at) {
    const rate = Math.max(frame.made - picker.frame.made, 0) / (frame.at - picker.frame.at);
    picker.rate += 0.3 * (rate - picker.rate);
  }
  Object.assign(picker, { frame, heard: now });
  set(byId("state"), "live");
  byId("state").className = "live";
  addRows(frame.decisions);
  showPickers(now);
  if (name === shown) { showFleet(frame); showWeights(frame); }
});

// --- keyboard ---

function step(by) {
  const all = [...byId("rows").children], at = all.indexOf(document.activeElement);
  all[Math.min(Math.max(at + by, 0), all.length - 1)]?.focus();
}

function pause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", paused);
}

const keys = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), p: pause, " ": pause,
  o: () => byId("other").focus(), Enter: () => document.activeElement.click(),
};
document.onkeydown = (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("button, select, a")) return;
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
};
byId("pause").onclick = pause;
byId("explain").lastChild.onclick = () => byId("explain").close();
