/* Loaded on every page: answers confirm questions before dangerous forms are sent, and fills live spots.
   An element with data-live="/url" is refreshed from that page's element with the same id, until that one is not live. */
for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => {
    if (!window.confirm(form.dataset.confirm)) event.preventDefault();
  });
}

for (const box of document.querySelectorAll("input[data-check-all]")) {
  box.addEventListener("change", () => {
    for (const other of document.querySelectorAll(`input[name="${box.dataset.checkAll}"]`)) other.checked = box.checked;
  });
}

/* On a phone the menu is folded until asked for; without this script it stays open. */
const menu = document.querySelector("details.menu");
if (menu) {
  const narrow = window.matchMedia("(max-width: 52rem)");
  const fold = () => { menu.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
}

const live = document.querySelectorAll("[data-live]");
const LIVE_MS = 2000;

async function read(url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function refresh(element, page) {
  const fresh = page.getElementById(element.id);
  if (!fresh || element.contains(document.activeElement)) return;
  const chosen = element.value;
  element.replaceChildren(...fresh.childNodes);
  // What somebody has chosen and not sent yet stays chosen.
  if (element.tagName === "SELECT") element.value = chosen;
  if (!fresh.hasAttribute("data-live")) element.removeAttribute("data-live");
}

/* Spots that live on the same page are filled from one reading of it. */
async function refreshAll() {
  const spots = new Map();
  for (const element of live) {
    if (!element.hasAttribute("data-live")) continue;
    const url = element.dataset.live || location.href;
    spots.set(url, [...(spots.get(url) ?? []), element]);
  }
  for (const [url, elements] of spots) {
    const page = await read(url);
    if (page) for (const element of elements) refresh(element, page);
  }
}

if (live.length) {
  setInterval(() => { if (!document.hidden) refreshAll().catch(() => {}); }, LIVE_MS);
}

export function csrfToken() {
  return document.querySelector("meta[name=csrf-token]").content;
}
