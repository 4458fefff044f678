// Every operation of the queue client and its worker, against a real service on the embedded queue.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { ApiError, Defer, LeaseLost, Queue, Reject, Unavailable } from "sluicegate";
import { Service } from "sluicegate/testing";

import { freePort, newName, until } from "./support.mjs";

const queueOf = (service, name = newName(), options = {}) => new Queue(name, { url: service.url, timeoutMs: 30_000, ...options });
const quiet = () => {};

describe("queue", () => {
  let service;
  before(async () => {
    service = await Service.start("queue: {job_id: id}");
  });
  after(() => service.stop());

  test("a message is sent, received as it was, extended and deleted once", async () => {
    const queue = queueOf(service);
    const bytes = Buffer.from([0, 255, 10]);
    for (const body of [{ id: "j-1", n: 1 }, "text\n", bytes]) await queue.send(body, { type: "t", headers: { "x-a": "b" } });
    const [first, second, third] = [await queue.receive(), await queue.receive(), await queue.receive()].map(([message]) => message);
    assert.deepEqual(first.json(), { id: "j-1", n: 1 });
    assert.deepEqual([first.job, first.type, first.headers["x-a"], first.attempt], ["j-1", "t", "b", 0]);
    assert.equal(second.text(), "text\n");
    assert.deepEqual(third.body, bytes);
    assert.ok((await queue.extend(first, 7_200_000)) > first.leaseUntil);
    await queue.delete(first);
    await queue.delete(first);
    await assert.rejects(queue.requeue(first), (error) => error instanceof LeaseLost && error.reason === "LEASE_SETTLED");
    await queue.deleteBatch([second, third]);
    assert.deepEqual(await queue.depth(), { ready: 0, delayed: 0, inFlight: 0, deadLetters: 0, deadLetterQueue: `${queue.name}-dlq` });
    assert.deepEqual(await queue.receive(10, { waitMs: 0 }), []);
    queue.close();
  });

  test("a batch is sent, a message is delayed, and failures are counted", async () => {
    const queue = queueOf(service);
    const ids = await queue.sendBatch(Array.from({ length: 600 }, (_, n) => ({ n })));
    assert.equal(new Set(ids).size, 600);
    await queue.send("later", { delayMs: 3_600_000 });
    assert.deepEqual([(await queue.depth()).ready, (await queue.depth()).delayed], [600, 1]);
    const received = [];
    while (received.length < 600) received.push(...(await queue.receive(100)));
    await queue.deleteBatch(received.slice(3));
    await queue.retry(received[0]);
    await queue.defer(received[1]);
    await queue.sendToDlq(received[2], new Error("no such repository"));
    const again = [];
    while (again.length < 2) again.push(...(await queue.receive(10)));
    assert.deepEqual(again.map((message) => [message.attempt, message.deferrals]).sort(), [[0, 1], [1, 0]]);
    assert.equal((await queue.depth()).deadLetters, 1);
    queue.close();
  });

  test("errors name what is wrong", async () => {
    const queue = queueOf(service);
    await assert.rejects(queue.depth(), (error) => error instanceof ApiError && error.status === 404 && error.reason === "NO_QUEUE");
    await assert.rejects(queue.send("x", { priority: 10 }), (error) => error instanceof ApiError && error.field === "priority");
    await assert.rejects(queue.receive(1, { waitMs: 21_000 }), /wait: must be from/);
    await assert.rejects(queue.send(undefined), TypeError);
    assert.throws(() => new Queue("q", { timeout: 1 }), TypeError);
    const nobody = new Queue("q", { url: `http://127.0.0.1:${await freePort()}` });
    await assert.rejects(nobody.send("x"), Unavailable);
    const aborted = new AbortController();
    const waiting = queue.receive(1, { signal: aborted.signal });
    aborted.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
    queue.close();
  });

  test("a worker deletes, retries, defers, rejects and keeps leases", async () => {
    const queue = queueOf(service);
    await queue.sendBatch(["done", "fails", "broken", "later", "slow"]);
    await queue.send("fails once", { maxAttempts: 1 });
    const seen = {};
    const count = await queue.work(
      async (message) => {
        const body = message.text();
        seen[body] = (seen[body] ?? 0) + 1;
        if (body.startsWith("fails")) throw new Error("always");
        if (body === "broken") throw new Reject("not valid");
        if (body === "later" && seen.later === 1) throw new Defer(10);
        // Longer than its lease.
        if (body === "slow") await new Promise((resolve) => setTimeout(resolve, 2_500));
      },
      { concurrency: 3, leaseMs: 1_000, attempts: 3, backoffMs: 10, limit: 9, onWarning: quiet },
    );
    assert.equal(count, 9);
    assert.deepEqual(seen, { done: 1, fails: 3, broken: 1, later: 2, slow: 1, "fails once": 1 });
    const depth = await queue.depth();
    assert.deepEqual([depth.ready, depth.inFlight, depth.deadLetters], [0, 0, 3]);
    queue.close();
  });

  test("a mistake of a handler in Defer is reported, and the worker goes on", async () => {
    const queue = queueOf(service);
    await queue.sendBatch(["first", "second"]);
    const warnings = [];
    const handle = (message) => {
      if (message.text() === "first") throw new Defer(-1);
    };
    const options = { concurrency: 2, leaseMs: 60_000, limit: 2, onWarning: (text) => warnings.push(text) };
    assert.equal(await queue.work(handle, options), 2);
    assert.match(warnings.join("\n"), /was not settled, and is delivered again: delayMs: must be a number of milliseconds/);
    const { inFlight, ready } = await queue.depth();
    assert.deepEqual([inFlight, ready], [1, 0]);
    queue.close();
  });

  test("a worker goes on when the service is killed, and loses nothing", async () => {
    const own = await Service.start("queue: {}");
    const queue = queueOf(own);
    const sent = Array.from({ length: 60 }, (_, n) => `job-${n}`);
    await queue.sendBatch(sent);
    const done = new Set();
    const stop = new AbortController();
    const working = queue.work(async (message) => void done.add(message.text()), {
      concurrency: 4,
      leaseMs: 2_000,
      signal: stop.signal,
      onWarning: quiet,
    });
    try {
      for (let kill = 0; kill < 3; kill += 1) {
        await until(() => done.size > kill * 10);
        await own.kill();
        await own.start();
      }
      await until(() => done.size === 60);
    } finally {
      stop.abort();
      await working;
      queue.close();
      await own.stop();
    }
  });
});
