// Real web frameworks on real sockets: Express, Fastify and Hono.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { serve } from "@hono/node-server";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import { ipKeyGenerator, Limiter } from "sluicegate";
import { rateLimit as expressLimit } from "sluicegate/express";
import { rateLimit as fastifyLimit } from "sluicegate/fastify";
import { rateLimit as honoLimit } from "sluicegate/hono";
import { Service } from "sluicegate/testing";

import { LIMITS, limiterOf, newName, slotsOf, until } from "./support.mjs";

const FIELDS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy"];

const REQUIRED = "limits: [{name: user, rules: [{name: USER, per: [userId], limit: 5/min}]}]";

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

    test("a limit of 0 denies all, and max is another name of limit", async () => {
      const keyGenerator = () => newName();
      await running({ dimensions: () => ({}), limit: 0, keyGenerator }, async (get) => assert.equal((await get("/")).status, 429));
      await running({ dimensions: () => ({}), max: 1, keyGenerator }, async (get) => {
        const answer = await get("/");
        assert.deepEqual([answer.status, answer.headers.get("x-ratelimit-limit")], [200, "1"]);
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
      for (const onUnavailable of ["closed", "throw"]) {
        const passing = down(onUnavailable);
        await running({ limiter: passing, passOnStoreError: true }, async (get) => {
          assert.equal((await get("/")).status, 200);
        });
        assert.deepEqual([passing.stats.failedOpen, passing.stats.failedClosed], [1, 0]);
      }
    });

    test("an invalid value of a client is a clear 400", async () => {
      const required = await Service.start(REQUIRED);
      const dimensions = (first) => {
        const request = first.req ?? first; // Hono has a context with the request.
        const headers = typeof request.header === "function" ? { get: (name) => request.header(name) } : undefined;
        return { userId: headers === undefined ? request.headers["x-user-id"] : headers.get("x-user-id") };
      };
      // A denial of the middleware has other answers, and is not meant by these options.
      const options = { limiter: limiterOf(required.url), dimensions, statusCode: 420, message: "slow down" };
      try {
        await running(options, async (get) => {
          for (const headers of [{ "x-user-id": "x".repeat(257) }, { "x-user-id": "" }, {}]) {
            const answer = await get("/", { headers });
            const body = await answer.json();
            assert.deepEqual([answer.status, body.reason], [400, "INVALID_REQUEST"], JSON.stringify(body));
            assert.match(body.detail, /userId/);
          }
          assert.equal((await get("/", { headers: { "x-user-id": "ann" } })).status, 200);
        });
        const keyless = { limiter, limit: 5, keyGenerator: () => undefined };
        await running(keyless, async (get) => {
          const answer = await get("/");
          assert.deepEqual([answer.status, (await answer.json()).detail], [400, "the request has no key for its limit"]);
        });
      } finally {
        await required.stop();
      }
    });

    test("a wrong token of the limiter is not shown to clients", async () => {
      const secured = await Service.start(`auth: {tokens: {app: "0123456789abcdef"}}\n${REQUIRED}`);
      try {
        for (const [onUnavailable, status] of [["closed", 503], ["open", 200]]) {
          const seen = [];
          const refused = limiterOf(secured.url, { token: "wrong", onUnavailable, onFailure: (error) => seen.push(error.status) });
          await running({ limiter: refused, dimensions: () => ({ userId: "ann" }) }, async (get) => {
            assert.equal((await get("/")).status, status);
          });
          assert.deepEqual(seen, [401]);
          assert.equal(refused.stats.failedOpen + refused.stats.failedClosed, 1);
        }
      } finally {
        await secured.stop();
      }
    });
  });
}

