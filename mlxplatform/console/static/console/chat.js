/* The playground: streams chat completions from our own API, one column per model, everything shown as text. */
import { csrfToken } from "./page.js";
import { frames } from "./sse.js";
import * as store from "./conversations.js";

const $ = (id) => document.getElementById(id);
const chat = $("chat");
let conversation = store.fresh();
let running = null;

async function loadModels() {
  const answer = await fetch(chat.dataset.modelsUrl);
  if (!answer.ok) return say("The model list cannot be read right now.");
  const { data } = await answer.json();
  for (const model of data) {
    if (!model.capabilities || !model.capabilities.chat) continue;
    $("model").add(new Option(model.id, model.id, false, Boolean(model.current)));
    $("second").add(new Option(model.id, model.id));
  }
  const wanted = new URLSearchParams(location.search).get("model");
  if (wanted) $("model").value = wanted;
}

function say(text) {
  $("status").textContent = text;
}

function number(id) {
  const raw = $(id).value.trim();
  return raw === "" ? undefined : Number(raw);
}

function body(model) {
  const messages = [];
  if ($("system").value.trim()) messages.push({ role: "system", content: $("system").value });
  for (const turn of conversation.turns) messages.push({ role: turn.role, content: turn.content });
  const request = {
    model, messages, stream: true, stream_options: { include_usage: true },
    temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed: number("seed"),
  };
  if ($("schema").value.trim()) {
    request.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: JSON.parse($("schema").value) } };
  }
  return request;
}

function bubble(role, who) {
  const turn = document.createElement("article");
  turn.className = `turn ${role}`;
  const head = document.createElement("div");
  head.className = "who";
  const name = document.createElement("span");
  name.textContent = who;
  const tools = document.createElement("span");
  tools.className = "tools";
  head.append(name, tools);
  const text = document.createElement("div");
  text.className = "body";
  turn.append(head, text);
  return { turn, text, tools };
}

function button(label, act) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = "plain";
  element.textContent = label;
  element.addEventListener("click", act);
  return element;
}

function draw() {
  const thread = $("thread");
  thread.replaceChildren();
  if (!conversation.turns.length) thread.append(empty);
  conversation.turns.forEach((turn, index) => {
    const shown = bubble(turn.role, turn.role === "user" ? "You" : turn.model || "Model");
    shown.text.textContent = turn.content;
    if (turn.role === "user") shown.tools.append(button("Edit", () => edit(index)));
    else shown.tools.append(button("Regenerate", () => again(index)));
    thread.append(shown.turn);
  });
  history();
}

function edit(index) {
  if (running) return;
  $("prompt").value = conversation.turns[index].content;
  conversation.turns.length = index;
  draw();
  $("prompt").focus();
}

function again(index) {
  if (running) return;
  conversation.turns.length = index;
  draw();
  answer();
}

async function one(model, column, signal) {
  const shown = bubble("assistant", model);
  column.append(shown.turn);
  const response = await fetch(chat.dataset.chatUrl, {
    method: "POST", signal, body: JSON.stringify(body(model)),
    headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken() },
  });
  if (!response.ok) {
    const { error } = await response.json();
    throw new Error(error.message);
  }
  let content = "", reasoning = null, usage = null;
  const begun = performance.now();
  for await (const frame of frames(response)) {
    if (frame.data === "[DONE]") break;
    const chunk = JSON.parse(frame.data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) usage = chunk.usage;
    const delta = chunk.choices.length ? chunk.choices[0].delta : {};
    if (delta.reasoning) {
      if (!reasoning) {
        reasoning = document.createElement("details");
        const label = document.createElement("summary");
        label.textContent = "Thinking";
        const inside = document.createElement("div");
        inside.className = "body";
        reasoning.append(label, inside);
        shown.turn.insertBefore(reasoning, shown.text);
      }
      reasoning.lastChild.textContent += delta.reasoning;
    }
    for (const call of delta.tool_calls || []) content += `\n[${call.function.name}] ${call.function.arguments}`;
    if (delta.content) content += delta.content;
    shown.text.textContent = content;
  }
  if (usage) {
    const seconds = (performance.now() - begun) / 1000;
    say(`${usage.completion_tokens} tokens, ${(usage.completion_tokens / seconds).toFixed(1)} per second`);
  }
  return content;
}

async function answer() {
  running = new AbortController();
  $("stop").hidden = false;
  $("send").disabled = true;
  say("…");
  const models = [$("model").value, $("second").value].filter(Boolean);
  const box = document.createElement("div");
  if (models.length > 1) box.className = "compare";
  $("thread").append(box);
  const results = await Promise.allSettled(models.map((model) => one(model, box, running.signal)));
  const partial = box.querySelector(".body");
  const first = results[0];
  if (first.status === "fulfilled") conversation.turns.push({ role: "assistant", content: first.value, model: models[0] });
  else if (first.reason.name === "AbortError" && partial && partial.textContent) {
    conversation.turns.push({ role: "assistant", content: partial.textContent, model: models[0] });
    say("Stopped.");
  }
  const failed = results.find((result) => result.status === "rejected" && result.reason.name !== "AbortError");
  running = null;
  $("stop").hidden = true;
  $("send").disabled = false;
  store.save(conversation);
  if (models.length === 1) draw();
  if (failed) say(failed.reason.message);
}

function history() {
  const select = $("history");
  select.replaceChildren(new Option("this one", ""));
  for (const item of store.all()) if (item.id !== conversation.id) select.add(new Option(store.title(item), item.id));
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  conversation.turns.push({ role: "user", content: text });
  $("prompt").value = "";
  draw();
  answer();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
$("stop").addEventListener("click", () => running && running.abort());
$("new-chat").addEventListener("click", () => {
  if (running) running.abort();
  conversation = store.fresh();
  draw();
});
$("history").addEventListener("change", () => {
  const found = store.find($("history").value);
  if (found && !running) {
    conversation = found;
    draw();
  }
});

const empty = $("thread-empty");
history();
loadModels().catch(() => say("The model list cannot be read right now."));
