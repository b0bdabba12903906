/* Loaded on every page: answers confirm questions before dangerous forms are sent, and fills live spots.
   An element with data-live="/url" is refreshed from that page's element with the same id, until that one is not live. */
for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm ?? form.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });
}

/* A second click while the answer is under way sends nothing twice. A download leaves the page where it is, hence the end. */
const SENDING_MS = 3000;
const sent = new WeakMap();
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (performance.now() - (sent.get(form) ?? -SENDING_MS) < SENDING_MS) {
    event.preventDefault();
    return;
  }
  sent.set(form, performance.now());
  keep(form);
});

/* Whoever was signed out in the middle of a form finds what they had typed when they come back. Kept in this tab only, for the
   sign-in page's way back only; no password, no file, nothing hidden. */
const KEPT = "form";
const place = (form) => `${location.pathname} ${[...document.forms].indexOf(form)}`;
const typed = (form) => [...form.elements].filter((one) => one.name && !["hidden", "password", "file", "submit"].includes(one.type));

function keep(form) {
  if (!document.querySelector(".side")) return;
  const values = typed(form).map((one) => [one.name, one.value, one.checked ?? null]);
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ place: place(form), values }));
  } catch {
    sessionStorage.removeItem(KEPT);  // more than a tab may keep
  }
}

const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
sessionStorage.removeItem(KEPT);
if (kept && document.referrer && new URL(document.referrer).pathname === "/login/") {
  const form = [...document.forms].find((one) => place(one) === kept.place);
  for (const [at, one] of (form ? typed(form) : []).entries()) {
    const [name, value, checked] = kept.values[at] ?? [];
    if (name !== one.name) break;
    if (checked === null || !["checkbox", "radio"].includes(one.type)) one.value = value;
    else one.checked = checked;
  }
}

for (const box of document.querySelectorAll("input[data-check-all]")) {
  box.addEventListener("change", () => {
    for (const other of document.querySelectorAll(`input[name="${box.dataset.checkAll}"]`)) other.checked = box.checked;
  });
}

/* What scrolls sideways and holds nothing to step to is itself stepped to, or a keyboard could not scroll it. */
for (const box of document.querySelectorAll(".scroll, #chart, #usage-chart")) {
  if (!box.querySelector("a, button, input, select, textarea")) box.tabIndex = 0;
}

/* On a phone the menu is folded until asked for; without this script it stays open. */
const menu = document.querySelector("details.menu");
const narrow = window.matchMedia("(max-width: 52rem)");
if (menu) {
  const fold = () => { menu.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
}

/* Escape folds what is open around the focus, and leaves the focus where it was opened. */
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
  const open = document.activeElement.closest("details[open]");
  if (!open || (open === menu && !narrow.matches)) return;
  open.open = false;
  open.querySelector("summary").focus();
});

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
