// Requests to the server. The token is stored in this tab only and sent only in the header of requests.

const KEY = "drcil-token";
const ATTEMPTS = 6;

let missingToken = () => {};

export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function onMissingToken(handler) {
  missingToken = handler;
}

export function useToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

// The response, or an error with the message of the server. Retries a few times while the server is busy.
export async function call(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch {
      throw new RequestError("the server cannot be reached", 0);
    }
    if (response.ok) return response;
    if (response.status === 503 && attempt < ATTEMPTS) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    if (response.status === 401) {
      sessionStorage.removeItem(KEY);
      missingToken(token !== null);
    }
    const answer = await response.json().catch(() => ({}));
    throw new RequestError(answer.error ?? `the server answered with status ${response.status}`, response.status);
  }
}

export async function json(path, options) {
  return (await call(path, options)).json();
}

export function form(images, label) {
  const data = new FormData();
  if (label !== undefined) data.append("label", label);
  for (const image of images) data.append("images", image, image.name || "image");
  return data;
}

// An image of the server as a URL that the page can show: an <img> request could not carry the token.
export async function picture(path) {
  return URL.createObjectURL(await (await call(path)).blob());
}

// Calls `handle` with every server-sent event, and reconnects when the stream ends.
export async function watch(path, handle) {
  for (;;) {
    try {
      const reader = (await call(path)).body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = (text + part.value).split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data: ")) handle(JSON.parse(event.slice(6)));
      }
    } catch (error) {
      if (error.status === 401) return;
    }
    await pause(3);
  }
}
