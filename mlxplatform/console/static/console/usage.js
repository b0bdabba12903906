/* Draws the usage table's days as two lines; without it the table says the same. */
const box = document.getElementById("usage-chart");
const rows = [...document.querySelectorAll("#usage-days tbody tr")];
if (box && rows.length) {
  const style = getComputedStyle(document.body);
  const ink = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line") } };
  const column = (name) => rows.map((row) => Number(row.dataset[name]));
  new uPlot({
    width: Math.min(box.clientWidth - 32, 900), height: 240, axes: [ink, ink],
    series: [{ label: "day" },
      { label: "prompt tokens", stroke: style.getPropertyValue("--accent"), width: 2, points: { show: true } },
      { label: "answer tokens", stroke: style.getPropertyValue("--good"), width: 2, points: { show: true } }],
  }, [column("day"), column("prompt"), column("completion")], box);
}
