// Middleware for Hono.
import type { Context, MiddlewareHandler } from "hono";

import { onBodyEnd } from "./body.js";
import { Middleware, type MiddlewareOptions } from "./middleware.js";

export type { RateLimitInfo } from "./middleware.js";

/** Options of `rateLimit`. `keyGenerator` is required with `limit`: Hono does not know the address of the peer. */
export type HonoOptions = MiddlewareOptions<[Context]>;

/** Limits requests. The header fields are on every answer. The admission ends with the body of the answer. */
export function rateLimit(options: HonoOptions): MiddlewareHandler {
  if (options.limit !== undefined && options.keyGenerator === undefined) {
    throw new TypeError("rateLimit: keyGenerator is required with limit, because Hono does not know the peer");
  }
  const middleware = new Middleware<[Context]>("rateLimit", options, [], () => undefined);
  return async (c, next) => {
    const outcome = await middleware.decide(c);
    if (outcome.kind === "skipped") return next();
    if (outcome.kind === "denied") {
      const { status, headers, body } = outcome.refusal;
      return new Response(body, { status, headers });
    }
    const { admitted } = outcome;
    c.set("rateLimit", admitted.info);
    try {
      await next();
    } catch (error) {
      void admitted.end();
      throw error;
    }
    for (const [name, value] of Object.entries(admitted.headers)) {
      if (!c.res.headers.has(name)) c.header(name, value);
    }
    if (c.req.method === "HEAD") {
      void admitted.end(); // Nobody reads the body.
    } else if (admitted.info.decision.handle !== undefined) {
      const answer = onBodyEnd(c.res, () => void admitted.end());
      // Assigned twice, because Hono copies the header fields of the previous answer into a new one.
      c.res = undefined;
      c.res = answer;
    }
    return undefined;
  };
}
