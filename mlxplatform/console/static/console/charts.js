/* Charts from data a page carries: <div class="chart" data-chart="ID"> draws the JSON of <script id="ID" type="application/json">:
   {x, y, kind: "line" | "points", series: [{label, points: [[x, y], …]}]}. Numbers stay in a table beside it; a chart adds a view. */
/* Of the card around a chart, left and right, CSS pixels. */
const PADDING = 34;
const COLOURS = ["--accent", "--good", "--warn", "--bad", "--idle"];

function aligned(series) {
  const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  return [xs, ...series.map((one) => {
    const at = new Map(one.points);
    return xs.map((x) => at.get(x) ?? null);
  })];
}

function draw(box) {
  const { x, y, kind, series } = JSON.parse(document.getElementById(box.dataset.chart).textContent);
  if (!series.some((one) => one.points.length)) return (box.textContent = "Nothing to draw yet.");
  const style = getComputedStyle(document.body);
  const ink = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line") } };
  const options = {
    width: Math.min(box.clientWidth - PADDING, 900), height: 280, scales: { x: { time: false } },
    axes: [{ ...ink, label: x }, { ...ink, label: y, size: 70 }],
    series: [{ label: x }, ...series.map((one, index) => {
      const stroke = style.getPropertyValue(COLOURS[index % COLOURS.length]);
      const dots = kind === "points" && !one.line;
      return { label: one.label, stroke, width: 2, spanGaps: true, paths: dots ? () => null : undefined, points: { show: true, size: dots ? 10 : 5, fill: stroke } };
    })],
  };
  new uPlot(options, aligned(series), box);
}

for (const box of document.querySelectorAll("[data-chart]")) draw(box);
