/* One turn of a conversation on the page. Everything a model or a person wrote is shown as text, never as markup. */

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function button(label, act, className = "plain") {
  const made = element("button", className, label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function fold(label, text, open = false) {
  const made = element("details");
  made.open = open;
  made.append(element("summary", "", label), element("div", "body", text));
  return made;
}

/* A turn with places for thinking, text, tool calls and figures, each filled while it streams. */
export function turn(role, who) {
  const root = element("article", `turn ${role}`);
  const head = element("div", "who");
  const tools = element("span", "tools");
  head.append(element("span", "", who), tools);
  const text = element("div", "body");
  const calls = element("div", "calls");
  const foot = element("div", "foot muted small");
  root.append(head, text, calls, foot);
  let thinking = null;
  return {
    root, tools,
    text(content) { text.textContent = content; },
    think(more) {
      if (!thinking) root.insertBefore(thinking = fold("Thinking", ""), text);
      thinking.lastChild.textContent += more;
    },
    calls(list) {
      calls.replaceChildren(...list.map((call) => fold(`Calls ${call.function.name}`, call.function.arguments, true)));
    },
    foot(words) { foot.textContent = words; },
    images(urls) {
      for (const url of urls) {
        const image = element("img");
        image.src = url;
        image.alt = "attached picture";
        root.insertBefore(image, calls);
      }
    },
  };
}
