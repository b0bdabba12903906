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

async function refresh(element) {
  const answer = await fetch(element.dataset.live || location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById(element.id);
  if (!fresh || element.contains(document.activeElement)) return;
  element.replaceChildren(...fresh.childNodes);
  if (!fresh.hasAttribute("data-live")) element.removeAttribute("data-live");
}

if (live.length) {
  setInterval(() => {
    if (document.hidden) return;
    for (const element of live) if (element.hasAttribute("data-live")) refresh(element).catch(() => {});
  }, LIVE_MS);
}

export function csrfToken() {
  return document.querySelector("meta[name=csrf-token]").content;
}
