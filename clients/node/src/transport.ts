// HTTP calls to one service over a pool of connections.
import * as http from "node:http";
import * as https from "node:https";

/** The exchange failed: there is no decision. */
export class TransportError extends Error {}

export interface HttpAnswer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: string;
}

/**
 * The service closes a connection that is idle for 75 s, and before its first request after 5 s
 * (`server.header_timeout`). We close it earlier.
 */
const IDLE_MS_MAX = 4_000;
const BODY_LENGTH_MAX = 16 * 1024 * 1024;

export class Transport {
  readonly #url: URL;
  readonly #path: string;
  readonly #agent: http.Agent;
  readonly #headers: Record<string, string>;

  constructor(
    url: string,
    token: string | undefined,
    readonly timeoutMs: number,
    connectionsMax: number,
  ) {
    let parsed: URL | undefined;
    try {
      parsed = new URL(url);
    } catch {
      // Reported below.
    }
    if (parsed === undefined || !["http:", "https:"].includes(parsed.protocol)) {
      throw new TypeError(`url ${JSON.stringify(url)}: write http:// or https:// and a host, such as http://127.0.0.1:8080`);
    }
    this.#url = parsed;
    this.#path = parsed.pathname.replace(/\/$/, "");
    const options = { keepAlive: true, maxSockets: connectionsMax, timeout: IDLE_MS_MAX };
    this.#agent = parsed.protocol === "https:" ? new https.Agent(options) : new http.Agent(options);
    this.#headers = { "content-type": "application/json" };
    if (token !== undefined) this.#headers.authorization = `Bearer ${token}`;
  }

  /** Sends a call. It is sent a second time only if it is idempotent and the service closed an idle connection. */
  async call(
    method: string,
    path: string,
    body: string,
    idempotent: boolean,
    timeoutMs = 0,
    signal?: AbortSignal,
  ): Promise<HttpAnswer> {
    const longestMs = Math.max(this.timeoutMs, timeoutMs);
    const deadline = performance.now() + longestMs;
    for (;;) {
      const outcome = await this.#exchange(method, path, body, deadline, longestMs, signal);
      if (!("error" in outcome)) return outcome;
      if (!outcome.reused || !idempotent || signal?.aborted === true || performance.now() >= deadline) throw outcome.error;
    }
  }

  close(): void {
    this.#agent.destroy();
  }

  #exchange(
    method: string,
    path: string,
    body: string,
    deadline: number,
    longestMs: number,
    signal: AbortSignal | undefined,
  ): Promise<HttpAnswer | { error: TransportError; reused: boolean }> {
    return new Promise((resolve) => {
      const headers = { ...this.#headers, "content-length": String(Buffer.byteLength(body)) };
      const make = this.#url.protocol === "https:" ? https.request : http.request;
      const request = make(this.#url, { method, path: this.#path + path, headers, agent: this.#agent });
      const timer = setTimeout(
        () => request.destroy(new TransportError(`no answer within ${longestMs} ms`)),
        Math.max(1, deadline - performance.now()),
      );
      const abort = (): void => void request.destroy(new TransportError("the call was aborted"));
      if (signal?.aborted === true) abort();
      signal?.addEventListener("abort", abort, { once: true });
      const fail = (cause: Error): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        const place = `${this.#url.hostname}:${this.#url.port || this.#url.protocol}`;
        // Several addresses of a host failed: the message is that of the first.
        const first = cause instanceof AggregateError ? (cause.errors[0] as Error) : cause;
        const message = cause instanceof TransportError ? cause.message : `can't reach ${place}: ${first.message}`;
        // A timeout is final: there is no time left.
        resolve({ error: new TransportError(message), reused: request.reusedSocket });
      };
      request.on("error", fail);
      request.on("response", (response) => {
        const parts: Buffer[] = [];
        let length = 0;
        response.on("data", (part: Buffer) => {
          parts.push(part);
          length += part.length;
          if (length > BODY_LENGTH_MAX) request.destroy(new TransportError("the answer is too long: check the url"));
        });
        response.on("error", fail);
        response.on("end", () => {
          clearTimeout(timer);
          signal?.removeEventListener("abort", abort);
          const text = Buffer.concat(parts).toString("utf8");
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body: text });
        });
      });
      request.end(body);
    });
  }
}