test("mistakes in the options of a middleware are found at once", () => {
  const dimensions = () => ({});
  assert.throws(() => expressLimit({}), /dimensions is required/);
  assert.throws(() => expressLimit({ dimensions, store: {} }), /unknown option "store" \(known: limiter, dimensions/);
  assert.throws(() => expressLimit({ limit: 5, max: 5 }), /max is another name of limit/);
  assert.throws(() => expressLimit({ dimensions, windowMs: 5 }), /windowMs and keyGenerator need limit/);
  assert.throws(() => expressLimit({ limit: 5, windowMs: 90_500 }), /windowMs 90500: must be 1 to 99 whole seconds/);
  assert.throws(() => expressLimit({ limit: -1 }), /limit -1: must be a whole number from 0 to 999999/);
  assert.throws(() => expressLimit({ limit: 5, ipv6Subnet: 0 }), /ipv6Subnet 0: must be a number of bits/);
  assert.throws(() => expressLimit({ limit: 5, ipv6Subnet: 64, keyGenerator: () => "k" }), /ipv6Subnet needs limit without/);
  assert.throws(() => honoLimit({ limit: 5 }), /keyGenerator is required with limit/);
});

test("a handler of Express answers a denied request itself, as one of express-rate-limit does", async () => {
  const service = await Service.start(LIMITS);
  const app = express();
  const seen = [];
  const handler = (request, response, next, options) => {
    const { limit, windowMs, requestPropertyName } = options;
    seen.push([limit, windowMs, requestPropertyName, request.quota.used, request.quota.remaining]);
    response.status(options.statusCode).send(options.message);
  };
  const options = { limiter: limiterOf(service.url), limit: 1, handler, requestPropertyName: "quota" };
  app.use("/plain", expressLimit({ ...options, keyGenerator: () => "plain" }));
  app.use("/own", expressLimit({ ...options, keyGenerator: () => "own", statusCode: 420, message: "slow down" }));
  app.get(["/plain", "/own"], (request, response) => void response.send(String(request.quota.remaining)));
  const server = await new Promise((resolve) => {
    const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
  });
  const get = async (path) => {
    const answer = await fetch(`http://127.0.0.1:${server.address().port}${path}`);
    return [answer.status, answer.headers.get("content-type").split(";")[0], await answer.text()];
  };
  assert.deepEqual(await get("/plain"), [200, "text/html", "0"]);
  const [status, type, body] = await get("/plain");
  assert.deepEqual([status, type, JSON.parse(body).reason], [429, "application/json", "HIT_LIMIT_LIMIT"]);
  assert.deepEqual(seen, [[1, 60_000, "quota", 1, 0]]);
  await get("/own");
  assert.deepEqual(await get("/own"), [420, "text/html", "slow down"]);
  server.closeAllConnections();
  server.close();
  await service.stop();
});

test("the plugin of Fastify applies to the instance that it is registered at, and to its children", async () => {
  const service = await Service.start(LIMITS);
  const app = fastify();
  const dimensions = ({ query }) => ({ ...query });
  app.get("/free", () => "ok");
  app.register(async (child) => {
    child.register(fastifyLimit, { limiter: limiterOf(service.url), dimensions });
    child.get("/limited", () => "ok");
    child.register(async (grandchild) => void grandchild.get("/below", () => "ok"));
  });
  try {
    const orgId = newName();
    const get = async (url) => (await app.inject(`${url}?orgId=${orgId}`)).headers["x-ratelimit-remaining"];
    assert.deepEqual([await get("/limited"), await get("/below"), await get("/free")], ["2", "1", undefined]);
  } finally {
    await app.close();
    await service.stop();
  }
});

test("addresses count by host or by network", () => {
  for (const [address, subnet, expected] of [
    ["192.0.2.7", undefined, "192.0.2.7"],
    ["::ffff:192.0.2.7", undefined, "192.0.2.7"],
    ["2001:db8:1:2ff:3:4:5:6", undefined, "2001:db8:1:200::/56"],
    ["2001:db8:1:2ff:3:4:5:6", 64, "2001:db8:1:2ff::/64"],
    ["2001:DB8::1", false, "2001:db8::1"],
    ["fe80::1%eth0", undefined, "fe80::/56"],
    ["1:2:3:4:5:6:7:8", 128, "1:2:3:4:5:6:7:8/128"],
    ["no address", undefined, "no address"],
  ]) {
    assert.equal(ipKeyGenerator(address, subnet), expected);
  }
});

test("clients of one IPv6 network share the default key", async () => {
  const service = await Service.start(LIMITS);
  const limit = (options) => {
    const app = express();
    app.set("trust proxy", true);
    app.use(expressLimit({ limiter: limiterOf(service.url), limit: 1, ...options }));
    app.get("/", (request, response) => void response.send("ok"));
    return new Promise((resolve) => {
      const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
    });
  };
  const statuses = async (server, addresses) => {
    const answers = [];
    for (const address of addresses) {
      const headers = { "x-forwarded-for": address };
      answers.push((await fetch(`http://127.0.0.1:${server.address().port}/`, { headers })).status);
    }
    server.closeAllConnections();
    server.close();
    return answers;
  };
  const addresses = ["2001:db8:0:100::1", "2001:db8:0:1ff::2", "2001:db8:0:200::1"];
  assert.deepEqual(await statuses(await limit({}), addresses), [200, 429, 200]);
  assert.deepEqual(await statuses(await limit({ ipv6Subnet: false, windowMs: 120_000 }), addresses), [200, 200, 200]);
  await service.stop();
});
