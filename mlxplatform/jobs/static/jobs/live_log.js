// The live log of one job in the admin: follows its event stream and shows everything as text.
"use strict";

const LINES_SHOWN = 2000; // older lines leave the page; the whole log can be downloaded

function words(event) {
  switch (event.type) {
    case "log": return event.line;
    case "stage": return [event.stage, event.message].filter(Boolean).join(": ");
    case "metric": {
      const { type, seq, ts, kind, step, ...values } = event;
      return `${kind} step ${step}: ` + Object.entries(values).map(([name, value]) => `${name} ${value}`).join(", ");
    }
    case "artefact": return `published ${event.name}`;
    case "started": return `started, attempt ${event.attempt}`;
    case "failed": return `failed (${event.code}): ${event.error}`;
    case "state": return [event.state, event.message].filter(Boolean).join(": ");
    default: return event.type;
  }
}

function follow(section) {
  const log = section.querySelector(".job-live-log");
  const bar = section.querySelector("progress");
  const state = section.querySelector("[data-job-state]");
  const message = section.querySelector("[data-job-message]");
  let last = 0;

  function show(event) {
    if (event.seq <= last) return;
    last = event.seq;
    const line = document.createElement("li");
    line.dataset.type = event.type;
    line.textContent = `${new Date(event.ts).toLocaleTimeString()}  ${words(event)}`;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
    log.append(line);
    if (log.childElementCount > LINES_SHOWN) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
    if (typeof event.progress === "number") bar.value = event.progress;
    if (event.state) state.textContent = event.state;
    if (event.type === "done") bar.value = 1;
    if (event.message) message.textContent = event.message;
  }

  const stream = new EventSource(section.dataset.jobStream);
  stream.onmessage = (frame) => show(JSON.parse(frame.data));
  stream.addEventListener("reset", () => { last = 0; log.replaceChildren(); });
  stream.addEventListener("end", () => stream.close());
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("[data-job-stream]").forEach(follow));
