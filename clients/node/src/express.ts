// Middleware for Express, Connect and every other framework on `node:http`.
import type { IncomingMessage, ServerResponse } from "node:http";

import { Middleware, type MiddlewareOptions } from "./middleware.js";

export type { RateLimitInfo } from "./middleware.js";
export { ipKeyGenerator } from "./network.js";

type Next = (error?: unknown) => void;

/**
 * Options of `rateLimit`. Those with the names of express-rate-limit mean the same as there; the README lists the
 * differences.
 */
export interface ExpressOptions<Req extends IncomingMessage, Res extends ServerResponse>
  extends MiddlewareOptions<[Req, Res]> {
  /** Answers a denied request. Status and rate limit header fields are already set. */
  handler?: ((request: Req, response: Res, next: Next, options: UsedOptions<Req, Res>) => unknown) | undefined;
  /** Property of the request with the `RateLimitInfo`. Default: `rateLimit`. */
  requestPropertyName?: string | undefined;
}

/** The options that a `handler` gets: `statusCode` and `message` are those of the denial, unless they were set. */
export type UsedOptions<Req extends IncomingMessage, Res extends ServerResponse> = ExpressOptions<Req, Res> & {
  statusCode: number;
  message: NonNullable<ExpressOptions<Req, Res>["message"]>;
  windowMs: number;
  requestPropertyName: string;
};

/**
 * Limits requests. The header fields are on every answer, also on those of error handlers. The admission ends when the
 * answer has been sent completely or the client disconnects.
 */
export function rateLimit<Req extends IncomingMessage = IncomingMessage, Res extends ServerResponse = ServerResponse>(
  options: ExpressOptions<Req, Res>,
): (request: Req, response: Res, next: Next) => void {
  const address = (request: Req): string | undefined => (request as { ip?: string }).ip ?? request.socket.remoteAddress;
  const middleware = new Middleware("rateLimit", options, ["handler", "requestPropertyName"], address);
  const property = options.requestPropertyName ?? "rateLimit";

  const handle = async (request: Req, response: Res, next: Next): Promise<void> => {
    const outcome = await middleware.decide(request, response);
    if (outcome.kind === "skipped") return next();
    const info = outcome.kind === "admitted" ? outcome.admitted.info : outcome.info;
    Object.assign(request, { [property]: info });
    if (outcome.kind === "admitted") {
      const { admitted } = outcome;
      addHeaders(response, admitted.headers);
      // Also emitted if the client disconnects before the end.
      response.once("close", () => void admitted.end());
      if (response.closed) void admitted.end();
      return next();
    }
    const { status, headers, body } = outcome.refusal;
    const { handler } = options;
    const isHandled = handler !== undefined && info.decision.reason !== "INVALID_REQUEST";
    response.statusCode = status;
    for (const [name, value] of Object.entries(headers)) {
      if (!isHandled || name !== "content-type") response.setHeader(name, value);
    }
    if (!isHandled) {
      response.end(body);
      return;
    }
    const message = options.message ?? (JSON.parse(info.decision.body) as object);
    const { windowMs } = middleware;
    await handler(request, response, next, {
      ...middleware.options,
      handler,
      windowMs,
      statusCode: status,
      message,
      requestPropertyName: property,
    });
  };
  return (request, response, next) => {
    handle(request, response, next).catch(next);
  };
}

/** Adds header fields at the last moment, because Express removes all of them before it answers an error. */
function addHeaders(response: ServerResponse, headers: Record<string, string>): void {
  const writeHead = response.writeHead;
  response.writeHead = function (this: ServerResponse, ...args: unknown[]) {
    for (const [name, value] of Object.entries(headers)) {
      if (!this.headersSent && !this.hasHeader(name)) this.setHeader(name, value);
    }
    return (writeHead as (...args: unknown[]) => ServerResponse).apply(this, args);
  } as typeof writeHead;
}
