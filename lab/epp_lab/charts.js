// Draws each `.chart` from its data, and again when the width or the reader's colours change.
"use strict";
(() => {
  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const { bars } = uPlot.paths;
  const plots = new Map();

  // A canvas knows no variables of style sheets.
  function resolved(place, color) {
    place.style.color = `var(--${color})`;
    return getComputedStyle(place).color;
  }

  function options(place, chart) {
    const nearest = (x) => chart.labels.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a))[1];
    const said = (x) => (x == null ? "" : chart.labels.length ? nearest(x) : format.format(x));
    const number = (value) => (value == null ? "" : format.format(value));
    const [line, text] = [resolved(place, "line"), resolved(place, "dim")];
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    const colors = chart.series.map(({ color }) => resolved(place, `c${color}`));
    const drawn = { lines: {}, points: { paths: () => null }, bars: { paths: bars({ size: [0.9 / (chart.series.length + 1), 48] }) } }[chart.drawn];
    const below = (low) => Math.min(0, low);
    return {
      width: place.clientWidth,
      height: 240,
      padding: [12, 28, 0, 0],
      scales: {
        x: { time: false, distr: chart.log_x ? 3 : 1, ...(chart.drawn === "bars" && { range: (_, low, high) => [Math.round(low) - 0.5, Math.round(high) + 0.5] }) },
        y: { range: (_, low, high) => [below(low), high > below(low) ? high + 0.05 * (high - below(low)) : 1] },
      },
      legend: { markers: { width: 0, fill: (_, at) => colors[at - 1] } },
      axes: [
        { ...axis, label: chart.x, size: 32, labelSize: 20, labelFont: axis.font, values: (_, places) => places.map(said), ...(chart.ticks.length && { splits: chart.ticks }) },
        { ...axis, label: chart.y, labelSize: 20, labelFont: axis.font, size: 58, values: (_, places) => places.map((y) => (y == null ? "" : format.format(y))) },
      ],
      series: [
        { label: chart.x, value: (_, x) => said(x) },
        ...chart.series.map(({ name }, at) => {
          const stroke = colors[at];
          const fill = chart.drawn === "bars" ? stroke : undefined;
          return { label: name, stroke, fill, width: 2, spanGaps: true, value: (_, y) => number(y), points: { show: chart.drawn === "points", size: 4, fill: stroke }, ...drawn };
        }),
      ],
    };
  }

  function draw(place) {
    const chart = JSON.parse(place.dataset.chart);
    plots.get(place)?.destroy();
    plots.set(place, new uPlot(options(place, chart), uPlot.join(chart.series.map((each) => each.points)), place));
  }

  const places = [...document.querySelectorAll(".chart")];
  const sized = new ResizeObserver((entries) => entries.forEach(({ target }) => draw(target)));
  places.forEach((place) => sized.observe(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => places.forEach(draw));
})();
