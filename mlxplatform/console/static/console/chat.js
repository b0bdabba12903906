/* The playground: streams chat completions from our own API, one column per model compared. */
import { csrfToken } from "./page.js";
import { frames } from "./sse.js";
import { LABELS, ballot, shuffled } from "./blind.js";
import * as store from "./conversations.js";
import { button, turn } from "./turns.js";

const $ = (id) => document.getElementById(id);
const chat = $("chat");
const empty = $("thread-empty");
/* Largest text file that is pasted into a message, characters; longer ones belong into a dataset. */
const MOST_TEXT = 200_000;
let conversation = store.fresh();
let running = null;
let attached = [];

function say(text) {
  $("status").textContent = text;
}

async function loadModels() {
  const answer = await fetch(chat.dataset.modelsUrl);
  if (!answer.ok) throw new Error("The model list cannot be read right now.");
  const chatting = (await answer.json()).data.filter((model) => model.capabilities && model.capabilities.chat);
  for (const [name, models] of [["Models", chatting.filter((m) => !m.id.startsWith("ft:"))], ["Trained here", chatting.filter((m) => m.id.startsWith("ft:"))]]) {
    if (!models.length) continue;
    for (const select of [$("model"), $("second")]) {
      const group = document.createElement("optgroup");
      group.label = name;
      for (const model of models) {
        const option = new Option(model.id, model.id, false, select === $("model") && Boolean(model.current));
        option.dataset.vision = model.capabilities.vision ? "1" : "";
        group.append(option);
      }
      select.append(group);
    }
  }
  const asked = new URLSearchParams(location.search);
  preselect($("model"), asked.get("model"));
  preselect($("second"), asked.get("second"));
  $("blind").checked = asked.has("blind");
  offerAttachments();
}

/* A checkpoint of a run can be asked by name without being in the list of models. */
function preselect(select, name) {
  if (!name) return;
  const known = [...select.options].some((option) => option.value === name);
  if (!known && name.startsWith("ft:")) select.append(new Option(name, name));
  if (known || name.startsWith("ft:")) select.value = name;
}

function offerAttachments() {
  const option = $("model").selectedOptions[0];
  $("attach").accept = option && option.dataset.vision ? "text/*,.md,.json,.jsonl,.csv,.py,image/*" : "text/*,.md,.json,.jsonl,.csv,.py";
}

function number(id) {
  const raw = $(id).value.trim();
  return raw === "" ? undefined : Number(raw);
}

function parsed(id, what) {
  const raw = $(id).value.trim();
  if (!raw) return undefined;
  try {
    return JSON.parse(raw);
  } catch {
    throw new Error(`${what} is not valid JSON.`);
  }
}

function message(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.call, content: turn.content };
  const made = { role: turn.role, content: turn.content };
  if (turn.calls && turn.calls.length) made.tool_calls = turn.calls;
  if (turn.images && turn.images.length) {
    made.content = [{ type: "text", text: turn.content }, ...turn.images.map((url) => ({ type: "image_url", image_url: { url } }))];
  }
  return made;
}

function body(model) {
  const messages = conversation.turns.map(message);
  if ($("system").value.trim()) messages.unshift({ role: "system", content: $("system").value });
  const request = {
    model, messages, stream: true, stream_options: { include_usage: true }, ...store.kept(conversation),
    temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed: number("seed"),
  };
  const schema = parsed("schema", "The JSON Schema");
  if (schema) request.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  const tools = parsed("tools", "The list of tools");
  if (tools) request.tools = tools;
  return request;
}

function draw() {
  const thread = $("thread");
  thread.replaceChildren();
  if (!conversation.turns.length) thread.append(empty);
  conversation.turns.forEach((one, index) => {
    const who = { user: "You", tool: "Result of the tool" }[one.role] || one.model || "Model";
    const shown = turn(one.role, who);
    shown.text(one.content || "");
    if (one.images) shown.images(one.images);
    if (one.reasoning) shown.think(one.reasoning);
    if (one.calls) shown.calls(one.calls);
    if (one.foot) shown.foot(one.foot);
    if (one.role === "user") shown.tools.append(button("Edit", () => edit(index)));
    if (one.role === "assistant") {
      shown.tools.append(button("Copy", () => copy(one.content)));
      shown.tools.append(button("Regenerate", () => again(index)));
    }
    thread.append(shown.root);
  });
  offerResult();
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser does not let this page copy.");  // it does on this machine, or over https
  }
}

