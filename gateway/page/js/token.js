// Asking people who they are: one dialog, however many requests wait for it.

import { byId } from "./dom.js";

let asking = null;

/** The token that somebody gives, null if they do not. `why`: what was wrong with the one before. */
export function askForToken(why) {
  asking ??= ask(why).finally(() => { asking = null; });
  return asking;
}

function ask(why) {
  const dialog = byId("token"), field = byId("token-field"), before = document.activeElement;
  byId("token-why").textContent = why || "This gateway wants to know who rates.";
  field.value = "";
  dialog.showModal();
  field.focus();
  return new Promise((resolve) => {
    let given = null;
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      given = field.value.trim() || null;
      dialog.close();
    };
    byId("token-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      field.value = "";
      before?.focus?.();
      resolve(given);
    };
  });
}
