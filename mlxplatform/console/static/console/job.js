/* A job's page: the log through SSE (replayed from the start, then live), and a chart of its metrics. */
const log = document.getElementById("log");
const chartBox = document.getElementById("chart");
const MOST_LINES = 2000;
/* Of the card around the chart, left and right, CSS pixels. */
const PADDING = 34;
const series = { train: new Map(), val: new Map() };
let plot = null;
let drawing = 0;

function line(text) {
  const follow = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
  log.append(document.createTextNode(text + "\n"));
  while (log.childNodes.length > MOST_LINES) log.firstChild.remove();
  if (follow) log.scrollTop = log.scrollHeight;
}

function draw() {
  drawing = 0;
  const steps = [...new Set([...series.train.keys(), ...series.val.keys()])].sort((a, b) => a - b);
  if (!steps.length) return;
  const data = [steps, steps.map((s) => series.train.get(s) ?? null), steps.map((s) => series.val.get(s) ?? null)];
  if (plot) return plot.setData(data);
  const colour = getComputedStyle(document.body);
  const ink = { stroke: colour.color, grid: { stroke: colour.getPropertyValue("--line") } };
  chartBox.textContent = "";
  plot = new uPlot({
    width: Math.min(chartBox.clientWidth - PADDING, 900), height: 260, scales: { x: { time: false } }, axes: [ink, ink],
    series: [{ label: "step" },
      { label: "train loss", stroke: colour.getPropertyValue("--accent"), width: 2, spanGaps: true },
      { label: "validation loss", stroke: colour.getPropertyValue("--good"), width: 2, spanGaps: true }],
  }, data, chartBox);
}

function show(event) {
  if (event.type === "log") return line(event.line);
  if (event.type === "metric") {
    const values = series[event.kind];
    if (values && typeof event.loss === "number") values.set(event.step, event.loss);
    if (!drawing) drawing = requestAnimationFrame(draw);
    return;
  }
  if (event.type === "stage") return line(`— ${event.stage}${event.message ? ": " + event.message : ""}`);
  if (event.type === "state") return line(`— ${event.state}${event.by ? " by " + event.by : ""}`);
  line(`— ${event.type}${event.error ? ": " + event.error : ""}`);
}

chartBox.textContent = chartBox.dataset.empty;
const source = new EventSource(log.dataset.stream);
source.onmessage = (message) => {
  try {
    show(JSON.parse(message.data));
  } catch {
    line(message.data);
  }
};
source.addEventListener("end", () => source.close());
source.addEventListener("error", () => {
  // A cut stream is taken up again by the browser; what it was refused (signed out meanwhile) it does not ask again.
  if (source.readyState === EventSource.CLOSED) line("— not live any more; reload this page");
});
