/* Draws the usage table's days as two lines; without it the table says the same. */
const box = document.getElementById("usage-chart");
const rows = [...document.querySelectorAll("#usage-days tbody tr")];
if (box && rows.length) {
  const style = getComputedStyle(document.body);
  const ink = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line") } };
  /* Every day of the month that is looked back on, also those without a request: a single day would have no scale. */
  const DAY = 86_400, BACK = 29;
  const used = new Map(rows.map((row) => [Number(row.dataset.day), row.dataset]));
  const last = Math.max(...used.keys());
  const days = Array.from({ length: BACK + 1 }, (_, index) => last - (BACK - index) * DAY);
  const column = (name) => days.map((day) => Number(used.get(day)?.[name] ?? 0));
  new uPlot({
    width: Math.min(box.clientWidth - 32, 900), height: 240, axes: [ink, { ...ink, size: 70 }],
    scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
    series: [{ label: "day" },
      { label: "prompt tokens", stroke: style.getPropertyValue("--accent"), width: 2, points: { show: false } },
      { label: "answer tokens", stroke: style.getPropertyValue("--good"), width: 2, points: { show: false } }],
  }, [days, column("prompt"), column("completion")], box);
}
