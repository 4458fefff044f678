// Private services for the tests, and helpers that wait for effects.
import { spawn } from "node:child_process";
import { createServer, connect } from "node:net";

import { Limiter } from "sluicegate";
import { Service } from "sluicegate/testing";

export const LIMITS = `
dimensions: {userId: optional, orgId: optional, slotId: optional, briefId: optional, slowId: optional, provider: optional}
limits:
  - name: requests
    effective: true
    rules: [{name: USER, per: [userId], limit: 10/min}]
  - name: organisation
    rules: [{name: ORG, per: [orgId], limit: 3/min}]
  - name: budget
    rules: [{name: USER_BUDGET, per: [userId], limit: 5.00 USD/day}]
  - name: slots
    rules: [{name: SLOTS, per: [slotId], limit: 2 concurrent, lease: 1min}]
  - name: brief slots
    rules: [{name: BRIEF, per: [briefId], limit: 1 concurrent, lease: 1s}]
  - name: vendor
    rules: [{name: VENDOR, per: [provider], limit: 2/s}]
  - name: slow vendor
    rules: [{name: SLOW, per: [slowId], limit: 1/10min}]
prices: {default: {input: 0.0000002 USD/token, output: 0.0000006 USD/token}}
`;

let names = 0;
/** Returns a name that no other test uses. */
export const newName = () => `name-${process.pid}-${(names += 1)}`;

/** The machine may be busy: a generous timeout, unless the test is about it. */
export const limiterOf = (url, options = {}) => new Limiter({ url, timeoutMs: 30_000, ...options });

/** Waits for an effect. */
export async function until(condition) {
  const deadline = performance.now() + 30_000;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`the expected effect did not occur: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Returns a function that tells the number of slots in use. */
export function slotsOf(service) {
  const limiter = limiterOf(service.url);
  return async (name) => (await limiter.usage({ slotId: name }))[0].current;
}

export function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Starts a service on a private Redis. Its timeouts are long: the machine may be busy. */
export async function redisService(limits = LIMITS) {
  const port = await freePort();
  const redis = spawn("redis-server", ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], {
    stdio: "ignore",
  });
  await until(
    () =>
      new Promise((resolve) => {
        const socket = connect(port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
        socket.on("connect", () => socket.end());
      }),
  );
  const store = `store: {kind: redis, url: "redis://127.0.0.1:${port}", timeout: 10s, deadline: 20s}`;
  const service = await Service.start(`${store}\n${limits}`);
  return {
    service,
    redis,
    stop: async () => {
      await service.stop();
      redis.kill("SIGKILL");
    },
  };
}

/** A TCP proxy that delays answers or swallows them. */
export async function startProxy(url) {
  const { hostname, port } = new URL(url);
  const proxy = { delayMs: 0, swallow: false, connections: 0, sockets: new Set() };
  const server = createServer((near) => {
    proxy.connections += 1;
    const far = connect(Number(port), hostname);
    proxy.sockets.add(near).add(far);
    near.pipe(far);
    far.on("data", (data) => {
      if (!proxy.swallow) setTimeout(() => near.writable && near.write(data), proxy.delayMs);
    });
    for (const [one, other] of [[near, far], [far, near]]) one.on("error", () => {}).on("close", () => other.destroy());
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  proxy.url = `http://127.0.0.1:${server.address().port}`;
  proxy.close = () => {
    server.close();
    for (const socket of proxy.sockets) socket.destroy();
  };
  return proxy;
}

/** Number of callers of `startLoad`. */
export const CALLERS = 4;

/** Starts callers that ask for decisions until `stop`. */
export function startLoad(url, onUnavailable) {
  const limiter = limiterOf(url, { onUnavailable });
  const decisions = [];
  let stopped = false;
  const callers = Array.from({ length: CALLERS }, async () => {
    while (!stopped) {
      decisions.push(await limiter.acquire({}));
      // During the outage the policy decides at once: leave the processor to the service.
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  });
  return {
    decisions,
    /** Waits for a new decision that meets the condition. */
    until: (condition) => {
      const seen = decisions.length;
      return until(() => decisions.slice(seen).some(condition));
    },
    stop: async () => {
      stopped = true;
      await Promise.all(callers);
      limiter.close();
    },
  };
}
