// What the page asks the server. The token stays in this tab, and goes nowhere but into the header of a request.

const KEY = "drcil-token";
const PATIENCE = 6;

let wanted = () => {};

export class Problem extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

export function whenTokenIsWanted(act) {
  wanted = act;
}

export function useToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

// The response, or an error with the server's own sentence. A busy server is asked again a few times.
export async function call(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch {
      throw new Problem("the server cannot be reached", 0);
    }
    if (response.ok) return response;
    if (response.status === 503 && attempt < PATIENCE) {
      await pause(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    if (response.status === 401) {
      sessionStorage.removeItem(KEY);
      wanted(token !== null);
    }
    const said = await response.json().catch(() => ({}));
    throw new Problem(said.error ?? `the server answered with status ${response.status}`, response.status);
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

// An image of the server as an address that the page can show; a plain one could not carry the token.
export async function picture(path) {
  return URL.createObjectURL(await (await call(path)).blob());
}

// Calls `tell` with every server-sent event, and connects again when the stream ends.
export async function watch(path, tell) {
  for (;;) {
    try {
      const reader = (await call(path)).body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = (text + part.value).split("\n\n");
        text = events.pop();
        for (const event of events) if (event.startsWith("data: ")) tell(JSON.parse(event.slice(6)));
      }
    } catch (problem) {
      if (problem.status === 401) return;
    }
    await pause(3);
  }
}
