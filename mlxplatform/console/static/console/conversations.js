/* Conversations kept in this browser's local storage: newest first, bounded. */
const KEY = "mlxp.conversations";
const MOST = 50;

export function all() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) || [];
  } catch {
    return [];
  }
}

export function save(conversation) {
  if (!conversation.turns.length) return;
  const others = all().filter((item) => item.id !== conversation.id);
  try {
    localStorage.setItem(KEY, JSON.stringify([conversation, ...others].slice(0, MOST)));
  } catch {
    /* a full store must not break the chat */
  }
}

export function find(id) {
  return all().find((item) => item.id === id);
}

export function fresh() {
  return { id: crypto.randomUUID(), turns: [] };
}

export function title(conversation) {
  const first = conversation.turns.find((turn) => turn.role === "user");
  return (first ? first.content : "empty").slice(0, 40);
}
