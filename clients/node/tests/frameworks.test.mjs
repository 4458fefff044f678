// Real web frameworks on real sockets: Express, Fastify and Hono.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { serve } from "@hono/node-server";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import { Limiter } from "sluicegate";
import { rateLimit as expressLimit } from "sluicegate/express";
import { rateLimit as fastifyLimit } from "sluicegate/fastify";
import { rateLimit as honoLimit } from "sluicegate/hono";
import { Service } from "sluicegate/testing";

import { LIMITS, limiterOf, newName, slotsOf, until } from "./support.mjs";

const FIELDS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy"];

/** Each framework serves the same routes; `dimensions` are the query parameters. */
const FRAMEWORKS = {
  async express(options) {
    const app = express();
    app.use(expressLimit({ dimensions: ({ query }) => ({ ...query }), ...options(({ path }) => path) }));
    app.get(["/", "/health"], (request, response) => void response.send("ok"));
    app.get("/broken", () => {
      throw Object.assign(new Error("broken"), { expose: false });
    });
    app.get("/stream", async (request, response) => {
      response.write("first");
      await until(() => app.go || response.closed);
      response.end("last");
    });
    const server = await new Promise((resolve) => {
      const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
    });
    return { app, port: server.address().port, close: () => (server.closeAllConnections(), server.close()) };
  },
  async fastify(options) {
    const app = fastify();
    const state = {};
    app.register(fastifyLimit, { dimensions: ({ query }) => ({ ...query }), ...options(({ url }) => url.split("?")[0]) });
    app.get("/", () => "ok");
    app.get("/health", () => "ok");
    app.get("/broken", () => {
      throw new Error("broken");
    });
    app.get("/stream", (request, reply) => {
      const parts = new ReadableStream({
        async start(controller) {
          controller.enqueue(Buffer.from("first"));
          await until(() => state.go || reply.raw.closed);
          if (!reply.raw.closed) {
            controller.enqueue(Buffer.from("last"));
            controller.close();
          }
        },
      });
      return reply.send(new Response(parts));
    });
    await app.listen({ port: 0, host: "127.0.0.1" });
    return { app: state, port: app.server.address().port, close: () => (app.server.closeAllConnections(), app.close()) };
  },
  async hono(options) {
    const app = new Hono();
    const state = {};
    app.onError((error, c) => c.text(error.message, 500));
    app.use(honoLimit({ dimensions: (c) => c.req.query(), ...options((c) => c.req.path) }));
    app.get("/", (c) => c.text("ok"));
    app.get("/health", (c) => c.text("ok"));
    app.get("/broken", () => {
      throw new Error("broken");
    });
    app.get("/stream", (c) => {
      let ended = false;
      const parts = new ReadableStream({
        async start(controller) {
          controller.enqueue(Buffer.from("first"));
          await until(() => state.go || ended);
          if (!ended) {
            controller.enqueue(Buffer.from("last"));
            controller.close();
          }
        },
        cancel() {
          ended = true;
        },
      });
      return c.body(parts);
    });
    const server = await new Promise((resolve) => {
      const listening = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, () => resolve(listening));
    });
    return { app: state, port: server.address().port, close: () => (server.closeAllConnections(), server.close()) };
  },
};