/* When the last answer calls a tool, its result can be typed and the conversation goes on. */
function offerResult() {
  const last = conversation.turns.at(-1);
  const call = last && last.role === "assistant" && last.calls && last.calls[0];
  $("tool-result").hidden = !call;
  if (call) $("tool-name").textContent = call.function.name;
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

function addCall(calls, delta) {
  const call = calls[delta.index] || (calls[delta.index] = { id: "", type: "function", function: { name: "", arguments: "" } });
  if (delta.id) call.id = delta.id;
  if (delta.function && delta.function.name) call.function.name += delta.function.name;
  if (delta.function && delta.function.arguments) call.function.arguments += delta.function.arguments;
}

/* One model's answer, streamed into a turn of its own; ``made`` grows as it comes, so that a stop keeps what is there. */
async function one(made, column, signal, label = made.model) {
  const shown = turn("assistant", label);
  column.append(shown.root);
  const response = await fetch(chat.dataset.chatUrl, {
    method: "POST", signal, body: JSON.stringify(body(made.model)),
    headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken() },
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const begun = performance.now();
  let first = 0;
  for await (const frame of frames(response)) {
    if (frame.data === "[DONE]") break;
    const chunk = JSON.parse(frame.data);
    if (chunk.error) throw new Error(chunk.error.message);
    made.id = chunk.id || made.id;
    const choice = chunk.choices[0];
    const delta = (choice && choice.delta) || {};
    if (!first && (delta.content || delta.reasoning || delta.tool_calls)) first = performance.now() - begun;
    if (delta.reasoning) {
      made.reasoning += delta.reasoning;
      shown.think(delta.reasoning);
    }
    for (const call of delta.tool_calls || []) addCall(made.calls, call);
    if (made.calls.length) shown.calls(made.calls);
    if (delta.content) shown.text(made.content += delta.content);
    if (choice && choice.finish_reason === "length") made.cut = true;
    if (chunk.usage) {
      const seconds = (performance.now() - begun) / 1000;
      const rate = (chunk.usage.completion_tokens / seconds).toFixed(1);
      made.foot = `${chunk.usage.completion_tokens} tokens, ${rate} per second, first after ${Math.round(first)} ms${made.cut ? ", cut at the longest answer allowed" : ""}`;
      if (label === made.model) shown.foot(made.foot);
    }
  }
}

/* While an answer runs, Stop is there and the thread is not read out: its text is replaced with every token. */
function busy(yes) {
  if (!yes) running = null;
  $("stop").hidden = !yes;
  $("send").disabled = yes;
  $("thread").setAttribute("aria-busy", String(yes));
  // Whoever pressed what is gone now (Regenerate, Stop) goes on where it makes sense.
  if ([document.body, $("stop")].includes(document.activeElement)) $(yes ? "stop" : "prompt").focus();
}

async function answer() {
  running = new AbortController();
  busy(true);
  $("tool-result").hidden = true;
  say("…");
  await models;
  if (!$("model").value) return unanswered();
  const answers = [$("model").value, $("second").value].filter(Boolean)
    .map((model) => ({ role: "assistant", model, id: "", content: "", reasoning: "", calls: [] }));
  const box = document.createElement("div");
  if (answers.length > 1) box.className = "compare";
  $("thread").append(box);
  const blind = $("blind").checked && answers.length > 1 && answers[0].model !== answers[1].model;
  const order = blind ? shuffled(answers) : answers;
  const results = await Promise.allSettled(
    order.map((made, index) => one(made, box, running.signal, blind ? LABELS[index] : made.model)),
  );
  const stopped = results.some((result) => result.status === "rejected" && result.reason.name === "AbortError");
  const failed = results.find((result) => result.status === "rejected" && result.reason.name !== "AbortError");
  busy(false);
  if (stopped) for (const made of answers) if (made.id) forgetAnswer(made.id);
  if (answers.length > 1) {
    /* Both stay on the page; the person says which one the conversation goes on with. */
    order.forEach((made, index) => {
      const tools = box.children[index] && box.children[index].querySelector(".tools");
      if (tools && made.content) tools.append(button("Go on with this", () => choose(made)));
    });
  }
  if (blind && !stopped && !failed) {
    const names = [...box.querySelectorAll(".who > span:first-child")];
    const question = String(conversation.turns.findLast((one) => one.role === "user").content);
    box.after(ballot({ url: chat.dataset.votesUrl, models: order.map((made) => made.model), names, question, say }));
    answers[0].foot = "Which answer is better?";
  }
  if (answers[0].content || answers[0].calls.length) conversation.turns.push(answers[0]);
  if (answers.length === 1) draw();
  say(failed ? why(failed.reason) : stopped ? "Stopped." : answers[0].foot || "");
  history().catch(() => {});
}

function why(error) {
  return error instanceof TypeError ? "The platform cannot be reached; it may be restarting. Regenerate asks again." : error.message;
}

/* The list of models may come late, or hold none that chats: what was asked goes back to where it was typed. */
function unanswered() {
  busy(false);
  const asked = conversation.turns.at(-1);
  if (asked && asked.role === "user" && !asked.images) $("prompt").value = conversation.turns.pop().content;
  draw();
  say("There is no model to chat with yet, or the list cannot be read. Library and Find models bring one; then reload this page.");
}

/* A stored answer would run on for whoever comes back; a stopped one must not. */
function forgetAnswer(id) {
  fetch(`${chat.dataset.chatUrl}/${encodeURIComponent(id)}`, { method: "DELETE", headers: { "X-CSRFToken": csrfToken() } }).catch(() => {});
}

function choose(made) {
  if (running) return;
  conversation.turns[conversation.turns.length - 1] = made;
  draw();
}

async function history() {
  const list = $("history");
  const found = await store.all();
  remember(found.some((item) => item.id === conversation.id));
  list.replaceChildren(...found.map((item) => {
    const row = document.createElement("li");
    const open = button(item.title, () => show(item.id), "link");
    if (item.id === conversation.id) open.setAttribute("aria-current", "true");
    const gone = button("Forget", async () => {
      await store.forget(item.id);
      if (item.id === conversation.id) conversation = store.fresh();
      draw();
      history().catch(() => {});
    });
    gone.setAttribute("aria-label", `Forget ${item.title}`);
    row.append(open, gone);
    return row;
  }));
  $("history-empty").hidden = found.length > 0;
}

/* The address names the conversation, so that a reload and the way back lead to it. */
function remember(kept) {
  window.history.replaceState(null, "", kept ? `#${encodeURIComponent(conversation.id)}` : location.pathname + location.search);
}

async function show(id) {
  if (running) return;
  try {
    conversation = await store.open(id);
    remember(true);
    $("system").value = conversation.system || "";
    draw();
  } catch (error) {
    say(error.message);
  }
  history().catch(() => {});
}

async function attach(files) {
  for (const file of files) {
    if (file.type.startsWith("image/")) {
      const url = await new Promise((resolve) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.readAsDataURL(file);
      });
      attached.push({ name: file.name, image: url });
    } else {
      const text = await file.text();
      if (text.length > MOST_TEXT) return say(`${file.name} is too long to attach; make a dataset of it instead.`);
      attached.push({ name: file.name, text });
    }
  }
  $("attached").textContent = attached.map((item) => item.name).join(", ");
}

function sent(text) {
  const pasted = attached.filter((item) => item.text).map((item) => `\n\n${item.name}:\n\`\`\`\n${item.text}\n\`\`\``).join("");
  const images = attached.filter((item) => item.image).map((item) => item.image);
  attached = [];
  $("attached").textContent = "";
  $("attach").value = "";
  return images.length ? { role: "user", content: text + pasted, images } : { role: "user", content: text + pasted };
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  conversation.turns.push(sent(text));
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
$("tool-result").addEventListener("submit", (event) => {
  event.preventDefault();
  const call = conversation.turns.at(-1).calls[0];
  conversation.turns.push({ role: "tool", call: call.id, content: $("tool-text").value });
  $("tool-text").value = "";
  draw();
  answer();
});
$("stop").addEventListener("click", () => running && running.abort());
$("new-chat").addEventListener("click", () => {
  if (running) running.abort();
  conversation = store.fresh();
  remember(false);
  draw();
  history().catch(() => {});
});
$("attach").addEventListener("change", () => attach($("attach").files));
$("model").addEventListener("change", offerAttachments);

if (store.named()) show(store.named());
else history().catch((error) => say(error.message));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !running || event.isComposing) return;
  event.preventDefault();
  running.abort();
});
const models = loadModels().catch((error) => say(error.message));
