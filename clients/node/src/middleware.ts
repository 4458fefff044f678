// The part of a middleware that is the same for all frameworks: options, decision, header fields, end of the admission.
import { checkOptions, holdOf, Limiter } from "./limiter.js";
import type { Cost, Decision, Dimensions, InlineLimit } from "./types.js";

type Maybe<T> = T | Promise<T>;

/**
 * Options of every middleware. `Args` are the arguments that the framework passes to its handlers. Options with the
 * names of express-rate-limit mean the same as there.
 */
export interface MiddlewareOptions<Args extends unknown[]> {
  /** The limiter to ask. Default: `new Limiter()`. */
  limiter?: Limiter | undefined;
  /** Returns the dimensions of a request, or undefined if it is not limited. */
  dimensions?: ((...args: Args) => Maybe<Dimensions | undefined>) | undefined;
  /** Requests per window and key, in addition to the rules of the service. */
  limit?: number | ((...args: Args) => Maybe<number>) | undefined;
  /** Window of `limit` in milliseconds, a multiple of 1000. Default: 60000. */
  windowMs?: number | undefined;
  /** Returns the key of `limit`. Default: the address of the peer. */
  keyGenerator?: ((...args: Args) => Maybe<string>) | undefined;
  /** Requests for which it is true are not limited. */
  skip?: ((...args: Args) => Maybe<boolean>) | undefined;
  /** Estimated cost of a request. */
  cost?: Cost | number | ((...args: Args) => Maybe<Cost | number>) | undefined;
  /** Returns the actual cost when the answer has been sent; without it the admission is released. */
  settleCost?: ((...args: Args) => Maybe<Cost | number | undefined>) | undefined;
  /** Time until an estimate expires that is not settled. */
  hold?: number | string | undefined;
  /** Sends the `RateLimit` and `RateLimit-Policy` fields. Default: true. */
  standardHeaders?: boolean | undefined;
  /** Sends the `X-RateLimit-*` fields. Default: true. */
  legacyHeaders?: boolean | undefined;
  /** Status of a denial. Default: 429, 403 for a ban, 503 if the limiter is down. */
  statusCode?: number | undefined;
  /** Body of a denial. Default: the JSON object of the service, with `detail` and `reason`. */
  message?: string | object | ((...args: Args) => Maybe<string | object>) | undefined;
  /** Admits requests while the limiter does not answer, whatever its `onUnavailable` is. Default: false. */
  passOnStoreError?: boolean | undefined;
}

export const MIDDLEWARE_OPTIONS = [
  "limiter",
  "dimensions",
  "limit",
  "windowMs",
  "keyGenerator",
  "skip",
  "cost",
  "settleCost",
  "hold",
  "standardHeaders",
  "legacyHeaders",
  "statusCode",
  "message",
  "passOnStoreError",
] as const;

/** The state of the tightest limit, with the names of express-rate-limit, and the decision itself. */
export interface RateLimitInfo {
  limit: number;
  used: number;
  remaining: number;
  resetTime: Date | undefined;
  decision: Decision;
}

/** A denied request as the framework sends it. */
export interface Refusal {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** An admitted request. */
export interface Admitted {
  info: RateLimitInfo;
  headers: Record<string, string>;
  /** Settles or releases the admission. Further calls do nothing. */
  end(): Promise<void>;
}

/** A request for which there is nothing to do, one that was admitted, or one that was denied. */
export type Outcome = { kind: "skipped" } | { kind: "admitted"; admitted: Admitted } | { kind: "denied"; info: RateLimitInfo; refusal: Refusal };

export class Middleware<Args extends unknown[]> {
  readonly #limiter: Limiter;
  readonly #window: string;

  constructor(
    name: string,
    readonly options: MiddlewareOptions<Args>,
    more: readonly string[],
    readonly address: (...args: Args) => string | undefined,
  ) {
    checkOptions(name, options, [...MIDDLEWARE_OPTIONS, ...more]);
    if (options.dimensions === undefined && options.limit === undefined) {
      throw new TypeError(`${name}: dimensions is required: write (request) => ({ userId: … }), or set limit`);
    }
    if (options.limit === undefined && (options.windowMs !== undefined || options.keyGenerator !== undefined)) {
      throw new TypeError(`${name}: windowMs and keyGenerator need limit`);
    }
    this.#window = windowText(options.windowMs ?? 60_000);
    if (typeof options.limit === "number") checkLimit(options.limit);
    this.#limiter = options.limiter ?? new Limiter();
  }

