/* Conversations of this person, kept by the server as stored completions: it lists, opens and forgets them. */
import { csrfToken } from "./page.js";

const URL_OF_ALL = "/console/conversations";

export function fresh() {
  return { id: crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2), title: "", turns: [] };
}

/* The conversation that the page's address names, or "". */
export function named() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

export function titleOf(conversation) {
  const first = conversation.turns.find((turn) => turn.role === "user");
  return (conversation.title || (first ? first.content : "") || "Conversation").replace(/\s+/g, " ").slice(0, 80);
}

async function json(url, options) {
  const answer = await fetch(url, options);
  if (!answer.ok) throw new Error("The history cannot be read right now.");
  return answer.json();
}

export async function all() {
  return (await json(URL_OF_ALL)).conversations;
}

export async function open(id) {
  return json(`${URL_OF_ALL}/${encodeURIComponent(id)}`);
}

export async function forget(id) {
  return json(`${URL_OF_ALL}/${encodeURIComponent(id)}`, { method: "POST", headers: { "X-CSRFToken": csrfToken() } });
}

/* What a request carries so that its answer is kept under this conversation. */
export function kept(conversation) {
  const person = document.getElementById("chat").dataset.person;
  return { store: true, metadata: { conversation: conversation.id, title: titleOf(conversation), person } };
}
