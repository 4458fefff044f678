// A `fetch` that waits for its turn, so that outgoing calls keep the limits of a vendor.
import { onBodyEnd } from "./body.js";
import { checkOptions, Limiter } from "./limiter.js";
import type { Cost, Dimensions } from "./types.js";

/** Options of `pacedFetch`. */
export interface PacedFetchOptions {
  /** The limiter to ask. Default: `new Limiter()`. */
  limiter?: Limiter | undefined;
  /** Dimensions of a call, or a function of its request that returns undefined if the call is not limited. */
  dimensions: Dimensions | ((request: Request) => Dimensions | undefined | Promise<Dimensions | undefined>);
  /** Estimated cost of a call. */
  cost?: Cost | number | ((request: Request) => Cost | number) | undefined;
  /** Longest wait in milliseconds; a longer one throws `Denied`. */
  waitMaxMs?: number | undefined;
  /** The function that sends the call. Default: the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
}

const KNOWN = ["limiter", "dimensions", "cost", "waitMaxMs", "fetch"];

/**
 * Returns a `fetch` that books the earliest start of each call and waits for it. Callers in all processes take turns.
 * A concurrency slot is freed when the body of the answer ends. `signal` of a call ends its wait, too.
 */
export function pacedFetch(options: PacedFetchOptions): typeof globalThis.fetch {
  checkOptions("pacedFetch", options, KNOWN);
  const limiter = options.limiter ?? new Limiter();
  const send = options.fetch ?? globalThis.fetch;
  return async (input, init) => {
    const request = new Request(input, init);
    const { dimensions, cost, waitMaxMs } = options;
    const known = typeof dimensions === "function" ? await dimensions(request) : dimensions;
    if (known === undefined) return send(request);
    const estimate = typeof cost === "function" ? cost(request) : cost;
    const decision = await limiter.untilReady(known, { cost: estimate, waitMaxMs, signal: request.signal });
    if (decision.handle === undefined) return send(request);
    const renewal = limiter.keepAlive(decision);
    let ended = false;
    const end = (): void => {
      if (ended) return;
      ended = true;
      renewal.stop();
      void limiter.endQuietly(decision);
    };
    try {
      return onBodyEnd(await send(request), end);
    } catch (error) {
      end();
      throw error;
    }
  };
}
