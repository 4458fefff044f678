// The package as users get it: packed, installed into an empty project, with its README, as ESM, CommonJS and types.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Service } from "sluicegate/testing";

import { freePort, until } from "./support.mjs";

const run = promisify(execFile);
const folder = fileURLToPath(new URL("..", import.meta.url));
const readme = await readFile(join(folder, "README.md"), "utf8");
const blocks = (language) => [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, "gms"))].map((match) => match[1]);
const FRAMEWORKS = ["express", "fastify", "hono", "@hono/node-server", "@types/express", "@types/node"];

let project;
let service;
before(async () => {
  project = await mkdtemp(join(tmpdir(), "sluicegate-project-"));
  await writeFile(join(project, "package.json"), '{"private": true, "type": "module"}');
  await run("npm", ["pack", "--silent", "--pack-destination", project], { cwd: folder });
  const tarball = (await readdir(project)).find((name) => name.endsWith(".tgz"));
  // The package has no dependencies, so nothing is downloaded.
  const install = ["install", "--offline", "--omit=peer", "--silent", "--no-audit", "--no-fund", `./${tarball}`];
  await run("npm", install, { cwd: project });
  const installed = await readdir(join(project, "node_modules"));
  assert.deepEqual(installed.filter((name) => !name.startsWith(".")), ["sluicegate"]);
  for (const name of FRAMEWORKS) {
    await mkdir(join(project, "node_modules", name, ".."), { recursive: true });
    await symlink(join(folder, "node_modules", name), join(project, "node_modules", name));
  }
  service = await Service.start(blocks("yaml").join("\n"));
});
after(async () => {
  await service.stop();
  await rm(project, { recursive: true });
});

for (const [number, text] of blocks("js").entries()) {
  test(`block ${number} of the README runs: ${text.split("\n")[0]}`, async () => {
    const path = join(project, `block-${number}.mjs`);
    await writeFile(path, text);
    const env = { ...process.env, SLUICEGATE_URL: service.url };
    if (!text.includes("PORT")) {
      await run(process.execPath, [path], { env });
      return;
    }
    const port = await freePort();
    const child = spawn(process.execPath, [path], { env: { ...env, PORT: String(port) }, stdio: "inherit" });
    try {
      let answer;
      await until(async () => {
        assert.equal(child.exitCode, null, "the application ended");
        answer = await fetch(`http://localhost:${port}/`, { headers: { "x-user-id": `reader-${number}` } }).catch(() => undefined);
        return answer;
      });
      assert.equal(answer.status, 200);
      assert.ok(answer.headers.get("x-ratelimit-remaining"));
      assert.ok(answer.headers.get("ratelimit"));
    } finally {
      child.kill();
    }
  });
}

test("the package works with require", async () => {
  const text = `
    const { Limiter } = require("sluicegate");
    for (const name of ["express", "fastify", "hono", "fetch", "testing"]) require("sluicegate/" + name);
    new Limiter().check({ userId: "u" }).then((decision) => console.log(decision.allowed));`;
  await writeFile(join(project, "require.cjs"), text);
  const env = { ...process.env, SLUICEGATE_URL: service.url };
  const { stdout } = await run(process.execPath, [join(project, "require.cjs")], { env });
  assert.equal(stdout, "true\n");
});

test("the types are complete for ES modules and CommonJS", async () => {
  const text = `
    import express, { type Request, type Response } from "express";
    import fastify from "fastify";
    import { Hono } from "hono";
    import { Limiter, Queue, type Decision, type Message } from "sluicegate";
    import { rateLimit } from "sluicegate/express";
    import { rateLimit as plugin } from "sluicegate/fastify";
    import { rateLimit as hono } from "sluicegate/hono";
    import { pacedFetch } from "sluicegate/fetch";
    const limiter = new Limiter({ onUnavailable: "open" });
    export const decision: Promise<Decision> = limiter.acquire({ userId: "u" }, { cost: { usd: "0.1" } });
    express().use(rateLimit<Request, Response>({ limiter, dimensions: (request) => ({ userId: request.ip ?? "" }) }));
    fastify().register(plugin, { limiter, dimensions: (request) => ({ userId: request.ip }) });
    new Hono().use(hono({ limiter, dimensions: (c) => ({ userId: c.req.path }) }));
    export const paced: typeof fetch = pacedFetch({ limiter, dimensions: { provider: "acme" } });
    export const worked: Promise<number> = new Queue("jobs").work((message: Message) => message.json(), { limit: 1 });
    // @ts-expect-error: money is a text
    void limiter.acquire({ userId: "u" }, { cost: { usd: 0.1 } });`;
  await writeFile(join(project, "caller.mts"), text);
  await writeFile(join(project, "caller.cts"), text.replaceAll('import express, { type', 'import express = require("express");\nimport { type'));
  const compiler = createRequire(import.meta.url).resolve("typescript/lib/tsc.js");
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022", "--types", "node"];
  const lines = [compiler, ...options, "caller.mts", "caller.cts"];
  await run(process.execPath, lines, { cwd: project }).catch((error) => assert.fail(error.stdout));
});