for (const [name, start] of Object.entries(FRAMEWORKS)) {
  describe(name, () => {
    let service;
    let limiter;
    let slots;
    before(async () => {
      service = await Service.start(LIMITS);
      limiter = limiterOf(service.url);
      slots = slotsOf(service);
    });
    after(() => service.stop());

    /** Runs the framework with these options; `get` asks it. */
    async function running(options, scenario) {
      const server = await start((path) => ({ limiter, ...options, skip: (...args) => path(...args) === "/health" }));
      const get = (path, options) => fetch(`http://127.0.0.1:${server.port}${path}`, options);
      try {
        await scenario(get, server.app);
      } finally {
        await server.close();
      }
    }

    test("the limit denies with the headers and the body of the service", () =>
      running({}, async (get) => {
        const orgId = newName();
        const answers = [];
        for (let n = 0; n < 4; n += 1) answers.push(await get(`/?orgId=${orgId}`));
        assert.deepEqual(answers.map(({ status }) => status), [200, 200, 200, 429]);
        assert.deepEqual(answers.map(({ headers }) => headers.get("x-ratelimit-remaining")), ["2", "1", "0", "0"]);
        for (const { headers } of answers) for (const field of FIELDS) assert.ok(headers.get(field), field);
        assert.ok(Number(answers[3].headers.get("retry-after")) > 0);
        const body = await answers[3].json();
        assert.equal(body.detail, "Rate limit exceeded: 3 requests per minute");
        assert.equal(body.reason, "HIT_ORG_LIMIT");
        assert.equal((await get(`/health?orgId=${orgId}`)).status, 200);
      }));

    test("the headers are there also if a handler throws", () =>
      running({}, async (get) => {
        const answer = await get(`/broken?orgId=${newName()}`);
        assert.equal(answer.status, 500);
        assert.equal(answer.headers.get("x-ratelimit-remaining"), "2");
      }));

    test("a slot is held until the stream ends", () =>
      running({}, async (get, app) => {
        const slotId = newName();
        const answer = await get(`/stream?slotId=${slotId}`);
        const reader = answer.body.getReader();
        assert.equal(Buffer.from((await reader.read()).value).toString(), "first");
        assert.equal(await slots(slotId), 1);
        app.go = true;
        assert.equal(Buffer.from((await reader.read()).value).toString(), "last");
        assert.ok((await reader.read()).done);
        await until(async () => (await slots(slotId)) === 0);
      }));

    test("a slot is held longer than its lease, and given back after HEAD", () =>
      running({}, async (get, app) => {
        const briefId = newName();
        const answer = await get(`/stream?briefId=${briefId}`);
        const reader = answer.body.getReader();
        await reader.read();
        await new Promise((resolve) => setTimeout(resolve, 1500));
        assert.equal((await limiter.usage({ briefId }))[0].current, 1);
        app.go = true;
        while (!(await reader.read()).done);
        await until(async () => (await limiter.usage({ briefId }))[0].current === 0);
        const slotId = newName();
        await get(`/?slotId=${slotId}`, { method: "HEAD" });
        await until(async () => (await slots(slotId)) === 0);
      }));

    test("a slot is given back if the client disconnects", () =>
      running({}, async (get) => {
        const slotId = newName();
        const answer = await get(`/stream?slotId=${slotId}`);
        const reader = answer.body.getReader();
        await reader.read();
        assert.equal(await slots(slotId), 1);
        await reader.cancel();
        await until(async () => (await slots(slotId)) === 0);
      }));

    test("a cost is settled when the answer has been sent", () =>
      running({ cost: () => ({ usd: "1.00" }), settleCost: () => ({ usd: "0.50" }) }, async (get) => {
        const userId = newName();
        await (await get(`/?userId=${userId}`)).text();
        await until(async () => (await limiter.userUsage(userId)).cost.today === 0.5);
      }));

    test("the options of express-rate-limit mean the same", () => {
      const key = newName();
      const options = {
        dimensions: () => ({}),
        limit: () => 2,
        windowMs: 15 * 60_000,
        keyGenerator: () => key,
        message: { error: "slow down" },
        statusCode: 420,
        legacyHeaders: false,
      };
      return running(options, async (get) => {
        const answers = [];
        for (let n = 0; n < 3; n += 1) answers.push(await get("/"));
        assert.deepEqual(answers.map(({ status }) => status), [200, 200, 420]);
        assert.deepEqual(await answers[2].json(), { error: "slow down" });
        assert.equal(answers[0].headers.get("x-ratelimit-limit"), null);
        assert.match(answers[0].headers.get("ratelimit-policy"), /"LIMIT";q=2;w=900/);
      });
    });

    test("requests are admitted or refused as configured while the limiter is down", async () => {
      const down = (onUnavailable) => new Limiter({ url: "http://127.0.0.1:1", onUnavailable });
      await running({ limiter: down("closed") }, async (get) => {
        const answer = await get("/");
        assert.equal(answer.status, 503);
        assert.equal((await answer.json()).reason, "LIMITER_UNAVAILABLE");
      });
      await running({ limiter: down("open") }, async (get) => assert.equal((await get("/")).status, 200));
      await running({ limiter: down("closed"), passOnStoreError: true }, async (get) => {
        assert.equal((await get("/")).status, 200);
      });
    });
  });
}

test("mistakes in the options of a middleware are found at once", () => {
  const dimensions = () => ({});
  assert.throws(() => expressLimit({}), /dimensions is required/);
  assert.throws(() => expressLimit({ dimensions, max: 5 }), /unknown option "max" \(known: limiter, dimensions/);
  assert.throws(() => expressLimit({ dimensions, windowMs: 5 }), /windowMs and keyGenerator need limit/);
  assert.throws(() => expressLimit({ limit: 5, windowMs: 90_500 }), /windowMs 90500: must be 1 to 99 whole seconds/);
  assert.throws(() => expressLimit({ limit: 0 }), /limit 0: must be a whole number from 1 to 999999/);
  assert.throws(() => honoLimit({ limit: 5 }), /keyGenerator is required with limit/);
});

test("a handler of Express answers a denied request itself", async () => {
  const service = await Service.start(LIMITS);
  const app = express();
  const handler = (request, response, next, info) => response.send(`${info.limit} ${info.remaining} ${request.quota.used}`);
  app.use(expressLimit({ limiter: limiterOf(service.url), limit: 1, handler, requestPropertyName: "quota" }));
  app.get("/", (request, response) => void response.send(String(request.quota.remaining)));
  const server = await new Promise((resolve) => {
    const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
  });
  const get = async () => (await fetch(`http://127.0.0.1:${server.address().port}/`)).text();
  assert.equal(await get(), "0");
  assert.equal(await get(), "1 0 1");
  server.closeAllConnections();
  server.close();
  await service.stop();
});
