// What the server streams is put into the page; charts with a table of minutes each; sliders.
"use strict";
document.addEventListener("input", (event) => {
  const output = document.querySelector(`output[for="${event.target.id}"]`);
  if (!output) return;
  const value = Number(event.target.value);
  const price = value < 0 ? (10 ** value).toExponential(1) : "any"; // of a logarithmic slider
  output.value = event.target.id === "max_cost" ? price : value;
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

// The stream of a page: an event's name is the id of the element whose new HTML it brings.

const followed = document.querySelector("[data-stream]");
const pause = document.getElementById("pause");
let stream = null;

// Changes only what differs, so that focus, selection, scrolling and opened details stay.
function become(old, fresh) {
  if (old.nodeType !== 1 || old.nodeName !== fresh.nodeName) {
    if (!old.isEqualNode(fresh)) old.replaceWith(fresh.cloneNode(true));
    return;
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  const children = [...old.childNodes];
  fresh.childNodes.forEach((node, place) => {
    if (place < children.length) become(children[place], node);
    else old.append(node.cloneNode(true));
  });
  children.slice(fresh.childNodes.length).forEach((node) => node.remove());
}

function renew(event) {
  const old = document.getElementById(event.type);
  const fresh = old.cloneNode(false);
  fresh.innerHTML = event.data;
  become(old, fresh);
}

function say(text) {
  document.getElementById("following").textContent = text;
}

function follow() {
  const isWanted = followed && !document.hidden && !pause.matches("[aria-pressed=true]");
  if (!isWanted || stream) return;
  stream = new EventSource(followed.dataset.stream);
  document.querySelectorAll("[data-live]").forEach((each) => stream.addEventListener(each.id, renew));
  stream.addEventListener("series", (event) => extend(JSON.parse(event.data)));
  stream.onopen = () => say("live");
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) return; // it ended, and is opened anew at once
    say("not live: the gateway does not answer, or too many tabs are open");
    leave();
    setTimeout(follow, 5000);
  };
}

function leave() {
  if (stream) stream.close();
  stream = null;
}

if (followed) {
  pause.hidden = false;
  pause.setAttribute("aria-pressed", "false");
  pause.addEventListener("click", () => {
    const isPaused = pause.getAttribute("aria-pressed") === "false";
    pause.setAttribute("aria-pressed", `${isPaused}`);
    if (isPaused) {
      leave();
      say("paused");
    } else follow();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : follow()));
  addEventListener("pagehide", leave);
  addEventListener("pageshow", follow);
}

// The charts.

const KEPT_S = 600;
const charts = document.getElementById("charts");
const plots = [];
let series = null;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function utcMinute(time) {
  return new Date(time * 1e3).toISOString().slice(11, 16);
}

function makePlot(place) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 } };
  return new uPlot({
    width: place.clientWidth, height: 165, legend: { show: false }, cursor: { drag: { x: false } },
    scales: { x: { range: (_, first, last) => [last - KEPT_S, last] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    series: [{}, { stroke: colour("--accent"), width: 2, spanGaps: true }],
    axes: [{ ...axis, values: (_, times) => times.map((s) => utcMinute(s)) },
      { ...axis, size: 46 }],
  }, [[], []], place);
}

function fillTable(place, times, values) {
  const minutes = new Map();
  times.forEach((time, row) => {
    if (values[row] === null) return;
    const key = utcMinute(time);
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

function draw() {
  if (!series) return;
  charts.querySelectorAll(".chart").forEach((place, number) => {
    plots[number] = plots[number] || makePlot(place);
    plots[number].setData([series[0], series[number + 1]]);
    fillTable(place, series[0], series[number + 1]);
  });
}

// Appends what is newer: a stream that begins anew brings all of it again.
function extend(more) {
  const last = series ? series[0].at(-1) ?? 0 : 0;
  const from = more[0].filter((time) => time <= last).length;
  const every = more.map((column, number) => [...(series ? series[number] : []), ...column.slice(from)]);
  const kept = every[0].findIndex((time) => time > every[0].at(-1) - KEPT_S);
  series = every.map((column) => column.slice(Math.max(kept, 0)));
  draw();
}

function drawAnew() {
  plots.splice(0).forEach((plot) => plot.destroy());
  draw();
}

if (charts) {
  addEventListener("resize", drawAnew);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);
}
follow();
