// Plugin for Fastify.
import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from "fastify";

import { type Admitted, Middleware, type MiddlewareOptions } from "./middleware.js";

export type { RateLimitInfo } from "./middleware.js";

/** Options of the plugin. */
export type FastifyOptions = MiddlewareOptions<[FastifyRequest, FastifyReply]>;

/**
 * Limits all requests of the instance: `app.register(rateLimit, { dimensions: (request) => … })`. The header fields
 * are on every answer. The admission ends when the answer has been sent completely or the client disconnects.
 */
const rateLimitPlugin: FastifyPluginAsync<FastifyOptions> = async (app, options) => {
  const middleware = new Middleware<[FastifyRequest, FastifyReply]>("rateLimit", options, [], (request) => request.ip);
  const admissions = new WeakMap<FastifyRequest, Admitted>();

  app.addHook("onRequest", async (request, reply) => {
    const outcome = await middleware.decide(request, reply);
    if (outcome.kind === "skipped") return;
    if (outcome.kind === "denied") {
      const { status, headers, body } = outcome.refusal;
      return reply.code(status).headers(headers).send(body);
    }
    const { admitted } = outcome;
    admissions.set(request, admitted);
    reply.raw.once("close", () => void admitted.end());
    if (reply.raw.closed) void admitted.end();
  });
  app.addHook("onSend", async (request, reply) => {
    for (const [name, value] of Object.entries(admissions.get(request)?.headers ?? {})) {
      if (!reply.hasHeader(name)) reply.header(name, value);
    }
  });
};

/** Applies to the instance itself, not only to a child of it. */
export const rateLimit = Object.assign(rateLimitPlugin, {
  [Symbol.for("skip-override")]: true,
  [Symbol.for("fastify.display-name")]: "sluicegate",
});
export default rateLimit;