  /** Asks for a decision. */
  async decide(...args: Args): Promise<Outcome> {
    const { options } = this;
    if (await options.skip?.(...args)) return { kind: "skipped" };
    const dimensions = options.dimensions === undefined ? {} : await options.dimensions(...args);
    if (dimensions === undefined) return { kind: "skipped" };
    const cost = typeof options.cost === "function" ? await options.cost(...args) : options.cost;
    const limits = await this.#limits(args);
    const hold = holdOf({ cost, hold: options.hold });
    const decision = await this.#limiter.acquire(dimensions, { cost, limits, hold });
    const info = infoOf(decision);
    const headers = this.#headers(decision);
    if (decision.allowed) {
      return { kind: "admitted", admitted: { info, headers, end: this.#end(decision, args) } };
    }
    if (decision.source === "failClosed" && options.passOnStoreError) return { kind: "skipped" };
    const { message } = options;
    const custom = typeof message === "function" ? await message(...args) : message;
    const isText = typeof custom === "string";
    const body = custom === undefined ? decision.body : isText ? custom : JSON.stringify(custom);
    headers["content-type"] = isText ? "text/plain; charset=utf-8" : "application/json";
    return { kind: "denied", info, refusal: { status: options.statusCode ?? decision.status, headers, body } };
  }

  async #limits(args: Args): Promise<InlineLimit[]> {
    const { limit, keyGenerator } = this.options;
    if (limit === undefined) return [];
    const amount = typeof limit === "function" ? await limit(...args) : limit;
    checkLimit(amount);
    const key = keyGenerator === undefined ? this.address(...args) : await keyGenerator(...args);
    if (!key) throw new TypeError("keyGenerator: returned no key: return a text, or use skip");
    return [{ name: "LIMIT", key, limit: `${amount}/${this.#window}` }];
  }

  #headers(decision: Decision): Record<string, string> {
    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(decision.headers)) {
      const wanted = name.startsWith("x-") ? this.options.legacyHeaders : name === "retry-after" || this.options.standardHeaders;
      if (wanted !== false) headers[name] = value;
    }
    return headers;
  }

  #end(decision: Decision, args: Args): () => Promise<void> {
    if (decision.handle === undefined) return () => Promise.resolve();
    const renewal = this.#limiter.keepAlive(decision);
    let ended = false;
    return async () => {
      if (ended) return;
      ended = true;
      renewal.stop();
      await this.#limiter.endQuietly(decision, await this.options.settleCost?.(...args));
    };
  }
}

function infoOf(decision: Decision): RateLimitInfo {
  const limit = Number(decision.headers["x-ratelimit-limit"] ?? 0);
  const remaining = Number(decision.headers["x-ratelimit-remaining"] ?? 0);
  const reset = decision.headers["x-ratelimit-reset"];
  const resetTime = reset === undefined ? undefined : new Date(Number(reset) * 1000);
  return { limit, used: limit - remaining, remaining, resetTime, decision };
}

function checkLimit(limit: number): void {
  if (!Number.isInteger(limit) || limit < 1 || limit > 999_999) {
    throw new RangeError(`limit ${limit}: must be a whole number from 1 to 999999`);
  }
}

/** Returns a window in the form of the service, such as `15min`. */
function windowText(ms: number): string {
  for (const [unit, length] of [["h", 3_600_000], ["min", 60_000], ["s", 1_000]] as const) {
    const count = ms / length;
    if (Number.isInteger(count) && count >= 1 && count <= 99) return count === 1 ? unit : `${count}${unit}`;
  }
  throw new RangeError(
    `windowMs ${ms}: must be 1 to 99 whole seconds, minutes or hours; write longer windows into the rules of the service`,
  );
}
