// Asking the gateway. The token stays in this tab's sessionStorage, and goes nowhere but into a header.

import { askForToken } from "./token.js";

const TOKEN = "session-feedback.token";

/** The Session's revision that an answer is of; NaN where it says none. */
export const revisionOf = (response) => Number(response.headers.get("Feedback-Revision") ?? NaN);

/**
 * What could not be had: `code` as in docs/http.md, `problem` the whole document, `isRetryable` whether it may pass,
 * `revision` that of the Session, where it is known.
 */
export class Failure extends Error {
  constructor(status, problem, revision = NaN) {
    super(problem.detail ?? "");
    this.status = status;
    this.revision = revision;
    this.problem = problem;
    this.code = problem.code ?? "";
    this.isRetryable = status === 0 || status === 429 || status === 503 || status === 408;
  }
}

const unreachable = () => new Failure(0, { code: "unreachable", detail: "The gateway does not answer." });
const unknown = (status) => ({ code: "unknown", detail: `The gateway answered with status ${status}.` });

/** An id as one segment of a path. Throws a Failure for the two that browsers take for steps in it. */
export function segment(id) {
  if (id === "." || id === "..") {
    throw new Failure(400, { code: "unnameable", detail: `Browsers cannot name the id “${id}” in an address.` });
  }
  return encodeURIComponent(id);
}

/** The response of a request that may be carried out; asks for a token where one is needed. Throws Failure. */
export async function request(path, { method = "GET", headers = {}, body, signal } = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const all = { ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    if (body !== undefined) all["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method, headers: all, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw unreachable();
    }
    if (response.ok) return response;
    const problem = await response.json().catch(() => unknown(response.status));
    if (response.status !== 401) throw new Failure(response.status, problem, revisionOf(response));
    // Another request may have asked meanwhile.
    if (sessionStorage.getItem(TOKEN) === token) {
      const given = await askForToken(token ? problem.detail : "");
      if (!given) throw new Failure(401, problem);
      sessionStorage.setItem(TOKEN, given);
    }
  }
}

/** A document, as JSON. Throws Failure. */
export async function read(path, signal) {
  const response = await request(path, { signal });
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
}

/** A random id of a command, also where the page came without TLS, which has no `randomUUID`. */
export function commandId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const text = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

const ADVICE = {
  unreachable: "Is it running? Check the connection, then try again.",
  unauthorized: "Without a token nothing can be shown. Reload the page to give one.",
  "scope-missing": "Ask for a token that may rate (without --read-only).",
  "rate-limited": "Wait a moment, then try again.",
  "too-many-at-once": "Close other tabs of this page, then try again.",
  "session-not-found": "It may have been removed. Look for it in the list.",
  "target-not-found": "The answer may have been removed from the log. Reload the page.",
  "note-blank": "Write something, or leave the note out.",
  "note-too-large": "Shorten it.",
  LogCorrupt: "The log is damaged; `feedback sessions` names the file.",
  LogUnreadable: "The log cannot be read right now; an operator finds the reason in the gateway's log.",
  LogFormatUnsupported: "The log was written by a newer program than this one.",
  LogAmbiguous: "Two logs bear this id; one of them has to go.",
};

/** What went wrong, and what to do about it, in words. */
export function words(failure) {
  if (!(failure instanceof Failure)) return `This page broke: ${failure.message} Reload it.`;
  const todo = ADVICE[failure.code] ?? (failure.isRetryable ? "Try again in a moment." : "");
  return `${failure.message || "It did not work."} ${todo}`.trim();
}
