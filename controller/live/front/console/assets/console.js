// Charts of the page "Now" with a table of minutes each, and the values beside sliders.
"use strict";
document.addEventListener("input", (event) => {
  const output = document.querySelector(`output[for="${event.target.id}"]`);
  if (output) output.value = event.target.value;
});

const upload = document.getElementById("upload");

async function ask(event) {
  event.preventDefault();
  const place = document.getElementById("answer");
  const limits = new FormData(document.querySelector("form[method=get]"));
  limits.append("token", upload.dataset.token);
  const key = document.getElementById("key").value;
  place.textContent = "It is asked ...";
  const body = document.getElementById("file").files[0];
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const where = `${upload.action}?${new URLSearchParams(limits)}`;
  const answer = await fetch(where, { method: "POST", headers, body, cache: "no-store" });
  const text = await answer.text();
  if (answer.headers.get("content-type").startsWith("text/html")) place.innerHTML = text;
  else place.textContent = JSON.parse(text).error;
}

if (upload) upload.addEventListener("submit", (event) => ask(event).catch(() => {}));

const charts = document.getElementById("charts");
const plots = [];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function makePlot(place) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 } };
  return new uPlot({
    width: place.clientWidth, height: 165, legend: { show: false }, cursor: { drag: { x: false } },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    series: [{}, { stroke: colour("--accent"), width: 2, spanGaps: true }],
    axes: [{ ...axis, values: (_, times) => times.map((s) => new Date(s * 1e3).toTimeString().slice(0, 5)) },
      { ...axis, size: 46 }],
  }, [[], []], place);
}

function fillTable(place, times, values) {
  const minutes = new Map();
  times.forEach((time, row) => {
    if (values[row] === null) return;
    const key = new Date(time * 1e3).toTimeString().slice(0, 5);
    const sum = minutes.get(key) || [0, 0];
    minutes.set(key, [sum[0] + values[row], sum[1] + 1]);
  });
  const body = place.parentElement.querySelector("tbody");
  body.replaceChildren(...[...minutes].map(([minute, [sum, count]]) => {
    const line = document.createElement("tr");
    for (const text of [minute, (sum / count).toFixed(1)]) line.insertCell().textContent = text;
    return line;
  }));
}

async function renew() {
  if (document.hidden) return;
  const answer = await fetch(charts.dataset.series, { cache: "no-store" });
  if (!answer.ok) return;
  const series = await answer.json();
  charts.querySelectorAll(".chart").forEach((place, number) => {
    const values = series[Number(place.dataset.index)];
    plots[number] = plots[number] || makePlot(place);
    plots[number].setData([series[0], values]);
    fillTable(place, series[0], values);
  });
}

function drawAnew() {
  plots.splice(0).forEach((plot) => plot.destroy());
  renew().catch(() => {});
}

if (charts) {
  drawAnew();
  setInterval(() => renew().catch(() => {}), 2000);
  addEventListener("resize", drawAnew);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
}
