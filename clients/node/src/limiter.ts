// `Limiter`: the client of a Sluicegate service.
import { randomUUID } from "node:crypto";

import { ApiError, Denied, SluicegateError, Unavailable } from "./errors.js";
import { type HttpAnswer, Transport, TransportError } from "./transport.js";
import type { ClientDimensions, Cost, Decision, Dimensions, RequestOptions, Scope, Settlement, Stats, WaitOptions } from "./types.js";

/** Behaviour while the service does not answer. */
export type UnavailablePolicy = "open" | "closed" | "throw";

/** Options of a limiter. */
export interface LimiterOptions {
  /** Address of the service. Default: the variable SLUICEGATE_URL, then http://127.0.0.1:8080. */
  url?: string | undefined;
  /** Token of the service. Default: the variable SLUICEGATE_TOKEN. */
  token?: string | undefined;
  /** Longest time of a call. Default: 1000. */
  timeoutMs?: number | undefined;
  /** `closed` (the default) denies with status 503, `open` admits, `throw` throws `Unavailable`. */
  onUnavailable?: UnavailablePolicy | undefined;
  /** Is called each time that the service did not answer. */
  onFailure?: ((error: Error, policy: UnavailablePolicy) => void) | undefined;
  /** Maximum number of connections. Default: 64. */
  connectionsMax?: number | undefined;
}

const KNOWN_OPTIONS = ["url", "token", "timeoutMs", "onUnavailable", "onFailure", "connectionsMax"];
const POLICIES = ["open", "closed", "throw"];
const PASSED_ON = [
  "x-ratelimit-limit",
  "x-ratelimit-remaining",
  "x-ratelimit-reset",
  "retry-after",
  "ratelimit-policy",
  "ratelimit",
];
/** Status of answers to invalid requests. */
const INVALID = [400, 413, 422];
/** Hold of an estimate that `lease` or a middleware settles, unless another one is given. */
const HOLD_SECONDS_DEFAULT = 300;
// After this many failures in a row, the policy decides at once for a short time, so that every request of the
// application does not wait for the timeout while the service is down.
const FAILURES_MAX = 5;
const PAUSE_MS = 500;
const TIMER_MS_MAX = 2_147_483_647;
// Shortest, first and longest time before its start at which a booking is claimed: about a round trip. The service
// accepts at most 1000.
const LEAD_MIN_MS = 5;
const LEAD_FIRST_MS = 20;
const LEAD_MAX_MS = 500;
/** Number of turns that may come too late before the call fails. */
const LATE_MAX = 5;

type Json = Record<string, unknown>;
type Admission = Decision | string;

/** An admission for the length of a callback. */
export interface Lease {
  readonly decision: Decision;
  /** Replaces the estimate with the actual cost and ends the lease. */
  settle(cost: Cost | number): Promise<Settlement>;
  /** Gives back all charges, because the work did not run. */
  cancel(): Promise<void>;
}

/** A client of a Sluicegate service. One object serves the whole application. */
export class Limiter {
  readonly stats: Stats = { allowed: 0, denied: 0, failedOpen: 0, failedClosed: 0, unsettled: 0 };
  readonly #transport: Transport;
  readonly #policy: UnavailablePolicy;
  readonly #onFailure: LimiterOptions["onFailure"];
  #failures = 0;
  #isRefused = false;
  #pausedUntil = 0;
  #leadMs = LEAD_FIRST_MS;

