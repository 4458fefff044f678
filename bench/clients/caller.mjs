// Calls the service by one client until it is told to stop: `caller.mjs (http|limiter) URL`. It takes the same input as
// caller.py and answers in the same form.
import http from "node:http";
import { createInterface } from "node:readline";

import { Limiter } from "../../clients/node/dist/esm/index.js";

const [kind, url] = process.argv.slice(2);
const users = Array.from({ length: 1000 }, (_, number) => ({ userId: `user-${String(number).padStart(6, "0")}` }));

/** The bare call with the standard library. */
function bare() {
  const agent = new http.Agent({ keepAlive: true });
  const { hostname, port } = new URL(url);
  const options = { hostname, port, path: "/v1/acquire?status=429", method: "POST", agent };
  return (dimensions) =>
    new Promise((resolve, reject) => {
      const body = JSON.stringify({ dimensions });
      const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
      const request = http.request({ ...options, headers }, (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (part) => (text += part));
        response.on("end", () => resolve(JSON.parse(text).allowed));
      });
      request.on("error", reject);
      request.end(body);
    });
}

function ours() {
  const limiter = new Limiter({ url, timeoutMs: 30_000 });
  return async (dimensions) => (await limiter.acquire(dimensions)).allowed;
}

const call = kind === "http" ? bare() : ours();
for await (const line of createInterface(process.stdin)) {
  const [seconds, inFlight] = line.split(" ").map(Number);
  const latencies = [];
  const began = performance.now();
  const cpu = process.cpuUsage();
  const worker = async () => {
    let before = performance.now();
    while (before < began + seconds * 1000) {
      if (!(await call(users[latencies.length % users.length]))) throw new Error("denied");
      const now = performance.now();
      latencies.push(now - before);
      before = now;
    }
  };
  await Promise.all(Array.from({ length: inFlight }, worker));
  const used = process.cpuUsage(cpu);
  latencies.sort((a, b) => a - b);
  const at = (share) => latencies[Math.floor(latencies.length * share)] * 1000;
  const took = (performance.now() - began) / 1000;
  const row = { calls: latencies.length, seconds: took, cpu: (used.user + used.system) / 1e6, p50: at(0.5), p99: at(0.99) };
  console.log(JSON.stringify(row));
}
process.exit(0);
