// The part of a middleware that is the same for all frameworks: options, decision, header fields, end of the admission.
import { checkOptions, holdOf, invalidRequest, Limiter } from "./limiter.js";
import { ipKeyGenerator, IPV6_SUBNET } from "./network.js";
import type { ClientDimensions, Cost, Decision, InlineLimit } from "./types.js";

type Maybe<T> = T | Promise<T>;

/**
 * Options of every middleware. `Args` are the arguments that the framework passes to its handlers. Options with the
 * names of express-rate-limit mean the same as there; the README lists the differences.
 */
export interface MiddlewareOptions<Args extends unknown[]> {
  /** The limiter to ask. Default: `new Limiter()`. */
  limiter?: Limiter | undefined;
  /**
   * Returns the dimensions of a request, or undefined if it is not limited. A value that the client did not send may be
   * undefined: if the rules need it, the request gets 400.
   */
  dimensions?: ((...args: Args) => Maybe<ClientDimensions | undefined>) | undefined;
  /** Requests per window and key, in addition to the rules of the service. 0 denies all. */
  limit?: number | ((...args: Args) => Maybe<number>) | undefined;
  /** The former name of `limit`. */
  max?: number | ((...args: Args) => Maybe<number>) | undefined;
  /** Window of `limit` in milliseconds, a multiple of 1000. Default: 60000. */
  windowMs?: number | undefined;
  /** Returns the key of `limit`. Default: the address of the peer, see `ipv6Subnet`. */
  keyGenerator?: ((...args: Args) => Maybe<string | undefined>) | undefined;
  /** Bits of an IPv6 address that count in the default key; false: all. Default: 56. */
  ipv6Subnet?: number | false | undefined;
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
  "max",
  "windowMs",
  "keyGenerator",
  "ipv6Subnet",
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
export type Outcome =
  | { kind: "skipped" }
  | { kind: "admitted"; admitted: Admitted }
  | { kind: "denied"; info: RateLimitInfo; refusal: Refusal };

export class Middleware<Args extends unknown[]> {
  readonly options: MiddlewareOptions<Args>;
  readonly windowMs: number;
  readonly #limiter: Limiter;
  readonly #window: string;

  constructor(
    name: string,
    given: MiddlewareOptions<Args>,
    more: readonly string[],
    readonly address: (...args: Args) => string | undefined,
  ) {
    checkOptions(name, given, [...MIDDLEWARE_OPTIONS, ...more]);
    const { max, ...rest } = given;
    if (max !== undefined && rest.limit !== undefined) throw new TypeError(`${name}: max is another name of limit: write one`);
    const options = (this.options = { ...rest, limit: rest.limit ?? max });
    if (options.dimensions === undefined && options.limit === undefined) {
      throw new TypeError(`${name}: dimensions is required: write (request) => ({ userId: … }), or set limit`);
    }
    if (options.limit === undefined && (options.windowMs !== undefined || options.keyGenerator !== undefined)) {
      throw new TypeError(`${name}: windowMs and keyGenerator need limit`);
    }
    const { ipv6Subnet } = options;
    if (ipv6Subnet !== undefined) {
      if (options.limit === undefined || options.keyGenerator !== undefined) {
        throw new TypeError(`${name}: ipv6Subnet needs limit without keyGenerator: call ipKeyGenerator in keyGenerator`);
      }
      if (ipv6Subnet !== false && !(Number.isInteger(ipv6Subnet) && ipv6Subnet >= 1 && ipv6Subnet <= 128)) {
        throw new RangeError(`${name}: ipv6Subnet ${ipv6Subnet}: must be a number of bits from 1 to 128, or false`);
      }
    }
    this.windowMs = options.windowMs ?? 60_000;
    this.#window = windowText(this.windowMs);
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
    const policy = options.passOnStoreError ? "open" : undefined;
    const decision =
      limits === undefined
        ? invalidRequest("the request has no key for its limit")
        : await this.#limiter.admit(dimensions, { cost, limits, hold }, policy);
    const info = infoOf(decision);
    const headers = this.#headers(decision);
    if (decision.allowed) {
      return { kind: "admitted", admitted: { info, headers, end: this.#end(decision, args) } };
    }
    if (decision.reason === "INVALID_REQUEST") {
      const refusal = { status: 400, headers: { "content-type": "application/json" }, body: decision.body };
      return { kind: "denied", info, refusal };
    }
    const { message } = options;
    const custom = typeof message === "function" ? await message(...args) : message;
    const isText = typeof custom === "string";
    const body = custom === undefined ? decision.body : isText ? custom : JSON.stringify(custom);
    headers["content-type"] = isText ? "text/plain; charset=utf-8" : "application/json";
    // The service bans a request with a limit of 0.
    const isNone = limits?.[0]?.limit === NONE && decision.status === 403;
    return { kind: "denied", info, refusal: { status: options.statusCode ?? (isNone ? 429 : decision.status), headers, body } };
  }

  /** Returns the limit in code; undefined if the request has no key for it. */
  async #limits(args: Args): Promise<InlineLimit[] | undefined> {
    const { limit, keyGenerator, ipv6Subnet } = this.options;
    if (limit === undefined) return [];
    const amount = typeof limit === "function" ? await limit(...args) : limit;
    checkLimit(amount);
    const key = keyGenerator === undefined ? this.#peer(args, ipv6Subnet ?? IPV6_SUBNET) : await keyGenerator(...args);
    if (!key) return undefined;
    return [{ name: "LIMIT", key, limit: amount === 0 ? NONE : `${amount}/${this.#window}` }];
  }

  #peer(args: Args, ipv6Subnet: number | false): string | undefined {
    const address = this.address(...args);
    return address === undefined ? undefined : ipKeyGenerator(address, ipv6Subnet);
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

/** Limit of the service that admits nothing. */
const NONE = "0";

function checkLimit(limit: number): void {
  if (!Number.isInteger(limit) || limit < 0 || limit > 999_999) {
    throw new RangeError(`limit ${limit}: must be a whole number from 0 to 999999`);
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
