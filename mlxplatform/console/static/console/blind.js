/* Blind comparison: two answers in random order under neutral names, a vote, and only then the models' names. */
import { csrfToken } from "./page.js";

export const LABELS = ["Answer A", "Answer B"];

export function shuffled(models) {
  return crypto.getRandomValues(new Uint8Array(1))[0] & 1 ? [...models] : [...models].reverse();
}

/* A row of buttons; `names` are the elements to reveal the models in, in the order of `models`. */
export function ballot({ url, models, names, question, say }) {
  const row = document.createElement("div");
  row.className = "row ballot";
  const choices = [["A is better", models[0]], ["B is better", models[1]], ["Neither", null]];
  for (const [label, winner] of choices) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.textContent = label;
    button.addEventListener("click", () => vote(winner));
    row.append(button);
  }

  async function vote(winner) {
    for (const button of row.querySelectorAll("button")) button.disabled = true;
    models.forEach((model, index) => (names[index].textContent = `${LABELS[index]}: ${model}`));
    try {
      const response = await fetch(url, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken() },
        body: JSON.stringify({ models, winner, question }),
      });
      const answer = await response.json();
      if (!answer.ok) throw new Error(answer.error);
      const { models: pair, wins, ties } = answer.pair;
      row.textContent = `So far: ${pair[0]} ${wins[0]}, ${pair[1]} ${wins[1]}, neither ${ties}.`;
    } catch (error) {
      say(`The vote was not counted: ${error.message}`);
    }
  }
  return row;
}