  constructor(options: LimiterOptions = {}) {
    checkOptions("Limiter", options, KNOWN_OPTIONS);
    this.#policy = options.onUnavailable ?? "closed";
    if (!POLICIES.includes(this.#policy)) {
      throw new TypeError(`onUnavailable ${JSON.stringify(this.#policy)}: write one of ${POLICIES.join(", ")}`);
    }
    this.#onFailure = options.onFailure;
    const url = options.url ?? process.env.SLUICEGATE_URL ?? "http://127.0.0.1:8080";
    const token = options.token ?? process.env.SLUICEGATE_TOKEN;
    this.#transport = new Transport(url, token, options.timeoutMs ?? 1000, options.connectionsMax ?? 64);
  }

  /** Returns the decision that a request would get now. It uses no capacity. */
  check(dimensions: Dimensions, options: Omit<RequestOptions, "id" | "hold"> = {}): Promise<Decision> {
    return this.#decide("check", dimensions, options);
  }

  /** Charges a request on all limits that apply to it, or on none. */
  acquire(dimensions: Dimensions, options: RequestOptions = {}): Promise<Decision> {
    return this.#decide("acquire", dimensions, options);
  }

  /**
   * Acquires for a client of the application, as the middlewares do: an error answer of the service is a decision.
   *
   * An invalid request comes from the client, which gets 400. Any other error, such as an unknown token, is a mistake in
   * the configuration of this limiter, and `policy` decides. A dimension that is undefined is left out: the rules decide
   * if that is allowed.
   *
   * @internal
   */
  async admit(
    dimensions: ClientDimensions,
    options: RequestOptions,
    policy: UnavailablePolicy = this.#policy,
  ): Promise<Decision> {
    const known = Object.entries(dimensions).filter(([, value]) => value !== undefined && value !== null);
    try {
      return await this.#decide("acquire", Object.fromEntries(known) as Dimensions, options, "", policy);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (INVALID.includes(error.status)) return invalidRequest(error.detail);
      if (this.#onFailure === undefined && !this.#isRefused) {
        process.emitWarning(`the service refuses this limiter: ${error.message}: check url and token`, "SluicegateWarning");
      }
      this.#isRefused = true;
      return this.#decideAlone(error, policy);
    }
  }

  /** Replaces the estimate of an admission with its actual cost, and frees its concurrency slot. */
  async settle(admission: Admission, cost: Cost | number): Promise<Settlement> {
    const answer = await this.#end("/v1/settle", admission, { cost: costJson(cost) });
    if (answer === undefined) return { recorded: false, replayed: false, metadata: {} };
    return { recorded: true, replayed: answer.replayed === true, metadata: (answer.metadata ?? {}) as Json };
  }

  /** Frees the concurrency slot of an admission and keeps its charges. Without a handle it does nothing. */
  async release(admission: Admission): Promise<boolean> {
    return (await this.#end("/v1/release", admission, {})) !== undefined;
  }

  /** Gives back all charges of an admission, because its work did not run. */
  async cancel(admission: Admission): Promise<boolean> {
    return (await this.#end("/v1/cancel", admission, {})) !== undefined;
  }

  /** Extends the lease of an admission. Returns the milliseconds until it ends, or undefined without a lease. */
  async renew(admission: Admission): Promise<number | undefined> {
    const handle = handleOf(admission);
    if (handle === undefined) return undefined;
    const answer = await this.#ask("POST", "/v1/renew", { handle });
    return msBetween(answer.at, answer.until);
  }

  /** Waits for the turn of a request: books its earliest start and sleeps until then. Throws `Denied`. */
  async untilReady(dimensions: Dimensions, options: WaitOptions = {}): Promise<Decision> {
    const { waitMaxMs, signal, ...request } = options;
    signal?.throwIfAborted();
    const began = performance.now();
    const id = randomUUID();
    const booking = await this.#decide("book", dimensions, { ...request, id }, `&lead=${Math.ceil(this.#leadMs)}ms`);
    if (!booking.allowed) throw new Denied(booking);
    if (booking.source !== "service") return booking;
    this.#measured(performance.now() - began);
    let ready = false;
    try {
      let waitMs = booking.startMs ?? 0;
      for (let claimant = 0, late = 0; ; ) {
        if (waitMaxMs !== undefined && performance.now() - began + waitMs > waitMaxMs) {
          const detail = `the request could start in ${Math.ceil(waitMs)} ms, later than waitMaxMs (${waitMaxMs})`;
          throw new Denied({
            ...booking,
            allowed: false,
            status: 429,
            reason: "WAIT_TOO_LONG",
            detail,
            retryAfterMs: waitMs,
            body: JSON.stringify({ detail, allowed: false, reason: "WAIT_TOO_LONG" }),
          });
        }
        // The claim is sent about a round trip before the start, so that its answer arrives in time.
        const leadMs = Math.ceil(this.#leadMs);
        if (waitMs > leadMs) await sleep(waitMs - leadMs, signal);
        const body = {
          request: requestJson(dimensions, { ...request, id }),
          claimant: `${id}-${claimant}`,
          lead: `${leadMs}ms`,
        };
        let raw: HttpAnswer;
        let answer: Json;
        const asked = performance.now();
        try {
          if (late >= LATE_MAX) {
            throw new TransportError(`${late} turns came too late: set booking.slack to more than a round trip`);
          }
          raw = await this.#transport.call("POST", "/v1/claim", JSON.stringify(body), true);
          answer = decodeAnswer(raw);
          this.#measured(performance.now() - asked);
        } catch (error) {
          if (!(error instanceof TransportError)) throw error;
          const decision = this.#unavailable(error, true);
          if (!decision.allowed) throw new Denied(decision);
          ready = true;
          return decision;
        }
        signal?.throwIfAborted();
        if (answer.claim === "go") {
          // Start not before `waitMs` after the answer, and within `goodMs` of the question.
          const untilStart = Number(answer.waitMs ?? 0);
          if (untilStart > 0) await sleep(untilStart, signal);
          const overrunMs = performance.now() - asked - Number(answer.goodMs ?? 0);
          if (overrunMs <= 0) {
            ready = true;
            return decisionOf(answer, 200, raw);
          }
          this.#measured(leadMs + overrunMs);
          claimant += 1; // The answer came too late: claim again under another name.
          late += 1;
          waitMs = 0;
          continue;
        }
        if (answer.claim === "denied") {
          // No concurrency slot is free yet: the booking is kept while we wait.
          if (typeof answer.retryAfterMs !== "number") throw new Denied(decisionOf({ ...answer, allowed: false }, 429, raw));
          waitMs = Math.max(10, answer.retryAfterMs);
        } else if (answer.claim === "spent") {
          claimant += 1; // We did not start: claim again under another name.
          waitMs = 0;
        } else {
          waitMs = Number(answer.waitMs ?? 0);
        }
      }
    } finally {
      // Not awaited: the caller that gave up does not wait for it.
      if (!ready) this.cancel(booking).catch(() => undefined);
    }
  }

  /**
   * Acquires, runs `work` and releases, also if `work` throws. The lease is renewed for as long as `work` runs. Throws
   * `Denied`. With `waitMaxMs` it first waits for its turn. An estimate is held for 5 minutes if `hold` is not given.
   */
  async lease<T>(
    dimensions: Dimensions,
    options: RequestOptions & WaitOptions,
    work: (lease: Lease) => Promise<T> | T,
  ): Promise<T> {
    const { waitMaxMs, signal, id, ...request } = options;
    const held = { ...request, hold: holdOf(request) };
    if (waitMaxMs !== undefined && id !== undefined) {
      throw new TypeError("id: can't be combined with waitMaxMs, which makes an id of its own");
    }
    const waits = waitMaxMs !== undefined;
    const decision = waits
      ? await this.untilReady(dimensions, { ...held, waitMaxMs, signal })
      : await this.acquire(dimensions, { ...held, id });
    if (!decision.allowed) throw new Denied(decision);
    const renewal = this.keepAlive(decision);
    let ended = false;
    const lease: Lease = {
      decision,
      settle: async (cost) => {
        const settlement = await this.settle(decision, cost);
        ended = true;
        return settlement;
      },
      cancel: async () => {
        ended = true;
        await this.cancel(decision);
      },
    };
    try {
      return await work(lease);
    } finally {
      renewal.stop();
      if (!ended) await this.endQuietly(decision);
    }
  }

  /** Renews the lease of an admission until `stop` is called. The timer does not keep the process alive. */
  keepAlive(decision: Decision): { stop(): void } {
    let timer: NodeJS.Timeout | undefined;
    let stopped = false;
    const schedule = (leaseMs: number): void => {
      // Half of the time is left for a call that has to be repeated.
      timer = setTimeout(() => {
        this.renew(decision).then(
          (next) => !stopped && next !== undefined && schedule(next),
          // After an answer such as 410 there is nothing to renew.
          (error: unknown) => !stopped && !(error instanceof ApiError) && schedule(500),
        );
      }, Math.min(leaseMs / 2, TIMER_MS_MAX));
      timer.unref();
    };
    if (decision.handle !== undefined && decision.leaseMs !== undefined) schedule(decision.leaseMs);
    return {
      stop: () => {
        stopped = true;
        clearTimeout(timer);
      },
    };
  }

  /** Settles or releases an admission whose work is done. A failure is counted and reported, not thrown. */
  async endQuietly(decision: Decision, cost?: Cost | number): Promise<void> {
    try {
      await (cost === undefined ? this.release(decision) : this.settle(decision, cost));
    } catch (error) {
      if (!(error instanceof SluicegateError)) throw error;
      if (error instanceof ApiError) this.stats.unsettled += 1;
      this.#onFailure?.(error, this.#policy);
    }
  }

  /** Returns the usage of all limits that apply to these dimensions. */
  async usage(dimensions: Dimensions): Promise<readonly Scope[]> {
    return (await this.#ask("POST", "/v1/usage", requestJson(dimensions, {}))).scopes as Scope[];
  }

  /** Returns the usage of a user per minute, hour and day, and its budget. */
  userUsage(userId: string): Promise<Json> {
    return this.#ask("GET", `/v1/users/${encodeURIComponent(userId)}/usage`);
  }

  /** Returns which rules match, which do not, and why. */
  explain(dimensions: Dimensions): Promise<Json> {
    return this.#ask("POST", "/v1/explain", requestJson(dimensions, {}));
  }

  /** Closes all connections. */
  close(): void {
    this.#transport.close();
  }

  async #decide(
    operation: "check" | "acquire" | "book",
    dimensions: Dimensions,
    options: RequestOptions,
    query = "",
    policy: UnavailablePolicy = this.#policy,
  ): Promise<Decision & { startMs?: number }> {
    const body = JSON.stringify(requestJson(dimensions, options));
    if (performance.now() < this.#pausedUntil) {
      return this.#unavailable(new TransportError(`${this.#failures} calls failed in a row`), false, policy);
    }
    // Without an id, a request that is sent twice would be charged twice.
    const idempotent = operation === "check" || options.id !== undefined;
    let decision: Decision;
    try {
      decision = decodeDecision(await this.#transport.call("POST", `/v1/${operation}?status=429${query}`, body, idempotent));
    } catch (error) {
      if (error instanceof TransportError) return this.#unavailable(error, true, policy);
      throw error;
    }
    this.#failures = 0;
    this.#isRefused = false;
    this.stats[decision.allowed ? "allowed" : "denied"] += 1;
    return decision;
  }

  /** Adapts the lead of bookings and claims: to a longer round trip at once, to shorter ones slowly. */
  #measured(roundTripMs: number): void {
    this.#leadMs = Math.min(LEAD_MAX_MS, Math.max(LEAD_MIN_MS, roundTripMs, this.#leadMs * 0.9));
  }

  #unavailable(error: TransportError, asked: boolean, policy = this.#policy): Decision {
    if (asked) {
      this.#failures += 1;
      if (this.#failures >= FAILURES_MAX && this.#policy !== "throw") this.#pausedUntil = performance.now() + PAUSE_MS;
    }
    return this.#decideAlone(error, policy);
  }

  /** Decides by the policy. */
  #decideAlone(error: Error, policy: UnavailablePolicy): Decision {
    this.#onFailure?.(error, policy);
    if (policy === "throw") throw new Unavailable(`the limiter does not answer: ${error.message}`);
    const common = { replayed: false, scopes: [] };
    if (policy === "open") {
      this.stats.failedOpen += 1;
      return { ...common, allowed: true, status: 200, source: "failOpen", headers: {}, body: "" };
    }
    this.stats.failedClosed += 1;
    const detail = "the rate limiter does not answer: retry later";
    const reason = "LIMITER_UNAVAILABLE";
    return {
      ...common,
      allowed: false,
      status: 503,
      source: "failClosed",
      reason,
      detail,
      retryAfterMs: 1000,
      headers: { "retry-after": "1" },
      body: JSON.stringify({ detail, allowed: false, reason }),
    };
  }

  async #end(path: string, admission: Admission, more: Json): Promise<Json | undefined> {
    const handle = handleOf(admission);
    if (handle === undefined) return undefined;
    try {
      return decodeAnswer(await this.#transport.call("POST", path, JSON.stringify({ handle, ...more }), true));
    } catch (error) {
      if (!(error instanceof TransportError)) throw error;
      this.stats.unsettled += 1;
      this.#onFailure?.(error, this.#policy);
      if (this.#policy === "throw") throw new Unavailable(`the limiter does not answer: ${error.message}`);
      return undefined;
    }
  }

  async #ask(method: string, path: string, body?: Json): Promise<Json> {
    try {
      const text = body === undefined ? "" : JSON.stringify(body);
      return decodeAnswer(await this.#transport.call(method, path, text, true));
    } catch (error) {
      if (error instanceof TransportError) throw new Unavailable(`the limiter does not answer: ${error.message}`);
      throw error;
    }
  }
}

/** Returns the decision about a request that the service can't decide, because it is not valid. */
export function invalidRequest(detail: string): Decision {
  const reason = "INVALID_REQUEST";
  const body = JSON.stringify({ detail, allowed: false, reason });
  return { allowed: false, status: 400, source: "service", reason, detail, replayed: false, scopes: [], headers: {}, body };
}

/** Throws if `options` has an option that would have no effect. */
export function checkOptions(of: string, options: object, known: readonly string[]): void {
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) throw new TypeError(`${of}: unknown option "${name}" (known: ${known.join(", ")})`);
  }
}

/** Returns the hold of an admission that is settled or released at its end. */
export function holdOf(request: RequestOptions): number | string | undefined {
  // Without a hold, the service takes an estimate for the final cost.
  return request.hold ?? (typeof request.cost === "object" ? HOLD_SECONDS_DEFAULT : undefined);
}

function requestJson(dimensions: Dimensions, options: RequestOptions): Json {
  for (const [name, value] of Object.entries(dimensions)) {
    if (typeof value !== "string") {
      throw new TypeError(`dimension ${name}: must be a text, not ${value === null ? "null" : typeof value}`);
    }
  }
  const request: Json = { dimensions };
  if (options.id !== undefined) request.id = options.id;
  if (options.cost !== undefined) request.cost = costJson(options.cost);
  if (options.limits?.length) request.limits = options.limits;
  if (options.hold !== undefined) request.hold = holdText(options.hold);
  return request;
}

function costJson(cost: Cost | number): Json {
  if (typeof cost === "number") return { requests: cost };
  if (typeof cost.usd === "number") throw new TypeError('usd: a number is not exact: write a text such as "0.0012"');
  return { ...cost };
}

function holdText(hold: number | string): string {
  if (typeof hold === "string") return hold;
  const seconds = Math.ceil(hold);
  if (!(seconds >= 1)) throw new RangeError(`hold ${hold}: must be at least one second`);
  return seconds <= 9999 ? `${seconds}s` : `${Math.ceil(seconds / 60)}min`;
}

function decodeDecision(answer: HttpAnswer): Decision & { startMs?: number } {
  const json = parse(answer);
  if (typeof json.allowed === "boolean") return decisionOf(json, answer.status, answer);
  const detail = String(json.detail ?? "");
  // The service is there and its own outage policy denies: this is a decision.
  if (answer.status === 503 && detail.startsWith("STORE_")) {
    const reason = detail.split(":", 1)[0] ?? detail;
    const body = JSON.stringify({ detail, allowed: false, reason });
    return { ...decisionOf({ allowed: false, reason, detail }, 503, answer), body };
  }
  return fail(answer.status, json);
}

export function decodeAnswer(answer: HttpAnswer): Json {
  const json = parse(answer);
  return answer.status >= 300 ? fail(answer.status, json) : json;
}

function fail(status: number, json: Json): never {
  const detail = String(json.detail ?? "no detail");
  if (status >= 500) throw new TransportError(`${status}: ${detail}`);
  throw new ApiError(status, detail, json.field as string | undefined, json.reason as string | undefined);
}

function parse(answer: HttpAnswer): Json {
  let json: unknown;
  try {
    json = JSON.parse(answer.body);
  } catch {
    // Reported below.
  }
  if (typeof json !== "object" || json === null) {
    throw new TransportError(`the answer (${answer.status}) is not of a Sluicegate service: check the url`);
  }
  return json as Json;
}

function decisionOf(json: Json, status: number, answer: HttpAnswer): Decision & { startMs?: number } {
  const headers: Record<string, string> = {};
  for (const name of PASSED_ON) {
    const value = answer.headers[name];
    if (typeof value === "string") headers[name] = value;
  }
  const decision: Decision & { startMs?: number } = {
    allowed: json.allowed === true,
    status,
    source: "service",
    replayed: json.replayed === true,
    scopes: (json.scopes ?? []) as Scope[],
    headers,
    body: answer.body,
  };
  for (const name of ["id", "handle", "reason", "scopeHit", "detail"] as const) {
    if (typeof json[name] === "string") decision[name] = json[name];
  }
  for (const name of ["retryAfterMs", "maxOutputTokens"] as const) {
    if (typeof json[name] === "number") decision[name] = json[name];
  }
  const leaseMs = msBetween(json.at, json.until);
  if (leaseMs !== undefined) decision.leaseMs = leaseMs;
  const startMs = msBetween(json.at, json.start);
  if (startMs !== undefined) decision.startMs = startMs;
  return decision;
}

/** Both are times of the store's clock, so our own clock does not matter. */
function msBetween(at: unknown, until: unknown): number | undefined {
  if (typeof at !== "string" || typeof until !== "string") return undefined;
  return Date.parse(until) - Date.parse(at);
}

function handleOf(admission: Admission): string | undefined {
  return typeof admission === "string" ? admission : admission.handle;
}

export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, Math.min(ms, TIMER_MS_MAX));
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
